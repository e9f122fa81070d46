"""The search from the command line: it resumes, ends in its budget, refuses in a line, and tells what it does."""

import json
from pathlib import Path
from typing import Any

import pytest

from prunella.benchmarks.advise import command
from prunella.benchmarks.advise.proposals import Proposal
from tests.benchmarks.advise.test_search import row

FEW = ("-c", "defenses=dp-sgd", "-c", "rate=0.3")


class World:
    """Federations that are made up: noise protects and costs; one learning rate learns."""

    def __init__(self, alive: int = 10**9, learns: float = 0.25, seconds: float = 1.0) -> None:
        self.ran: list[dict[str, Any]] = []
        self.alive, self.learns, self.seconds = alive, learns, seconds

    def __call__(self, asked: dict[str, Any], sites: int) -> dict[str, Any]:
        if len(self.ran) == self.alive:
            self.alive = 10**9
            raise KeyboardInterrupt
        self.ran.append(asked)
        accuracy = 0.95 if asked["learning-rate"] == self.learns else 0.1
        if not asked["audit-every"]:
            curve = [0.95 * (1 - 0.9**number) for number in range(1, asked["rounds"] + 1)]
            return {**row(accuracy), "accuracies": curve, "seconds": self.seconds}
        doubt = "" if accuracy > 0.1 else "the model did not learn"
        if "dp-sgd" in asked["defenses"]:
            found = row(accuracy - 0.1, "baseline", 9.0, doubt=doubt, epsilon=3.0)
            return {**found, "seconds": self.seconds}
        return {**row(accuracy, doubt=doubt), "seconds": self.seconds}


def ask(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch, *more: str) -> int:
    monkeypatch.setattr(command, "try_out", world)
    return command.main(["--out", str(tmp_path / "out"), "--cache", str(tmp_path / "cache"), *more])


def test_a_stopped_search_goes_on_and_runs_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(alive=6)
    assert ask(tmp_path, world, monkeypatch, *FEW) == 130 and "goes on" in capsys.readouterr().err.splitlines()[-1]
    assert (tmp_path / "out" / "advice.json").exists()  # what is known so far
    assert ask(tmp_path, world, monkeypatch, *FEW) == 0
    told = capsys.readouterr()
    assert len({json.dumps(asked, sort_keys=True) for asked in world.ran}) == len(world.ran) == 13
    assert "kept from before" in told.err and told.out.splitlines()[-1].endswith("advice.html")
    numbers = json.loads((tmp_path / "out" / "advice.json").read_text())
    assert numbers["tier"] == "promised" and "-c defenses=dp-sgd -c rate=0.3" in told.out
    assert "training these takes about 6.7\u202fs" in told.err  # 3 rounds took 1 s: 2 chains of 10 rounds
    runs = len(world.ran)
    assert ask(tmp_path, world, monkeypatch, *FEW) == 0 and len(world.ran) == runs


def test_it_trains_at_a_rate_that_learns_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(learns=0.0833)
    assert ask(tmp_path, world, monkeypatch, *FEW, "--may-lose", "20") == 0
    told = capsys.readouterr()
    assert "learning rate 0.0833 from here on" in told.err and "learning-rate=0.0833" in told.out
    assert {asked["learning-rate"] for asked in world.ran[3:]} == {0.0833}


def test_federations_are_as_long_as_it_takes_to_learn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World()
    assert ask(tmp_path, world, monkeypatch, *FEW, "-c", "rounds=100") == 0
    curve = [0.95 * (1 - 0.9**number) for number in range(1, 31)]
    needed = next(i for i, value in enumerate(curve, 1) if value >= 0.1 + 0.9 * (curve[-1] - 0.1))
    assert {asked["rounds"] for asked in world.ran if asked["audit-every"]} == {needed} and 10 < needed < 30
    assert f"each federation has {needed} rounds" in capsys.readouterr().err
    assert ask(tmp_path, world, monkeypatch, *FEW, "-c", "rounds=100", "--short", "4") == 0
    assert world.ran[-1]["rounds"] == 4


def test_a_rate_that_was_typed_stays_and_a_model_that_does_not_learn_gets_no_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("-c", "defenses=dgp", "-c", "rate=0.3", "-c", "learning-rate=1.0")
    assert ask(tmp_path, World(), monkeypatch, *asked) == 0
    assert "No advice: without a defense this model did not learn here" in capsys.readouterr().out


def test_it_begins_nothing_that_does_not_fit_into_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    late = World(seconds=7e6)  # the next one would take as long
    assert ask(tmp_path, late, monkeypatch, "--budget", "1000h") == 0 and len(late.ran) == 7
    told = capsys.readouterr()
    assert "budget left" in told.err and "Only 1 of 12 chains were tried" in told.out
    page = json.loads((tmp_path / "out" / "advice.json").read_text())
    assert any("no comparison yet" in text for text in page["reasons"])
    assert ask(tmp_path / "none", World(), monkeypatch, "--budget", "0s") == 2


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (["-c", "round=3"], "did you mean 'rounds'"),
        (["-c", "dataset=imagefolder:/no/such/folder"], "/no/such/folder"),
        (["-c", "defenses=dgp,channel-natural"], "write defenses"),
        (["-c", "evaluation=clients"], "leave out evaluation"),
        (["--supernodes", "0"], "at least 1"),
        (["--may-lose", "-1"], "--may-lose"),
        (["--out", f"{__file__}/advice"], "test_command.py is a file; choose another directory with --out"),
        (["--cache", "/proc/nowhere"], "/proc may not be written to; choose another directory with --cache"),
        (["--cache", __file__], "is a file; choose another directory with --cache"),
    ],
)
def test_what_cannot_work_is_refused_in_a_line(
    asked: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World()
    assert ask(tmp_path, world, monkeypatch, *asked) == 2 and not world.ran
    told = capsys.readouterr().err.strip().splitlines()
    assert len(told) == 1 and told[0].startswith("advise: ") and words in told[0]


def test_a_federation_that_failed_is_told_and_the_search_goes_on() -> None:
    told = command.line(3, Proposal("dgp", 0.3), 0, {"failed": "no reply", "seconds": 1.0})
    assert told == "3 dgp, rate 0.3, seed 0: no reply"
