"""``report.html``: one file for the privacy officer and the engineer, made from the run store alone.

It answers the question first (``server.report.verdict``), then shows the evidence: pictures, leakage by round, cost,
every audit with its threat model, what the defenses promise, failures, and how to do it again. The file loads nothing:
charts are inline SVG, pictures are data URIs, and every text from the store is escaped. A run that is unfinished, that
has no audits or that lacks files still gets its report, which then says so.
"""

import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from prunella.attacks import SECTIONS as ATTACK_SECTIONS
from prunella.attacks.score.level import level, value
from prunella.core.config import Run, kebab, section_defaults
from prunella.core.errors import ConfigError
from prunella.core.files import write_atomically
from prunella.privacy import SECTIONS as PRIVACY_SECTIONS
from prunella.server.report.figures import leakage_charts, run_charts
from prunella.server.report.page import STYLE, TEMPLATE
from prunella.server.report.pictures import choose, strip, who
from prunella.server.report.series import label_values, last, points, total
from prunella.server.report.units import NONE, decibels, digits, duration, error, fixed, percent, plural, score, size
from prunella.server.report.verdict import Verdict, control_of, control_state, verdict, worst_first
from prunella.server.store import Line, StoreError, check_audit, read_audits, read_metrics, read_run
from prunella.strategies import SECTIONS as STRATEGY_SECTIONS
from prunella.tasks.exported import read_description

ROWS = 300  # audits in the table
OPEN = 6  # picture strips that are seen without a click
REPORT = "report.html"
KINDS = ("control", "control-defended", "client")
OWN = ("run-dir", "resume", "metrics-address")  # settings of the place, not of the experiment
NO_FAILURES = "No reply was left out"
RESULTS = {
    "rebuilt": ("leak", "● rebuilt"), "traces": ("traces", "◐ traces"), "baseline": ("clear", "○ nothing"),
    "unknown": ("unproven", "? not judged"),
}  # fmt: skip
OUTCOMES = {"no-consent": "no consent", "failed": "failed", "control-failed": "control failed", "scored": "scored"}


def _tile(name: str, value: str, *notes: str) -> dict[str, Any]:
    return {"name": name, "value": value, "notes": [note for note in notes if note], "wide": False}


def _wire_tile(run: Line, lines: Sequence[Line]) -> dict[str, Any]:
    sent, dense = total(lines, "wire_bytes_total", "direction"), total(lines, "wire_dense_bytes_total", "direction")
    note = ""
    if sent is not None and dense:
        saved = 1 - sent / dense
        note = f"{percent(abs(saved))} {'less' if saved >= 0 else 'more'} than dense ({size(dense)})"
    values = run.get("settings", {}).get("values", "float32")
    return _tile("Sent, both ways", size(sent), note, "" if values == "float32" else f"updates rounded to {values}")


def _leakage_tile(audits: Sequence[Line]) -> dict[str, Any]:
    scored = [a for a in audits if a["kind"] == "client" and a["outcome"] == "scored"]
    name = "Worst client leakage"
    if not scored:
        return _tile(name, "not measured", "no client was scored") | {"wide": True}
    worst = worst_first(scored)[0]
    return _tile(
        name,
        f"PSNR {decibels(value(worst, 'psnr'))}",
        f"SSIM {score(value(worst, 'ssim'))} · NMI {score(value(worst, 'nmi'))} · {who(worst)}, round {worst['round']}",
        f"another image: PSNR {decibels(value(worst, 'psnr', 'other'))}, SSIM {score(value(worst, 'ssim', 'other'))}",
    ) | {"wide": True}


def _failures_note(failures: float) -> str:
    return "replies left out" if failures else NO_FAILURES.lower()


def tiles(run: Line, lines: Sequence[Line], audits: Sequence[Line]) -> list[dict[str, Any]]:
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


def _cell(audit: Line, metric: str, shown: Callable[[float | None], str]) -> dict[str, Any]:
    mean, random, other = (shown(value(audit, metric, stat)) for stat in ("mean", "random", "other"))
    worst = value(audit, metric)
    return {"worst": shown(worst), "rest": () if worst is None else (mean, f"({random}, {other})")}


def _cells(audit: Line) -> list[dict[str, Any]]:
    scores = audit.get("scores") or {}
    spreads = [_cell(audit, "psnr", lambda y: NONE if y is None else fixed(y, 1))]
    spreads += [_cell(audit, metric, score) for metric in ("ssim", "nmi", "ami")] + [_cell(audit, "mse", error)]
    shares = [{"worst": percent(scores.get(name)), "rest": ()} for name in ("iip", "label_accuracy")]
    objective = NONE if audit["objective"] is None else digits(audit["objective"])
    return [*spreads, *shares, {"worst": objective, "rest": (duration(audit["seconds"]),)}]


