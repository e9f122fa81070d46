"""The orderings are judged as they are defined; the figures themselves are in docs/attacks.md."""

import json
import sys

import pytest
import torch

from prunella.attacks.score.control import undefended_view
from prunella.benchmarks.papers import orderings as bench
from prunella.core.trees import density
from prunella.core.types import PrivateBatch
from prunella.tasks.task import Task, initial


def test_a_verdict_needs_two_standard_errors() -> None:
    assert bench.verdict([1.0, 1.1, 0.9], [0.0, 0.1, 0.1]) == "holds"
    assert bench.verdict([0.0, 0.1, 0.1], [1.0, 1.1, 0.9]) == "fails"
    assert bench.verdict([1.0, 0.0, 0.5], [0.0, 1.0, 0.4]) == "undecided"


def test_arms_share_what_their_defense_shares() -> None:
    task = Task("cnn", (1, 8, 8), 10)
    truth = PrivateBatch(torch.rand(1, 1, 8, 8), torch.tensor([1]))
    view = undefended_view(task, *initial(task, 0), truth)
    shares = {arm: density(bench.masked(view, arm).shared) for arm in bench.ARMS}
    assert shares == {"none": 1.0, "top-k": pytest.approx(0.2, abs=0.01), "dgp": pytest.approx(0.2, abs=0.01)}


def test_the_last_line_is_one_json_object(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    monkeypatch.setattr(sys, "argv", ["orderings", "--json", "--images", "2", "--iterations", "2"])
    bench.main()
    torch.set_num_threads(threads)
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(result["orderings"]) == 7 and all(len(values) == 2 for values in result["ssim"].values())
    bench.show(result)
    assert "white" in capsys.readouterr().out


def test_nonsense_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["orderings", "--images", "1"])
    with pytest.raises(SystemExit):
        bench.main()
