"""What only several figures say together, as rows for alerts: a model that diverged, and an ε that an attack passed."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from prunella.core.config import Raw, parse_section
from prunella.privacy.accounting import Privacy
from prunella.server.attest.bound import measured_by_client, refuted
from prunella.server.report.state import has_diverged
from prunella.server.store.schema import Row, row
from prunella.tasks.training import Evaluation


def diverged_rows(result: Evaluation | None, classes: int, on_server: bool) -> list[Row]:
    """Whether the model diverged, as the report has it. Clients under an ε tell no loss: then it is not known.

    >>> diverged_rows(Evaluation(math.inf, 0.1, 10), 10, on_server=True)
    [Row(metric='model_diverged', value=1.0, labels={})]
    """
    if result is None or (not on_server and math.isnan(result.loss)):
        return []
    return [row("model_diverged", has_diverged(result.loss, classes))]


def measured_rows(audits: Sequence[Mapping[str, Any]], ledgers: Mapping[str, Mapping[str, Any]], raw: Raw) -> list[Row]:
    """What membership audits measured of ε, and of how many clients more than was promised: of those that have both."""
    measured = measured_by_client(audits, parse_section(raw, "privacy", Privacy).delta)
    broken = refuted(audits, ledgers, raw)
    rows = [row("privacy_epsilon_measured", max(measured.values()))] if measured else []
    return rows + ([row("privacy_epsilon_exceeded", len(broken))] if broken is not None else [])
