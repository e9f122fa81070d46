import dataclasses

import pytest
import torch

from prunella.attacks import ATTACKS
from prunella.attacks.loki import KERNEL, for_client
from prunella.attacks.score.control import undefended_view
from prunella.attacks.score.leakage import psnr
from prunella.core.errors import AttackError
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch, Reconstruction, ServerView
from prunella.tasks.task import Task, initial
from tests.attacks.conftest import SHAPES

ATTACK = ATTACKS["loki"]


def run(view: ServerView, task: Task) -> Reconstruction:
    return ATTACK.reconstruct(view, task, ATTACK.settings(), stream(0, purpose="attack"))


def recovered(truth: PrivateBatch, found: Reconstruction) -> float:
    """Share of the images that some reconstruction is above 20 dB of."""
    return sum(max(psnr(x.expand_as(found.x), found.x)) > 20 for x in truth.x[:, None]) / len(truth.x)


@pytest.mark.parametrize(
    "data, model", [("mnist", "cnn"), pytest.param("cifar10", "lenet_zhu", marks=pytest.mark.slow)]
)
def test_most_images_of_each_of_three_clients_out_of_the_mean_of_their_updates(photographs, data, model) -> None:
    """Each client's images come out for its own kernel, and not for another's."""
    everybody, task = photographs(data, 48), Task(f"prunella.attacks.loki:{model}", SHAPES[data], 10)
    params, buffers = initial(task, 0)
    truths = [PrivateBatch(everybody.x[i * 16 :][:16], everybody.y[i * 16 :][:16]) for i in range(3)]
    views = [undefended_view(task, for_client(params, i), buffers, truth) for i, truth in enumerate(truths)]
    mean = {name: sum(view.update[name] for view in views) / 3 for name in params}
    for i, truth in enumerate(truths):
        found = run(dataclasses.replace(views[i], update=mean), task)
        assert len(found.x) <= 16 and recovered(truth, found) >= 0.8 and recovered(truths[i - 1], found) <= 0.2


def test_without_kernels_of_their_own_clients_are_not_told_apart(photographs) -> None:
    """What LOKI adds to Rob: under one kernel for all, bins hold several clients' images."""
    everybody, task = photographs("mnist", 48), Task("prunella.attacks.loki:cnn", SHAPES["mnist"], 10)
    params, buffers = initial(task, 0)
    truths = [PrivateBatch(everybody.x[i * 16 :][:16], everybody.y[i * 16 :][:16]) for i in range(3)]
    views = [undefended_view(task, params, buffers, truth) for truth in truths]
    mean = {name: sum(view.update[name] for view in views) / 3 for name in params}
    found = run(dataclasses.replace(views[0], update=mean), task)
    assert recovered(truths[0], found) <= 0.6


def test_a_client_s_kernel_copies_into_its_own_channels_only() -> None:
    params, _ = initial(Task("prunella.attacks.loki:cnn", (3, 8, 8), 10), 0)
    x = torch.rand(2, 3, 8, 8)
    for client in range(4):
        out = torch.conv2d(x, for_client(params, client)[KERNEL], padding=1)
        torch.testing.assert_close(out[:, 3 * client :][:, :3], x)
        assert float(out.abs().sum()) == pytest.approx(float(x.sum()), rel=1e-5)
    with pytest.raises(AttackError, match="tells 4 clients apart"):
        for_client(params, 4)


def test_a_model_without_the_module_is_refused(view, task) -> None:
    with pytest.raises(AttackError, match="prunella.attacks.loki:cnn"):
        run(view, task)


def test_an_amplified_module_is_the_same_function_and_its_gradient_outlasts_noise(photographs) -> None:
    truth, shares = photographs("mnist", 8), []
    tasks = [Task(f"prunella.attacks.loki:{name}", SHAPES["mnist"], 10) for name in ("cnn", "amplified_cnn")]
    start = [initial(task, 0) for task in tasks]
    outputs = [torch.func.functional_call(t.build(), p, truth.x) for t, (p, _) in zip(tasks, start, strict=True)]
    torch.testing.assert_close(*outputs)
    for task, (params, buffers) in zip(tasks, start, strict=True):
        view, draw = undefended_view(task, params, buffers, truth), stream(0, purpose="noise")
        rate = view.learning_rate or 1.0
        noisy = {n: u + 0.01 * rate * torch.randn(u.shape, generator=draw) for n, u in view.update.items()}
        shares += [
            recovered(truth, run(view, task)),
            recovered(truth, run(dataclasses.replace(view, update=noisy), task)),
        ]
    assert shares[0] >= 0.8 and shares[1] == 0 and min(shares[2:]) >= 0.8
