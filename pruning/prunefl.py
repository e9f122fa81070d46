"""PruneFL's reconfiguration. Jiang et al., Model Pruning Enables Efficient Federated Learning on Edge Devices,
IEEE TNNLS 2022 (arXiv 1909.12326), Sec. III and Alg. 2.

A set M of weights approximately lowers the loss by Δ(M) = Σ g² per step that costs T(M) = c + Σ t. The mask that
maximises Γ(M) = Δ(M) / T(M) is found greedily: weights in order of g²/t, each entering while its own ratio beats the
current Γ. Only a share of the weights may leave at a time: the smallest by magnitude of those that are in
(``prunable_share``, halved every ``half_life`` rounds); the others stay. A weight that is out may always enter.

Departures: t is not timed on a device but counted, multiply-adds per weight relative to their mean (``cost="flops"``)
or 1 (``cost="uniform"``); and the mask never holds more than ``max_density`` of the prunable weights, the ratio
deciding who is left out. The largest weight of a layer never leaves. Which weights may leave is ranked over all layers,
in the authors' program (jiangyuang/PruneFL) within each. Δ(M) is of the prunable weights: what biases and norms would
add to it is left out. Whole filters: ``pruning.prunefl_filters``.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from prunella.core.config import Part, Positive, Share, Weight
from prunella.core.copies import copied
from prunella.core.ranking import keep_largest
from prunella.core.trees import Mask, Tree, map_trees, require_same_names
from prunella.pruning.selection import best_first, split


@dataclass(frozen=True)
class Reconfiguration:
    """``fixed_cost`` is c in units of the dense model's Σ t. ``max_density`` 0 means one minus the run's rate."""

    prunable_share: Share = 0.3  #: share of the kept weights, the smallest, that may leave at a time
    half_life: Positive = 10_000.0  #: rounds after which that share is halved
    #: cost of a step that no pruning saves, in units of the dense model's cost
    fixed_cost: Weight = 0.1
    cost: Literal["flops", "uniform"] = "flops"  #: of a weight: its multiply-adds, or the same for all
    #: most of the prunable weights that the mask keeps; 0: one minus `rate`
    max_density: Part = 0.0


def _flat(tree: Tree, names: list[str]) -> torch.Tensor:
    return torch.cat([tree[name].reshape(-1).double() for name in names])


def _costs(params: Tree, cost: Mapping[str, float], names: list[str]) -> torch.Tensor:
    return torch.cat([torch.full_like(params[name], cost[name], dtype=torch.float64).reshape(-1) for name in names])


def may_leave(held: int, settings: Reconfiguration, round: int) -> int:
    """How many of so many kept weights may leave at a time."""
    return int(settings.prunable_share * 0.5 ** (round / settings.half_life) * held)


def greedy_set(gain: torch.Tensor, cost: torch.Tensor, fixed: torch.Tensor, overhead: float) -> torch.Tensor:
    """Alg. 2 on flat tensors [n]: the bool mask of ``fixed`` and every candidate whose ratio beats the current Γ.

    Candidates are visited by descending gain/cost, ties by index; Γ rises while they enter, so the first that fails
    ends the search and the prefix can be found with two running sums.
    """
    ratio = torch.where(fixed, -torch.inf, gain / cost)
    order = torch.argsort(ratio, descending=True, stable=True)[: int((~fixed).sum())]
    start_gain, start_cost = gain[fixed].sum(), overhead + cost[fixed].sum()
    before_gain = start_gain + torch.cumsum(gain[order], 0) - gain[order]
    before_cost = start_cost + torch.cumsum(cost[order], 0) - cost[order]
    enters = gain[order] * before_cost >= before_gain * cost[order]
    stop = int(torch.cumprod(enters.to(torch.int64), 0).sum())
    chosen = fixed.clone()
    chosen[order[:stop]] = True
    return chosen


def reconfigure(
    params: Tree, importance: Tree, mask: Mask, cost: Mapping[str, float], settings: Reconfiguration, round: int = 0
) -> Mask:
    """The next mask. ``importance``: mean squared gradient of every coordinate; ``cost`` has the prunable names."""
    require_same_names(params, importance, mask)
    names = [name for name in params if name in cost]
    gain, price = _flat(importance, names), _costs(params, cost, names)
    inside = _flat(mask, names).bool()
    held = int(inside.sum())
    outside_last = map_trees(lambda w, m: w.abs().double().masked_fill(~m, -1.0), params, mask)
    magnitude = torch.cat([best_first(outside_last[name]) for name in names])
    limit = max(len(names), int(settings.max_density * len(gain)) if settings.max_density else len(gain))
    fixed = keep_largest(magnitude, max(len(names), min(held - may_leave(held, settings, round), limit)))
    chosen = greedy_set(gain, price, fixed, settings.fixed_cost * float(price.sum()))
    if int(chosen.sum()) > limit:
        rank = torch.where(fixed, torch.inf, gain / price)
        chosen = keep_largest(torch.where(chosen, rank, -1.0), limit)
    return dict(mask) | split(chosen, {name: params[name] for name in names})


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Multiply-adds by weight, whatever calls the operation: a layer, or a function that takes its weight."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._weights = weights
        self.done = dict.fromkeys(weights, 0.0)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        result = func(*args, **given)
        count: Any = flop_registry.get(func.overloadpacket)
        for name in filter(None, map(self._name, args)) if count else ():
            self.done[name] += count(*args, **given, out_val=result) / 2
        return result

    def _name(self, tensor: object) -> str | None:
        """Of the weight that a tensor is, or a view of."""
        if not isinstance(tensor, Tensor):
            return None
        whole = tensor if tensor._base is None else tensor._base
        return next((name for name, weight in self._weights.items() if weight is whole), None)


def weight_cost(
    module: torch.nn.Module, shape: tuple[int, int, int], prunable: Set[str], kind: str
) -> dict[str, float]:
    """Multiply-adds per weight and example over their mean: output positions of a convolution, tokens of a linear
    layer, added up where a layer is used more than once. One where evaluation does not use the weight."""
    if kind == "uniform":
        return dict.fromkeys(sorted(prunable), 1.0)
    still = copied(module).eval()
    weights = {name: p for name, p in still.named_parameters() if name in prunable}
    with torch.enable_grad(), _Counting(weights) as counting:  # without gradients PyTorch fuses layers
        still(torch.zeros(1, *shape, device=next(still.parameters()).device))
    uses = {name: (counting.done[name] / weights[name].numel()) or 1.0 for name in sorted(prunable)}
    mean = sum(uses.values()) / max(1, len(uses))
    return {name: count / mean for name, count in uses.items()}
