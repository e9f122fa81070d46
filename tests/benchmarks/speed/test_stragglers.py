"""Who has what, the simulated clock, and that a short run shows what the long one is about."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from prunella.benchmarks.engine.inprocess import FIRST_NODE, settings
from prunella.benchmarks.speed import stragglers
from prunella.benchmarks.speed.stragglers import (
    ARMS,
    CLIENTS,
    FAST_SECONDS,
    RARE,
    SLOW,
    SLOW_SECONDS,
    SimulatedGrid,
    federation,
    level,
    shares,
    show,
    summary,
)

FAST, SLOWEST = FIRST_NODE, FIRST_NODE + CLIENTS - 1


def test_only_slow_clients_have_the_rare_classes_and_all_have_equally_many_images() -> None:
    every = shares("digits")
    assert len(every) == CLIENTS and len({len(share) for share in every}) == 1
    assert [bool((share.y >= RARE).all()) for share in every] == [False] * (CLIENTS - SLOW) + [True] * SLOW
    assert not any(bool((share.y >= RARE).any()) for share in every[: CLIENTS - SLOW])


@pytest.fixture
def grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimulatedGrid:
    """Clients that answer nothing of interest, after exactly as long as is typical of them."""
    monkeypatch.setattr(stragglers, "SPREAD", 0.0)
    made = SimulatedGrid(settings(), tmp_path, 0)
    made.app = lambda message, _: Message(RecordDict(), reply_to=message)
    return made


def ask(grid: SimulatedGrid, nodes: tuple[int, ...], timeout: float) -> list[int]:
    content = RecordDict({"config": ConfigRecord({"round": 1})})
    messages = [Message(content, dst_node_id=node, message_type="train") for node in nodes]
    replies: Iterator[Message] = grid.send_and_receive(messages, timeout=timeout)
    return [reply.metadata.src_node_id or -1 for reply in replies]


def test_replies_come_by_their_time_and_the_clock_goes_with_them(grid: SimulatedGrid) -> None:
    assert len(ask(grid, (SLOWEST, FAST), 600.0)) == 2 and grid.now == SLOW_SECONDS
    assert len(ask(grid, (FAST,), 600.0)) == 1 and grid.now == SLOW_SECONDS + FAST_SECONDS
    assert grid.asked == {SLOWEST: 1, FAST: 2} == grid.answered


def test_after_the_deadline_nobody_is_waited_for_and_who_is_late_is_late_again(grid: SimulatedGrid) -> None:
    assert len(ask(grid, (SLOWEST, FAST), 15.0)) == 1 and grid.now == 15.0
    assert ask(grid, (SLOWEST,), 50.0) == [] and grid.now == 65.0  # it took the next message at 60 s
    assert len(ask(grid, (SLOWEST,), 600.0)) == 1 and grid.now == 3 * SLOW_SECONDS
    assert grid.answered[SLOWEST] == 1


def test_a_short_run_shows_who_is_silenced_and_who_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stragglers, "LAST", 8)
    runs = {arm: [federation(0, 16, own, tmp_path / arm)] for arm, own in ARMS.items()}
    found = summary(runs)
    assert found["deadline"]["last"][0][1] == 0.0 and min(found["deadline"]["answered"]) == 0.0
    assert found["4 tiers"]["last"][0][1] > 0.0
    assert found["4 tiers"]["seconds"][0] < found["2 tiers"]["seconds"][0] < found["wait"]["seconds"][0]
    assert found["4 tiers"]["asked"] == found["4 tiers"]["answered"]  # no deadline of its own cost a reply
    assert found["4 tiers"]["then"] == found["4 tiers"]["last"]
    show({"rounds": 16, "seeds": 1, "arms": found})
    assert "4 tiers" in capsys.readouterr().out


def test_a_level_is_of_the_last_rounds() -> None:
    curve = [(float(k), float(k), 0.0) for k in range(1, 31)]
    assert level(curve) == [25.5, 0.0] and level(curve, until=12.0) == [7.5, 0.0]
