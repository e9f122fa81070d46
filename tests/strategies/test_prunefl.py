from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Message
from torch import Tensor, nn

import prunella.client.app
from prunella.client.charging import FAILED
from prunella.client.session import Session
from prunella.core.config import parse_run
from prunella.core.errors import ConfigError, DefenseError
from prunella.core.randomness import rehearsal, stream
from prunella.core.trees import Mask, Tree, full_mask, same_trees, zeros_like
from prunella.privacy.chain import build_chain
from prunella.pruning.prunefl import reconfigure
from prunella.pruning.prunefl_filters import of_channels, reconfigure_filters
from prunella.pruning.selection import density
from prunella.server.app import assemble
from prunella.strategies.prunefl import PruneFL, PruneFLSettings, initial_mask, with_limit
from prunella.strategies.round.local import Procedure, Received
from prunella.strategies.round.replies import Contribution
from prunella.tasks.examples import Examples
from prunella.tasks.task import Task, initial, prunable
from prunella.tasks.training import Sgd
from prunella.wire.records import mask_from_coded, mask_to_coded, to_dense
from prunella.wire.sparse import SparseTree
from tests.local_grid import LocalGrid, settings
from tests.server.test_rounds import final, go

TASK = Task("cnn", (1, 8, 8), 10)


def build(tmp_path: Path, tamper: Any = None, **overrides: Any) -> tuple[PruneFL, LocalGrid, Any]:
    raw = settings(**{"run_dir": str(tmp_path / "run"), "audit_every": 0, "defenses": "none", **overrides})
    federation = assemble(parse_run({k: v for k, v in raw.items() if "." not in k}), raw)
    strategy = federation.strategy
    assert isinstance(strategy, PruneFL)
    strategy.listener = None
    params, buffers = initial(federation.task, 0)
    return (
        strategy,
        LocalGrid(prunella.client.app.app, 3, raw, tmp_path / "nodes", tamper),
        to_dense({**params, **buffers}),
    )


def asked(grid: LocalGrid) -> list[int]:
    return [m.metadata.dst_node_id for m in grid.sent if m.metadata.message_type == "train.initial"]


@pytest.mark.parametrize("defenses", ["none", "adgp", "dgp", "top-k"])
def test_the_first_client_alone_prunes_first_and_sends_its_mask_and_ledger_line_only(
    tmp_path: Path, defenses: str
) -> None:
    seen: list[Message] = []
    strategy, grid, arrays = build(tmp_path, lambda m: seen.append(m) or m, defenses=defenses)
    strategy.configure_train(1, arrays, ConfigRecord(), grid)
    assert asked(grid) == [100]
    (reply,) = [m for m in seen if "mask" in m.content]
    assert list(reply.content) == ["mask", "ledger"]
    assert strategy.mask is not None
    assert 0.3 < density(strategy.mask, strategy.model.prunable) <= 0.7
    assert strategy.stats.up > 0


FILTERS = {"prunefl__granularity": "filter"}


def of_filters(strategy: PruneFL, mask: Mask) -> bool:
    return of_channels(mask, strategy.model.groups, strategy.model.prunable)


@pytest.mark.parametrize(("model", "defenses"), [("cnn", "none"), ("cnn", "priprune"), ("resnet10", "none")])
def test_the_first_mask_of_filters_is_a_smaller_network_within_the_limit(
    tmp_path: Path, model: str, defenses: str
) -> None:
    strategy, grid, arrays = build(tmp_path, model=model, defenses=defenses, **FILTERS)
    strategy.configure_train(1, arrays, ConfigRecord(), grid)
    assert asked(grid) == [100] and strategy.mask is not None
    assert of_filters(strategy, strategy.mask)
    assert 0.1 < density(strategy.mask, strategy.model.prunable) <= 0.7


