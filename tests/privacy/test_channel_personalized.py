"""The personalized channel: exact determinant, its map, the printed quotient, and refusals."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from prunella.core.config import Raw
from prunella.core.errors import ConfigError, DefenseError
from prunella.core.randomness import rehearsal
from prunella.privacy.chain import build_chain
from prunella.privacy.channel import NaturalChannel, eigenvalues, natural_channel
from prunella.privacy.channel_personalized import (
    KEY,
    SITE,
    PersonalizedChannel,
    importance_map,
    own_map,
    personalized_channel,
)
from prunella.privacy.ledger.ledger import nats_per_step

FIT = rehearsal(0, purpose="fit")  # nothing that is fitted in this file draws


def images(n: int, side: int, channels: int = 1) -> torch.Tensor:
    return torch.rand(n, channels, side, side, generator=torch.Generator().manual_seed(n))


def by_determinants(x: torch.Tensor, beta: np.ndarray, sigma: float) -> tuple[float, float]:
    """ln det(Sigma + sigma diag beta) and sum ln(sigma beta), by numpy."""
    cov = np.cov(x.reshape(len(x), -1).double().numpy(), rowvar=False)
    return float(np.linalg.slogdet(cov + sigma * np.diag(beta))[1]), float(np.log(sigma * beta).sum())


@pytest.mark.parametrize("n, channels", [(20, 1), (400, 1), (30, 3)])
@pytest.mark.parametrize("kappa", [3.0, 60.0])
def test_the_difference_of_determinants_is_kappa(n: int, channels: int, kappa: float) -> None:
    x, setting = images(n, 8, channels), PersonalizedChannel(kappa)
    beta = importance_map(setting, 8, 8).numpy()
    assert beta.sum() == 48 + 16 * 50 / 2 + 8  # rows 3 and 4, columns 2 to 5: 8 pixels of 50, 56 of 1
    sigma = float(personalized_channel(setting).fit(x, FIT)["channel"]["variance"])
    both, noise = by_determinants(x, np.tile(beta.ravel(), channels), sigma)
    assert 0.5 * (both - noise) == pytest.approx(kappa, rel=1e-6)


def test_equal_importance_is_the_natural_channel() -> None:
    x = images(50, 6)
    even = personalized_channel(PersonalizedChannel(20.0, inside=1.0)).fit(x, FIT)["channel"]["variance"]
    assert float(even) == pytest.approx(float(natural_channel(NaturalChannel(20.0)).fit(x, FIT)["channel"]["variance"]))
    quadruple = personalized_channel(PersonalizedChannel(20.0, inside=4.0, outside=4.0)).fit(x, FIT)["channel"]
    assert float(quadruple["variance"]) * 4 == pytest.approx(float(even))  # only the product matters


def test_noise_follows_the_map() -> None:
    x = images(40, 8)
    channel = personalized_channel(PersonalizedChannel(20.0))
    state = channel.fit(x, FIT)
    noise = channel.apply(torch.zeros(20_000, 1, 8, 8), state, rehearsal(0, purpose="test"))
    wanted = float(state["channel"]["variance"]) * importance_map(PersonalizedChannel(), 8, 8)
    torch.testing.assert_close(noise[:, 0].double().var(0), wanted, rtol=5 * math.sqrt(2 / 20_000), atol=0)
    assert float(noise.mean(0).abs().max()) < 5 * float(wanted.max().sqrt()) / math.sqrt(20_000)


def test_as_printed_solves_the_quotient_and_claims_nothing() -> None:
    x, setting = images(300, 6), PersonalizedChannel(40.0, as_printed=True)
    sigma = float(personalized_channel(setting).fit(x, FIT)["channel"]["variance"])
    both, noise = by_determinants(x, importance_map(setting, 6, 6).numpy().ravel(), sigma)
    assert both / (2 * noise) == pytest.approx(40.0, rel=1e-6)
    assert setting.nats_per_step is None
    assert nats_per_step(build_chain(["channel-personalized"], {"channel-personalized.as-printed": True})) is None


def test_maps_from_an_array_and_an_image(tmp_path: Path) -> None:
    beta = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    np.save(tmp_path / "beta.npy", beta)
    read = importance_map(PersonalizedChannel(importance=str(tmp_path / "beta.npy")), 3, 4)
    assert np.array_equal(read.numpy(), beta)
    Image.fromarray(np.array([[0, 255], [51, 0]], dtype=np.uint8)).save(tmp_path / "beta.png")
    read = importance_map(PersonalizedChannel(importance=str(tmp_path / "beta.png"), inside=11.0), 2, 2)
    assert read.tolist() == [[1.0, 11.0], [3.0, 1.0]]


@pytest.mark.parametrize("bad", [[[0.0, 1.0]], [[-1.0, 1.0]], [[np.nan, 1.0]], [[np.inf, 1.0]], [[1.0]]])
def test_a_map_that_is_no_map_is_refused_without_its_values(bad: list[list[float]], tmp_path: Path) -> None:
    np.save(tmp_path / "b.npy", np.array(bad))
    with pytest.raises(ConfigError, match="importance"):
        importance_map(PersonalizedChannel(importance=str(tmp_path / "b.npy")), 1, 2)
    (tmp_path / "c.npy").write_bytes(b"secret words")
    for name in ("c.npy", "missing.png"):
        with pytest.raises(ConfigError) as caught:
            importance_map(PersonalizedChannel(importance=str(tmp_path / name)), 1, 2)
        assert "secret" not in str(caught.value) and str(tmp_path) not in str(caught.value)


def test_a_run_names_a_box_or_the_map_of_a_site_s_owner_and_no_other_file() -> None:
    box: Raw = {"rounds": 3, KEY: "box:0,1,0,1"}
    assert own_map(box, None) == own_map(box, "mine.npy") == box and own_map({}, "mine.npy") == {}
    for asked in (SITE, "mine.npy"):
        assert own_map({KEY: asked}, "mine.npy") == {KEY: "mine.npy"}
    for asked, own in ((SITE, None), ("mine.npy", None), ("/etc/passwd", "mine.npy"), ("./mine.npy", "mine.npy")):
        with pytest.raises(ConfigError, match="a run names a box") as caught:
            own_map({KEY: asked}, own)
        assert "mine" not in str(caught.value), "what the owner has is not told"


@pytest.mark.parametrize("text", ["box:0,1", "box:0.5,0.2,0,1", "box:0,1,0,2", "box:a,b,c,d"])
def test_a_wrong_box_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="box"):
        PersonalizedChannel(importance=text)


def test_few_examples_constant_pixels_and_one_example() -> None:
    framed = torch.nn.functional.pad(images(5, 4), (2, 2, 2, 2), value=0.5)
    setting = PersonalizedChannel(3.0)
    sigma = float(personalized_channel(setting).fit(framed, FIT)["channel"]["variance"])
    beta = importance_map(setting, 8, 8)
    spectrum = eigenvalues(framed.double() / beta.sqrt())
    assert float(0.5 * torch.log1p(spectrum / sigma).sum()) == pytest.approx(3.0, rel=1e-6)
    for x in (images(1, 4), torch.full((4, 1, 4, 4), 0.2)):
        for printed in (False, True):
            with pytest.raises(DefenseError):
                personalized_channel(PersonalizedChannel(3.0, as_printed=printed)).fit(x, FIT)


def test_a_printed_kappa_that_has_no_solution_is_refused() -> None:
    with pytest.raises(ConfigError, match="1/2"):
        PersonalizedChannel(0.4, as_printed=True)


@pytest.mark.parametrize("faint", [1e-3, 1e-8])
@pytest.mark.parametrize("copies", [1, 3])
def test_faint_directions_count_and_copies_do_not(faint: float, copies: int) -> None:
    x = torch.zeros(5, 1, 8, 8)
    x[:, 0, 0, 0], x[:, 0, 4, 4] = torch.arange(5.0), faint * torch.tensor([1.0, 3.0, 2.0, 0.0, 4.0])
    setting = PersonalizedChannel(60.0)
    sigma = float(personalized_channel(setting).fit(x.repeat(copies, 1, 1, 1), FIT)["channel"]["variance"])
    scaled = (x.repeat(copies, 1, 1, 1).double() / importance_map(setting, 8, 8).sqrt()).flatten(1).numpy()
    found = np.linalg.svd(scaled - scaled.mean(0), compute_uv=False)[:2] ** 2 / (len(scaled) - 1)
    assert 0.5 * np.log1p(found / sigma).sum() == pytest.approx(60.0, rel=1e-6)