def _images(audit: Line) -> str:
    images = (audit.get("scores") or {}).get("images")
    return plural(int(images), "image") if images else ""


def _result(audit: Line, audits: Sequence[Line]) -> tuple[str, str]:
    """The tone and the words of an audit's result."""
    if audit["outcome"] != "scored":
        return "unproven", OUTCOMES[audit["outcome"]]
    if audit["kind"] == "control" and control_state(audit) == "failed":
        return "unproven", "control failed"
    found = level(audit)
    if audit["kind"] != "control" and found != "rebuilt" and control_state(control_of(audit, audits)) != "rebuilt":
        return "unproven", "proves nothing"
    tone, words = RESULTS[found]
    return ("silent" if audit["kind"] == "control" else tone), words


def letter(index: int) -> str:
    """
    >>> letter(0), letter(25), letter(26)
    ('A', 'Z', 'A2')
    """
    turn, place = divmod(index, 26)
    return chr(ord("A") + place) + (str(turn + 1) if turn else "")


def audit_rows(audits: Sequence[Line], threats: Sequence[str]) -> list[dict[str, Any]]:
    rows = []
    for audit in audits[-ROWS:]:
        tone, result = _result(audit, audits)
        rows.append({
            "round": audit["round"], "who": who(audit), "images": _images(audit), "tone": tone, "result": result,
            "attack": audit["attack"],
            "knows": "adaptive" if audit["adaptive"] else "not adaptive", "defense": audit["defense"],
            "threat": letter(threats.index(audit["threat"])), "cells": _cells(audit),
        })  # fmt: skip
    return rows


def no_pictures(audits: Sequence[Line]) -> str:
    """Why there are none."""
    clients = [a for a in audits if a["kind"] == "client"]
    if not audits:
        return "nothing was audited."
    if clients and all(a["outcome"] == "no-consent" for a in clients):
        return "no client consented to be audited."
    if not clients:
        return "no client was audited, and the controls kept none."
    return "the audited clients consented to scores or numbers only, and the controls kept none."


def bounds(lines: Sequence[Line]) -> list[tuple[str, str]]:
    """The figures that hold against any attack, where a run has them."""
    found = [(f"ε, {stat}", digits(e)) for stat in label_values(lines, "privacy_epsilon", "stat")
             if (e := last(lines, "privacy_epsilon", stat=stat)) is not None]  # fmt: skip
    nats, floor = last(lines, "channel_information_nats"), last(lines, "reconstruction_mse_floor")
    if nats is not None:
        found.append(("Information through the data channel", f"at most {digits(nats)} nats so far, worst client"))
    if floor is not None:
        found.append(("Error floor", f"no attack's mean squared error is below {digits(floor)}, worst client"))
    for form in label_values(lines, "leakage_bound_nats", "form"):
        bound = last(lines, "leakage_bound_nats", form=form)
        if bound is not None:
            found.append((f"PriPrune bound, {form}", f"at most {digits(bound / math.log(2))} bits"))
    return found


def _defaults() -> dict[str, Any]:
    found = {kebab(name): field.default for name, field in Run.model_fields.items()}
    for name, settings in {**PRIVACY_SECTIONS, **STRATEGY_SECTIONS, **ATTACK_SECTIONS}.items():
        found |= section_defaults(name, settings)
    return found


def command(run: Line) -> str:
    """The call that runs the same settings again: those that are not the default of this version."""
    if run.get("command"):
        return str(run["command"])
    defaults = _defaults()
    given = {k: v for k, v in run.get("settings", {}).items() if k not in OWN and defaults.get(k) != v}
    parts = [shlex.quote(f"{key}={str(v).lower() if isinstance(v, bool) else v}") for key, v in sorted(given.items())]
    return " \\\n  ".join(["prunella run", *(f"-c {part}" for part in parts)])


def notices(run: Line, lines: Sequence[Line], damaged: int) -> list[tuple[str, str]]:
    """What the reader must know about the run itself before reading on."""
    rounds = plural(int(last(lines, "round") or 0), "round")
    status = run.get("status")
    found = []
    if not run:
        found.append(("Incomplete.", "run.json is missing, so settings and threat model are not known."))
    if status == "running":
        found.append(("Not finished.", f"This run is still going or was cut off: what follows covers {rounds}."))
    if status in ("failed", "stopped"):
        found.append((f"Run {status}", f"after {rounds}. {run.get('error') or 'It left no reason.'}"))
    if damaged:
        found.append(("Damaged.", f"{plural(damaged, 'line')} of audits.jsonl could not be read and is left out."))
    if not lines:
        found.append(("No numbers.", "metrics.jsonl is missing or empty."))
    return found


