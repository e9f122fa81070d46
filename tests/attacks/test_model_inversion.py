import dataclasses

import torch

from prunella.attacks import ATTACKS
from prunella.attacks.model_inversion import ModelInversion, reconstruct
from prunella.core.randomness import stream
from prunella.core.trees import zeros_like
from prunella.core.types import PrivateBatch, ServerView

ATTACK = ATTACKS["model-inversion"]


def errors(found: torch.Tensor, digits: PrivateBatch) -> torch.Tensor:
    """Mean squared error of every image to every class centre, [K, K]."""
    centres = torch.stack([digits.x[:1400][digits.y[:1400] == label].mean(dim=0) for label in range(10)])
    return (found[:, None] - centres[None]).square().flatten(2).mean(dim=2)


def run(params, task, start=None):  # noqa: ANN001, ANN201
    view = ServerView(params, zeros_like(params))
    return reconstruct(view, task, ModelInversion(iterations=300), stream(0, purpose="attack"), start)


def test_a_trained_model_shows_its_classes_and_an_untrained_one_does_not(task, fresh, trained, digits) -> None:
    outside = digits.x[1400:].mean(dim=0)
    right = torch.arange(10)
    shown, blank = (errors(run(state[0], task, outside).x, digits) for state in (trained, fresh))
    assert float((shown.argmin(dim=1) == right).float().mean()) >= 0.8
    assert float((blank.argmin(dim=1) == right).float().mean()) <= 0.3
    assert float(shown.diagonal().median()) < float(blank.diagonal().median())


def test_it_inverts_the_weights_training_ended_with(task, fresh, trained) -> None:
    half = {name: (trained[0][name] - fresh[0][name]) for name in fresh[0]}
    settings = ModelInversion(iterations=20)
    split = ATTACK.reconstruct(ServerView(fresh[0], half), task, settings, stream(0, purpose="attack"))
    whole = ServerView(trained[0], zeros_like(trained[0]))
    torch.testing.assert_close(split.x, ATTACK.reconstruct(whole, task, settings, stream(1, purpose="other")).x)


def test_one_image_a_class_in_the_box_and_the_loss_falls(task, trained) -> None:
    view = ServerView(trained[0], zeros_like(trained[0]))
    short, long = (
        reconstruct(view, task, dataclasses.replace(ModelInversion(), iterations=n), stream(0, purpose="attack"))
        for n in (5, 100)
    )
    assert long.x.shape == (10, 1, 8, 8) and long.y.tolist() == list(range(10))
    assert 0 <= float(long.x.min()) and float(long.x.max()) <= 1 and long.objective < short.objective
    smooth = reconstruct(view, task, ModelInversion(iterations=100, tv=1.0), stream(0, purpose="attack"))
    assert smooth.x.diff(dim=-1).abs().mean() < long.x.diff(dim=-1).abs().mean()
