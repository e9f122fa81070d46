import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import unfold

from prunella.attacks import ATTACKS
from prunella.attacks.april import April, Embedding, embeddings, learnt_positions, solutions
from prunella.attacks.engine.case import ViewSetting
from prunella.attacks.engine.matching import target_of
from prunella.attacks.portfolio import CANDIDATES, Portfolio
from prunella.attacks.score.control import matched_view, undefended_view
from prunella.attacks.score.leakage import psnr
from prunella.core.errors import AttackError
from prunella.core.randomness import stream
from prunella.core.trees import Tree
from prunella.core.types import PrivateBatch, Reconstruction, ServerView
from prunella.library.module import own_task
from prunella.tasks.models.layers import Shape
from prunella.tasks.task import Task, initial
from prunella.tasks.training import Sgd, loss_and_gradient, sgd_step
from tests.attacks.conftest import SHAPES

WIDTH = 64  # of a token


class Transformer(nn.Module):
    """Sixteen patches, embedded and given positions, two blocks, and the class token or the mean as output."""

    def __init__(self, shape: Shape, embed: str = "convolution", token: bool = True, learnt: bool = True) -> None:
        super().__init__()
        self.side = shape[1] // 4
        self.embed: nn.Module = nn.Linear(shape[0] * self.side**2, WIDTH)
        if embed == "convolution":
            self.embed = nn.Conv2d(shape[0], WIDTH, self.side, stride=self.side)
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH) * 0.02) if token else None
        place = torch.randn(1, 16 + token, WIDTH) * 0.02
        self.place = nn.Parameter(place) if learnt else place
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.embed, nn.Conv2d):
            z = self.embed(x).flatten(2).transpose(1, 2)
        else:
            z = self.embed((unfold(x, self.side, stride=self.side) - 0.5).transpose(1, 2) / 0.25)
        if self.token is not None:
            z = torch.cat([self.token.expand(len(z), -1, -1), z], dim=1)
        z = self.blocks(z + self.place)
        return self.head(z[:, 0] if self.token is not None else z.mean(dim=1))


def plain(shape: Shape, classes: int) -> nn.Module:
    return Transformer(shape)


def linear_mean(shape: Shape, classes: int) -> nn.Module:
    return Transformer(shape, "linear", token=False)


def linear_token(shape: Shape, classes: int) -> nn.Module:
    return Transformer(shape, "linear")


def convolution_mean(shape: Shape, classes: int) -> nn.Module:
    return Transformer(shape, token=False)


def fixed_places(shape: Shape, classes: int) -> nn.Module:
    return Transformer(shape, learnt=False)


def named(model: str) -> Task:
    return Task(model if model == "vit" else f"tests.attacks.test_april:{model}", (1, 8, 8), 10)


def run(view: ServerView, task: Task, attack: str = "april") -> Reconstruction:
    settings = April() if attack == "april" else Portfolio(passes=200, iterations=20, restarts=1)
    return ATTACKS[attack].reconstruct(view, task, settings, stream(0, purpose="attack"))


def seen(task: Task, truth: PrivateBatch) -> ServerView:
    return undefended_view(task, *initial(task, 0), truth)


@pytest.mark.parametrize("model", ["plain", "linear_mean", "linear_token", "convolution_mean", "vit"])
def test_the_image_is_rebuilt_with_its_label_and_is_not_another_of_its_class(model: str, same_label) -> None:
    task, (truth, other) = named(model), same_label
    found, of_other = (run(seen(task, each), task) for each in same_label)
    assert psnr(truth.x, found.x)[0] > 60 and found.y.tolist() == truth.y.tolist() and found.objective < 1e-6
    assert psnr(truth.x, of_other.x)[0] < 20 and psnr(other.x, of_other.x)[0] > 60


def trained(task: Task, known: PrivateBatch, steps: int) -> tuple[Tree, Tree]:
    module, (params, buffers), generator = task.build(), initial(task, 0), stream(0, purpose="training")
    velocity = Tree()
    for _ in range(steps):
        rows = torch.randint(0, len(known.y), (32,), generator=generator)
        _, gradient, _ = loss_and_gradient(module, params, buffers, known.x[rows], known.y[rows])
        params, velocity = sgd_step(params, gradient, velocity, Sgd(0.05, 0.9), None)
    return params, buffers


def test_a_trained_transformer_and_the_portfolio(digits, batch) -> None:
    task, truth = named("plain"), batch(0)
    view = undefended_view(task, *trained(task, PrivateBatch(digits.x[:1400], digits.y[:1400]), 60), truth)
    for attack in ("april", "portfolio"):
        found = run(view, task, attack)
        assert psnr(truth.x, found.x)[0] > 50 and found.y.tolist() == truth.y.tolist()
    assert found.found_by == "april" and found.explained


