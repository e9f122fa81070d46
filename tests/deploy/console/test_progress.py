"""Progress is what the file says, however it is read."""

import io
import json
from functools import reduce
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from prunella.deploy.console.progress import (
    Follower,
    LiveView,
    PlainView,
    State,
    by_round,
    descents,
    describe,
    fold,
    view,
)


def line(round: int, metric: str, value: float, **labels: str) -> dict:
    return {"round": round, "time": 0.0, "metric": metric, "labels": labels, "value": value}


LINES = [
    line(0, "rounds", 2),
    line(1, "accuracy_ratio", 0.25),
    line(1, "wire_bytes_total", 10, direction="up"),
    line(1, "wire_dense_bytes_total", 40, direction="up"),
    line(1, "mask_density_ratio", 0.7),
    line(1, "round", 1),
    line(2, "accuracy_ratio", 0.5),
    line(2, "wire_bytes_total", 30, direction="up"),
    line(2, "leakage_mse", 1.0),
    line(2, "round_seconds", 1.5),
    line(2, "round", 2),
]


def coded(lines: list[dict]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in lines)


@given(st.lists(st.integers(0, len(coded(LINES))), max_size=6))
def test_a_file_cut_anywhere_is_read_completely(tmp_path_factory, cuts: list[int]) -> None:
    path, data = tmp_path_factory.mktemp("f") / "metrics.jsonl", coded(LINES)
    follower, seen = Follower(path), []
    for cut in [*sorted(cuts), len(data)]:
        path.write_bytes(b"") if not path.exists() else None
        with path.open("ab") as file:
            file.write(data[path.stat().st_size : cut])
        seen += follower.read()
    assert seen == LINES and follower.read() == []


def test_a_missing_file_is_empty_and_a_replaced_one_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    follower = Follower(path)
    assert follower.read() == []
    path.write_bytes(coded(LINES))
    assert len(follower.read()) == len(LINES)
    other = tmp_path / "new"
    other.write_bytes(coded(LINES[:3]))
    other.replace(path)
    assert follower.read() == LINES[:3]
    path.write_bytes(coded(LINES[:1]))
    assert follower.read() == LINES[:1]


def test_the_state_is_the_last_line_of_each_metric() -> None:
    state = reduce(fold, LINES, State())
    assert (state.round, state.rounds, state.accuracy, state.density, state.seconds) == (2, 2, 0.5, 0.7, 1.5)
    assert state.sent == {"up": 30.0} and state.saved == 1 - 30 / 40
    assert reduce(fold, LINES + LINES, State()) == state
    assert State().saved is None


def test_groups_are_consecutive() -> None:
    assert [round for round, _ in by_round(LINES)] == [0, 1, 2]


def test_after_the_last_round_the_audits_that_are_left_are_told() -> None:
    out = io.StringIO()
    plain = PlainView(Console(file=out, width=200))
    plain.show(LINES)
    plain.show([line(2, "audits_left", 3), line(2, "audits_left_limit_seconds", 1200.0)])
    plain.show([line(2, "audits_left", 2), line(2, "audits_left_seconds", 110.0)])
    plain.show([line(2, "leakage_mse", 1.0)])
    plain.show([line(2, "audits_left", 0), line(2, "audits_left_seconds", 0.0)])
    assert out.getvalue().splitlines()[2:] == [
        "3 audits left; the run waits 20 min at most",
        "2 audits left, about 2 min",
    ]
    assert describe(State(round=2, audits=2, audit_seconds=110.0)).endswith("2 audits left, about 2 min")


def test_nothing_known_is_nothing_said() -> None:
    assert describe(State()) == "round 0"


def test_plain_lines_one_a_round_however_they_arrive() -> None:
    out = io.StringIO()
    plain = view(Console(file=out, width=200))
    assert isinstance(plain, PlainView)
    for each in LINES:
        plain.show([each])
    plain.show(LINES)
    plain.close()
    assert [text.split()[:2] for text in out.getvalue().splitlines()] == [["round", "1/2"], ["round", "2/2"]]
    assert "accuracy 0.500" in out.getvalue()


def test_an_accuracy_that_comes_beside_the_next_round_has_a_line_of_its_own() -> None:
    out = io.StringIO()
    plain = PlainView(Console(file=out, width=200))
    late = [line(1, "round", 1), line(1, "rounds", 2)], [line(1, "accuracy_ratio", 0.25)], [line(2, "round", 2)]
    for lines in (*late, [line(2, "accuracy_ratio", 0.5)], [each for part in late for each in part]):
        plain.show(lines)
    said = ["round 1/2", "round 1  accuracy 0.250", "round 2/2", "round 2  accuracy 0.500"]
    assert out.getvalue().splitlines() == said


def test_before_the_first_round_a_line_now_and_then_says_who_is_there(monkeypatch) -> None:  # noqa: ANN001
    now = iter([100.0, 100.0, 101.0, 106.0, 106.0])
    monkeypatch.setattr("prunella.deploy.console.progress.time.monotonic", lambda: next(now))
    out = io.StringIO()
    plain = PlainView(Console(file=out, width=200))
    for count in (1, 2, 3):
        plain.show([line(0, "clients_available", count)])
    plain.show(LINES)
    plain.show([line(2, "clients_available", 1)])
    assert [text for text in out.getvalue().splitlines() if "there" in text] == [
        "waiting for the clients: 1 is there",
        "waiting for the clients: 3 are there",
    ]


def test_a_terminal_gets_a_bar() -> None:
    out = io.StringIO()
    live = view(Console(file=out, width=200, force_terminal=True))
    assert isinstance(live, LiveView)
    live.say("waiting")
    live.show([line(0, "clients_available", 3)])
    assert "3 are there" in live._bar.tasks[0].description and live._bar.tasks[0].total is None
    live.show(LINES)
    live.say("a client is gone")
    live.close()
    assert "round 2/2" in out.getvalue() and "a client is gone" in out.getvalue()


def test_an_attack_that_is_piped_says_now_and_then_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prunella.deploy.console.progress.PAUSED", 0.0)
    file = io.StringIO()
    with descents(Console(file=file, width=200)) as pace:
        tell = pace("control", 100)
        for iteration in (0, 1, 2):
            tell(0, iteration, 0.5)
    lines = file.getvalue().splitlines()
    assert [line for line in lines if "iteration 2 of 100, objective 0.5, at most" in line], lines
    assert all(line.startswith("control: start 1") for line in lines if line.strip())


def test_an_accuracy_is_of_its_own_round_and_says_how_sure_it_is() -> None:
    first = [
        line(1, "round", 1),
        line(1, "rounds", 3),
        line(1, "accuracy_ratio", 0.8),
        line(1, "accuracy_error_ratio", 0.04),
    ]
    assert "accuracy 0.800 ± 0.040" in describe(reduce(fold, first, State()))
    charged = [*first, line(2, "privacy_epsilon", 1.0, stat="worst")]
    assert reduce(fold, charged, State()).accuracy == 0.8, "the second round has begun"
    assert "accuracy" not in describe(reduce(fold, [*charged, line(2, "round", 2)], State())), "it is over"
    then = [*first, line(2, "round", 2), line(2, "mask_density_ratio", 0.7)]
    assert "accuracy" not in describe(reduce(fold, then, State()))
    assert (
        "accuracy 0.900  "
        in describe(
            reduce(fold, [*then, line(3, "accuracy_error_ratio", 0.0), line(3, "accuracy_ratio", 0.9)], State())
        )
        + "  "
    )
