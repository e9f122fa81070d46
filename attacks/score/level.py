"""How much an audit's worst image gives away, in one word: what a report says, and all that a client sends by default.

An audit is a mapping with ``scores`` as ``attacks.score.leakage.Leakage.to_dict`` makes them or, from a client that
tells no numbers, with its ``level`` only. Worst is the most leaking image. PSNR in dB, SSIM and NMI in [0, 1]; higher
leaks more for all three.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

Level = Literal["rebuilt", "traces", "baseline", "unknown"]
ORDER: tuple[Level, ...] = ("unknown", "baseline", "traces", "rebuilt")
Line = Mapping[str, Any]

# How far above its baseline a score is no longer chance. Measured with batches of 1, 4 and 16 of scikit-learn's digits,
# 60 times each: noise in place of a reconstruction is never 0.1 dB above the baseline and passes the SSIM margin now
# and then with one image, so SSIM and NMI count as a trace only together. The mean digit, which tells nothing about an
# image, is up to 5.9 dB above the baseline and reaches SSIM 0.78: so PSNR must be ``CLEAR`` above (half the error of
# another image) before an image counts as rebuilt. This errs on the side of a leak: digits have near-duplicates, so
# other people's real digits, matched to a batch of 16, reach 21.6 dB, and a generative prior can profit from that.
MARGINS = {"psnr": 2.0, "ssim": 0.2, "nmi": 0.1}
CLEAR = 6.0  # dB
RECOGNISABLE = {"psnr": 18.0, "ssim": 0.5}  # 18 dB: a root mean squared error of an eighth of the range


def value(audit: Line, metric: str, stat: str = "worst") -> float | None:
    """``audit["scores"][metric][stat]``, or None where anything on the way is missing."""
    spread = (audit.get("scores") or {}).get(metric)
    found = spread.get(stat) if isinstance(spread, Mapping) else None
    return float(found) if isinstance(found, int | float) and math.isfinite(found) else None


def baseline(audit: Line, metric: str) -> float | None:
    """The higher of what noise and another image score, or None unless both are known."""
    found = [value(audit, metric, stat) for stat in ("random", "other")]
    known = [each for each in found if each is not None]
    return max(known) if len(known) == len(found) else None


def _rebuilt(audit: Line) -> bool:
    psnr, ssim, floor = value(audit, "psnr"), value(audit, "ssim"), baseline(audit, "psnr")
    if psnr is None or (floor is not None and psnr < floor + CLEAR):
        return False
    return psnr >= RECOGNISABLE["psnr"] or (ssim is not None and floor is not None and ssim >= RECOGNISABLE["ssim"])


def _above(audit: Line, metric: str) -> bool:
    worst, floor = value(audit, metric), baseline(audit, metric)
    return worst is not None and floor is not None and worst >= floor + MARGINS[metric]


def level(audit: Line) -> Level:
    """How much the worst image of an audit gives away. Without baselines nothing is called harmless. A client
    that tells no numbers has said the word itself.

    >>> spread = lambda worst, other: {"worst": worst, "random": 6.0, "other": other}
    >>> [level({"scores": {"psnr": spread(worst, 9.0)}}) for worst in (25.0, 12.0, 10.0)]
    ['rebuilt', 'traces', 'baseline']
    >>> level({"scores": {"psnr": {"worst": 10.0}}})
    'unknown'
    """
    if audit.get("level") in ORDER and not audit.get("scores"):
        return audit["level"]  # type: ignore[no-any-return]
    if _rebuilt(audit):
        return "rebuilt"
    scored = [metric for metric in MARGINS if value(audit, metric) is not None]
    above = {metric for metric in scored if _above(audit, metric)}
    if "psnr" in above or {"ssim", "nmi"} <= above:
        return "traces"
    return "baseline" if scored and all(baseline(audit, metric) is not None for metric in scored) else "unknown"
