"""Sub-models cost less than whole ones, and who is not there costs nothing."""

import pytest

from prunella.benchmarks.papers.width_table import PAGE, STRENGTHS, WIDTH_TABLE, run

TINY = {**PAGE, "rounds": 1, "local_steps": 2, "device": "cpu"}


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_weak_clients_send_less_and_absent_ones_nothing(rate: float) -> None:
    found = {name: run({**TINY, "strength": name, "rate": rate}, 0, None)[str(rate)] for name in STRENGTHS}
    assert all(row["failures"] == 0 and 0 <= row["accuracy"] <= 1 for row in found.values())
    sizes = {name: row["megabytes"] for name, row in found.items()}
    assert sizes["strong"] == pytest.approx(sizes["whole"] / 4, rel=0.05) and sizes["mixed"] < 0.7 * sizes["whole"]


def test_every_strength_has_both_rates() -> None:
    cells = WIDTH_TABLE.experiment.sweeps["small"].cells
    assert {(cell["strength"], cell["rate"]) for cell in cells} == {(s, r) for s in STRENGTHS for r in (0.0, 0.5)}
