"""What is told of audits while a run goes on, with a run that only remembers it."""

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from prunella.core.config import parse_run
from prunella.server.audited import take_audits
from prunella.server.store.schema import Row
from prunella.server.store.write import RunStore
from tests.server.report.audits import CONTROL, REBUILT, audit
from tests.server.store.test_rows import values


@dataclass
class Remembering:
    """A run whose audits are put in by hand."""

    store: RunStore
    run: Any = field(default_factory=lambda: parse_run({}))
    raw: dict[str, Any] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    ledgers: dict[str, Any] = field(default_factory=dict)
    shown: dict[tuple, float] = field(default_factory=dict)
    auditor: Any = field(default_factory=lambda: SimpleNamespace(jobs=[], finished=[], advance=Mock()))

    def emit(self, round: int, rows: list[Row]) -> None:
        self.store.append_metrics(round, rows)
        self.shown |= values(rows)

    def ends(self, *audits: dict[str, Any]) -> None:
        """Audits are over."""
        more = {"adaptive": True, "threat": "t", "seconds": 1.0}
        self.auditor.finished = [
            {**more, **each, "scores": each["scores"] and {"iip": 0.5, **each["scores"]}} for each in audits
        ]
        take_audits(self, Mock())


@pytest.fixture
def run(tmp_path: Path) -> Remembering:
    return Remembering(RunStore.open(tmp_path))


def level(run: Remembering, view: str = "client", defense: str = "dgp") -> float:
    return run.shown["leakage_level", ("attack", "sgi"), ("defense", defense), ("view", view)]


def test_audits_that_are_over_are_kept_counted_and_told_once(run: Remembering) -> None:
    run.ends(CONTROL, audit(scores=REBUILT))
    assert len(run.store.audits()) == 2 and run.counters == {"audits_total|scored": 2.0}
    assert level(run) == 3.0 and run.shown["audits_without_control",] == 0.0
    run.ends()
    assert len(run.store.audits()) == 2
