"""The audit round trip over an in-process Grid; the worker is a fork of the tests, once the real process."""

import multiprocessing
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.app.message.message import make_message

import prunella.client.app
from prunella.attacks import ATTACKS, rog
from prunella.attacks.score.control import rebuilt_control
from prunella.attacks.sgi import Sgi
from prunella.attacks.trace import load_trace
from prunella.core.config import parse_run
from prunella.core.errors import ConfigError
from prunella.core.files import read_tree
from prunella.core.metrics import METRICS
from prunella.core.randomness import stream
from prunella.core.types import ServerView
from prunella.privacy.defense import Entry
from prunella.privacy.none import NoDefense
from prunella.privacy.top_k import TopK, top_k
from prunella.server.app import assemble, describe
from prunella.server.audit.answers import SCORES, STATS
from prunella.server.audit.attempt import TRANSFORMED
from prunella.server.audit.job import Job
from prunella.server.audit.process import WorkerProcess
from prunella.server.audit.queue import ANSWERING, Auditor, ready_settings
from prunella.server.audit.shadow import alike
from prunella.server.audit.view import STATISTICS
from prunella.server.audit.worker import Jobs, preload, serve
from prunella.server.grid import OrderedGrid
from prunella.server.report.evidence import controls_of
from prunella.server.rounds import Federation, federate
from prunella.tasks.data import load_test
from prunella.tasks.task import Task
from prunella.wire.records import to_dense
from tests.local_grid import LocalGrid, settings

QUICK = {"rounds": 1, "audit_every": 1, "batch_size": 1, "local_steps": 1, "sgi__iterations": 60, "strategy": "random"}
QUICK |= {"attack": "sgi", "membership": False}  # asked in test_membership
CANARIES = {"control", "control-defended", "single", "single-defended"}


class Forked:
    """What the Auditor needs of ``Popen``; it spares every test the worker's five seconds of imports."""

    def __init__(self, command: list[str], **_: Any) -> None:
        queue, parent, limit = command[-3:]
        fork = multiprocessing.get_context("fork")
        self.process = fork.Process(target=serve, args=(Path(queue), int(parent), Jobs(int(limit))))
        self.process.start()
        self.poll, self.terminate, self.wait = lambda: self.process.exitcode, self.process.terminate, self.process.join


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """As in the real worker: every fork would import it anew."""
    preload()


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prunella.server.audit.process.subprocess.Popen", Forked)


def assembled(folder: Path, **overrides: Any) -> tuple[Federation, dict[str, Any]]:
    raw = settings(**{"run_dir": str(folder / "run"), **QUICK, **overrides})
    return assemble(parse_run({k: v for k, v in raw.items() if "." not in k}), raw), raw


def go(folder: Path, consent: str | None, tamper: Any = None, **overrides: Any) -> tuple[Federation, LocalGrid]:
    federation, raw = assembled(folder, **overrides)
    describe(federation)
    grid = LocalGrid(
        prunella.client.app.app, 2, raw, folder / "nodes", tamper, **({"audit": consent} if consent else {})
    )
    try:
        federate(federation, OrderedGrid(grid, 0.02))
    finally:
        federation.auditor.close()
    return federation, grid


@pytest.fixture(scope="module")
def scored(loaded: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Federation, LocalGrid]:
    """The folder, the federation and the messages of a run whose clients consent to scores; tests only read it."""
    folder = tmp_path_factory.mktemp("scored")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prunella.server.audit.process.subprocess.Popen", Forked)
        return folder, *go(folder, "scores")


def kinds(federation: Federation) -> dict[str, dict[str, Any]]:
    return {audit["kind"]: audit for audit in federation.store.audits()}


@dataclass(frozen=True)
class Quick(Sgi):
    iterations: int = 60


OWN_ATTACK = ATTACKS["sgi"]._replace(settings=Quick, threat="mine")
OWN_DEFENSE = Entry("update", NoDefense, lambda settings: top_k(TopK(0.5)), claim="perfect secrecy")


