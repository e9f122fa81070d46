"""Robust aggregation against slow loops and SciPy, in its limits, and against a client that lies."""

import math
import statistics
from pathlib import Path

import pytest
import torch
from flwr.app import Message
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import trim_mean

import prunella.client.app
from prunella.core.config import parse_run
from prunella.core.errors import ConfigError, KeyMismatch
from prunella.core.trees import Tree, apply_mask, full_mask, map_trees
from prunella.server.app import assemble
from prunella.server.grid import OrderedGrid
from prunella.server.rounds import federate
from prunella.strategies.round.masked_mean import CHUNK, MaskedSum
from prunella.strategies.round.robust import (
    MEAN,
    ROBUST,
    Aggregator,
    Median,
    NormBound,
    Sum,
    TrimmedMean,
    build_aggregator,
    by_median,
    by_norm_bound,
    by_trimmed_mean,
    pooled,
)
from prunella.tasks.task import initial
from prunella.wire.records import from_coded, to_coded
from prunella.wire.sparse import SparseTree
from tests.local_grid import LocalGrid, settings
from tests.server.test_rounds import final, go

PREVIOUS = {"w": torch.tensor([1.0, 2.0, 3.0, 4.0])}
HONEST = 6


def clients(count: int, keep: float, seed: int) -> tuple[list[Tree], list[Tree]]:
    g = torch.Generator().manual_seed(seed)
    updates = [{"w": torch.randn(4, generator=g)} for _ in range(count)]
    masks = [{"w": torch.rand(4, generator=g) < keep} for _ in range(count)]
    return [apply_mask(u, m) for u, m in zip(updates, masks, strict=True)], masks


def merged(total: Sum, updates: list[Tree], masks: list[Tree], previous: Tree = PREVIOUS) -> Tree:
    for update, mask in zip(updates, masks, strict=True):
        total.add(update, mask, 7.0)
    return total.result(previous, "holders")


def heard(updates: list[Tree], masks: list[Tree], j: int) -> list[float]:
    return [u["w"][j].item() for u, m in zip(updates, masks, strict=True) if m["w"][j]]


@pytest.mark.parametrize("rule", ["none", *ROBUST])
def test_every_rule_adds_kept_values_as_it_adds_dense_updates(rule: str) -> None:
    """One update is far above the norm bound: no rule may fall back to the plain mean."""
    make = MaskedSum if rule == "none" else lambda like: ROBUST[rule].make(like, ROBUST[rule].settings())
    updates, masks = clients(5, 0.8, 3)
    updates[2] = {"w": updates[2]["w"] * 100}
    kept = make(PREVIOUS)
    for update, mask in zip(updates, masks, strict=True):
        kept.add_sparse(SparseTree(mask, {"w": update["w"][mask["w"]]}), mask, 7.0)
    wanted = merged(make(PREVIOUS), updates, masks)
    assert torch.allclose(kept.result(PREVIOUS, "holders")["w"], wanted["w"], rtol=1e-6)
    assert not torch.equal(wanted["w"], PREVIOUS["w"])


@pytest.mark.parametrize("count", [1, 2, 3, 6, 9])
@pytest.mark.parametrize("keep", [0.3, 0.7, 1.1])
def test_the_median_is_that_of_the_standard_library(count: int, keep: float) -> None:
    updates, masks = clients(count, keep, count)
    result = merged(by_median(PREVIOUS, Median(liars=1)), updates, masks)
    for j, w in enumerate(PREVIOUS["w"].tolist()):
        said = heard(updates, masks, j)
        expected = w + statistics.median(said) if len(said) >= 3 else w
        assert result["w"][j].item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.25, 0.49])
@pytest.mark.parametrize("keep", [0.6, 1.1])
@pytest.mark.parametrize("liars", [1, 2])
def test_the_trimmed_mean_is_scipys_and_trims_no_fewer_than_the_liars(share: float, keep: float, liars: int) -> None:
    updates, masks = clients(9, keep, 1)
    result = merged(by_trimmed_mean(PREVIOUS, TrimmedMean(liars, share)), updates, masks)
    for j, w in enumerate(PREVIOUS["w"].tolist()):
        said = heard(updates, masks, j)
        cut = max(liars, math.floor(share * len(said)))
        expected = w + trim_mean(said, (cut + 0.5) / len(said)) if len(said) > 2 * liars else w
        assert result["w"][j].item() == pytest.approx(expected, rel=1e-6)


