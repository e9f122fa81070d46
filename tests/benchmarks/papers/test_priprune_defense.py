"""PriPrune's claims on its defenses: cells that claims share, and verdicts on made-up planes."""

import pytest

from prunella.benchmarks.engine.claim import Point
from prunella.benchmarks.engine.rules import HOLDS, NOT
from prunella.benchmarks.papers.priprune_defense import (
    FIXED,
    NONE,
    PAPER,
    PRIPRUNE,
    SCHEMES,
    TUNED,
    Weights,
    adaptive,
    fixed,
    judge_adaptive,
    judge_planes,
    judge_table,
    judge_weights,
    named,
    planes,
    published_nmi,
    searched,
    table,
    weighted,
)

STRONGER, STRONGEST = (named(Weights(15, sha, 5)) for sha in (7e-6, 2e-6))


def point(scheme: str, arm: str, nmi: float, accuracy: float) -> Point:
    return Point(
        (scheme, arm),
        {metric: (nmi,) * 3 for metric in ("nmi_strongest", "nmi_better")} | {"accuracy": (accuracy,) * 3},
    )


def test_claims_share_cells() -> None:
    small = [str(cell) for cells in (planes("small"), adaptive("small"), table("small")) for cell in cells]
    assert len(small) == 7 + 10 + 16 and len(set(small)) == 7 + 10 + 12  # of PruneFL four are P7's
    assert {cell["defenses"] for cell in planes("paper")} == {NONE, *FIXED}
    assert all(cell["options"][f"{cell['defenses']}.rate"] == 0.3 for cell in planes("small")[1:])


@pytest.mark.parametrize(
    ("best", "gain", "word"), [("largest", 0.1, HOLDS), ("random", 0.1, NOT), ("largest", -0.1, NOT)]
)
def test_p6_asks_largest_to_hide_most_and_pseudo_to_help(best: str, gain: float, word: str) -> None:
    points = []
    for name in FIXED:
        nmi, accuracy = (0.2, 0.6) if name == best else (0.5, 0.7)
        points += [point("prunefl", fixed(name, 0.3, False), nmi, accuracy)]
        points += [point("prunefl", fixed(name, 0.3, True), nmi - 0.01, accuracy + gain)]
    assert judge_planes(points).word == word


def test_long_federations_step_at_lambda_acc_times_eta_and_so_does_their_base() -> None:
    paper = {(cell["scheme"], cell["arm"]): cell for cell in table("paper")}
    for scheme, weights in TUNED.items():
        rates = {paper[scheme, arm]["learning_rate"] for arm in (NONE, PAPER, STRONGER)}
        assert rates == {0.25 * weights.acc}  # line 9 of Alg. 3
        assert paper[scheme, PAPER]["options"]["priprune.lambda-acc"] == weights.acc
    assert {cell["learning_rate"] for cell in (*adaptive("small"), *table("small"))} == {0.25}
    assert published_nmi()["feddst", PAPER] == 0.13 and {arm for _, arm in published_nmi()} == {NONE, PAPER}


@pytest.mark.parametrize(("nmi", "accuracy", "word"), [(0.2, 0.79, HOLDS), (0.4, 0.79, NOT), (0.2, 0.7, NOT)])
def test_p7_asks_for_the_leak_of_60_percent_at_equal_accuracy(nmi: float, accuracy: float, word: str) -> None:
    points = [point("prunefl", NONE, 0.9, 0.8), point("prunefl", fixed("largest", 0.6, True), 0.2, 0.5)]
    points += [point("prunefl", arm, 0.9, 0.1) for arm in (STRONGER, STRONGEST)]  # one triple of weights is enough
    assert judge_adaptive([*points, point("prunefl", PAPER, nmi, accuracy)]).word == word


@pytest.mark.parametrize(("nmi", "accuracy", "word"), [(0.2, 0.79, HOLDS), (0.95, 0.79, NOT), (0.2, 0.7, NOT)])
def test_p8_asks_every_scheme_to_leak_less_at_equal_accuracy(nmi: float, accuracy: float, word: str) -> None:
    points = [point(scheme, NONE, 0.9, 0.8) for scheme in SCHEMES]
    points += [point(scheme, PAPER, 0.9, 0.8) for scheme in SCHEMES]  # equal accuracy and nothing hidden
    assert judge_table(points).word == NOT
    found = judge_table([*points, *(point(scheme, STRONGER, nmi, accuracy) for scheme in SCHEMES)])
    assert found.word == word and PAPER in found.reason and STRONGER in found.reason


def test_p9_has_the_papers_grid_and_its_least_number() -> None:
    table = searched()
    assert (
        len(table) == len(weighted("paper")) == 27
        and min(table.values()) == table["10", "10", "2e-06", PRIPRUNE] == 0.118
    )
    assert table["1", "1", "2e-05", PRIPRUNE] == 0.171 == max(table.values())
    assert {cell["options"]["priprune.lambda-pri"] for cell in weighted("small")} == {1, 10, 15}


@pytest.mark.parametrize(("slope", "word"), [(-0.01, HOLDS), (0.01, NOT)])
def test_p9_asks_nmi_to_fall_with_the_privacy_weight(slope: float, word: str) -> None:
    points = [Point((str(p), "5", "2e-06", PRIPRUNE), {"nmi_strongest": (0.5 + slope * p,) * 3}) for p in (1, 10, 15)]
    found = judge_weights(points)
    assert found.word == word and "lambda_sha 2e-06 is 0.000122 as used" in found.reason
