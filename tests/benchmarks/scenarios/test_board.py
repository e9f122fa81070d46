"""The board's cells and submissions; its numbers are in docs/results/board.json."""

import pytest

from prunella.attacks import Attack
from prunella.attacks.ig import Ig
from prunella.benchmarks.engine.claim import SIZES, Claim
from prunella.benchmarks.engine.measuring import cells_of, control_of
from prunella.benchmarks.scenarios import board as bench
from prunella.benchmarks.scenarios.ours import X1, X2
from prunella.benchmarks.scenarios.scenario import LARGER, of
from prunella.core.errors import ConfigError
from prunella.privacy import DEFENSES
from prunella.privacy.chain import build_chain

DEFENSE = DEFENSES["dgp"]
ATTACK = Attack(Ig, lambda *given: given[0], "nobody")
EXPERIMENT = bench.BOARD.experiment


def test_twelve_defenses_meet_every_scenario_and_every_cost_is_measured() -> None:
    cells = EXPERIMENT.sweeps["small"].cells
    assert len(bench.CHAINS) >= 13 and len(EXPERIMENT.sweeps["small"].seeds) == 5
    assert len(cells) == len(bench.CHAINS) * (len(bench.NAMED) + len(bench.LENGTHS))
    assert len(bench.NAMED) == 9
    for chain in bench.CHAINS:
        build_chain(chain.split(","), {})


def test_every_defense_but_two_meets_the_worst_cases() -> None:
    sweep = bench.DEFENSES.experiment.sweeps["small"].cells
    assert set(DEFENSES) - {name for cell in sweep for name in cell["defenses"].split(",")} == {"ats", "leakage-guard"}
    for chain in bench.MORE:
        build_chain(chain.split(","), {})
    board = EXPERIMENT.sweeps["small"].cells
    assert sum(cell in board for cell in sweep) == 4 * len(bench.CHAINS)  # whose cells are not measured twice


def test_some_of_the_chains_meet_larger_models_in_the_worst_case() -> None:
    sweep = bench.MODELS.experiment.sweeps["small"].cells
    asked = {model: [cell["defenses"] for cell in sweep if cell["model"] == model] for model in LARGER}
    assert asked == {"conv-2": [*bench.SOME], "vit": [*bench.SOME], "resnet18": ["none"]}
    assert set(bench.SOME) < set(bench.CHAINS)
    assert {of(cell).images for cell in sweep} == {1} and set(bench.NAMED).isdisjoint(c["scenario"] for c in sweep)


def test_controls_are_the_cells_without_a_defense_and_nothing_is_measured_twice() -> None:
    every = cells_of(EXPERIMENT, "small")
    assert len(every) == 5 * len(EXPERIMENT.sweeps["small"].cells)
    for cell in every[:30]:
        control = control_of(cell, EXPERIMENT)
        assert control is not None and control.settings["defenses"] == "none"
        assert control.settings["scenario"] == cell.settings["scenario"]


@pytest.mark.parametrize("table", [bench.BOARD, bench.DEFENSES, bench.MODELS, X1, X2], ids=lambda claim: claim.name)
def test_at_full_size_the_same_chains_meet_twenty_images_of_a_seed_and_an_attacker_with_more_time(table: Claim) -> None:
    small, paper = (
        {(one["scenario"], one["dataset"], one["defenses"]): one for one in table.experiment.sweeps[size].cells}
        for size in SIZES
    )
    unsolved = {key for key in paper if key[0] == "one-image-resnet18"}  # whose control has failed at small size
    assert paper.keys() - unsolved == small.keys() - unsolved
    for key, few in small.items():
        many = paper[key]
        assert few != many
        if few["scenario"] == bench.COST:
            assert many["rounds"] == 5 * few["rounds"] >= 75
            assert all(one["learning_rate_horizon"] == one["rounds"] and one["tested"] >= 10_000 for one in (few, many))
            continue
        assert (
            20 <= of(many).updates * of(many).images < 20 + of(many).images and of(many).passes == 10 * of(few).passes
        )


def test_a_federation_has_no_attack_that_could_fail() -> None:
    assert not EXPERIMENT.measure.attacks({"training": {"accuracy": 0.1}})
    assert not EXPERIMENT.measure.works({bench.MATCHING: {"psnr": 12.0}, "class mean": {"psnr": 30.0}})


def test_a_submission_is_a_defense_beside_none_or_an_attack_on_every_chain() -> None:
    mine = bench.submission(f"{__name__}:DEFENSE").experiment.sweeps["small"].cells
    assert {cell["defenses"] for cell in mine} == {"none", f"{__name__}:DEFENSE"}
    theirs = bench.submission(f"{__name__}:ATTACK").experiment.sweeps["small"].cells
    assert {cell["attack"] for cell in theirs} == {f"{__name__}:ATTACK"} and len(theirs) == 14 * len(bench.NAMED)
    with pytest.raises(ConfigError, match="is a tuple"):
        bench.submission(f"{bench.__name__}:CHAINS")
