import random
from argparse import ArgumentTypeError
from pathlib import Path
from types import SimpleNamespace

import pytest

from prunella.benchmarks.speed import database


def test_what_is_timed_is_done(tmp_path: Path) -> None:
    state, draws = database.opened(tmp_path), random.Random(0)
    nodes = [database.join(state, draws) for _ in range(3)]
    assert len(set(nodes)) == 3 and state.acknowledge_node_heartbeat(nodes[1], database.ALIVE)
    assert not state.acknowledge_node_heartbeat(12345, database.ALIVE)
    assert {info.status for info in state.get_node_info()} == {"online"}
    assert database.median([0.0, 5.0].append, nodes) < 0.1


def test_every_size_has_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    result = database.measure(SimpleNamespace(sizes="2,5", repeat=2))
    assert [row["supernodes"] for row in result["rows"]] == [2, 5]
    assert result["rows"][0]["bytes"] > result["rows"][1]["bytes"] > 1000  # an empty database has a size, too
    database.show(result)
    assert "ms a poll" in capsys.readouterr().out
    for wrong in ({"sizes": "5,2"}, {"sizes": "0"}, {"repeat": 0}):
        with pytest.raises(ArgumentTypeError):
            database.measure(SimpleNamespace(**{"sizes": "2", "repeat": 2, **wrong}))
