import torch

from prunella.tasks.models.lenet import ZHU_RANGE, lenet, lenet_zhu


def test_zhu_has_the_published_number_of_parameters(parameters):
    assert parameters(lenet_zhu, (3, 32, 32), 10) == 15_826
    assert round(2 * 4 * 15_826 / 2**20, 3) == 0.121


def test_lenet_has_the_published_number_of_parameters(parameters):
    assert parameters(lenet, (3, 32, 32), 10) == 62_006


def test_zhu_draws_all_weights_uniformly():
    weights = torch.cat([p.flatten() for p in lenet_zhu((3, 32, 32), 10).parameters()])
    assert weights.abs().max() <= ZHU_RANGE
    assert abs(weights.std().item() - ZHU_RANGE / 3**0.5) < 0.01


def test_zhu_is_twice_differentiable():
    x = torch.rand(1, 3, 32, 32, requires_grad=True)
    gradient = torch.autograd.grad(lenet_zhu((3, 32, 32), 10)(x)[0, 0], x, create_graph=True)[0]
    assert torch.autograd.grad(gradient.sum(), x)[0].abs().sum() > 0
