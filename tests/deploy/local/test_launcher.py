"""Whole federations over real gRPC on loopback, and what is left of them: nothing."""

import ast
import json
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from prunella.core.errors import ConfigError
from prunella.deploy.errors import UsageError
from prunella.deploy.local import launcher
from prunella.deploy.local.launcher import (
    Outcome,
    Request,
    Watch,
    check_clients,
    check_port,
    describe,
    node_config,
    restored,
    run_config,
    tail,
)
from prunella.deploy.ports import PortError, free_ports
from prunella.deploy.runs import RunDir, RunError, create
from prunella.deploy.runtime.processes import Exit


def witnesses(runs: Path) -> list[dict]:
    files = sorted((runs / "latest" / "nodes").glob("*/state/*.txt"))
    return [ast.literal_eval(file.read_text()) for file in files]


@pytest.mark.federation
def test_a_run_completes_and_leaves_only_its_results(prunella) -> None:
    command = prunella("-c", "rounds=2", "--client-seed", "7", "--audit", "scores")
    code, output = command.finish()
    assert code == 0, output
    assert "round 2/2" in output
    command.await_end_of_family()
    run = command.runs / "latest"
    assert not (run / "flower").exists()
    assert (run / "nodes" / "0" / "state").stat().st_mode & 0o777 == 0o700
    seen = witnesses(command.runs)
    assert len(seen) == 4, "2 clients, 2 rounds"
    assert sorted(w["node"]["partition-id"] for w in seen) == [0, 0, 1, 1]
    assert {w["node"]["audit"] for w in seen} == {"scores"} and {w["node"]["client-seed"] for w in seen} == {7}
    assert len({w["pid"] for w in seen}) == 4, "each message is a process of its own"
    assert len({w["noise"] for w in seen}) == 4, "forks must not share randomness"


@pytest.mark.federation
def test_loopback_only_then_ctrl_c_ends_everything(prunella) -> None:
    command = prunella("-c", "rounds=100000")
    command.await_round(1)
    family = command.family()
    names = {process.name() for process in family}
    assert {"superlink", "supernode-0", "supernode-1", "server-exec", "client-exec-0"} <= names
    listening = command.listening()
    assert {ip for ip, _ in listening} == {"127.0.0.1"}
    assert len(listening) == 4, "control, fleet, and one a SuperNode"
    command.process.send_signal(signal.SIGINT)
    code, output = command.finish()
    assert code == 130 and "--resume" in output
    command.await_end_of_family()


@pytest.mark.federation
def test_killing_the_launcher_ends_everything(prunella) -> None:
    command = prunella("-c", "rounds=100000", "-c", "misbehave=orphan")
    command.await_round(1)
    assert any(p.name() == "sleep" for p in command.family()), "the app started a process of its own"
    command.process.kill()
    command.await_end_of_family()


@pytest.mark.federation
@pytest.mark.parametrize("how, told", [("raise", "this app fails on purpose"), ("die", "was killed by SIGKILL")])
def test_a_failing_app_is_a_failed_run(prunella, how: str, told: str) -> None:
    command = prunella("-c", f"misbehave={how}")
    code, output = command.finish()
    assert code == 1
    assert told in output and "logs" in output
    command.await_end_of_family()


@pytest.mark.federation
def test_resume_restarts_with_the_same_settings_and_client_memory(prunella) -> None:
    command = prunella("-c", "rounds=2", "-c", "misbehave=unless-resumed", "--run-id", "one")
    assert command.finish()[0] == 1
    (command.runs / "one" / "nodes" / "0" / "state" / "mine").write_text("kept")
    again = prunella("--resume", "latest")
    code, output = again.finish()
    assert code == 0, output
    assert (command.runs / "one" / "nodes" / "0" / "state" / "mine").read_text() == "kept"
    assert len(witnesses(command.runs)) == 4


@pytest.mark.federation
def test_stock_processes_end_with_a_killed_launcher(prunella) -> None:
    command = prunella("--stock")
    command.await_family(4)
    command.process.kill()
    command.await_end_of_family()


@pytest.mark.federation
def test_simulation_listens_on_loopback_only_and_ends_with_its_launcher(prunella) -> None:
    command = prunella("-c", "rounds=100000", subcommand="simulate")
    command.await_round(1)
    listening = command.listening()
    assert len(listening) > 4 and {ip for ip, _ in listening} == {"127.0.0.1"}, "Ray listens everywhere by default"
    command.process.kill()
    command.await_end_of_family()