def test_a_run_under_somebody_s_own_defense_and_attack_believes_no_claim(tmp_path: Path) -> None:
    own = {"defenses": f"{__name__}:OWN_DEFENSE", "attack": f"{__name__}:OWN_ATTACK"}
    federation, grid = go(tmp_path, "scores", **own)
    audits = kinds(federation)
    assert set(audits) == {*CANARIES, "client"} and audits["control"]["ok"] is True
    assert {audit["attack"] for audit in audits.values()} == {own["attack"]}
    assert audits["client"]["defense"] == own["defenses"] and audits["client"]["threat"].startswith("mine. ")
    assert federation.store.run()["claims"] == [f"{own['defenses']}: heuristic, no ε"]
    told = [dict(ledger) for ledger in federation.ledgers.values()]
    assert told and all("perfect" not in str(ledger) for ledger in told)


def test_pictures_consented_control_defended_and_client_are_all_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    federation, _ = go(tmp_path, "pictures", defenses="largest")
    audits = kinds(federation)
    assert set(audits) == {*CANARIES, "client"}
    assert {a["outcome"] for a in audits.values()} == {"scored"}
    assert audits["control"]["ok"] is True and audits["control-defended"]["ok"] is None
    assert audits["control-defended"]["scores"]["psnr"]["mean"] < audits["control"]["scores"]["psnr"]["mean"]
    assert audits["client"]["client"] == 0 and audits["client"]["defense"] == "largest"
    pictures, _ = read_tree(tmp_path / "run" / audits["client"]["pictures"])
    assert pictures["original"].shape == pictures["reconstruction"].shape == (1, 1, 8, 8)
    assert federation.counters["audits_total|scored"] == 5


def test_the_client_is_asked_about_exactly_the_round_that_was_attacked(scored) -> None:
    _, _, grid = scored
    (question,) = [m for m in grid.sent if m.metadata.message_type == "query.audit"]
    assert question.content["audit"]["round"] == 1 and question.metadata.dst_node_id == 100
    assert set(question.content) == {"audit", "reconstruction"}


def test_scores_only_consent_returns_no_picture(scored) -> None:
    _, federation, _ = scored
    audit = kinds(federation)["client"]
    assert audit["outcome"] == "scored" and audit["pictures"] is None


def test_without_consent_no_client_is_attacked_or_asked(tmp_path: Path) -> None:
    federation, grid = go(tmp_path, None, sgi__iterations=5)
    assert set(kinds(federation)) == CANARIES
    assert not [m for m in grid.sent if m.metadata.message_type == "query.audit"]
    assert not list((tmp_path / "run" / "traces").glob("*client*"))


def test_a_client_that_cannot_score_is_a_failed_audit_and_never_a_low_score(tmp_path: Path) -> None:
    def break_audit(message: Message) -> Message:
        if message.has_content() and "scores" in message.content:
            del message.content["scores"], message.content["audit"]["level"]
        return message

    federation, _ = go(tmp_path, "pictures", break_audit, sgi__iterations=5)
    audit = kinds(federation)["client"]
    assert audit["outcome"] == "failed" and audit["scores"] is None
    assert federation.counters["audits_total|failed"] == 1
    client_rows = [r for r in federation.store.metrics() if r["labels"].get("view") == "client"]
    assert not [r for r in client_rows if r["metric"].startswith("leakage")]


