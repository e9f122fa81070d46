"""SparsyFed against whole rounds in slow loops, its limits, and what the audit makes of an update through a power."""

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from prunella.core.config import parse_run
from prunella.core.errors import ConfigError, DefenseError
from prunella.core.trees import Mask, Tree, full_mask, same_trees, zeros_like
from prunella.pruning.selection import density, kept_count
from prunella.server.app import assemble
from prunella.server.audit.shadow import attacked
from prunella.strategies.sparsyfed import SparsyFedSettings, power, smaller, undone
from prunella.tasks.examples import Examples
from prunella.tasks.task import Task, initial, prunable
from prunella.tasks.training import Sgd, loss_and_gradient, sgd_step
from prunella.wire.records import mask_to_coded, to_coded
from tests.client.test_app import model, send
from tests.local_grid import settings
from tests.server.test_rounds import final, go
from tests.slow_rounds import mean_of, record_batches, same_draws

TASK = Task("cnn", (1, 8, 8), 10)
NAMES = prunable(TASK.build())
RATE, STEP, BETA = 0.6, 0.1, 1.5
LIAR = 101  # the node of client 1
RUN: dict[str, Any] = {"strategy": "sparsyfed", "defenses": "none", "rate": RATE, "sparsyfed__beta": BETA}


def slow_client(params: Tree, mask: Mask, batches: list[Examples]) -> tuple[Tree, Mask]:
    """SGD on θ by autograd through the network of θ |θ|^(β−1), then the largest weights of all layers together."""
    module = TASK.build().train()
    theta = {n: (t.sign() * t.abs() ** (1 / BETA) if n in NAMES else t).clone() for n, t in params.items()}
    for batch in batches:
        leaves = {n: t.clone().requires_grad_() for n, t in theta.items()}
        used = {n: t * t.abs() ** (BETA - 1) if n in NAMES else t for n, t in leaves.items()}
        cross_entropy(functional_call(module, used, (batch.x,)), batch.y).backward()
        # At zero the slope is zero, where autograd makes 0 · ∞ of it.
        theta = {n: (t - STEP * torch.where(t == 0, t.grad.nan_to_num(), t.grad)).detach() for n, t in leaves.items()}
    weights = {n: t * t.abs() ** (BETA - 1) if n in NAMES else t for n, t in theta.items()}
    assert not any(bool(weights[n][~mask[n]].any()) for n in NAMES), "a pruned weight moved by itself"
    every = [(float(w), n, at) for n in params if n in NAMES for at, w in enumerate(weights[n].abs().flatten())]
    total = len(every)
    kept = {n: torch.zeros(weights[n].numel(), dtype=torch.bool) for n in NAMES}
    best = [max((one for one in every if one[1] == n), key=lambda one: one[0]) for n in NAMES]  # no layer is emptied
    rest = sorted((one for one in every if one not in best), key=lambda one: -one[0])
    for _, name, at in [*best, *rest][: kept_count(total, RATE)]:
        kept[name][at] = True
    mine = {n: kept[n].reshape(t.shape) if n in NAMES else mask[n] for n, t in weights.items()}
    return {n: t * mine[n] for n, t in weights.items()}, mine


def test_whole_rounds_are_those_of_slow_loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = record_batches(monkeypatch)
    federation = go(tmp_path, rounds=3, learning_rate=STEP, **RUN)
    assert federation.strategy.stats.failures == {} and len(drawn) == 9
    params, _ = initial(TASK, 0)
    mask, kept = full_mask(params), []
    for clients in (drawn[at : at + 3] for at in range(0, 9, 3)):
        done = [slow_client(params, mask, one.batches) for one in clients]
        mean = mean_of([weights for weights, _ in done], [one.examples for one in clients])
        params = {n: t.float() for n, t in mean.items()}
        mask = {n: done[0][1][n] | done[1][1][n] | done[2][1][n] for n in params}
        kept.append(density(mask, NAMES))
    saved = final(tmp_path)
    assert 1 - RATE < kept[2] < kept[0] < 1, "clients disagree, and less than at first"
    assert all(torch.allclose(saved.tree[n], params[n], atol=1e-6) for n in params)
    assert same_trees(saved.mask, mask)


def test_at_rate_0_and_power_1_it_is_fedavg_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    same_draws(monkeypatch)
    more = {"momentum": 0.9, "weight_decay": 0.01, "learning_rate": 0.05, "rounds": 2}
    go(tmp_path / "sparse", **{**RUN, "rate": 0.0, "sparsyfed__beta": 1.0}, **more)
    go(tmp_path / "powers", **{**RUN, "rate": 0.0}, **more)
    go(tmp_path / "plain", strategy="fedavg", defenses="none", **more)
    sparse, powers, plain = (final(tmp_path / name).tree for name in ("sparse", "powers", "plain"))
    assert all(torch.equal(sparse[n], plain[n]) for n in plain)
    assert not all(torch.equal(powers[n], plain[n]) for n in plain)


