"""FedTiny against whole rounds in slow loops, and what a choice of masks or a report may tell of a client."""

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Message
from torch.nn.functional import cross_entropy

import prunella.client.app
from prunella.core.config import parse_run
from prunella.core.trees import Mask, Tree, apply_mask, count, full_mask, same_trees
from prunella.pruning.fedtiny import candidate_masks
from prunella.server.app import assemble
from prunella.strategies.fedtiny import FedTiny, FedTinySettings, due, moves, report, reports
from prunella.tasks.task import Task, initial, layers, prunable
from prunella.wire.records import from_coded, to_dense
from tests.local_grid import LocalGrid, settings
from tests.server.test_rounds import final, go
from tests.slow_rounds import loaded, local_sgd, mean_of, record_batches, same_draws

TASK = Task("cnn", (1, 8, 8), 10)
LAYERS = layers(TASK.build())
RATE, STEP, ROUNDS = 0.6, 0.3, 4
PLAIN = {"strategy": "fedtiny", "defenses": "none", "rate": RATE, "learning_rate": STEP}
MOVING = {**PLAIN, "fedtiny__adjust_interval": 1, "fedtiny__blocks": 3, "fedtiny__stop_round": 6}


def build(tmp_path: Path, tamper: Any = None, **overrides: Any) -> tuple[FedTiny, LocalGrid, Any]:
    raw = settings(**{"run_dir": str(tmp_path / "run"), "audit_every": 0, **PLAIN, **overrides})
    federation = assemble(parse_run({k: v for k, v in raw.items() if "." not in k}), raw)
    strategy = federation.strategy
    assert isinstance(strategy, FedTiny)
    strategy.listener = None
    params, buffers = initial(federation.task, 0)
    grid = LocalGrid(prunella.client.app.app, 3, raw, tmp_path / "nodes", tamper)
    return strategy, grid, to_dense({**params, **buffers})


def slow_choice(params: Tree, drawn: list[Any]) -> Mask:
    pool = candidate_masks(params, frozenset(LAYERS), RATE, (5, 0.5), 0)
    losses = []
    for mask in pool:
        module, told = loaded(TASK, apply_mask(params, mask)).eval(), []
        for one in drawn:
            x, y = torch.cat([b.x for b in one.batches]), torch.cat([b.y for b in one.batches])
            told.append(round(float(cross_entropy(module(x), y).detach()), 3))
        losses.append(sum(told) / len(told))
    return pool[losses.index(min(losses))]


def slow_move(name: str, params: Tree, mask: Mask, told: list[Tree], examples: list[int], share: float) -> list[bool]:
    """The new mask of one layer, weight by weight."""
    inside, size = mask[name].flatten().tolist(), params[name].flatten().abs().tolist()
    many = min(int(share * sum(inside)), len(inside) - sum(inside))
    votes = [0.0] * len(inside)
    for squares, weight in zip(told, examples, strict=True):
        flat = squares[name].double().flatten().tolist()
        outside = sorted((at for at in range(len(flat)) if not inside[at]), key=lambda at: -flat[at])
        for at in outside[:many]:
            votes[at] += weight * flat[at]
    named = sorted((at for at in range(len(votes)) if votes[at] > 0), key=lambda at: -votes[at])[:many]
    smallest = sorted((at for at in range(len(size)) if inside[at]), key=lambda at: size[at])[: len(named)]
    for at in range(len(inside)):
        inside[at] = at in named or (inside[at] and at not in smallest)
    return inside


def test_whole_rounds_are_those_of_slow_loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = record_batches(monkeypatch)
    federation = go(tmp_path, rounds=ROUNDS, **MOVING)
    assert federation.strategy.stats.failures == {}
    asked, rounds = drawn[:3], [drawn[at : at + 3] for at in range(3, len(drawn), 3)]
    assert len(rounds) == ROUNDS and len({one.examples for one in asked}) > 1
    params, _ = initial(TASK, 0)
    mask = slow_choice(params, asked)
    assert not same_trees(mask, candidate_masks(params, frozenset(LAYERS), RATE, (5, 0.5), 0)[0])
    params, moved = apply_mask(params, mask), []
    for number, clients in enumerate(rounds, start=1):
        done = [local_sgd(TASK, params, mask, one.batches, STEP) for one in clients]
        examples = [one.examples for one in clients]
        params = {n: t.float() for n, t in mean_of([weights for weights, _ in done], examples).items()}
        name = list(reversed(LAYERS))[(number - 1) % 3]
        share = 0.3 / 2 * (1 + torch.cos(torch.tensor(torch.pi * number / 6, dtype=torch.float64)).item())
        new = slow_move(name, params, mask, [squares for _, squares in done], examples, share)
        after = {**mask, name: torch.tensor(new).reshape(mask[name].shape)}
        moved.append(not same_trees(mask, after))
        mask, params = after, apply_mask(params, after)
    saved = final(tmp_path)
    assert all(moved) and all(torch.equal(saved.mask[n], mask[n]) for n in mask)
    assert all(torch.allclose(saved.tree[n], params[n], atol=1e-5) for n in params)