@pytest.mark.parametrize("word", ["unknown", "baseline"])
def test_what_shows_nothing_behind_a_defense_of_images_shows_it_whatever_the_client_s_word_is(
    monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    """A verdict goes by word and numbers, so what they are worth does, too."""
    found: list[Any] = []
    monkeypatch.setattr(Auditor, "_result", lambda *_: {"objective": 0.001, "explained": True, "reason": None})
    monkeypatch.setattr(Auditor, "_finish", lambda *given: found.extend(given[-2:]))
    auditor = object.__new__(Auditor)
    auditor.task = Task("cnn", (1, 8, 8), 10)
    names = [f"{score}.{stat}" for score in SCORES for stat in STATS]
    scores = MetricRecord({**dict.fromkeys(names, 0.5), "iip": 0.0, "images": 4})
    content = RecordDict({"audit": ConfigRecord({"outcome": "scored", "level": word}), "scores": scores})
    reply: Any = SimpleNamespace(content=content, has_error=lambda: False)
    auditor._scored(Job(1, "client", 0, "", "ats"), reply)
    assert found == [False, TRANSFORMED]


def test_an_odd_answer_to_an_audit_is_a_failed_audit_and_the_run_goes_on(tmp_path: Path) -> None:
    """An answer of each kind, and one that nobody damaged."""
    changed = {"extra": {"psnr": 1.0}, "nan": {"psnr.mean": float("nan")}, "list": {"psnr.mean": [1.0]}}
    faults = [*changed, "missing", "pictures", "shape", "none"]
    made: dict[str, str] = {}

    def damage(message: Message) -> Message:
        if not message.has_content() or "scores" not in message.content:
            return message
        made[message.metadata.reply_to_message_id] = fault = faults[len(made)]
        scores = dict(message.content["scores"])
        if fault == "missing":
            del scores["nmi.mean"]
        message.content["scores"] = MetricRecord(scores | changed.get(fault, {}))
        if fault == "pictures":
            message.content["pictures"] = to_dense({"original": torch.zeros(1, 1, 8, 8)})
        if fault == "shape":
            message.content["pictures"] = to_dense(
                dict.fromkeys(("original", "reconstruction"), torch.zeros(1, 1, 9, 9))
            )
        return message

    every = {"rounds": len(faults), "audit_every": 1, "sgi__iterations": 5}
    federation, grid = go(tmp_path, "pictures", damage, defenses="none", **every)
    questions = [m for m in grid.sent if m.metadata.message_type == "query.audit"]
    rounds = {made[m.metadata.message_id]: m.content["audit"]["round"] for m in questions}
    outcomes = {a["round"]: a["outcome"] for a in federation.store.audits() if a["kind"] == "client"}
    assert {fault: outcomes[rounds[fault]] for fault in faults} == dict.fromkeys(faults, "failed") | {"none": "scored"}
    assert federation.counters["audits_total|failed"] == len(faults) - 1


def test_a_restarted_server_takes_up_the_audits_that_had_no_outcome(scored, tmp_path: Path) -> None:
    folder, before, _ = scored
    answered = before.store.audits()
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    lines = tmp_path / "run" / "audits.jsonl"
    lines.write_text("")
    (tmp_path / "run" / "traces" / "round-000001-client-0" / "result.json").unlink()
    after, _ = go(tmp_path, "scores", resume=True)
    told = ("round", "kind", "client", "outcome", "scores", "threat", "defense")
    old, new = ({a["kind"]: [a[k] for k in told] for a in audits} for audits in (answered, after.store.audits()))
    assert len(old) == 5 and old == new
    assert after.counters == before.counters


def test_a_worker_that_cannot_start_fails_its_audits_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr("prunella.server.audit.process.sys.executable", "/bin/false")
    federation, _ = go(tmp_path, "scores")
    assert {a["outcome"] for a in kinds(federation).values()} == {"failed"}
    assert federation.counters["audits_total|failed"] == 5
    assert {a["reason"] for a in kinds(federation).values()} == {"the audit worker ended 5 times without an answer"}


def test_a_worker_killed_again_and_again_costs_no_audit(
    scored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that is at work when its worker is killed has no answer, and the next worker's is as good."""
    killed = []

    class Doomed(Forked):
        def __init__(self, command: list[str], **more: Any) -> None:
            super().__init__(command, **more)
            if len(killed) < 2:  # two of the ``MAX_STARTS`` that may end without an answer
                killed.append(self.process)
                threading.Thread(target=self.end_in_mid_attack, daemon=True).start()

        def end_in_mid_attack(self) -> None:
            while not psutil.Process(self.process.pid).children():
                time.sleep(0.001)
            self.process.kill()

    _, calm, _ = scored
    monkeypatch.setattr("prunella.server.audit.process.subprocess.Popen", Doomed)
    federation, _ = go(tmp_path, "scores")
    assert [process.exitcode for process in killed] == [-signal.SIGKILL] * 2
    told = ("outcome", "scores", "objective")
    assert {k: [a[n] for n in told] for k, a in kinds(federation).items()} == {
        k: [a[n] for n in told] for k, a in kinds(calm).items()
    }


def test_audits_of_rounds_done_again_are_forgotten(scored, tmp_path: Path) -> None:
    shutil.copytree(scored[0], tmp_path, dirs_exist_ok=True)
    federation = assembled(tmp_path)[0]
    assert len(list((tmp_path / "run" / "traces").glob("*/job.json"))) == 5
    federation.auditor.recover(0, [])
    assert not federation.auditor.jobs and not list((tmp_path / "run" / "traces").glob("*/job.json"))


def test_a_cluster_that_updates_would_reach_in_clear_is_refused_where_there_are_audits(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="RAY_USE_TLS=1"):
        assembled(tmp_path, audit_cluster="ray://gpu.example:10001")
    assembled(tmp_path, audit_cluster="ray://gpu.example:10001", audit_every=0)


def test_an_attack_that_cannot_judge_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be judged by it"):
        go(tmp_path, None, attack="label")


def test_an_attack_whose_prior_is_missing_is_refused_and_one_that_is_there_goes_by_its_full_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="attack=ggl: ggl needs a network"):
        go(tmp_path, None, attack="ggl")
    monkeypatch.chdir(tmp_path)
    digits = load_test("digits", None)
    assert digits is not None
    rog.save(Path("rog.safetensors"), rog.train(digits.x[:64], stream(0, purpose="prior"), epochs=1, width=4))
    task = Task("cnn", (1, 8, 8), 10)
    settings = ready_settings("rog", {"rog.prior": "rog.safetensors", "rog.restarts": 2, "sgi.tv": 0.1}, task)
    assert settings == {"rog.prior": str(tmp_path / "rog.safetensors"), "rog.restarts": 2}
    with pytest.raises(ConfigError, match="on images"):
        ready_settings("rog", settings, Task("cnn", (1, 28, 28), 10))


def test_a_control_that_fails_is_called_so(tmp_path: Path) -> None:
    federation, _ = go(tmp_path, None, sgi__iterations=1)
    control = kinds(federation)["control"]
    assert control["ok"] is False and control["outcome"] == "control-failed"
    assert control["reason"].startswith("this attack cannot judge this setting")


def test_an_undefended_client_of_many_steps_is_no_evidence_where_its_control_fails(tmp_path: Path) -> None:
    """Eight steps of sixteen: the control was one image in one step, was rebuilt, and vouched for nothing found."""
    federation, _ = go(tmp_path, "pictures", defenses="none", local_steps=8, batch_size=16, rounds=1)
    audits = kinds(federation)
    assert set(audits) == {"control", "client", "single"}
    assert audits["control"]["outcome"] == "control-failed" and audits["control"]["scores"]["images"] == 16
    assert audits["single"]["outcome"] == "scored" and rebuilt_control(audits["single"]["scores"])
    assert audits["client"]["outcome"] == "scored" and audits["client"]["ok"] is False


def test_the_audits_of_a_round_are_filed_control_first_and_the_worst_cases_last(tmp_path: Path) -> None:
    go(tmp_path, "scores")
    filed = sorted((tmp_path / "run" / "traces").glob("*/job.json"), key=lambda job: job.stat().st_mtime_ns)
    order = [load_trace(job.parent / "view.safetensors")[2]["kind"] for job in filed]
    assert order == ["control", "client", "control-defended", "single", "single-defended"]


def failure(message: Message, code: int, reason: str) -> Message:
    """An error in place of a reply."""
    return make_message(metadata=message.metadata, error=Error(code=code, reason=reason))


def say(**answer: Any) -> Callable[[Message], Message | None]:
    """A client that answers audits with ``answer``, or with an error."""

    def tamper(message: Message) -> Message | None:
        if message.metadata.message_type != "query.audit":
            return message
        if "error" in answer:
            return failure(message, answer["error"], answer.get("why", ""))
        message.content["audit"] = ConfigRecord({"outcome": answer["outcome"]})
        return message

    return tamper


@pytest.mark.parametrize(
    ("answer", "outcome", "reason"),
    [
        ({"outcome": "refused"}, "failed", "the client refused"),
        ({"outcome": "rubbish"}, "failed", "the client's answer is left out"),
        ({"outcome": "no-consent"}, "no-consent", None),
        ({"error": 3}, "failed", "the client did not answer in time"),
        ({"error": 5}, "failed", "the client cannot be reached"),
        ({"error": 0, "why": "its own\x1b[31m words"}, "failed", "the client could not score it: its own[31m words"),
    ],
)
def test_an_audit_that_failed_says_why(
    tmp_path: Path, answer: dict[str, Any], outcome: str, reason: str | None
) -> None:
    federation, _ = go(tmp_path, "scores", say(**answer), defenses="none", sgi__iterations=5)
    audit = kinds(federation)["client"]
    assert audit["outcome"] == outcome and audit["scores"] is None
    assert audit["reason"] is None if reason is None else audit["reason"].startswith(reason)


@pytest.mark.parametrize("iterations", [5, 600])
def test_a_doubt_stands_also_where_images_explained_the_update_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, iterations: int
) -> None:
    monkeypatch.setattr("prunella.server.audit.worker.unread", lambda view, task: STATISTICS)
    one = {"defenses": "none", "local_steps": 1, "batch_size": 1, "sgi__iterations": iterations}
    federation, _ = go(tmp_path, "scores", **one)
    audit = kinds(federation)["client"]
    assert (audit["outcome"], audit["ok"], audit["reason"]) == ("scored", False, STATISTICS)
    assert (audit["objective"] < 1e-4) is (iterations == 600)


