"""What only several figures say together, as rows for alerts: a model that diverged, an ε that an attack passed, and
what the audits of a run found.

An audit is judged as the report judges it, among all of its run: ``audits`` here are those of
``server.report.evidence.valid_audits``. Whatever is told of it holds until the next audit or control is known."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from prunella.attacks.score.level import ORDER, WORST
from prunella.core.config import Raw, parse_section
from prunella.privacy.accounting import Privacy
from prunella.server.attest.bound import measured_by_client, refuted
from prunella.server.report.evidence import judged, of_kind, scored, worst_first
from prunella.server.report.state import has_diverged
from prunella.server.store.rows import leakage_rows
from prunella.server.store.schema import Row, row
from prunella.tasks.training import Evaluation

Audit = Mapping[str, Any]
Labels = tuple[tuple[str, str], ...]
FOUND = ("leakage_level", "attack_control_ok")  # the metrics of ``found_rows``
SHOWN = ("control", "control-defended", "client")  # a single image has the labels of a canary, and is the report's


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


def labels_of(audit: Audit) -> Labels:
    """The attack, the defense, and whether a client's view was attacked or a canary's."""
    view = "client" if audit["kind"] == "client" else "canary"
    return ("attack", audit["attack"]), ("defense", audit["defense"]), ("view", view)


def _grouped(audits: Sequence[Audit]) -> dict[Labels, list[Audit]]:
    groups: dict[Labels, list[Audit]] = {}
    for audit in of_kind(audits, *SHOWN):
        groups.setdefault(labels_of(audit), []).append(audit)
    return groups


def found_rows(audits: Sequence[Audit]) -> list[Row]:
    """What holds of the whole run so far: the worst level of every attack, defense and view, and whether each
    undefended control was rebuilt."""
    rows = []
    for labels, same in _grouped(scored(audits)).items():
        worst = max((judged(audit, audits) for audit in same), key=WORST.index)
        rows.append(row("leakage_level", ORDER.index(worst), **dict(labels)))
    controls = [audit["ok"] for audit in of_kind(audits, "control") if audit["ok"] is not None]
    return rows + ([row("attack_control_ok", all(controls))] if controls else [])


def round_leakage_rows(round: int, audits: Sequence[Audit], wanted: Collection[Labels]) -> list[Row]:
    """The scores of the audit that leaks most of those of a round with the same labels, for the labels ``wanted``."""
    told = [audit for audit in audits if audit["round"] == round and audit["outcome"] in ("scored", "control-failed")]
    groups = {labels: same for labels, same in _grouped(told).items() if labels in wanted}
    return [
        each for labels, same in groups.items() for each in leakage_rows(worst_first(same, audits)[0], dict(labels))
    ]
