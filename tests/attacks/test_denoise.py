import dataclasses
import math

import pytest
import torch

from prunella.attacks import ATTACKS
from prunella.attacks.denoise import (
    Channel,
    Denoise,
    Denoiser,
    held_out_error,
    learnt_filter,
    moments,
    posterior_mean,
    principal,
    require_one_image,
)
from prunella.attacks.score.control import undefended_view
from prunella.attacks.score.leakage import mse, psnr
from prunella.core.errors import AttackError
from prunella.core.randomness import rehearsal, stream
from prunella.core.types import PrivateBatch
from prunella.privacy.channel import NaturalChannel, natural_channel
from prunella.tasks.examples import Examples
from prunella.tasks.task import Task, initial
from tests.shadow_client import ShadowClient

ATTACK = ATTACKS["denoise"]
CNN6 = Task("cnn6", (1, 8, 8), 10)


def run(views, known):  # noqa: ANN001, ANN201
    settings = Denoise(iterations=120)
    return ATTACK.reconstruct(views[-1], CNN6, settings, stream(0, purpose="attack"), known, views[:-1])


def test_the_noise_comes_off_and_more_rounds_take_more_of_it_off(digits, batch) -> None:
    public = digits.x[:1000]
    channel = natural_channel(NaturalChannel(kappa=10.0))
    state = channel.fit(public, rehearsal(0, purpose="fit"))
    known = Channel(public, state["channel"]["variance"])
    noisy, once, often = [], [], []
    for i in range(2):
        truth = batch(i, 1)
        shown = [channel.apply(truth.x, state, rehearsal(i, round=r, purpose="noise")) for r in range(3)]
        views = [undefended_view(CNN6, *initial(CNN6, 0), PrivateBatch(x, truth.y)) for x in shown]
        noisy += mse(truth.x, shown[0].clamp(0, 1))
        once += mse(truth.x, run(views[:1], known).x)
        often += mse(truth.x, run(views, known).x)
    prior = float((batch(0, 2).x - public.mean(dim=0)).square().mean())
    assert sum(often) < sum(once) < min(sum(noisy), 2 * prior)


def test_the_estimate_is_the_conditional_mean_of_drawn_pairs() -> None:
    """Against least squares on 200,000 drawn pairs, which knows nothing of the formula."""
    draw = stream(0, purpose="pairs")
    root = torch.randn((4, 4), generator=draw, dtype=torch.float64)
    signal, noise = root @ root.T, torch.diag(torch.tensor([0.1, 1.0, 5.0, 0.5], dtype=torch.float64))
    clean = torch.randn((200_000, 4), generator=draw, dtype=torch.float64) @ root.T + 2
    noisy = clean + torch.randn((200_000, 4), generator=draw, dtype=torch.float64) * noise.diagonal().sqrt()
    ones = torch.cat([noisy, torch.ones((len(noisy), 1), dtype=torch.float64)], dim=1)
    learnt = ones @ torch.linalg.lstsq(ones, clean).solution
    ours = posterior_mean(noisy, torch.full((4,), 2.0, dtype=torch.float64), signal, noise)
    assert float((ours - learnt).abs().max()) < 0.15 and float((ours - learnt).square().mean()) < 1e-3


def test_no_noise_changes_nothing_and_endless_noise_leaves_the_mean() -> None:
    x, mean = torch.rand(3, 5, dtype=torch.float64), torch.full((5,), 0.3, dtype=torch.float64)
    signal = torch.eye(5, dtype=torch.float64)
    torch.testing.assert_close(posterior_mean(x, mean, signal, 0 * signal), x)
    torch.testing.assert_close(posterior_mean(x, mean, signal, 1e12 * signal), mean.expand(3, 5), rtol=1e-6, atol=1e-6)
    nothing = posterior_mean(x, mean, 0 * signal, 0 * signal)
    torch.testing.assert_close(nothing, mean.expand(3, 5))


def test_without_public_images_and_covariance_it_says_what_is_missing(batch) -> None:
    view = undefended_view(CNN6, *initial(CNN6, 0), batch(0, 1))
    with pytest.raises(AttackError, match="public images and the channel's covariance, or a shadow"):
        ATTACK.reconstruct(view, CNN6, Denoise(), stream(0, purpose="attack"))
    with pytest.raises(AttackError, match="two public"):
        moments(torch.zeros(1, 1, 8, 8))


