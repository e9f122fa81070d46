"""``python -m prunella.benchmarks``: the module that is named, and Ctrl-C before it is imported."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.core.test_interrupts import importing


def test_it_is_the_module_that_is_named(tmp_path: Path) -> None:
    asked = [sys.executable, "-m", "prunella.benchmarks", "reproduce", "bord", "--out", str(tmp_path / "out")]
    ended = subprocess.run(asked, capture_output=True, text=True, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (2, "reproduce: unknown claim 'bord': did you mean 'board'?\n")


@pytest.mark.parametrize("given", [[], ["nothere"], ["engine.plots"]])
def test_without_one_of_its_names_it_says_them(given: list[str], tmp_path: Path) -> None:
    asked = [sys.executable, "-m", "prunella.benchmarks", *given]
    ended = subprocess.run(asked, capture_output=True, text=True, cwd=tmp_path)
    assert ended.returncode == 2 and ended.stderr.endswith("needs a name: reproduce or advise.command\n")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("module", ["reproduce", "advise.command"])
def test_while_it_is_imported_a_signal_ends_it_in_one_line(module: str, name: str, tmp_path: Path) -> None:
    process = importing("torch", tmp_path, "-m", "prunella.benchmarks", module)
    process.send_signal(getattr(signal, name))
    assert process.communicate(timeout=60) == ("", "prunella: stopped\n") and process.returncode == 130


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_full_disk_is_one_line_and_a_closed_pipe_none(tmp_path: Path) -> None:
    """L3 is arithmetic."""
    asked = [sys.executable, "-m", "prunella.benchmarks", "reproduce", "L3"]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(asked, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert ended.returncode == 1 and ended.stderr.splitlines()[-1].startswith("prunella: the disk is full")
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as pipe:
        ended = subprocess.run(asked, stdout=pipe, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert ended.returncode == 1 and "Traceback" not in ended.stderr and "Errno" not in ended.stderr
