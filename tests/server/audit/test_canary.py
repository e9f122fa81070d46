import pytest
import torch

from prunella.attacks import ATTACKS
from prunella.attacks.score.leakage import score
from prunella.attacks.sgi import Sgi
from prunella.core.config import parse_run
from prunella.core.randomness import stream
from prunella.core.trees import apply_mask
from prunella.pruning.scores import magnitude
from prunella.pruning.selection import density, keep_by_score
from prunella.server.audit.canary import Canary, load_pool
from prunella.strategies.round.replies import Expected
from prunella.tasks.data import load_test
from prunella.tasks.task import Task, initial, prunable

TASK = Task("cnn", (1, 8, 8), 10)


@pytest.fixture(scope="module")
def expected() -> Expected:
    params, buffers = initial(TASK, 0)
    mask = keep_by_score(magnitude(params), prunable(TASK.build()), 0.3)
    return Expected(1, apply_mask(params, mask), mask, buffers)


def psnr(canary: Canary, expected: Expected, arm: str) -> float:
    sent = canary.send(expected, arm)
    rebuilt = ATTACKS["sgi"].reconstruct(sent.view, TASK, Sgi(iterations=100), stream(0, purpose="attack"))
    return score(rebuilt, sent.truth).psnr.mean


def test_the_control_is_rebuilt_and_the_defended_canary_is_rebuilt_less_well(expected: Expected) -> None:
    canary = Canary(parse_run({"defenses": "largest"}), {}, TASK, load_test("digits", None))
    open_arm, defended = psnr(canary, expected, "none"), psnr(canary, expected, "defended")
    assert open_arm >= 20.0
    assert defended < open_arm - 3


def test_both_arms_show_the_same_image_and_the_view_says_what_was_applied(expected: Expected) -> None:
    canary = Canary(parse_run({"defenses": "dgp"}), {}, TASK, load_test("digits", None))
    a, b = canary.send(expected, "none"), canary.send(expected, "defended")
    assert torch.equal(a.truth.x, b.truth.x) and len(a.truth.y) == 1
    assert (a.view.defenses, b.view.defenses) == (("none",), ("dgp",))
    assert density(b.view.shared, frozenset(b.view.shared)) < density(a.view.shared, frozenset(a.view.shared))
    assert a.view.labels is None


def test_a_task_without_public_images_borrows_digits_in_its_own_shape() -> None:
    pool = load_pool(Task("resnet18", (3, 32, 32), 5), None, 0)
    assert tuple(pool.x.shape[1:]) == (3, 32, 32) and int(pool.y.max()) < 5
    assert 0 <= float(pool.x.min()) and float(pool.x.max()) <= 1
