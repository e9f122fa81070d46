"""The scheme that ``Prune`` was told, and the mask that its run begins with.

``Setup`` is what the user wrote, checked; ``Setup.begin`` makes the scheme and the first mask, and ``Setup.order`` is
what a round asks of clients. Schemes know layers by the module's names, messages may have other ones (``legacy``).

Errors: ``ConfigError``.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from prunella.core.config import Run, kebab, parse_run
from prunella.core.errors import ConfigError
from prunella.core.trees import Mask, Tree, full_mask
from prunella.flower.arrays import floats
from prunella.flower.channels import told
from prunella.flower.legacy import positions
from prunella.flower.prunable import prunable_names
from prunella.flower.scheme import SchemeOrder
from prunella.strategies import Scheme, find, scheme_settings
from prunella.strategies.fed_ltp_iterative import FedLTPIterative
from prunella.strategies.lotteryfl import LotteryFL
from prunella.strategies.prunefl import PruneFL
from prunella.strategies.round.roster import Member
from prunella.strategies.round.server_model import ServerModel
from prunella.strategies.round.strategy import MaskedMean
from prunella.tasks.examples import Examples
from prunella.tasks.task import Task

SCHEMES = (
    "random",
    "magnitude",
    "synflow",
    "snip",
    "grasp",
    "prunefl",
    "feddst",
    "lotteryfl",
    "fed-ltp-one-shot",
    "fed-ltp-iterative",
)
TICKETS = {"fed-ltp-one-shot", "fed-ltp-iterative"}
NEEDS_MODEL, NEEDS_PUBLIC = {"synflow", "snip", "grasp"}, {"snip", "grasp"} | TICKETS


class Begun(NamedTuple):
    """A scheme, its first mask, and the weights to start from where they are not the strategy's own."""

    scheme: MaskedMean
    mask: Mask
    weights: Tree


class Given(NamedTuple):
    """What the user told of the model: see ``Prune``."""

    model: nn.Module | None = None
    shape: tuple[int, int, int] | None = None
    public: tuple[Tensor, Tensor] | None = None
    task: Task | None = None


def scored(tree: Tree) -> Tree:
    """Scores are made in float32; buffers get a full mask like any other array that is not prunable."""
    return {name: t if t.dtype == torch.float64 else t.float() for name, t in floats(tree).items()}


def check_given(scheme: object, given: Given) -> None:
    """Refuse (``ConfigError``) what is of another kind than ``Prune`` takes, before a client trains."""
    if not isinstance(scheme, str):
        raise ConfigError('a scheme is a name: write Prune(strategy, "magnitude", rate=0.3)')
    model, shape, public = given.model, given.shape, given.public
    if model is not None and not isinstance(model, nn.Module):
        raise ConfigError("model is a module of PyTorch's, with its parameters: write model=Net()")
    if shape is not None and (len(shape) != 3 or not all(isinstance(side, int) for side in shape)):
        raise ConfigError("shape is that of one input, without a batch: write shape=(3, 32, 32)")
    pair = public is not None and len(public) == 2 and all(isinstance(part, Tensor) for part in public)
    if public is not None and not (pair and len(public[0]) == len(public[1]) and not public[1].is_floating_point()):
        raise ConfigError("public are two tensors, images [N, C, H, W] and labels [N] as whole numbers")