def exported(run_dir: Path) -> str:
    """What `prunella export` wrote into the run and measured, "" where it was not called."""
    try:
        model = read_description(run_dir / "export")
        small, dense, gain = int(model["parameters"]), int(model["dense_parameters"]), float(model["speed_up"])
        where = f"Round {model['round']}, written by prunella export into export/"
        units, apart = f"{model['units']} of {model['dense_units']}", float(model["largest_difference"])
    except (ConfigError, KeyError, ValueError, TypeError):
        return ""
    if small == dense:
        return f"{where}: {small:,} parameters. No whole filter is pruned: nothing gets faster."
    return (
        f"{where}: {small:,} of {dense:,} parameters, {units} filters and neurons. A forward pass is "
        f"{fixed(gain, 2)} times as fast as the dense masked model's (median, batch {model['batch']}, one thread), "
        f"and its outputs are the same to {digits(apart)}."
    )


def _facts(run: Line) -> list[str]:
    settings = run.get("settings", {})
    names = ("dataset", "model", "strategy", "defenses")
    started = str(run.get("started") or "")[:16].replace("T", " ")
    facts = [f"{name} {settings[name]}" for name in names if settings.get(name)]
    return facts + ([f"started {started} UTC"] if started else [])


def _valid(lines: Iterable[Line]) -> tuple[list[Line], int]:
    """The audits that fit the store, by round, the control first, and how many do not fit."""
    valid, damaged = [], 0
    for line in lines:
        try:
            valid.append(check_audit(line))
        except StoreError:
            damaged += 1
    return sorted(valid, key=lambda a: (a["round"], KINDS.index(a["kind"]), a["client"] or 0)), damaged


def _table(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    return sorted((str(k), str(v).lower() if isinstance(v, bool) else str(v)) for k, v in values.items())


def context(run_dir: Path, live: bool = False) -> dict[str, Any]:
    """Everything the template shows."""
    run, lines = read_run(run_dir), read_metrics(run_dir)
    audits, damaged = _valid(read_audits(run_dir))
    answer: Verdict = verdict(audits)
    chosen = choose(audits, latest=live)
    threats = list(dict.fromkeys(a["threat"] for a in audits))
    reasons = label_values(lines, "client_failures_total", "reason")
    failures = [(r, last(lines, "client_failures_total", reason=r) or 0.0) for r in reasons]
    settings, versions = run.get("settings", {}), run.get("versions", {})
    return {
        "style": Markup(STYLE), "live": live, "withheld": False, "script": "",
        "verdict": answer, "run_id": run.get("id") or run_dir.resolve().name,
        "facts": _facts(run), "notices": notices(run, lines, damaged), "tiles": tiles(run, lines, audits),
        "strips": [strip(run_dir, audit) for audit in chosen],
        "open_strips": OPEN, "strips_left": sum(bool(a["pictures"]) for a in audits) - len(chosen),
        "no_pictures": no_pictures(audits),
        "leakage_charts": leakage_charts(audits), "run_charts": run_charts(lines),
        "exported": exported(run_dir),
        "audits": audit_rows(audits, threats), "audits_left": max(0, len(audits) - ROWS),
        "threat_model": run.get("threat_model") or "This run states no threat model.",
        "threats": [(letter(i), threat) for i, threat in enumerate(threats)],
        "claims": run.get("claims") or [], "bounds": bounds(lines),
        "no_failures": f"{NO_FAILURES}." if lines else "Not known, because there are no numbers.",
        "failures": [(reason, digits(number)) for reason, number in failures if number],
        "command": command(run) if run else "", "seed": settings.get("seed", "unknown"), "settings": _table(settings),
        "versions": _table(versions), "version": versions.get("prunella", ""),
    }  # fmt: skip


def render(shown: Mapping[str, Any]) -> str:
    """The page of a ``context``."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.from_string(TEMPLATE).render(shown)


def write_report(run_dir: Path) -> Path:
    """Write ``report.html`` into ``run_dir`` and return its path. Owner-readable only: it may show consented images."""
    html = render(context(run_dir))

    def write(temporary: Path) -> None:
        temporary.write_text(html, encoding="utf-8")

    write_atomically(run_dir / REPORT, write)
    return run_dir / REPORT
