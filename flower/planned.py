"""What a pruning scheme changes before the first step of a guarded loop: where training starts, and under which mask.

Errors: ``ConfigError`` where the app takes no score that the scheme needs, or one that is no share.
"""

from collections.abc import Callable, Mapping

import torch
from torch import nn

from prunella.core.errors import ConfigError
from prunella.core.trees import Mask, Tree, to_device
from prunella.flower.handled import Handled, wide
from prunella.flower.prunable import may_be_asked
from prunella.flower.scheme import Known, LocalScheme
from prunella.tasks.training import mode

Parameters = Mapping[str, nn.Parameter]
Accuracy = Callable[[nn.Module], float]
HOW = "protected(msg, context, model, accuracy=test), where test(model) is the share of them that it labels right"


def begin_scheme(
    work: Handled, model: nn.Module, params: Parameters, received: Tree, mask: Mask, accuracy: Accuracy | None
) -> Mask:
    """Set ``work.local`` up, and put the weights into ``params`` that training starts from, where the scheme chooses
    them. ``received`` and ``mask`` are those of ``params``; returns the mask to train under."""
    device = next(iter(received.values())).device

    def fresh() -> Tree:
        return {name: wide((work.fresh or {})[name]).to(device) for name in params}

    def scored(weights: Tree) -> float:
        if accuracy is None:
            raise work.refuse(ConfigError(f"{work.order.scheme} scores held-out examples: write {HOW}"))
        if work.fresh is None and getattr(work.order.given, "rewind", False):
            return 0.0  # it could not go back yet, so it does not prune
        share = _score(model, params, weights, accuracy)
        if not 0 <= share <= 1:
            raise work.refuse(ConfigError("protected: accuracy is a share of examples, from 0 to 1"))
        return share

    names = may_be_asked(work.received, model, work.order.names) if work.order.scheme else frozenset[str]()
    kept = {name: to_device(tree, device) for name, tree in work.kept.items()}
    work.local = LocalScheme.of(work.order, received, mask, names, Known(kept, fresh, scored))
    plan = work.local.plan
    if plan.keep:
        work.kept = {name: to_device(tree, "cpu") for name, tree in plan.keep.items()}
    if plan.mask is not None:
        work.mask = {**work.mask, **to_device(plan.mask, "cpu")}
    if plan.start is not None or plan.mask is not None:
        _put(params, work.begin(plan.start and to_device(plan.start, "cpu")))
    return mask if plan.mask is None else dict(plan.mask)


def _put(params: Parameters, weights: Tree) -> None:
    with torch.no_grad():
        for name, p in params.items():
            p.copy_(weights[name])


def _score(model: nn.Module, params: Parameters, weights: Tree, accuracy: Accuracy) -> float:
    """The app's score of these weights. The model stays as it was, its statistics too."""
    before = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    _put(params, weights)
    try:
        with torch.no_grad(), mode(model, False):
            return float(accuracy(model))
    finally:
        model.load_state_dict(before)
