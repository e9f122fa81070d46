"""The gradient and its derivative by hand against autograd's, on every kind of model; what cannot be traced."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from prunella.attacks.engine.network import network_of
from prunella.tasks.models.resnet import BasicBlock
from prunella.tasks.task import Task


class Odd(nn.Module):
    """Two layers, used as ``way`` says."""

    def __init__(self, way) -> None:
        super().__init__()
        self.one, self.two, self.way = nn.Linear(4, 4), nn.Linear(4, 4), way
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.way(self, x)


def small_resnet() -> nn.Module:
    stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
    blocks = [BasicBlock(4, 4, 1), BasicBlock(4, 6, 2)]
    return nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5))


MODELS = {
    "resnet": small_resnet,
    "cnn": lambda: Task("cnn", (3, 12, 12), 5).build(),
    "lenet-zhu": lambda: Task("lenet-zhu", (3, 12, 12), 5).build(),
    "vgg-4": lambda: Task("vgg-4", (3, 12, 12), 5).build(),
    "cnn6": lambda: Task("cnn6", (3, 12, 12), 5).build(),
}


@pytest.mark.parametrize("soft", ["", "probabilities", "weighted"])
@pytest.mark.parametrize("name", MODELS)
def test_by_hand_is_autograd(name: str, soft: str) -> None:
    torch.manual_seed(0)
    module = MODELS[name]().double()
    network = network_of(module)
    assert network is not None
    w = {n: p.detach().requires_grad_() for n, p in module.named_parameters()}
    v = {n: torch.randn_like(p) for n, p in w.items()}
    x = torch.rand(3, 3, 12, 12, dtype=torch.float64, requires_grad=True)
    y: Tensor = torch.tensor([0, 4, 2])
    if soft:
        y = torch.rand(3, 5, dtype=torch.float64).softmax(dim=1)
        y = (y * torch.tensor([[2.0], [0.0], [0.3]]) if soft == "weighted" else y).requires_grad_()
    loss = cross_entropy(functional_call(module, w, (x,)), y)
    gradient = torch.autograd.grad(loss, list(w.values()), create_graph=True)
    along = sum((g * d).sum() for g, d in zip(gradient, v.values(), strict=True))
    slopes = torch.autograd.grad(along, [x, *w.values()] + ([y] if soft else []), materialize_grads=True)

    plain = {n: p.detach() for n, p in w.items()}
    at = network.gradient(plain, x.detach(), y.detach())
    on_x, on_y, curvature = network.derivative(plain, at, v, curved=True)
    for found, expected in zip((at.gradient[n] for n in w), gradient, strict=True):
        torch.testing.assert_close(found, expected.detach())
    torch.testing.assert_close(on_x, slopes[0])
    for found, expected in zip((curvature[n] for n in w), slopes[1:], strict=False):
        torch.testing.assert_close(found, expected)
    if soft:
        torch.testing.assert_close(on_y, slopes[-1])
    assert network.derivative(plain, at, v, curved=False)[2] == {}


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: m.two(m.one(m.one(x))),
        lambda m, x: m.two(m.one(x).softmax(1)),
        lambda m, x: m.two(m.one(x)) if x.sum() > 0 else m.one(m.two(x)),
        lambda m, x: m.one(x),
        lambda m, x: (m.one(x), m.two(x)),
        lambda m, x: torch.add(m.one(x), m.two(x), alpha=2),
        lambda m, x: m.one(x) + m.two(m.relu(x)),
    ],
    ids=["twice", "softmax", "branches", "unused", "tuple", "alpha", "in-place"],
)
def test_what_is_no_plain_graph_of_known_layers_is_left_to_autograd(forward) -> None:
    assert network_of(Odd(forward)) is None


def test_a_sum_of_two_layers_is_a_network() -> None:
    assert network_of(Odd(lambda m, x: m.two(x) + m.one(x))) is not None