@pytest.mark.slow
@pytest.mark.parametrize("steps", [0, 120])
@pytest.mark.parametrize("data", ["mnist", "cifar10"])
def test_photographs(data: str, steps: int, photographs) -> None:
    """What docs/attacks.md says; updates are differences of float32 weights."""
    both, task = photographs(data, 605), Task("tests.attacks.test_april:plain", SHAPES[data], 10)
    params, buffers = trained(task, PrivateBatch(both.x[5:], both.y[5:]), steps)
    figures = []
    for image in range(5):
        truth = PrivateBatch(both.x[image : image + 1], both.y[image : image + 1])
        view = matched_view(task, undefended_view(task, params, buffers, truth), [truth])
        found, other = run(view, task), (image + 1) % 5
        figures.append(round(psnr(truth.x, found.x)[0], 1))
        assert figures[-1] > 40 > 25 > psnr(both.x[other : other + 1], found.x)[0]
        assert found.y.tolist() == truth.y.tolist()
    print(data, f"after {steps} steps, PSNR in dB:", figures)


def test_noise_in_the_place_of_the_update_or_of_the_weights_gives_nothing(batch) -> None:
    task, truth = named("plain"), batch(0)
    view, draw = seen(task, truth), stream(1, purpose="noise")
    noise = {name: u.std() * torch.randn(u.shape, generator=draw) for name, u in view.update.items()}
    missed = run(dataclasses.replace(view, update=noise), task)
    assert psnr(truth.x, missed.x)[0] < 15 and missed.objective > 0.5
    # What solves does not ask the weights: that the image is explained by other ones would be wrong.
    assert run(dataclasses.replace(view, params=initial(task, 1)[0]), task).objective > 0.01


def test_under_noise_small_singular_values_are_left_out(batch) -> None:
    task, truth = named("plain"), batch(0)
    view, draw = seen(task, truth), stream(1, purpose="noise")
    noisy = {n: u + 1e-3 * u.std() * torch.randn(u.shape, generator=draw) for n, u in view.update.items()}
    found = run(dataclasses.replace(view, update=noisy), task)
    assert 25 < psnr(truth.x, found.x)[0] < 80


def test_a_known_mask_of_the_weights_leaves_enough(batch) -> None:
    task, truth = named("plain"), batch(0)
    view, draw = seen(task, truth), stream(1, purpose="mask")
    mask = {
        n: torch.rand(u.shape, generator=draw) < 0.8 if n.endswith("weight") else u == u for n, u in view.update.items()
    }
    masked = dataclasses.replace(view, shared=mask, update={n: u * mask[n] for n, u in view.update.items()})
    assert psnr(truth.x, run(masked, task).x)[0] > 40
    mask["place"] = torch.rand(mask["place"].shape, generator=draw) < 0.8
    masked = dataclasses.replace(view, shared=mask, update={n: u * mask[n] for n, u in view.update.items()})
    with pytest.raises(AttackError, match="fewer equations"):
        run(masked, task)


def test_least_squares_is_numpy_s() -> None:
    draw = np.random.default_rng(0)
    slopes, gradient = draw.standard_normal((5, 20)), draw.standard_normal((20, 4))
    there = draw.random((20, 4)) < 0.8
    assert (there.sum(axis=0) >= 5).all()
    found = solutions(*(torch.from_numpy(each) for each in (slopes, gradient, there)), [1e-12])[0]
    for column in range(4):
        rows = there[:, column]
        wanted = np.linalg.lstsq(slopes.T[rows], gradient[rows, column], rcond=None)[0]
        np.testing.assert_allclose(found[:, column].numpy(), wanted, rtol=1e-9)
    slopes[4] = 0.0  # a token whose gradient is zero: the shortest solution
    found = solutions(*(torch.from_numpy(e) for e in (slopes, gradient, np.ones((20, 4), bool))), [1e-12])[0]
    np.testing.assert_allclose(
        found.numpy(), np.linalg.lstsq(slopes.T, gradient, rcond=1e-12)[0], rtol=1e-9, atol=1e-12
    )


def test_the_pair_is_found_by_its_shapes() -> None:
    module = plain((1, 8, 8), 10)
    assert set(learnt_positions(module)) >= {"place"} and "token" not in learnt_positions(module)
    assert embeddings(module, (1, 8, 8))[0] == Embedding("embed", "place", 16)


@pytest.mark.parametrize(("model", "size", "words"), [("plain", 2, "one image"), ("fixed_places", 1, "no learnt")])
def test_what_it_cannot_solve_for_is_refused(model: str, size: int, words: str, batch) -> None:
    with pytest.raises(AttackError, match=words):
        run(seen(named(model), batch(0, size)), named(model))


def test_several_steps_and_other_models_are_refused_and_not_asked_by_the_portfolio(task, view) -> None:
    with pytest.raises(AttackError, match="one step"):
        run(dataclasses.replace(view, steps=2), task)
    with pytest.raises(AttackError, match="no learnt position"):
        run(view, task)
    asks = next(each.applies for each in CANDIDATES if each.attack == "april")
    assert not asks(ViewSetting(view, target_of(view, task.build(), True, 16)))


def test_an_image_that_is_mixed_before_the_patches_is_refused(batch) -> None:
    blurred = nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), Transformer((1, 8, 8)))
    task = own_task(blurred, (1, 8, 8), 10)
    with pytest.raises(AttackError, match="no copy"):
        run(seen(task, batch(0)), task)
