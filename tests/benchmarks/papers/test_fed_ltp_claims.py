"""Fed-LTP's Table 2: what P1 the printed numbers allow, and counts of real masks."""

import pytest

from prunella.benchmarks.engine.claim import Point
from prunella.benchmarks.engine.rules import HOLDS, NOT, TREND
from prunella.benchmarks.papers import fed_ltp_claims
from prunella.privacy.accounting import Charge, ltp_printed


def allowed(public: str) -> tuple[float, float]:
    """The values of 1 - P1 that give every printed number of one public dataset."""
    low, high = 0.0, 2.0
    for (name, further, model), printed in fed_ltp_claims.PRINTED.items():
        if name == public:
            share = (1 - float(further)) ** int(model)
            low, high = max(low, (printed - 0.005) / share), min(high, (printed + 0.005) / share)
    return low, high


def test_the_inferred_retention_is_the_only_one_the_table_allows() -> None:
    low, high = allowed("femnist")
    assert (round(low, 4), round(high, 4)) == (0.7367, 0.7389) and low < 1 - fed_ltp_claims.FIRST["femnist"] < high
    low, high = allowed("cifar10")
    assert low > high  # nothing gives all 20: the remark on the page says so


def test_the_published_epsilon_counts_one_step_a_round() -> None:
    """The remark on L2's page: 5.35 is Eq. (20) as printed with one of the 300 local steps counted."""
    for steps, laplace, expected in ((300, 0.0, 9.68), (1, 10.0, 5.33), (300, 10.0, 11.25)):
        one = Charge("", noise=1.4, sampling=15 / 955, steps=steps, laplace=laplace)
        assert ltp_printed(one, 100, 1e-3) == pytest.approx(expected, abs=0.006)


@pytest.mark.parametrize(
    ("mib", "epsilon", "accuracy", "word"),
    [(0.5, 0.5, 0.1, HOLDS), (0.5, 1.0, 0.1, NOT), (0.9, 0.5, 0.1, NOT), (0.5, 0.5, -0.1, NOT)],
)
def test_l2_asks_for_half_the_bytes_half_the_epsilon_and_no_less_accuracy(
    mib: float, epsilon: float, accuracy: float, word: str
) -> None:
    points = [Point(("dp-fed", "iid"), {"mib": (10.0,) * 3, "epsilon": (1.0,) * 3, "best": (0.7,) * 3})]
    for method in fed_ltp_claims.LTP:
        values = {"mib": (10 * mib,) * 3, "epsilon": (epsilon,) * 3, "best": (0.7 + accuracy,) * 3}
        points.append(Point((method, "iid"), values))
    assert fed_ltp_claims.judge_private(points).word == word


def test_masks_keep_what_the_formula_says_to_the_weight() -> None:
    found = fed_ltp_claims.retention({"public": "femnist", "further": 0.4}, 0, None)
    assert [round(found[str(i)]["retention"], 2) for i in range(1, 6)] == [0.44, 0.27, 0.16, 0.10, 0.06]
    assert all(0 <= model["off"] < 1 for model in found.values())


def judged(change: float, off: float = 0.5) -> str:
    points = [
        Point(label, {"retention": (printed + change,) * 3, "off": (off,) * 3})
        for label, printed in fed_ltp_claims.PRINTED.items()
    ]
    return fed_ltp_claims.judge_retention(points).word


@pytest.mark.parametrize(
    ("change", "off", "word"), [(0.0, 0.5, HOLDS), (0.0055, 0.5, TREND), (0.5, 0.5, NOT), (0, 2, NOT)]
)
def test_the_verdict_asks_for_printed_digits_and_exact_counts(change: float, off: float, word: str) -> None:
    assert judged(change, off) == word


@pytest.mark.parametrize(("lead", "word"), [(0.1, HOLDS), (-0.1, NOT)])
def test_l1_asks_both_variants_to_beat_both_baselines(lead: float, word: str) -> None:
    points = []
    for partition in ("iid", "dirichlet"):
        points += [Point((method, partition), {"best": (0.6, 0.7, 0.65)}) for method in fed_ltp_claims.BASELINES]
        points += [
            Point((method, partition), {"best": (0.6 + lead, 0.7 + lead, 0.65)}) for method in fed_ltp_claims.LTP
        ]
    assert fed_ltp_claims.judge_utility(points).word == word
