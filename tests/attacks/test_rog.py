import dataclasses
from pathlib import Path

import pytest
import torch

from prunella.attacks import ATTACKS
from prunella.attacks.rog import Rog, load, save, train
from prunella.attacks.score.control import undefended_view
from prunella.attacks.score.leakage import psnr
from prunella.core.errors import AttackError
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch
from prunella.tasks.task import initial
from tests.attacks.test_ggl import noised

ATTACK = ATTACKS["rog"]


@pytest.fixture(scope="module")
def prior(digits: PrivateBatch, tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("rog") / "prior.safetensors"
    save(file, train(digits.x[:1000], stream(0, purpose="prior"), epochs=5))
    return str(file)


def test_it_beats_guesses_and_its_own_search_on_a_noised_update_and_fails_on_a_wrong_one(
    prior, task, fresh, digits, batch
) -> None:
    """The prior image is the mean of all public ones; ``unrepaired`` the same search and a repair that adds nothing."""
    sums = dict.fromkeys(("rog", "wrong", "mean", "guess", "unrepaired"), 0.0)
    idle = load(prior, task.shape)
    for parameter in idle.layers[-1].parameters():
        torch.nn.init.zeros_(parameter)
    unrepaired = Path(prior).with_name("idle.safetensors")
    save(unrepaired, idle)
    for i in range(4):
        truth = batch(i, 1)
        view = noised(undefended_view(task, *fresh, truth), 0.5)
        other = dataclasses.replace(view, params=initial(task, 1)[0], labels=truth.y)
        attack = Rog(prior=prior, iterations=150, restarts=2)
        images = {
            "rog": ATTACK.reconstruct(view, task, attack, stream(i, purpose="attack")).x,
            "unrepaired": ATTACK.reconstruct(
                view, task, dataclasses.replace(attack, prior=str(unrepaired)), stream(i, purpose="attack")
            ).x,
            "wrong": ATTACK.reconstruct(other, task, attack, stream(i, purpose="attack")).x,
            "mean": digits.x[:1000].mean(dim=0)[None],
            "guess": torch.rand(truth.x.shape, generator=stream(i, purpose="guess")),
        }
        for name, x in images.items():
            sums[name] += psnr(truth.x, x)[0] / 4
    assert sums["rog"] > max(sums["mean"], sums["guess"]) + 2 and sums["rog"] > sums["unrepaired"] + 1, sums
    assert sums["wrong"] < sums["mean"], sums


def test_the_repair_sharpens_what_was_reduced_and_leaves_the_box_alone(prior, batch) -> None:
    network, x = load(prior, (1, 8, 8)), batch(0, 50).x
    enlarged = network.enlarge(torch.nn.functional.interpolate(x, network.small(), mode="area"))
    repaired = network(enlarged)
    assert sum(psnr(x, repaired)) / 50 > sum(psnr(x, enlarged)) / 50 + 2
    assert 0 <= float(repaired.min()) and float(repaired.max()) <= 1


def test_a_side_that_does_not_divide(digits) -> None:
    network = train(digits.x[:64], stream(0, purpose="prior"), epochs=1, factor=3, width=4)
    assert network.small() == (3, 3) and network.enlarge(torch.rand(2, 1, 3, 3)).shape == (2, 1, 8, 8)


def test_without_a_repair_it_says_how_to_get_one(prior, task, fresh, batch) -> None:
    with pytest.raises(AttackError, match="prunella prior rog"):
        ATTACK.reconstruct(undefended_view(task, *fresh, batch(0, 1)), task, Rog(), stream(0, purpose="attack"))
    with pytest.raises(AttackError, match="at least two"):
        train(batch(0, 1).x, stream(0, purpose="prior"))
    ATTACK.ready(Rog(prior=prior), task)
