"""What is told of audits while a run goes on, with a run that only remembers it."""

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from scipy.special import betaincinv

from prunella.attacks.score.level import ORDER
from prunella.core.config import parse_run
from prunella.server.audited import show_again, take_audits, tell_verdict
from prunella.server.doubts import labels_of
from prunella.server.report.evidence import judged, valid_audits
from prunella.server.store.schema import Row, row
from prunella.server.store.write import RunStore
from tests.server.report.audits import CONTROL, CONTROL_FAILED, NOTHING, REBUILT, TRACES, audit, spread
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
    exporter: Any = None
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


def recognised(hits: int, **changes: Any) -> dict[str, Any]:
    """An audit of 16 images, each beside 15 others, of which the attack told ``hits`` apart. Nothing else is found."""
    low = float(betaincinv(hits, 17 - hits, 0.05)) if hits else 0.0
    found = {"hits": hits, "images": 16, "gallery": 16, "chance": 1 / 16, "low": low}
    ncc = {"ncc": spread(0.6, 0.55, 0.1)}
    return audit(scores=NOTHING | ncc | {"images": 16, "recognition": found}, **changes)


def test_a_level_is_the_report_s_which_asks_once_of_all_audits_of_a_run(run: Remembering) -> None:
    """One audit in twenty tells images apart by chance. Once others are known, the same figures say no more."""
    run.ends(CONTROL | {"round": 1}, recognised(4, round=1))
    assert level(run) == ORDER.index("rebuilt")
    for round in range(2, 13):
        run.ends(CONTROL | {"round": round}, recognised(1, round=round))
    audits, _ = valid_audits(run.store.audits())
    assert {judged(each, audits) for each in audits if each["kind"] == "client"} == {"baseline"}
    assert level(run) == ORDER.index("baseline")


def test_a_control_that_comes_later_changes_the_level_of_what_relied_on_it(run: Remembering) -> None:
    run.ends(audit(scores=NOTHING))
    assert level(run) == ORDER.index("unknown")
    run.ends(CONTROL)
    assert level(run) == ORDER.index("baseline")
    run.ends(CONTROL_FAILED | {"client": 1})
    assert level(run) == ORDER.index("unknown") and run.shown["attack_control_ok",] == 0.0


@pytest.mark.parametrize(("audits", "tone"), [
    ([], 0), ([CONTROL, audit(scores=NOTHING)], 1), ([CONTROL, audit(scores=TRACES)], 3),
    ([CONTROL, audit(scores=REBUILT)], 4),
])  # fmt: skip
def test_monitoring_is_told_the_verdict_of_the_report(run: Remembering, audits: list[Any], tone: int) -> None:
    run.exporter = Mock()
    run.store.write_run(status="running", settings={"defenses": "dgp", "audit-every": 1})
    if audits:
        run.ends(*audits)
    else:
        tell_verdict(run)
    run.exporter.update.assert_called_once_with([row("verdict_tone", tone)])
    assert not [line for line in run.store.metrics() if line["metric"] == "verdict_tone"]


def test_only_of_a_run_that_is_complete_the_verdict_told_is_clear(run: Remembering) -> None:
    run.exporter = Mock()
    defended, single = (audit(kind, NOTHING) for kind in ("control-defended", "single-defended"))
    run.store.write_run(status="running", settings={"defenses": "dgp", "audit-every": 1}, classes=10, test_examples=300)
    run.store.append_metrics(5, [row("round", 5), row("accuracy_ratio", 0.9), row("loss", 0.3)])
    run.ends(CONTROL, audit("single", REBUILT), defended, single, audit(scores=NOTHING))
    assert run.exporter.update.call_args.args[0] == [row("verdict_tone", 1)]
    run.store.finish("completed")
    tell_verdict(run)
    assert run.exporter.update.call_args.args[0] == [row("verdict_tone", 2)]


def test_after_a_resume_what_was_found_is_judged_by_the_audits_that_are_left(run: Remembering) -> None:
    """The level of before was told in an earlier round, and knew an audit that is taken back."""
    run.exporter = Mock()
    run.ends(CONTROL, audit(scores=NOTHING))
    run.store.append_metrics(5, [row("leakage_level", 3, **dict(labels_of(audit()))), row("round", 5)])
    run.counters = {"audits_total|scored": 2.0}
    run.exporter.reset_mock()
    show_again(run)
    restored = {line["metric"] for line in run.exporter.restore.call_args.args[0]}
    assert "round" in restored and "leakage_level" not in restored
    shown = values([each for call in run.exporter.update.call_args_list for each in call.args[0]])
    assert shown["leakage_level", *labels_of(audit())] == ORDER.index("baseline")
    assert shown["audits_total", ("outcome", "scored")] == 2.0 and shown["verdict_tone",] == 1.0
