"""Our own claims: cells of the board, judged by the strongest attack behind every chain."""

from collections.abc import Mapping

from prunella.benchmarks.engine.claim import Point
from prunella.benchmarks.engine.rules import HOLDS, NOT, UNDECIDED
from prunella.benchmarks.scenarios.board import BOARD
from prunella.benchmarks.scenarios.ours import PRUNING, UPDATES, X1, X2, by_chain, judge_composed, judge_hidden

Psnr = Mapping[tuple[str, str], float]  # of an attack behind a chain


def points(psnr: Psnr, spread: float = 1.0) -> list[Point]:
    found = []
    for (chain, attack), value in psnr.items():
        seeds = (value - spread, value, value + spread)
        images = {"psnr.0": seeds, "psnr.1": seeds}
        found.append(Point(("one-digit", "mnist", chain, attack), {"psnr": seeds, **images}))
    return found


def test_the_cells_are_those_of_the_board_of_more_images() -> None:
    board = BOARD.experiment.sweeps["small"]
    more = [{**cell, "updates": UPDATES} for cell in board.cells]
    assert all(cell in more for cell in X2.experiment.sweeps["small"].cells)
    hidden = [cell for cell in X1.experiment.sweeps["small"].cells if cell not in more]
    assert {cell["defenses"] for cell in hidden} == {f"{name},mask-hiding" for name in PRUNING if name != "dgp"}
    assert X1.experiment.sweeps["small"].seeds == X2.experiment.sweeps["small"].seeds == board.seeds


def test_the_strongest_attack_counts_and_no_more_than_sixty_decibels() -> None:
    found = by_chain(points({("dgp", "matching"): 20.0, ("dgp", "inverter"): 90.0, ("dgp", "class mean"): 99.0}))
    assert found == {("one-digit", "dgp"): (60.0, 60.0, 60.0)}


HIDDEN: Psnr = {
    ("none", "matching"): 60.0,
    ("dgp", "matching"): 30.0,
    ("dgp,mask-hiding", "matching"): 12.0,
    ("dgp,mask-hiding", "inverter"): 20.0,
}


def test_hiding_must_take_something_away_from_the_strongest_attack() -> None:
    assert judge_hidden(points(HIDDEN)).word == HOLDS
    assert judge_hidden(points({**HIDDEN, ("dgp,mask-hiding", "inverter"): 31.0})).word == NOT
    noisy = [p for p in points(HIDDEN, 0.0) if p.label[2] != "dgp"] + points({("dgp", "matching"): 23.0}, 6.0)
    assert judge_hidden(noisy).word == UNDECIDED


def test_two_defenses_must_not_leak_more_than_either() -> None:
    found = {("channel-natural", "inverter"): 14.0, ("dgp", "matching"): 30.0, ("channel-natural,dgp", "denoise"): 13.0}
    assert judge_composed(points(found)).word == HOLDS
    assert judge_composed(points({**found, ("channel-natural,dgp", "inverter"): 20.0})).word == NOT
