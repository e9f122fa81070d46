"""Processes start with the right environment and end with their parent."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from prunella.core.installation import IMPORT_ROOT as ROOT
from prunella.deploy.errors import LaunchError
from prunella.deploy.ports import free_ports
from prunella.deploy.runtime import processes
from prunella.deploy.runtime.processes import Exit, Process, StockBackend, ZygoteBackend, environment, importable


def until(condition, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "gave up waiting"
        time.sleep(0.02)


def gone(process: psutil.Process) -> bool:
    """Ended; whoever inherits it here may not have reaped it."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_the_environment_keeps_flower_offline_and_findable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    env = environment({"FLWR_HOME": "/h"})
    assert env["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert env["FLWR_TELEMETRY_ENABLED"] == "0" and env["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert env["FLWR_HOME"] == "/h"
    assert importable(env)["PYTHONPATH"] == f"{ROOT}{os.pathsep}/somewhere"
    assert importable({})["PYTHONPATH"] == str(ROOT)


@pytest.mark.skipif(getattr(os, "getuid", lambda: None)() != 0, reason="only root can become a user without a home")
def test_a_user_without_a_home_has_one_for_flower_to_look_into() -> None:
    code = """
        import os
        from pathlib import Path
        from prunella.deploy.runtime.processes import environment
        os.setuid(54321)
        del os.environ["HOME"]
        try:
            print(Path.home())
        except RuntimeError:
            print("none")
        os.environ.update(environment())
        print(Path.home())
    """
    env = importable(environment({"HOME": "/root"}))
    env.pop("FLWR_HOME", None)
    found = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=env, capture_output=True, text=True)
    assert found.stdout.split() == ["none", "/"], found.stderr


def test_an_exit_says_how() -> None:
    assert Exit("a", 3).how == "ended with code 3"
    assert Exit("a", -15).how == "was killed by SIGTERM"


def test_stock_starts_reports_and_stops(tmp_path: Path) -> None:
    stock, log = StockBackend(), tmp_path / "a.log"
    stock.spawn(Process("short", "sh", ("-c", "echo $GREETING; exit 3"), str(log), {"GREETING": "hello"}))
    stock.spawn(Process("long", "sh", ("-c", "sleep 600 & wait"), str(log)))
    child = psutil.Process(stock._running["long"].pid)
    until(child.children)
    [grandchild] = child.children()
    ended: list[Exit] = []
    until(lambda: ended.extend(stock.exits()) or ended)
    assert ended == [Exit("short", 3)] and stock.exits() == []
    assert "hello" in log.read_text()
    stock.stop()
    until(lambda: gone(child) and gone(grandchild))


def test_stock_says_which_port_never_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "START", 0.05)
    [port] = free_ports(1)
    with pytest.raises(LaunchError, match=f"{port}.*so b cannot start"):
        StockBackend().spawn(Process("b", "true", wait_for=(port,)))


def test_children_die_with_a_killed_parent(tmp_path: Path) -> None:
    code = f"""
        import time
        from prunella.deploy.runtime.processes import Process, StockBackend
        stock = StockBackend()
        stock.spawn(Process("long", "sleep", ("600",), {str(tmp_path / "log")!r}))
        print(stock._running["long"].pid, flush=True)
        time.sleep(600)
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], env=importable(environment()), stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout
    child = psutil.Process(int(parent.stdout.readline()))
    assert child.is_running()
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    until(lambda: gone(child))


def test_a_dead_zygote_is_an_error_that_names_its_log(tmp_path: Path) -> None:
    zygote = ZygoteBackend(tmp_path / "zygote.log", 0.1, preload=())
    zygote._zygote.kill()
    with pytest.raises(LaunchError, match="SIGKILL.*zygote.log"):
        until(zygote.exits)
    with pytest.raises(LaunchError, match="zygote.log"):
        zygote.spawn(Process("a", "flower-superexec"))
    zygote.stop()


def test_a_zygote_that_is_still_importing_is_waited_for(tmp_path: Path) -> None:
    zygote = ZygoteBackend(tmp_path / "zygote.log", 0.1, preload=())
    try:
        for number in range(600):  # two for each of 300 SuperNodes; never started: ``after`` more modules than it has
            zygote.spawn(Process(f"client-{number}", "flower-superexec", after=1))
        assert zygote.exits() == []
    finally:
        zygote.stop()
