"""Which arrays of anybody's model a scheme may prune.

*With the module:* the weights of linear and convolution layers (``tasks.task.prunable``). *Without:* float arrays of
two dimensions and more whose name ends in ``weight`` and names no embedding and no normalisation; arrays of Flower's
older API have no names, so there it takes the module. *Never:* arrays that
two names share (tied weights), frozen weights as far as the module tells, biases, norms, buffers.
"""

import re

import torch
from torch import nn

from prunella.core.errors import ConfigError
from prunella.core.trees import Tree
from prunella.flower.arrays import is_buffer
from prunella.flower.legacy import positions
from prunella.tasks.task import prunable as prunable_layers

NEVER = re.compile(r"emb|.*embed.*|.*norm.*|wte|wpe|ln\d*|bn\d*")  # a part of a name, between dots and underscores


def prunable_names(tree: Tree, model: nn.Module | None) -> frozenset[str]:
    """Of a model's arrays, those that a scheme may prune. Raises ``ConfigError`` where there is none."""
    if not (names := _candidates(tree, model)):
        none = "Prune found nothing to prune among the arrays"
        if model is None:
            raise ConfigError(
                f"{none}: give it the model, as model=Net(), whose state_dict() has them in their order; of what is "
                "not PyTorch's, layers of their shapes, as model=nn.Linear(64, 10) of coef_ and intercept_"
            )
        raise ConfigError(
            f"{none}: every weight of {type(model).__name__} is tied to another, frozen, or of no linear or "
            "convolution layer: leave Prune out, or train a layer of its own"
        )
    return names


def may_be_asked(tree: Tree, model: nn.Module, names: tuple[str, ...]) -> frozenset[str]:
    """Of the names that a server says it prunes, those that it may, with the module or without. What a gradient does
    to a bias of the last layer tells labels: a server does not get it by calling it prunable."""
    return frozenset(names) & (_candidates(tree, model) | _candidates(tree, None))


def _candidates(tree: Tree, model: nn.Module | None) -> frozenset[str]:
    if model is not None:
        trained = {name for name, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}
        came = positions(model, tree)
        names = {came[name] for name in prunable_layers(model) & trained & came.keys()} & tree.keys()
    else:
        names = {n for n, t in tree.items() if t.dim() > 1 and n.endswith("weight") and not is_buffer(n, tree)}
        names = {n for n in names if not any(map(NEVER.fullmatch, re.split(r"[._]", n.lower())))}
    return frozenset(name for name in names if tree[name].is_floating_point() and not _shared(name, tree))


def _shared(name: str, tree: Tree) -> bool:
    """Whether another name has the same values: tied weights, of which one must not be pruned alone."""
    mine = tree[name]
    return any(n != name and t.shape == mine.shape and torch.equal(t, mine) for n, t in tree.items())
