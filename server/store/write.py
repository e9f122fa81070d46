"""Writing the run store: one process, append-only lines, whole files replaced atomically.

Counters are cumulative. A crash can tear only the last line, and ``RunStore.open`` cuts a torn line off.

>>> import tempfile
>>> from prunella.server.store.schema import row
>>> store = RunStore.open(Path(tempfile.mkdtemp()))
>>> store.append_metrics(1, [row("accuracy_ratio", 0.5), row("wire_bytes_total", 10, direction="up")])
>>> store.append_metrics(2, [row("accuracy_ratio", 0.75)])
>>> store.rewind(1)
>>> [(line["round"], line["metric"], line["value"]) for line in store.metrics()]
[(1, 'accuracy_ratio', 0.5), (1, 'wire_bytes_total', 10.0)]
"""

import json
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from prunella.core.errors import unknown
from prunella.core.files import write_atomically, write_json
from prunella.core.folders import locked
from prunella.core.metrics import METRICS
from prunella.server.store.read import read_audits, read_lines, read_metrics, read_run
from prunella.server.store.schema import (
    AUDIT_LINES,
    METRIC_LINES,
    RUN,
    Row,
    StoreError,
    StoreLine,
    check_audit,
    check_row,
)

TABLE = "metrics.parquet"
Status = Literal["running", "completed", "failed", "stopped"]
WRITER = ".writer"  # locked by the process that writes the run
PATIENCE = 10.0  # seconds to wait for another writer; a ServerApp that was told to end takes at most 3
RUN_KEYS = (
    "id",
    "status",
    "error",
    "note",
    "settings",
    "versions",
    "model_parameters",
    "shape",
    "classes",
    "test_examples",
    "largest_class",
    "started",
    "finished",
    "threat_model",
    "claims",
    "unaudited",
)


def _encode(line: Mapping[str, Any]) -> str:
    try:
        return json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n"
    except ValueError:
        raise StoreError("a line of the run store holds a number that is not finite") from None


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _rewrite(path: Path, lines: Iterable[StoreLine]) -> None:
    text = "".join(_encode(line) for line in lines)

    def write(temporary: Path) -> None:
        temporary.write_text(text)

    write_atomically(path, write, mode=0o644)


def _table(lines: Iterable[StoreLine]) -> pa.Table:
    """The numbers with their unit, and a text column per label, null where unused."""
    names = sorted({label for metric in METRICS.values() for label in metric.labels})
    rows = [
        {name: line["labels"].get(name) for name in names}
        | {key: line[key] for key in ("round", "time", "metric", "value")}
        | {"unit": METRICS[line["metric"]].unit}
        for line in lines
    ]
    numbers = [("round", pa.int64()), ("time", pa.float64()), ("value", pa.float64())]
    schema = pa.schema(numbers + [(name, pa.string()) for name in ["metric", "unit", *names]])
    return pa.Table.from_pylist(rows, schema=schema)


def claimed(run_dir: Path, patience: float = PATIENCE) -> AbstractContextManager[None]:
    """Hold the run's lock, so that no other process writes this run until the block or this process ends.

    Waits ``patience`` seconds for a process that is ending, then raises ``StoreError``: two ServerApps writing one run
    would ruin it.
    """
    run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    busy = StoreError(
        f"another ServerApp is writing {run_dir}: wait until it has ended, or end it with `prunella stop`, then use "
        "--resume; a new run needs a run-dir of its own"
    )
    return locked(run_dir / WRITER, busy, patience)


class RunStore:
    """The writer of one run directory. One process writes; anyone may read."""

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir

    @classmethod
    def open(cls, run_dir: Path) -> "RunStore":
        """The store in ``run_dir``, created if missing. A line torn by a crash is cut off before anything is added."""
        run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in (METRIC_LINES, AUDIT_LINES):
            path = run_dir / name
            if path.exists() and not path.read_bytes().endswith(b"\n"):
                _rewrite(path, read_lines(path))
        return cls(run_dir)

    def write_run(self, **fields: Any) -> None:
        """Merge ``fields`` into ``run.json``, atomically. Only ``RUN_KEYS``."""
        for key in fields:
            if key not in RUN_KEYS:
                raise unknown("field of run.json", key, RUN_KEYS)
        if fields.get("status", "running") not in get_args(Status):
            raise unknown("status", str(fields["status"]), get_args(Status))
        write_json(self.path / RUN, self.run() | fields)

    def append_metrics(self, round: int, rows: Iterable[Row]) -> None:
        """Append all of ``rows`` under one round and time, or none of them if one is refused."""
        at = time.time()
        checked = [check_row(each) for each in rows]
        self._append(
            METRIC_LINES,
            [
                {"round": round, "time": at, "metric": r.metric, "labels": dict(r.labels), "value": float(r.value)}
                for r in checked
            ],
        )

    def append_audit(self, audit: Mapping[str, Any]) -> None:
        self._append(AUDIT_LINES, [check_audit(audit)])

    def _append(self, name: str, lines: Iterable[StoreLine]) -> None:
        text = "".join(_encode(line) for line in lines)
        with (self.path / name).open("a") as file:
            file.write(text)
            file.flush()

    def rewind(self, round: int) -> None:
        """Drop every line of a later round, so that a run resumed after ``round`` writes each round once."""
        for name in (METRIC_LINES, AUDIT_LINES):
            path = self.path / name
            if path.exists():
                _rewrite(path, [line for line in read_lines(path) if line["round"] <= round])

    def finish(self, status: Status, error: str | None = None) -> None:
        """Close the run: its status and end in ``run.json``, its numbers as Parquet."""
        table = _table(self.metrics())
        write_atomically(self.path / TABLE, lambda p: pq.write_table(table, p), 0o644)
        self.write_run(status=status, error=error, finished=now())

    def run(self) -> StoreLine:
        return read_run(self.path)

    def metrics(self) -> list[StoreLine]:
        return read_metrics(self.path)

    def audits(self) -> list[StoreLine]:
        return read_audits(self.path)
