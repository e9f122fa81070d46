"""What may stand in the run store: its file names, its numbers and its audits, checked.

A number that is not finite is refused with ``StoreError``: a leakage of NaN is a failed evaluation, never a small one.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from prunella.attacks.score.level import Level
from prunella.attacks.score.membership import LEAST, Word, resolves
from prunella.core.errors import PrunellaError, unknown
from prunella.core.metrics import METRICS
from prunella.core.untrusted import MAX_COUNT, figure

LOCAL_SETTINGS = ("run-dir", "resume", "metrics-address", "audit-cluster")  # of one place, not of the experiment
RUN, METRIC_LINES, AUDIT_LINES = "run.json", "metrics.jsonl", "audits.jsonl"
EARLY = "stopped before round"  # begins the note of a run that ended for a budget
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


class MembershipScore(BaseModel):
    """How one score parts ``members`` from ``outsiders``: its AUC, and how many members it catches at 0.1 %
    (``strict``) and 1 % (``loose``) of the outsiders, None where so few outsiders cannot tell."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    members: int = Field(ge=LEAST, le=MAX_COUNT)
    outsiders: int = Field(ge=LEAST, le=MAX_COUNT)
    auc: float = Field(ge=0, le=1)
    strict: int | None = Field(default=None, ge=0)
    loose: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _resolved(self) -> "MembershipScore":
        hits = (self.strict, self.loose)
        if tuple(each is not None for each in hits) != resolves(self.outsiders):
            raise ValueError("a rate is there that so few outsiders cannot tell, or missing")
        if max(each or 0 for each in hits) > self.members:
            raise ValueError("more members are caught than there are")
        return self


class Membership(BaseModel):
    """A client's answer to the membership question: a word and, from one that tells them, numbers by score."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    word: Word
    scores: dict[Literal["model", "local", "drop", "alignment"], MembershipScore] | None = None


RECOGNISED = {"hits", "images", "gallery", "chance", "low"}  # of ``attacks.score.gallery.Recognition``
MOST = 1e300  # of a score's size; no comparison with NaN holds


def _are_numbers(scores: Mapping[str, Any]) -> bool:
    """Whether all that is known in scores, and in what they hold, are finite numbers."""
    for found in scores.values():
        if isinstance(found, Mapping):
            if not _are_numbers(found):
                return False
        elif found is not None and figure(found, -MOST, MOST) is None:
            return False
    return True


class AuditLine(BaseModel):
    """One line of ``audits.jsonl``. ``scores`` is ``Leakage.to_dict()``. ``level`` is what the client itself reports,
    and the only result of a client that returns no numbers. ``ok`` says whether a control was rebuilt, and is
    False for a client whose audit shows nothing; ``reason`` says why an audit failed, without a value of anybody's
    data, and ``found_by`` which attack of a portfolio rebuilt the most.

    ``control`` and ``control-defended`` are public images trained on as the audited client trains; ``single`` and
    ``single-defended`` one public image in one step, the worst that the server could have asked for. ``membership`` is
    a client's answer whether the examples it trained on can be told from others. ``sites`` is the number of clients
    whose updates were attacked as one sum, None where each was attacked by itself."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    round: int
    kind: Literal["control", "control-defended", "single", "single-defended", "client", "membership"]
    client: int | None = None
    sites: int | None = Field(default=None, ge=1)
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
    membership: Membership | None = None

    @field_validator("scores")
    @classmethod
    def _counted(cls, scores: dict[str, Any] | None) -> dict[str, Any] | None:
        # What is no number would be passed over, and an audit be judged by the scores that are left.
        told = (scores or {}).get("recognition")
        recognised = told is None or (isinstance(told, Mapping) and told.keys() >= RECOGNISED)
        if not recognised or not _are_numbers(scores or {}):
            raise ValueError("a score is not a finite number")
        return scores


def check_audit(audit: Mapping[str, Any]) -> StoreLine:
    """The audit as a line of ``audits.jsonl``. Raises ``StoreError`` naming the fields that do not fit."""
    try:
        checked = AuditLine.model_validate(dict(audit))
    except ValidationError as error:
        problems = [".".join(map(str, e["loc"])) + ": " + e["type"] for e in error.errors(include_input=False)]
        raise StoreError(f"audit does not fit the store: {', '.join(problems)}") from None
    told = (checked.scores, checked.level) if checked.kind != "membership" else (checked.membership,)
    if checked.outcome == "scored" and all(each is None for each in told):
        raise StoreError("audit says 'scored' and has neither scores nor a level")
    return checked.model_dump()
