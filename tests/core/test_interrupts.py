"""A command that is ended from outside cleans up, and one that was told to stay stays."""

import os
import pty
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

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

    def handled() -> None:  # whatever the tests were started under
        for name in ("SIGINT", *ENDING):
            signal.signal(getattr(signal, name), signal.SIG_IGN if name == ignored else signal.SIG_DFL)

    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=handled,
    )
    assert process.stdout is not None and process.stdout.readline() == "there\n"
    assert list(folder.iterdir())
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
