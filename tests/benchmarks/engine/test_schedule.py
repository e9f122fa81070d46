"""The order of cells, against every order there is."""

import itertools
import math
import random
from collections.abc import Mapping, Sequence

import pytest

from prunella.benchmarks.engine.schedule import Seconds, gain, next_cell

CLAIMS = {"A": [["a0", "a1"], ["b0", "b1"]], "B": [["x0"], ["y0"], ["z0"]], "C": [["c0"]]}
CONTROLS = {"a1": "a0", "b1": "b0"}


def in_order(claims: Mapping[str, Sequence[Sequence[str]]], seconds: Mapping[str, float]) -> list[str]:
    taken: list[str] = []
    while (key := next_cell(claims, CONTROLS, seconds.__getitem__, set(taken))) is not None:
        taken.append(key)
    return taken


def waited(order: Sequence[str], seconds: Mapping[str, float]) -> float:
    """What is known, late: every seed's gain times when it is complete; the sum over time of what is not known yet."""
    clock = dict(zip(order, itertools.accumulate(seconds[key] for key in order), strict=True))
    return sum(gain(n) * max(clock[key] for key in keys) for claim in CLAIMS.values() for n, keys in enumerate(claim))


@pytest.mark.parametrize("seed", range(4))
def test_of_all_orders_none_knows_as_much_as_early(seed: int) -> None:
    draw = random.Random(seed)
    by_name = {name: draw.uniform(0.1, 10) for name in "a0 a1 x0 c0".split()}  # alike at every seed
    seconds = by_name | {"b0": by_name["a0"], "b1": by_name["a1"], "y0": by_name["x0"], "z0": by_name["x0"]}
    found = in_order(CLAIMS, seconds)
    best = min(waited(order, seconds) for order in itertools.permutations(seconds))
    assert sorted(found) == sorted(seconds) and math.isclose(waited(found, seconds), best)
    assert all(found.index(control) < found.index(key) for key, control in CONTROLS.items())
    assert found.index("x0") < found.index("y0") < found.index("z0")


def test_a_cell_of_two_claims_counts_for_both_and_a_cheap_second_seed_goes_before_a_dear_first_one() -> None:
    shared = {"A": [["a", "b"]], "B": [["a", "b"]], "C": [["c", "d"]]}
    assert in_order(shared, {"a": 3.0, "b": 2.0, "c": 2.0, "d": 2.0}) == ["b", "a", "c", "d"]
    two = {"A": [["a"], ["b"]], "B": [["c"]]}
    assert in_order(two, {"a": 1.0, "b": 1.0, "c": 2.0}) == ["a", "c", "b"]
    assert in_order(two, {"a": 1.0, "b": 1.0, "c": 9.0}) == ["a", "b", "c"]


def test_a_claim_s_first_seed_is_whole_before_its_second_begins_whatever_that_takes() -> None:
    assert in_order({"A": [["a", "dear"], ["b"]]}, {"a": 1.0, "dear": 1e6, "b": 1e-6}) == ["a", "dear", "b"]


def test_a_control_is_not_taken_twice_and_a_dear_one_puts_its_cells_behind() -> None:
    claims, seconds = {"A": [["a0", "a1", "free"]]}, {"a0": 5.0, "a1": 1.0, "free": 2.0}
    assert in_order(claims, seconds) == ["free", "a0", "a1"]
    assert next_cell(claims, CONTROLS, seconds.__getitem__, {"a0"}) == "a1"


def test_seconds_are_of_the_same_settings_else_of_the_measure_else_stored_else_of_all() -> None:
    seconds = Seconds({"stored": 7.0})
    assert [seconds.of(name, "new") for name in ("one", "two")] == [7.0, 7.0] and Seconds().of("one", "new") == 1.0
    for name, took in (("one", 2.0), ("one", 4.0), ("two", 9.0)):
        seconds.learn(name, "m", took)
    assert [seconds.of(name, "m") for name in ("one", "two", "three")] == [3.0, 9.0, 5.0]
    assert seconds.of("one", "stored") == 7.0 and seconds.of("one", "new") == 5.0
