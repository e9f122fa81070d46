"""The zygote forks Flower's commands and the tasks SuperExecs ask for, and ends them all."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import pytest

from prunella.core.installation import IMPORT_ROOT as ROOT
from prunella.deploy.errors import LaunchError
from prunella.deploy.ports import free_ports
from prunella.deploy.runtime import processes
from prunella.deploy.runtime import zygote as forking
from prunella.deploy.runtime.processes import Exit, Process, ZygoteBackend, environment, importable


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ZygoteBackend, Path]]:
    """A real zygote that preloads next to nothing."""
    directory = tmp_path_factory.mktemp("zygote")
    started = ZygoteBackend(directory / "zygote.log", 0.1, {"SHARED": "yes"}, ("colorsys", "no_such_module"))
    yield started, directory
    started.stop()


def ended(zygote: ZygoteBackend, count: int = 1) -> list[Exit]:
    found: list[Exit] = []
    end = time.monotonic() + 60
    while len(found) < count:
        assert time.monotonic() < end, "nothing ended"
        found += zygote.exits()
        time.sleep(0.02)
    return found


def test_a_fork_runs_the_console_script_into_its_own_log(zygote: tuple[ZygoteBackend, Path]) -> None:
    backend, directory = zygote
    log = directory / "version.log"
    backend.spawn(Process("v", "flower-superexec", ("--version",), str(log)))
    assert ended(backend) == [Exit("v", 0)]
    assert f"Flower version: {metadata.version('flwr')}" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600
    backend.spawn(Process("w", "flower-superexec", ("--no-such-flag",), str(directory / "bad.log")))
    assert ended(backend) == [Exit("w", 2)]
    assert "usage" in (directory / "bad.log").read_text()


def test_the_zygote_is_single_threaded_and_survives_a_missing_module(zygote: tuple[ZygoteBackend, Path]) -> None:
    backend, directory = zygote
    backend.spawn(Process("late", "flower-superexec", ("--version",), after=2))
    assert ended(backend) == [Exit("late", 0)]
    assert psutil.Process(backend._zygote.pid).num_threads() == 1
    text = (directory / "zygote.log").read_text()
    assert "not preloaded: No module named 'no_such_module'" in text and "ready, single-threaded" in text


def test_a_process_waits_for_its_ports(zygote: tuple[ZygoteBackend, Path]) -> None:
    backend, _ = zygote
    [port] = free_ports(1)
    backend.spawn(Process("waits", "flower-superexec", ("--version",), wait_for=(port,)))
    backend.spawn(Process("first", "flower-superexec", ("--version",)))
    assert ended(backend) == [Exit("first", 0)]
    with socket.create_server(("127.0.0.1", port)):
        assert ended(backend) == [Exit("waits", 0)]


def test_closing_the_channel_ends_every_child(tmp_path: Path) -> None:
    backend = ZygoteBackend(tmp_path / "zygote.log", 0.1, preload=())
    [port] = free_ports(1)
    backend.spawn(Process("waits", "flower-superexec", ("--version",), str(tmp_path / "a.log"), wait_for=(port,)))
    process = psutil.Process(backend._zygote.pid)
    end = time.monotonic() + 60
    while not (children := process.children()):
        assert time.monotonic() < end
        time.sleep(0.02)
    backend.stop()
    assert not process.is_running()
    while children[0].is_running() and children[0].status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_another_flower_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import flwr.supernode.start_client_internal as module\ndel module.time\n"
    )
    backend = ZygoteBackend(tmp_path / "zygote.log", 0.1, {"PYTHONPATH": str(tmp_path)}, ())
    with pytest.raises(LaunchError, match=r"flwr 1\.\d+\.\d+ has no .*start_client_internal.time.*--stock"):
        ended(backend)
    backend.stop()


def test_a_task_inherits_its_superexec() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        zygote = forking.Zygote(theirs)
        zygote.origin = Process("client-exec-1", "flower-superexec", env={"FLWR_HOME": "/n1"}, task_log="/n1.log")
        zygote.request_task(["flwr-clientapp", "--token", "t"])
        zygote.take(zygote.tasks)
    assert zygote.waiting == [
        Process("flwr-clientapp of client-exec-1", "flwr-clientapp", ("--token", "t"), "/n1.log", {"FLWR_HOME": "/n1"})
    ]


def forked(action) -> int:
    pid = os.fork()
    if not pid:
        forking.redirect(os.devnull)
        forking.run_and_exit(action)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize(
    "action, code", [(lambda: None, 0), (lambda: sys.exit(4), 4), (lambda: sys.exit("why"), 1), (lambda: 1 / 0, 1)]
)
def test_exit_codes_are_those_of_a_process(action, code: int) -> None:
    assert forked(action) == code


class Second(contextlib.suppress):
    """The kernel's word that the launcher is gone comes when its socket has just been found closed."""

    def __exit__(self, *raised: Any) -> bool:
        super().__exit__(*raised)
        os.kill(os.getpid(), signal.SIGTERM)
        return True


