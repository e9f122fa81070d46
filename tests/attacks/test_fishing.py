import dataclasses

import pytest
import torch

from prunella.attacks import ATTACKS
from prunella.attacks.engine.label_inference import last_linear
from prunella.attacks.fishing import caught, plant
from prunella.attacks.score.control import undefended_view
from prunella.attacks.score.leakage import psnr
from prunella.core.errors import AttackError
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch
from prunella.tasks.task import Task, initial
from tests.attacks.conftest import SHAPES

ATTACK = ATTACKS["fishing"]
QUICK = dataclasses.replace(ATTACK.settings(), iterations=120, restarts=1)


def lone(truth: PrivateBatch) -> int:
    """A class with one image in the batch."""
    return int((truth.y.bincount(minlength=10) == 1).nonzero()[0])


@pytest.mark.parametrize("data", ["mnist", "cifar10"])
def test_the_one_image_of_a_class_comes_out_of_a_batch_of_sixteen(photographs, data: str) -> None:
    truth, task = photographs(data, 16), Task("cnn", SHAPES[data], 10)
    params, buffers = initial(task, 0)
    wanted = lone(truth)
    mine = truth.y == wanted
    view = undefended_view(task, plant(task.build(), params, task.classes, wanted), buffers, truth)
    found = ATTACK.reconstruct(view, task, QUICK, stream(0, purpose="attack"))
    assert psnr(truth.x[mine], found.x)[0] >= 20 and found.y is not None and found.y.tolist() == [wanted]
    assert max(max(psnr(x, found.x)) for x in truth.x[~mine][:, None]) < 20


def test_the_planted_layer_hears_one_class_only(batch) -> None:
    """The update of the layers before equals that of the wanted images alone, but for the size of the batch."""
    truth, task = batch(0, 16), Task("cnn", (1, 8, 8), 10)
    params, buffers = initial(task, 0)
    module, wanted = task.build(), int(truth.y[0])
    planted, mine = plant(module, params, task.classes, wanted), truth.y == wanted
    # As a trace of a Flower app says it: the client has 100 examples, and its one step took 16 of them.
    whole = dataclasses.replace(undefended_view(task, planted, buffers, truth), num_examples=100)
    alone = undefended_view(task, planted, buffers, PrivateBatch(truth.x[mine], truth.y[mine]))
    view, count = caught(whole, task)
    assert count == int(mine.sum()) and view.shared is not None
    for name, update in alone.update.items():
        torch.testing.assert_close(view.update[name] * view.shared[name], update * view.shared[name])
        assert bool(view.shared[name].all()) == (not name.startswith(last_linear(module, task.classes)))


def test_a_class_that_nobody_has_and_a_layer_that_is_not_planted_are_named(view, task, batch) -> None:
    with pytest.raises(AttackError, match="prunella.attacks.fishing:cnn"):
        ATTACK.reconstruct(view, task, QUICK, stream(0, purpose="attack"))
    truth, (params, buffers) = batch(0, 1), initial(task, 0)
    absent = (int(truth.y) + 1) % 10
    empty = undefended_view(task, plant(task.build(), params, task.classes, absent), buffers, truth)
    with pytest.raises(AttackError, match="no image of the class"):
        ATTACK.reconstruct(empty, task, QUICK, stream(0, purpose="attack"))