@pytest.mark.parametrize("fault", ["weight", "dense"])
def test_a_client_whose_first_mask_is_not_of_filters_is_passed_over(tmp_path: Path, fault: str) -> None:
    def damage(message: Message) -> Message:
        if message.metadata.src_node_id == 100 and message.has_content() and "mask" in message.content:
            mask = full_mask(initial(TASK, 0)[0])
            name = max((n for n in mask if n.endswith("weight")), key=lambda n: mask[n].numel())
            if fault == "weight":
                mask[name] = torch.rand(mask[name].shape, generator=stream(0, purpose="x")) < 0.1
            message.content["mask"] = mask_to_coded(mask)
        return message

    strategy, grid, arrays = build(tmp_path, damage, **FILTERS)
    strategy.configure_train(1, arrays, ConfigRecord(), grid)
    assert asked(grid) == [100, 101] and strategy.mask is not None and of_filters(strategy, strategy.mask)
    assert strategy.stats.failures == {"mask": 1}


@pytest.mark.parametrize(
    ("error", "counted"),
    [
        (RuntimeError("why"), {"client-error": 1}),
        (DefenseError(FAILED), {"client-error": 1}),
        (DefenseError("why"), {}),
        (ConfigError("why"), {}),
    ],
)
def test_a_client_that_fails_at_the_first_mask_is_counted_and_one_that_refuses_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, counted: dict[str, int]
) -> None:
    """On a GPU all clients of a run failed here, and nobody was told."""
    strategy, grid, arrays = build(tmp_path)
    first = [error]

    def fails(*given: Any) -> Any:
        if first:
            raise first.pop()
        return make(*given)

    make = prunella.client.app.check_first_mask
    monkeypatch.setattr(prunella.client.app, "check_first_mask", fails)
    strategy.configure_train(1, arrays, ConfigRecord(), grid)
    assert asked(grid) == [100, 101] and strategy.stats.failures == counted


def test_a_limit_below_the_tenth_that_stays_is_no_reason_to_pass_a_client_over(tmp_path: Path) -> None:
    strategy, grid, arrays = build(tmp_path, rate=0.999, **FILTERS)
    strategy.configure_train(1, arrays, ConfigRecord(), grid)
    assert asked(grid) == [100] and strategy.mask is not None
    assert of_filters(strategy, strategy.mask) and density(strategy.mask, strategy.model.prunable) > 0.001


