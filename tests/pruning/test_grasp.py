import torch
from torch import nn
from torch.func import functional_call

from prunella.pruning.grasp import grasp, hessian_gradient


def network():
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    x, y = torch.rand(6, 4, dtype=torch.float64), torch.tensor([0, 1, 1, 0, 1, 0])
    params = {n: p.detach() for n, p in net.named_parameters()}
    return params, lambda tree: nn.functional.cross_entropy(functional_call(net, tree, (x,)), y)


def flat(tree):
    return torch.cat([t.reshape(-1) for t in tree.values()])


def test_the_product_equals_that_with_the_explicit_hessian() -> None:
    params, loss = network()
    sizes = [t.numel() for t in params.values()]

    def of_flat(vector):
        parts = torch.split(vector, sizes)
        return loss({n: p.reshape(t.shape) for (n, t), p in zip(params.items(), parts, strict=True)})

    w = flat(params)
    hessian = torch.autograd.functional.hessian(of_flat, w)
    gradient = torch.autograd.functional.jacobian(of_flat, w)
    assert torch.allclose(flat(hessian_gradient(params, loss)), hessian @ gradient, atol=1e-12)
    assert torch.allclose(flat(grasp(params, loss)), -w * (hessian @ gradient), atol=1e-12)
    assert float((hessian @ gradient).abs().max()) > 1e-3


def test_removing_the_highest_keeps_more_gradient_flow_than_removing_the_lowest() -> None:
    params, loss = network()
    scores = flat(grasp(params, loss))
    sizes = [t.numel() for t in params.values()]

    def flow(without: int) -> float:
        vector = flat(params).clone()
        # A small step towards removal: the score is first order.
        vector[without] *= 0.99
        parts = torch.split(vector, sizes)
        here = {n: p.reshape(t.shape).requires_grad_() for (n, t), p in zip(params.items(), parts, strict=True)}
        return float(sum(g.square().sum() for g in torch.autograd.grad(loss(here), list(here.values()))))

    assert flow(int(scores.argmax())) > flow(int(scores.argmin()))
