"""The benchmark of the Mod measures what it says; how long it takes is not tested."""

import json
import sys
from pathlib import Path

import pytest
import torch

from prunella.benchmarks.speed import mod as bench


def test_the_last_line_is_one_json_object(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    monkeypatch.setattr(sys, "argv", ["mod", "--json", "--repeat", "1", "--steps", "1", "--models", "lenet"])
    bench.main()
    torch.set_num_threads(threads)
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    arms = result["messages"]["lenet"]
    gated = {bench.GATED.format(name) for name in (*bench.UPDATE, *bench.LOOP) if name != "none"}
    assert set(arms) == {bench.BARE, *bench.UPDATE, *bench.LOOP, *gated} and arms[bench.BARE]["ratio"] == 1
    bench.show(result)
    assert "dp-sgd" in capsys.readouterr().out


def test_an_answer_that_is_an_error_is_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "UPDATE", ("gaussian",))  # without the loop's two lines
    with pytest.raises(RuntimeError, match="no step went through it"):
        bench.messages("lenet", 1, 1, tmp_path)
