"""The soak's arithmetic, on made-up samples; and that it sees the memory of a process that grows."""

import subprocess
import sys
from pathlib import Path

import pytest

from prunella.benchmarks.speed.soak import ALL, Watcher, growth, look, plot, show, summary


def samples(leak: float, rounds: int = 100) -> list[dict]:
    """A ServerApp that fills up for 20 rounds and then grows by ``leak`` MB a round; a SuperLink that stays."""
    found = []
    for number in range(1, rounds + 1):
        server = 300 + min(number, 20) * 5 + leak * number
        memory = {"SuperLink": 150.0, "ServerApp and exporter": server, ALL: 150 + server}
        found.append({"round": number, "memory": memory, "files": 10 + number, "processes": 3})
    return found


def test_a_leak_is_told_from_what_fills_up_once() -> None:
    flat, leaking = summary(samples(leak=0.0)), summary(samples(leak=0.1))
    assert flat["ServerApp and exporter"]["flat"] and flat[ALL]["flat"]
    assert flat["ServerApp and exporter"]["growth"] == pytest.approx(0.0, abs=1e-9)
    assert not leaking["ServerApp and exporter"]["flat"] and leaking["SuperLink"]["flat"]
    assert leaking["ServerApp and exporter"]["growth"] == pytest.approx(10.0)
    assert growth([1], [5.0]) == 0.0


def test_a_process_is_seen_with_what_it_holds() -> None:
    before = look()
    code = "data = bytearray(60_000_000); data[::4096] = b'x' * len(data[::4096]); print('', flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        after = look()
    finally:
        child.kill()
        child.wait()
    assert after["processes"] == before["processes"] + 1 and after["files"] > before["files"]
    assert 60 < after["memory"][ALL] - before["memory"][ALL] < 120


def test_the_watcher_takes_a_sample_a_round_and_keeps_failures() -> None:
    watcher = Watcher("127.0.0.1:9")  # nobody serves there, as after the last round
    lines = [{"metric": "client_failures_total", "value": 2.0, "round": 1}]
    lines += [{"metric": "round_seconds", "value": 1.5, "round": number} for number in (1, 2)]
    watcher.show([*lines, {"metric": "loss", "value": 1.0, "round": 2}])
    assert [each["round"] for each in watcher.samples] == [1, 2]
    assert (watcher.seconds, watcher.failures) == ([1.5, 1.5], 2.0)


def test_a_result_is_shown_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = samples(leak=0.1)
    result = {"supernodes": 4, "rounds": 100, "seconds": 1.0, "memory": summary(seen), "samples": seen}
    result |= {"files": [35, 110], "processes": 3, "failures": 0.0, "status": "completed"}
    show(result)
    plot(result, tmp_path / "soak.png")
    shown = capsys.readouterr().out
    assert "+10.00" in shown and "open files 35 then 110" in shown and (tmp_path / "soak.png").stat().st_size > 1000
