import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from prunella.core.errors import ConfigError, DataError, KeyMismatch
from prunella.core.trees import map_trees
from prunella.tasks.training import Sgd, evaluate, loss_and_gradient, mode, sgd_step

SETTINGS = [Sgd(0.1), Sgd(0.1, momentum=0.9), Sgd(0.05, weight_decay=0.1), Sgd(0.1, momentum=0.5, weight_decay=0.01)]


def _generator(seed=0):
    return torch.Generator().manual_seed(seed)


def _batch(count=6):
    return torch.rand(count, 1, 4, 4, generator=_generator(1)), torch.arange(count) % 3


def _normed():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))


def _trees(module):
    params = {n: p.detach().clone() for n, p in module.named_parameters()}
    return params, {n: b.clone() for n, b in module.named_buffers() if b.is_floating_point()}


def _random_tree(seed):
    generator = _generator(seed)
    return {"a": torch.randn(3, 2, generator=generator), "b": torch.randn((), generator=generator)}


def test_gradient_loss_and_buffers_are_autograds_on_the_module():
    module, (x, y) = _normed(), _batch()
    params, buffers = _trees(module)
    loss, gradient, after = loss_and_gradient(_normed(), params, buffers, x, y)
    expected = cross_entropy(module.train()(x), y)
    expected.backward()
    assert torch.allclose(loss, expected) and not loss.requires_grad
    for name, parameter in module.named_parameters():
        assert torch.allclose(gradient[name], parameter.grad, atol=1e-7) and not gradient[name].requires_grad
    assert after.keys() == buffers.keys()
    assert all(torch.allclose(after[name], module.get_buffer(name)) for name in after)
    assert not torch.equal(after["1.running_mean"], buffers["1.running_mean"])


@pytest.mark.parametrize("training", [True, False])
def test_every_layer_is_in_one_mode_within_and_in_its_own_afterwards(training):
    module = _normed().train()
    module[1].eval()
    before = [layer.training for layer in module.modules()]
    with pytest.raises(ZeroDivisionError), mode(module, training):
        assert all(layer.training == training for layer in module.modules())
        raise ZeroDivisionError
    assert [layer.training for layer in module.modules()] == before == [True, True, False, True, True]


def test_nothing_given_is_changed():
    module = _normed().eval()
    params, buffers = _trees(module)
    kept, kept_buffers = map_trees(torch.clone, params), map_trees(torch.clone, buffers)
    state = {n: t.clone() for n, t in module.state_dict().items()}
    loss_and_gradient(module, params, buffers, *_batch())
    evaluate(module.train(), params, buffers, *_batch())
    assert module.training and all(torch.equal(state[n], t) for n, t in module.state_dict().items())
    assert all(torch.equal(params[n], kept[n]) and not params[n].requires_grad for n in params)
    assert all(torch.equal(buffers[n], kept_buffers[n]) for n in buffers)


def test_an_unused_parameter_has_zero_gradient():
    class Spare(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.spare = nn.Linear(16, 3), nn.Linear(2, 2)

        def forward(self, x):
            return self.used(x.flatten(1))

    params, buffers = _trees(Spare())
    gradient = loss_and_gradient(Spare(), params, buffers, *_batch())[1]
    assert torch.count_nonzero(gradient["spare.weight"]) == 0 < torch.count_nonzero(gradient["used.weight"])


@pytest.mark.parametrize("sgd", SETTINGS)
def test_sgd_is_torchs(sgd):
    params, velocity = _random_tree(0), {}
    leaves = {n: p.clone().requires_grad_() for n, p in params.items()}
    optimiser = torch.optim.SGD(
        leaves.values(), lr=sgd.learning_rate, momentum=sgd.momentum, weight_decay=sgd.weight_decay
    )
    for step in range(1, 6):
        gradient = _random_tree(step)
        for name, leaf in leaves.items():
            leaf.grad = gradient[name].clone()
        optimiser.step()
        params, velocity = sgd_step(params, gradient, velocity, sgd, None)
        assert all(torch.equal(params[n], leaves[n].detach()) for n in params)


@pytest.mark.parametrize("sgd", SETTINGS)
def test_pruned_weights_stay_exactly_zero(sgd):
    mask = {"a": torch.tensor([[True, False], [False, True], [True, True]]), "b": torch.tensor(False)}
    params, velocity = _random_tree(0), {}
    for step in range(1, 4):  # three dense steps first, so that velocity and weights must be forgotten
        params, velocity = sgd_step(params, _random_tree(step), velocity, sgd, None)
    for step in range(4, 9):
        params, velocity = sgd_step(params, _random_tree(step), velocity, sgd, mask)
        assert not any(velocity[n][~mask[n]].any() for n in velocity)  # a regrown weight starts at rest
        assert all(torch.equal(params[n] != 0, mask[n]) for n in params)


def test_a_full_mask_changes_nothing():
    mask = {n: torch.ones_like(t, dtype=torch.bool) for n, t in _random_tree(0).items()}
    plain = sgd_step(_random_tree(0), _random_tree(1), _random_tree(2), SETTINGS[3], None)
    masked = sgd_step(_random_tree(0), _random_tree(1), _random_tree(2), SETTINGS[3], mask)
    assert all(torch.equal(plain[i][n], masked[i][n]) for i in (0, 1) for n in plain[0])


def test_a_step_can_be_differentiated_through():
    gradient = {n: t.requires_grad_() for n, t in _random_tree(1).items()}
    params, velocity = sgd_step(_random_tree(0), gradient, {}, SETTINGS[3], None)
    params, _ = sgd_step(params, gradient, velocity, SETTINGS[3], None)
    slope = torch.autograd.grad(params["b"], gradient["b"])[0]
    lr, mu, wd = 0.1, 0.5, 0.01
    assert torch.allclose(slope, torch.tensor(-lr + -lr * (mu + 1 - wd * lr)))


def test_no_momentum_keeps_no_velocity():
    assert sgd_step(_random_tree(0), _random_tree(1), {}, Sgd(0.1), None)[1] == {}


def test_a_gradient_of_other_names_is_refused():
    with pytest.raises(KeyMismatch):
        sgd_step(_random_tree(0), {"a": torch.zeros(3, 2)}, {}, Sgd(0.1), None)


@pytest.mark.parametrize("wrong", [{"learning_rate": 0.0}, {"momentum": 1.0}, {"weight_decay": -1.0}])
def test_settings_out_of_range(wrong):
    with pytest.raises(ConfigError):
        Sgd(**{"learning_rate": 0.1, **wrong})


def test_evaluation_is_the_naive_one_and_batching_does_not_matter():
    module, (x, y) = _normed(), _batch(7)
    params, buffers = _trees(module)
    logits = module.eval()(x)
    for batch in (2, 7, 512):
        result = evaluate(module, params, buffers, x, y, batch=batch)
        assert abs(result.loss - cross_entropy(logits, y).item()) < 1e-6
        assert result.accuracy == (logits.argmax(1) == y).double().mean().item()
        assert result.examples == 7


def test_evaluating_on_nothing_is_an_error():
    module = _normed()
    with pytest.raises(DataError):
        evaluate(module, *_trees(module), torch.zeros(0, 1, 4, 4), torch.zeros(0, dtype=torch.int64))
