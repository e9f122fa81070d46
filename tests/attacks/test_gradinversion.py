import dataclasses

import torch

from prunella.attacks import ATTACKS
from prunella.attacks.score.control import PSNR_FLOOR, undefended_view
from prunella.attacks.score.leakage import score
from prunella.core.randomness import stream
from prunella.core.types import Reconstruction, ServerView
from prunella.tasks.task import Task
from tests.attacks.engine.test_statistics import NORMED, normed_view

ATTACK = ATTACKS["gradinversion"]


def run(view: ServerView, task: Task, **changes: object) -> Reconstruction:
    settings = dataclasses.replace(ATTACK.settings(), **changes)
    return ATTACK.reconstruct(view, task, settings, stream(0, purpose="attack"))


def test_rebuilds_an_undefended_image_and_not_another(task, fresh, same_label) -> None:
    truth, other = same_label
    found = run(undefended_view(task, *fresh, truth), task)
    right, wrong = score(found, truth), score(found, other)
    assert right.psnr.mean >= PSNR_FLOOR and right.label_accuracy == 1.0
    assert right.psnr.mean > wrong.psnr.mean + 6


def test_batch_norm_statistics_help(batch) -> None:
    """Over three batches of two, with a short descent."""
    gained = []
    for i in range(3):
        truth = batch(2 * i, 2)
        with_prior, without = (run(normed_view(truth), NORMED, bn=bn, iterations=50, restarts=1) for bn in (1.0, 0.0))
        gained.append(score(with_prior, truth).psnr.mean - score(without, truth).psnr.mean)
    assert sum(gained) > 0


def test_a_group_holds_together(task, fresh, batch, monkeypatch) -> None:
    """With an overwhelming weight all members are one image; without one they differ."""
    from prunella.attacks import gradinversion

    ends: list[list[torch.Tensor]] = []
    whole = gradinversion.descend_group

    def spy(attack, target, wanted, guesses, saved):  # noqa: ANN001, ANN202
        result = whole(attack, target, wanted, guesses, saved)
        ends.append([guess.x.detach().clone() for guess in guesses])
        return result

    monkeypatch.setattr(gradinversion, "descend_group", spy)
    view = undefended_view(task, *fresh, batch(0, 1))
    for weight in (1e6, 0.0):
        run(view, task, group=weight, iterations=40, learning_rate=0.02, labels_tried=1)
    assert (ends[0][0] - ends[0][1]).abs().mean() < 0.5 * (ends[1][0] - ends[1][1]).abs().mean()


def test_the_group_has_as_many_members_as_restarts(task, fresh, batch, monkeypatch) -> None:
    from prunella.attacks import gradinversion

    sizes: list[int] = []
    whole = gradinversion.descend_group
    monkeypatch.setattr(
        gradinversion,
        "descend_group",
        lambda a, t, w, guesses, s: sizes.append(len(guesses)) or whole(a, t, w, guesses, s),
    )
    run(undefended_view(task, *fresh, batch(0, 1)), task, restarts=3, iterations=1, labels_tried=2)
    assert sizes == [3, 3]
