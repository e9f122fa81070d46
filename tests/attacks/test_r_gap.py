import dataclasses

import pytest
import torch
from torch import nn

from prunella.attacks import ATTACKS
from prunella.attacks.r_gap import RGap, chain_of, inverse, last_features, slope_at, solve_convolution, solve_image
from prunella.attacks.score.control import undefended_view
from prunella.attacks.score.leakage import psnr, score
from prunella.core.errors import AttackError
from prunella.core.randomness import stream
from prunella.core.ranking import keep_largest
from prunella.core.types import PrivateBatch, Reconstruction, ServerView
from prunella.tasks.task import Task, initial
from tests.attacks.conftest import SHAPES

ATTACK = ATTACKS["r-gap"]
CNN6 = Task("cnn6", (1, 8, 8), 10)


def run(view: ServerView, task: Task, attack: RGap | None = None) -> Reconstruction:
    return ATTACK.reconstruct(view, task, attack or RGap(), stream(0, purpose="attack"))


def view_of(task: Task, truth: PrivateBatch, seed: int = 0) -> ServerView:
    return undefended_view(task, *initial(task, seed), truth)


def test_rebuilds_undefended_images_almost_exactly_and_not_another(same_label) -> None:
    truth, other = same_label
    for seed in range(2):
        found = run(view_of(CNN6, truth, seed), CNN6, RGap(iterations=200))
        right, wrong = score(found, truth), score(found, other)
        assert right.psnr.mean > 35 and right.label_accuracy == 1.0 and found.objective < 1e-6
        assert wrong.psnr.mean < 20


def test_what_an_image_with_noise_explains_is_not_what_of_it_is_in_the_box(batch) -> None:
    truth = batch(0, 1)
    noisy = PrivateBatch(truth.x + torch.randn(truth.x.shape, generator=stream(0, purpose="noise")), truth.y)
    view, attack = view_of(CNN6, noisy), RGap(iterations=200)
    assert solve_image(view, CNN6, attack)[2] < 1e-6 < 1e-2 < run(view, CNN6, attack).objective


def test_a_wrong_view_gives_nothing(batch) -> None:
    """The update of other weights, and a fifth of the coordinates, which this attack takes for all (DGP, Table 1)."""
    truth = batch(0, 1)
    view = view_of(CNN6, truth)
    elsewhere = dataclasses.replace(view, params=initial(CNN6, 7)[0])
    largest = {name: torch.where(keep_largest(u.abs(), u.numel() // 5), u, 0.0) for name, u in view.update.items()}
    for wrong in (elsewhere, dataclasses.replace(view, update=largest)):
        assert psnr(truth.x, run(wrong, CNN6, RGap(iterations=200)).x)[0] < 16


@pytest.mark.parametrize("data, model", [("mnist", "cnn6"), ("cifar10", "cnn6"), ("cifar10", "lenet-zhu")])
def test_real_images_above_35_decibels(photographs, data: str, model: str) -> None:
    truth, task = photographs(data), Task(model, SHAPES[data], 10)
    found = run(view_of(task, truth), task, RGap(iterations=1000))
    assert score(found, truth).psnr.mean > 35 and torch.equal(found.y, truth.y)


def test_biases_are_used_where_there_are_any(batch, task, fresh) -> None:
    found = run(undefended_view(task, *fresh, batch(0, 1)), task, RGap(iterations=300))
    assert torch.equal(found.y, batch(0, 1).y) and psnr(batch(0, 1).x, found.x)[0] > 20


def test_the_last_layer_gives_up_features_and_residual() -> None:
    generator = stream(0, purpose="x")
    weight, features = torch.randn(5, 40, generator=generator).double(), torch.randn(40, generator=generator).double()
    residual = torch.softmax(weight @ features, dim=0)
    residual[3] -= 1
    h, r = last_features(weight, None, torch.outer(residual, features))
    torch.testing.assert_close(h, features, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(r, residual, rtol=1e-5, atol=1e-7)


def test_a_convolution_is_solved_from_its_own_two_equations() -> None:
    generator = stream(1, purpose="x")
    conv = nn.Conv2d(2, 3, 3, stride=2, padding=1, bias=False).double()
    a = torch.randn((1, 2, 7, 7), generator=generator, dtype=torch.float64)
    z = conv(a)
    dz = torch.randn(z.shape, generator=generator, dtype=torch.float64)
    (slope,) = torch.autograd.grad(z, conv.weight, dz)
    known = (conv.weight.detach(), z.detach(), dz, slope)
    found = solve_convolution(conv, a.shape, known, RGap())
    # 48 weight and 54 gradient equations, of which some coincide, for 98 unknowns: both kinds must hold.
    (again,) = torch.autograd.grad(conv(found), conv.weight, dz)
    torch.testing.assert_close(conv(found).detach(), z.detach(), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(again, slope, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("layer", [nn.LeakyReLU(0.2), nn.Tanh(), nn.Sigmoid()])
def test_activations_are_inverted_and_differentiated(layer: nn.Module) -> None:
    z = torch.linspace(-3, 3, 12, dtype=torch.float64)
    torch.testing.assert_close(inverse(layer)(layer(z)), z)
    numeric = (layer(z + 1e-6) - layer(z - 1e-6)) / 2e-6
    torch.testing.assert_close(slope_at(layer, z), numeric, rtol=1e-5, atol=1e-6)


def test_what_cannot_be_solved_is_refused_by_name(batch) -> None:
    task = Task("lenet", (1, 28, 28), 10)
    with pytest.raises(AttackError, match="ReLU"):
        run(view_of(task, PrivateBatch(torch.rand(1, 1, 28, 28), torch.tensor([1]))), task)
    view = view_of(CNN6, batch(0, 1))
    for broken in (dataclasses.replace(view, learning_rate=None), view_of(CNN6, batch(0, 2))):
        with pytest.raises(AttackError, match="one image"):
            run(broken, CNN6)
    with pytest.raises(AttackError, match="slope"):
        inverse(nn.LeakyReLU(0.0))


def test_nested_chains_are_read_in_order() -> None:
    names = [name for name, _ in chain_of(CNN6.build())]
    assert names[0] == "0.0." and names[-1] == "2." and len(names) == 14
