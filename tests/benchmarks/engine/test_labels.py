import itertools
import random

import pytest
from matplotlib.figure import Figure

from prunella.benchmarks.engine.labels import HIGH, WIDE, annotate, apart


@pytest.mark.parametrize("seed", range(5))
def test_texts_of_marks_that_lie_on_each_other_do_not_overlap(seed: int) -> None:
    draw = random.Random(seed)
    spots = [(draw.uniform(40, 260), draw.uniform(40, 160)) for _ in range(6)]
    places = {str(n): spots[n % len(spots)] for n in range(1, 25)}  # four on each spot
    moved = apart(places, (0, 300, 0, 200))
    at = {text: (places[text][0] + dx, places[text][1] + dy) for text, (dx, dy) in moved.items()}
    for one, other in itertools.combinations(at, 2):
        across, up = (abs(a - b) for a, b in zip(at[one], at[other], strict=True))
        assert across >= WIDE * len(one + other) / 2 or up >= HIGH, (one, other)
    assert all(0 < x < 300 and 0 < y < 200 for x, y in at.values())


def test_a_text_that_is_moved_has_a_line_to_its_mark_and_the_first_of_a_spot_lies_beside_it() -> None:
    axes = Figure(figsize=(4, 3)).subplots()
    places = {"1": (0.0, 0.0), "2": (0.0, 0.0), "3": (1.0, 1.0)}
    axes.scatter(*zip(*places.values(), strict=True))
    annotate(axes, places)
    lines = {text.get_text(): text.arrow_patch is not None for text in axes.texts}
    assert lines == {"1": True, "2": True, "3": False}
