"""Orderings and adapted attacks: what they attack is what a client sends; the figures themselves are in docs."""

import dataclasses
from pathlib import Path

import pytest
import torch

from prunella.attacks.score.control import undefended_view
from prunella.benchmarks.engine import priors
from prunella.benchmarks.engine.claim import Claim, Sweep
from prunella.benchmarks.engine.results import Measured
from prunella.benchmarks.papers import adapted_attacks as bench
from prunella.benchmarks.papers.adapted_attacks import image_of, undefended
from prunella.benchmarks.reproduce import reproduce
from prunella.core.trees import density
from prunella.core.types import PrivateBatch
from prunella.tasks.task import Task, initial
from tests.benchmarks.engine.test_priors import tiny

DIGITS = {"dataset": "digits", "model": "cnn", "iterations": 1}


def measured(claim: Claim, cache: Path) -> Measured:
    """Every defense, one iteration on two digits."""
    cells = claim.experiment.sweeps["small"].cells
    few = tuple({**cell, "iterations": 1} for cell in cells if cell["dataset"] == "digits")
    experiment = dataclasses.replace(claim.experiment, sweeps={"small": Sweep(few, (0, 1))})
    return reproduce(dataclasses.replace(claim, experiment=experiment), "small", cache, None, lambda line: None)


def test_every_attack_is_asked_behind_its_defense(tmp_path: Path) -> None:
    result = measured(bench.ADAPTED, tmp_path)
    arms = {("priprune", name) for name in ("ig", "sgi", "expectation", "sgi undefended")}
    arms |= {(defense, name) for defense in ("top-k", "dgp") for name in ("ig", "sgi", "unrolling")}
    assert {point.label[1:] for point in result.points} == arms
    assert result.verdict.reason.count(" above ") == 7
    assert all(0 < share < 1 for point in result.points for share in point.values.get("sent", ()))


def test_attacks_with_public_images_stand_beside_sgi_and_the_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(priors, "learn", tiny)
    priors._learnt.cache_clear()
    result = measured(bench.PUBLIC, tmp_path)
    assert {point.label[2] for point in result.points} == {"mean", "sgi", "ggl", "rog"}
    assert "digits noise 8 ggl above mean" in result.verdict.reason and len(result.points) == 4 * 5
    priors._learnt.cache_clear()


def test_rounds_follow_what_was_sent_and_feed_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every later view starts where the one before led, and brings coordinates that were owed."""
    seen: dict[str, list] = {}

    def note(settings, task, name, view, image, **more):  # noqa: ANN001, ANN202
        seen[name] = [*more.get("earlier", ()), view]
        return torch.zeros(1, 1, 8, 8)

    monkeypatch.setattr(bench, "attacked", note)
    bench.make({**DIGITS, "defense": "dgp"}, 0, None)
    views = seen["unrolling"]
    assert len(views) == bench.ROUNDS and seen["sgi"] == views[-1:]
    for before, after in zip(views, views[1:], strict=False):
        for name, start in after.params.items():
            torch.testing.assert_close(start, before.params[name] + before.update[name])
    sent = [torch.cat([(u != 0).flatten() for u in view.update.values()]) for view in views]
    assert all(0.1 < float(s.float().mean()) < 0.3 for s in sent)
    assert float((sent[0] & sent[1]).float().mean()) < float(sent[0].float().mean()), "others than in the first round"


def test_arms_are_what_they_are_called() -> None:
    view = undefended(*image_of(DIGITS, 0, None), 0)
    shares = {arm: density(bench.behind(view, arm, 0).shared) for arm in bench.WITH_PUBLIC}
    assert shares == {
        "none": 1.0,
        "top 2 %": pytest.approx(0.02, abs=0.002),
        "dgp": pytest.approx(0.2, abs=0.01),
        "noise 2": 1.0,
        "noise 8": 1.0,
    }
    name = max(view.update, key=lambda n: view.update[n].numel())
    for level in (2, 8):
        noise = bench.behind(view, f"noise {level}", 0).update[name] - view.update[name]
        assert float(noise.std() / view.update[name].std()) == pytest.approx(level, rel=0.05)


def test_arms_share_what_their_defense_shares() -> None:
    task = Task("cnn", (1, 8, 8), 10)
    truth = PrivateBatch(torch.rand(1, 1, 8, 8), torch.tensor([1]))
    view = undefended_view(task, *initial(task, 0), truth)
    shares = {arm: density(bench.behind(view, arm).shared) for arm in bench.ARMS}
    assert shares == {"none": 1.0, "top-k": pytest.approx(0.2, abs=0.01), "dgp": pytest.approx(0.2, abs=0.01)}


def test_every_ordering_is_asked(tmp_path: Path) -> None:
    cells = tuple({**cell, "iterations": 2} for cell in bench.ORDERINGS.experiment.sweeps["small"].cells)
    experiment = dataclasses.replace(bench.ORDERINGS.experiment, sweeps={"small": Sweep(cells, (0, 1))})
    claim = dataclasses.replace(bench.ORDERINGS, experiment=experiment)
    result = reproduce(claim, "small", tmp_path, None, lambda line: None)
    assert len(result.points) == 8 and "white leaves a larger error" in result.verdict.reason
    assert sum(result.verdict.reason.count(word) for word in ("leaks more", "leaves a larger")) == 7