class Quiet:
    """A backend whose processes end when the test says so, and a view that keeps what it is told."""

    def __init__(self) -> None:
        self.ended: list[Exit] = []
        self.said: list[str] = []

    def spawn(self, process: object) -> None: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...
    def show(self, lines: object) -> None: ...

    def exits(self) -> list[Exit]:
        ended, self.ended = self.ended, []
        return ended

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return create(tmp_path / "runs", "one", 2)


def watch(run: RunDir, *events: dict, ended: tuple[Exit, ...] = ()) -> tuple[Outcome | None, list[str]]:
    quiet = Quiet()
    run.events.write_text("".join(json.dumps(event) + "\n" for event in events))
    quiet.ended = list(ended)
    return Watch(run, quiet, quiet, stock=False).step(), quiet.said


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


def test_a_serverapp_that_ends_without_a_word_is_not_waited_for_forever(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = (Exit("flwr-serverapp of server-exec", 1),)
    assert watch(run, ended=ended)[0] is None, "Flower may still report the end"
    monkeypatch.setattr(launcher, "LAST_WORD", -1.0)
    outcome, _ = watch(run, ended=ended)
    assert outcome and "without a word" in outcome.error


def test_another_system_is_refused(smallest_app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UsageError, match="Linux"):
        launcher.launch(Request(smallest_app, tmp_path / "runs"), Quiet())


def test_refused_settings_leave_no_run_behind(smallest_app: Path, tmp_path: Path) -> None:
    def refuse() -> None:
        raise ConfigError("no such strategy")

    with pytest.raises(ConfigError):
        launcher.launch(Request(smallest_app, tmp_path / "runs", run_id="one"), Quiet(), refuse)
    assert list((tmp_path / "runs").iterdir()) == []


def test_success_reported_in_the_same_look_as_an_exit_wins(run: RunDir) -> None:
    outcome, _ = watch(run, status("finished:completed"), ended=(Exit("superlink", 0),))
    assert outcome and outcome.status == "completed"


def test_a_request_survives_the_disk(run: RunDir, smallest_app: Path) -> None:
    request = Request(smallest_app, run.path.parent, {"rounds": 3}, 2, "one", "deny", 5)
    (run.path / "launch.json").write_text(json.dumps(describe(request)))
    assert restored(run) == request
    assert restored(run, keep=True) == replace(request, keep=True)
    (run.path / "launch.json").write_text("{}")
    with pytest.raises(RunError, match="start a new run"):
        restored(run)


def test_each_client_has_its_own_state_and_consent(run: RunDir, smallest_app: Path) -> None:
    request = Request(smallest_app, run.path.parent, {}, 2, audit="deny")
    configs = [node_config(request, run, i) for i in range(2)]
    assert [c["partition-id"] for c in configs] == [0, 1]
    assert configs[0]["state-dir"] != configs[1]["state-dir"]
    assert all(c["audit"] == "deny" and "client-seed" not in c for c in configs)
    assert node_config(replace(request, client_seed=0), run, 1)["client-seed"] == 0


def test_the_launcher_sets_only_keys_the_app_has(run: RunDir, smallest_app: Path) -> None:
    config = run_config(Request(smallest_app, run.path.parent, {"rounds": 1}), run, 9000, True)
    assert config == {"run-dir": str(run.path), "resume": True, "rounds": 1}


def test_a_taken_metrics_port_is_refused() -> None:
    [port] = free_ports(1)
    check_port({"metrics-address": f"127.0.0.1:{port}"})
    with socket.create_server(("127.0.0.1", port)), pytest.raises(PortError, match="choose another"):
        check_port({"metrics-address": f"127.0.0.1:{port}"})
    with pytest.raises(PortError):
        check_port({"metrics-address": "nonsense"})


def test_the_tail_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    assert tail(log) == ""
    log.write_bytes(b"1\n2\n\xff3\n")
    assert tail(log, 2).splitlines()[0] == "2"


def test_fewer_clients_than_a_round_waits_for_is_refused_with_the_mend(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    with pytest.raises(UsageError, match="-c min-clients=1"):
        check_clients(Request(root, tmp_path, {}, supernodes=1))
    check_clients(Request(root, tmp_path, {"min-clients": 1}, supernodes=1))
    check_clients(Request(root, tmp_path, {}, supernodes=2))
