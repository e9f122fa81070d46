import dataclasses

import pytest
import torch

from prunella.attacks import ATTACKS
from prunella.attacks.ggl import Ggl, load, save, train
from prunella.attacks.score.control import undefended_view
from prunella.attacks.score.leakage import psnr
from prunella.core.errors import AttackError
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch, ServerView
from prunella.tasks.task import Task, initial

ATTACK = ATTACKS["ggl"]


@pytest.fixture(scope="module")
def prior(digits: PrivateBatch, tmp_path_factory: pytest.TempPathFactory) -> str:
    public = PrivateBatch(digits.x[:1400], digits.y[:1400])
    file = tmp_path_factory.mktemp("ggl") / "prior.safetensors"
    save(file, train(public, 10, stream(0, purpose="prior"), epochs=10, latent=16))
    return str(file)


def noised(view: ServerView, level: float) -> ServerView:
    """Noise of ``level`` deviations of every layer's update."""
    draw = stream(5, purpose="noise")
    update = {n: u + level * u.std() * torch.randn(u.shape, generator=draw) for n, u in view.update.items()}
    return dataclasses.replace(view, update=update)


def attacked(prior: str, view: ServerView, task: Task, seed: int = 0) -> torch.Tensor:
    return ATTACK.reconstruct(view, task, Ggl(prior=prior, iterations=100), stream(seed, purpose="attack")).x


def test_it_beats_its_prior_and_a_guess_on_a_noised_update_and_fails_on_a_wrong_one(prior, task, fresh, digits, batch):
    """The prior image is the mean of the class, the guess a draw of the generator; sgi is what a server without public
    images has."""
    sums = dict.fromkeys(("ggl", "wrong", "mean", "guess", "sgi"), 0.0)
    for i in range(4):
        truth = batch(i, 1)
        view = noised(undefended_view(task, *fresh, truth), 4.0)
        other = dataclasses.replace(view, params=initial(task, 1)[0], labels=truth.y)
        network = load(prior, task.shape, 10)
        drawn = network.decode(torch.randn((1, network.latent), generator=stream(i, purpose="guess")), truth.y)
        plain = dataclasses.replace(ATTACKS["sgi"].settings(), iterations=100, labels_tried=1)
        images = {
            "ggl": attacked(prior, view, task, i),
            "wrong": attacked(prior, other, task, i),
            "mean": digits.x[:1400][digits.y[:1400] == truth.y].mean(dim=0)[None],
            "guess": drawn,
            "sgi": ATTACKS["sgi"].reconstruct(view, task, plain, stream(i, purpose="attack")).x,
        }
        for name, x in images.items():
            sums[name] += psnr(truth.x, x)[0] / 4
    assert sums["ggl"] > max(sums["mean"], sums["guess"]) + 1 and sums["ggl"] > sums["sgi"] + 2, sums
    assert sums["wrong"] < sums["guess"] - 2, sums


def test_a_batch_is_searched_together(prior, task, fresh, batch) -> None:
    truth = batch(0, 3)
    view = undefended_view(task, *fresh, truth)
    found = ATTACK.reconstruct(view, task, Ggl(prior=prior, iterations=60, restarts=2), stream(0, purpose="attack"))
    assert found.x.shape == truth.x.shape and sorted(found.y.tolist()) == sorted(truth.y.tolist())


def test_the_generator_knows_its_classes(prior, digits) -> None:
    """Images made for a class are nearest to that class's mean, and differ from each other."""
    network, y = load(prior, (1, 8, 8), 10), torch.arange(10).repeat_interleave(20)
    made = network.decode(torch.randn((200, network.latent), generator=stream(0, purpose="z")), y)
    centres = torch.stack([digits.x[:1400][digits.y[:1400] == label].mean(dim=0) for label in range(10)])
    nearest = (made[:, None] - centres).square().flatten(2).mean(2).argmin(1)
    assert float((nearest == y).float().mean()) > 0.8 and float(made[:20].std(0).mean()) > 0.03


def test_a_generator_for_other_classes_or_none_is_refused(prior, task, fresh, batch) -> None:
    with pytest.raises(AttackError, match="10 classes, not of 5"):
        load(prior, (1, 8, 8), 5)
    with pytest.raises(AttackError, match="prunella prior ggl"):
        attacked("", undefended_view(task, *fresh, batch(0, 1)), task)
    with pytest.raises(AttackError, match="at least two"):
        train(batch(0, 1), 10, stream(0, purpose="prior"))
    with pytest.raises(AttackError, match="prunella prior ggl"):
        ATTACK.ready(Ggl(), task)
    ATTACK.ready(Ggl(prior=prior), task)
