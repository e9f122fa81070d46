import dataclasses
import math

import pytest
import torch
from torch import nn

from prunella.attacks import ATTACKS
from prunella.attacks.representation import Representation
from prunella.attacks.score.control import undefended_view
from prunella.attacks.score.leakage import psnr, score
from prunella.core.randomness import rehearsal, stream
from prunella.core.trees import full_mask
from prunella.core.types import PrivateBatch, Reconstruction, ServerView
from prunella.library.module import own_task
from prunella.privacy.chain import build_chain, start
from prunella.strategies.round.local import Procedure, Received, local_update
from prunella.tasks.examples import Examples
from prunella.tasks.task import Task, initial
from prunella.tasks.training import Sgd
from tests.attacks.conftest import SHAPES

ATTACK = ATTACKS["representation"]


def run(view: ServerView, task: Task, attack: Representation | None = None) -> Reconstruction:
    return ATTACK.reconstruct(view, task, attack or Representation(), stream(0, purpose="attack"))


def defended(task: Task, truth: PrivateBatch, defenses: str) -> ServerView:
    """One step of a client behind a chain; of what arrived nothing is told."""
    params, buffers = initial(task, 0)
    chain = build_chain(defenses.split(","), {})
    state = start(chain, truth.x, params, {}, rehearsal(0, purpose="fit"))
    received = Received(params, full_mask(params), buffers)
    shown = iter([Examples(truth.x, truth.y)])
    done = local_update(Procedure(task.build(), Sgd(0.1), chain), received, shown, state, rehearsal(0, purpose="draw"))
    size = len(truth.y)
    return ServerView(
        params,
        done.outgoing.update,
        num_examples=size,
        steps=1,
        batch_size=size,
        learning_rate=0.1,
        defenses=done.applied,
    )


@pytest.mark.parametrize("data", ["mnist", "cifar10"])
@pytest.mark.parametrize("model, least", [("cnn", 60), pytest.param("precode-cnn", 60, marks=pytest.mark.slow)])
def test_a_photograph_is_rebuilt_exactly_and_is_no_other(model: str, least: int, data: str, photographs) -> None:
    """Of a plain network, and of PRECODE's, whose random draw no guess of the whole gradient can meet."""
    both, task = photographs(data, 2), Task(model, SHAPES[data], 10)
    truth, other = PrivateBatch(both.x[:1], both.y[:1]), PrivateBatch(both.x[1:], both.y[1:])
    view = defended(task, truth, "precode" if model.startswith("precode") else "none")
    found = run(view, task)
    assert psnr(truth.x, found.x)[0] > least and psnr(other.x, found.x)[0] < 20
    if model.startswith("precode"):
        matched = ATTACKS["sgi"].settings(iterations=60, labels_tried=1)
        whole = ATTACKS["sgi"].reconstruct(view, task, matched, stream(0, purpose="attack"))
        assert psnr(truth.x, whole.x)[0] < 20


def test_the_update_of_another_image_or_of_other_weights_does_not_give_the_image(batch) -> None:
    task, truth, other = Task("precode-cnn", (1, 8, 8), 10), batch(0, 1), batch(1, 1)
    assert psnr(truth.x, run(defended(task, truth, "precode"), task).x)[0] > 40
    view = defended(task, other, "precode")
    assert psnr(truth.x, run(view, task).x)[0] < 20
    elsewhere = dataclasses.replace(defended(task, truth, "precode"), params=initial(task, 1)[0])
    assert psnr(truth.x, run(elsewhere, task, Representation(iterations=60)).x)[0] < 17


def test_a_batch_behind_precode_is_told_apart(batch) -> None:
    task, truth = Task("precode-cnn", (1, 8, 8), 10), batch(0, 2)
    found = score(run(defended(task, truth, "precode"), task), truth)
    assert found.psnr.mean > 40 and found.iip == 1.0


def test_mask_hiding_is_seen_through(photographs) -> None:
    truth, task = photographs("mnist"), Task("cnn", SHAPES["mnist"], 10)
    view = defended(task, truth, "dgp,mask-hiding")
    assert all(bool((u != 0).all()) for u in view.update.values())
    assert score(run(view, task), truth).psnr.mean > 25


