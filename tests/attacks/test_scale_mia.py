import dataclasses

import pytest
import torch
from torch import nn

from prunella.attacks import ATTACKS
from prunella.attacks.rob import AMPLIFIED
from prunella.attacks.scale_mia import ScaleMia, codes_of, planted
from prunella.attacks.score.control import undefended_view
from prunella.attacks.score.leakage import psnr
from prunella.core.errors import AttackError
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch, Reconstruction, ServerView
from prunella.tasks.models.layers import Shape, convolutions, with_head
from prunella.tasks.task import Task, initial
from tests.attacks.conftest import SHAPES

ATTACK = ATTACKS["scale-mia"]


def plain(shape: Shape, classes: int) -> nn.Module:
    return with_head(nn.Sequential(), shape, [512], classes)


def small(shape: Shape, classes: int) -> nn.Module:
    return with_head(convolutions(shape[0], [(3, 16, False)]), shape, [512], classes)


mlp, conv = planted(plain), planted(small)
amplified = planted(plain, AMPLIFIED)


def run(view: ServerView, task: Task, iterations: int = 40) -> Reconstruction:
    return ATTACK.reconstruct(view, task, ScaleMia(iterations=iterations), stream(0, purpose="attack"))


def hits(truth: PrivateBatch, found: Reconstruction) -> int:
    return sum(max(psnr(x.expand_as(found.x), found.x)) > 20 for x in truth.x[:, None])


@pytest.mark.parametrize(
    ("data", "model"),
    [("mnist", "mlp"), ("cifar10", "mlp"), ("mnist", "conv"), pytest.param("cifar10", "conv", marks=pytest.mark.slow)],
)
def test_most_of_a_batch_of_sixteen_comes_back(photographs, data: str, model: str) -> None:
    both, task = photographs(data, 32), Task(f"{__name__}:{model}", SHAPES[data], 10)
    truth, other = PrivateBatch(both.x[:16], both.y[:16]), PrivateBatch(both.x[16:], both.y[16:])
    view = undefended_view(task, *initial(task, 0), truth)
    found = run(view, task)
    assert len(found.x) <= 16 and hits(truth, found) >= 10 and hits(other, found) <= 3


@pytest.mark.slow
def test_conv_2_gives_a_batch_of_mnist_away(photographs) -> None:
    truth, task = photographs("mnist", 16), Task("prunella.attacks.scale_mia:conv_2", SHAPES["mnist"], 10)
    view = undefended_view(task, *initial(task, 0), truth)
    assert hits(truth, run(view, task, 150)) >= 12


def test_weights_that_are_not_planted_give_nothing(photographs) -> None:
    truth, task = photographs("mnist", 16), Task(f"{__name__}:plain", SHAPES["mnist"], 10)
    assert hits(truth, run(undefended_view(task, *initial(task, 0), truth), task)) <= 3


def test_the_codes_read_are_those_of_the_images(photographs) -> None:
    truth, task = photographs("cifar10", 8), Task(f"{__name__}:mlp", SHAPES["cifar10"], 10)
    codes = codes_of(undefended_view(task, *initial(task, 0), truth), task, ScaleMia(), 8)
    nearest = torch.cdist(truth.x.flatten(1), codes).min(dim=1).values / truth.x.flatten(1).norm(dim=1)
    assert int((nearest < 1e-3).sum()) >= 5


def test_a_model_with_one_linear_layer_is_refused(view, task) -> None:
    with pytest.raises(AttackError, match="two linear layers"):
        run(view, task)


def test_amplified_weights_are_the_same_function_and_their_gradient_outlasts_noise(photographs) -> None:
    truth, found = photographs("mnist", 8), []
    tasks = [Task(f"{__name__}:{name}", SHAPES["mnist"], 10) for name in ("mlp", "amplified")]
    start = [initial(task, 0) for task in tasks]
    outputs = [torch.func.functional_call(t.build(), p, truth.x) for t, (p, _) in zip(tasks, start, strict=True)]
    torch.testing.assert_close(*outputs)
    for task, (params, buffers) in zip(tasks, start, strict=True):
        view, draw = undefended_view(task, params, buffers, truth), stream(0, purpose="noise")
        rate = view.learning_rate or 1.0
        noisy = {n: u + 0.01 * rate * torch.randn(u.shape, generator=draw) for n, u in view.update.items()}
        found.append(hits(truth, run(dataclasses.replace(view, update=noisy), task)))
    assert found[0] <= 1 and found[1] >= 6
