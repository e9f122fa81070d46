import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from prunella.core.randomness import rehearsal, stream
from prunella.tasks.data import batches, make_task
from prunella.tasks.datasets.digits import split
from prunella.tasks.models.cnn import cnn
from prunella.tasks.task import initial
from prunella.tasks.training import Sgd, evaluate, loss_and_gradient, sgd_step

TASK = make_task("cnn", "digits", None)


def test_is_small(parameters):
    assert parameters(cnn, (1, 8, 8), 10) == 21_882


def test_learns_digits_in_fifty_steps():
    train, test = split()
    module = TASK.build()
    params, buffers = initial(TASK, seed=0)
    before = evaluate(module, params, buffers, test.x, test.y).accuracy
    for batch in batches(train, 64, 50, rehearsal(0, purpose="batch")):
        gradient = loss_and_gradient(module, params, buffers, batch.x, batch.y)[1]
        params, _ = sgd_step(params, gradient, {}, Sgd(0.1), None)
    assert before < 0.3 < 0.9 < evaluate(module, params, buffers, test.x, test.y).accuracy


def test_gradient_matching_rebuilds_one_image():
    """The positive control: who holds the gradient of one digit holds the digit."""
    module, (params, _), digits = TASK.build(), initial(TASK, seed=0), split()[1]
    x, y = digits.x[:1], digits.y[:1]
    leaves = {name: tensor.requires_grad_() for name, tensor in params.items()}

    def gradient(image: torch.Tensor) -> torch.Tensor:
        loss = cross_entropy(functional_call(module, leaves, (image,)), y)
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(leaves.values()), create_graph=True)])

    target = gradient(x).detach()
    guess = torch.rand(x.shape, generator=stream(0, purpose="guess")).requires_grad_()
    optimiser = torch.optim.Adam([guess], 0.1)
    start = (guess.detach() - x).square().mean()
    for _ in range(150):
        optimiser.zero_grad()
        (1 - torch.cosine_similarity(gradient(guess), target, dim=0)).backward()
        optimiser.step()
    assert (guess.detach() - x).square().mean() < 1e-3 < 0.05 < start
