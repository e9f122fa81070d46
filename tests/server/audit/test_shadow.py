"""What a shadow plays is what the run's own clients send, in every kind of round; nothing it draws is another's."""

import inspect
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import prunella.client.app
from prunella.attacks.engine.shadow import Shadow
from prunella.attacks.trace import load_trace
from prunella.core.config import parse_run
from prunella.core.errors import AttackError
from prunella.core.randomness import stream
from prunella.core.trees import count, full_mask
from prunella.core.types import ServerView
from prunella.pruning.selection import density
from prunella.server.app import assemble, describe
from prunella.server.audit.canary import load_pool, make_canary
from prunella.server.audit.shadow import RunShadow, SentRound, frozen_in, shadow_beside, template_of
from prunella.server.audit.view import expected_view
from prunella.server.grid import OrderedGrid
from prunella.server.rounds import federate
from prunella.strategies import STRATEGIES
from prunella.strategies.round.replies import Expected
from prunella.tasks.data import load_test
from prunella.tasks.task import Task, initial
from prunella.tasks.training import loss_and_gradient
from tests.local_grid import LocalGrid, settings

TASK = Task("cnn", (1, 8, 8), 10)
CANARIES, PUBLIC = load_pool(TASK, load_test("digits", None), 0)
BOTH_ROUNDS = {f"{name}__adjust_interval": 2 for name in ("prunefl", "fedtiny", "feddst")} | {
    "lotteryfl__accuracy": 0.0
}
HARD = {"momentum": 0.9, "weight_decay": 0.01, "local_steps": 3, "batch_size": 4}
SHORT = {f"{name}__{key}": 2 for name in ("fed_ltp_one_shot", "fed_ltp_iterative") for key in ("tickets", "iterations")}


def filed(folder: Path, monkeypatch: pytest.MonkeyPatch, **overrides: Any) -> Path:
    """The queue of a run whose audits are filed and not made; two rounds, both audited."""
    raw = settings(
        **{"run_dir": str(folder / "run"), "rounds": 2, "audit_every": 1, **HARD, **BOTH_ROUNDS, **SHORT, **overrides}
    )
    federation = assemble(parse_run({k: v for k, v in raw.items() if "." not in k}), raw)
    describe(federation)
    monkeypatch.setattr(federation.auditor.worker, "ensure", lambda: True)
    monkeypatch.setattr(federation.auditor, "at_most", lambda: 0.0)
    grid = LocalGrid(prunella.client.app.app, 2, raw, folder / "nodes", audit="scores")
    federate(federation, OrderedGrid(grid, 0.01))
    return folder / "run" / "traces"


def view_in(folder: Path) -> tuple[ServerView, dict[str, Any]]:
    view, _, about = load_trace(folder / "view.safetensors")
    return view, about


def shape_of(view: ServerView) -> dict[str, Any]:
    """All that an attack is told but the values of what was sent."""
    told: dict[str, Any] = {}
    for name in (f.name for f in fields(view)):
        value = getattr(view, name)
        if name == "labels":
            told[name] = None if value is None else len(value)
        elif isinstance(value, dict):
            told[name] = {key: tuple(tensor.shape) for key, tensor in value.items()}
        elif name != "defenses":
            told[name] = value
    return told


def require_matched(queue: Path, round: int) -> ServerView:
    control, client = queue / f"round-{round:06d}-control", queue / f"round-{round:06d}-client-0"
    make_canary(control)
    (ours, about), (theirs, _) = view_in(control), view_in(client)
    assert shape_of(ours) == shape_of(theirs) and about["kind"] == "control"
    for name in ("params", "buffers"):
        assert all(torch.equal(t, getattr(theirs, name)[n]) for n, t in getattr(ours, name).items())
    assert ours.mask is not None and theirs.mask is not None and count(ours.mask) == count(theirs.mask)
    assert ours.defenses == ("none",)
    return ours


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_a_control_has_the_fields_of_the_clients_view_in_every_kind_of_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    queue = filed(tmp_path, monkeypatch, strategy=strategy, defenses="none")
    views = [require_matched(queue, round) for round in (1, 2)]
    assert [view.importance is not None for view in views] == [False, strategy in ("prunefl", "fedtiny")]
    assert all(view.steps == 3 and view.batch_size == 4 and view.num_examples == 12 for view in views)


