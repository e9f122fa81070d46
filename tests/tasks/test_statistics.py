import pytest
import torch
from torch import nn

from prunella.core.trees import map_trees
from prunella.tasks.statistics import batch_statistics
from prunella.tasks.task import Task, initial


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Dropout(0.5), nn.Flatten(), nn.Linear(108, 2))


def test_it_is_the_mean_of_the_batches_own_statistics_whatever_was_there_before() -> None:
    module = network()
    params = {n: p.detach() for n, p in module.named_parameters()}
    buffers = {"1.running_mean": torch.full((3,), 9.0), "1.running_var": torch.full((3,), 9.0)}
    batches = [torch.randn(4, 1, 8, 8), torch.randn(4, 1, 8, 8), 5 + torch.randn(2, 1, 8, 8)]
    before, given = map_trees(torch.clone, dict(module.named_buffers())), map_trees(torch.clone, buffers)
    found = batch_statistics(module, params, buffers, batches)
    shown = [module[0](x).detach().transpose(0, 1).flatten(1) for x in batches]
    mean = sum(s.mean(1) for s in shown) / 3
    var = sum(s.var(1, unbiased=True) for s in shown) / 3
    assert torch.allclose(found["1.running_mean"], mean, atol=1e-5)
    assert torch.allclose(found["1.running_var"], var, atol=1e-4)
    assert module.training and module[1].momentum == 0.1
    assert all(torch.equal(t, before[n]) for n, t in module.named_buffers())
    assert all(torch.equal(t, given[n]) for n, t in buffers.items())


def test_dropout_is_off_and_nothing_is_drawn() -> None:
    module = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(4))
    params = dict(module.named_parameters())
    buffers = {name: tensor for name, tensor in module.named_buffers() if tensor.is_floating_point()}
    state = torch.get_rng_state()
    found = batch_statistics(module, params, buffers, [torch.ones(8, 4)])
    assert torch.equal(torch.get_rng_state(), state) and torch.equal(found["1.running_mean"], torch.ones(4))


@pytest.mark.parametrize("model", ["cnn", "resnet10"])
def test_a_model_s_float_buffers_come_back_and_those_without_have_none(model: str) -> None:
    task = Task(model, (1, 8, 8), 10)
    params, buffers = initial(task, 0)
    found = batch_statistics(task.build(), params, buffers, [torch.rand(4, 1, 8, 8)])
    assert found.keys() == buffers.keys()
    assert (model == "cnn") == (not found)
