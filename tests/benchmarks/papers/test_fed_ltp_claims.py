"""Fed-LTP: what P1 the printed numbers allow, counts of real masks, what a part is worth, and verdicts."""

import math

import pytest

from prunella.benchmarks.engine.claim import Point
from prunella.benchmarks.engine.rules import HOLDS, NOT, TREND
from prunella.benchmarks.papers import fed_ltp_claims
from prunella.benchmarks.papers.fed_ltp_claims import LTP, NO_TICKET, PARTITIONS, VALIDATED, judge_ablations
from prunella.benchmarks.papers.private import ABLATED, METHODS, advanced, private_training, validated
from prunella.privacy.accounting import Charge, epsilon
from tests.benchmarks.papers.test_private import TINY as ROUND


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


def ltp_printed(charge: Charge, rounds: int, delta: float) -> float:
    """LTP Eq. (20) as printed for ``rounds`` = t + 1 rounds that cost ``charge`` each, least over orders."""
    import dp_accounting as dp
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    accountant = rdp.RdpAccountant()
    sampled = dp.PoissonSampledDpEvent(charge.sampling, dp.GaussianDpEvent(charge.noise))
    accountant.compose(dp.SelfComposedDpEvent(sampled, rounds * charge.steps))
    found = []
    for order, gaussian in zip(accountant._orders, accountant._rdp, strict=True):
        extra = rounds * order * (order - 1) / (2 * charge.laplace**2) if charge.laplace else 0.0
        tail = (math.log(1 / delta) - math.log(order)) / (order - 1) + math.log1p(-1 / order)
        found.append(float(gaussian + extra + tail))
    return max(0.0, min(found))


def test_eq_20_as_printed_has_the_extra_factor_in_validation() -> None:
    alone = Charge("", 1.4, 15 / 955, 300)
    printed = ltp_printed(alone, 10, 1e-3)
    assert printed == pytest.approx(epsilon([Charge("", 1.4, 15 / 955, 3000)], 1e-3, "rdp"), rel=0.02)
    checked = Charge("", 1.4, 15 / 955, 300, laplace=10.0)
    composed = epsilon([checked] * 10, 1e-3, "rdp")
    assert ltp_printed(checked, 10, 1e-3) > composed > printed


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
            Point((method, partition), {"best": (0.6 + lead, 0.7 + lead, 0.65 + 0.8 * lead)})
            for method in fed_ltp_claims.LTP
        ]
    assert fed_ltp_claims.judge_utility(points).word == word


TINY = {**ROUND, "rounds": 2}


def charge(steps: int, sampling: float = 0.01) -> Charge:
    return Charge("", noise=1.4, sampling=sampling, steps=steps)


def test_advanced_composition_is_the_theorem_and_more_than_the_moments() -> None:
    step = epsilon([Charge("", noise=1.4, sampling=1.0, steps=1)], 1e-3 / 200, "pld")
    by_hand = math.sqrt(200 * math.log(2000)) * step + 100 * step * math.expm1(step)
    assert advanced([charge(100, 1.0)], 1e-3) == pytest.approx(by_hand)
    assert advanced([charge(60), charge(40)], 1e-3) == advanced([charge(100)], 1e-3)
    assert advanced([charge(100)], 1e-3) > 2 * epsilon([charge(100)], 1e-3, "rdp")
    with pytest.raises(ValueError, match="equal steps"):
        advanced([charge(1), charge(1, 0.5)], 1e-3)


def test_the_picked_round_is_the_one_with_the_best_noisy_count() -> None:
    row = validated([0.2, 0.9, 0.4], [0.3, 0.5, 0.6], [charge(10)], 1e-3)
    assert row["picked"] == 0.5 and row["trained"] < row["composed"]


def test_a_validated_run_pays_for_its_answers() -> None:
    found = private_training({**TINY, "method": VALIDATED[0]}, 0, None)["iid"]
    assert found["epsilon"] > found["trained"] > 0 and found["last"] <= found["best"] and found["picked"] > 0
    assert "picked" not in private_training({**TINY, "method": NO_TICKET}, 0, None)["iid"]


def test_every_ablation_is_a_method_and_one_part_less() -> None:
    methods = {cell["method"] for cell in fed_ltp_claims.crossed(TINY, (NO_TICKET, *LTP), also=VALIDATED)}
    assert methods == {NO_TICKET, *LTP, *VALIDATED} <= {*METHODS, *ABLATED}
    assert all(ABLATED[name].items() > METHODS[name.removesuffix(", validated")].items() for name in VALIDATED)


@pytest.mark.parametrize(
    ("ticket", "picked", "composed", "word"),
    [(0.1, 0.1, 2.0, HOLDS), (-0.1, 0.1, 2.0, NOT), (0.1, -0.1, 2.0, NOT), (0.1, 0.1, 0.1, NOT)],
)
def test_l4_asks_ticket_validation_and_accountant_to_help(
    ticket: float, picked: float, composed: float, word: str
) -> None:
    points = [Point((NO_TICKET, partition), {"best": (0.5,) * 3}) for partition in PARTITIONS]
    points += [Point((name, partition), {"best": (0.5 + ticket,) * 3}) for name in LTP for partition in PARTITIONS]
    for name in VALIDATED:
        values = {"picked": 0.5 + picked, "last": 0.5, "trained": 0.2, "composed": composed}
        points.append(Point((name, "iid"), {key: (value,) * 3 for key, value in values.items()}))
    assert judge_ablations(points).word == word
