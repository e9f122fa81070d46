"""A cell of the utility-privacy plane: members are members, kappa is of the population, the best attack counts."""

from typing import Any

import pytest
import torch
from torch import Tensor

from prunella.attacks.engine.image_priors import into_box
from prunella.benchmarks.engine.images import every_test_image
from prunella.benchmarks.papers import plane
from prunella.benchmarks.papers.channel_claims import PLANE_CELLS
from prunella.benchmarks.papers.plane import CHANNELS, MEMBERSHIP, NATURAL, PERSONALIZED, WHITE
from prunella.benchmarks.papers.tradeoff import examples_of
from prunella.core.errors import ConfigError
from prunella.core.randomness import PrivateGenerator
from prunella.core.trees import Tree
from prunella.privacy.chain import build_chain, start

TINY: dict[str, Any] = {"dataset": "digits", "model": "cnn", "clients": 2, "rounds": 2, "local_steps": 2}
TINY |= {"batch_size": 8, "learning_rate": 0.1, "images": 1, "iterations": 120}
FEW = {**TINY, "iterations": 60, "scheme": "fedavg", "rate": 0.0, "examples": 40, "strength": 1.0}
FEW |= {"population": True, "defenses": "dp-sgd", "options": {"dp-sgd.noise-multiplier": 1.0}, "arm": "dp-sgd"}


def test_members_are_those_that_were_trained_on_and_no_candidate_is_known() -> None:
    members, outsiders, candidates, inside = plane.split(FEW, 0, None)
    own = torch.cat([examples_of(FEW, client, 0, None).x for client in (0, 1)]).flatten(1)
    known = {tuple(row) for row in torch.cat([members.x, outsiders.x]).flatten(1).tolist()}
    trained = {tuple(row) for row in own.tolist()}
    asked = [tuple(row) for row in candidates.x.flatten(1).tolist()]
    assert len(own) == 80 and len(members.y) == len(outsiders.y) == 20 and inside == 60
    assert all(row in trained for row in asked[:inside]) and not known & set(asked)
    assert not trained & set(asked[inside:])


def test_a_cell_has_an_auc_beside_accuracy_and_error() -> None:
    found = plane.membership(FEW, 0, None)["dp-sgd"]
    assert (
        0 <= found["auc"] <= 1
        and 0 <= found["accuracy"] <= 1
        and found["mse_strongest"] <= min(found["mse_plain"], found["mse_mean"])
    )


def behind(name: str, kappa: float = 20.0) -> dict[str, Any]:
    """The tiny federation behind that channel."""
    return {**FEW, "defenses": name, "options": {f"{name}.kappa": kappa}, "arm": name}


NOISY = behind(NATURAL)


@pytest.mark.parametrize("name", CHANNELS)
def test_the_client_adds_the_noise_of_the_population(name: str) -> None:
    own, population = examples_of(NOISY, 0, 0, None).x, plane.public_of(NOISY, 0, None).x

    def fitted(images: Tensor, kappa: float) -> Tree:
        chain = build_chain([name], {f"{name}.kappa": kappa})
        return start(chain, images, {}, {}, PrivateGenerator(bytes(32)))[name]["channel"]

    told = plane.of_population(behind(name), 0, None)["options"][f"{name}.kappa"]
    ours, theirs = fitted(own, told), fitted(population, 20.0)
    assert told < 20.0
    if name == WHITE:  # so many times the variance of the images that it was fitted on
        ratios = [
            f["factor"].square().sum() / plane.moments(x)[1].trace() for f, x in ((ours, own), (theirs, population))
        ]
        assert ratios[0] == pytest.approx(ratios[1])
    else:
        assert ours["variance"] == pytest.approx(theirs["variance"])
        assert ("deviation" in ours) is (name == PERSONALIZED)


def test_what_is_no_channel_is_left_as_it_is() -> None:
    assert plane.of_population(FEW, 0, None) == FEW and NOISY["options"] == {f"{NATURAL}.kappa": 20.0}


def test_public_images_are_nobodys() -> None:
    trained = torch.cat([examples_of(NOISY, client, 0, None).x for client in (0, 1)]).flatten(1)
    public = plane.public_of(NOISY, 0, None).x.flatten(1)
    assert len(public) > 500 and float(torch.cdist(trained, public).min()) > 0


def test_the_filter_takes_noise_away_and_the_network_more() -> None:
    images = every_test_image("digits", None).x
    truth, public = images[:100], images[100:][: plane.PLAYED + 300]
    public = torch.cat([public, plane.public_of(NOISY, 0, None).x])
    noisy = into_box(truth + 0.3 * torch.randn(truth.shape, generator=torch.Generator().manual_seed(1)))
    fitted = {"channel": {"variance": torch.tensor(0.09)}}
    answers = plane.cleaned(noisy, public, fitted, torch.Generator().manual_seed(0))
    errors = [float((answer - truth).square().mean()) for answer in (noisy, answers["denoised"], answers["learnt"])]
    assert errors[1] < 0.8 * errors[0] and errors[2] < errors[1]


@pytest.mark.parametrize("name", CHANNELS)
def test_a_channels_cell_has_all_attacks_and_every_image(name: str) -> None:
    found = plane.membership({**behind(name), "images": 2}, 0, None)[name]
    best = min(found[f"mse_{name}"] for name in ("plain", "denoised", "learnt", "mean"))
    assert found["mse_strongest"] == best == (found["mse_strongest.0"] + found["mse_strongest.1"]) / 2


def test_a_server_with_fewer_public_images_than_pixels_is_no_attacker() -> None:
    images = every_test_image("digits", None).x
    public, fitted = torch.cat([images] * 4), {"channel": {"variance": torch.tensor(0.09)}}
    with pytest.raises(ConfigError, match="too few for a covariance of 64 pixels"):
        plane.cleaned(images[:2], public[: plane.PLAYED + 64], fitted, torch.Generator())
    with pytest.raises(ConfigError, match="ask for fewer examples"):
        plane.public_of({**NOISY, "examples": 5000}, 0, None)


def test_where_membership_is_not_asked_for_there_is_none_and_the_control_needs_none() -> None:
    found = plane.membership({**FEW, "members": False}, 0, None)
    assert "auc" not in found["dp-sgd"] and found["dp-sgd"]["accuracy"] > 0
    assert MEMBERSHIP.works({"none": {"psnr_plain": 30.0}}) and not MEMBERSHIP.works({"none": {"psnr_plain": 10.0}})


def test_the_control_is_the_cell_without_a_defense_and_needs_both_attacks() -> None:
    assert all(MEMBERSHIP.control_of(cell) == PLANE_CELLS[0] for cell in PLANE_CELLS)
    good = {"psnr_plain": 30.0, "auc": 0.6}
    assert MEMBERSHIP.works({"none": good})
    assert not MEMBERSHIP.works({"none": {**good, "auc": 0.5}})
    assert not MEMBERSHIP.works({"none": {**good, "psnr_plain": 10.0}})
