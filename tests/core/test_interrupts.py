"""A command that is ended from outside cleans up, and one that was told to stay stays."""

import math
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from prunella.core import interrupts
from prunella.core.interrupts import ENDING, signals_interrupt

# A command with a temporary folder and, as pip is one, a process of its own that takes its time.
COMMAND = """
import subprocess, sys, tempfile, typer
from prunella.deploy.console.terminal import explained
try:
    with explained(), tempfile.TemporaryDirectory(dir=sys.argv[1]):
        child = "import time; print('there', flush=True); time.sleep(float(input()))"
        subprocess.run([sys.executable, "-c", child], check=True)
except typer.Exit as ended:
    sys.exit(ended.exit_code)
print("done", flush=True)
"""


def begun(folder: Path, ignored: str = "") -> subprocess.Popen[str]:
    """The command, once its own process is there and waits to be told for how long."""
    process = started(["-c", COMMAND, str(folder)], ignored)
    assert list(folder.iterdir())
    return process


def importing(module: str, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Python with these arguments, once it imports a module of this name, which takes long."""
    (folder / f"{module}.py").write_text("import time\nprint('there', flush=True)\ntime.sleep(600)\n")
    return started(arguments, paths=[str(folder), *sys.path])


def started(arguments: Sequence[str], ignored: str = "", paths: Sequence[str] = ()) -> subprocess.Popen[str]:
    """Python, once it says that it is there."""

    def handled() -> None:  # whatever the tests were started under
        for name in ("SIGINT", *ENDING):
            signal.signal(getattr(signal, name), signal.SIG_IGN if name == ignored else signal.SIG_DFL)

    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=handled,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)} if paths else None,
    )
    assert process.stdout is not None and process.stdout.readline() == "there\n"
    return process


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_command_that_is_ended_leaves_nothing_behind(name: str, tmp_path: Path) -> None:
    process = begun(tmp_path)
    process.send_signal(getattr(signal, name))
    assert process.wait(timeout=60) == 130 and process.stdout is not None and process.stderr is not None
    assert process.stdout.read() == ""  # which ends when the process that it started has ended, too
    assert process.stderr.read() == "prunella: stopped\n"
    assert not list(tmp_path.iterdir())


def test_under_nohup_a_closed_terminal_ends_nothing(tmp_path: Path) -> None:
    process = begun(tmp_path, "SIGHUP")
    process.send_signal(signal.SIGHUP)
    out, err = process.communicate("0\n", timeout=60)
    assert (process.returncode, out, err) == (0, "done\n", "")


def test_what_follows_a_closed_terminal_may_still_write_to_it(tmp_path: Path) -> None:
    """And is ended by no second signal: a shell tells of it, and so does the kernel."""
    code = (
        "import os, sys, time\nfrom prunella.core.interrupts import signals_interrupt\n"
        "with signals_interrupt():\n    try:\n        print('there', flush=True)\n        time.sleep(60)\n"
        "    except KeyboardInterrupt:\n        os.kill(os.getpid(), 1)\n"
        "        print('what was found', flush=True)\n        open(sys.argv[1], 'w').close()\n"
    )
    child, terminal = pty.fork()
    if child == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        os.execv(sys.executable, [sys.executable, "-c", code, str(tmp_path / "written")])
    assert b"there" in os.read(terminal, 100)
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0 and (tmp_path / "written").exists()


def test_a_second_sigterm_ends_what_the_first_has_begun_to_end_and_one_at_once_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a second Ctrl-C does; timeout(1) sends two."""
    with signals_interrupt():
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        monkeypatch.setattr(interrupts, "TOGETHER", math.inf)
        os.kill(os.getpid(), signal.SIGTERM)
        monkeypatch.setattr(interrupts, "TOGETHER", -1.0)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGHUP)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_while_a_command_is_imported_a_signal_ends_it_in_one_line(name: str, tmp_path: Path) -> None:
    process = importing("typer", tmp_path, "-c", "from prunella.deploy.cli import start; start()", "runs")
    process.send_signal(getattr(signal, name))
    assert process.communicate(timeout=60) == ("", "prunella: stopped\n") and process.returncode == 130


def test_what_begins_in_the_background_and_its_work_are_interrupted_as_ever() -> None:
    """Ctrl-C is ignored in a job of a script; inside ``signals_interrupt`` it is what Python makes of it."""
    begin = "import os, signal\nfrom prunella.core.interrupts import end_at_once, signals_interrupt\n"
    ignored = begin + "end_at_once(); os.kill(os.getpid(), signal.SIGINT); print('there', flush=True)"
    process = started(["-c", ignored], "SIGINT")
    assert process.wait(timeout=60) == 0
    work = (
        begin + "end_at_once()\ntry:\n    with signals_interrupt():\n        os.kill(os.getpid(), signal.SIGINT)\n"
        "except KeyboardInterrupt:\n    print('there', flush=True)\n"
    )
    assert started(["-c", work]).wait(timeout=60) == 0


def test_afterwards_the_signals_are_whose_they_were() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), signals_interrupt():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_in_another_thread_it_changes_nothing() -> None:
    """Python takes handlers of signals in the main thread only, and raises elsewhere."""
    passed: list[bool] = []

    def work() -> None:
        with signals_interrupt():
            passed.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert passed
