"""PriPrune's claims on leakage: the sweep, and verdicts on made-up curves."""

from prunella.benchmarks.engine.claim import Point
from prunella.benchmarks.engine.rules import HOLDS, NOT
from prunella.benchmarks.papers.priprune_claims import RATES, SCHEMES, judge_rate, judge_sgi, sweep


def curves(slope: float, lead: float) -> list[Point]:
    made = []
    for scheme in SCHEMES:
        for rate in RATES["small"]:
            for attack, more in (("sgi", lead), ("gi", 0.0)):
                level = 1 + more - slope * rate
                values = {"nmi": (level, level + 0.01, level - 0.01), "psnr": (30 * level,) * 3}
                made.append(Point((scheme, str(rate), attack), values))
    return made


def test_the_sweep_has_six_schemes_and_the_papers_rates() -> None:
    cells = sweep("paper").cells
    assert len(cells) == 30 and {c["rate"] for c in cells} == {0.1, 0.3, 0.5, 0.7, 0.9}
    assert {c["scheme"] for c in sweep("small").cells} == set(SCHEMES)


def test_p1_asks_both_metrics_to_fall() -> None:
    assert judge_rate(curves(0.5, 0.1)).word == HOLDS and judge_rate(curves(-0.5, 0.1)).word == NOT


def test_p3_asks_sgi_not_to_be_under_gi() -> None:
    assert judge_sgi(curves(0.5, 0.1)).word == HOLDS and judge_sgi(curves(0.5, -0.1)).word == NOT