def test_a_filter_is_learnt_from_few_pairs(digits) -> None:
    """With 24 pairs it is near the best linear estimate, which knows both covariances, and better than none at all."""
    draw, rows = stream(0, purpose="filter"), torch.randperm(len(digits.x), generator=stream(0, purpose="rows"))
    x = digits.x.flatten(1)[rows]
    noisy = (x + 0.4 * torch.randn(x.shape, generator=draw)).clamp(0, 1)
    clean = learnt_filter(*principal(x[:1000]), x[1000:1024], noisy[1000:1024])
    unseen, seen = x[1100:1400], noisy[1100:1400]
    error = float((clean(seen) - unseen).square().mean())
    ones = torch.cat([noisy[:1000], torch.ones(1000, 1)], dim=1)  # least squares on a thousand pairs
    best = torch.cat([seen, torch.ones(300, 1)], dim=1) @ torch.linalg.lstsq(ones, x[:1000]).solution
    assert error < 0.6 * float((seen - unseen).square().mean())
    assert error < 0.8 * float((x[:1000].mean(dim=0) - unseen).square().mean())
    assert error < 1.5 * float((best - unseen).square().mean())


def test_the_error_on_pairs_that_taught_nothing_is_that_on_unseen_ones(digits) -> None:
    """Within 1 dB of the mean PSNR of images that no filter has met."""
    draw, rows = stream(0, purpose="filter"), torch.randperm(len(digits.x), generator=stream(0, purpose="rows"))
    x = digits.x.flatten(1)[rows]
    noisy = (x + 0.6 * torch.randn(x.shape, generator=draw)).clamp(0, 1)
    mean, components = principal(x[:1000])
    said = held_out_error(mean, components, x[1000:1032], noisy[1000:1032])
    clean = learnt_filter(mean, components, x[1000:1032], noisy[1000:1032])
    unseen = float((clean(noisy[1100:1700]).clamp(0, 1) - x[1100:1700]).square().mean(dim=1).log().mean().exp())
    assert abs(10 * math.log10(said / unseen)) < 1


def test_a_filter_of_clean_pairs_changes_little(digits) -> None:
    x = digits.x.flatten(1)
    clean = learnt_filter(*principal(x[:1000]), x[1000:1024], x[1000:1024])
    torch.testing.assert_close(clean(x[1100:1200]), x[1100:1200], rtol=0, atol=0.02)


@pytest.mark.parametrize("model", ["cnn6", "cnn"])
def test_a_shadow_teaches_what_the_noise_is(model: str, digits, batch) -> None:
    """In closed form, and where R-GAP has no answer by matching gradients."""
    task = Task(model, (1, 8, 8), 10)
    public = Examples(digits.x[:600], digits.y[:600])
    shadow = ShadowClient(task, public, "channel-natural", raw={"channel-natural.kappa": 10.0})
    settings, truth, other = Denoise(iterations=120, shadows=16, match=80), batch(0, 1), batch(5, 1)
    clean = Denoiser(task, settings, stream(0, purpose="attack"), shadow)  # learnt once for every client of a round
    found = [clean(shadow.attacked(each.x, each.y, draw)).x for each, draw in ((truth, -1), (other, -2))]
    assert psnr(truth.x, found[0])[0] > psnr(truth.x, public.x.mean(dim=0)[None])[0] + 1
    assert psnr(truth.x, found[1])[0] < psnr(truth.x, found[0])[0] - 2


def test_a_batch_is_refused_before_anything_is_learnt_and_after(digits, task, batch) -> None:
    public = Examples(digits.x[:100], digits.y[:100])
    shadow, truth = ShadowClient(task, public, batch_size=2), batch(0, 2)
    view, draw = shadow.attacked(truth.x, truth.y), stream(0, purpose="attack")
    with pytest.raises(AttackError, match="one image"):
        ATTACK.reconstruct(view, task, Denoise(shadows=0), draw, shadow=shadow)
    clean = Denoiser(task, Denoise(shadows=8, match=1), draw, ShadowClient(task, public))
    with pytest.raises(AttackError, match="one image"):
        clean(view)


def test_stopped_before_it_has_learnt_it_has_no_answer_and_asks_no_more_clients(digits, task, batch) -> None:
    """A run's audit kills what does not end: of a portfolio that would lose all other attacks' answers."""
    shadow, truth = ShadowClient(task, Examples(digits.x[:100], digits.y[:100])), batch(0, 1)
    view, asked = shadow.attacked(truth.x, truth.y), list[bool]()

    def stopped() -> bool:
        asked.append(True)
        return len(asked) > 3

    with pytest.raises(AttackError, match="was stopped before"):
        ATTACK.reconstruct(view, task, Denoise(), stream(0, purpose="attack"), shadow=shadow, stopped=stopped)
    assert len(asked) < 10


def test_one_image_of_a_client_with_many_is_taken_and_two_are_not(batch) -> None:
    view = undefended_view(CNN6, *initial(CNN6, 0), batch(0, 1))
    require_one_image(dataclasses.replace(view, num_examples=100))
    for two in (
        dataclasses.replace(view, steps=2, num_examples=100),
        dataclasses.replace(view, num_examples=None, batch_size=2),
    ):
        with pytest.raises(AttackError, match="one image"):
            require_one_image(two)
