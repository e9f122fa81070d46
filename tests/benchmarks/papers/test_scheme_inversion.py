"""A cell of the leakage claims: a real federation, then both attacks, whose control succeeds on undefended images."""

from typing import Any

from prunella.benchmarks.papers import scheme_inversion
from prunella.benchmarks.papers.scheme_inversion import LEAKAGE

TINY: dict[str, Any] = {
    "dataset": "digits",
    "model": "cnn",
    "clients": 2,
    "rounds": 1,
    "local_steps": 1,
    "batch_size": 8,
}
TINY |= {"learning_rate": 0.1, "images": 1, "iterations": 100, "scheme": "random", "rate": 0.5}


def test_a_cell_scores_both_attacks_inside_the_schemes_mask_and_its_control_succeeds() -> None:
    found = scheme_inversion.leakage(TINY, 0, None)
    assert set(found) == {"gi", "sgi"} and 0.45 < found["sgi"]["kept"] < 0.6
    dense = scheme_inversion.leakage(LEAKAGE.control_of(TINY), 0, None)
    assert LEAKAGE.works(dense) and dense["sgi"]["kept"] == 1.0
    dense["gi"]["psnr"] = 19.9
    assert not LEAKAGE.works(dense)
