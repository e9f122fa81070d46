"""Norms of the representation's Jacobian: whichever way they are found, they are those of a backward pass a unit."""

import pytest
import torch
from torch import nn

import prunella.tasks.sensitivity
from prunella.core.errors import ConfigError
from prunella.core.trees import Tree
from prunella.tasks.models.precode import with_bottleneck
from prunella.tasks.sensitivity import representation_sensitivity
from prunella.tasks.task import Task, initial

X = torch.rand(5, 1, 4, 4, generator=torch.Generator().manual_seed(1))


def net_of(*layers: nn.Module) -> tuple[nn.Module, Tree]:
    torch.manual_seed(0)
    net = nn.Sequential(*layers).double()
    return net, {name: p.detach().clone() for name, p in net.named_parameters()}


class Residual(nn.Module):
    """A convolution beside what it reads, and ``gate`` on the convolution."""

    def __init__(self, gate: nn.Module) -> None:
        super().__init__()
        self.conv, self.gate = nn.Conv2d(2, 2, 3, padding=1), gate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.gate(self.conv(x))


class Compared(nn.Module):
    """A ReLU that hides what is not a number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, x, torch.zeros_like(x))


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which way was gone, once a call."""
    went: list[str] = []
    before = prunella.tasks.sensitivity._by_pixels

    def by_pixels(*args: object) -> torch.Tensor | None:
        found = before(*args)  # type: ignore[arg-type]
        went.append("units" if found is None else "pixels")
        return found

    monkeypatch.setattr(prunella.tasks.sensitivity, "_by_pixels", by_pixels)
    return went


def one_by_one(net: nn.Module, body: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The oracle: gradients of sum_b r_bf, unit by unit."""
    image = x.clone().requires_grad_()
    r = body(image)
    columns = [torch.autograd.grad(r[:, f].sum(), image, retain_graph=True)[0] for f in range(r.shape[1])]
    return torch.stack([c.flatten(1).norm(dim=1) for c in columns], dim=1)


def conv(*first: nn.Module) -> list[nn.Module]:
    return [nn.Conv2d(2, 6, 3, padding=1), *first, nn.Flatten(), nn.LazyLinear(3)]


MODELS: dict[str, tuple[list[nn.Module], str]] = {
    "strided": (conv(nn.Tanh(), nn.Conv2d(6, 8, 3, stride=2), nn.ReLU()), "pixels"),
    "pooled": (conv(nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 64, 2), nn.GELU(), nn.AvgPool2d(2, 1)), "pixels"),
    "dilated": (conv(nn.Sigmoid(), nn.Conv2d(6, 20, 2, dilation=2, padding=1)), "pixels"),
    "residual": ([Residual(nn.Tanh()), Residual(nn.ReLU()), *conv(nn.Sigmoid())], "pixels"),
    "group norm": (conv(nn.GroupNorm(1, 6), nn.ReLU(), nn.Conv2d(6, 1, 3)), "units"),
    "batch norm": (conv(nn.BatchNorm2d(6), nn.ReLU()), "units"),
    "linear": ([nn.Flatten(), nn.Linear(162, 7), nn.Tanh(), nn.Linear(7, 3)], "units"),
    "hidden": (conv(Compared(), nn.Conv2d(6, 8, 3)), "units"),
    "half hidden": ([Residual(Compared()), Residual(Compared()), *conv(nn.Sigmoid())], "units"),
    "padding only": (conv(nn.Tanh(), nn.Conv2d(6, 4, 1, padding=1)), "units"),
}


@pytest.mark.parametrize("name", list(MODELS))
def test_equals_one_backward_pass_a_unit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layers, way = MODELS[name]
    went = counted(monkeypatch)
    monkeypatch.setattr(prunella.tasks.sensitivity, "PROBES", 4)
    x = torch.rand(3, 2, 9, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    nn.Sequential(*layers).double()(x)  # the lazy layer learns its size
    net, params = net_of(*layers)
    buffers = {key: t.clone() for key, t in net.named_buffers()}
    weight, features, norms = representation_sensitivity(net, params, {}, x)
    assert all(torch.equal(t, buffers[key]) for key, t in net.named_buffers())
    expected = one_by_one(net, net[:-1], x)  # type: ignore[index]
    assert went == [way] and weight == f"{len(layers) - 1}.weight"
    assert torch.allclose(features, net[:-1](x)) and not features.requires_grad  # type: ignore[index]
    torch.testing.assert_close(norms, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("model", ["cnn", "lenet"])
def test_a_model_of_the_registry_in_float32(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    went = counted(monkeypatch)
    task = Task(model, (1, 16, 16) if model == "cnn" else (3, 32, 32), 10)
    params, buffers = initial(task, 0)
    x = torch.rand(2, *task.shape, generator=torch.Generator().manual_seed(3))
    found = representation_sensitivity(task.build(), params, buffers, x)
    monkeypatch.setattr(prunella.tasks.sensitivity, "_by_pixels", lambda *_: None)
    _, features, norms = representation_sensitivity(task.build(), params, buffers, x)
    assert went == ["pixels" if model == "cnn" else "units"]
    assert torch.equal(found[1], features)
    assert representation_sensitivity(task.build(), params, buffers, x[:0])[2].shape == (0, features.shape[1])
    torch.testing.assert_close(found[2], norms, rtol=1e-4, atol=1e-6)


def test_a_model_that_draws_is_asked_about_one_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    went = counted(monkeypatch)
    features = lambda s, c: nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.Flatten(), nn.Linear(128, c))  # noqa: E731
    torch.manual_seed(0)
    net = with_bottleneck(features, 4)((1, 4, 4), 3)
    params = {name: p.detach().clone() for name, p in net.named_parameters()}
    found = []
    for replaced in (None, lambda *_: None):
        if replaced is not None:
            monkeypatch.setattr(prunella.tasks.sensitivity, "_by_pixels", replaced)
        torch.manual_seed(1)
        found.append((*representation_sensitivity(net, params, {}, X)[1:], torch.get_rng_state()))
    assert went == ["pixels"] and net[2].bottleneck.divergence is None  # type: ignore[union-attr, index]
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][2], found[1][2])
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-4, atol=1e-6)


def test_a_model_without_a_linear_layer_has_no_representation() -> None:
    net, params = net_of(nn.Conv2d(1, 3, 4), nn.Flatten())
    with pytest.raises(ConfigError, match="linear"):
        representation_sensitivity(net, params, {}, X.double())


def test_layers_stay_in_the_mode_that_they_are_in() -> None:
    """A frozen batch norm reads its running statistics, as where the model is trained."""
    net, params = net_of(nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 2))
    net[1].eval()  # type: ignore[index]
    _, features, norms = representation_sensitivity(net, params, {}, X.double())
    assert not net[1].training and torch.allclose(features, net[:-1](X.double()))  # type: ignore[index]
    torch.testing.assert_close(norms, one_by_one(net, net[:-1], X.double()))  # type: ignore[index]
