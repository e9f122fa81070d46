"""Fed-LTP's Table 2: what P1 the printed numbers allow, and counts of real masks."""

import pytest

from benchmarks.claims import fed_ltp
from benchmarks.claims.claim import Point
from benchmarks.claims.verdict import HOLDS, NOT, TREND


def allowed(public: str) -> tuple[float, float]:
    """The values of 1 - P1 that give every printed number of one public dataset."""
    low, high = 0.0, 2.0
    for (name, further, model), printed in fed_ltp.PRINTED.items():
        if name == public:
            share = (1 - float(further)) ** int(model)
            low, high = max(low, (printed - 0.005) / share), min(high, (printed + 0.005) / share)
    return low, high


def test_the_inferred_retention_is_the_only_one_the_table_allows() -> None:
    low, high = allowed("femnist")
    assert (round(low, 4), round(high, 4)) == (0.7367, 0.7389) and low < 1 - fed_ltp.FIRST["femnist"] < high
    low, high = allowed("cifar10")
    assert low > high  # nothing gives all 20: the remark on the page says so


def test_masks_keep_what_the_formula_says_to_the_weight() -> None:
    found = fed_ltp.retention({"public": "femnist", "further": 0.4}, 0, None)
    assert [round(found[str(i)]["retention"], 2) for i in range(1, 6)] == [0.44, 0.27, 0.16, 0.10, 0.06]
    assert all(0 <= model["off"] < 1 for model in found.values())


def judged(change: float, off: float = 0.5) -> str:
    points = [
        Point(label, {"retention": (printed + change,) * 3, "off": (off,) * 3})
        for label, printed in fed_ltp.PRINTED.items()
    ]
    return fed_ltp.judge_retention(points).word


@pytest.mark.parametrize(
    ("change", "off", "word"), [(0.0, 0.5, HOLDS), (0.0055, 0.5, TREND), (0.5, 0.5, NOT), (0, 2, NOT)]
)
def test_the_verdict_asks_for_printed_digits_and_exact_counts(change: float, off: float, word: str) -> None:
    assert judged(change, off) == word
