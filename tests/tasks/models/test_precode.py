"""The bottleneck: its loss against the formula written out, its draws, its place in a model."""

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from prunella.core.errors import ConfigError
from prunella.core.randomness import rehearsal
from prunella.tasks.models import MODELS
from prunella.tasks.models.precode import BETA, WIDTH, Bottleneck, with_bottleneck
from prunella.tasks.per_example import per_example_gradients
from prunella.tasks.task import Task, initial
from prunella.tasks.training import drawing, loss_and_gradient

TASK = Task("precode-cnn", (1, 8, 8), 10)
X = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([1, 2, 3, 4, 5])
ENCODE = "2.0.bottleneck.encode.weight"


@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith("precode-")])
def test_the_cost_in_parameters_is_what_it_says(name: str) -> None:
    plain, params = (initial(Task(n, (3, 32, 32), 10), 0)[0] for n in (name.removeprefix("precode-"), name))
    features = next(t.shape[1] for n, t in params.items() if n.endswith("bottleneck.encode.weight"))
    extra = sum(t.numel() for t in params.values()) - sum(t.numel() for t in plain.values())
    assert extra == WIDTH * (3 * features + 2) + features


def test_the_gradient_is_that_of_cross_entropy_plus_beta_kl_for_a_batch_and_for_single_examples() -> None:
    net, (params, _) = TASK.build(), initial(TASK, 0)
    leaves = {name: p.clone().requires_grad_() for name, p in params.items()}
    torch.manual_seed(1)
    _, found, _ = loss_and_gradient(net, params, {}, X, Y)
    torch.manual_seed(1)
    layer = next(m for m in net.modules() if isinstance(m, Bottleneck))
    seen: list[torch.Tensor] = []
    handle = layer.encode.register_forward_hook(lambda m, inputs, output: seen.append(output))
    loss = cross_entropy(functional_call(net, leaves, (X,)), Y)
    handle.remove()
    mean, log_variance = seen[0].chunk(2, dim=1)
    kl = 0.5 * (mean.square() + log_variance.exp() - log_variance - 1).sum(1).mean()
    expected = torch.autograd.grad(loss + BETA * kl, list(leaves.values()))
    assert all(torch.allclose(found[n], g, atol=1e-6) for n, g in zip(leaves, expected, strict=True))
    without = torch.autograd.grad(cross_entropy(functional_call(net, leaves, (X,)), Y), list(leaves.values()))
    assert not torch.allclose(found[ENCODE], without[list(leaves).index(ENCODE)])
    layer.beta = 1e6  # the divergence alone is left: it needs no draw, so single examples average to the batch
    each = torch.cat([c[ENCODE] for c in per_example_gradients(net, params, {}, X, Y)])
    _, whole, _ = loss_and_gradient(net, params, {}, X, Y)
    assert torch.allclose(each.mean(0), whole[ENCODE], rtol=1e-3, atol=1.0)
    assert float(whole[ENCODE].abs().max()) > 1e3


def test_draws_repeat_with_their_generator_and_leave_the_global_one_alone() -> None:
    net, (params, buffers) = TASK.build(), initial(TASK, 0)

    def gradient(seed: int) -> torch.Tensor:
        with drawing(net, rehearsal(seed, purpose="x")):
            return torch.cat([t.flatten() for t in loss_and_gradient(net, params, buffers, X, Y)[1].values()])

    before = torch.get_rng_state()
    assert torch.equal(gradient(0), gradient(0)) and not torch.equal(gradient(0), gradient(1))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(not isinstance(layer, Bottleneck) or layer.source is None for layer in net.modules())
    plain, g = Task("cnn", (1, 8, 8), 10).build(), rehearsal(0, purpose="x")
    with drawing(plain, g):
        loss_and_gradient(plain, *initial(Task("cnn", (1, 8, 8), 10), 0), X, Y)
    assert torch.equal(g.uniform(3), rehearsal(0, purpose="x").uniform(3))  # nothing was drawn
    net.eval()
    assert torch.equal(net(X), net(X))


def test_a_model_without_a_linear_layer_inside_is_refused() -> None:
    for builder in (lambda s, c: nn.Conv2d(1, 1, 1), lambda s, c: nn.Linear(4, 2)):
        with pytest.raises(ConfigError, match="linear"):
            with_bottleneck(builder)((1, 2, 2), 2)
    with pytest.raises(ConfigError, match="width"):
        Bottleneck(3, 0)
    assert BETA == 1e-3
