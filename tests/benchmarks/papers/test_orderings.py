"""The orderings are judged as they are defined; the figures themselves are in docs/attacks.md."""

import dataclasses
from pathlib import Path

import pytest
import torch

from prunella.attacks.score.control import undefended_view
from prunella.benchmarks.engine.claim import Sweep
from prunella.benchmarks.engine.reproduce import reproduce
from prunella.benchmarks.papers import orderings as bench
from prunella.core.trees import density
from prunella.core.types import PrivateBatch
from prunella.tasks.task import Task, initial


def test_arms_share_what_their_defense_shares() -> None:
    task = Task("cnn", (1, 8, 8), 10)
    truth = PrivateBatch(torch.rand(1, 1, 8, 8), torch.tensor([1]))
    view = undefended_view(task, *initial(task, 0), truth)
    shares = {arm: density(bench.masked(view, arm).shared) for arm in bench.ARMS}
    assert shares == {"none": 1.0, "top-k": pytest.approx(0.2, abs=0.01), "dgp": pytest.approx(0.2, abs=0.01)}


def test_every_ordering_is_asked(tmp_path: Path) -> None:
    cells = tuple({**cell, "iterations": 2} for cell in bench.ORDERINGS.experiment.sweeps["small"].cells)
    experiment = dataclasses.replace(bench.ORDERINGS.experiment, sweeps={"small": Sweep(cells, (0, 1))})
    claim = dataclasses.replace(bench.ORDERINGS, experiment=experiment)
    result = reproduce(claim, "small", tmp_path, None, lambda line: None)
    assert len(result.points) == 8 and "white leaves a larger error" in result.verdict.reason
    assert sum(result.verdict.reason.count(word) for word in ("leaks more", "leaves a larger")) == 7
