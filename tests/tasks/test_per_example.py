"""Single gradients against a loop and against Opacus."""

import pytest
import torch
from opacus import GradSampleModule
from torch import nn
from torch.nn.functional import cross_entropy

import tasks.per_example
from core.errors import DefenseError
from core.trees import Tree
from tasks.per_example import per_example_gradients


def net_of(*layers: nn.Module) -> tuple[nn.Sequential, Tree]:
    torch.manual_seed(0)
    net = nn.Sequential(*layers)
    return net, {name: p.detach().clone() for name, p in net.named_parameters()}


X, Y = torch.rand(5, 1, 4, 4, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 0, 1])


def conv() -> tuple[nn.Sequential, Tree]:
    return net_of(nn.Conv2d(1, 3, 3), nn.GroupNorm(1, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4), nn.Linear(4, 3))


@pytest.mark.parametrize("floats", [1 << 26, 300, 1])
def test_equals_a_loop_whatever_the_chunk(monkeypatch: pytest.MonkeyPatch, floats: int) -> None:
    monkeypatch.setattr(tasks.per_example, "FLOATS", floats)
    net, params = conv()
    chunks = list(per_example_gradients(net, params, {}, X, Y))
    together = {name: torch.cat([chunk[name] for chunk in chunks]) for name in params}
    for i in range(len(Y)):
        net.zero_grad()
        cross_entropy(net(X[i : i + 1]), Y[i : i + 1]).backward()
        for name, p in net.named_parameters():
            torch.testing.assert_close(together[name][i], p.grad, rtol=1e-4, atol=1e-6)


def test_equals_opacus() -> None:
    net, params = conv()
    theirs = GradSampleModule(net, loss_reduction="sum")
    cross_entropy(theirs(X), Y, reduction="sum").backward()
    (ours,) = per_example_gradients(conv()[0], params, {}, X, Y)
    for name, p in theirs._module.named_parameters():
        torch.testing.assert_close(ours[name], p.grad_sample, rtol=1e-4, atol=1e-6)


def test_no_example_no_gradient_and_batch_norm_is_refused() -> None:
    net, params = conv()
    assert list(per_example_gradients(net, params, {}, X[:0], Y[:0])) == []
    mixed, params = net_of(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
    with pytest.raises(DefenseError, match="batch norm"):
        list(per_example_gradients(mixed, params, {}, X, Y))