def test_the_norm_bound_is_that_of_the_slow_loop() -> None:
    updates, masks = clients(5, 0.7, 2)
    result = merged(by_norm_bound(PREVIOUS, NormBound(0.8)), updates, masks)
    cut = [u["w"] * min(1.0, 0.8 / u["w"].norm().item()) for u in updates]
    for j, w in enumerate(PREVIOUS["w"].tolist()):
        said = [c[j].item() for c, m in zip(cut, masks, strict=True) if m["w"][j]]
        assert result["w"][j].item() == pytest.approx(w + sum(said) / len(said) if said else w, rel=1e-6)


def test_without_a_cut_the_norm_bound_is_the_mean_of_equals() -> None:
    updates, masks = clients(5, 0.6, 3)
    bounded = merged(by_norm_bound(PREVIOUS, NormBound(1e9)), updates, masks)
    assert torch.allclose(bounded["w"], merged(MaskedSum(PREVIOUS), updates, masks)["w"])


@pytest.mark.parametrize("rule", ["median", "trimmed-mean"])
@given(data=st.data())
def test_no_coordinate_leaves_the_honest_range_whatever_the_liars_say_and_speak_for(
    rule: str, data: st.DataObject
) -> None:
    """The promise, coordinate by coordinate: under sparse sharing liars choose where they speak, too."""
    liars = data.draw(st.integers(1, 3))
    honest = data.draw(st.integers(0, 6))
    bits = st.lists(st.booleans(), min_size=4, max_size=4)
    numbers = st.lists(st.floats(-1, 1, width=32), min_size=4, max_size=4)
    huge = st.lists(st.floats(-(2.0**127), 2.0**127, width=32), min_size=4, max_size=4)
    said = [(data.draw(huge if i < liars else numbers), data.draw(bits)) for i in range(liars + honest)]
    updates = [{"w": torch.tensor(values)} for values, _ in said]
    masks = [{"w": torch.tensor(spoken)} for _, spoken in said]
    make = ROBUST[rule].make(PREVIOUS, ROBUST[rule].settings(liars=liars))
    result = merged(make, [apply_mask(u, m) for u, m in zip(updates, masks, strict=True)], masks)["w"]
    for j, w in enumerate(PREVIOUS["w"].tolist()):
        truth = heard(updates[liars:], masks[liars:], j)
        speakers = len(heard(updates, masks, j))
        if speakers <= 2 * liars:
            assert result[j].item() == w, "too few to outvote the liars: it stays"
        else:
            assert w + min(truth) - 1e-5 <= result[j].item() <= w + max(truth) + 1e-5


@pytest.mark.parametrize("rule", ["median", "trimmed-mean"])
@pytest.mark.parametrize("size", [-1e30, 1e3, 1e30])
def test_with_the_defaults_one_liar_of_three_moves_nothing_out_of_the_honest(rule: str, size: float) -> None:
    updates = [{"w": torch.full((4,), value)} for value in (1.0, 2.0, size)]
    result = merged(ROBUST[rule].make(PREVIOUS, ROBUST[rule].settings()), updates, [full_mask(PREVIOUS)] * 3)["w"]
    assert ((result - PREVIOUS["w"] >= 1 - 1e-6) & (result - PREVIOUS["w"] <= 2 + 1e-6)).all()


def test_under_the_norm_bound_a_liar_that_speaks_alone_moves_the_weights_by_the_norm() -> None:
    """It tolerates no liar; it bounds what one can do."""
    masks = [{"w": torch.tensor([True, True, False, False])}, *[{"w": torch.tensor([False, False, True, True])}] * 4]
    updates = [{"w": torch.full((4,), 1e9)}, *[{"w": torch.full((4,), 0.1)}] * 4]
    result = merged(
        by_norm_bound(PREVIOUS, NormBound(0.5)), [apply_mask(u, m) for u, m in zip(updates, masks, strict=True)], masks
    )
    moved = (result["w"] - PREVIOUS["w"])[:2]
    assert moved.norm().item() == pytest.approx(0.5, rel=1e-5)


def lied(value: float) -> tuple[list[Tree], list[Tree]]:
    """Six honest updates around 1 and two that are far away, on every coordinate."""
    g = torch.Generator().manual_seed(4)
    updates = [{"w": 1 + 0.1 * torch.randn(4, generator=g)} for _ in range(HONEST)]
    liars = [{"w": torch.full((4,), value)}, {"w": torch.full((4,), -value / 3)}]
    return [*updates, *liars], [{"w": torch.ones(4).bool()} for _ in range(HONEST + 2)]


