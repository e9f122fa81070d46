import pytest
import torch
from torch import nn
from torch.func import functional_call

from prunella.pruning.snip import snip


def test_scores_are_the_slope_of_the_loss_in_the_gates_by_finite_differences() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3)).double()
    params = {n: p.detach() for n, p in net.named_parameters()}
    x, y = torch.rand(5, 1, 4, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1])

    def loss(tree):
        return nn.functional.cross_entropy(functional_call(net, tree, (x,)), y)

    scores, step = snip(params, loss), 1e-5
    for name, tensor in params.items():
        for index in range(tensor.numel()):
            values = []
            for gate in (1 + step, 1 - step):
                moved = tensor.clone().reshape(-1)
                moved[index] *= gate
                values.append(float(loss({**params, name: moved.reshape(tensor.shape)})))
            slope = abs(values[0] - values[1]) / (2 * step)
            assert float(scores[name].reshape(-1)[index]) == pytest.approx(slope, rel=1e-4, abs=1e-8)


def test_the_parameters_are_left_alone_and_an_unused_one_scores_zero() -> None:
    params = {"w": torch.tensor([2.0]), "unused": torch.ones(3)}
    scores = snip(params, lambda p: p["w"].sum())
    assert scores["unused"].tolist() == [0.0] * 3 and scores["w"].tolist() == [2.0]
    assert not params["w"].requires_grad
