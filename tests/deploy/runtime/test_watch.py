"""What Flower reports, what ends, and what becomes of the run."""

import json
from pathlib import Path

import pytest

from prunella.deploy.runs import RunDir, create
from prunella.deploy.runtime import watch as watching
from prunella.deploy.runtime.processes import Exit
from prunella.deploy.runtime.watch import PATIENT, Outcome, Watch, tail
from tests.deploy.fakes import Quiet


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return create(tmp_path / "runs", "one", 2)


def watch(
    run: RunDir, *events: dict, ended: tuple[Exit, ...] = (), spare: int | None = None
) -> tuple[Outcome | None, list[str]]:
    quiet = Quiet()
    run.events.write_text("".join(json.dumps(event) + "\n" for event in events))
    quiet.ended = list(ended)
    return Watch(run, quiet, quiet, stock=False, spare=spare).step(), quiet.said


def status(text: str, details: str = "") -> dict:
    return {"event": "status", "status": text, "details": details}


def test_what_flower_says_is_what_the_run_has_come_to(run: RunDir) -> None:
    assert watch(run, status("running"))[0] is None
    assert watch(run, status("running"), status("finished:completed"))[0] == Outcome(run, "completed")
    failed, _ = watch(run, status("finished:failed", "no memory"))
    assert failed and (failed.status, failed.error, failed.log) == ("failed", "no memory", run.log("server"))
    refused, _ = watch(run, {"event": "error", "message": "bad bundle"})
    assert refused and refused.error == "bad bundle"


def test_a_dead_server_ends_the_run_and_a_dead_client_does_not(run: RunDir) -> None:
    for name in ("superlink", "server-exec", "control"):
        outcome, _ = watch(run, ended=(Exit(name, 1),))
        assert outcome and outcome.status == "failed" and name in outcome.error
    outcome, said = watch(run, ended=(Exit("supernode-1", -9),))
    assert outcome is None and "supernode-1 was killed by SIGKILL" in said[0]
    assert watch(run, ended=(Exit("control", 0), Exit("flwr-clientapp of client-exec-0", 0)))[0] is None
    crashed, _ = watch(run, ended=(Exit("flwr-serverapp of server-exec", -11),))
    assert crashed and "SIGSEGV" in crashed.error


def test_a_client_that_no_round_can_do_without_is_told_as_that(run: RunDir) -> None:
    both = (Exit("supernode-1", -9), Exit("client-exec-1", -9))
    for spare, told in ((1, False), (0, True)):
        outcome, said = watch(run, ended=both, spare=spare)
        assert outcome is None and len(said) == 2 and all(("min-clients" in each) == told for each in said)
    _, said = watch(run, ended=(*both, Exit("client-exec-2", 1)), spare=1)
    assert ["min-clients" in each for each in said] == [False, False, True]
    assert "--resume" in said[-1]


def test_who_waits_for_more_clients_than_there_are_says_so_once(run: RunDir) -> None:
    run.logs.mkdir(parents=True, exist_ok=True)
    quiet, log = Quiet(), run.log("server")
    watch = Watch(run, quiet, quiet, stock=False)
    line = "\x1b[92mINFO \x1b[0m:      Waiting for nodes to connect: {} connected (minimum required: 2).\n"
    log.write_text(line.format(0) * PATIENT + line.format(1) * (PATIENT - 1))
    assert watch.step() is None and not quiet.said, "more may be on their way"
    for _ in range(3):
        log.write_text(log.read_text() + line.format(1))
        assert watch.step() is None
    (told,) = quiet.said
    assert told.startswith("Flower waits for 2 clients, and there is 1: start as many (--supernodes 2), or lower min_")


def test_a_serverapp_that_ends_without_reporting_is_not_waited_for_forever(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = (Exit("flwr-serverapp of server-exec", 1),)
    assert watch(run, ended=ended)[0] is None, "Flower may still report the end"
    monkeypatch.setattr(watching, "LAST_WORD", -1.0)
    outcome, _ = watch(run, ended=ended)
    assert outcome and "without reporting" in outcome.error


def test_success_reported_in_the_same_look_as_an_exit_wins(run: RunDir) -> None:
    outcome, _ = watch(run, status("finished:completed"), ended=(Exit("superlink", 0),))
    assert outcome and outcome.status == "completed"


def test_the_tail_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    assert tail(log) == ""
    log.write_bytes(b"1\n2\n\xff3\n")
    assert tail(log, 2).splitlines()[0] == "2"


def test_of_a_log_larger_than_memory_only_the_end_is_read(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    with log.open("wb") as file:
        file.truncate(2**40)  # a hole, which takes no room
        file.seek(0, 2)
        file.write(b"\n1\n2\n3\n")
    assert tail(log, 2) == "2\n3"
