"""Cells behind a channel: a server that denoises has more than one that does not, and all there is without noise."""

import math
from typing import Any

import pytest
import torch

from prunella.attacks.denoise import moments
from prunella.benchmarks.engine.claim import Point
from prunella.benchmarks.engine.rules import HOLDS, NOT
from prunella.benchmarks.papers.channel_denoised import (
    CHANNELLED,
    DENOISED,
    KAPPAS,
    LEARNT,
    NOISED_CELLS,
    PLAIN,
    PRINTED,
    SPECTRA,
    Noise,
    chain,
    decomposed_once,
    denoised,
    judge_inversion,
    learnt,
    noise_of,
)
from prunella.core.randomness import rehearsal, stream
from prunella.privacy import channel
from prunella.privacy.chain import build_chain, start
from prunella.privacy.channel import eigenvalues
from prunella.privacy.defense import State

TINY: dict[str, Any] = {"dataset": "digits", "model": "cnn6", "images": 2, "iterations": 20, "examples": 300}


def fitted(kind: str, kappa: float, images: torch.Tensor) -> State:
    name, raw = chain(kind, kappa)
    return start(build_chain([name], raw), images, {}, {}, rehearsal(0, purpose="fit"))[name]


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.rand(60, 1, 4, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", ["natural", "white", "personalized"])
def test_the_covariance_is_that_of_the_noise(kind: str, images: torch.Tensor) -> None:
    state, (_, signal) = fitted(kind, 8.0, images), moments(images)
    many = images[:1].expand(4000, -1, -1, -1).contiguous()
    name, raw = chain(kind, 8.0)
    link = build_chain([name], raw).links[0].defense
    noise = (link.apply(many, state, rehearsal(0, purpose="noise")) - many).flatten(1).double()  # type: ignore[union-attr,call-arg,arg-type]
    assert torch.allclose(torch.cov(noise.T), noise_of(state, signal), atol=0.15 * float(noise.var()))


def test_the_printed_white_divides_by_the_pixels_and_ours_by_the_rank(images: torch.Tensor) -> None:
    few = images[:9]
    ours, printed = (fitted(kind, 4.0, few)["channel"]["factor"] for kind in ("white", PRINTED))
    ratio = math.expm1(2 * 4.0 / 8) / math.expm1(2 * 4.0 / 16)
    assert torch.allclose(printed.square().sum() / ours.square().sum(), torch.tensor(ratio).double())
    whole = [fitted(kind, 4.0, images)["channel"]["factor"] for kind in ("white", PRINTED)]
    assert torch.equal(*whole)  # of full rank they are the same


def test_spectra_are_shared_and_those_of_the_images(images: torch.Tensor) -> None:
    with decomposed_once():
        first = channel.eigenvalues(images)
        assert torch.equal(first, eigenvalues(images)) and channel.eigenvalues(images) is first
    assert channel.eigenvalues is eigenvalues
    SPECTRA.clear()


def test_the_control_is_rebuilt_and_a_narrow_channel_leaves_more_to_a_server_that_denoises() -> None:
    cell = {**TINY, "channel": "natural", "kappa": 10}
    clear = CHANNELLED.make(CHANNELLED.control_of(cell), 0, None)
    assert CHANNELLED.works(clear) and set(clear) == {PLAIN} and clear[PLAIN]["noise"] == 0
    noisy = denoised(cell, 0, None)
    assert noisy[PLAIN]["mse"] > 1.5 * noisy[DENOISED]["mse"] > 10 * clear[PLAIN]["mse"]
    assert noisy[PLAIN]["noise"] > noisy[PLAIN]["mse"] and not CHANNELLED.works(noisy)
    assert {"mse.0", "mse.1"} <= set(noisy[PLAIN]) and set(noisy) == {PLAIN, DENOISED, LEARNT}
    assert noisy[LEARNT]["mse"] < 1.1 * noisy[DENOISED]["mse"]


def drawn(kind: str, many: int) -> torch.Tensor:
    """Images [N, 1, 8, 8] of four flat squares, black or white, or of Gaussian grey."""
    g = torch.Generator().manual_seed(1)
    if kind == "squares":
        values = torch.randint(2, (many, 1, 2, 2), generator=g).float()
    else:
        values = 0.5 + 0.12 * torch.randn(many, 1, 2, 2, generator=g)
    return values.repeat_interleave(4, 2).repeat_interleave(4, 3)


def test_a_network_learns_what_no_linear_estimate_knows_and_no_more() -> None:
    """A square is black or white, which is beyond a straight line; Gaussian images have no more than the line."""
    error = {}
    for kind in ("squares", "gaussian"):
        public, private = drawn(kind, 1200), drawn(kind, 1300)[1200:]
        mean, signal = moments(public)
        noise = Noise(mean, signal, torch.eye(64, dtype=torch.float64))
        noisy = noise.added(private, stream(0, purpose="noise"))
        draw = stream(0, purpose="learn")
        answers = noise.cleaned(noisy), learnt(noisy, noise.cleaned, public, noise.added(public, draw), draw)
        error[kind] = [float((answer - private).square().mean()) for answer in answers]
    assert error["squares"][1] < 0.6 * error["squares"][0] < 0.04
    assert error["gaussian"][1] == pytest.approx(error["gaussian"][0], rel=0.3)


def test_the_noise_of_a_covariance_without_full_rank_has_it() -> None:
    signal = moments(drawn("squares", 400))[1]  # four squares: of rank four
    noise = Noise(torch.zeros(64).double(), signal, 2 * signal)
    found = noise.added(torch.zeros(5000, 1, 8, 8), stream(0, purpose="noise")).flatten(1).double()
    assert torch.allclose(torch.cov(found.T), 2 * signal, atol=0.05)


def test_without_noise_nothing_is_denoised_away() -> None:
    wide = denoised({**TINY, "channel": "natural", "kappa": 2000}, 0, None)
    assert wide[DENOISED]["psnr"] > 40 and abs(wide[DENOISED]["psnr"] - wide[PLAIN]["psnr"]) < 3


def points(slope: float, lead: float) -> list[Point]:
    """White and Personalized ``lead`` above Natural where the server learns to denoise, below it where not."""
    found = [Point(("none", "none", "5000", PLAIN), {"mse": (0.01,) * 3})]
    for cell in NOISED_CELLS[1:]:
        label = (cell["channel"], str(cell["kappa"]), str(cell["examples"]))
        for attack, sign in ((LEARNT, 1), (DENOISED, -1), (PLAIN, -1)):
            level = 0.5 - slope * cell["kappa"] / 1000 + (0.0 if cell["channel"] == "natural" else sign * lead)
            found.append(Point((*label, attack), {"mse": (level, level + 0.01, level - 0.01)}))
    return found


@pytest.mark.parametrize(("slope", "lead", "word"), [(1, 0.1, HOLDS), (-1, 0.1, NOT), (1, -0.1, NOT)])
def test_c3_is_judged_by_the_server_that_denoises(slope: float, lead: float, word: str) -> None:
    verdict = judge_inversion(points(slope, lead))
    assert verdict.word == word and "without denoising, not judged" in verdict.reason
    assert ("not judged, does not hold" in verdict.reason) == (lead > 0 or slope < 0)


def test_white_by_rank_is_not_compared_where_it_is_not_the_papers() -> None:
    high = [Point(p.label, {"mse": (0.0,) * 3}) if p.label[::2][:2] == ("white", "500") else p for p in points(1, 0.1)]
    assert judge_inversion(high).word == HOLDS and set(KAPPAS) >= {50, 300}
