"""The table of every audit in a report: who was attacked, with what result, and all scores beside their baselines."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prunella.attacks.score.level import level, value
from prunella.server.report.evidence import control_state, is_evidence, nearest_by_chance, weakness, who
from prunella.server.report.units import NONE, digits, duration, error, fixed, percent, plural, score
from prunella.server.store.schema import StoreLine

ROWS = 300  # audits in the table
RESULTS = {
    "rebuilt": ("leak", "● rebuilt"), "traces": ("traces", "◐ traces"), "baseline": ("clear", "○ nothing"),
    "unknown": ("unproven", "? not judged"),
}  # fmt: skip
MEMBERSHIP = {
    "found": ("traces", "◐ members found"), "not-found": ("unproven", "members not found"),
    "unresolved": ("unproven", "? not judged"),
}  # fmt: skip
OUTCOMES = {"no-consent": "no consent", "failed": "failed", "control-failed": "control failed", "scored": "scored"}


def _cell(audit: StoreLine, metric: str, shown: Callable[[float | None], str]) -> dict[str, Any]:
    worst, beside = value(audit, metric), [value(audit, metric, stat) for stat in ("random", "other", "blind")]
    known = [shown(each) for each in beside[: 2 if beside[2] is None else 3]]
    mean = shown(value(audit, metric, "mean"))
    return {"worst": shown(worst), "rest": () if worst is None else (mean, f"({', '.join(known)})")}


def _told_apart(recognition: Mapping[str, Any] | None) -> dict[str, Any]:
    if not recognition:
        return {"worst": NONE, "rest": ()}
    told = f"{digits(recognition['hits'])} of {digits(recognition['images'])}"
    return {"worst": told, "rest": (f"({percent(recognition['chance'])})",)}


def _share(scores: Mapping[str, Any], name: str, chance: float | None = None) -> dict[str, Any]:
    return {"worst": percent(scores.get(name)), "rest": () if chance is None else (f"({percent(chance)})",)}


def _cells(audit: StoreLine) -> list[dict[str, Any]]:
    scores = audit.get("scores") or {}
    spreads = [_cell(audit, "psnr", lambda y: NONE if y is None else fixed(y, 1))]
    spreads += [_cell(audit, metric, score) for metric in ("ssim", "nmi", "ami")]
    spreads += [_cell(audit, "mse", error), _cell(audit, "ncc", score)]
    named = _share(scores, "label_accuracy", scores.get("label_chance"))
    shares = [_share(scores, "iip", nearest_by_chance(scores)), _told_apart(scores.get("recognition")), named]
    objective = NONE if audit["objective"] is None else digits(audit["objective"])
    return [*spreads, *shares, {"worst": objective, "rest": (duration(audit["seconds"]),)}]


def _images(audit: StoreLine) -> str:
    images = (audit.get("scores") or {}).get("images")
    return plural(int(images), "image") if images else ""


def result_of(audit: StoreLine, audits: Sequence[StoreLine]) -> tuple[str, str]:
    """The tone (a CSS class) and the words of an audit's result."""
    if audit["outcome"] != "scored":
        return "unproven", OUTCOMES[audit["outcome"]]
    if audit["kind"] == "membership":
        return MEMBERSHIP[audit["membership"]["word"]]
    undefended = audit["kind"] in ("control", "single")
    if undefended and control_state(audit) == "failed":
        return "unproven", "control failed"
    if not undefended and not is_evidence(audit, audits):
        return "unproven", "proves nothing"
    if level(audit) == "baseline" and (why := weakness(audit, audits)):
        return "unproven", "? not explained" if why == "not explained" else "proves nothing"
    tone, words = RESULTS[level(audit)]
    return ("silent" if undefended else tone), words


def letter(index: int) -> str:
    """
    >>> letter(0), letter(25), letter(26)
    ('A', 'Z', 'A2')
    """
    turn, place = divmod(index, 26)
    return chr(ord("A") + place) + (str(turn + 1) if turn else "")


def audit_table(
    audits: Sequence[StoreLine], threats: Sequence[str], worst: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    """A row for each of the last audits, and for the ``worst``, which the headline is of, where it was before them."""
    rows, shown = [], list(audits[-ROWS:])
    if worst is not None and worst not in shown:
        shown = [dict(worst), *shown[1:]]
    for audit in shown:
        tone, result = result_of(audit, audits)
        rows.append({
            "round": audit["round"], "who": who(audit), "images": _images(audit), "tone": tone, "result": result,
            "reason": audit.get("reason") or "", "attack": audit["attack"], "found_by": audit.get("found_by") or "",
            "knows": "adaptive" if audit["adaptive"] else "not adaptive", "defense": audit["defense"],
            "threat": letter(threats.index(audit["threat"])), "cells": _cells(audit),
        })  # fmt: skip
    return rows


def no_pictures(audits: Sequence[StoreLine], coming: bool = False) -> str:
    """Why the report has no pictures; ``coming``, if audits of the run are still to come."""
    clients = [a for a in audits if a["kind"] == "client"]
    if not audits:
        return "no audit has ended yet." if coming else "nothing was audited."
    if clients and all(a["outcome"] == "no-consent" for a in clients):
        return "no client consented to be audited."
    if not clients:
        return "no client was audited, and the controls kept none."
    if all(a["outcome"] == "failed" for a in clients):
        return "every audit of a client failed, and the controls kept none."
    return "the audited clients consented to scores or numbers only, and the controls kept none."
