import dataclasses

import torch

from prunella.attacks import ATTACKS
from prunella.attacks.expectation import Expectation, drawn_params
from prunella.attacks.score.control import PSNR_FLOOR
from prunella.attacks.score.leakage import psnr
from prunella.core.randomness import stream
from prunella.core.trees import apply_mask, full_mask
from prunella.core.types import ServerView

ATTACK = ATTACKS["expectation"]


def masked(view: ServerView, keep: float = 0.7) -> ServerView:
    draw = stream(0, purpose="mask")
    shared = {name: torch.rand(u.shape, generator=draw) < keep for name, u in view.update.items()}
    return dataclasses.replace(view, update=apply_mask(view.update, shared), shared=shared)


def test_rebuilds_what_arrived_under_a_random_mask_and_nothing_from_other_weights(view, task, batch, trained) -> None:
    settings = Expectation(labels_tried=1, iterations=120, draws=2, spread=0.1)
    seen = masked(view)
    found = ATTACK.reconstruct(seen, task, settings, stream(0, purpose="attack"))
    assert psnr(batch(0, 1).x, found.x)[0] > PSNR_FLOOR
    elsewhere = dataclasses.replace(seen, params=trained[0])
    wrong = ATTACK.reconstruct(elsewhere, task, settings, stream(0, purpose="attack"))
    assert psnr(batch(0, 1).x, wrong.x)[0] < PSNR_FLOOR


def test_only_what_did_not_arrive_is_drawn_with_the_probability_and_spread_asked_for(view) -> None:
    seen = masked(view, 0.4)
    draws = [drawn_params(seen, Expectation(probability=0.3, spread=2.0), stream(i, purpose="draw")) for i in range(20)]
    arrived = torch.cat([seen.update[n][seen.shared[n]] for n in seen.update])
    moved = []
    for name, sent in seen.params.items():
        for drawn in draws:
            assert torch.equal(drawn[name][seen.shared[name]], sent[seen.shared[name]])
        moved.append(torch.stack([drawn[name] - sent for drawn in draws])[:, ~seen.shared[name]].reshape(-1))
    change = torch.cat(moved)
    assert abs(float((change != 0).float().mean()) - 0.3) < 0.01
    assert abs(float(change[change != 0].std()) / (2 * float(arrived.square().mean().sqrt())) - 1) < 0.02


def test_of_a_whole_view_nothing_is_drawn(view, task) -> None:
    whole = dataclasses.replace(view, shared=full_mask(view.update))
    first, second = (
        ATTACK.reconstruct(
            whole, task, Expectation(labels_tried=1, iterations=20, draws=n), stream(0, purpose="attack")
        )
        for n in (1, 7)
    )
    assert torch.equal(first.x, second.x)
