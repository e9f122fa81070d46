"""The model as the server knows it."""

from dataclasses import dataclass

from torch import nn

from prunella.core.trees import Tree
from prunella.tasks.data import Examples
from prunella.tasks.task import Task


@dataclass(frozen=True)
class ServerModel:
    """Structure, input shape [C, H, W], names of the parameters, and which of them may be pruned.

    ``public`` are examples that are nobody's secret, for the schemes that prune on data before training, and ``task``
    is what fresh weights are drawn from.
    """

    module: nn.Module
    shape: tuple[int, int, int]
    parameters: tuple[str, ...]
    prunable: frozenset[str]
    public: Examples | None = None
    task: Task | None = None

    def split(self, tree: Tree) -> tuple[Tree, Tree]:
        """Parameters and buffers of a dense tree."""
        params = {name: tree[name] for name in self.parameters}
        return params, {name: t for name, t in tree.items() if name not in params}
