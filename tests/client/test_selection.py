"""What a client tells of candidates for the first mask, and when it tells nothing."""

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, RecordDict

from prunella.attacks.fishing import plant
from prunella.core.errors import ConfigError, DefenseError, WireError
from prunella.core.trees import Tree, full_mask
from prunella.pruning.fedtiny import candidate_masks
from prunella.tasks.task import Task, initial, prunable
from prunella.wire.records import from_coded, mask_to_coded, to_coded, to_dense
from tests.client.test_app import send

TINY: dict[str, Any] = {"strategy": "fedtiny", "defenses": "none", "rate": 0.5}


def question(asked: str = "loss", model: str = "cnn", count: int = 3, **more: Any) -> RecordDict:
    task = Task(model, (1, 8, 8), 10)
    params, buffers = initial(task, 0)
    params = more.pop("params", params)
    masks = candidate_masks(params, prunable(task.build()), 0.5, (3, 0.5), 0)
    arrays = {"model": to_coded(params, full_mask(params))} | ({"buffers": to_dense(buffers)} if buffers else {})
    arrays |= {f"mask-{number}": mask_to_coded(mask) for number, mask in enumerate(masks)}
    return RecordDict({**arrays, "config": ConfigRecord({"round": 0, "asked": asked, "candidates": count, **more})})


def test_losses_are_three_rounded_numbers_and_nothing_else(tmp_path: Path) -> None:
    content = send(tmp_path, "train.select", question(), **TINY).content
    assert set(content) == {"metrics", "ledger"} and set(content["metrics"]) == {
        "num-examples",
        "loss-0",
        "loss-1",
        "loss-2",
    }
    losses = [content["metrics"][f"loss-{n}"] for n in range(3)]
    assert all(loss == round(loss, 3) > 0 for loss in losses) and len(set(losses)) > 1


def test_statistics_are_those_of_images_under_each_candidate(tmp_path: Path) -> None:
    content = send(tmp_path, "train.select", question("statistics", "resnet10"), model="resnet10", **TINY).content
    assert set(content) == {"ledger", "metrics", "statistics-0", "statistics-1", "statistics-2"}
    assert set(content["metrics"]) == {"num-examples"}
    like = initial(Task("resnet10", (1, 8, 8), 10), 0)[1]
    trees: list[Tree] = [from_coded(content[f"statistics-{n}"], like)[0] for n in range(3)]
    assert any(not torch.equal(trees[0][n], trees[1][n]) for n in like)


def test_a_defense_of_images_has_done_its_work_before_either(tmp_path: Path) -> None:
    """With this much noise every image looks alike, so a loss is far from that of the images themselves."""
    loud = {**TINY, "defenses": "channel-natural", "channel_natural__kappa": 1e-6}
    bare = send(tmp_path / "a", "train.select", question(), **TINY).content["metrics"]
    noised = send(tmp_path / "b", "train.select", question(), **loud).content["metrics"]
    assert noised["loss-0"] != bare["loss-0"]


@pytest.mark.parametrize("condition", [{"require": "dgp"}, {"require": "channel-natural"}, {"require": "rounds=10"}])
def test_any_condition_of_the_owner_forbids_it(tmp_path: Path, condition: dict[str, str]) -> None:
    defenses = {"defenses": "channel-natural,dgp", "rounds": 10}
    with pytest.raises(ConfigError, match="no score of its examples leave"):
        send(tmp_path, "train.select", question(), condition, **{**TINY, **defenses})
    assert not list(tmp_path.rglob("round-*"))


def test_no_epsilon_covers_it(tmp_path: Path) -> None:
    with pytest.raises(DefenseError, match="fedtiny uses exact scores"):
        send(tmp_path, "train.select", question(), {"client-seed": None}, **{**TINY, "defenses": "dp-sgd"})


def test_it_is_a_charge_without_a_bound_so_no_epsilon_is_printed_later(tmp_path: Path) -> None:
    from tests.client.test_app import model

    private = {"defenses": "dp-sgd", "strategy": "magnitude"}
    node = {"client-seed": None}
    before = send(tmp_path / "a", "train", model(), node, **private).content["ledger"]
    send(tmp_path / "b", "train.select", question(), node, **TINY)
    after = send(tmp_path / "b", "train", model(), node, **private).content["ledger"]
    assert "epsilon" in before and "epsilon" not in after


@pytest.mark.parametrize("strategy", ["fedavg", "prunefl"])
def test_other_schemes_score_no_candidates(tmp_path: Path, strategy: str) -> None:
    with pytest.raises(ConfigError, match="choose fedtiny"):
        send(tmp_path, "train.select", question(), **{**TINY, "strategy": strategy})


@pytest.mark.parametrize("wrong", [{"count": 0}, {"count": 65}, {"asked": "images"}, {"count": True}])
def test_a_question_that_is_none_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(WireError, match="candidates"):
        send(tmp_path, "train.select", question(**wrong), **TINY)


def test_the_same_question_is_answered_alike_and_twice_at_most(tmp_path: Path) -> None:
    first, second = (send(tmp_path, "train.select", question(), **TINY).content["metrics"] for _ in range(2))
    assert dict(first) == dict(second)
    with pytest.raises(ConfigError, match="answers no more"):
        send(tmp_path, "train.select", question(), **TINY)


@pytest.mark.parametrize("few", [{"batch_size": 1}, {"fedtiny__selection_batches": 1}])
def test_nothing_is_told_of_a_few_images(tmp_path: Path, few: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="32 images or more"):
        send(tmp_path, "train.select", question(), **{**TINY, **few})


def test_questions_are_numbered_over_all_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prunella.client.app.SELECTIONS", 2)
    for count in (1, 2):
        send(tmp_path, "train.select", question(count=count), **TINY, seed=count)
    with pytest.raises(ConfigError, match="scored candidates 2 times"):
        send(tmp_path, "train.select", question(), **TINY, seed=3)


def test_weights_made_to_copy_images_are_refused(tmp_path: Path) -> None:
    task = Task("cnn", (1, 8, 8), 10)
    planted = plant(task.build(), initial(task, 0)[0], task.classes, 3)
    with pytest.raises(DefenseError, match="copy single images"):
        send(tmp_path, "train.select", question(params=planted), **TINY)
