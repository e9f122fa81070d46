"""The question at a run's end, over an in-process Grid; no attack is run, since the question needs none."""

import json
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

import prunella.client.app
from prunella.core.config import parse_run
from prunella.server.app import assemble, describe
from prunella.server.audit.job import JOB
from prunella.server.audit.membership import QUERY, audited, read_answer
from prunella.server.audit.queue import LEFT_OUT, REFUSED
from prunella.server.grid import OrderedGrid
from prunella.server.report.verdict import judge
from prunella.server.rounds import Federation, federate
from tests.local_grid import LocalGrid, settings

Tamper = Any
SCORE = {"members": 100.0, "outsiders": 200.0, "auc": 0.6, "loose": 5.0}


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker: the audits that wait for one are given up at once."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    monkeypatch.setattr("prunella.server.audit.process.WorkerProcess.ensure", lambda _: True)
    monkeypatch.setattr("prunella.server.audit.queue.Auditor.at_most", lambda _: 0.0)


def go(
    folder: Path, consent: str | None, tamper: Tamper = None, resume: bool = False, **overrides: Any
) -> tuple[Federation, LocalGrid, list[dict[str, Any]]]:
    run = {"rounds": 1, "audit_every": 1, "local_steps": 4, "strategy": "random", "defenses": "none", **overrides}
    raw = settings(run_dir=str(folder / "run"), resume=resume, **run)
    federation = assemble(parse_run({k: v for k, v in raw.items() if "." not in k}), raw)
    describe(federation)
    node = {"audit": consent} if consent else {}
    grid = LocalGrid(prunella.client.app.app, 3, raw, folder / "nodes", tamper, **node)
    federate(federation, OrderedGrid(grid, 0.0))
    return federation, grid, [a for a in federation.store.audits() if a["kind"] == "membership"]


def test_every_audited_client_is_asked_once_and_its_answer_is_kept_and_judged(tmp_path: Path) -> None:
    federation, grid, lines = go(tmp_path, "numbers", audit_clients=2)
    questions = [m for m in grid.sent if m.metadata.message_type == QUERY]
    assert len(questions) == len(lines) == 2 and {line["client"] for line in lines} == {0, 1}
    assert all(set(m.content) == {"audit"} and dict(m.content["audit"]) == {"round": 1} for m in questions)
    for line in lines:
        assert line["outcome"] == "scored" and set(line["membership"]["scores"]) == {"local", "drop", "alignment"}
        assert line["membership"]["scores"]["drop"]["members"] == 64
    said = judge(federation.store.run(), federation.store.metrics(), federation.store.audits())
    assert sum(note.startswith("Membership of client") for note in said.notes) == 2
    assert federation.counters["audits_total|scored"] == 2


def test_a_restarted_server_does_not_ask_again_what_was_answered(tmp_path: Path) -> None:
    _, _, before = go(tmp_path, "scores")
    _, grid, after = go(tmp_path, "scores", resume=True)
    assert len(before) == 1 and after == before
    assert not [m for m in grid.sent if m.metadata.message_type == QUERY]


@pytest.mark.parametrize("off", [{"consent": None}, {"consent": "deny"}, {"membership": False}, {"audit_every": 0}])
def test_nobody_is_asked_who_did_not_consent_or_in_a_run_that_does_not_ask(tmp_path: Path, off: dict[str, Any]) -> None:
    _, grid, lines = go(tmp_path, **{"consent": "scores", **off})
    assert not lines and not [m for m in grid.sent if m.metadata.message_type == QUERY]
    assert not list((tmp_path / "nodes").rglob("seen-*"))


def reply(outcome: str = "scored", numbers: dict[str, Any] | None = None, **audit: Any) -> Message:
    question = Message(RecordDict(), dst_node_id=1, message_type=QUERY)
    records: dict[str, Any] = {"audit": ConfigRecord({"outcome": outcome, **audit})}
    if numbers is not None:
        records["membership"] = MetricRecord(numbers)
    return Message(RecordDict(records), reply_to=question)


def numbers(**changes: float | None) -> dict[str, float]:
    return {f"drop.{name}": value for name, value in {**SCORE, **changes}.items() if value is not None}


def test_an_answer_that_fits_is_read() -> None:
    assert read_answer(reply(word="found", numbers=numbers()))["membership"]["scores"] == {
        "drop": {"members": 100, "outsiders": 200, "auc": 0.6, "strict": None, "loose": 5}
    }
    assert read_answer(reply(word="unresolved"))["membership"] == {"word": "unresolved", "scores": None}
    assert read_answer(reply(word="unresolved", numbers={}))["membership"]["scores"] == {}
    assert read_answer(reply("no-consent")) == {"outcome": "no-consent"}
    assert read_answer(reply("refused"))["reason"] == REFUSED


@pytest.mark.parametrize(
    "odd",
    [
        {"word": "clear"},
        {},
        {"word": 1},
        {"word": "found", "numbers": {"psnr": 3.0}},
        {"word": "found", "numbers": {"other.members": 30.0}},
        {"word": "found", "numbers": numbers(auc=1.2)},
        {"word": "found", "numbers": numbers(auc=float("nan"))},
        {"word": "found", "numbers": numbers(members=3.0)},
        {"word": "found", "numbers": numbers(members=30.5)},
        {"word": "found", "numbers": numbers(loose=101.0)},
        {"word": "found", "numbers": numbers(loose=None)},
        {"word": "found", "numbers": numbers(strict=1.0)},
        {"word": "found", "numbers": numbers(outsiders=1e12)},
        {"word": "found", "numbers": {"drop.members": 30.0, "drop": 1.0}},
        {"word": "found", "numbers": {"drop.members": [1.0, 2.0]}},
    ],
)
def test_an_odd_answer_is_a_failed_audit(odd: dict[str, Any]) -> None:
    found = read_answer(reply(**odd))
    assert found["outcome"] == "failed" and found["reason"].startswith(LEFT_OUT) and "membership" not in found


def test_errors_and_silence_are_failed_audits(tmp_path: Path) -> None:
    question = Message(RecordDict(), dst_node_id=1, message_type=QUERY)
    broken = read_answer(Message(Error(code=2, reason="no\x1b room"), reply_to=question))
    assert broken["outcome"] == "failed" and "\x1b" not in broken["reason"]
    assert read_answer(None)["reason"] == "the client did not answer in time"

    def lost(message: Message) -> Message | None:
        return None if message.has_content() and "word" in message.content.config_records.get("audit", {}) else message

    _, _, (line,) = go(tmp_path, "scores", lost, audit_seconds=0.2)
    assert line["outcome"] == "failed" and line["reason"] == "the client did not answer in time"


def test_the_clients_that_were_attacked_last_come_first(tmp_path: Path) -> None:
    for round, kind, client in (
        (2, "client", 4),
        (6, "client", 1),
        (6, "client", 0),
        (4, "client", 1),
        (6, "control", None),
    ):
        folder = tmp_path / f"round-{round}-{client}"
        folder.mkdir()
        job = {"round": round, "kind": kind, "client": client, "threat": "", "defense": ""}
        (folder / JOB).write_text(json.dumps({"job": job}))
    assert audited(tmp_path, 9) == [0, 1, 4] and audited(tmp_path, 1) == [0] and audited(tmp_path / "none", 3) == []
