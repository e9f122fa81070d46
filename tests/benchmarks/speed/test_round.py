"""The benchmark's app is a whole Flower app, and its arithmetic is right."""

from pathlib import Path

import pytest

from prunella.benchmarks.speed.round import RecordingView, compare, write_app
from prunella.deploy.runtime.settings import defaults, is_prunella, read_app


def test_the_app_is_one_flower_accepts(tmp_path: Path) -> None:
    from flwr.cli.build import build_fab_from_disk

    app = write_app(tmp_path / "smallest-app")
    assert len(build_fab_from_disk(app)) > 1000
    parsed = read_app(app)
    assert defaults(parsed)["rounds"] == 3 and not is_prunella(parsed)
    for name in ("smallest_server.py", "smallest_client.py"):
        compile((app / name).read_text(), name, "exec")


def test_ratios_are_of_medians() -> None:
    ours = {"first": 5.0, "rounds": [1.0, 9.0, 1.0], "total": 10.0}
    stock = {"first": 20.0, "rounds": [10.0, 12.0, 30.0], "total": 90.0}
    assert compare(ours, stock)["ratio"] == pytest.approx({"first": 4.0, "round": 12.0, "total": 9.0})


def test_a_silent_view_keeps_the_lines() -> None:
    view = RecordingView()
    view.say("nothing")
    view.show(iter([{"round": 1}]))
    view.show([{"round": 2}])
    view.close()
    assert [line["round"] for line in view.lines] == [1, 2]