def test_a_model_with_batch_norm_sends_its_buffers_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = filed(tmp_path, monkeypatch, strategy="fedavg", defenses="none", model="resnet10", rounds=1)
    view = require_matched(queue, 1)
    moved = [n for n, t in view.received_buffers.items() if not torch.equal(t, view.buffers[n])]
    assert any("running_mean" in name for name in moved)


@pytest.mark.parametrize("defenses", ["adgp", "priprune", "dgp,mask-hiding"])
def test_the_defended_control_goes_through_the_run_s_chain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defenses: str
) -> None:
    queue = filed(tmp_path, monkeypatch, strategy="prunefl", defenses=defenses)
    for round in (1, 2):
        folder = queue / f"round-{round:06d}-control-defended"
        make_canary(folder)
        (ours, _), (theirs, _) = view_in(folder), view_in(queue / f"round-{round:06d}-client-0")
        assert shape_of(ours) == shape_of(theirs) and ours.defenses == theirs.defenses == tuple(defenses.split(","))
        ours_sent, theirs_sent = (density(v.shared, frozenset(v.shared)) for v in (ours, theirs))
        assert ours_sent == pytest.approx(theirs_sent, abs=0.1)
        if defenses == "adgp":
            assert count(ours.shared) == count(theirs.shared) < count(ours.mask)
    for kind, before in (("control-defended", 1), ("single-defended", 0), ("client-0", 1)):
        folder = queue / f"round-000002-{kind}"
        make_canary(folder)
        view, about = view_in(folder)
        shadow = shadow_beside(folder / "view.safetensors", view, TASK, about)
        assert shadow is not None and shadow.round.earlier == before, "the attacker plays whom it attacks"


def shadow_of(raw: dict[str, Any], view: ServerView | None = None, **more: Any) -> RunShadow:
    params, buffers = initial(TASK, 0)
    run = parse_run({k: v for k, v in raw.items() if "." not in k})
    expected = Expected(1, params, full_mask(params), buffers, defenses=run.defense_names)
    like = template_of(view or expected_view(run, expected, frozenset()), run.defense_names)
    return RunShadow(raw, TASK, like, SentRound(1, **more), PUBLIC)


ONE = {"local-steps": 1, "batch-size": 3, "learning-rate": 0.5, "defenses": "none", "strategy": "fedavg"}


def test_one_step_without_a_defense_is_one_step_of_sgd() -> None:
    shadow, shown = shadow_of(ONE), CANARIES.take(torch.arange(3))
    sent = shadow.play(shown, 0)
    params, buffers = initial(TASK, 0)
    _, gradient, _ = loss_and_gradient(TASK.build(), params, buffers, shown.x, shown.y)
    assert sorted(sent.truth.y.tolist()) == sorted(shown.y.tolist()) and sent.view.labels is None
    for name, update in sent.view.update.items():
        torch.testing.assert_close(update, -0.5 * gradient[name], atol=1e-6, rtol=1e-4)


def test_it_is_what_attacks_know_as_a_shadow() -> None:
    told = shadow_of(ONE, whose="shadow")
    known: Shadow = told  # mypy checks the rest
    assert inspect.signature(RunShadow.send) == inspect.signature(Shadow.send) and known.public is PUBLIC


def test_it_may_be_asked_for_other_steps_and_batches_and_then_says_so() -> None:
    view = shadow_of({**ONE, "local-steps": 4}).send(CANARIES.take(torch.arange(5)), 0, steps=2, batch_size=2)
    assert (view.steps, view.batch_size, view.num_examples) == (2, 2, 4)


