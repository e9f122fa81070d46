"""What is rehearsed on public images: none that the rehearsal's own attacker knows, and every stage at its best."""

import dataclasses
import math

import pytest
import torch

from prunella.attacks import portfolio
from prunella.attacks.engine.case import ASKED, WENT_ON, Found
from prunella.attacks.portfolio import Portfolio
from prunella.attacks.rehearsal import played, scored
from prunella.core.randomness import stream
from prunella.core.types import Reconstruction
from prunella.tasks.examples import Examples
from tests.shadow_client import ShadowClient


@pytest.fixture
def shadow(task, digits) -> ShadowClient:
    return ShadowClient(task, Examples(digits.x[:1000], digits.y[:1000]), batch_size=16)


def test_a_rehearsal_does_not_look_at_the_images_that_its_client_was_shown(task, shadow, batch) -> None:
    view = shadow.attacked(batch(0, 16).x, batch(0, 16).y)
    case = portfolio.Case(view, task, Portfolio(), stream(0, purpose="attack"), math.inf)
    (play,) = played(case, shadow, 1)
    shown, others = ({tuple(x.flatten().tolist()) for x in each.x} for each in (play.shown, play.others.public))
    assert len(play.shown) == 16 and not shown & others and len(play.others.public) == 984


def test_a_rehearsal_shows_what_the_steps_take_and_not_all_that_a_client_has(task, shadow, batch) -> None:
    view = dataclasses.replace(shadow.attacked(batch(0, 16).x, batch(0, 16).y), num_examples=500)
    case = portfolio.Case(view, task, Portfolio(), stream(0, purpose="attack"), math.inf)
    (play,) = played(case, shadow, 1)
    assert len(play.shown) == 16


def test_the_best_of_a_stage_counts_and_only_what_every_play_has(task, shadow, batch) -> None:
    view = shadow.attacked(batch(0, 16).x, batch(0, 16).y)
    case = portfolio.Case(view, task, Portfolio(), stream(0, purpose="attack"), math.inf)
    plays = played(case, shadow, 2)

    def found(by: str, x: torch.Tensor, missed: float, stage: str = ASKED) -> Found:
        return Found(by, Reconstruction(x, None, missed, 1), None, missed, stage)

    for play, missed in zip(plays, (0.1, 0.3), strict=True):
        near = (play.shown.x + 0.1).clamp(max=2)
        play.found.extend([found("sgi", near, missed), found("sgi", play.shown.x + 0.5, 0.0)])
    plays[0].found.append(found("sgi", plays[0].shown.x, 0.0, WENT_ON))
    ((key, gain),) = scored(plays).items()
    assert key == ("sgi", ASKED) and gain.psnr == pytest.approx(20, abs=1e-3) and gain.missed == pytest.approx(0.2)
