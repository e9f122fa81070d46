"""The inverter on 8x8 digits: what it learns behind a chain, and that it is the view that it reads."""

import dataclasses
import inspect

import pytest
import torch

from prunella.attacks import ATTACKS
from prunella.attacks.inverter import Inverse, Inverter
from prunella.attacks.score.leakage import psnr
from prunella.core.errors import AttackError, DefenseError
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch, ServerView
from prunella.tasks.examples import Examples
from tests.shadow_client import ShadowClient

ATTACK = ATTACKS["inverter"]
QUICK = Inverter(shadows=200, epochs=8, width=24, polish=0)


def shadow_of(task, digits: PrivateBatch, defenses: str, **more) -> ShadowClient:  # noqa: ANN001, ANN003
    raw = {"channel-natural.kappa": 10.0} if "channel" in defenses else {}
    return ShadowClient(task, Examples(digits.x[:1000], digits.y[:1000]), defenses, raw=raw, **more)


def learnt(shadow: ShadowClient, view: ServerView, images: int = 1, attack: Inverter = QUICK) -> Inverse:
    return Inverse(view, images, shadow.task, attack, stream(0, purpose="attack"), shadow)


def mean_psnr(truth: torch.Tensor, found: torch.Tensor) -> float:
    return sum(psnr(truth, found)) / len(truth)


def class_mean(shadow: ShadowClient, y: torch.Tensor) -> torch.Tensor:
    return torch.stack([shadow.public.x[shadow.public.y == label].mean(dim=0) for label in y])


@pytest.mark.parametrize(("defenses", "margin"), [("none", 10.0), ("channel-natural", 1.0), ("dgp,mask-hiding", 1.0)])
def test_unseen_digits_are_nearer_than_their_class_and_a_wrong_view_shows_the_other(
    defenses: str, margin: float, task, digits, batch
) -> None:
    shadow, truth = shadow_of(task, digits, defenses), batch(0, 24)
    views = [shadow.attacked(truth.x[i : i + 1], truth.y[i : i + 1], -1 - i) for i in range(24)]
    inverse = learnt(shadow, views[0])
    found = torch.cat([inverse(view, view.labels).x for view in views])
    assert mean_psnr(truth.x, found) > mean_psnr(truth.x, class_mean(shadow, truth.y)) + margin
    wrong = torch.roll(found, 1, dims=0)  # of each image, what the view of another gives
    assert mean_psnr(truth.x, wrong) < mean_psnr(truth.x, found) - margin
    unseen = float((found - truth.x).square().mean())
    assert 0.2 < unseen / inverse.learnt.error < 5  # what it says of itself, before it knows the truth


def test_a_descent_from_there_is_nearer_still_where_nothing_hides_the_update(task, digits, batch) -> None:
    shadow, truth = shadow_of(task, digits, "none"), batch(0, 1)
    view = shadow.attacked(truth.x, truth.y)
    inverse = learnt(shadow, view, attack=dataclasses.replace(QUICK, polish=60))
    assert inverse.polishes
    assert psnr(truth.x, inverse(view, truth.y).x)[0] > psnr(truth.x, inverse.read(view, truth.y))[0] + 6


def test_a_descent_that_leads_away_is_not_taken(task, digits, batch) -> None:
    shadow, truth = shadow_of(task, digits, "channel-natural"), batch(0, 1)
    view = shadow.attacked(truth.x, truth.y)
    inverse = learnt(shadow, view, attack=dataclasses.replace(QUICK, shadows=100, epochs=2, polish=40))
    assert not inverse.polishes and torch.equal(inverse(view, truth.y).x, inverse.read(view, truth.y))


def test_a_batch_and_several_steps_are_read_image_by_image(task, digits) -> None:
    """Four images of four classes in two steps of two."""
    rows = [int((digits.y[1500:] == label).nonzero()[0]) + 1500 for label in (1, 4, 6, 9)]
    truth = PrivateBatch(digits.x[rows], digits.y[rows])
    shadow = shadow_of(task, digits, "none", steps=2, batch_size=2)
    view = shadow.attacked(truth.x, truth.y)
    found = ATTACK.reconstruct(view, task, QUICK, stream(0, purpose="attack"), shadow)
    assert found.x.shape == truth.x.shape and found.y.tolist() == truth.y.tolist() and found.fit is None
    assert mean_psnr(truth.x, found.x) > mean_psnr(truth.x, class_mean(shadow, truth.y)) + 1


def test_the_generator_decides_and_the_label_is_found(task, digits, batch) -> None:
    shadow, truth = shadow_of(task, digits, "none"), batch(0, 1)
    view = dataclasses.replace(shadow.attacked(truth.x, truth.y), labels=None)
    few = dataclasses.replace(QUICK, shadows=40, epochs=2)
    runs = [ATTACK.reconstruct(view, task, few, stream(seed, purpose="attack"), shadow) for seed in (0, 0, 1)]
    assert torch.equal(runs[0].x, runs[1].x) and runs[0].objective == runs[1].objective
    assert not torch.equal(runs[0].x, runs[2].x)
    assert runs[0].y.tolist() == truth.y.tolist() and 0 <= float(runs[0].x.min()) <= float(runs[0].x.max()) <= 1


def test_a_short_budget_ends_it_with_what_it_has(task, digits, batch) -> None:
    shadow, truth = shadow_of(task, digits, "none"), batch(0, 1)
    view = shadow.attacked(truth.x, truth.y)
    soon = dataclasses.replace(QUICK, shadows=10**6, epochs=10**6, seconds=2.0)
    found = ATTACK.reconstruct(view, task, soon, stream(0, purpose="attack"), shadow)
    assert found.x.shape == truth.x.shape and 0 < found.iterations < 10**6


def test_shadow_clients_that_diverge_teach_nothing(task, digits, batch, monkeypatch) -> None:
    """Of a diverging model's clients some send infinities; all of them together would teach only these."""
    send, truth, every = ShadowClient.send, batch(0, 1), 7

    def some_diverge(self: ShadowClient, shown: Examples, draw: int, *given: int) -> ServerView:
        view = send(self, shown, draw, *given)
        far = torch.inf if draw % every == 0 else 1.0
        return dataclasses.replace(view, update={name: u * far for name, u in view.update.items()})

    monkeypatch.setattr(ShadowClient, "send", some_diverge)
    shadow = shadow_of(task, digits, "none")
    view = shadow.attacked(truth.x, truth.y)
    assert psnr(truth.x, learnt(shadow, view)(view, truth.y).x)[0] > 20
    every = 1
    with pytest.raises(AttackError, match="nothing to learn from"):
        learnt(shadow, view)


def test_without_a_shadow_or_with_one_that_sends_nothing_it_says_what_is_missing(task, digits, batch) -> None:
    shadow, truth = shadow_of(task, digits, "none"), batch(0, 1)
    view = shadow.attacked(truth.x, truth.y)
    takes = [name for name, attack in ATTACKS.items() if "shadow" in inspect.signature(attack.reconstruct).parameters]
    assert {"inverter", "denoise"} <= set(takes)
    with pytest.raises(AttackError, match="in a run's audit"):
        ATTACK.reconstruct(view, task, QUICK, stream(0, purpose="attack"))

    class Mute:
        public = shadow.public

        def send(self, *args: object) -> ServerView:
            raise DefenseError("withheld")

    with pytest.raises(AttackError, match="no shadow client's update leaves"):
        ATTACK.reconstruct(view, task, QUICK, stream(0, purpose="attack"), Mute())
