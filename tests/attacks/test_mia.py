import dataclasses
from collections.abc import Callable

import pytest
import torch

from prunella.attacks import PROBES
from prunella.attacks.mia import GRADIENT, AttackedModel, AttackNetwork, Mia, infer, inputs_of
from prunella.attacks.score.membership import compare
from prunella.core.errors import AttackError
from prunella.core.randomness import stream
from prunella.core.trees import Tree
from prunella.core.types import PrivateBatch
from prunella.tasks.task import Task, initial
from prunella.tasks.training import Sgd, loss_and_gradient, sgd_step

PROBE = PROBES["mia"]
Rows = Callable[[int, int], PrivateBatch]


def overfit(task: Task, data: PrivateBatch, steps: int, rate: float) -> AttackedModel:
    (params, buffers), module, draw = initial(task, 0), task.build(), stream(0, purpose="training")
    velocity: Tree = {}
    for _ in range(steps):
        rows = torch.randint(len(data.y), (64,), generator=draw)
        _, gradient, buffers = loss_and_gradient(module, params, buffers, data.x[rows], data.y[rows])
        params, velocity = sgd_step(params, gradient, velocity, Sgd(rate, 0.9), None)
    return AttackedModel(task, params, buffers)


@pytest.fixture(scope="module")
def rows() -> Rows:
    """``rows(first, last)``: noise with labels that say nothing, so that whatever a model knows it learnt by heart."""
    draw = stream(0, purpose="data")
    x, y = torch.rand((8000, 1, 8, 8), generator=draw), torch.randint(10, (8000,), generator=draw)
    return lambda first, last: PrivateBatch(x[first:last], y[first:last])


@pytest.fixture(scope="module")
def memorised(rows: Rows) -> AttackedModel:
    return overfit(Task("cnn", (1, 8, 8), 10), rows(0, 400), 300, 0.1)


def test_members_of_an_overfit_model_are_found_and_fresh_examples_are_not_told_apart(memorised, rows) -> None:
    scores = PROBE.infer(memorised, rows(0, 200), rows(400, 600), rows(200, 8000), Mia(), stream(0, purpose="attack"))
    members, fresh = scores[:200], scores[400:]
    assert compare(members, fresh).auc > 0.6
    assert abs(compare(fresh[::2], fresh[1::2]).auc - 0.5) < 0.02


def test_a_model_that_saw_none_of_them_gives_nothing_away(memorised, rows) -> None:
    untrained = dataclasses.replace(memorised, params=initial(memorised.task, 0)[0])
    scores = infer(untrained, rows(0, 200), rows(400, 600), rows(1000, 8000), Mia(), stream(0, purpose="attack"))
    assert abs(compare(scores[::2], scores[1::2]).auc - 0.5) < 0.03
    asked = infer(untrained, rows(0, 200), rows(400, 600), rows(200, 1000), Mia(), stream(0, purpose="attack"))
    assert abs(compare(asked[:200], asked[400:]).auc - 0.5) < 0.1  # 200 members: its deviation is 0.025


def test_members_among_photographs(photographs) -> None:
    data = photographs("cifar10", 1500)
    part = lambda first, last: PrivateBatch(data.x[first:last], data.y[first:last])  # noqa: E731
    model = overfit(Task("lenet", (3, 32, 32), 10), part(0, 500), 350, 0.05)
    scores = infer(model, part(0, 250), part(500, 750), part(250, 1500), Mia(), stream(0, purpose="attack"))
    assert compare(scores[:250], scores[500:]).auc > 0.6


def test_the_four_inputs_are_what_they_are_called(memorised, rows) -> None:
    batch = rows(0, 3)
    ranked, loss, gradient, labels = inputs_of(memorised, batch, stream(0, purpose="inputs"))
    module = memorised.task.build()
    for i in range(3):
        one = PrivateBatch(batch.x[i : i + 1], batch.y[i : i + 1])
        value, slope, _ = loss_and_gradient(module, memorised.params, memorised.buffers, one.x, one.y)
        name = [name for name in slope if name.endswith("weight")][-1]
        torch.testing.assert_close(gradient[i], slope[name].flatten(), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(loss[i, 0].exp() - 1e-6, value, rtol=1e-3, atol=2e-6)
    assert bool((ranked.diff(dim=1) <= 0).all()) and ranked.sum(dim=1).tolist() == pytest.approx([1, 1, 1])
    assert labels.argmax(dim=1).tolist() == batch.y.tolist() and bool((labels.sum(dim=1) == 1).all())


def test_long_gradients_are_projected_alike_for_known_and_asked() -> None:
    task = Task("conv-1", (1, 28, 28), 62)
    model = AttackedModel(task, *initial(task, 0))
    batch = PrivateBatch(torch.rand(2, 1, 28, 28), torch.tensor([1, 2]))
    first, again = (inputs_of(model, batch, torch.Generator().manual_seed(3))[2] for _ in range(2))
    assert torch.equal(first, again) and first.shape[1] <= GRADIENT


def test_the_attacker_has_four_embeddings_and_four_layers() -> None:
    network = AttackNetwork([10, 1, 40, 10])
    linear = [layer for layer in network.head if isinstance(layer, torch.nn.Linear)]
    assert len(network.embeddings) == 4 and len(linear) == 4
    assert network([torch.rand(2, n) for n in (10, 1, 40, 10)]).shape == (2,)


def test_without_known_examples_there_is_no_attack(memorised, rows) -> None:
    with pytest.raises(AttackError, match="known members"):
        infer(memorised, rows(0, 0), rows(0, 1), rows(0, 1), Mia(), stream(0, purpose="attack"))
