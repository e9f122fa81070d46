"""The run store: a directory of plain files that outlives the process and needs no service to read.

    run.json        what was run: id, status, error, note, settings, versions, times (ISO 8601), threat model, claims
    metrics.jsonl   one number a line, append-only: round, time (Unix seconds), metric, labels, value
    audits.jsonl    one audit a line, append-only (``Audit``)
    pictures/       safetensors "original" and "reconstruction" [N, C, H, W] in [0, 1], only of clients that consented
    metrics.parquet the numbers as one table, a column per label, written when the run ends
    report.html     written by ``server.report.report``
    .writer         empty; locked by the one process that writes the run

Counters are cumulative. A number that is not finite is refused with ``StoreError``: a leakage of NaN is a failed
evaluation and never a small one. A crash can tear the last line only; ``RunStore.open`` mends that.

>>> import tempfile
>>> store = RunStore.open(Path(tempfile.mkdtemp()))
>>> store.append_metrics(1, [row("accuracy_ratio", 0.5), row("wire_bytes_total", 10, direction="up")])
>>> store.append_metrics(2, [row("accuracy_ratio", 0.75)])
>>> store.rewind(1)
>>> [(line["round"], line["metric"], line["value"]) for line in store.metrics()]
[(1, 'accuracy_ratio', 0.5), (1, 'wire_bytes_total', 10.0)]
"""

import fcntl
import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, get_args

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, ValidationError

from prunella.attacks.score.level import Level
from prunella.core.errors import PrunellaError, unknown
from prunella.core.files import write_atomically, write_json
from prunella.core.metrics import METRICS

Line = dict[str, Any]
Status = Literal["running", "completed", "failed", "stopped"]
RUN, METRIC_LINES, AUDIT_LINES, TABLE, PICTURES = (
    "run.json",
    "metrics.jsonl",
    "audits.jsonl",
    "metrics.parquet",
    "pictures",
)
WRITER = ".writer"  # locked by the process that writes the run
PATIENCE = 10.0  # seconds: a ServerApp that was told to end has 3
RUN_KEYS = (
    "id",
    "status",
    "error",
    "note",
    "settings",
    "versions",
    "model_parameters",
    "started",
    "finished",
    "threat_model",
    "claims",
    "command",
)


class StoreError(PrunellaError, ValueError):
    """A line does not fit the store, or a file of the store cannot be read."""


class Row(NamedTuple):
    """One number of ``core.metrics.METRICS`` with its labels; what the store, the exporter and the report share."""

    metric: str
    value: float
    labels: Mapping[str, str] = {}


def row(metric: str, value: float, **labels: str) -> Row:
    """A checked ``Row``."""
    return check_row(Row(metric, float(value), labels))


def check_row(given: Row) -> Row:
    """The row, or ``ConfigError`` / ``StoreError`` when its name, labels or value are not allowed out.

    >>> check_row(Row("wire_bytes_total", 1.0, {"client": "3"}))
    Traceback (most recent call last):
    server.store.StoreError: metric 'wire_bytes_total' takes the labels ['direction'], not ['client']
    """
    if given.metric not in METRICS:
        raise unknown("metric", given.metric, METRICS)
    expected = METRICS[given.metric].labels
    if set(given.labels) != set(expected):
        raise StoreError(f"metric {given.metric!r} takes the labels {sorted(expected)}, not {sorted(given.labels)}")
    if not math.isfinite(given.value):
        raise StoreError(f"metric {given.metric!r} is not a finite number")
    return given


