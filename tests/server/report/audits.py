"""Audits as a run store has them, with scores of three known levels."""

from typing import Any

Audit = dict[str, Any]


def spread(worst: float, other: float, random: float = 0.0) -> dict[str, float]:
    return {"mean": worst, "worst": worst, "random": random, "other": other}


REBUILT = {"psnr": spread(25.0, 10.0), "ssim": spread(0.9, 0.3), "nmi": spread(0.7, 0.3)}
TRACES = {"psnr": spread(13.0, 10.0), "ssim": spread(0.6, 0.3), "nmi": spread(0.5, 0.3)}
NOTHING = {"psnr": spread(9.0, 10.0), "ssim": spread(0.3, 0.3), "nmi": spread(0.3, 0.3)}


def audit(kind: str = "client", scores: Any = None, **changes: Any) -> Audit:
    base = {"round": 5, "kind": kind, "client": 1 if kind == "client" else None, "attack": "sgi", "defense": "dgp",
            "outcome": "scored" if scores else "no-consent", "scores": scores, "objective": 0.001,
            "ok": True if kind == "control" and scores is REBUILT else None}  # fmt: skip
    return base | changes


CONTROL = audit("control", REBUILT)
DEFENDED = audit("control-defended", NOTHING)
SINGLE = audit("single", REBUILT)
CONTROL_FAILED = audit("control", NOTHING, outcome="control-failed", ok=False)
