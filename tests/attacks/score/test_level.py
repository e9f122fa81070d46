"""The word for an audit, from its scores or from a client that tells no more."""

import pytest

from prunella.attacks.score.level import CLEAR, MARGINS, ORDER, RECOGNISABLE, level, value


def audit(psnr: float, ssim: float = 0.0, other: float = 9.0) -> dict[str, object]:
    def spread(worst: float, floor: float) -> dict[str, float]:
        return {"worst": worst, "random": 6.0 if floor > 1 else 0.0, "other": floor}

    return {"scores": {"psnr": spread(psnr, other), "ssim": spread(ssim, 0.1), "nmi": spread(0.0, 0.0)}}


@pytest.mark.parametrize(
    ("psnr", "ssim", "word"),
    [
        (RECOGNISABLE["psnr"], 0.0, "rebuilt"),
        (9.0 + CLEAR, RECOGNISABLE["ssim"], "rebuilt"),
        (9.0 + MARGINS["psnr"], 0.0, "traces"),
        (9.0 + MARGINS["psnr"] - 0.1, 0.0, "baseline"),
        (float("nan"), 0.0, "unknown"),
    ],
)
def test_a_level_is_of_the_worst_image_beside_its_baseline(psnr: float, ssim: float, word: str) -> None:
    found = audit(psnr, ssim)
    if word == "unknown":
        found = {"scores": {"psnr": {"worst": psnr}}}
    assert level(found) == word


def test_a_clients_own_word_counts_only_where_there_are_no_scores() -> None:
    assert [level({"scores": None, "level": word}) for word in ORDER] == list(ORDER)
    assert level({**audit(60.0, 1.0), "level": "baseline"}) == "rebuilt"
    assert level({"scores": None, "level": "perfectly safe"}) == "unknown"
    assert value({"scores": None, "level": "rebuilt"}, "psnr") is None