def test_at_rate_0_it_is_fedavg_bit_for_bit_and_asks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    same_draws(monkeypatch)
    federation = go(tmp_path / "tiny", rounds=2, **{**MOVING, "rate": 0.0})
    go(tmp_path / "plain", rounds=2, defenses="none", strategy="fedavg")
    tiny, plain = final(tmp_path / "tiny"), final(tmp_path / "plain")
    assert all(torch.equal(tiny.tree[n], plain.tree[n]) for n in plain.tree)
    assert federation.counters["wire_bytes_total|down"] <= federation.counters["wire_dense_bytes_total|down"] * 1.1


def test_blocks_take_turns_from_the_output_and_stop() -> None:
    settings_ = FedTinySettings(adjust_interval=2, stop_round=9, blocks=2)
    found = [due(settings_, round, LAYERS) for round in range(1, 11)]
    last, first = LAYERS[2:], LAYERS[:2]
    assert found == [(), last, (), first, (), last, (), first, (), ()]
    assert [reports(settings_, round) for round in range(1, 11)] == [bool(names) for names in found]


def test_a_report_names_the_largest_squares_of_its_block_outside_the_mask_and_no_other(tmp_path: Path) -> None:
    seen: list[Message] = []
    strategy, grid, arrays = build(tmp_path, lambda m: seen.append(m) or m, **{**MOVING, "fedtiny__blocks": 1})
    replies = grid.send_and_receive(strategy.configure_train(1, arrays, ConfigRecord(), grid))
    mask, limits = strategy.mask, moves(strategy.settings, 1, strategy.mask, LAYERS)
    params, _ = initial(TASK, 0)
    for reply in replies:
        told, kept = from_coded(reply.content["importance"], {name: params[name] for name in sorted(LAYERS)})
        assert {n: int((t > 0).sum()) for n, t in told.items()} == {n: limits[n] for n in told}
        assert not any(bool((kept[n] & mask[n]).any()) for n in told)


def test_what_a_server_asks_beyond_the_block_stays_zero() -> None:
    mask = candidate_masks(initial(TASK, 0)[0], frozenset(LAYERS), RATE, (1, 0.0), 0)[0]
    squares = {n: torch.rand(m.shape) for n, m in mask.items()}
    told = report(FedTinySettings(adjust_interval=1, blocks=3), 1, squares, mask, LAYERS)
    assert [n for n, t in told.items() if t.any()] == [LAYERS[-1]]


def select_replies(seen: list[Message]) -> list[Message]:
    return [m for m in seen if m.has_content() and "metrics" in m.content and "update" not in m.content]


@pytest.mark.parametrize("with_conditions", [1, 3])
def test_a_site_with_conditions_scores_nothing_and_trains_along(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, with_conditions: int
) -> None:
    seen: list[Message] = []
    strategy, grid, arrays = build(tmp_path, lambda m: seen.append(m) or m, **{**MOVING, "defenses": "dgp"})
    for node in list(grid.contexts)[:with_conditions]:
        grid.contexts[node].node_config["require"] = "dgp"
    messages = strategy.configure_train(1, arrays, ConfigRecord(), grid)
    assert len(select_replies(seen)) == 3 - with_conditions
    assert ("no client scored" in caplog.text) == (with_conditions == 3)
    before = strategy.mask
    strategy.aggregate_train(1, grid.send_and_receive(messages))
    assert strategy.stats.replies == 3 and not strategy.stats.failures
    assert same_trees(before, strategy.mask) == (with_conditions == 3)
    assert count(before) == count(strategy.mask)


def test_under_an_epsilon_nobody_scores_and_the_first_candidate_is_taken(tmp_path: Path) -> None:
    seen: list[Message] = []
    strategy, grid, arrays = build(tmp_path, lambda m: seen.append(m) or m, defenses="dp-sgd")
    strategy.configure_train(1, arrays, ConfigRecord(), grid)
    assert not select_replies(seen)
    params, _ = initial(TASK, 0)
    assert same_trees(strategy.mask, candidate_masks(params, prunable(TASK.build()), RATE, (5, 0.5), 0)[0])


def test_one_candidate_is_no_question(tmp_path: Path) -> None:
    strategy, grid, arrays = build(tmp_path, fedtiny__candidates=1)
    strategy.configure_train(1, arrays, ConfigRecord(), grid)
    assert not [m for m in grid.sent if m.metadata.message_type == "train.select"]
    assert not same_trees(strategy.mask, full_mask(strategy.mask))