def test_labels_are_told_where_the_view_has_them_in_the_order_of_their_use() -> None:
    plain = shadow_of(ONE)
    shadow = shadow_of(ONE, replace(plain.like, labels=torch.zeros(3, dtype=torch.int64)))
    sent = shadow.play(CANARIES.take(torch.arange(3)), 0)
    assert sent.view.labels is not None and torch.equal(sent.view.labels, sent.truth.y)


def test_every_draw_is_another_client_and_none_is_the_controls_own() -> None:
    raw = {**ONE, "defenses": "gaussian"}
    shown, shadow = CANARIES.take(torch.arange(3)), shadow_of(raw)
    first, again, other = shadow.send(shown, 0), shadow_of(raw).send(shown, 0), shadow.send(shown, 1)
    control = shadow_of(raw, whose="canary").send(shown, 0)
    name = next(iter(first.update))
    assert torch.equal(first.update[name], again.update[name])
    assert not torch.equal(first.update[name], other.update[name])
    assert not torch.equal(first.update[name], control.update[name])


def test_a_defense_that_learns_has_trained_for_as_many_rounds_as_the_client_can_have() -> None:
    raw = {**ONE, "defenses": "priprune"}
    shadow = shadow_of(raw, before=5)
    trained, fresh = (each.send(CANARIES.take(torch.arange(3)), 0) for each in (shadow, shadow.first()))
    assert any(not torch.equal(t, fresh.shared[n]) for n, t in trained.shared.items())
    by_default = shadow_of(raw).send(CANARIES.take(torch.arange(3)), 0)  # a view of round 1
    assert all(torch.equal(t, by_default.shared[n]) for n, t in fresh.shared.items())


def test_what_the_run_rounds_for_the_wire_arrives_rounded() -> None:
    shown = CANARIES.take(torch.arange(3))
    exact, rounded = (shadow_of({**ONE, "values": values}).send(shown, 0) for values in ("float32", "int8"))
    for name, tensor in rounded.update.items():
        assert len(tensor.unique()) <= 256
        assert not torch.equal(tensor, exact.update[name])
        torch.testing.assert_close(tensor, exact.update[name], atol=float(exact.update[name].abs().max()) / 64, rtol=0)


def test_a_trace_in_a_run_s_folder_has_a_shadow_and_any_other_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = filed(tmp_path, monkeypatch, strategy="prunefl", defenses="dgp", rounds=1)
    folder = queue / "round-000001-client-0"
    view, about = view_in(folder)
    shadow = shadow_beside(folder / "view.safetensors", view, TASK, about)
    assert shadow is not None and len(shadow.public) == len(PUBLIC)
    draws = stream(0, purpose="x")
    sent = shadow.send(shadow.public.take(torch.randperm(len(PUBLIC), generator=draws)[:12]), 0)
    assert shape_of(sent) == shape_of(view) and sent.defenses == view.defenses
    elsewhere = tmp_path / "elsewhere" / "trace" / "view.safetensors"
    assert shadow_beside(elsewhere, view, TASK, about) is None


def test_shadows_share_a_few_trained_defenses_and_no_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attack that learns asks for hundreds of clients: training each one's defense would be most of its time."""
    monkeypatch.setattr("prunella.server.audit.shadow._STATES", 2)
    shadow, shown = shadow_of({**ONE, "defenses": "priprune"}, before=5), CANARIES.take(torch.arange(3))
    sent = [shadow.send(shown, draw) for draw in range(4)]
    assert len(shadow._trained) == 2
    name = next(iter(sent[0].update))
    assert not torch.equal(sent[0].shared[name], sent[2].shared[name])


