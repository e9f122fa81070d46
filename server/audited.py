"""What audits say while a run goes on: into the run store and to monitoring, as soon as each has ended."""

import math
import time
from logging import INFO
from typing import Protocol

from flwr.common.logger import log
from flwr.serverapp import Grid

from prunella.core.config import Raw, Run
from prunella.privacy.ledger.spending import Line
from prunella.server.audit.queue import Auditor
from prunella.server.doubts import FOUND, Labels, found_rows, labels_of, measured_rows, round_leakage_rows
from prunella.server.exporter import Exporter
from prunella.server.report.evidence import valid_audits, without_control
from prunella.server.report.units import audits_left
from prunella.server.report.verdict import TONES, judge
from prunella.server.store.rows import audits_counted, counter_rows
from prunella.server.store.schema import Row, row
from prunella.server.store.write import RunStore

SAY_EVERY = 30.0  # seconds between two words on the audits that are left


class Audited(Protocol):
    """A run with audits: a ``Federation``."""

    run: Run
    raw: Raw
    auditor: Auditor
    store: RunStore
    exporter: Exporter | None
    counters: dict[str, float]
    ledgers: dict[str, Line]

    def emit(self, round: int, rows: list[Row]) -> None: ...


def take_audits(federation: Audited, grid: Grid) -> None:
    """Record the outcomes of the audits that have finished since the last call."""
    federation.auditor.advance(grid)
    if not federation.auditor.finished:
        return
    for outcome in federation.auditor.finished:
        name = f"audits_total|{outcome['outcome']}"
        federation.counters[name] = federation.counters.get(name, 0.0) + 1
        federation.store.append_audit(outcome)
        rows = [row("audit_seconds", outcome["seconds"]), *counter_rows({name: federation.counters[name]})]
        federation.emit(outcome["round"], rows)
    _tell_found(federation)
    federation.auditor.finished.clear()


def _tell_found(federation: Audited) -> None:
    """What the audits so far say together: how much leaked, views without a control, and more measured than an ε
    promised."""
    jobs, finished = federation.auditor.jobs, federation.auditor.finished
    audits, _ = valid_audits(federation.store.audits())
    ended: dict[int, set[Labels]] = {}
    for outcome in finished:
        ended.setdefault(outcome["round"], set()).add(labels_of(outcome))
    for round, labels in sorted(ended.items()):
        federation.emit(round, round_leakage_rows(round, audits, labels))
    last = max(ended)
    pending = {job.round for job in jobs if job.kind == "control"}
    lone = without_control([audit for audit in audits if audit["round"] == last], pending)
    rows = found_rows(audits) + measured_rows(audits, federation.ledgers, federation.raw)
    federation.emit(last, [row("audits_without_control", len(lone)), *rows])
    tell_verdict(federation)


def tell_verdict(federation: Audited) -> None:
    """Show monitoring the verdict of the report. The store holds what it follows from, and so not the verdict."""
    if federation.exporter is not None:
        store = federation.store
        tone = judge(store.run(), store.metrics(), store.audits()).tone
        federation.exporter.update([row("verdict_tone", TONES.index(tone))])


def show_again(federation: Audited) -> None:
    """After a resume: monitoring must not forget a leak because the server was started again. What audits found is
    judged anew, since some may have been taken back."""
    if federation.exporter is not None:
        federation.exporter.restore(line for line in federation.store.metrics() if line["metric"] not in FOUND)
        audits, _ = valid_audits(federation.store.audits())
        federation.exporter.update(found_rows(audits) + counter_rows(federation.counters))
    tell_verdict(federation)


def tell_left(federation: Audited, round: int, limit: float = 0.0) -> None:
    """Say how many audits are left and how long they may take, ``limit`` seconds at most: in the log, and as rows that
    the terminal shows."""
    auditor = federation.auditor
    seconds = auditor.estimate()
    log(INFO, "%s", audits_left(auditor.pending, seconds, limit))
    rows = [row("audits_left", auditor.pending), row("audits_left_limit_seconds", limit)]
    federation.emit(round, rows + ([] if seconds is None else [row("audits_left_seconds", seconds)]))


def drain(federation: Audited, grid: Grid, round: int) -> None:
    """After training: wait for the audits that are running, at most ``audit-seconds`` for each that a worker has, and
    go on with what there is."""
    auditor = federation.auditor
    end, said = time.monotonic() + auditor.at_most(), -math.inf
    while auditor.pending and time.monotonic() < end:
        if time.monotonic() >= said + SAY_EVERY:
            said = time.monotonic()
            tell_left(federation, round, end - said)
        take_audits(federation, grid)
        time.sleep(federation.run.poll_seconds)
    auditor.give_up("it was not over when the run's time for audits was (audit-seconds)")
    take_audits(federation, grid)
    federation.emit(round, counter_rows(audits_counted(federation.counters)))  # those of earlier rounds, too
    if said > -math.inf:
        tell_left(federation, round)
