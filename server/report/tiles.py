"""The figures at the top of a report: accuracy, density, worst leakage, ε, bytes sent, rounds and failures."""

from collections.abc import Sequence
from math import inf
from typing import Any

from prunella.attacks.score.level import value
from prunella.server.report.evidence import WORDS, who
from prunella.server.report.series import last, points, total
from prunella.server.report.state import RunState
from prunella.server.report.units import NONE, decibels, digits, duration, percent, score, size
from prunella.server.report.verdict import RunVerdict
from prunella.server.store.schema import StoreLine

NO_FAILURES = "No reply was left out"


def _tile(name: str, value: str, *notes: str) -> dict[str, Any]:
    return {"name": name, "value": value, "notes": [note for note in notes if note], "wide": False}


def _wire_tile(run: StoreLine, lines: Sequence[StoreLine]) -> dict[str, Any]:
    sent, dense = total(lines, "wire_bytes_total", "direction"), total(lines, "wire_dense_bytes_total", "direction")
    note = ""
    if sent is not None and dense:
        saved = 1 - sent / dense
        note = f"{percent(abs(saved))} {'less' if saved >= 0 else 'more'} than dense ({size(dense)})"
    values = run.get("settings", {}).get("values", "float32")
    return _tile("Sent, both ways", size(sent), note, "" if values == "float32" else f"updates rounded to {values}")


def _leakage_tile(answer: RunVerdict) -> dict[str, Any]:
    """Of the audit that the verdict sums the run up by, with its badge: a low score may prove nothing or be legible."""
    name, wide, worst, badge = "Worst leakage", {"wide": True}, answer.worst, answer.badge.lower()
    if worst is None:
        return _tile(name, "not measured", "no client was scored") | wide
    where = f"{who(worst)}, round {worst['round']}"
    if not worst.get("scores"):
        return _tile(name, WORDS[answer.worst_level], badge, where, "as the client reported, without numbers") | wide
    psnr, ssim, nmi = (value(worst, metric) for metric in ("psnr", "ssim", "nmi"))
    other = {metric: value(worst, metric, "other") for metric in ("psnr", "ssim")}
    return (
        _tile(
            name,
            f"PSNR {decibels(psnr)}",
            badge,
            f"SSIM {score(ssim)} · NMI {score(nmi)} · {where}",
            "there is no other image to compare with"
            if other["psnr"] is None
            else f"another image would score PSNR {decibels(other['psnr'])}, SSIM {score(other['ssim'])}",
        )
        | wide
    )


def _accuracy_tile(state: RunState, lines: Sequence[StoreLine]) -> dict[str, Any]:
    accuracy = points(lines, "accuracy_ratio")
    best = f"best {percent(max(y for _, y in accuracy))}" if accuracy else ""
    loss = "" if state.loss is None else f"loss {digits(state.loss)} nats" if state.loss < inf else "loss not finite"
    doubt = state.doubt[0].lower() if state.doubt and state.accuracy is not None else ""
    return _tile("Accuracy", percent(state.accuracy), best, loss, doubt)


def _promise_tile(state: RunState) -> dict[str, Any]:
    if state.epsilon is None:
        return _tile("Promised", "no ε", "no bound on what an attack may tell")
    mean = "" if state.mean_epsilon is None else f"{digits(state.mean_epsilon)} on average"
    value, _, delta = state.promise.partition(" at ")
    return _tile("Promised", value, f"at {delta}", "for the client that spent most", mean)


def tiles(run: StoreLine, lines: Sequence[StoreLine], state: RunState, answer: RunVerdict) -> list[dict[str, Any]]:
    done, planned = last(lines, "round"), last(lines, "rounds") or run.get("settings", {}).get("rounds")
    failures = total(lines, "client_failures_total", "reason") or 0.0
    left_out = "not known" if not lines else "replies left out" if failures else NO_FAILURES.lower()
    times = [y for _, y in points(lines, "round_seconds")]
    parameters = run.get("model_parameters")
    kept = last(lines, "mask_density_ratio")
    return [
        _accuracy_tile(state, lines),
        _tile("Density", percent(kept), "of the prunable weights",
              f"{parameters:,} parameters in all" if parameters else ""),
        _leakage_tile(answer),
        _promise_tile(state),
        _wire_tile(run, lines),
        _tile("Rounds", digits(done or 0), f"of {digits(float(planned))}" if planned else "",
              f"{duration(sum(times) / len(times))} a round" if times else ""),
        _tile("Failures", digits(failures) if lines else NONE, left_out),
    ]  # fmt: skip
