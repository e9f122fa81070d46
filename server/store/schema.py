"""What may stand in the run store: its file names, its numbers and its audits, checked.

A number that is not finite is refused with ``StoreError``: a leakage of NaN is a failed evaluation, never a small one.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from prunella.attacks.score.level import Level
from prunella.core.errors import PrunellaError, unknown
from prunella.core.metrics import METRICS

RUN, METRIC_LINES, AUDIT_LINES = "run.json", "metrics.jsonl", "audits.jsonl"
StoreLine = dict[str, Any]


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
    """Return the row. Raises ``ConfigError`` for an unknown metric, ``StoreError`` for wrong labels, NaN or infinity.

    >>> check_row(Row("wire_bytes_total", 1.0, {"client": "3"}))
    Traceback (most recent call last):
    prunella.server.store.schema.StoreError: metric 'wire_bytes_total' takes the labels ['direction'], not ['client']
    """
    if given.metric not in METRICS:
        raise unknown("metric", given.metric, METRICS)
    expected = METRICS[given.metric].labels
    if set(given.labels) != set(expected):
        raise StoreError(f"metric {given.metric!r} takes the labels {sorted(expected)}, not {sorted(given.labels)}")
    if not math.isfinite(given.value):
        raise StoreError(f"metric {given.metric!r} is not a finite number")
    return given


class AuditLine(BaseModel):
    """One line of ``audits.jsonl``. ``scores`` is ``Leakage.to_dict()``. ``level`` is what the client itself reports,
    and the only result of a client that returns no numbers. ``ok`` says whether a control was rebuilt, and is
    False for a client whose audit shows nothing; ``reason`` says why an audit failed, without a value of anybody's
    data, and ``found_by`` which attack of a portfolio rebuilt the most.

    ``control`` and ``control-defended`` are public images trained on as the audited client trains; ``single`` and
    ``single-defended`` one public image in one step, the worst that the server could have asked for."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    round: int
    kind: Literal["control", "control-defended", "single", "single-defended", "client"]
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
    reason: str | None = None
    found_by: str | None = None


def check_audit(audit: Mapping[str, Any]) -> StoreLine:
    """The audit as a line of ``audits.jsonl``. Raises ``StoreError`` naming the fields that do not fit."""
    try:
        checked = AuditLine.model_validate(dict(audit))
    except ValidationError as error:
        problems = [".".join(map(str, e["loc"])) + ": " + e["type"] for e in error.errors(include_input=False)]
        raise StoreError(f"audit does not fit the store: {', '.join(problems)}") from None
    if checked.outcome == "scored" and checked.scores is None and checked.level is None:
        raise StoreError("audit says 'scored' and has neither scores nor a level")
    return checked.model_dump()
