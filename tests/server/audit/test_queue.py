"""The audit round trip over an in-process Grid; the worker is a fork of the tests, once the real process."""

import multiprocessing
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from flwr.app import Error, Message, MetricRecord

import prunella.client.app
from prunella.attacks import ATTACKS, rog
from prunella.attacks.sgi import Sgi
from prunella.attacks.trace import load_trace
from prunella.core.config import parse_run
from prunella.core.errors import ConfigError
from prunella.core.files import read_tree
from prunella.core.metrics import METRICS
from prunella.core.randomness import stream
from prunella.privacy.defense import Entry
from prunella.privacy.none import NoDefense
from prunella.privacy.top_k import TopK, top_k
from prunella.server.app import assemble, describe
from prunella.server.audit.queue import ready_settings, rebuilt_control
from prunella.server.audit.worker import preload, serve
from prunella.server.grid import OrderedGrid
from prunella.server.rounds import Federation, federate
from prunella.tasks.data import load_test
from prunella.tasks.task import Task
from prunella.wire.records import to_dense
from tests.local_grid import LocalGrid, settings

QUICK = {"rounds": 2, "audit_every": 2, "batch_size": 2, "local_steps": 1, "sgi__iterations": 60, "strategy": "random"}


class Forked:
    """What the Auditor needs of ``Popen``; it spares every test the worker's five seconds of imports."""

    def __init__(self, command: list[str], **_: Any) -> None:
        queue, parent, limit = command[-3:]
        fork = multiprocessing.get_context("fork")
        self.process = fork.Process(target=serve, args=(Path(queue), int(parent), int(limit)))
        self.process.start()
        self.poll, self.terminate, self.wait = lambda: self.process.exitcode, self.process.terminate, self.process.join


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """As in the real worker: every fork would import it anew."""
    preload()


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prunella.server.audit.process.subprocess.Popen", Forked)


def go(folder: Path, consent: str | None, tamper: Any = None, **overrides: Any) -> tuple[Federation, LocalGrid]:
    raw = settings(**{"run_dir": str(folder / "run"), **QUICK, **overrides})
    federation = assemble(parse_run({k: v for k, v in raw.items() if "." not in k}), raw)
    describe(federation)
    grid = LocalGrid(
        prunella.client.app.app, 2, raw, folder / "nodes", tamper, **({"audit": consent} if consent else {})
    )
    try:
        federate(federation, OrderedGrid(grid, 0.02))
    finally:
        federation.auditor.close()
    return federation, grid


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
    assert set(audits) == {"control", "control-defended", "client"} and audits["control"]["ok"] is True
    assert {audit["attack"] for audit in audits.values()} == {own["attack"]}
    assert audits["client"]["defense"] == own["defenses"] and audits["client"]["threat"].startswith("mine. ")
    assert federation.store.run()["claims"] == [f"{own['defenses']}: heuristic, no ε"]
    told = [dict(ledger) for ledger in federation.ledgers.values()]
    assert told and all("perfect" not in str(ledger) for ledger in told)


def test_pictures_consented_control_defended_and_client_are_all_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    federation, _ = go(tmp_path, "pictures", defenses="largest", sgi__iterations=300)
    audits = kinds(federation)
    assert set(audits) == {"control", "control-defended", "client"}
    assert {a["outcome"] for a in audits.values()} == {"scored"}
    assert audits["control"]["ok"] is True and audits["control-defended"]["ok"] is None
    assert audits["control-defended"]["scores"]["psnr"]["mean"] < audits["control"]["scores"]["psnr"]["mean"]
    assert audits["client"]["client"] == 0 and audits["client"]["defense"] == "largest"
    pictures, _ = read_tree(tmp_path / "run" / audits["client"]["pictures"])
    assert pictures["original"].shape == pictures["reconstruction"].shape == (2, 1, 8, 8)
    assert federation.counters["audits_total|scored"] == 3


def test_the_client_is_asked_about_exactly_the_round_that_was_attacked(tmp_path: Path) -> None:
    _, grid = go(tmp_path, "scores")
    (question,) = [m for m in grid.sent if m.metadata.message_type == "query.audit"]
    assert question.content["audit"]["round"] == 2 and question.metadata.dst_node_id == 100
    assert set(question.content) == {"audit", "reconstruction"}


def test_scores_only_consent_returns_no_picture(tmp_path: Path) -> None:
    federation, _ = go(tmp_path, "scores")
    audit = kinds(federation)["client"]
    assert audit["outcome"] == "scored" and audit["pictures"] is None


def test_without_consent_no_client_is_attacked_or_asked(tmp_path: Path) -> None:
    federation, grid = go(tmp_path, None)
    assert set(kinds(federation)) == {"control", "control-defended"}
    assert not [m for m in grid.sent if m.metadata.message_type == "query.audit"]
    assert not list((tmp_path / "run" / "traces").glob("*client*"))


def test_a_client_that_cannot_score_is_a_failed_audit_and_never_a_low_score(tmp_path: Path) -> None:
    def break_audit(message: Message) -> Message:
        if message.has_content() and "scores" in message.content:
            del message.content["scores"], message.content["audit"]["level"]
        return message

    federation, _ = go(tmp_path, "pictures", break_audit)
    audit = kinds(federation)["client"]
    assert audit["outcome"] == "failed" and audit["scores"] is None
    assert federation.counters["audits_total|failed"] == 1
    client_rows = [r for r in federation.store.metrics() if r["labels"].get("view") == "client"]
    assert not [r for r in client_rows if r["metric"].startswith("leakage")]


