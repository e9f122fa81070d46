"""Principal components of public digits: what they draw, and what a batch gives away through them."""

import dataclasses
import math

import pytest
import torch

from prunella.attacks import ATTACKS, portfolio
from prunella.attacks.components import Components, decoder
from prunella.attacks.portfolio import Portfolio
from prunella.attacks.score.leakage import assign, paired, psnr
from prunella.core.errors import AttackError
from prunella.core.randomness import stream
from prunella.core.types import Reconstruction, ServerView
from prunella.tasks.examples import Examples
from tests.shadow_client import ShadowClient

ATTACK = ATTACKS["components"]


@pytest.fixture
def shadow(task, digits) -> ShadowClient:
    return ShadowClient(task, Examples(digits.x[:1000], digits.y[:1000]), batch_size=16)


def gain(truth: torch.Tensor, found: torch.Tensor) -> float:
    values = psnr(*paired(truth, found, assign(truth, found)))
    return sum(values) / len(values)


def test_noise_becomes_images_with_the_mean_and_covariance_of_public_ones(digits) -> None:
    public = Examples(digits.x[:500], digits.y[:500])
    decode, flat = decoder(public, 11, 0.01), public.x.flatten(1)
    threes = torch.full((20_000,), 3)
    drawn = decode(torch.randn(20_000, 1, 8, 8, generator=stream(0, purpose="z")), threes).flatten(1)
    assert torch.allclose(drawn.mean(0), flat[public.y == 3].mean(0), atol=0.02)
    within = flat - torch.stack([flat[public.y == label].mean(0) for label in public.y])
    expected = within.T @ within / len(within) + 1e-4 * torch.eye(64)
    assert torch.allclose(torch.cov(drawn.T), expected, atol=0.01)
    # A class that nobody has shown is drawn around the mean of all.
    assert torch.allclose(decode(torch.zeros(1, 1, 8, 8), torch.tensor([10])).flatten(), flat.mean(0), atol=1e-6)


def test_every_image_is_in_reach_also_with_fewer_public_ones_than_pixels(digits) -> None:
    decode = decoder(Examples(digits.x[:12], digits.y[:12]), 10, 0.01)
    rows = decode(torch.eye(64).reshape(64, 1, 8, 8), torch.zeros(64, dtype=torch.long)).flatten(1)
    root = rows - decode(torch.zeros(1, 1, 8, 8), torch.tensor([0])).flatten()
    assert torch.linalg.matrix_rank(root.double()) == 64 and float(torch.linalg.eigvalsh(root).min()) > 0.0099


def test_a_batch_is_rebuilt_better_than_pixel_by_pixel_and_a_wrong_view_shows_another(task, batch, shadow) -> None:
    """Sixteen digits in one step, their labels inferred."""
    truth, other = batch(0, 16), batch(16, 16)
    views = [shadow.attacked(each.x, each.y) for each in (truth, other)]
    mine, wrong = (run(view, task, shadow) for view in views)
    plain = [
        ATTACKS["sgi"].reconstruct(
            views[0], task, ATTACKS["sgi"].settings(iterations=200, tv=tv), stream(0, purpose="attack")
        )
        for tv in (0.0, 0.01)
    ]
    assert gain(truth.x, mine.x) > max(gain(truth.x, each.x) for each in plain) + 2
    assert gain(truth.x, mine.x) > gain(truth.x, wrong.x) + 6
    assert float(mine.x.min()) >= 0 and float(mine.x.max()) <= 1


def run(view: ServerView, task, shadow) -> Reconstruction:  # noqa: ANN001
    return ATTACK.reconstruct(view, task, Components(iterations=200), stream(0, purpose="attack"), shadow=shadow)


def test_without_public_images_it_says_what_it_needs(task, batch, shadow) -> None:
    view = shadow.attacked(batch(0, 1).x, batch(0, 1).y)
    with pytest.raises(AttackError, match="public images like the client's"):
        run(view, task, None)
    with pytest.raises(AttackError, match="at least two"):
        run(view, task, dataclasses.replace(shadow, public=shadow.public.take(torch.tensor([0]))))


def test_a_portfolio_asks_it_under_the_labels_found_until_something_explains_the_update(task, batch, shadow) -> None:
    truth = batch(0, 16)
    view = shadow.attacked(truth.x, truth.y)
    case = portfolio.Case(view, task, Portfolio(), stream(0, purpose="attack"), math.inf)
    scouted = case.scout(portfolio.PLAIN, 20)
    wrong = scouted[0]._replace(missed=0.5, answer=dataclasses.replace(scouted[0].answer, y=(truth.y + 1) % 10))
    latent = portfolio.components_of(case, shadow)
    (found,) = portfolio.by_components(case, [wrong, *scouted], latent, 0.5)
    assert found.by == "components" and torch.equal(found.answer.y, scouted[0].answer.y)
    assert portfolio.chosen([*scouted, found], {}) is found
    assert not portfolio.by_components(case, [found._replace(missed=1e-5)], latent, 0.5)
    assert not portfolio.by_components(case, scouted, None, 0.5)  # no public images
    assert portfolio.components_of(case, None) is None
    alone = dataclasses.replace(shadow, public=shadow.public.take(torch.tensor([0])))
    assert portfolio.components_of(case, alone) is None  # one image has no components


def test_it_descends_without_the_coordinates_by_which_answers_are_judged(task, batch, shadow, monkeypatch) -> None:
    asked = []

    def matched(target, *rest):  # noqa: ANN001, ANN202
        asked.append(target)
        raise AttackError("asked")

    monkeypatch.setattr(portfolio.components, "matched", matched)
    view = shadow.attacked(batch(0, 16).x, batch(0, 16).y)
    case = portfolio.Case(view, task, Portfolio(), stream(0, purpose="attack"), math.inf)
    assert not portfolio.by_components(case, case.scout(portfolio.PLAIN, 1), portfolio.components_of(case, shadow), 0.5)
    assert asked == [case.fitted] and not torch.equal(case.fitted.flat, case.judged.flat)


def test_labels_in_open_steps_are_searched_in_the_components(task, batch, shadow) -> None:
    """Three steps of three digits, whose labels nobody knows."""
    truth = batch(0, 9)
    client = dataclasses.replace(shadow, steps=3, batch_size=3)
    view = client.send(Examples(truth.x, truth.y), -1)
    assert view.labels is None
    found = ATTACK.reconstruct(view, task, Components(iterations=1000), stream(0, purpose="attack"), shadow=client)
    wrong = ATTACK.reconstruct(
        client.send(Examples(batch(9, 9).x, batch(9, 9).y), -1),
        task,
        Components(iterations=1000),
        stream(0, purpose="attack"),
        shadow=client,
    )
    assert gain(truth.x, found.x) > max(20, gain(truth.x, wrong.x) + 6)
    assert sorted(found.y.tolist()) == sorted(truth.y.tolist())
