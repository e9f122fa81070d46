"""How much an audit's worst image gives away, in one word: what a report says, and all that a client sends by default.

An audit is a mapping with ``scores`` as ``attacks.score.leakage.Leakage.to_dict`` makes them or, from a client that
tells no numbers, with its ``level`` only. Worst is the most leaking image. PSNR in dB, SSIM, NMI and NCC (correlation
without its sign) at most 1; higher leaks more for all four.

The one rule of what is legible, for reports, monitoring, controls and clients. An audit is

rebuilt    if its worst image is a *copy* (``COPY``, and of its shapes), which no guess is, or *legible* (``LEGIBLE``
           in any score) and *its own*: far nearer to the truth than all baselines are (``FAR``), or told from its
           look-alikes (``recognition``) and not far worse than the mean of its class.
traces     if it is nearer to the truth than to other images, by ``MARGINS`` or by recognition, or nearly so while it
           beats the mean of its class.
baseline   if it is neither, with a PSNR, and with every baseline known.
unknown    otherwise, and for a single image that there is no other image to compare with.

The thresholds were chosen on 138 labelled reconstructions: docs/attacks.md, "What is legible".
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

Level = Literal["rebuilt", "traces", "baseline", "unknown"]
ORDER: tuple[Level, ...] = ("unknown", "baseline", "traces", "rebuilt")
# Of several audits: one that could not be judged may leak more than one that found nothing.
WORST: tuple[Level, ...] = ("baseline", "unknown", "traces", "rebuilt")
FOUND: tuple[Level, ...] = ("traces", "rebuilt")  # evidence that needs no other
Line = Mapping[str, Any]

# An objective is 0 where a guess explains the whole update and about 1 where it explains nothing (both are relative).
# Guesses that miss a tenth of it may have nothing of its images: of one digit behind DGP, 4.9 dB at 0.10. No control
# vouches for such a fit, since one that misses as much has itself not undone its update.
FITTED = 0.01
LEGIBLE = {"psnr": 18.0, "ssim": 0.5, "ncc": 0.55}  # 18 dB: a root mean squared error of an eighth of the range
COPY = 30.0  # dB of PSNR: ``attacks.score.gallery.TWIN``
FAR = {"psnr": 6.0, "ncc": 0.5}  # dB above the baseline; the most of its 1 - NCC that may be left
# How far above its baseline a score is no longer chance. Measured with batches of 1, 4 and 16 of scikit-learn's digits,
# 60 times each: noise in place of a reconstruction is never 0.1 dB above the baseline and passes the SSIM margin now
# and then with one image, so SSIM and NMI count as a trace only together.
MARGINS = {"psnr": 2.0, "ssim": 0.2, "nmi": 0.1}
# Another image may be as near to a smooth or thin picture as its own: a blurred 1 is nearer to a thicker 1. Of a single
# image only, since the nearest of a large batch is nearly as near by chance.
NEARLY = {"ncc": 0.08, "blind": 2 / 3}  # below the other image's; the most of the class mean's 1 - NCC that may be left
BLIND = 2.0  # times the class mean's 1 - NCC: noise hides more of the pixels than of what they show, up to here

RULE = (
    f"A legible image ({LEGIBLE['psnr']:g} dB PSNR, SSIM {LEGIBLE['ssim']:g} or NCC {LEGIBLE['ncc']:g}) that is the "
    f"original's own: {FAR['psnr']:g} dB above every baseline, or with half of what other people's images and the best "
    "guess leave of 1 - NCC, or told apart from its look-alikes more often than chance would."
)


def value(audit: Line, metric: str, stat: str = "worst") -> float | None:
    """``audit["scores"][metric][stat]``, or None where anything on the way is missing."""
    spread = (audit.get("scores") or {}).get(metric)
    found = spread.get(stat) if isinstance(spread, Mapping) else None
    return float(found) if isinstance(found, int | float) and math.isfinite(found) else None


def baseline(audit: Line, metric: str) -> float | None:
    """The highest of what noise, another image and the best blind guess score; None unless the first two are known."""
    found = [value(audit, metric, stat) for stat in ("random", "other")]
    known = [each for each in (*found, value(audit, metric, "blind")) if each is not None]
    return max(known) if None not in found else None


def recognised(audit: Line) -> bool:
    """Whether more originals were told from their look-alikes than chance explains (``Recognition.low``)."""
    low, chance = value(audit, "recognition", "low"), value(audit, "recognition", "chance")
    return low is not None and chance is not None and low > chance


def _left(audit: Line, stat: str = "worst") -> float | None:
    """What of the original a picture does not show, as 1 - NCC."""
    found = value(audit, "ncc", stat)
    return None if found is None else 1 - found


def _ahead(audit: Line) -> bool:
    psnr, floor = value(audit, "psnr"), baseline(audit, "psnr")
    return psnr is not None and floor is not None and psnr >= floor + FAR["psnr"]


def _far(audit: Line) -> bool:
    if _ahead(audit):
        return True
    left, others = _left(audit), [_left(audit, stat) for stat in ("other", "blind")]
    known = [each for each in others if each is not None]  # without a gallery neighbours say little of what is alike
    return left is not None and len(known) == len(others) and left <= FAR["ncc"] * min(known)


def _told(audit: Line) -> bool:
    left, other, blind = (_left(audit, stat) for stat in ("worst", "other", "blind"))
    if left is None or other is None or not recognised(audit):
        return False
    return left < other and (blind is None or left <= BLIND * blind)


def legible(audit: Line) -> bool:
    """Whether the worst image could be read, were it known to be the client's own."""
    worst = {metric: value(audit, metric) for metric in LEGIBLE}
    return any(found is not None and found >= LEGIBLE[metric] for metric, found in worst.items())


