"""The guard against a real attack that first succeeds: noise until it fails, and nothing at all when in doubt."""

import dataclasses
import re
from typing import Any

import pytest
import torch

from prunella.attacks import self_attack
from prunella.attacks.engine.inversion import reconstruct
from prunella.attacks.score.control import undefended_view
from prunella.attacks.score.leakage import score
from prunella.attacks.self_attack import WITHHELD, attack_of, guarded, leaks
from prunella.core.errors import AttackError, ConfigError, DefenseError
from prunella.core.randomness import rehearsal, stream
from prunella.core.trees import full_mask
from prunella.core.types import PrivateBatch, ServerView
from prunella.privacy.defense import Outgoing
from prunella.privacy.leakage_guard import LeakageGuard
from prunella.tasks.public import digits
from prunella.tasks.task import Task, initial
from prunella.tasks.training import Sgd, loss_and_gradient, sgd_step

TASK = Task("cnn", (1, 8, 8), 10)
PARAMS, BUFFERS = initial(TASK, 0)
BATCH = PrivateBatch(digits().x[:1], digits().y[:1])
VIEW = undefended_view(TASK, PARAMS, BUFFERS, BATCH)
FULL = full_mask(PARAMS)
SENT = Outgoing(VIEW.update, FULL, FULL, PARAMS)
FAST = LeakageGuard(iterations=40, psnr=18.0, ssim=0.99, ncc=0.99)


def rebuilt(view: ServerView, settings: LeakageGuard) -> float:
    found = reconstruct(view, TASK, attack_of(settings), stream(9, purpose="another attacker"))
    return score(found, BATCH).psnr.mean


def test_noise_grows_until_the_attack_fails_and_no_further() -> None:
    out = guarded(SENT, VIEW, BATCH, TASK, FAST, rehearsal(0, purpose="x"))
    before = self_attack.as_seen(VIEW, SENT, BATCH, 4)
    assert rebuilt(before, FAST) > 25 and rebuilt(self_attack.as_seen(VIEW, out, BATCH, 4), FAST) < 22
    assert not torch.equal(out.update["0.0.weight"], SENT.update["0.0.weight"])
    settings = LeakageGuard(iterations=40, psnr=101.0, ssim=1.0, ncc=1.0)
    lenient = guarded(SENT, VIEW, BATCH, TASK, settings, rehearsal(0, purpose="test"))
    assert torch.equal(lenient.update["0.0.weight"], SENT.update["0.0.weight"])


