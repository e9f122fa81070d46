import dataclasses

import pytest
import torch

from prunella.attacks import ATTACKS
from prunella.attacks.engine.inversion import Inversion, reconstruct
from prunella.attacks.score.leakage import score
from prunella.core.config import parse_section
from prunella.core.errors import ConfigError
from prunella.core.randomness import stream
from prunella.core.trees import full_mask
from prunella.core.types import ServerView
from prunella.tasks.task import Task

QUICK = Inversion(iterations=30)


def run(view: ServerView, task: Task, attack: Inversion = QUICK, seed: int = 0):
    return reconstruct(view, task, attack, stream(seed, purpose="attack"))


@pytest.mark.parametrize("optimizer", ["adam", "lbfgs"])
def test_same_seed_same_bits_and_other_seed_others(optimizer, view, task) -> None:
    attack = dataclasses.replace(QUICK, optimizer=optimizer)
    first, again, other = run(view, task, attack), run(view, task, attack), run(view, task, attack, seed=1)
    assert torch.equal(first.x, again.x) and first.objective == again.objective
    assert not torch.equal(first.x, other.x)


@pytest.mark.parametrize("name", [name for name, attack in ATTACKS.items() if issubclass(attack.settings, Inversion)])
def test_inputs_are_left_alone(name, view, task) -> None:
    view = dataclasses.replace(view, shared=full_mask(view.update), labels=torch.tensor([4]))
    before = {f.name: getattr(view, f.name) for f in dataclasses.fields(view)}
    copies = {n: {k: t.clone() for k, t in v.items()} for n, v in before.items() if isinstance(v, dict)}
    run(view, task, dataclasses.replace(ATTACKS[name].settings(), iterations=20))
    for field, tree in copies.items():
        assert all(torch.equal(tree[key], getattr(view, field)[key]) for key in tree)
        assert not any(t.requires_grad or t.grad is not None for t in getattr(view, field).values())
    assert view.labels is not None and view.labels.tolist() == [4]


def test_images_stay_in_the_box_and_have_the_task_s_shape(view, task) -> None:
    for optimizer in ("adam", "lbfgs"):
        result = run(view, task, dataclasses.replace(QUICK, optimizer=optimizer))
        assert result.x.shape == (1, 1, 8, 8) and result.y.shape == (1,)
        assert float(result.x.min()) >= 0 and float(result.x.max()) <= 1


def test_known_labels_are_used(view, task) -> None:
    result = run(dataclasses.replace(view, labels=torch.tensor([7])), task)
    assert result.y.tolist() == [7]


def test_more_restarts_never_fit_worse(task, trained, batch) -> None:
    from prunella.attacks.score.control import undefended_view

    view = undefended_view(task, *trained, batch(0, 4))
    objectives = [run(view, task, dataclasses.replace(QUICK, restarts=n)).objective for n in (1, 2, 4)]
    assert objectives == sorted(objectives, reverse=True) and objectives[2] < objectives[0]


def test_optimised_labels_find_the_label(view, task, batch) -> None:
    result = run(view, task, Inversion(labels="optimise"))
    assert torch.equal(result.y, batch(0, 1).y)


def test_total_variation_smooths(view, task) -> None:
    rough, smooth = run(view, task), run(view, task, dataclasses.replace(QUICK, tv=1.0))
    assert smooth.x.diff(dim=-1).abs().mean() < rough.x.diff(dim=-1).abs().mean()


def test_a_wrong_first_label_is_corrected_by_the_next(task, trained, batch) -> None:
    """Withholding each layer's largest coordinates hides the label from the first guess; trying the classes in turn
    undoes that."""
    from prunella.attacks.score.control import undefended_view
    from prunella.core.ranking import keep_largest

    settings, found = Inversion(iterations=100), {1: 0, 10: 0}
    for i in range(4):
        truth = batch(i, 1)
        view = undefended_view(task, *trained, truth)
        shared = {name: ~keep_largest(u.abs(), int(0.3 * u.numel())) for name, u in view.update.items()}
        update = {name: torch.where(shared[name], u, 0.0) for name, u in view.update.items()}
        view = dataclasses.replace(view, update=update, shared=shared)
        for tried in found:
            attack = dataclasses.replace(settings, labels_tried=tried, restarts=1)
            found[tried] += int(torch.equal(run(view, task, attack).y, truth.y))
    assert found[10] == 4 > found[1]


def test_several_steps_are_simulated(task, fresh, batch) -> None:
    """FedAvg-aware matching rebuilds two images from two steps; pretending one step does worse."""
    from prunella.tasks.training import Sgd, loss_and_gradient, sgd_step

    truth, (params, buffers) = batch(0, 2), fresh
    moved = params
    for i in range(2):
        _, gradient, _ = loss_and_gradient(task.build(), moved, buffers, truth.x[i : i + 1], truth.y[i : i + 1])
        moved, _ = sgd_step(moved, gradient, {}, Sgd(0.3), None)
    update = {name: moved[name] - params[name] for name in params}
    view = ServerView(params, update, labels=truth.y, num_examples=2, steps=2, batch_size=1, learning_rate=0.3)
    aware = score(run(view, task, Inversion(iterations=150)), truth)
    pretending = dataclasses.replace(view, steps=1, batch_size=2, learning_rate=0.6)
    naive = score(run(pretending, task, Inversion(iterations=150)), truth)
    assert aware.psnr.mean > 25 and aware.psnr.mean > naive.psnr.mean + 5


def test_too_many_images_rebuild_fewer(view, task) -> None:
    many = dataclasses.replace(view, batch_size=40, num_examples=40)
    assert len(run(many, task, dataclasses.replace(QUICK, iterations=2, max_images=8)).x) == 8


@pytest.mark.parametrize("key, value", [("iterations", 0), ("objective", "l1"), ("tv", -1.0), ("optimizer", "sgd")])
def test_settings_are_checked_when_parsed(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"sgi.{key}"):
        parse_section({f"sgi.{key}": value}, "sgi", ATTACKS["sgi"].settings)
