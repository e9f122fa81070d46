"""The figures at the top of a report: accuracy, density, worst leakage, bytes sent, rounds and failures."""

from collections.abc import Sequence
from typing import Any

from prunella.attacks.score.level import value
from prunella.server.report.pictures import who
from prunella.server.report.series import last, points, total
from prunella.server.report.units import NONE, decibels, digits, duration, percent, score, size
from prunella.server.report.verdict import worst_first
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


def _leakage_tile(audits: Sequence[StoreLine]) -> dict[str, Any]:
    scored = [a for a in audits if a["kind"] == "client" and a["outcome"] == "scored"]
    name = "Worst client leakage"
    if not scored:
        return _tile(name, "not measured", "no client was scored") | {"wide": True}
    worst = worst_first(scored)[0]
    other = {metric: value(worst, metric, "other") for metric in ("psnr", "ssim")}
    return _tile(
        name,
        f"PSNR {decibels(value(worst, 'psnr'))}",
        f"SSIM {score(value(worst, 'ssim'))} · NMI {score(value(worst, 'nmi'))} · {who(worst)}, round {worst['round']}",
        f"another image would score PSNR {decibels(other['psnr'])}, SSIM {score(other['ssim'])}",
    ) | {"wide": True}


def _failures_note(failures: float) -> str:
    return "replies left out" if failures else NO_FAILURES.lower()


def tiles(run: StoreLine, lines: Sequence[StoreLine], audits: Sequence[StoreLine]) -> list[dict[str, Any]]:
    accuracy, losses = points(lines, "accuracy_ratio"), last(lines, "loss")
    best = f"best {percent(max(y for _, y in accuracy))}" if accuracy else ""
    done, planned = last(lines, "round"), last(lines, "rounds") or run.get("settings", {}).get("rounds")
    failures = total(lines, "client_failures_total", "reason") or 0.0
    times = [y for _, y in points(lines, "round_seconds")]
    parameters = run.get("model_parameters")
    kept = last(lines, "mask_density_ratio")
    return [
        _tile("Accuracy", percent(accuracy[-1][1] if accuracy else None), best,
              f"loss {digits(losses)} nats" if losses is not None else ""),
        _tile("Density", percent(kept), f"of {parameters:,} parameters kept" if parameters else "parameters kept"),
        _leakage_tile(audits),
        _wire_tile(run, lines),
        _tile("Rounds", digits(done or 0), f"of {digits(float(planned))}" if planned else "",
              f"{duration(sum(times) / len(times))} a round" if times else ""),
        _tile("Failures", digits(failures) if lines else NONE, _failures_note(failures) if lines else "not known"),
    ]  # fmt: skip