def test_the_worst_case_behind_a_defense_has_the_doubt_of_its_own_view(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one image the statistics may be enough where they are too few for the client's."""
    few = lambda view, task: STATISTICS if view.num_examples == 1 and view.defenses == ("dgp",) else ""  # noqa: E731
    monkeypatch.setattr("prunella.server.audit.worker.unread", few)
    federation, _ = go(tmp_path, "scores", defenses="dgp", local_steps=2, batch_size=2, sgi__iterations=2)
    told = {kind: audit["reason"] for kind, audit in kinds(federation).items()}
    assert told["single-defended"] == STATISTICS and kinds(federation)["single-defended"]["ok"] is False
    assert told["client"] is told["control-defended"] is told["single"] is None


def test_a_client_that_withholds_its_update_in_an_audited_round_is_named(tmp_path: Path) -> None:
    def withhold(message: Message) -> Message:
        if message.metadata.message_type != "train" or message.metadata.src_node_id != 100:
            return message
        return failure(message, 0, "leakage-guard: this update is withheld")

    federation, _ = go(tmp_path, "scores", withhold, audit_clients=2, min_clients=1, sgi__iterations=5)
    clients = {audit["client"]: audit for audit in federation.store.audits() if audit["kind"] == "client"}
    assert clients[0]["outcome"] == "failed" and clients[1]["outcome"] == "scored"
    assert clients[0]["reason"] == "no update came from this client: leakage-guard: this update is withheld"


def test_an_attack_that_is_out_of_time_ends_with_what_it_has_and_shows_nothing(tmp_path: Path) -> None:
    long = {"sgi__iterations": 10**6, "sgi__patience": 10**6, "sgi__tolerance": 0.0, "audit_seconds": 0.3}
    federation, _ = go(tmp_path, "scores", defenses="none", **long)
    audits = kinds(federation)
    assert {audit["reason"] for kind, audit in audits.items() if kind != "control"} == {
        "cut short: 0.3 s are too few for all of it"
    }
    assert audits["client"]["outcome"] == "scored" and audits["client"]["ok"] is False


def test_the_end_of_a_run_says_how_many_audits_are_left_and_how_long_they_take(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="flwr"):
        federation, _ = go(tmp_path, "scores")
    said = [record.getMessage() for record in caplog.records if "audit" in record.getMessage()]
    assert (
        said
        and re.fullmatch(r"\d audits? left(, about \d+ s|; the run waits \d+ (s|min) at most)", said[0])
        and said[-1] == "no audit left"
    )
    left = [line["value"] for line in federation.store.metrics() if line["metric"] == "audits_left"]
    assert left[0] > 0 and left[-1] == 0


def test_a_run_waits_for_as_many_audit_seconds_as_its_workers_have_audits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation, _ = go(tmp_path, None, audit_every=0, audit_workers=2, audit_seconds=100.0)
    auditor = federation.auditor
    assert auditor.estimate() is None and auditor.at_most() == ANSWERING
    auditor.jobs = [Job(1, "control", None, "", "none")] * 3
    auditor.took, now = [10.0, 30.0], time.monotonic()
    monkeypatch.setattr("prunella.server.audit.queue.time.monotonic", lambda: now)
    for elapsed, left in ((0.0, 40.0), (15.0, 25.0), (21.0, None)):  # no number where it takes longer than any before
        auditor.since = now - elapsed
        assert auditor.estimate() == (left if left is None else pytest.approx(left))
    assert auditor.at_most() == 200.0 + ANSWERING


def test_a_worker_that_hangs_costs_its_audits_and_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prunella.server.audit.queue.ANSWERING", 0.0)
    monkeypatch.setattr(WorkerProcess, "ensure", lambda self: True)
    federation, _ = go(tmp_path, "scores", audit_seconds=0.1)
    assert {a["outcome"] for a in kinds(federation).values()} == {"failed"}
    assert all("time for audits" in a["reason"] for a in kinds(federation).values())


def test_the_view_is_what_was_received_and_knows_no_label(scored) -> None:
    folder, federation, _ = scored
    view, task, extra = load_trace(folder / "run" / "traces" / "round-000001-client-0" / "view.safetensors")
    expected = federation.strategy.downlink.expected()
    assert extra["kind"] == "client" and task == federation.task
    assert all(torch.equal(view.params[n], expected.params[n]) for n in view.params)
    assert view.labels is None and view.steps == 1 and view.batch_size == 1
    assert not any(view.update[n][~view.shared[n]].any() for n in view.update)


@pytest.mark.parametrize("strategy", ["prunefl", "feddst", "magnitude", "lotteryfl"])
def test_a_client_is_audited_in_every_kind_of_round(tmp_path: Path, strategy: str) -> None:
    """Also in those in which squared gradients leave: they are of prunable weights, not of all."""
    every = {"strategy": strategy, "rounds": 3, "audit_every": 1, "defenses": "none"}
    moving = {"prunefl__adjust_interval": 2, "feddst__adjust_interval": 2, "lotteryfl__accuracy": 0.0}
    federation, _ = go(tmp_path, "pictures", **every, **moving, sgi__iterations=5)
    clients = [audit for audit in federation.store.audits() if audit["kind"] == "client"]
    assert [audit["round"] for audit in clients] == [1, 2, 3]
    assert {audit["outcome"] for audit in clients} == {"scored"}


@pytest.mark.parametrize(
    ("settings", "rounds"),
    [
        ({"defenses": "dgp"}, [1, 2, 5]),  # and not 4, which is as 2
        ({"defenses": "dgp", "audit_every": 2}, [1, 2, 4, 5]),
        ({"defenses": "none"}, [1, 5]),  # the update tells more
        ({"defenses": "gaussian"}, [1, 5]),  # no square is without noise
        ({"defenses": "dgp", "strategy": "feddst"}, [1, 5]),  # no square leaves
        ({"defenses": "dgp", "audit_every": 0}, []),
    ],
)
def test_the_first_round_in_which_squares_leave_beside_a_defended_update_is_audited(
    tmp_path: Path, settings: dict[str, Any], rounds: list[int]
) -> None:
    few = {"strategy": "prunefl", "prunefl__adjust_interval": 2, "rounds": 5, "audit_every": 9, "sgi__iterations": 1}
    federation, _ = go(tmp_path, "numbers", **{**few, "local_steps": 1, "batch_size": 1, **settings})
    assert [audit["round"] for audit in federation.store.audits() if audit["kind"] == "client"] == rounds
    assert federation.store.run()["unaudited"] is None


def test_a_run_emits_every_metric_there_is(tmp_path: Path) -> None:
    """A metric that nothing emits leaves its panel, its alert and its line of the report empty for ever."""
    lost: list[Message] = []

    def lose_one(message: Message) -> Message:
        if lost or message.metadata.message_type != "train":
            return message
        lost.append(message)
        return make_message(metadata=message.metadata, error=Error(code=2, reason="lost"))

    runs = [
        go(
            tmp_path / "epsilon",
            "numbers",
            lose_one,
            defenses="dp-sgd",
            sgi__iterations=5,
            membership=True,
            batch_size=64,
            evaluation="clients",  # which holds out examples: outsiders of the model
            privacy__validation_noise=1.0,
        )[0],
        go(tmp_path / "channel", None, defenses="channel-natural", audit_every=0, evaluate_examples=9)[
            0
        ],  # has nats, no epsilon
    ]
    emitted = {line["metric"] for run in runs for line in run.store.metrics()}
    by_exporter = {metric.name for metric in METRICS.values() if metric.kind == "info"} | {"run_ended", "verdict_tone"}
    assert emitted | by_exporter == METRICS.keys()


def test_a_control_of_another_size_or_mask_does_not_vouch_for_a_client() -> None:
    weights = {"w": torch.ones(2)}
    view = ServerView(
        weights, weights, mask={"w": torch.tensor([True, False])}, num_examples=64, batch_size=16, steps=4
    )
    assert alike(view, replace(view, update={"w": torch.zeros(2)}))
    for change in ({"num_examples": 1}, {"batch_size": 1}, {"steps": 1}, {"importance": weights}, {"mask": None},
                   {"mask": {"w": torch.tensor([True, True])}}):  # fmt: skip
        assert not alike(view, replace(view, **change)) and not alike(replace(view, **change), view)


def test_a_client_of_another_kind_than_the_round_s_control_has_its_own(tmp_path: Path) -> None:
    """Two audited clients, one of which says that it has one example: the other's control says nothing about it."""

    def shrink(message: Message) -> Message:
        if message.metadata.message_type == "train" and message.metadata.src_node_id == 100 and message.has_content():
            for record in message.content.metric_records.values():
                if "num-examples" in record:
                    record["num-examples"] = 1
        return message

    federation, _ = go(tmp_path, "scores", shrink, audit_clients=2, batch_size=4, sgi__iterations=5)
    audits = federation.store.audits()
    clients = [audit for audit in audits if audit["kind"] == "client"]
    relied = [controls_of(audit, audits) for audit in clients]
    assert [len(controls) for controls in relied] == [1, 1] and relied[0] != relied[1]
    assert sorted(controls[0]["client"] is None for controls in relied) == [False, True]
