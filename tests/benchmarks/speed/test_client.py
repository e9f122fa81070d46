"""Sizes are of what a client needs and of nothing else; processor time is of all that was started, orphans too."""

import sys
from argparse import ArgumentTypeError
from types import SimpleNamespace

import pytest

from prunella.benchmarks.speed import client

BURN = "import time\nwhile time.process_time() < {}: pass"
ORPHAN = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", r'''
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {BURN.format(1.0)!r}])
'''])
"""


@pytest.mark.parametrize(("code", "least"), [("pass", 0.0), (BURN.format(0.5), 0.5), (ORPHAN, 1.0)])
def test_whatever_a_process_leaves_behind_is_counted(code: str, least: float) -> None:
    seconds, memory = client.spent(sys.executable, "-c", code)
    assert least <= seconds < least + 0.5 and 3 < memory < 100


def test_a_process_that_fails_is_no_result() -> None:
    with pytest.raises(client.subprocess.CalledProcessError):
        client.spent(sys.executable, "-c", "raise SystemExit(3)")


def test_a_size_is_of_a_client_s_packages_alone() -> None:
    found = client.size(sys.executable)
    assert 30 < found["packages"] < 130 and found["megabytes"] > found["torch"] > 300
    whole = client.SIZES.replace('wanted.marker is None or wanted.marker.evaluate({"extra": extra})', "True")
    everything = client.subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, check=True)
    assert client.json.loads(everything.stdout)["packages"] > found["packages"] + 20


def test_a_message_is_what_more_rounds_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "spent", lambda python, *asked: (3.0 + 0.8 * int(asked[-3].split("=")[1]), 50.0))
    assert client.message("python", 7) == {"message": pytest.approx(0.8 / client.SUPERNODES)}
    monkeypatch.setattr(
        client, "spent", lambda python, *asked: (3.0, 700.0) if asked[-1] == client.APP else (1.0, 500.0)
    )
    assert client.imported("python") == {"import": 2.0, "above": 200.0, "floor": 500.0}


def test_arms_take_turns_and_are_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[str] = []
    monkeypatch.setattr(client, "imported", lambda python: asked.append(python) or {"import": 1.0, "above": 7.0})
    monkeypatch.setattr(client, "message", lambda python, rounds: {"message": 0.25})
    monkeypatch.setattr(client, "size", lambda python: {"packages": 9, "megabytes": 800.0, "torch": 700.0})
    result = client.measure(SimpleNamespace(beside="before=/old/python", repeat=2, rounds=3))
    assert asked == [sys.executable, "/old/python"] * 2
    client.show(result)
    assert "0.250 (0.250 to 0.250)" in capsys.readouterr().out
    for wrong in ({"beside": "/old/python"}, {"repeat": 0}, {"rounds": client.FEW}):
        with pytest.raises(ArgumentTypeError):
            client.measure(SimpleNamespace(**{"beside": "", "repeat": 1, "rounds": 3, **wrong}))
