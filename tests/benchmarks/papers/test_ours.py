"""Our own claims: listed, swept over every pruning defense there is, and judged by the better attack."""

from collections.abc import Mapping

from prunella.benchmarks.engine.claim import Point
from prunella.benchmarks.engine.rules import HOLDS, NOT
from prunella.benchmarks.papers.ours import HIDEABLE, PRUNING, X1, X2, judge_aware, judge_composed, stronger


def test_every_update_defense_that_prunes_is_swept() -> None:
    assert {"dgp", "adgp", "priprune"} <= set(HIDEABLE) and not {"none", "mask-hiding", "leakage-guard"} & set(HIDEABLE)
    chains = {cell["defenses"] for cell in X1.experiment.sweeps["small"].cells}
    assert set(PRUNING) | {f"{name},mask-hiding" for name in HIDEABLE} | {"none"} == chains
    for cell in X2.experiment.sweeps["small"].cells:
        assert ("channel-natural.kappa" in cell["raw"]) == ("channel-natural" in cell["defenses"])


def points(psnr: Mapping[tuple[str, str], float]) -> list[Point]:
    return [Point(("mnist", *label), {"psnr": (value, value + 1, value + 2)}) for label, value in psnr.items()]


AWARE = {("dgp", "ig"): 10.0, ("dgp", "sgi"): 30.0, ("dgp,mask-hiding", "ig"): 12.0, ("dgp,mask-hiding", "sgi"): 11.0}


def test_the_aware_attack_must_be_stronger_and_hiding_must_help() -> None:
    assert judge_aware(points(AWARE)).word == HOLDS
    assert judge_aware(points({**AWARE, ("dgp", "sgi"): 5.0})).word == NOT
    assert judge_aware(points({**AWARE, ("dgp,mask-hiding", "ig"): 40.0})).word == NOT
    assert stronger(points(AWARE))["mnist", "dgp,mask-hiding"] == (12.0, 13.0, 14.0)


def test_two_defenses_must_not_leak_more_than_either() -> None:
    single = {
        ("channel-natural", "ig"): 14.0,
        ("channel-natural", "sgi"): 14.0,
        ("dgp", "ig"): 9.0,
        ("dgp", "sgi"): 30.0,
    }
    low = {("channel-natural,dgp", "ig"): 9.0, ("channel-natural,dgp", "sgi"): 13.0}
    assert judge_composed(points({**single, **low})).word == HOLDS
    assert judge_composed(points({**single, **low, ("channel-natural,dgp", "sgi"): 20.0})).word == NOT
