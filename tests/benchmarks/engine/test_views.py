"""The shared view of a benchmark: the right chain with the right settings, inside the mask, and never the truth."""

import dataclasses

import pytest
import torch

from prunella.attacks import ATTACKS
from prunella.attacks.score.leakage import psnr
from prunella.benchmarks.engine import machine
from prunella.benchmarks.engine.images import part
from prunella.benchmarks.engine.views import RATE, Sender, after_rounds, answer, answers, attack_settings, seen, sender
from prunella.core.errors import AttackError, ConfigError
from prunella.core.randomness import PrivateGenerator, rehearsal, stream
from prunella.core.trees import Mask, full_mask, map_trees
from prunella.core.types import ServerView
from prunella.strategies.round.local import Received
from prunella.tasks.data import Examples
from prunella.tasks.task import Task, initial
from prunella.tasks.training import loss_and_gradient

CUDA = torch.device("cuda", 0)
TASK = Task("cnn", (1, 8, 8), 10)
OWN = ATTACKS["sgi"]  # somebody's own is asked for by its import path
BATCH = Examples(torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([3, 7]))


def draw(purpose: str) -> PrivateGenerator:
    return rehearsal(0, purpose=purpose)


def client(defenses: str, mask: Mask | None = None, **raw: float) -> Sender:
    params, buffers = initial(TASK, 0)
    received = Received(params, mask or full_mask(params), buffers)
    settings = {key.replace("__", ".").replace("_", "-"): value for key, value in raw.items()}
    return sender(TASK, received, defenses, settings, BATCH.x, len(BATCH))


def test_without_a_defense_the_update_is_the_gradient_times_minus_the_rate() -> None:
    one = client("none")
    view, shown = seen(one, BATCH, draw)
    _, gradient, _ = loss_and_gradient(one.procedure.module, one.received.params, {}, BATCH.x, BATCH.y)
    for name, update in view.update.items():
        torch.testing.assert_close(update, -RATE * gradient[name], atol=1e-7, rtol=1e-4)
    assert view.batch_size == view.num_examples == 2 and torch.equal(shown.x, BATCH.x)


def test_settings_reach_their_defense_and_unknown_ones_are_refused() -> None:
    shares = []
    for bottom in (0.3, 0.9):
        update = seen(client("dgp", dgp__bottom=bottom), BATCH, draw).view.update
        shares.append(max(float((t != 0).float().mean()) for t in update.values() if t.numel() > 100))
    assert shares[0] > 0.5 and shares[1] < 0.11
    noise = [
        float((seen(client("channel-natural", channel_natural__kappa=kappa), BATCH, draw).shown.x - BATCH.x).std())
        for kappa in (1.0, 1e6)
    ]
    assert noise[0] > 10 * noise[1]
    with pytest.raises(ConfigError, match="kappa"):
        client("channel-natural", channel_natural__kapa=1.0)


def test_one_view_in_which_nothing_arrived_is_told_beside_the_answers_of_the_others() -> None:
    one, whole = client("none"), [part(BATCH, at) for at in (0, 1)]
    views = [seen(one, private, draw).view for private in whole]
    views.insert(1, dataclasses.replace(views[0], update=map_trees(torch.zeros_like, views[0].update)))

    def starts() -> list[torch.Generator]:
        return [stream(at, purpose="start") for at in range(len(views))]

    found = answers("sgi", views, TASK, 100, starts())
    assert isinstance(found[1], AttackError)
    for at, private in ((0, whole[0]), (2, whole[1])):
        alone = answer("sgi", views[at], TASK, 100, starts()[at])
        assert torch.equal(found[at].x, alone.x) and psnr(private.x, alone.x)[0] > 25
    together = answers("sgi", [views[0], views[2]], TASK, 100, [starts()[at] for at in (0, 2)])
    assert [psnr(private.x, each.x)[0] > 25 for private, each in zip(whole, together, strict=True)] == [True, True]


def test_nothing_is_seen_outside_the_mask() -> None:
    params, _ = initial(TASK, 0)
    mask = map_trees(lambda t: torch.rand(t.shape, generator=torch.Generator().manual_seed(1)) < 0.5, params)
    update = seen(client("none", mask), BATCH, draw).view.update
    assert all(not bool(update[name][~mask[name]].any()) for name in mask)
    assert any(bool(update[name].any()) for name in mask)


def test_a_warmed_client_keeps_its_weights_and_changes_its_state() -> None:
    fresh = client("dgp")
    one = after_rounds(fresh, [BATCH], lambda turn: rehearsal(0, round=turn, purpose="warm"))
    assert one.received is fresh.received
    assert not any(bool(t.any()) for t in fresh.state["dgp"]["error"].values())
    assert any(bool(t.any()) for t in one.state["dgp"]["error"].values())


def test_the_guard_noises_what_its_attack_rebuilds() -> None:
    single = Examples(BATCH.x[:1], BATCH.y[:1])
    plain, guarded = (seen(client(name), single, draw).view for name in ("none", "leakage-guard"))
    name = max(plain.update, key=lambda n: plain.update[n].numel())
    assert not torch.equal(plain.update[name], guarded.update[name]) and guarded.defenses == ("leakage-guard",)


@pytest.mark.parametrize(("attack", "model"), [("ig", "lenet-zhu"), ("r-gap", "lenet-zhu"), ("gradinversion", "cnn")])
def test_zhus_network_is_attacked_with_its_own_settings(attack: str, model: str) -> None:
    how = attack_settings(attack, model, 7, tolerance=None)
    assert how.iterations == 7 and getattr(how, "optimizer", "auto") == ("lbfgs" if attack == "ig" else "auto")
    assert attack_settings("ig", model).iterations != 7 and attack_settings("rog", "cnn", prior="here").prior == "here"
    assert attack_settings(f"{__name__}:OWN", "cnn", 7).iterations == 7


def test_what_the_server_saw_lies_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[torch.device]()
    monkeypatch.setattr(machine, "_DEVICE", [CUDA])
    monkeypatch.setattr(ServerView, "on", lambda view, device: asked.append(device) or view)
    seen(client("dgp"), BATCH, draw)
    assert asked == [CUDA]


def test_an_attack_stays_on_the_device_and_its_answer_does_not(fake: None) -> None:
    params, buffers = initial(TASK, 0)
    known = {"num_examples": 1, "batch_size": 1, "steps": 1, "learning_rate": RATE}
    view = ServerView(params, dict(params), buffers=buffers, received_buffers=buffers, **known)
    found = answer("sgi", view.on(CUDA), TASK, 2, torch.Generator())
    assert found.x.device == torch.device("cpu") and found.x.shape == (1, 1, 8, 8)
