import dataclasses

import pytest
import torch
from torch import nn

from prunella.attacks.engine.label_inference import (
    count_by_impact,
    count_by_probability,
    label_candidates,
    last_linear,
    spread,
)
from prunella.attacks.engine.matching import Target, target_of
from prunella.attacks.engine.objectives import split
from prunella.attacks.score.control import undefended_view
from prunella.attacks.score.leakage import label_accuracy
from prunella.core.errors import AttackError
from prunella.core.randomness import stream
from prunella.core.trees import Tree, apply_mask
from prunella.core.types import PrivateBatch, ServerView
from prunella.tasks.task import Task


def problem(view: ServerView, task: Task) -> Target:
    return target_of(view, task.build(), True, 64)


def best(view: ServerView, task: Task) -> torch.Tensor:
    labels = label_candidates(problem(view, task), task, True, stream(0, purpose="labels"))[0]
    assert labels is not None
    return labels


@pytest.mark.parametrize("which", ["fresh", "trained"])
def test_the_sign_rule_names_every_single_label(which, task, batch, request) -> None:
    for i in range(10):
        truth = batch(i, 1)
        view = undefended_view(task, *request.getfixturevalue(which), truth)
        assert torch.equal(best(view, task), truth.y)


def test_without_the_bias_the_weight_rows_still_name_it(task, fresh, batch) -> None:
    for i in range(5):
        truth = batch(i, 1)
        view = undefended_view(task, *fresh, truth)
        layer = last_linear(task.build(), 10)
        shared = {
            name: torch.full_like(u, name != f"{layer}.bias", dtype=torch.bool) for name, u in view.update.items()
        }
        hidden = dataclasses.replace(view, update=apply_mask(view.update, shared), shared=shared)
        assert torch.equal(best(hidden, task), truth.y)


def test_batches_of_a_fresh_model_are_counted(task, fresh, batch) -> None:
    """Digits follow each other 0, 1, 2, ... here; counting is by class, so repeat some."""
    truth = PrivateBatch(batch(0, 8).x.repeat(2, 1, 1, 1), batch(0, 8).y.repeat(2))
    view = undefended_view(task, *fresh, truth)
    assert label_accuracy(truth.y, best(view, task)) == 1.0
    unscaled = label_candidates(problem(view, task), task, False, stream(0, purpose="labels"))[0]
    assert unscaled is not None and label_accuracy(truth.y, unscaled) >= 0.5  # against about 0.35 by chance


def test_counts_always_add_up() -> None:
    generator = torch.Generator().manual_seed(0)
    for images in (1, 2, 7, 40):
        evidence = torch.randn(10, generator=generator)
        assert len(count_by_impact(evidence, images)) == images
        assert len(count_by_impact(evidence.abs(), images)) == images
        assert len(count_by_probability(evidence, torch.full((10,), 0.1), images)) == images


def test_counting_by_probability_is_exact_for_a_model_that_says_the_same_of_all() -> None:
    probabilities = torch.tensor([0.5, 0.3, 0.2])
    labels = torch.tensor([0, 0, 1, 2, 2, 2])
    evidence = probabilities - torch.bincount(labels) / 6
    assert torch.equal(count_by_probability(evidence, probabilities, 6), labels)


def test_spread_keeps_the_labels() -> None:
    labels = torch.tensor([2, 0, 1, 1, 0, 2, 2])
    assert torch.equal(spread(labels, 3).sort().values, labels.sort().values)


def test_split_undoes_flatten(fresh: tuple[Tree, Tree]) -> None:
    flat = torch.cat([tensor.reshape(-1) for tensor in fresh[0].values()])
    assert all(torch.equal(part, fresh[0][name]) for name, part in split(flat, fresh[0]).items())


def test_a_model_without_a_linear_end_says_so() -> None:
    with pytest.raises(AttackError, match="optimise"):
        last_linear(nn.Sequential(nn.Linear(4, 3), nn.Conv2d(1, 1, 1)), 10)
