from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.nn.utils.prune import l1_unstructured

from prunella.core.errors import PrunellaError
from prunella.core.trees import Mask, Tree, full_mask
from prunella.pruning.selection import below, density, keep_by_score, kept_count
from prunella.pruning.synflow import flow, linear_copy, require_flow, synflow_mask
from prunella.tasks.models import MODELS
from prunella.tasks.task import prunable


def network(name: str = "conv-2", shape=(1, 16, 16)):
    torch.manual_seed(0)
    net = MODELS[name](shape, 10)
    return net, {n: p.detach().clone() for n, p in net.named_parameters()}, prunable(net), shape


def best(scores: Tree, rate: float, inside: Mask) -> Mask:
    return keep_by_score(below(scores, inside), frozenset(scores), rate)


@pytest.mark.parametrize("name", ["conv-1", "cnn", "lenet-zhu"])
def test_every_layers_scores_add_up_to_the_same_flow(name: str) -> None:
    net, params, names, shape = network(name)
    sums = [float(s.sum()) for s in flow(linear_copy(net), params, shape, names).values()]
    assert len(sums) >= 2 and sums[0] > 0
    assert sums == pytest.approx([sums[0]] * len(sums), rel=1e-9)


def test_scores_equal_the_sum_over_all_paths_on_a_small_net() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    params = {n: p.detach() for n, p in net.named_parameters()}
    a, b = params["1.weight"].double().abs(), params["3.weight"].double().abs()
    scores = flow(linear_copy(net), params, (1, 1, 3), {"1.weight", "3.weight"})
    for j in range(4):
        for i in range(3):
            assert float(scores["1.weight"][j, i]) == pytest.approx(float(sum(b[k, j] * a[j, i] for k in range(2))))
        for k in range(2):
            assert float(scores["3.weight"][k, j]) == pytest.approx(float(sum(b[k, j] * a[j, i] for i in range(3))))


def test_the_count_is_exact_nothing_changes_and_the_same_bits_come_twice() -> None:
    net, params, names, shape = network("cnn")
    before = {n: t.clone() for n, t in params.items()}
    first, again = (synflow_mask(net, params, shape, names, 0.7, (20, best)) for _ in range(2))
    total = sum(params[n].numel() for n in names)
    assert sum(int(first[n].sum()) for n in names) == kept_count(total, 0.7)
    assert all(torch.equal(first[n], again[n]) and torch.equal(params[n], before[n]) for n in params)
    assert all(bool(first[n].all()) for n in params if n not in names)
    assert isinstance(net[0][1], nn.Tanh) and net.training


def test_many_steps_keep_every_layer_alive_where_a_single_one_all_but_empties_one() -> None:
    torch.manual_seed(0)
    wide = nn.Sequential(nn.Flatten(), nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 4), nn.ReLU(), nn.Linear(4, 512))
    params, names = {n: p.detach() for n, p in wide.named_parameters()}, prunable(wide)

    def still_flows(steps: int) -> float:
        mask = synflow_mask(wide, params, (1, 8, 8), names, 0.999, (steps, best))
        kept = {n: params[n] * mask[n] for n in params}
        return float(sum(s.sum() for s in flow(linear_copy(wide), kept, (1, 8, 8), names).values()))

    assert (many := still_flows(100)) > 0 and many > 2 * still_flows(1)


def test_a_residual_net_with_batch_norm_is_scored_and_rate_zero_is_the_identity() -> None:
    net, params, names, shape = network("resnet10", (3, 16, 16))
    assert density(synflow_mask(net, params, shape, names, 0.5, (3, best)), names) == pytest.approx(0.5, abs=1e-6)
    whole = synflow_mask(net, params, shape, names, 0.0, (2, best))
    assert all(torch.equal(whole[n], full_mask(params)[n]) for n in params)


def test_a_flow_that_overflows_is_an_error() -> None:
    net, params, names, shape = network("conv-1")
    with pytest.raises(PrunellaError, match="not finite"):
        flow(linear_copy(net), {n: t.double() * 1e200 for n, t in params.items()}, shape, names)