def the_socket_is_closed() -> None:
    raise EOFError


def the_signal_comes() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)


@pytest.mark.parametrize("first", [the_socket_is_closed, the_signal_comes])
def test_the_launcher_s_end_shows_twice_and_is_heard_once(first, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what an app had started outlived a killed launcher: seen in two of a dozen kills on a busy machine."""
    monkeypatch.setattr(forking, "suppress", Second)

    def heard() -> None:
        forking.until_launcher_gone(first)
        sys.exit(7)

    assert forked(heard) == 7


def test_forks_do_not_share_randomness(tmp_path: Path) -> None:
    import numpy
    import torch

    def draw(path: Path) -> None:
        forking.fresh_randomness()
        path.write_text(json.dumps([torch.rand(1).item(), float(numpy.random.rand())]))  # noqa: NPY002

    files = [tmp_path / "first", tmp_path / "second"]
    for file in files:
        assert forked(lambda file=file: draw(file)) == 0
    first, second = (json.loads(file.read_text()) for file in files)
    assert first[0] != second[0] and first[1] != second[1]


def test_the_projects_directory_leaves_the_path_and_the_users_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", str(ROOT), "/theirs", *sys.path])
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}/theirs")
    forking.drop_own_path()
    assert sys.path[0] == "/theirs" and str(ROOT) not in sys.path
    assert os.environ["PYTHONPATH"] == "/theirs"


@pytest.mark.parametrize("entry", ["{}", "."])
def test_the_present_directory_stays_where_the_user_names_it(
    entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(ROOT)])
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{entry.format(tmp_path)}")
    forking.drop_own_path()
    assert sys.path == [str(tmp_path)] and os.environ["PYTHONPATH"] == entry.format(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    forking.drop_own_path()
    assert sys.path == []


def test_installed_from_a_wheel_it_stays_for_everything_else_lives_there(monkeypatch: pytest.MonkeyPatch) -> None:
    packages = sysconfig.get_path("purelib")
    monkeypatch.setattr(forking, "IMPORT_ROOT", Path(packages))
    monkeypatch.setattr(sys, "path", ["", packages])
    monkeypatch.setenv("PYTHONPATH", packages)
    forking.drop_own_path()
    assert sys.path == [packages] and os.environ["PYTHONPATH"] == packages


def test_nothing_of_the_apps_bundle_is_in_the_zygote() -> None:
    bundle = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["fab-include"]
    packages = {pattern.split("/")[0] for pattern in bundle}
    assert {"prunella", "core", "server", "client"} <= packages
    assert not packages & {module.split(".")[0] for module in (*forking.FLOWER, *processes.PRELOAD)}
    code = (
        "from prunella.deploy.runtime import zygote; import sys; zygote.forget_prunella();"
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=importable(environment()), capture_output=True, text=True, check=True
    )
    assert not packages & set(done.stdout.split())