@pytest.mark.parametrize("fault", ["extra", "nan", "missing", "list", "pictures", "shape"])
def test_an_odd_answer_to_an_audit_is_a_failed_audit_and_the_run_goes_on(tmp_path: Path, fault: str) -> None:
    def damage(message: Message) -> Message:
        if not message.has_content() or "scores" not in message.content:
            return message
        scores = dict(message.content["scores"])
        changed = {"extra": {"psnr": 1.0}, "nan": {"psnr.mean": float("nan")}, "list": {"psnr.mean": [1.0]}}
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

    federation, _ = go(tmp_path, "pictures", damage, defenses="none", sgi__iterations=5)
    assert kinds(federation)["client"]["outcome"] == "failed"
    assert federation.counters["audits_total|failed"] == 1


def test_a_restarted_server_takes_up_the_audits_that_had_no_outcome(tmp_path: Path) -> None:
    before, _ = go(tmp_path, "scores")
    answered = before.store.audits()
    lines = tmp_path / "run" / "audits.jsonl"
    lines.write_text("")
    (tmp_path / "run" / "traces" / "round-000002-client-0" / "result.json").unlink()
    after, _ = go(tmp_path, "scores", resume=True)
    told = ("round", "kind", "client", "outcome", "scores", "threat", "defense")
    old, new = ({a["kind"]: [a[k] for k in told] for a in audits} for audits in (answered, after.store.audits()))
    assert len(old) == 3 and old == new
    assert after.counters == before.counters


def test_a_worker_that_cannot_start_fails_its_audits_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr("prunella.server.audit.process.sys.executable", "/bin/false")
    federation, _ = go(tmp_path, "scores")
    assert {a["outcome"] for a in kinds(federation).values()} == {"failed"}
    assert federation.counters["audits_total|failed"] == 3


def test_a_worker_killed_again_and_again_costs_no_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

    calm, _ = go(tmp_path / "calm", "scores")
    monkeypatch.setattr("prunella.server.audit.process.subprocess.Popen", Doomed)
    federation, _ = go(tmp_path / "killed", "scores")
    assert [process.exitcode for process in killed] == [-signal.SIGKILL] * 2
    told = ("outcome", "scores", "objective")
    assert {k: [a[n] for n in told] for k, a in kinds(federation).items()} == {
        k: [a[n] for n in told] for k, a in kinds(calm).items()
    }


def test_audits_of_rounds_done_again_are_forgotten(tmp_path: Path) -> None:
    federation, _ = go(tmp_path, "scores")
    federation.auditor.recover(1, [])
    assert not federation.auditor.jobs and not list((tmp_path / "run" / "traces").glob("*/job.json"))


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


def test_the_view_is_what_was_received_and_knows_no_label(tmp_path: Path) -> None:
    federation, grid = go(tmp_path, "scores")
    view, task, extra = load_trace(tmp_path / "run" / "traces" / "round-000002-client-0" / "view.safetensors")
    expected = federation.strategy.downlink.expected()
    assert extra["kind"] == "client" and task == federation.task
    assert all(torch.equal(view.params[n], expected.params[n]) for n in view.params)
    assert view.labels is None and view.steps == 1 and view.batch_size == 2
    assert not any(view.update[n][~view.shared[n]].any() for n in view.update)


def test_the_control_needs_the_label_and_the_picture() -> None:
    good = {"label_accuracy": 1.0, "psnr": {"mean": 20.0}}
    assert rebuilt_control(good)
    assert not rebuilt_control({**good, "label_accuracy": 0.0})
    assert not rebuilt_control({**good, "psnr": {"mean": 19.9}})


@pytest.mark.parametrize("strategy", ["prunefl", "feddst", "magnitude", "lotteryfl"])
def test_a_client_is_audited_in_every_kind_of_round(tmp_path: Path, strategy: str) -> None:
    """Also in those in which squared gradients leave: they are of prunable weights, not of all."""
    every = {"strategy": strategy, "rounds": 4, "audit_every": 1, "prunefl__adjust_interval": 2}
    federation, _ = go(tmp_path, "pictures", **every, sgi__iterations=5)
    clients = [audit for audit in federation.store.audits() if audit["kind"] == "client"]
    assert [audit["round"] for audit in clients] == [1, 2, 3, 4]
    assert {audit["outcome"] for audit in clients} == {"scored"}


def test_a_run_emits_every_metric_there_is(tmp_path: Path) -> None:
    """A metric that nothing emits leaves its panel, its alert and its line of the report empty for ever."""
    lost: list[Message] = []

    def lose_one(message: Message) -> Message:
        if lost or message.metadata.message_type != "train":
            return message
        lost.append(message)
        return Message(Error(code=2, reason="lost"), reply_to=message)

    runs = [
        go(tmp_path / "epsilon", "scores", lose_one, defenses="dp-sgd", sgi__iterations=5)[0],
        go(tmp_path / "channel", None, defenses="channel-natural", audit_every=0)[0],  # has nats, and no epsilon
    ]
    emitted = {line["metric"] for run in runs for line in run.store.metrics()}
    by_exporter = {metric.name for metric in METRICS.values() if metric.kind == "info"}
    assert emitted | by_exporter == METRICS.keys()