def test_a_shadow_trains_what_the_client_of_a_trace_trained() -> None:
    """Of a frozen backbone nothing arrives, and a control that told its gradients would be far easier than the case."""
    params, buffers = initial(TASK, 0)
    frozen = {name for name in params if name.startswith("0.")}
    shared = {name: torch.full_like(tensor, name not in frozen, dtype=torch.bool) for name, tensor in params.items()}
    how = {"num_examples": 8, "steps": 2, "batch_size": 4, "learning_rate": 0.1, "momentum": 0.9}
    view = ServerView(params, params, shared=shared, buffers=buffers, **how)
    shadow = RunShadow({"strategy": "fedavg"}, TASK, template_of(view, ("none",)), SentRound(0), PUBLIC)
    sent = shadow.play(PUBLIC.take(torch.arange(8)), 0)
    module = TASK.build()
    module.load_state_dict(params)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name not in frozen)
    sgd = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], 0.1, momentum=0.9)
    for at in (0, 4):
        sgd.zero_grad()
        torch.nn.functional.cross_entropy(module(sent.truth.x[at : at + 4]), sent.truth.y[at : at + 4]).backward()
        sgd.step()
    assert frozen and sent.view.update.keys() == params.keys() and sent.view.shared is not None
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(sent.view.update[name], parameter.detach() - params[name])
        assert bool(sent.view.shared[name].all()) is bool(sent.view.shared[name].any()) is (name not in frozen)


def backbone(**more: Any) -> tuple[ServerView, set[str]]:
    """The view of a client that trained all but the first layer, and the names of that."""
    params, buffers = initial(TASK, 0)
    frozen = {name for name in params if name.startswith("0.")}
    update = {name: torch.full_like(tensor, float(name not in frozen)) for name, tensor in params.items()}
    shared = {name: tensor != 0 for name, tensor in update.items()}
    how = {"num_examples": 8, "steps": 2, "batch_size": 4, "learning_rate": 0.1, "shared": shared, "buffers": buffers}
    return ServerView(params, update, **{**how, **more}), frozen


@pytest.mark.parametrize("defense", ["none", "dgp", "top-k", "priprune", "gaussian"])
def test_canaries_of_every_defense_leave_what_the_client_froze(defense: str) -> None:
    """Pruned or not, and where squared gradients come of frozen layers too."""
    seen, frozen = backbone()
    kept = {name: torch.arange(t.numel()).reshape(t.shape) % 2 == 0 for name, t in seen.params.items()}
    pruned = replace(seen, mask=kept, shared={n: k & seen.shared[n] for n, k in kept.items()}, importance=seen.update)
    for view in (seen, pruned):
        raw = {"strategy": "fedavg", "local-steps": 2, "batch-size": 4, "defenses": defense}
        shadow = RunShadow(raw, TASK, template_of(view, (defense,)), SentRound(0), PUBLIC)
        sent = shadow.send(PUBLIC.take(torch.arange(8)), 0)
        assert shadow.frozen == frozen and sent.update.keys() == view.params.keys()
        still = {name for name, tensor in sent.update.items() if not tensor.any()}
        assert frozen <= still < sent.update.keys() and not any(sent.shared[name].any() for name in frozen)


def test_what_a_defense_may_have_withheld_makes_no_canary_easier_to_believe() -> None:
    """A control that vouches for the attack does not train it; one whose success speaks against the defense does."""
    withheld, silent = backbone(defenses=("dgp",))
    assert frozen_in(withheld) == set(), "a client of our own trains all of its layers"
    named = replace(withheld, frozen=tuple(silent))
    assert frozen_in(template_of(named, ("none",))) == silent and not frozen_in(template_of(named, ("dgp",)))
    still = template_of(replace(withheld, frozen=tuple(withheld.params)), ("none",))
    with pytest.raises(AttackError, match="nothing of the recorded update moved"):
        RunShadow({"strategy": "fedavg"}, TASK, still, SentRound(0), PUBLIC).send(PUBLIC.take(torch.arange(8)), 0)
    whole = {n: torch.full_like(t, n not in silent, dtype=torch.bool) for n, t in withheld.params.items()}
    assert not frozen_in(replace(withheld, defenses=(), mask=whole)), "a layer that a scheme pruned whole"