@dataclass(frozen=True)
class Setup:
    """A scheme with its settings: ``raw`` by key, and ``settings`` as parsed."""

    entry: Scheme
    run: Run
    raw: dict[str, Any]
    settings: Any
    given: Given

    @classmethod
    def of(cls, run: dict[str, Any], settings: dict[str, Any], given: Given) -> "Setup":
        """``run`` has the scheme as ``strategy``; ``settings`` are the scheme's, by Python's names."""
        scheme, (model, shape, public, task) = run["strategy"], given
        check_given(scheme, given)
        entry = find(scheme)
        if scheme not in SCHEMES:
            raise ConfigError(f"Prune does not know {scheme}: choose one of {', '.join(SCHEMES)}")
        if task is not None:
            model, shape = model or task.build(), task.shape
        elif scheme in TICKETS:
            fix = 'task=Task("my_app.task:Net", (3, 32, 32), 10), from prunella import Task'
            raise ConfigError(f"{scheme} starts from fresh weights of the model, which it has to be told: {fix}")
        whole = settings.get("granularity") == "filter"
        if (scheme in NEEDS_MODEL or whole) and (model is None or shape is None):
            who = f"{scheme} of whole filters" if whole else scheme
            raise ConfigError(f"{who} needs the model and the shape of its input: model=Net(), shape=(3, 32, 32)")
        if scheme in NEEDS_PUBLIC and public is None:
            raise ConfigError(f"{scheme} prunes on examples that are nobody's secret: give public=(images, labels)")
        if scheme == "prunefl" and (model is None or shape is None):
            if settings.setdefault("cost", "uniform") != "uniform":
                raise ConfigError("prunefl counts multiply-adds in the model: give model=Net(), shape=(3, 32, 32)")
        raw = {f"{entry.section or scheme}.{kebab(key)}": value for key, value in settings.items()}
        return cls(entry, parse_run(run), raw, scheme_settings(scheme, raw), Given(model, shape, public, task))

    def scheme(self, model: ServerModel) -> MaskedMean:
        return self.entry.strategy(self.run, model, self.settings)

    def begin(self, tree: Tree, ask: Callable[[MaskedMean], Iterator[Mask | None]], asked: Callable[[], int]) -> Begun:
        """The scheme and the first mask for a model of these arrays. ``ask`` has clients make it, if the scheme wants
        that, one after the other; ``asked`` says how many clients a round has."""
        model, shape, public, task = self.given
        names = prunable_names(tree, model)
        examples = None if public is None else Examples(*public)
        module, shape = model or nn.Identity(), shape or (1, 1, 1)
        known, params = ServerModel(module, shape, tuple(floats(tree)), names, examples, task), scored(tree)
        came = {} if model is None else positions(model, tree)
        own = {name: name for name in params} | {at: name for name, at in came.items() if at in params}
        scheme = self.scheme(known)
        if not self.run.rate:
            return Begun(scheme, full_mask(params), {})
        if isinstance(scheme, PruneFL):
            if scheme.settings.cost != "uniform" and any(at != name for at, name in own.items()):
                why = "prunefl counts multiply-adds by names, and arrays of Flower's older API have none"
                raise ConfigError(f"{why}: leave shape= out")
            found = next((mask for mask in ask(scheme) if mask is not None), full_mask(params))
            return Begun(scheme, found, {})
        # By the module's names, which its layers are found by. These schemes ask no client.
        parameters, prunable = tuple(own[n] for n in known.parameters), frozenset(own[n] for n in names)
        maker = self.scheme(replace(known, parameters=parameters, prunable=prunable))
        mine = {own[n]: params[n] for n in params}
        counts = self.entry.personal and not self.settings.slots
        members = [Member(number, number) for number in range(asked())] if counts else []
        given, mask = maker.first_model(mine, cast("Any", None), members)
        if not given.keys() <= mine.keys():
            raise ConfigError("the task's model has other arrays than those sent: name the app's own model")

        def as_sent(mask: Mask) -> Mask:
            every = {**full_mask(mine), **mask}
            return {n: every[own[n]] for n in params}

        if isinstance(scheme, FedLTPIterative) and isinstance(maker, FedLTPIterative):
            scheme.adopt([as_sent(each) for each in maker.models(mine)])
        first = {} if given is mine else {n: given[own[n]].to(tree[n].dtype) for n in params if own[n] in given}
        return Begun(scheme, as_sent(mask), first)

    def rewinds(self) -> bool:
        """Whether clients go back to the weights that the run started from."""
        return issubclass(self.entry.strategy, LotteryFL) and self.settings.rewind and bool(self.run.rate)

    def order(self, scheme: MaskedMean | None, server_round: int) -> SchemeOrder:
        """What the scheme asks of clients in a round; round 0 makes the first mask."""
        part, run = self.entry.client, self.run
        if scheme is None or not run.rate:
            return SchemeOrder()
        asks = part.plan is not None or bool(scheme.importance_names(server_round)) or not server_round
        if not asks:
            return SchemeOrder()
        names = tuple(sorted(scheme.model.prunable))
        costs = scheme.rule.cost if isinstance(scheme, PruneFL) and not server_round else {}
        prices = tuple(costs[name] for name in names) if costs else ()
        whole = getattr(self.settings, "granularity", "weight") == "filter"
        channels = told(scheme.model.groups) if whole and (part.plan is not None or not server_round) else ()
        asked = (run.strategy, server_round, run.rate, run.local_steps, names, prices, json.dumps(self.raw))
        return SchemeOrder(*asked, channels=channels)
