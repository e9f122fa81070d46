"""SynFlow on the server (Tanaka et al., NeurIPS 2020; PRI Table 1): one shot, before training, without any data.

The mask follows from the run's seed alone, so it tells nothing about anybody's examples. See ``pruning.synflow``.
"""

from dataclasses import dataclass

from flwr.serverapp import Grid

from prunella.core.config import Count, Run
from prunella.core.trees import Mask, Tree
from prunella.pruning.selection import Granularity, Scope
from prunella.pruning.synflow import flow, linear_copy, require_flow, synflow_mask
from prunella.strategies.round.roster import Member
from prunella.strategies.round.server_model import ServerModel
from prunella.strategies.round.strategy import MaskedMean


@dataclass(frozen=True)
class SynFlowSettings:
    """Prunes once, before training, without any data.

    The paper ranks globally.
    """

    steps: Count = 100  #: how often scores are computed on the way to the rate
    scope: Scope = "global"  #: rank weights over all layers together, or within each
    granularity: Granularity = "weight"  #: what goes at once: a weight, or a filter with all added into its channel


class SynFlow(MaskedMean):
    """``settings`` is a ``SynFlowSettings``. A network that SynFlow cannot score is refused when this is made; in a
    run that goes on, which mostly has its mask, when it is asked for one."""

    def __init__(self, run: Run, model: ServerModel, settings: SynFlowSettings) -> None:
        super().__init__(run, model, settings)
        weights = {name: parameter.detach() for name, parameter in model.module.named_parameters()}
        ours = model.prunable <= weights.keys()  # older apps' arrays have other names: ``synflow_mask`` looks at them
        if ours and not run.resume:
            require_flow(flow(linear_copy(model.module), weights, model.shape, model.prunable), weights)

    def first_mask(self, params: Tree, grid: Grid, members: list[Member]) -> Mask:
        model, settings = self.model, self.settings

        def select(scores: Tree, rate: float, inside: Mask) -> Mask:
            return model.keep(scores, rate, (settings.scope, settings.granularity), inside)

        names, plan = model.prunable, (settings.steps, select)
        return synflow_mask(model.module, params, model.shape, names, self.run.rate, plan)