def _pictured(audit: Line) -> bool:
    """Whether the worst image shows the original's shapes, where its correlation is known: a flat one, near as it may
    be to a dark picture, does not."""
    left = _left(audit)
    return left is None or 1 - left >= LEGIBLE["ncc"]


def _copied(audit: Line) -> bool:
    """Whether the worst image is the picture itself, and not one that anybody could have guessed."""
    psnr, blind = value(audit, "psnr"), value(audit, "psnr", "blind")
    return psnr is not None and psnr >= COPY and (blind is None or blind < COPY) and _pictured(audit)


def its_own(audit: Line) -> bool:
    """Whether the worst image is the original's by its error alone: what was held against the wrong truth is not."""
    return _copied(audit) or _ahead(audit)


def _rebuilt(audit: Line) -> bool:
    psnr = value(audit, "psnr")
    if _copied(audit):  # whatever its baselines are: of a frame of a film they are the frames beside it
        return True
    if baseline(audit, "psnr") is None:  # a baseline that is missing does not excuse a picture
        return psnr is not None and psnr >= LEGIBLE["psnr"] and _pictured(audit)
    return legible(audit) and (_far(audit) or _told(audit))


def _above(audit: Line, metric: str) -> bool:
    worst, floor = value(audit, metric), baseline(audit, metric)
    return worst is not None and floor is not None and worst >= floor + MARGINS[metric]


def _nearly(audit: Line) -> bool:
    left, other, blind = (_left(audit, stat) for stat in ("worst", "other", "blind"))
    if left is None or other is None or blind is None or not legible(audit) or not _single(audit):
        return False
    return left <= other + NEARLY["ncc"] and left <= NEARLY["blind"] * blind


def _single(audit: Line) -> bool:
    return (audit.get("scores") or {}).get("images") == 1


def level(audit: Line) -> Level:
    """How much the worst image of an audit gives away. Without baselines nothing is called harmless. A client says the
    word itself, and may know other images where its numbers do not: what leaks more counts.

    >>> spread = lambda worst, other: {"worst": worst, "random": 6.0, "other": other}
    >>> [level({"scores": {"psnr": spread(worst, 9.0)}}) for worst in (25.0, 12.0, 10.0)]
    ['rebuilt', 'traces', 'baseline']
    >>> level({"scores": {"psnr": {"worst": 10.0}}})
    'unknown'
    """
    said: Level = audit["level"] if audit.get("level") in ORDER else "unknown"
    return max(said, _shown(audit), key=ORDER.index)


def _shown(audit: Line) -> Level:
    """What the scores show."""
    if _rebuilt(audit):
        return "rebuilt"
    scored = [metric for metric in MARGINS if value(audit, metric) is not None]
    above = {metric for metric in scored if _above(audit, metric)}
    if "psnr" in above or {"ssim", "nmi"} <= above or _far(audit) or recognised(audit) or _nearly(audit):
        return "traces"
    alone = _single(audit) and not (audit.get("scores") or {}).get("recognition")
    judged = "psnr" in scored and not alone and all(baseline(audit, metric) is not None for metric in scored)
    return "baseline" if judged else "unknown"
