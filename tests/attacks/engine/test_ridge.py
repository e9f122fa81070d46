import pytest
import torch

from prunella.attacks.engine.ridge import Ridge
from prunella.core.errors import AttackError
from prunella.core.randomness import stream

DRAW = stream(0, purpose="ridge")
TRUE = torch.randn((30, 12), generator=DRAW)


def pairs(count: int, noise: float) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Two blocks of very different scale, and images [N, 1, 3, 4] that depend on both."""
    inputs = torch.randn((count, 30), generator=DRAW)
    wanted = (inputs @ TRUE / 30**0.5 + noise * torch.randn((count, 12), generator=DRAW)).reshape(count, 1, 3, 4)
    return [inputs[:, :10] * 1000 + 7, inputs[:, 10:] * 1e-3], wanted


def test_a_linear_relation_is_found_whatever_the_scale_of_a_block() -> None:
    blocks, x = pairs(400, 0.0)
    fresh, truth = pairs(50, 0.0)
    ridge = Ridge(blocks, x, torch.arange(400))
    assert float((ridge(fresh) - truth).square().mean()) < 0.05 * float(truth.square().mean())


def test_the_error_it_reports_is_that_of_unseen_pairs_and_not_of_repeated_images() -> None:
    """Every image is there four times, each time with the same target: only folds by image do not see it."""
    blocks, x = pairs(40, 1.0)
    image = torch.arange(40).repeat(4)
    ridge = Ridge([block.repeat(4, 1) for block in blocks], x.repeat(4, 1, 1, 1), image)
    fresh, truth = pairs(300, 1.0)
    unseen = float((ridge(fresh) - truth).square().mean())
    assert abs(ridge.error - unseen) < 0.35 * unseen
    assert ridge.error == pytest.approx(float((ridge.unseen - x.repeat(4, 1, 1, 1)).square().mean()), rel=1e-4)


def test_one_far_pair_does_not_take_the_others_with_it() -> None:
    blocks, x = pairs(300, 0.0)
    blocks[0][5] *= 1e4
    fresh, truth = pairs(50, 0.0)
    ridge = Ridge(blocks, x, torch.arange(300))
    assert float((ridge(fresh) - truth).square().mean()) < 0.1 * float(truth.square().mean())


def test_a_single_image_teaches_nothing() -> None:
    blocks, x = pairs(5, 0.0)
    with pytest.raises(AttackError, match="at least two"):
        Ridge(blocks, x, torch.zeros(5, dtype=torch.int64))
