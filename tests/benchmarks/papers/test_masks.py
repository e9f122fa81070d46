"""Labels from bitmaps: the control succeeds, a random mask says nothing, and the verdict asks both."""

from typing import Any

import pytest

from prunella.benchmarks.engine.claim import Point
from prunella.benchmarks.engine.rules import HOLDS, NOT
from prunella.benchmarks.papers import masks

FEW: dict[str, Any] = {"dataset": "digits", "model": "cnn", "known": 80, "victims": 40}


def test_the_signs_of_all_values_tell_and_a_full_or_random_bitmap_does_not() -> None:
    plain = masks.cell({**FEW, "defenses": "none"}, 0, None)["mask"]
    assert plain["signs"] >= masks.SUCCESS and plain["whole"] < 0.4
    random = masks.cell({**FEW, "defenses": "random"}, 0, None)["mask"]
    assert random["whole"] < 0.4 and "signs" not in random


def test_the_bitmap_of_top_k_tells_and_its_last_layer_most() -> None:
    found = masks.cell({**FEW, "defenses": "top-k"}, 0, None)["mask"]
    assert found["whole"] > 0.5 > found["shuffled"]


def test_tickets_have_the_asked_rate_and_every_class() -> None:
    found = masks.cell({**FEW, "known": 40, "victims": 20, "defenses": masks.LOTTERY}, 0, None)["mask"]
    assert set(found) == {"whole", "inner", "shuffled"}


@pytest.mark.parametrize(
    ("changed", "word"), [({}, HOLDS), ({"dgp": 0.1}, NOT), ({"random": 0.5}, NOT), ({"dgp,mask-hiding": 0.4}, NOT)]
)
def test_both_halves_are_asked(changed: dict[str, float], word: str) -> None:
    values = {"none": 0.1, **dict.fromkeys(masks.RANKED, 0.8), **dict.fromkeys(masks.HIDDEN, 0.1), **changed}
    assert masks.judge([Point((name, "mask"), {"whole": (value,) * 3}) for name, value in values.items()]).word == word
