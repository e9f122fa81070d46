import dataclasses

import pytest
import torch
from torch import nn

from prunella.attacks.engine.image_priors import total_variation
from prunella.attacks.engine.latent import Latent, LatentSearch, Starts, candidates, evaluation_of, search_latent
from prunella.attacks.engine.matching import dummy_gradient, target_of
from prunella.attacks.engine.objectives import OBJECTIVES, flatten
from prunella.attacks.score.control import undefended_view
from prunella.core.randomness import stream
from prunella.core.trees import full_mask
from prunella.tasks.task import Task, initial


def decoder(task: Task) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 64), nn.Sigmoid(), nn.Unflatten(1, task.shape)).requires_grad_(False)


def target_for(task: Task, fresh, truth):  # noqa: ANN001, ANN201
    view = undefended_view(task, *fresh, truth)
    view = dataclasses.replace(view, shared=full_mask(view.update))
    return view, target_of(view, task.build(), True, 16)


@pytest.mark.parametrize("images", [1, 2])
def test_the_slope_is_that_of_autograd_through_everything(images: int, task, fresh, batch) -> None:
    """One image goes through the folded engine, two through the other one."""
    _, target = target_for(task, fresh, batch(0, images))
    network, y = decoder(task), batch(0, images).y.expand(3, -1)
    z = torch.randn((3, images, 6), generator=stream(0, purpose="z"))
    ours = Starts(
        z.clone().requires_grad_(), y, Latent(lambda z, y: network(z), 0.2), evaluation_of(target, "cosine"), 0.3
    )
    distance, total = ours.step()
    for place in range(3):
        own = z[place].clone().requires_grad_()
        x = network(own)
        dummy = flatten(dummy_gradient(target, x, y[place]))
        value = 1 - torch.nn.functional.cosine_similarity(dummy, target.flat, dim=0)
        rough = sum(total_variation(image[None])[0] for image in x) / images
        steps = [x.diff(dim=dim).abs().mean() for dim in (-1, -2)]  # autograd's own total variation
        assert float(rough.detach()) == pytest.approx(float(sum(steps).detach()), rel=1e-5)
        whole = value + 0.3 * sum(steps) + 0.2 * own.square().mean()
        assert float(distance[place]) == pytest.approx(float(value), abs=1e-5)
        assert float(total[place]) == pytest.approx(float(whole), abs=1e-5)
        torch.testing.assert_close(ours.z.grad[place], torch.autograd.grad(whole, own)[0], rtol=1e-3, atol=1e-6)
    assert "cosine" in OBJECTIVES


@pytest.mark.parametrize("optimizer", ["adam", "lbfgs"])
def test_it_finds_an_image_the_decoder_can_make(optimizer: str, task, fresh, batch) -> None:
    network, wanted = decoder(task), torch.randn((1, 6), generator=stream(1, purpose="z"))
    truth = dataclasses.replace(batch(0, 1), x=network(wanted))
    view, target = target_for(task, fresh, truth)
    search = LatentSearch(optimizer=optimizer, iterations=200, restarts=3)
    labels = candidates(view, target, task, search, stream(0, purpose="a"))
    z = torch.randn((3, 1, 6), generator=stream(2, purpose="z"))
    before = float((network(z[:, 0]) - truth.x).square().mean())
    found = search_latent(target, search, Latent(lambda z, y: network(z)), z, labels)
    assert float((found.x - truth.x).square().mean()) < 1e-3 * before and found.y.tolist() == truth.y.tolist()


def test_starts_in_small_batches_find_the_same(task, fresh, batch) -> None:
    view, target = target_for(task, fresh, batch(0, 1))
    network, z = decoder(task), torch.randn((4, 1, 6), generator=stream(2, purpose="z"))
    labels = batch(0, 1).y.expand(4, -1)
    found = [
        search_latent(target, LatentSearch(iterations=20, max_images=n), Latent(lambda z, y: network(z)), z, labels)
        for n in (1, 16)
    ]
    torch.testing.assert_close(found[0].x, found[1].x, rtol=1e-4, atol=1e-5)
    alone = [
        search_latent(
            target, LatentSearch(iterations=20), Latent(lambda z, y: network(z)), z[i : i + 1], labels[i : i + 1]
        )
        for i in range(4)
    ]
    assert min(each.objective for each in alone) == pytest.approx(found[1].objective, rel=1e-3)


def test_every_start_has_its_labels_and_pixels_stay_in_the_box(task, fresh, batch) -> None:
    view, target = target_for(task, fresh, batch(0, 1))
    search = LatentSearch(restarts=2, labels_tried=3)
    labels = candidates(view, target, task, search, stream(0, purpose="a"))
    assert labels.shape == (6, 1) and len(labels.unique()) == 3 and int(labels[0]) == int(batch(0, 1).y)
    known = candidates(
        dataclasses.replace(view, labels=torch.tensor([7])), target, task, search, stream(0, purpose="a")
    )
    assert known.tolist() == [[7], [7]]
    pixels = torch.rand((2, 1, *task.shape), generator=stream(3, purpose="z"))
    steps = dataclasses.replace(search, iterations=5, learning_rate=10.0)
    found = search_latent(target, steps, Latent(lambda z, y: z, box=True), pixels, known)
    assert 0 <= float(found.x.min()) and float(found.x.max()) <= 1


def test_a_network_of_sigmoids_is_searched_by_lbfgs(batch) -> None:
    task = Task("lenet-zhu", (1, 8, 8), 10)
    _, target = target_for(task, initial(task, 0), batch(0, 1))
    network, z, y = decoder(task), torch.randn((1, 1, 6), generator=stream(2, purpose="z")), batch(0, 1).y[None]
    auto, newton = (
        search_latent(target, LatentSearch(iterations=20, optimizer=o), Latent(lambda z, y: network(z)), z, y)
        for o in ("auto", "lbfgs")
    )
    assert torch.equal(auto.x, newton.x)
