"""Groups of channels: who shares them, what pins them, and what is constant in them, against the network itself."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from prunella.core.randomness import stream
from prunella.pruning.channels import channel_groups
from prunella.tasks.exported import fitted
from prunella.tasks.models import MODELS


def groups(net: nn.Module, shape: tuple[int, ...] = (3, 16, 16)) -> list[tuple[set[str], set[str], set[str]]]:
    return [(set(g.writers), set(g.carriers), {r.layer for r in g.readers}) for g in channel_groups(net, shape)]


class Mobile(nn.Module):
    """An inverted residual block: 1x1, depthwise 3x3 and 1x1 convolutions beside an identity."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.widen, self.each = nn.Conv2d(6, 12, 1), nn.Conv2d(12, 12, 3, padding=1, groups=12)
        self.narrow, self.last = nn.Conv2d(12, 6, 1), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.relu6(self.norm(self.stem(x)))
        x = x + self.narrow(self.each(self.widen(x).relu()).relu())
        return self.last(x.mean((2, 3)))


class Summed(nn.Module):
    """Batch norm of one layer, and of its sum with another."""

    def __init__(self, first: nn.Module, second: nn.Module, third: nn.Module) -> None:
        super().__init__()
        self.first, self.second, self.third = first, second, third
        self.after, self.last = nn.BatchNorm2d(4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.after(self.second(self.first(x)) + self.third(x)).mean((2, 3)))


def test_a_residual_sum_makes_one_group_of_all_that_is_added_into_it() -> None:
    found = groups(MODELS["resnet10"]((3, 16, 16), 10))
    assert len(found) == 8
    assert found[0] == ({"0.0", "2.body.2.0"}, {"0.1", "2.body.2.1"}, {"2.body.0.0", "3.body.0.0", "3.shortcut.0"})
    assert found[2] == ({"3.body.0.0"}, {"3.body.0.1"}, {"3.body.2.0"})


def test_a_depthwise_convolution_carries_the_channels_that_it_reads() -> None:
    assert groups(Mobile()) == [({"stem", "narrow"}, {"norm"}, {"widen", "last"}), ({"widen"}, {"each"}, {"narrow"})]


def test_the_models_here_have_no_layer_left_over() -> None:
    """All but the last layer can lose channels, in every model here whose layers follow each other."""
    for name in ("cnn", "conv-4", "lenet", "cnn6", "vgg-11", "vgg11-bn", "resnet18", "ltp-2"):
        net = MODELS[name]((3, 32, 32), 10)
        layers = [n for n, layer in net.named_modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
        found = channel_groups(net, (3, 32, 32))
        assert sorted(w for g in found for w in g.writers) == sorted(layers[:-1]), name
        assert sorted(r.layer for g in found for r in g.readers) == sorted(layers[1:]), name


class Wired(nn.Module):
    """Two convolutions whose outputs meet in ``how``, between a first and a last layer."""

    def __init__(self, how: Any, inputs: int = 4) -> None:
        super().__init__()
        self.first, self.a, self.b = nn.Conv2d(1, 4, 1), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3, padding=1)
        self.how, self.last = how, nn.Linear(inputs, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        return self.last(self.how(self, self.a(x), self.b(x)).mean((2, 3)))


@pytest.mark.parametrize(
    ("how", "inputs", "free"),
    [
        (lambda net, a, b: a + b, 4, [{"first"}, {"a", "b"}]),
        (lambda net, a, b: a.add(b), 4, [{"first"}, {"a", "b"}]),
        (lambda net, a, b: torch.add(a, b, alpha=2), 4, [{"first"}]),  # a factor is not followed
        (lambda net, a, b: a * b, 4, [{"first"}]),
        (lambda net, a, b: torch.cat([a, b], 1), 8, [{"first"}]),
        (lambda net, a, b: a + b.mean((2, 3), keepdim=True), 4, [{"first"}]),  # broadcast
        (lambda net, a, b: a + net.a(b), 4, []),  # a layer that is used twice
        (lambda net, a, b: a + nn.functional.conv2d(b, net.b.weight, padding=1), 4, []),  # and one whose weight is
        (lambda net, a, b: a + 1 + b, 4, [{"first"}]),
        (lambda net, a, b: a.flip(1) + b, 4, [{"first"}]),
        (lambda net, a, b: a.softmax(1), 4, [{"first"}]),
        (lambda net, a, b: nn.functional.relu(a, inplace=True) + b, 4, [{"first"}, {"a", "b"}]),
        (lambda net, a, b: nn.functional.relu(a, inplace=True) + b + a, 4, [{"first"}]),  # a is another by then
        (lambda net, a, b: nn.functional.relu(a, True) + b + a, 4, [{"first"}]),
        (lambda net, a, b: nn.functional.hardtanh(a, 0.0, 6.0, True) + b + a, 4, [{"first"}]),
        (lambda net, a, b: (torch.mean(a, (2, 3), True), a + b)[1], 4, [{"first"}, {"a", "b"}]),  # True is keepdim
        (lambda net, a, b: (a.mean((2, 3), True), a + b)[1], 4, [{"first"}, {"a", "b"}]),
        (lambda net, a, b: a.relu_() + b + a, 4, [{"first"}]),
        (lambda net, a, b: a.add_(b) + a, 4, [{"first"}]),
    ],
)
def test_what_is_not_followed_keeps_its_channels(how: Any, inputs: int, free: list[set[str]]) -> None:
    found = [writers for writers, _, _ in groups(Wired(how, inputs), (1, 4, 4))]
    assert found == free


def test_channels_that_are_flattened_into_the_batch_stay() -> None:
    class Flat(nn.Module):
        def __init__(self, **ends: int) -> None:
            super().__init__()
            self.ends, self.first = ends, nn.Conv2d(1, 4, 1)
            self.last = nn.Linear(4 if "end_dim" in ends else 16, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x).flatten(**self.ends)
            return self.last(x.flatten(1))

    assert groups(Flat(start_dim=1), (1, 2, 2)) == [({"first"}, set(), {"last"})]
    assert groups(Flat(end_dim=1), (1, 2, 2)) == []


def test_a_layer_whose_weight_is_also_anothers_keeps_its_channels() -> None:
    net = nn.Sequential(nn.Flatten(), *(nn.Linear(4, 4) for _ in range(4)))
    net[3].weight = net[2].weight
    assert groups(net, (1, 2, 2)) == []
    net[3].weight = nn.Parameter(net[2].weight.detach().clone())
    assert [writers for writers, _, _ in groups(net, (1, 2, 2))] == [{"1"}, {"2"}, {"3"}]


def test_a_weight_that_is_made_of_others_keeps_its_channels() -> None:
    made = nn.utils.spectral_norm(nn.Conv2d(4, 4, 1))
    net = nn.Sequential(
        nn.Conv2d(1, 4, 1), nn.Conv2d(4, 4, 1), made, nn.Conv2d(4, 4, 1), nn.Flatten(), nn.Linear(16, 2)
    )
    assert [writers for writers, _, _ in groups(net, (1, 2, 2))] == [{"0"}, {"3"}]


def test_the_inputs_channels_and_the_classes_stay() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    assert groups(net, (1, 2, 2)) == [({"1"}, set(), {"3"})]
    assert groups(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), (1, 2, 2)) == []


