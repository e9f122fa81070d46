"""By hand against autograd, over several local steps."""

import dataclasses

import pytest
import torch

from prunella.attacks.engine.local_steps import linearised
from prunella.attacks.engine.matching import target_of
from prunella.core.trees import apply_mask
from prunella.core.types import ServerView
from prunella.tasks.task import Task, initial
from tests.attacks.engine.test_matching import random_mask

TASK = Task("cnn", (1, 8, 8), 10)


@pytest.mark.parametrize("steps, examples", [(1, 4), (3, 6), (4, 5)])
@pytest.mark.parametrize("momentum, decay", [(0.0, 0.0), (0.9, 0.01)])
@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize("soft", [False, True])
def test_the_walk_and_its_way_back_are_autograd_s(steps, examples, momentum, decay, pruned, soft) -> None:
    generator = torch.Generator().manual_seed(0)
    params, _ = initial(TASK, seed=0)
    mask = random_mask(params) if pruned else None
    params = apply_mask(params, mask) if mask else params
    update = {name: torch.randn(t.shape, generator=generator) for name, t in params.items()}
    view = ServerView(
        params, update, mask=mask, num_examples=examples, steps=steps, batch_size=2 if steps > 1 else 4,
        learning_rate=0.2, momentum=momentum, weight_decay=decay,
    )  # fmt: skip
    target = target_of(view, TASK.build().double(), True, 64)
    target = dataclasses.replace(
        target,
        params={n: p.detach().double().requires_grad_() for n, p in target.params.items()},
        flat=target.flat.double(),
    )
    assert target.network is not None and target.plan.images == examples
    x = torch.rand((examples, 1, 8, 8), generator=generator).double()
    y = torch.randint(0, 10, (examples,), generator=generator)
    if soft:
        y = torch.randn((examples, 10), generator=generator).double().softmax(dim=1)
    flat, pullback = linearised(target, x, y)
    plain_flat, plain_pullback = linearised(dataclasses.replace(target, network=None), x, y)
    slope = torch.randn(flat.shape, generator=generator).double()
    torch.testing.assert_close(flat, plain_flat, rtol=1e-9, atol=1e-12)
    for found, expected in zip(pullback(slope), plain_pullback(slope), strict=True):
        assert (found is None) == (expected is None)
        if expected is not None:
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_a_model_without_rules_is_attacked_by_autograd(view: ServerView) -> None:
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.GELU(), torch.nn.Linear(64, 10))
    params = {name: p.detach() for name, p in module.named_parameters()}
    view = ServerView(params, params, num_examples=1, steps=1, batch_size=1, learning_rate=0.1)
    target = target_of(view, module, True, 64)
    assert target.network is None
    flat, pullback = linearised(target, torch.rand(1, 1, 8, 8), torch.tensor([3]))
    assert flat.shape == (650,) and pullback(flat)[0].abs().sum() > 0
