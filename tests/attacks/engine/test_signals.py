import dataclasses

import pytest
import torch
from torch.func import functional_call

from prunella.attacks.engine.signals import SKETCH, SignalReader, inputs_of, likely_labels, site_of, usual_input
from prunella.attacks.score.control import undefended_view
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch
from prunella.tasks.examples import Examples
from prunella.tasks.task import Task, initial


def reader_of(view, task, digits) -> SignalReader:  # noqa: ANN001
    return SignalReader(view, task, Examples(digits.x[:200], digits.y[:200]), stream(0, purpose="reader"))


def features(task: Task, params, x: torch.Tensor) -> torch.Tensor:  # noqa: ANN001
    """What goes into ``cnn``'s last layer, [N, C, H, W]."""
    convolutions = task.build()[0]
    inside = {name.removeprefix("0."): tensor for name, tensor in params.items() if name.startswith("0.")}
    return functional_call(convolutions, inside, (x,))


@pytest.mark.parametrize(
    ("model", "weight", "grid", "last"),
    [("cnn", "2.0.weight", (48, 4, 4), True), ("precode-cnn", "2.0.bottleneck.encode.weight", (48, 4, 4), False)],
)
def test_the_first_linear_layer_is_found_with_the_places_of_its_input(model, weight, grid, last) -> None:
    site = site_of(Task(model, (1, 8, 8), 10).build(), (1, 8, 8), 10)
    assert (site.weight, site.grid, site.last) == (weight, grid, last)


def test_the_quotient_is_the_input_of_the_layer(task, fresh, digits, batch) -> None:
    truth = batch(0, 1)
    view = undefended_view(task, *fresh, truth)
    maps, flat = reader_of(view, task, digits).read(view, truth.y)
    wanted = features(task, fresh[0], truth.x)[0]
    assert maps.shape == (1, 48, 4, 4, 10 + 4)
    torch.testing.assert_close(maps[0, ..., -2], wanted, rtol=2e-2, atol=2e-3)
    seen = torch.stack([maps[0, ..., place].flatten() for place in (-4, -3)] + [wanted.flatten()])
    assert float(torch.corrcoef(seen)[2, :2].min()) > 0.99
    shares = maps[..., -1].flatten()  # all arrived, but for what is zero because the picture is black there
    assert (
        float(shares.max()) == pytest.approx(1.0) and float((shares[wanted.flatten() != 0] > 0.99).float().mean()) == 1
    )
    assert [len(block) for block in flat] == [1] * len(flat) and flat[0].argmax() == truth.y


def test_behind_a_bottleneck_that_draws_the_quotient_is_exact(digits, batch) -> None:
    task, truth = Task("precode-cnn", (1, 8, 8), 10), batch(0, 1)
    params, buffers = initial(task, 0)
    view = undefended_view(task, params, buffers, truth)
    maps, _ = reader_of(view, task, digits).read(view, truth.y)
    assert maps.shape == (1, 48, 4, 4, 2)
    torch.testing.assert_close(maps[0, ..., 0], features(task, params, truth.x)[0], rtol=2e-2, atol=2e-3)


def test_images_of_a_batch_are_taken_apart_by_their_labels(task, fresh, digits) -> None:
    rows = [int((digits.y == label).nonzero()[-1]) for label in (0, 3, 7)]
    truth = PrivateBatch(digits.x[rows], digits.y[rows])
    view = undefended_view(task, *fresh, truth)
    maps, _ = reader_of(view, task, digits).read(view, truth.y)
    wanted = features(task, fresh[0], truth.x).flatten(1)
    found = maps[..., -4].flatten(1)
    like = torch.corrcoef(torch.cat([found, wanted]))[:3, 3:]
    assert like.argmax(dim=1).tolist() == [0, 1, 2] and float(like.diagonal().min()) > 0.9