class Audit(BaseModel):
    """One line of ``audits.jsonl``. ``scores`` is ``Leakage.to_dict()``; ``level`` is a client's own word,
    and all there is of one that tells no numbers; ``ok`` says whether a control was rebuilt."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    round: int
    kind: Literal["control", "control-defended", "client"]
    client: int | None = None
    attack: str
    defense: str
    adaptive: bool
    threat: str
    objective: float | None = None
    seconds: float
    outcome: Literal["scored", "no-consent", "failed", "control-failed"]
    scores: dict[str, Any] | None = None
    level: Level | None = None
    pictures: str | None = None
    ok: bool | None = None


def check_audit(audit: Mapping[str, Any]) -> Line:
    """The audit as it will stand in the file, or ``StoreError`` naming the fields that are wrong."""
    try:
        checked = Audit.model_validate(dict(audit))
    except ValidationError as error:
        problems = [".".join(map(str, e["loc"])) + ": " + e["type"] for e in error.errors(include_input=False)]
        raise StoreError(f"audit does not fit the store: {', '.join(problems)}") from None
    if checked.outcome == "scored" and checked.scores is None and checked.level is None:
        raise StoreError("audit says 'scored' and has neither scores nor a level")
    return checked.model_dump()


def _encode(line: Mapping[str, Any]) -> str:
    try:
        return json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n"
    except ValueError:
        raise StoreError("a line of the run store holds a number that is not finite") from None


def read_lines(path: Path) -> list[Line]:
    """The objects of a JSON-lines file; none when it is missing. A torn last line is left out, any other one raises."""
    pieces = path.read_bytes().split(b"\n") if path.exists() else []
    lines: list[Line] = []
    for number, piece in enumerate(pieces, 1):
        try:
            lines += [json.loads(piece)] if piece.strip() else []
        except ValueError:
            if number < len(pieces):
                raise StoreError(f"{path.name}: line {number} is not JSON") from None
    return lines


def read_run(run_dir: Path) -> Line:
    """``run.json``, or an empty mapping when it is not there yet."""
    path = run_dir / RUN
    try:
        return dict(json.loads(path.read_text())) if path.exists() else {}
    except ValueError:
        raise StoreError(f"{RUN} is not a JSON object") from None


def read_metrics(run_dir: Path) -> list[Line]:
    return read_lines(run_dir / METRIC_LINES)


def read_audits(run_dir: Path) -> list[Line]:
    return read_lines(run_dir / AUDIT_LINES)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _rewrite(path: Path, lines: Iterable[Line]) -> None:
    text = "".join(_encode(line) for line in lines)

    def write(temporary: Path) -> None:
        temporary.write_text(text)

    write_atomically(path, write, mode=0o644)


def _table(lines: Iterable[Line]) -> pa.Table:
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


def _locked(file: IO[bytes]) -> bool:
    """Whether this process now holds the lock on an open file."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def claimed(run_dir: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Write a run as the only one: while we are in here, and this process lives, nobody else can come in.

    Waits ``patience`` seconds for a process that is ending, then raises ``StoreError``: two ServerApps that wrote one
    run would ruin both.
    """
    run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(run_dir / WRITER, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as lock:
        limit = time.monotonic() + patience
        while not _locked(lock):
            if time.monotonic() > limit:
                raise StoreError(
                    f"another ServerApp is writing {run_dir}: wait until it has ended, or end it with `prunella "
                    "stop`, then use --resume; a new run needs a run-dir of its own"
                )
            time.sleep(0.1)
        yield


class RunStore:
    """The writer of one run directory. One process writes; anyone may read."""

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir

    @classmethod
    def open(cls, run_dir: Path) -> "RunStore":
        """The store in ``run_dir``, made when missing; a line torn by a crash is cut off before anything is added."""
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
        """All of ``rows`` under one round and time, or none when one of them is refused."""
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

    def _append(self, name: str, lines: Iterable[Line]) -> None:
        text = "".join(_encode(line) for line in lines)
        with (self.path / name).open("a") as file:
            file.write(text)
            file.flush()

    def rewind(self, round: int) -> None:
        """Forget every line of a later round, so that a run resumed after ``round`` writes each round once."""
        for name in (METRIC_LINES, AUDIT_LINES):
            path = self.path / name
            if path.exists():
                _rewrite(path, [line for line in read_lines(path) if line["round"] <= round])

    def finish(self, status: Status, error: str | None = None) -> None:
        """Close the run: its status and end in ``run.json``, its numbers as Parquet."""
        table = _table(self.metrics())
        write_atomically(self.path / TABLE, lambda p: pq.write_table(table, p), 0o644)
        self.write_run(status=status, error=error, finished=now())

    def run(self) -> Line:
        return read_run(self.path)

    def metrics(self) -> list[Line]:
        return read_metrics(self.path)

    def audits(self) -> list[Line]:
        return read_audits(self.path)