@pytest.mark.parametrize("why", ["always leaks", "weak attack", "attack raises", "not finite"])
def test_in_doubt_the_update_is_withheld_with_the_same_words(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, sent = FAST, SENT
    if why == "always leaks":
        settings = LeakageGuard(iterations=40, psnr=0.01, levels=1)
    elif why == "weak attack":
        settings = LeakageGuard(iterations=1)
    elif why == "attack raises":

        def fail(*arguments: Any) -> Any:
            raise AttackError("pixel 0.123 of the image")

        monkeypatch.setitem(self_attack.ATTACKS, "sgi", self_attack.ATTACKS["sgi"]._replace(reconstruct=fail))
    else:
        sent = Outgoing({n: t * torch.nan for n, t in SENT.update.items()}, FULL, FULL, PARAMS)
    with pytest.raises(DefenseError) as caught:
        guarded(sent, VIEW, BATCH, TASK, settings, rehearsal(0, purpose="x"))
    assert str(caught.value) == WITHHELD and not re.search(r"\d", WITHHELD) and caught.value.__cause__ is None


def undefended(steps: int, size: int) -> tuple[ServerView, Outgoing, PrivateBatch]:
    """What an undefended client sends after ``steps`` steps of ``size`` images each."""
    x, y = digits().x[: steps * size], digits().y[: steps * size]
    params = PARAMS
    for batch in zip(x.split(size), y.split(size), strict=True):
        _, gradient, _ = loss_and_gradient(TASK.build(), params, BUFFERS, *batch)
        params, _ = sgd_step(params, gradient, {}, Sgd(0.25), None)
    update = {name: params[name] - PARAMS[name] for name in params}
    view = ServerView(PARAMS, update, num_examples=len(y), steps=steps, batch_size=size, learning_rate=0.25)
    return view, Outgoing(update, FULL, FULL, params), PrivateBatch(x, y)


def test_an_update_that_the_attack_could_not_undo_without_a_defense_does_not_pass(monkeypatch) -> None:  # noqa: ANN001
    """Four steps of four images: one image in one step was the control, was rebuilt, and let all of them through."""
    view, sent, private = undefended(4, 4)
    with pytest.raises(DefenseError, match="withheld"):
        guarded(sent, view, private, TASK, LeakageGuard(iterations=40), rehearsal(0, purpose="x"))
    monkeypatch.setattr(self_attack, "control_succeeds", lambda *_: True)
    passed = guarded(sent, view, private, TASK, LeakageGuard(iterations=40), rehearsal(0, purpose="x"))
    assert not any(torch.equal(t, sent.update[name]) for name, t in passed.update.items()), "what is not explained"


def test_fewer_values_than_pixels_cannot_be_judged_and_stay(monkeypatch) -> None:  # noqa: ANN001
    """Anything explains them, so that the attack's failure would let out what public images undo."""
    monkeypatch.setattr(self_attack, "control_succeeds", lambda *_: True)
    view, sent, private = undefended(1, 4)
    name = max(sent.update, key=lambda key: sent.update[key].numel())
    for kept, leaves in ((255, False), (256, True)):
        shared = {key: torch.zeros_like(t, dtype=torch.bool) for key, t in sent.update.items()}
        shared[name].view(-1)[:kept] = True
        few = dataclasses.replace(sent, update={key: t * shared[key] for key, t in sent.update.items()}, shared=shared)
        lenient = LeakageGuard(iterations=1, psnr=101.0, ssim=1.0, ncc=1.0)
        if leaves:
            assert guarded(few, view, private, TASK, lenient, rehearsal(0, purpose="x")).update[name].any()
        else:
            with pytest.raises(DefenseError, match="withheld"):
                guarded(few, view, private, TASK, lenient, rehearsal(0, purpose="x"))


def test_the_guard_s_control_is_the_update_itself_without_its_defense(monkeypatch) -> None:  # noqa: ANN001
    view, sent, private = undefended(2, 2)
    noisy = dataclasses.replace(view, update={n: t + 1 for n, t in view.update.items()}, defenses=("gaussian",))
    seen: list[ServerView] = []

    def look(view: ServerView, *rest: Any) -> Any:
        seen.append(view)
        raise AttackError("enough")

    monkeypatch.setitem(self_attack.ATTACKS, "sgi", self_attack.ATTACKS["sgi"]._replace(reconstruct=look))
    with pytest.raises(DefenseError):
        guarded(sent, noisy, private, TASK, FAST, rehearsal(0, purpose="x"))
    (control,) = seen
    assert (control.steps, control.batch_size, control.num_examples) == (2, 2, 4) and control.defenses == ("none",)
    assert control.labels is not None and torch.equal(control.labels, private.y)
    for name, update in control.update.items():
        torch.testing.assert_close(update, sent.update[name])


def test_an_update_of_nothing_needs_no_guard() -> None:
    empty = Outgoing({n: torch.zeros_like(t) for n, t in PARAMS.items()}, FULL, FULL, PARAMS)
    assert guarded(empty, VIEW, BATCH, TASK, FAST, rehearsal(0, purpose="test")).update.keys() == PARAMS.keys()


def test_one_image_above_either_threshold_is_a_leak() -> None:
    x = torch.rand(1, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    found = score(guard_image(x, 0.02), PrivateBatch(x, torch.tensor([0])))
    high = LeakageGuard(psnr=99.0, ssim=1.0, ncc=1.0)
    assert not leaks(found, high)
    for name, limit in (("psnr", 20.0), ("ssim", 0.5), ("ncc", 0.9)):
        assert leaks(found, dataclasses.replace(high, **{name: limit}))
    pale = score(guard_image(x, 0.0, contrast=0.1), PrivateBatch(x, torch.tensor([0])))
    assert not leaks(pale, dataclasses.replace(high, psnr=15.0, ssim=0.5)) and leaks(pale, LeakageGuard())


def guard_image(x: torch.Tensor, error: float, contrast: float = 1.0) -> Any:
    from prunella.core.types import Reconstruction

    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    return Reconstruction((0.5 + contrast * (x - 0.5) + error * noise).clamp(0, 1), None, 0.0, 0)


def test_only_an_attack_that_rebuilds_images_can_guard() -> None:
    assert attack_of(LeakageGuard(iterations=7, images=2)).max_images == 2
    with pytest.raises(ConfigError, match="did you mean 'sgi'"):
        attack_of(LeakageGuard(attack="sgj"))
    others = [name for name, a in self_attack.ATTACKS.items() if not isinstance(a.settings(), self_attack.Inversion)]
    for name in others:
        with pytest.raises(ConfigError, match="rebuilds images"):
            attack_of(LeakageGuard(attack=name))
