"""X4: who knows the client's weights sees a clean step, and rebuilds what the mismatch hides from SGI."""

from typing import Any

import pytest
import torch

from prunella.benchmarks.engine.claim import Point
from prunella.benchmarks.engine.rules import HOLDS, NOT
from prunella.benchmarks.engine.views import seen
from prunella.benchmarks.papers import stale, tradeoff
from prunella.core.randomness import PrivateGenerator, rehearsal
from prunella.tasks.data import Examples, make_task
from tests.benchmarks.papers.test_tradeoff import TINY as WEIGHED

TINY: dict[str, Any] = {**WEIGHED, "iterations": 40, "arm": "largest"}


def draw(purpose: str) -> PrivateGenerator:
    return rehearsal(0, purpose=purpose)


def test_told_is_the_same_client_with_the_step_alone() -> None:
    trained, own = tradeoff.federation(TINY, 0, None), tradeoff.examples_of(TINY, 0, 0, None)
    one = tradeoff.next_sender(TINY, make_task("cnn", "digits", None), trained, own)
    private = Examples(own.x[:1], own.y[:1])
    told = stale.told(one, draw)
    held, kept = one.state["largest"]["held"], one.state["largest"]["withheld"]
    for name, weights in told.received.params.items():
        assert torch.equal(weights[held[name]], kept[name][held[name]])
        assert torch.equal(weights[~held[name]], one.received.params[name][~held[name]])
    before, after = (seen(sender, private, draw).view for sender in (one, told))
    for name, update in after.update.items():
        assert torch.equal(update != 0, before.update[name] != 0)  # the same coordinates leave
        end = after.params[name] + update
        same = torch.isclose(before.params[name] + before.update[name], end, atol=1e-6)
        assert bool(same[update != 0].all())  # and end at the same weights
    found = stale.stale(TINY, 0, None)
    assert found["told"]["psnr"] > found["sgi"]["psnr"] + 5


def test_without_a_defense_all_three_see_the_same() -> None:
    found = stale.stale(tradeoff.TRADEOFF.control_of(TINY), 0, None)
    assert stale.STALE.works(found) and found[stale.TOLD] == found[stale.SGI]
    # The mean over draws of one and the same gradient is that gradient but for its last bit, which a descent enlarges.
    assert found[stale.EXPECTATION]["psnr"] == pytest.approx(found[stale.SGI]["psnr"], abs=5.0)
    assert not stale.STALE.works({"sgi": {"psnr": 19.0}})


@pytest.mark.parametrize(("lead", "word"), [(1.0, HOLDS), (-1.0, NOT)])
def test_x4_asks_the_adapted_attack_to_be_the_stronger(lead: float, word: str) -> None:
    level = {"sgi": 15.0, "expectation": 15.0 + lead, "told": 30.0}
    points = [Point((name, arm), {"psnr": (psnr,) * 3}) for name in ("mix", "largest") for arm, psnr in level.items()]
    verdict = stale.judge_stale(points)
    assert verdict.word == word and "30.0 behind mix" in verdict.reason
