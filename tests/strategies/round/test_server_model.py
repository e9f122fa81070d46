"""What of a model is kept: single weights, or whole channels, by every scheme that scores on the server."""

import math

import pytest
import torch
from torch import nn

from prunella.core.config import Run
from prunella.core.errors import ConfigError, PrunellaError
from prunella.core.trees import Mask, Tree, apply_mask
from prunella.pruning.scores import magnitude
from prunella.pruning.selection import below, density, keep_by_score
from prunella.pruning.shrink import shrink
from prunella.strategies import STRATEGIES, build_strategy
from prunella.strategies.round.server_model import ServerModel
from prunella.tasks.data import load_test
from prunella.tasks.models import MODELS
from prunella.tasks.task import Task, initial, prunable

TASK = Task("resnet10", (1, 8, 8), 10)
NET = TASK.build()
PARAMS, BUFFERS = initial(TASK, 0)
PUBLIC = load_test("digits", None)


def model(module: nn.Module = NET, names: tuple[str, ...] = tuple(PARAMS)) -> ServerModel:
    return ServerModel(module, TASK.shape, names, prunable(module), PUBLIC, TASK)


def test_a_tree_is_split_into_parameters_and_buffers() -> None:
    split = ServerModel(nn.Identity(), (1, 1, 1), ("w", "b"), frozenset({"w"}))
    tree = {"mean": torch.zeros(1), "w": torch.ones(2), "b": torch.ones(1)}
    params, buffers = split.split(tree)
    assert list(params) == ["w", "b"] and list(buffers) == ["mean"] and params["w"] is tree["w"]


@pytest.mark.parametrize(
    ("kind", "value"), [("weight", math.nan), ("weight", 3e38), ("buffer", math.inf), ("buffer", -1)]
)
def test_a_model_that_nobody_could_train_from_is_told(kind: str, value: float) -> None:
    """Not a number, too large to compute with, and statistics of batch norm that are none: a variance below zero."""
    assert model().computes(PARAMS, BUFFERS)
    params, buffers = dict(PARAMS), dict(BUFFERS)
    tree, name = (params, "weight") if kind == "weight" else (buffers, "running_var")
    last = [each for each in tree if each.endswith(name)][-1]
    tree[last] = torch.full_like(tree[last], value)
    before, state = {n: t.clone() for n, t in NET.state_dict().items()}, torch.get_rng_state()
    assert not model().computes(params, buffers)
    assert all(torch.equal(t, before[n]) for n, t in NET.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state), "nothing else is drawn otherwise"


def first(scheme: str, section: str, rate: float = 0.7, **settings: object) -> Mask:
    raw = {f"{section}.{key}": value for key, value in settings.items()}
    strategy = build_strategy(Run(strategy=scheme, rate=rate), raw, model())
    mask = strategy.first_mask(PARAMS, None, [])  # type: ignore[arg-type]
    return strategy.revise_mask(9, PARAMS, mask)


@pytest.mark.parametrize("scope", ["global", "layer"])
@pytest.mark.parametrize(
    ("scheme", "section", "more"),
    [
        ("random", "random-mask", {}),
        ("magnitude", "magnitude", {}),
        ("snip", "snip", {"batch": 8}),
        ("grasp", "grasp", {"batch": 10}),
        ("synflow", "synflow", {"steps": 3}),
    ],
)
def test_every_scheme_that_scores_makes_a_network_that_is_really_smaller(
    scheme: str, section: str, more: dict[str, object], scope: str
) -> None:
    """At rate 0.7, where a global ranking of filters used to empty layers, and through residual sums."""
    mask = first(scheme, section, granularity="filter", scope=scope, **more)
    small = shrink(NET, {**apply_mask(PARAMS, mask), **BUFFERS}, TASK.shape)
    names = prunable(NET)
    size = sum(small[n].numel() for n in names) / sum(PARAMS[n].numel() for n in names)
    assert 0.3 <= density(mask, names) == size < 0.305
    assert all(len(small[f"{g.writers[0]}.weight"]) >= 0.1 * g.units for g in model().groups)
    weights = first(scheme, section, scope=scope, **more)
    dense = shrink(NET, {**apply_mask(PARAMS, weights), **BUFFERS}, TASK.shape)
    assert sum(dense[n].numel() for n in names) > 2 * sum(small[n].numel() for n in names)  # the control