@pytest.mark.parametrize("name", ROBUST)
@given(size=st.floats(1e2, 1e30))
def test_two_liars_among_eight_do_not_move_it_out_of_the_honest(name: str, size: float) -> None:
    updates, masks = lied(size)
    honest = torch.stack([u["w"] for u in updates[:HONEST]]) + PREVIOUS["w"]
    plain = merged(MaskedSum(PREVIOUS), updates, masks)["w"]
    assert ((plain - honest.mean(0)).abs() > 5).all(), "the control: a mean is moved"
    robust = merged(ROBUST[name].make(PREVIOUS, ROBUST[name].settings()), updates, masks)["w"]
    if name == "norm-bound":  # no update is longer than 1, so no mean is
        assert (robust - PREVIOUS["w"]).norm() <= 1 + 1e-6
    else:
        assert (robust >= honest.min(0).values - 1e-6).all() and (robust <= honest.max(0).values + 1e-6).all()


def test_where_only_a_liar_and_a_friend_speak_nothing_moves() -> None:
    updates, masks = lied(1e6)
    for mask in masks[:HONEST]:
        mask["w"][0] = False
    for name in ("median", "trimmed-mean"):
        result = merged(ROBUST[name].make(PREVIOUS, ROBUST[name].settings()), updates, masks)["w"]
        assert result[0] == PREVIOUS["w"][0] and (result[1:] != PREVIOUS["w"][1:]).all()


@pytest.mark.parametrize("name", ROBUST)
def test_a_client_counts_once_whatever_it_claims(name: str) -> None:
    updates, masks = clients(5, 1.1, 5)
    rule = ROBUST[name]
    modest, boastful = (rule.make(PREVIOUS, rule.settings()) for _ in range(2))
    for i, (update, mask) in enumerate(zip(updates, masks, strict=True)):
        modest.add(update, mask, 1.0)
        boastful.add(update, mask, 1e9 if i == 0 else 1.0)
    assert torch.equal(modest.result(PREVIOUS, "holders")["w"], boastful.result(PREVIOUS, "holders")["w"])


