import pytest
import torch

from prunella.attacks.engine.image_priors import into_box, total_variation


@pytest.mark.parametrize("shape", [(2, 1, 8, 8), (1, 3, 5, 7), (1, 1, 1, 4)])
def test_gradient_is_autograd_s_for_any_channel_count(shape: tuple[int, ...]) -> None:
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0), requires_grad=True)
    plain = sum(x.diff(dim=dim).abs().mean() for dim in (-1, -2) if x.shape[dim] > 1)
    (expected,) = torch.autograd.grad(plain, x)
    value, slope = total_variation(x.detach())
    torch.testing.assert_close(value, plain.detach())
    torch.testing.assert_close(slope, expected)


def test_flat_images_have_none_and_checkerboards_most() -> None:
    board = (torch.arange(8)[:, None] + torch.arange(8)) % 2
    assert float(total_variation(torch.full((1, 1, 8, 8), 0.3))[0]) == 0
    assert float(total_variation(board.float()[None, None])[0]) == 2


def test_box() -> None:
    assert into_box(torch.tensor([-1.0, 0.5, 2.0])).tolist() == [0, 0.5, 1]