def test_single_weights_are_kept_by_score_and_below_what_is_out() -> None:
    scores, inside = magnitude(PARAMS), first("random", "random-mask", rate=0.3)
    kept = model().keep(scores, 0.5, ("global", "weight"), inside)
    expected = keep_by_score(below(scores, inside), prunable(NET), 0.5)
    assert all(torch.equal(kept[n], expected[n]) for n in expected)
    assert not any(bool((kept[n] & ~inside[n]).any()) for n in kept)


class Joined(nn.Module):
    """Every layer's channels end in a concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.last = nn.Conv2d(1, 2, 3), nn.Conv2d(1, 2, 3), nn.Linear(144, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.cat([self.a(x), self.b(x)], 1).flatten(1))  # type: ignore[no-any-return]


class Branching(nn.Module):
    """What it computes depends on its input."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x.flatten(1)) if x.sum() > 0 else self.last(-x.flatten(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("module", "told"), [(Joined(), "no filter of this model can go"), (Branching(), "cannot be followed")]
)
def test_a_model_whose_filters_cannot_go_is_refused_before_the_run(module: nn.Module, told: str) -> None:
    params: Tree = {n: p.detach() for n, p in module.named_parameters()}
    run, raw = Run(strategy="magnitude", rate=0.5), {"magnitude.granularity": "filter"}
    with pytest.raises(ConfigError, match=f"{told}.*choose granularity=weight"):
        build_strategy(run, raw, model(module, tuple(params)))
    build_strategy(run, {}, model(module, tuple(params)))


class Bare(nn.Module):
    """A weight of no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1) @ self.weight  # type: ignore[no-any-return]


@pytest.mark.parametrize("scheme", sorted(set(STRATEGIES) - {"fedavg"}))
def test_a_model_without_anything_to_prune_is_refused_before_the_run(scheme: str) -> None:
    with pytest.raises(ConfigError, match=f"strategy={scheme} prunes .* this model has none .* set strategy=fedavg"):
        build_strategy(Run(strategy=scheme), {}, model(Bare(), ("weight",)))
    build_strategy(Run(strategy="fedavg"), {}, model(Bare(), ("weight",)))


@pytest.mark.parametrize(("scheme", "module"), [("magnitude", Bare()), ("synflow", MODELS["vit"](TASK.shape, 10))])
def test_a_run_that_goes_on_is_not_refused_for_a_first_mask_that_it_has(scheme: str, module: nn.Module) -> None:
    """A release before this began it."""
    names = tuple(n for n, _ in module.named_parameters())
    with pytest.raises(PrunellaError, match="strategy"):
        build_strategy(Run(strategy=scheme), {}, model(module, names))
    build_strategy(Run(strategy=scheme, resume=True), {}, model(module, names))


def test_a_mask_is_still_refused_where_a_run_that_goes_on_has_none() -> None:
    module = MODELS["vit"](TASK.shape, 10)
    params: Tree = {n: p.detach() for n, p in module.named_parameters()}
    strategy = build_strategy(Run(strategy="synflow", resume=True), {}, model(module, tuple(params)))
    with pytest.raises(PrunellaError, match="choose another strategy"):
        strategy.first_mask(params, None, [])  # type: ignore[arg-type]


def test_arrays_of_other_names_than_the_layers_are_refused() -> None:
    with pytest.raises(ConfigError, match="other names"):
        _ = model(NET, tuple(f"{number}" for number in range(len(PARAMS)))).groups
