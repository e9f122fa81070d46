"""The table at the end of a run, from the files the server wrote. Pure functions over their lines.

>>> accuracy = {"round": 1, "metric": "accuracy_ratio", "labels": {}, "value": 0.5}
>>> [value for label, value in rows({"status": "completed"}, [accuracy], []) if label in ("accuracy", "verdict")]
['0.500', 'Not audited']
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any

from rich.table import Table
from rich.text import Text

from prunella.deploy.console.progress import State, fold, megabytes
from prunella.deploy.runs import RunDir
from prunella.server.report.evidence import in_words
from prunella.server.report.verdict import RunVerdict, judge
from prunella.server.store.read import read_audits, read_metrics, read_run

Line = dict[str, Any]
Rows = list[tuple[str, str]]


def wire_row(state: State) -> Rows:
    """What was sent beside what dense float32 would have taken."""
    if state.saved is None:
        return []
    sent, dense = sum(state.sent.values()), sum(state.dense.values())
    saving = f"{state.saved:.1%} saved" if state.saved >= 0 else f"{-state.saved:.1%} more"
    return [("sent", f"{megabytes(sent)} instead of {megabytes(dense)} dense ({saving})")]


def failure_row(lines: Sequence[Line]) -> Rows:
    """Replies that were left out, by reason; counters, so the last line of a reason counts."""
    last = {line["labels"]["reason"]: line["value"] for line in lines if line["metric"] == "client_failures_total"}
    counted = [f"{reason} {value:.0f}" for reason, value in sorted(last.items()) if value]
    return [("replies left out", f"{', '.join(counted)}; why: 'left out' in the server's log")] if counted else []


def verdict_rows(answer: RunVerdict) -> Rows:
    """What the report says: the verdict, the worst audit, and what must stand beside it."""
    found: Rows = [("verdict", answer.badge), ("privacy", answer.headline), ("promised", answer.promise)]
    found += [("worst audit", in_words(answer.worst, answer.worst_level))] if answer.worst else []
    return [*found, *(("note", note) for note in answer.notes), ("next", answer.next_step)]


def rows(run: Line, metrics: Sequence[Line], audits: Sequence[Line]) -> Rows:
    """Label and value of every line of the table."""
    state = reduce(fold, metrics, State())
    found: Rows = [("rounds", f"{state.round} of {state.rounds}")] if state.rounds else []
    found += [("accuracy", f"{state.accuracy:.3f}")] if state.accuracy is not None else []
    found += [("density", f"{state.density:.3f}")] if state.density is not None else []
    found += wire_row(state) + failure_row(metrics) + verdict_rows(judge(run, metrics, audits))
    found += [("note", str(run["note"]))] if run.get("note") else []
    return found + ([("error", str(run["error"]))] if run.get("error") else [])


def summary(run: RunDir) -> Table:
    """The table of a run."""
    table = Table(title=f"run {run.id}", show_header=False, title_justify="left")
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in rows(read_run(run.path), read_metrics(run.path), read_audits(run.path)):
        table.add_row(label, Text(value))
    return table