@pytest.mark.parametrize("name", ROBUST)
def test_shapes_types_and_the_updates_stay_as_they_are(name: str) -> None:
    rule = ROBUST[name]
    like = {"a": torch.randn(3, CHUNK // 2 + 1), "b": torch.zeros(()), "n": torch.tensor(3), "e": torch.zeros(0)}
    update = {n: torch.ones_like(t) for n, t in like.items()}
    before = {n: t.clone() for n, t in update.items()}
    total = rule.make(like, rule.settings())
    assert total.result(like, "holders") is like
    for _ in range(3):
        total.add(update, {n: torch.ones_like(t).bool() for n, t in like.items()}, 1.0)
    result = total.result(like, "holders")
    assert all(result[n].shape == t.shape and result[n].dtype == t.dtype for n, t in like.items())
    assert all(torch.equal(update[n], before[n]) for n in update)
    with pytest.raises(KeyMismatch):
        total.add({"v": torch.zeros(4)}, {"v": torch.ones(4).bool()}, 1)


def test_what_a_run_may_ask_for() -> None:
    def ask(**raw: object) -> Aggregator:
        flat = {key.replace("__", ".").replace("_", "-"): value for key, value in raw.items()}
        return build_aggregator(parse_run(flat), flat)

    assert ask() is MEAN and ask(robust="median", min_clients=3).quorum == 3
    assert ask(robust="trimmed-mean", min_clients=5, trimmed_mean__liars=2).quorum == 5
    for words, raw in {
        "trimmed-mean": {"robust": "krum"},
        "min-clients=3": {"robust": "median"},
        "set min-clients=5, or median.liars=1": {"robust": "median", "min_clients": 4, "median__liars": 2},
        "aggregation=holders": {"robust": "norm-bound", "aggregation": "as_printed", "min_clients": 3},
        "set min-clients=3$": {"robust": "norm-bound"},
        "trimmed-mean.liars": {"robust": "trimmed-mean", "trimmed-mean.liars": 0, "min_clients": 9},
        "quorum": {"robust": "median", "median.quorum": 1, "min_clients": 9},
    }.items():
        with pytest.raises(ConfigError, match=words):
            ask(**raw)
    assert math.isclose(ROBUST["trimmed-mean"].settings().share, 0.25)


@pytest.mark.parametrize("rule", ROBUST)
def test_buffers_are_merged_by_the_median_of_as_many_liars(rule: str) -> None:
    flat = {"robust": rule, "min-clients": 5, **({} if rule == "norm-bound" else {f"{rule}.liars": 2})}
    build = build_aggregator(parse_run({k: v for k, v in flat.items() if "." not in k}), flat)
    like = {"mean": torch.zeros(2)}
    said = [{"mean": torch.full((2,), value)} for value in (1e30, 1.0, 2.0, 3.0, 1e30)]
    few, all_of_them = (merged(build.buffers(like), s, [full_mask(like)] * len(s), like) for s in (said[:4], said))
    assert all_of_them["mean"].tolist() == ([3.0, 3.0])
    assert few["mean"].tolist() == ([2.5, 2.5] if rule == "norm-bound" else [0.0, 0.0])


def test_figures_of_clients_are_the_mean_over_examples_or_the_middle_client() -> None:
    assert pooled([0.5, 1.0], [1, 3], 1) == 0.875
    assert pooled([0.5, 0.6, 1.0], [1, 1, 10**9], 3) == 0.6
    assert math.isnan(pooled([0.5, 1.0], [1, 1], 3)) and math.isnan(pooled([], [], 1))
    assert pooled([1e6, math.nan, 1e6], [10**9] * 3, 1) == 1e6, "who tells none does not take it from the others"


def trained(folder: Path, **overrides: object) -> list[float]:
    """The loss after each round of a small federation."""
    raw = settings(run_dir=str(folder / "run"), rounds=3, audit_every=0, strategy="fedavg", **overrides)
    federation = assemble(parse_run({key: value for key, value in raw.items() if "." not in key}), raw)
    federate(federation, OrderedGrid(LocalGrid(prunella.client.app.app, 3, raw, folder / "nodes"), 0.01))
    return [line["value"] for line in federation.store.metrics() if line["metric"] == "loss"]


def test_a_run_is_aggregated_as_its_settings_say(tmp_path: Path) -> None:
    still = trained(tmp_path / "still", min_clients=3, robust="norm-bound", norm_bound__norm=1e-12)
    assert max(still) - min(still) < 1e-6, "updates without length leave the model where it was"
    learned = trained(tmp_path / "median", min_clients=3, robust="median")
    assert learned[-1] < still[-1] - 0.05


def test_one_liar_of_three_does_not_spoil_a_run_of_the_trimmed_mean(tmp_path: Path) -> None:
    """With quorum 3 and a share of 0.25 nobody was trimmed: accuracy 0.08 in place of 0.72."""

    def lie(reply: Message) -> Message:
        if reply.metadata.src_node_id == 102 and "update" in reply.content.array_records:
            tree, mask = from_coded(reply.content["update"], params, full_mask(params))
            reply.content["update"] = to_coded(map_trees(lambda t: t * -50, tree), mask, full_mask(params))
        return reply

    def accuracy(name: str, **overrides: object) -> float:
        nonlocal params
        raw = settings(run_dir=str(tmp_path / name), rounds=6, audit_every=0, strategy="fedavg", min_clients=3,
                       defenses="none", partition="iid", **overrides)  # fmt: skip
        federation = assemble(parse_run({key: value for key, value in raw.items() if "." not in key}), raw)
        params = initial(federation.task, 0)[0]
        federate(
            federation, OrderedGrid(LocalGrid(prunella.client.app.app, 3, raw, tmp_path / f"{name}-nodes", lie), 0.01)
        )
        return [line["value"] for line in federation.store.metrics() if line["metric"] == "accuracy_ratio"][-1]

    params: Tree = {}
    assert accuracy("mean") < 0.3, "the control: the mean is spoiled"
    assert accuracy("trimmed", robust="trimmed-mean") > 0.5


@pytest.mark.parametrize("strategy", ["prunefl", "fedtiny"])
def test_beside_the_updates_too_a_client_counts_once_whatever_it_claims(tmp_path: Path, strategy: str) -> None:
    def claim(reply: Message) -> Message:
        if reply.metadata.src_node_id == 102 and "update" in reply.content.array_records:
            reply.content["metrics"]["num-examples"] = 10**9
        return reply

    more = {"robust": "median", "min_clients": 3, "rounds": 2, "defenses": "none", "strategy": strategy}
    more |= {f"{strategy}__adjust_interval": 1}
    for folder, tamper in (("honest", None), ("liar", claim)):
        go(tmp_path / folder, tamper=tamper, **more)
    honest, liar = final(tmp_path / "honest"), final(tmp_path / "liar")
    assert all(torch.equal(honest.mask[n], liar.mask[n]) for n in honest.mask)
    assert all(torch.equal(honest.tree[n], liar.tree[n]) for n in honest.tree)
