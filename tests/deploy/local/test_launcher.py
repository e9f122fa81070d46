"""Whole federations over real gRPC on loopback, and what is left of them: nothing."""

import ast
import signal
import socket
import sys
from pathlib import Path

import pytest

from prunella.core.errors import ConfigError
from prunella.deploy.errors import UsageError
from prunella.deploy.local import launcher
from prunella.deploy.local.launcher import check_clients, check_port, check_room
from prunella.deploy.ports import PortError, free_ports
from prunella.deploy.runtime.request import RunRequest
from tests.deploy.fakes import Quiet


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
    assert code == 130 and "--resume" in output and "stopping ..." in output
    command.await_end_of_family()


@pytest.mark.federation
def test_killing_the_launcher_ends_everything(prunella) -> None:
    command = prunella("-c", "rounds=100000", "-c", "misbehave=orphan")
    command.await_round(1)
    assert any(p.name() == "sleep" for p in command.family()), "the app started a process of its own"
    command.process.kill()
    command.await_end_of_family()


def assert_failed(command, told: str) -> None:
    code, output = command.finish()
    assert code == 1
    assert told in output and "logs" in output
    command.await_end_of_family()


@pytest.mark.federation
def test_a_killed_app_is_a_failed_run(prunella) -> None:
    assert_failed(prunella("-c", "misbehave=die"), "was killed by SIGKILL")


@pytest.mark.federation
def test_a_failing_app_is_a_failed_run_and_resume_has_the_same_settings_and_client_memory(prunella) -> None:
    command = prunella("-c", "rounds=2", "-c", "misbehave=unless-resumed", "--run-id", "one")
    assert_failed(command, "this app fails on purpose")
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


def test_another_system_is_refused(smallest_app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UsageError, match="Linux"):
        launcher.launch(RunRequest(smallest_app, tmp_path / "runs"), Quiet())


def test_refused_settings_leave_no_run_behind(smallest_app: Path, tmp_path: Path) -> None:
    def refuse() -> None:
        raise ConfigError("no such strategy")

    with pytest.raises(ConfigError):
        launcher.launch(RunRequest(smallest_app, tmp_path / "runs", run_id="one"), Quiet(), refuse)
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_run_keeps_where_its_folder_lies(smallest_app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> str:
        raise KeyboardInterrupt

    (tmp_path / "photos").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launcher, "start_processes", broken)
    asked = RunRequest(smallest_app, tmp_path / "runs", {"dataset": "imagefolder:photos"}, run_id="one", stock=True)
    done = launcher.launch(asked, Quiet())
    assert done.run.launch()["settings"] == {"dataset": f"imagefolder:{tmp_path / 'photos'}"}


def test_a_taken_metrics_port_is_refused() -> None:
    [port] = free_ports(1)
    check_port({"metrics-address": f"127.0.0.1:{port}"})
    with socket.create_server(("127.0.0.1", port)), pytest.raises(PortError, match="choose another"):
        check_port({"metrics-address": f"127.0.0.1:{port}"})
    with pytest.raises(PortError):
        check_port({"metrics-address": "nonsense"})


def test_fewer_clients_than_a_round_waits_for_is_refused_with_the_fix(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    with pytest.raises(UsageError, match="-c min-clients=1"):
        check_clients(RunRequest(root, tmp_path, {}, supernodes=1))
    check_clients(RunRequest(root, tmp_path, {"min-clients": 1}, supernodes=1))
    check_clients(RunRequest(root, tmp_path, {}, supernodes=2))


def test_a_disk_without_room_for_the_processes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = RunRequest(tmp_path, tmp_path / "there" / "is" / "none", {}, supernodes=2)
    check_room(request)  # of the nearest folder above
    usage = launcher.shutil._ntuple_diskusage
    monkeypatch.setattr(launcher.shutil, "disk_usage", lambda path: usage(10**9, 0, 59_999_999))
    with pytest.raises(UsageError, match="60 MB free, and a run of 2 clients needs 60 MB .*--runs"):
        check_room(request)
    monkeypatch.setattr(launcher.shutil, "disk_usage", lambda path: usage(0, 0, 0))
    check_room(request)  # a file system that counts nothing: what cannot be written says so itself
