"""L4: advanced composition against its formula and the moments, the validated run, and verdicts on made-up numbers."""

import math
from typing import Any

import pytest

from prunella.benchmarks.engine.claim import Point
from prunella.benchmarks.engine.rules import HOLDS, NOT
from prunella.benchmarks.papers.fed_ltp_ablation import (
    NO_TICKET,
    PARTITIONS,
    VALIDATED,
    VARIANTS,
    ablations,
    judge_ablations,
)
from prunella.benchmarks.papers.private import ABLATED, METHODS, advanced, private_training, validated
from prunella.privacy.accounting import Charge, epsilon

TINY: dict[str, Any] = {"dataset": "digits", "model": "cnn", "clients": 2, "partition": "iid", "fraction": 1.0}
TINY |= {"rounds": 2, "local_steps": 1, "batch_size": 8, "learning_rate": 0.1, "momentum": 0.5}
TINY |= {"clip": 1.0, "noise": 1.4, "delta": 1e-3}


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
    methods = {cell["method"] for cell in ablations(TINY)}
    assert methods == {NO_TICKET, *VARIANTS, *VALIDATED} <= {*METHODS, *ABLATED}
    assert all(ABLATED[name].items() > METHODS[name.removesuffix(", validated")].items() for name in VALIDATED)


@pytest.mark.parametrize(
    ("ticket", "picked", "composed", "word"),
    [(0.1, 0.1, 2.0, HOLDS), (-0.1, 0.1, 2.0, NOT), (0.1, -0.1, 2.0, NOT), (0.1, 0.1, 0.1, NOT)],
)
def test_l4_asks_ticket_validation_and_accountant_to_help(
    ticket: float, picked: float, composed: float, word: str
) -> None:
    points = [Point((NO_TICKET, partition), {"best": (0.5,) * 3}) for partition in PARTITIONS]
    points += [Point((name, partition), {"best": (0.5 + ticket,) * 3}) for name in VARIANTS for partition in PARTITIONS]
    for name in VALIDATED:
        values = {"picked": 0.5 + picked, "last": 0.5, "trained": 0.2, "composed": composed}
        points.append(Point((name, "iid"), {key: (value,) * 3 for key, value in values.items()}))
    assert judge_ablations(points).word == word