def test_a_network_that_only_flattens_is_asked(batch) -> None:
    """The slope of its input is a view, which L-BFGS cannot flatten."""
    task, truth = Task("tests.attacks.test_representation:flat", (1, 8, 8), 10), batch(0, 2)
    assert run(undefended_view(task, *initial(task, 0), truth), task).x.shape == truth.x.shape


def flat(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 16), nn.ReLU(), nn.Linear(16, classes))


@pytest.mark.parametrize("own", [False, True])
def test_an_image_is_read_where_the_last_layer_stays_with_the_client(batch, own: bool) -> None:
    """One label explains what arrived where the server has that layer, too; else what was read is an answer in part.
    Behind noise it is none: any rows have a mean."""
    task, truth = Task("tests.attacks.test_representation:flat", (1, 8, 8), 10), batch(0, 1)
    params, buffers = initial(task, 0)
    last = [name for name in params if name.startswith("3.")]
    theirs = {**params, **{name: initial(task, 1)[0][name] for name in last}} if own else params
    view = undefended_view(task, theirs, buffers, truth)
    sent = {name: u * (name not in last) for name, u in view.update.items()}
    view = dataclasses.replace(view, params=params, update=sent)
    portfolio = ATTACKS["portfolio"].settings(passes=300)
    found = [run(view, task), ATTACKS["portfolio"].reconstruct(view, task, portfolio, stream(0, purpose="attack"))]
    assert all(psnr(truth.x, each.x)[0] > 60 for each in found)
    assert [(each.explained, each.compared) for each in found] == [(False, False)] * 2 if own else found[1].explained
    drawn = torch.Generator().manual_seed(0)
    noisy = {n: u + 0.1 * u.std() * torch.randn(u.shape, generator=drawn) * (u != 0) for n, u in sent.items()}
    assert run(dataclasses.replace(view, update=noisy), task).compared


def few(shape: tuple[int, ...], classes: int) -> nn.Module:
    """32 inputs of the first linear layer from 64 pixels."""
    body = [nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.GELU(), nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.GELU()]
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, classes))


def test_an_image_of_the_same_few_features_is_no_answer_in_part(batch) -> None:
    """They are those of many images."""
    task, truth = Task("tests.attacks.test_representation:few", (1, 8, 8), 10), batch(0, 1)
    found = run(undefended_view(task, *initial(task, 0), truth), task)
    assert found.compared and (found.objective > 1e-4) is (psnr(truth.x, found.x)[0] < 20)


def test_the_sizes_of_a_batch_are_those_of_the_view(batch, task, fresh) -> None:
    truth = batch(0, 3)
    found = run(undefended_view(task, *fresh, truth), task, Representation(iterations=40, restarts=1))
    assert found.x.shape == truth.x.shape and found.y is not None and len(found.y) == 3
    assert 0 <= float(found.x.min()) <= float(found.x.max()) <= 1 and torch.isfinite(found.x).all()


def test_the_objective_is_of_the_update_and_not_of_what_was_read(batch) -> None:
    """Behind noise the two differ: some image has nearly any few features. The oracle sends what was found."""
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 2, 3, stride=4), nn.Softplus(), nn.Flatten(), nn.Linear(8, 200), nn.Softplus()
    task, truth = own_task(nn.Sequential(*layers, nn.Linear(200, 10)), (1, 8, 8)), batch(0, 1)
    state = initial(task, 0)
    view, drawn = undefended_view(task, *state, truth), torch.Generator().manual_seed(0)
    noisy = {n: u + 0.2 * u.abs().mean() * torch.randn(u.shape, generator=drawn) for n, u in view.update.items()}
    found = run(dataclasses.replace(view, update=noisy), task)
    assert found.y is not None
    sent = undefended_view(task, *state, PrivateBatch(found.x, found.y)).update
    one, other = (torch.cat([update[n].flatten() for n in noisy]) for update in (sent, noisy))
    missed = 1 - float(nn.functional.cosine_similarity(one, other, dim=0))
    assert missed > 1e-3 and found.objective == pytest.approx(missed, rel=0.01)


@pytest.mark.parametrize("defenses", ["precode", "dgp,mask-hiding"])
def test_a_reading_of_drawn_or_made_up_values_is_no_fit_of_the_update(defenses: str, batch) -> None:
    task, truth = Task("precode-cnn" if defenses == "precode" else "cnn", (1, 8, 8), 10), batch(0, 1)
    few = Representation(iterations=5)
    assert run(defended(task, truth, defenses), task, few).fit is None
