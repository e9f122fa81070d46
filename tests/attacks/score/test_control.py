import dataclasses

import pytest
import torch

from prunella.attacks import ATTACKS
from prunella.attacks.score.control import PSNR_FLOOR, positive_control, undefended_view
from prunella.attacks.sgi import Sgi
from prunella.core.errors import AttackError
from prunella.core.randomness import stream
from prunella.tasks.task import Task, initial
from prunella.tasks.training import loss_and_gradient


@pytest.mark.parametrize("which", ["fresh", "trained"])
def test_ten_of_ten_digits_are_rebuilt(which, task, batch, request) -> None:
    state = request.getfixturevalue(which)
    for i in range(10):
        control = positive_control(task, *state, batch(i, 1), Sgi(), stream(i, purpose="control"))
        assert control.ok and control.label_right and control.leakage.psnr.mean >= PSNR_FLOOR


def test_a_control_that_cannot_work_says_so(task, fresh, batch) -> None:
    weak = dataclasses.replace(Sgi(), iterations=1)
    control = positive_control(task, *fresh, batch(0, 1), weak, stream(0, purpose="control"))
    assert not control.ok and control.leakage.psnr.mean < PSNR_FLOOR


def test_the_view_is_one_step_of_sgd_and_names_no_labels(task, fresh, batch) -> None:
    truth = batch(0, 1)
    view = undefended_view(task, *fresh, truth)
    _, gradient, _ = loss_and_gradient(task.build(), *fresh, truth.x, truth.y)
    assert view.labels is None and view.learning_rate is not None
    for name, update in view.update.items():
        torch.testing.assert_close(update, -view.learning_rate * gradient[name])


def test_one_image_only(task, fresh, batch) -> None:
    with pytest.raises(AttackError, match="one image, not 2"):
        positive_control(task, *fresh, batch(0, 2), Sgi(), stream(0, purpose="control"))


def test_colour_images_of_cifar10_on_zhu_s_lenet(photographs) -> None:
    truth, task = photographs("cifar10"), Task("lenet-zhu", (3, 32, 32), 10)
    settings = dataclasses.replace(ATTACKS["idlg"].settings(), iterations=200)
    control = positive_control(task, *initial(task, seed=0), truth, settings, stream(0, purpose="control"))
    assert control.ok and control.leakage.ssim.mean > 0.7
