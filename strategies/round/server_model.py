"""The model as the server knows it, and which of its weights a server-side scheme keeps."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from prunella.core.errors import ConfigError, PrunellaError
from prunella.core.randomness import rehearsal, stream
from prunella.core.trees import Mask, Tree, all_finite
from prunella.pruning.channels import Group, channel_groups
from prunella.pruning.filters import keep_channels
from prunella.pruning.selection import Granularity, Scope, below, keep_by_score
from prunella.tasks.data import Examples
from prunella.tasks.task import Task
from prunella.tasks.training import drawing, evaluate, loss_and_gradient

PROBES = 2  # more than one, for batch norm


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

    def computes(self, params: Tree, buffers: Tree) -> bool:
        """Whether a client could train from here: weights, buffers, and what the model makes of ``PROBES`` images of
        noise, in training its gradient as well, are finite."""
        if not (all_finite(params) and all_finite(buffers)):
            return False
        x = torch.rand(PROBES, *self.shape, generator=stream(0, purpose="probes"))
        with torch.random.fork_rng(devices=[]), drawing(self.module, rehearsal(0, purpose="probes")):
            loss, gradient, _ = loss_and_gradient(self.module, params, buffers, x, torch.zeros(PROBES).long())
        shown = evaluate(self.module, params, buffers, x, torch.zeros(PROBES).long())
        return math.isfinite(shown.loss) and all_finite({**gradient, "": loss})

    @cached_property
    def groups(self) -> list[Group]:
        """The channels that can go. Raises ``ConfigError`` where the model's structure is not known."""
        fix = "choose granularity=weight, which prunes single weights"
        try:
            found = channel_groups(self.module, self.shape)
        except PrunellaError as error:
            raise ConfigError(f"granularity=filter: {error}: {fix}") from None
        if not found:
            raise ConfigError(f"granularity=filter: no filter of this model can go: {fix}")
        if not {f"{name}.weight" for group in found for name in group.writers} <= set(self.parameters):
            raise ConfigError(f"granularity=filter: the arrays have other names than the model's layers: {fix}")
        return found

    def keep(self, scores: Tree, rate: float, how: tuple[Scope, Granularity], inside: Mask | None = None) -> Mask:
        """The mask of the highest scores, which nothing outside of ``inside`` enters."""
        scope, granularity = how
        if granularity == "filter":
            return keep_channels(scores, self.groups, self.prunable, rate, scope, inside)
        return keep_by_score(scores if inside is None else below(scores, inside), self.prunable, rate, scope)