def test_least_squares_uses_what_arrived_and_the_median_survives_outliers() -> None:
    draw = stream(0, purpose="outer")
    r, h = torch.randn((2, 8), generator=draw), torch.randn((2, 40), generator=draw)
    arrived = (torch.rand((8, 40), generator=draw) < 0.7).float()
    weight = r.T @ h
    torch.testing.assert_close(inputs_of(weight * arrived, arrived, r), h, rtol=1e-2, atol=1e-2)
    one, spoilt = r[:1].T @ h[:1], arrived.clone()
    spoilt[:2] = 1
    bad = one * spoilt
    bad[0] += 1000
    assert float((usual_input(one * arrived, arrived, r[:1]) - h[:1]).abs().max()) < 1e-4
    assert float((usual_input(bad, torch.ones_like(bad), r[:1]) - h[:1]).abs().mean()) < 0.5 * float(
        (inputs_of(bad, torch.ones_like(bad), r[:1]) - h[:1]).abs().mean()
    )
    assert not usual_input(one, torch.zeros_like(one), r[:1]).any() and not inputs_of(one, 0 * one, r[:1]).any()


def test_of_more_images_than_classes_least_squares_is_that_of_the_definition() -> None:
    """In float64 and image by image, the matrix of all images against itself; half of the values did not arrive."""
    draw = stream(0, purpose="many")
    labels = torch.randint(10, (40,), generator=draw)
    r = (torch.rand((10, 10), generator=draw).softmax(dim=1)[labels] - torch.eye(10)[labels]) / 40
    arrived = (torch.rand((10, 30), generator=draw) < 0.5).float()
    weight = (r.T @ torch.randn((40, 30), generator=draw)) * arrived
    exact, ridge = r.double(), 1e-4 * float(r.square().sum(dim=1).max())
    for column in range(30):
        there = exact * arrived[:, column]
        left = there @ exact.T + ridge * torch.eye(40, dtype=torch.float64)
        wanted = torch.linalg.solve(left, there @ weight[:, column].double())
        torch.testing.assert_close(inputs_of(weight, arrived, r)[:, column].double(), wanted, rtol=1e-4, atol=1e-4)


def test_the_first_images_of_a_view_are_read_as_with_all_others_and_hold_no_more_memory(task, fresh, digits) -> None:
    truth = PrivateBatch(digits.x[:20], digits.y[:20])
    view = undefended_view(task, *fresh, truth)
    reader = reader_of(view, task, digits)
    (maps, flat), (some, few) = reader.read(view, truth.y), reader.read(view, truth.y, 2)
    assert torch.equal(some, maps[:2]) and all(torch.equal(a, b[:2]) for a, b in zip(few, flat, strict=True))
    assert all(block.untyped_storage().nbytes() <= block.numel() * 4 for block in [some, *few])


def test_a_large_tensor_is_kept_as_the_same_random_sums_in_every_view(task, fresh, digits, batch) -> None:
    one, other = (undefended_view(task, *fresh, batch(i, 1)) for i in range(2))
    reader = reader_of(one, task, digits)
    assert set(reader.places) == {"0.2.weight"}
    first, second = (reader.read(view, batch(i, 1).y)[1][4] for i, view in enumerate((one, other)))
    whole = [view.update["0.2.weight"].flatten() / -0.1 for view in (one, other)]
    assert first.shape == (1, SKETCH)
    for sketched, kept in ((first, whole[0]), (first - second, whole[0] - whole[1])):
        assert float(sketched.norm()) == pytest.approx(float(kept.norm()), rel=0.1)


def test_labels_are_those_of_the_view_or_the_likeliest(task, fresh, batch) -> None:
    truth = batch(0, 1)
    view, draw = undefended_view(task, *fresh, truth), stream(0, purpose="labels")
    assert likely_labels(view, task, 4, draw).tolist() == truth.y.tolist()
    assert likely_labels(dataclasses.replace(view, labels=torch.tensor([8])), task, 4, draw).tolist() == [8]