@pytest.mark.parametrize("defenses", ["none", "dgp"])
def test_a_pruned_weight_is_a_zero_in_the_mean_and_a_withheld_one_is_not(tmp_path: Path, defenses: str) -> None:
    """With the mean's own zeros (``as_printed``) nothing is scaled again; without a defense both are the same mean."""
    same = {**RUN, "rounds": 1, "defenses": defenses}
    with pytest.MonkeyPatch.context() as patch:
        same_draws(patch)
        go(tmp_path / "holders", **same)
        go(tmp_path / "printed", aggregation="as_printed", **same)
    a, b = final(tmp_path / "holders"), final(tmp_path / "printed")
    assert all(torch.allclose(a.tree[n], b.tree[n], atol=1e-6) for n in a.tree)
    assert same_trees(a.mask, b.mask)


@pytest.mark.parametrize("lies", [False, True])
def test_a_robust_rule_takes_a_pruned_weight_for_a_zero_that_others_outvote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lies: bool
) -> None:
    """The median of what clients ended with, also where one of three prunes everything and claims 10⁹ examples."""
    drawn = record_batches(monkeypatch)
    params, _ = initial(TASK, 0)
    whole = full_mask(params)

    def lie(reply: Message) -> Message:
        if reply.metadata.src_node_id == LIAR and "update" in reply.content.array_records:
            nothing = {n: mask & (n not in NAMES) for n, mask in whole.items()}
            reply.content["update"] = to_coded(zeros_like(params), nothing, whole)
            reply.content["base"] = mask_to_coded(nothing, whole)
            reply.content["metrics"]["num-examples"] = 10**9
        return reply

    more = {"rounds": 1, "learning_rate": STEP, "robust": "median", "min_clients": 3}
    federation = go(tmp_path, tamper=lie if lies else None, **more, **RUN)
    assert federation.strategy.stats.replies == 3
    ends = [slow_client(params, whole, one.batches)[0] for one in drawn if not lies or one.client != 1]
    every, found = {n: torch.stack([each[n] for each in ends]) for n in params}, final(tmp_path).tree
    if lies:
        zeros = {n: torch.cat([t, torch.zeros_like(t[:1])]) for n, t in every.items() if n in NAMES}
        every = {**{n: torch.cat([t, params[n][None]]) for n, t in every.items()}, **zeros}
    assert all(torch.allclose(found[n], every[n].median(dim=0).values, atol=1e-6) for n in params)


def test_an_attack_gets_the_update_that_plain_sgd_would_have_sent() -> None:
    params, _ = initial(TASK, 0)
    x, y = torch.rand(4, 1, 8, 8), torch.arange(4)
    module, way = TASK.build(), power(SparsyFedSettings(beta=BETA), NAMES)
    assert way is not None
    _, gradient, _ = loss_and_gradient(module, params, {}, x, y)
    hidden = way.hidden(params)
    after, _ = sgd_step(hidden, way.pulled(gradient, hidden), {}, Sgd(0.1), None)
    sent = {n: t - params[n] for n, t in way.shown(after).items()}
    raw = settings(strategy="sparsyfed", sparsyfed__beta=BETA)
    run = parse_run({k: v for k, v in raw.items() if "." not in k})
    seen = attacked(run, raw, module, params, sent)
    assert all(torch.allclose(seen[n], -0.1 * gradient[n], atol=1e-5, rtol=1e-2) for n in params)
    assert not all(torch.allclose(sent[n], -0.1 * gradient[n], atol=1e-5, rtol=1e-2) for n in params)
    assert undone(SparsyFedSettings(beta=1.0), params, sent, NAMES) is sent


def test_a_guard_that_attacks_plain_sgd_is_refused_on_both_sides(tmp_path: Path) -> None:
    raw = settings(strategy="sparsyfed", defenses="leakage-guard", run_dir=str(tmp_path))
    with pytest.raises(ConfigError, match="leakage-guard attacks plain SGD only"):
        assemble(parse_run({k: v for k, v in raw.items() if "." not in k}), raw)
    with pytest.raises(DefenseError, match="leakage-guard attacks plain SGD only"):
        send(tmp_path, "train", model(), strategy="sparsyfed", defenses="leakage-guard")


def test_a_site_that_requires_an_update_defense_is_no_part_of_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no masks of their own"):
        send(tmp_path, "train", model(), {"require": "dgp"}, strategy="sparsyfed", defenses="dgp")


def test_a_smaller_mask_lies_inside_and_has_the_largest_weights() -> None:
    params, _ = initial(TASK, 0)
    mask = smaller(params, full_mask(params), NAMES, 0.5, "global")
    inner = smaller(params, mask, NAMES, RATE, "global")
    assert density(inner, NAMES) < density(mask, NAMES)
    assert not any(bool((inner[n] & ~mask[n]).any()) for n in inner)
    assert same_trees(smaller(params, inner, NAMES, RATE, "global"), inner)
