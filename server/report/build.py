"""``report.html``: one file for the privacy officer and the engineer, made from the run store alone.

It answers the question first (``server.report.verdict``), then shows the evidence: pictures, leakage by round, cost,
every audit with its threat model, what the defenses promise, failures, and how to repeat the run. The file loads
nothing: charts are inline SVG, pictures are data URIs, and every text from the store is escaped. A run that is
unfinished, has no audits or lacks files still gets its report, which then says so.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from prunella.attacks.score.level import RULE
from prunella.core.errors import ConfigError
from prunella.core.files import write_atomically
from prunella.server.report.audit_table import ROWS, audit_table, letter, no_pictures
from prunella.server.report.command import command
from prunella.server.report.evidence import sum_of, valid_audits
from prunella.server.report.figures import leakage_charts, run_charts
from prunella.server.report.page import STYLE, TEMPLATE
from prunella.server.report.pictures import choose, strip
from prunella.server.report.series import label_values, last, present
from prunella.server.report.state import RunState, run_state
from prunella.server.report.tiles import NO_FAILURES, tiles
from prunella.server.report.units import digits, fixed, plural
from prunella.server.report.verdict import verdict
from prunella.server.store.read import read_audits, read_metrics, read_run
from prunella.server.store.schema import AUDIT_LINES, METRIC_LINES, RUN, StoreError, StoreLine
from prunella.tasks.exported import read_description

OPEN = 6  # picture strips that are shown without a click
REPORT = "report.html"


def bounds(state: RunState, lines: Sequence[StoreLine]) -> list[tuple[str, str]]:
    """The figures that hold against any attack, as far as the run has them."""
    found = [("Differential privacy", state.guarantee)] if state.guarantee else []
    nats = present(lines, "channel_information_nats")
    if nats is not None:
        known = f"at most {digits(nats)} nats so far, worst client (1 nat is 1.44 bits)"
        if state.unknown:
            known = f"{digits(nats)} nats or more (1 nat is 1.44 bits): {state.more}"
        found.append(("Information through the data channel", known))
    return found


def notices(run: StoreLine, lines: Sequence[StoreLine], damaged: int) -> list[tuple[str, str]]:
    """What the reader must know about the run before reading on, as pairs of a key word and a sentence."""
    rounds = plural(int(last(lines, "round") or 0), "round")
    status = run.get("status")
    found = []
    if not run.get("settings"):
        found.append(("Incomplete.", "run.json is missing or names no settings: restore it. They are not known."))
    if status == "running":
        so_far = f"what follows covers {rounds}" if lines else "no round has ended yet"
        found.append(("Not finished.", f"This run is still going or was interrupted: {so_far}."))
    if status in ("failed", "stopped"):
        found.append((f"Run {status}", f"after {rounds}. {run.get('error') or 'No reason was recorded.'}"))
    if run.get("note"):
        found.append(("Note.", str(run["note"])))
    if damaged:
        found.append(("Damaged.", f"{plural(damaged, 'line')} of audits.jsonl could not be read and is left out."))
    if not lines and status != "running":
        found.append(("No numbers.", "metrics.jsonl is missing or empty."))
    return found


def exported(run_dir: Path) -> str:
    """What `prunella export` wrote and measured, or "" if the model was not exported."""
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


def _facts(run: StoreLine) -> list[str]:
    settings = run.get("settings", {})
    names = ("dataset", "model", "strategy", "defenses")
    started = str(run.get("started") or "")[:16].replace("T", " ")
    facts = [f"{name} {settings[name]}" for name in names if settings.get(name)]
    return facts + ([f"started {started} UTC"] if started else [])


def _table(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    return sorted((str(k), str(v).lower() if isinstance(v, bool) else str(v)) for k, v in values.items())


def _digests(run_dir: Path) -> list[tuple[str, str]]:
    """Of the files that the page is made from, to print beside a signature."""
    files = [run_dir / name for name in (RUN, METRIC_LINES, AUDIT_LINES)]
    return [(path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files if path.exists()]


def context(run_dir: Path, live: bool = False) -> dict[str, Any]:
    """Everything the template shows."""
    run, lines = read_run(run_dir), read_metrics(run_dir)
    audits, damaged = valid_audits(read_audits(run_dir))
    state = run_state(run, lines, audits)
    answer = verdict(audits, state, damaged)
    chosen = choose(audits, latest=live)
    threats = list(dict.fromkeys(a["threat"] for a in audits))
    reasons = label_values(lines, "client_failures_total", "reason")
    failures = [(r, last(lines, "client_failures_total", reason=r) or 0.0) for r in reasons]
    settings, versions = run.get("settings", {}), run.get("versions", {})
    why = " yet" if run.get("status") == "running" else ", because there are no numbers"
    return {
        "style": Markup(STYLE), "live": live, "withheld": False, "script": "",
        "verdict": answer, "run_id": run.get("id") or run_dir.resolve().name,
        "facts": _facts(run), "notices": notices(run, lines, damaged), "tiles": tiles(run, lines, state, answer),
        "strips": [strip(run_dir, audit) for audit in chosen],
        "open_strips": OPEN, "strips_left": sum(bool(a["pictures"]) for a in audits) - len(chosen),
        "no_pictures": no_pictures(audits, state.coming),
        "no_audits": f"No audit {'has ended yet' if state.coming else 'was run'}.",
        "leakage_charts": leakage_charts(audits), "run_charts": run_charts(lines),
        "exported": exported(run_dir),
        "summed": sum_of(audits), "audits": audit_table(audits, threats, answer.worst),
        "audits_left": max(0, len(audits) - ROWS),
        "threat_model": run.get("threat_model") or "This run states no threat model.",
        "threats": [(letter(i), threat) for i, threat in enumerate(threats)],
        "claims": run.get("claims") or [], "bounds": bounds(state, lines),
        "rebuilt": RULE,
        "no_failures": f"{NO_FAILURES}." if lines else f"Not known{why}.",
        "failures": [(reason, digits(number)) for reason, number in failures if number],
        "command": command(run, run_dir) if run else "",
        "seed": settings.get("seed", "unknown"), "settings": _table(settings),
        "versions": _table(versions), "version": versions.get("prunella", ""),
        "digests": [] if live else _digests(run_dir),
    }  # fmt: skip


def render(shown: Mapping[str, Any]) -> str:
    """The page of a ``context``."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.from_string(TEMPLATE).render(shown)


def write_report(run_dir: Path) -> Path:
    """Write ``report.html`` into ``run_dir`` and return its path. Owner-readable only: it may show consented images."""
    if (run_dir / REPORT).is_dir():
        raise StoreError(f"{run_dir / REPORT} is a folder: remove it")
    html = render(context(run_dir))

    def write(temporary: Path) -> None:
        temporary.write_text(html, encoding="utf-8")

    write_atomically(run_dir / REPORT, write)
    return run_dir / REPORT