def values(net: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """What every layer reads."""
    found: dict[str, Tensor] = {}
    for name, layer in net.named_modules():
        layer.register_forward_pre_hook(lambda _, given, name=name: found.__setitem__(name, given[0].detach()))
    net(x)
    return found


@pytest.mark.parametrize("model", [Mobile, lambda: MODELS["resnet10"]((3, 16, 16), 10)])
def test_constants_are_those_that_the_network_computes(model: Any) -> None:
    """Half of the channels are silenced; a reader's input is constant there, to the figure, and not where it is NaN."""
    net = model().eval()
    for name, tensor in net.state_dict().items():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand(tensor.shape, generator=stream(0, purpose=name)) - 0.4 * ("var" not in name))
    tree = {n: t.clone() for n, t in net.state_dict().items() if t.is_floating_point()}
    found = channel_groups(net, (3, 16, 16))
    for group in found:
        for layer in group.writers:
            tree[f"{layer}.weight"][::2] = 0
    tree[f"{found[-1].writers[0]}.weight"][1] = 0  # and one more in one layer only: not constant where others add
    net = fitted(model(), tree).eval()
    seen = values(net, torch.rand(3, 3, 16, 16))
    known = 0
    for group in found:
        for layer, constant in group.constants(tree).items():
            read = seen[layer].flatten(2) if seen[layer].ndim == 4 else seen[layer][..., None]
            fixed = ~constant.isnan()
            known += int(fixed.sum())
            same = constant[fixed][:, None].expand_as(read[:, fixed])
            assert torch.allclose(read[:, fixed].double(), same, atol=1e-5)
            assert not bool(fixed[3::2].any()) and bool((read.amax((0, 2)) > read.amin((0, 2)))[3::2].any())
    assert known >= sum(g.units * len(g.readers) for g in found) // 4


def test_means_are_those_that_batch_norm_meets_in_training() -> None:
    """Of a sum of two layers without weights: what enters the second norm is a bias and the first norm's."""
    first, second, third = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(3, 4, 1)
    net = Summed(first, second, third)
    for layer in (first, third):
        nn.init.zeros_(layer.weight)
    nn.init.normal_(second.bias, generator=stream(0, purpose="bias"))
    (group,) = channel_groups(net, (3, 4, 4))
    tree = {name: t.detach() for name, t in net.state_dict().items() if t.is_floating_point()}
    means = group.means(tree)
    net.train()(torch.rand(2, 3, 4, 4, generator=stream(0, purpose="x")))
    assert set(means) == {"second", "after"}
    for name, mean in means.items():
        assert torch.allclose(net.get_submodule(name).running_mean.double(), 0.1 * mean, atol=1e-6)
        assert float(mean.abs().min()) > 1e-3, "zero would prove nothing"
    nn.init.ones_(first.weight)
    assert group.means({**tree, "first.weight": first.weight.detach()})["second"].isnan().all()