@pytest.mark.parametrize("norm", [nn.InstanceNorm2d(4), nn.BatchNorm2d(4), nn.GroupNorm(2, 4)])
@pytest.mark.parametrize("activation", [nn.Hardswish(), nn.PReLU(), nn.Identity()])
def test_norms_and_activations_are_the_identity(norm: nn.Module, activation: nn.Module) -> None:
    def scores(*between: nn.Module) -> list[Tree]:
        torch.manual_seed(0)
        layers = nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 3)
        net = nn.Sequential(layers[0], *between, *layers[1:])
        found = flow(linear_copy(net), dict(net.named_parameters()), (1, 8, 8), prunable(net))
        return list(found.values())

    assert all(torch.equal(a, b) for a, b in zip(scores(norm, activation), scores(), strict=True))


class Normed(nn.Module):
    """A norm that is called as a function, which stays."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.last(nn.functional.layer_norm(self.first(x.flatten(1)), (32,)).relu())
        return logits


class Encoder(nn.Module):
    """PyTorch's own transformer layer, whose norms' settings it reads itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True), nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.last(self.layer(x[:, 0]).mean(1))
        return logits


class Ending(nn.Module):
    """A network that answers with log-probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(self.last(self.first(x.flatten(1)).relu()), 1)


@pytest.mark.parametrize(
    ("net", "named"),
    [
        (MODELS["vit"]((1, 8, 8), 10), "blocks.0.attention.1.query.weight"),
        (Normed(), "first.weight"),
        (Ending(), "first.weight"),
        (Encoder(), "layer.self_attn.out_proj.weight"),
    ],
)
def test_a_layer_that_the_flow_does_not_pass_is_refused(net: nn.Module, named: str) -> None:
    """It would go whole, before any other: all scores of a transformer's queries are zero."""
    params = {n: p.detach() for n, p in net.named_parameters()}
    with pytest.raises(PrunellaError, match=f"cannot score {named}.*choose another strategy"):
        require_flow(flow(linear_copy(net), params, (1, 8, 8), prunable(net)), params)


class Residual(nn.Module):
    """Its branch ends in zeros at first, so that its layer before is on no path either."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.last = (nn.Linear(64, n) for n in (64, 64, 64, 10))
        nn.init.zeros_(self.c.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x.flatten(1)).relu()
        logits: torch.Tensor = self.last(x + self.c(self.b(x).relu()))
        return logits


def with_zero_head() -> nn.Module:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    nn.init.zeros_(net[3].weight)
    return net


@pytest.mark.parametrize(("net", "named"), [(with_zero_head(), "3.weight"), (Residual(), "c.weight")])
def test_of_a_layer_of_zeros_that_layer_is_named(net: nn.Module, named: str) -> None:
    params = {n: p.detach() for n, p in net.named_parameters()}
    with pytest.raises(PrunellaError, match=f"no path through {named}, which is zero before training"):
        synflow_mask(net, params, (1, 8, 8), prunable(net), 0.5, (2, best))


@pytest.mark.parametrize(
    "made",
    [weight_norm, spectral_norm, nn.utils.weight_norm, nn.utils.spectral_norm, partial(l1_unstructured, amount=0.3)],
)
def test_a_weight_that_is_made_of_others_passes_the_flow_as_its_absolute_value(made: Any) -> None:
    """The scores of the other layers are those beside a plain layer of the weights that are made."""
    torch.manual_seed(0)
    first, middle, last = nn.Linear(16, 12), nn.Linear(12, 8), nn.Linear(8, 3)
    made(middle, "weight")
    net = nn.Sequential(nn.Flatten(), first, nn.ReLU(), middle, nn.Tanh(), last).eval()
    net(torch.rand(2, 1, 4, 4))  # a pass leaves the weight it made on the layer
    plain = nn.Linear(12, 8)
    plain.weight = nn.Parameter(middle.weight.detach().clone())
    beside = nn.Sequential(nn.Flatten(), first, nn.ReLU(), plain, nn.Tanh(), last)
    found, expected = (
        flow(linear_copy(each), dict(each.named_parameters()), (1, 4, 4), prunable(each)) for each in (net, beside)
    )
    require_flow(found, dict(net.named_parameters()))
    assert found.keys() == {"1.weight", "5.weight"}
    assert all(torch.allclose(found[name], expected[name], rtol=1e-5) for name in found)
