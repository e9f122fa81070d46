"""The figures of made-up federations are those they were made of."""

import json
from argparse import Namespace
from pathlib import Path

import pytest

from prunella.benchmarks.speed.scale import another, asked, row, show
from prunella.benchmarks.speed.soak import ALL


def result(clients: int) -> dict:
    """Rounds of 2 s that use a second of processor time for every client; 100 MB and 50 for each."""
    samples = [
        {
            "time": 2.0 * k,
            "processor": {ALL: 7.0 + clients * k, "SuperLink": 3 + 0.5 * k, "ServerApp and exporter": 1.0},
            "memory": {ALL: 100.0 + 50 * clients - k},
        }
        for k in range(4)
    ]
    return {"supernodes": clients, "samples": samples, "processes": 3 + 2 * clients, "failures": 0.0}


def test_a_row_is_of_the_rounds_after_the_first_and_the_slope_of_one_more_client() -> None:
    rows = [row(result(clients)) for clients in (2, 5, 11)]
    counted = {"begin": 7, "seconds": 2, "processor": 5, "SuperLink": 0.5, "ServerApp": 0}
    assert rows[1] == {"clients": 5, **counted, "memory": 350, "processes": 13, "failures": 0}
    slopes = dict.fromkeys(("begin", "seconds", "SuperLink", "ServerApp", "failures"), 0)
    slopes |= {"processor": 1, "memory": 50, "processes": 2}
    assert another(rows) == pytest.approx(slopes, abs=1e-9)


def test_what_was_stored_is_shown_and_drawn_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, files = [row(result(clients)) for clients in (2, 5)], []
    for simulate, stock, kind in ((True, False, "virtual clients,"), (False, True, "SuperNodes of stock Flower,")):
        one = {"simulate": simulate, "stock": stock, "rounds": 4, "rows": rows, "another": another(rows)}
        files.append(tmp_path / f"{kind}.json")
        files[-1].write_text(json.dumps({"measured": [one]}))
        show({"measured": [one]})
        said = capsys.readouterr().out
        assert kind in said and "+50.000" in said
    drawn = tmp_path / "scale.png"
    assert len(asked(Namespace(read=files, plot=drawn))["measured"]) == 2 and drawn.stat().st_size > 1000
