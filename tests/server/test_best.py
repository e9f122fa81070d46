"""The round clients scored highest is kept, across a resume, and test examples of the server choose none."""

from pathlib import Path

import pytest
import torch

import prunella.server.rounds
from prunella.core.trees import map_trees
from prunella.server.best import FOLDER, best_score, keep_best
from prunella.server.checkpoint import Checkpoint, load
from prunella.tasks.training import Evaluation
from tests.server.test_rounds import go, series


def at(round: int) -> Checkpoint:
    return Checkpoint(round, {"w": torch.full((2,), float(round))}, {"w": torch.ones(2).bool()}, {"seed": 1})


def test_the_highest_score_stays_and_of_equals_the_earlier(tmp_path: Path) -> None:
    best = best_score(tmp_path)
    for round, score in enumerate([0.3, float("nan"), 0.5, 0.4, 0.5, 0.2], 1):
        best = keep_best(tmp_path, at(round), score, best)
    kept = load(tmp_path / FOLDER)
    assert kept is not None and kept.round == 3 and torch.equal(kept.tree["w"], torch.full((2,), 3.0))
    assert best == best_score(tmp_path) == 0.5
    for path in (tmp_path / FOLDER).iterdir():
        path.write_bytes(b"damaged")
    assert best_score(tmp_path) == -1


def test_a_run_keeps_the_best_of_noisy_scores_and_goes_on_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients are real; training is undone after round 2, so that the best round is not the last."""
    noise = {"evaluation": "clients", "privacy__validation_noise": 0.5, "defenses": "fed-ltp-client"}
    about = {"clients": 2, "strategy": "fedavg", "local_steps": 2, **noise}
    done = go(tmp_path, rounds=2, **about)
    first = load(tmp_path / "run" / FOLDER)
    scores = series(done, "accuracy_ratio")
    assert first is not None and first.round == 1 + scores.index(max(scores))
    real = prunella.server.rounds.evaluate_round

    def worse(*args: object) -> Evaluation | None:
        result = real(*args)  # type: ignore[arg-type]
        return result and Evaluation(result.loss, 0.0, result.examples)

    monkeypatch.setattr(prunella.server.rounds, "evaluate_round", worse)
    resumed = go(tmp_path, rounds=3, resume=True, **about)
    again, last = load(tmp_path / "run" / FOLDER), load(tmp_path / "run" / "checkpoint")
    assert resumed.best == max(scores) and again is not None and again.round == first.round
    assert last is not None and last.round == 3
    assert map_trees(torch.equal, again.tree, first.tree) == {name: True for name in first.tree}


def test_test_examples_of_the_server_choose_nothing(tmp_path: Path) -> None:
    done = go(tmp_path, clients=2, rounds=1, local_steps=1, defenses="none", strategy="fedavg")
    assert series(done, "accuracy_ratio") and not (tmp_path / "run" / FOLDER).exists()