class Residual(nn.Module):
    """Two convolutions with batch norm into one sum, small enough for whole federations."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.one, self.two, self.last = nn.BatchNorm2d(16), nn.BatchNorm2d(16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.one(self.first(x)))
        logits: Tensor = self.last(torch.relu(x + self.two(self.second(x))).mean((2, 3)))
        return logits


@pytest.mark.parametrize("defenses", ["none", "dgp"])
@pytest.mark.parametrize("model", ["cnn", f"{__name__}:Residual"])
def test_clients_train_the_small_network_where_no_importance_leaves_and_the_run_ends_as_the_dense_one_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained_small: list[bool], model: str, defenses: str
) -> None:
    run = {"strategy": "prunefl", "prunefl__adjust_interval": 2, "rate": 0.6, "rounds": 3, "learning_rate": 0.05,
           "defenses": defenses, "model": model, "momentum": 0.9, "weight_decay": 0.01, **FILTERS}  # fmt: skip
    asked = Session.request  # draws depend on what was sent, which rounding changes
    monkeypatch.setattr(Session, "request", lambda self, kind, round, trees=(): asked(self, kind, round))
    told = prunella.client.app.local_update
    go(tmp_path / "small", **run)
    monkeypatch.setattr(prunella.client.app, "local_update", lambda procedure, *rest: told(
        replace(procedure, shape=None), *rest))  # fmt: skip
    go(tmp_path / "dense", **run)
    assert trained_small == [True] * 3 + [False] * 3 + [True] * 3 + [False] * 9  # all tell importances after round 2
    a, b = final(tmp_path / "small"), final(tmp_path / "dense")
    assert same_trees(a.mask, b.mask) and 0 < density(a.mask, prunable(Task(model, (1, 8, 8), 10).build())) <= 0.4
    assert all(torch.allclose(a.tree[n].double(), b.tree[n].double(), atol=2e-4) for n in a.tree)


@pytest.mark.parametrize("fault", ["error", "dense", "bias", "layer"])
def test_a_client_that_gives_no_valid_mask_is_passed_over(tmp_path: Path, fault: str) -> None:
    def damage(message: Message) -> Message | None:
        if message.metadata.src_node_id != 100 or not message.has_content() or "mask" not in message.content:
            return message
        if fault == "error":
            return None
        like = full_mask(initial(TASK, 0)[0])
        mask = like if fault == "dense" else mask_from_coded(message.content["mask"], like)
        if fault in ("bias", "layer"):
            name = next(n for n in mask if n.endswith("bias" if fault == "bias" else "weight"))
            mask = {**mask, name: torch.zeros_like(mask[name])}
        message.content["mask"] = mask_to_coded(mask)
        return message

    strategy, grid, arrays = build(tmp_path, damage)
    strategy.configure_train(1, arrays, ConfigRecord(), grid)
    assert asked(grid) == [100, 101]
    assert strategy.mask is not None and density(strategy.mask, strategy.model.prunable) <= 0.7


def test_nobody_gives_a_mask_and_the_round_is_dense(tmp_path: Path) -> None:
    strategy, grid, arrays = build(tmp_path, lambda m: None if m.has_content() and "mask" in m.content else m)
    strategy.configure_train(1, arrays, ConfigRecord(), grid)
    assert strategy.mask is not None and density(strategy.mask, strategy.model.prunable) == 1.0


@pytest.mark.parametrize("granularity", ["weight", "filter"])
def test_reconfiguration_is_that_of_the_weighted_mean_of_importances(tmp_path: Path, granularity: str) -> None:
    strategy, grid, arrays = build(tmp_path, prunefl__adjust_interval=1, prunefl__granularity=granularity)
    got: list[tuple[Mask, int]] = []
    strategy.listener = lambda c: got.append((c.importance, c.weight))
    replies = grid.send_and_receive(strategy.configure_train(1, arrays, ConfigRecord(), grid))
    before = strategy.mask
    assert before is not None
    uncut: list[Tree] = []  # the mask is revised on the aggregated weights before they are cut
    revise = strategy.revise_mask
    strategy.revise_mask = lambda round, params, mask: revise(round, uncut.append(params) or params, mask)
    aggregated, _ = strategy.aggregate_train(1, replies)
    total = sum(weight for _, weight in got)
    assert len(got) == 3 and len({weight for _, weight in got}) > 1
    params = strategy.downlink.expected().params
    mean = {n: sum(t[n].double() * w for t, w in got) / total for n in got[0][0]}
    assert aggregated is not None
    full = {**zeros_like(params), **mean}
    cost = strategy.rule.cost
    if granularity == "filter":
        expected = reconfigure_filters(uncut[0], full, before, strategy.model.groups, cost, strategy.settings, 1)
    else:
        expected = reconfigure(uncut[0], full, before, cost, strategy.settings, 1)
    assert of_filters(strategy, expected) == (granularity == "filter")
    assert all(torch.equal(strategy.mask[n], expected[n]) for n in expected)
    assert any(not torch.equal(strategy.mask[n], before[n]) for n in before)


@pytest.mark.parametrize(
    ("kept", "shared", "applied", "zeros", "mean"),
    [
        (True, True, "none", False, 2.0),  # a dead rectifier, or a pixel that is black in every image
        (False, False, "none", False, 2.0),
        (False, False, "dgp", False, 2.0),  # what is pruned passes by a defense of the update
        (True, False, "dgp", False, 4.0),
        (True, True, "mask-hiding", False, 4.0),  # shares everything, and no square of what is kept
        (True, True, "none", True, 4.0),  # an owner who withholds all
        (None, False, "none", False, 4.0),  # outside of what a client with a width holds
    ],
)
def test_a_gradient_of_zero_counts_and_what_was_withheld_does_not(
    tmp_path: Path, kept: bool | None, shared: bool, applied: str, zeros: bool, mean: float
) -> None:
    strategy, grid, arrays = build(tmp_path, prunefl__adjust_interval=1)
    list(strategy.configure_train(1, arrays, ConfigRecord(), grid))
    sent, name = strategy.downlink.expected().mask, sorted(strategy.model.prunable)[0]
    at = int((sent[name].flatten() == (kept is not False)).nonzero()[0])
    base = {n: mask.clone() for n, mask in sent.items()}
    base[name].view(-1)[at] = bool(kept)
    arrived = {n: mask.clone() for n, mask in base.items()}
    arrived[name].view(-1)[at] = shared
    other = {n: torch.full(sent[n].shape, 4.0) for n in strategy.model.prunable}
    own = {n: t * (not zeros) for n, t in other.items()}
    own[name].view(-1)[at] = 0
    for given, importance, mask, values in (("none", other, sent, sent), (applied, own, base, arrived)):
        strategy.note(Contribution(1, mask, SparseTree(values, {}), mask, 10, 0.0, 0, importance, {}, (given,)))
    got: list[Tree] = []
    vars(strategy)["rule"] = SimpleNamespace(next_mask=lambda params, gain, mask, round: got.append(gain) or mask)
    strategy.revise_mask(1, zeros_like(other), sent)
    assert float(got[0][name].view(-1)[at]) == mean and float(got[0][name].view(-1)[at - 1]) == 4


def test_the_steps_of_the_first_mask_are_those_of_one_round(tmp_path: Path) -> None:
    """Each part of them began with a step 0, a round of its own to a defense that looks at the number."""
    strategy, numbers, (params, buffers) = build(tmp_path)[0], list[int](), initial(TASK, 0)
    whole, x = full_mask(params), torch.rand(8, 1, 8, 8)
    procedure = Procedure(TASK.build(), Sgd(0.1), build_chain(["none"], {}))
    procedure = replace(procedure, allows=lambda *asked: bool(numbers.append(asked[3]) or True))
    rule = strategy.rule._replace(settings=replace(strategy.settings, initial_interval=2, initial_steps=4))
    batches = iter([Examples(x, torch.arange(8))] * 4)
    initial_mask(rule, procedure, Received(params, whole, buffers), batches, {"none": {}}, rehearsal(0, purpose="x"))
    assert numbers == [0, 1, 2, 3]


@pytest.mark.parametrize("with_conditions", [2, 3])
def test_a_client_whose_owner_requires_a_defense_trains_along_and_has_no_say_in_the_mask(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, with_conditions: int
) -> None:
    settings = {"defenses": "dgp", "prunefl__adjust_interval": 1}
    strategy, grid, arrays = build(tmp_path, **settings)
    for node in list(grid.contexts)[:with_conditions]:
        grid.contexts[node].node_config["require"] = "dgp"
    replies = grid.send_and_receive(strategy.configure_train(1, arrays, ConfigRecord(), grid))
    before = strategy.mask
    assert before is not None and asked(grid) == [100, 101, 102]
    assert (density(before, strategy.model.prunable) == 1.0) == (with_conditions == 3)
    strategy.aggregate_train(1, replies)
    assert strategy.stats.replies == 3 and not strategy.stats.failures
    moved = any(not torch.equal(strategy.mask[n], before[n]) for n in before)
    assert moved == (with_conditions < 3)
    assert ("no client sent importances" in caplog.text) == (with_conditions == 3)


def test_importances_are_asked_for_only_when_they_are_used(tmp_path: Path) -> None:
    strategy, _, _ = build(tmp_path, prunefl__adjust_interval=3)
    assert [bool(strategy.importance_names(r)) for r in range(1, 7)] == [False, False, True, False, False, True]


def test_the_limit_comes_from_the_rate_unless_it_is_set() -> None:
    assert with_limit(PruneFLSettings(), 0.3).max_density == pytest.approx(0.7)
    assert with_limit(PruneFLSettings(max_density=0.4), 0.3).max_density == 0.4
