"""What a loop's model is asked between its steps. What is refused before the first: ``test_loop``."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from prunella.client.planted import PlantedCheck
from prunella.core.randomness import PrivateGenerator
from prunella.flower.question import StepQuestion
from tests.client.test_planted import dormant
from tests.flower.foreign import batches, tree
from tests.flower.test_loop import by_hand, guarded, moved, trained


def armed_by_a_step() -> nn.Module:
    task, params = dormant()
    model = task.build()
    model.load_state_dict(params)
    return model


def test_a_model_that_its_first_step_arms_counts_no_step_after_it() -> None:
    model, x = armed_by_a_step(), torch.rand(16, 1, 28, 28)
    question = StepQuestion(model, PrivateGenerator(bytes(32)))
    assert question.refused(x) == [] and not question.ended
    assert question.refused({}) == [] and not question.ended  # no new batch: not asked again
    cross_entropy(model(x), torch.arange(16) % 10).backward()
    torch.optim.SGD(model.parameters(), lr=0.05).step()
    assert question.refused(x) == [] and question.ended  # a refusal would tell of the images


def test_an_honest_one_goes_on_in_its_own_precision_and_with_statistics() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 64), nn.ReLU(), nn.Linear(64, 10)
    ).double()
    x, question = torch.rand(16, 1, 8, 8).double(), StepQuestion(model, PrivateGenerator(bytes(32)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        assert question.refused(x) == [] and not question.ended
        optimizer.zero_grad()
        cross_entropy(model(x), torch.arange(16) % 10).backward()
        optimizer.step()


def steps_of(loop: Any, count: int) -> Any:
    """``loop`` over its first batches alone."""

    def short(*given: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tests.flower.test_loop.batches", lambda client: list(batches(client))[:count])
            return loop(*given)

    return short


@pytest.mark.parametrize("loop", [guarded, by_hand])
def test_steps_from_there_on_move_nothing(loop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(list(batches(0))) > 2
    expected = [trained(steps_of(loop, count), tmp_path / f"{count}", "none") for count in (1, 2)]
    for ends, short in zip((1, 2), expected, strict=True):
        monkeypatch.setattr(PlantedCheck, "allows", lambda self, *asked, at=ends: asked[3] < at)
        ended = trained(loop, tmp_path / f"ended-{ends}", "none")
        assert not ended.errors
        one, other = (tree(seen.trained()[0]["arrays"]) for seen in (ended, short))
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert moved(expected[0])
