"""Images that an app normalises: what its model sees, and the pixels back from that."""

import pytest
import torch
from torch import nn

from prunella.core.errors import ConfigError
from prunella.tasks.normalisation import USUAL, WIDE, Normal, normalised, normalising, pixels, usual
from prunella.tasks.task import FrozenNormTask, Task


def shown(x: torch.Tensor, normal: Normal) -> torch.Tensor:
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in normal)
    return (x - mean) / std


def test_a_normalised_module_has_the_same_names_and_sees_what_it_was_trained_on() -> None:
    normal = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    x, plain = torch.rand(2, 3, 8, 8), nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
    expected, names = plain(shown(x, normal)), list(plain.state_dict())
    own = normalised(plain, normal)
    torch.testing.assert_close(own(x), expected)
    assert list(own.state_dict()) == names and isinstance(own, nn.Sequential)


@pytest.mark.parametrize("kind", [Task, FrozenNormTask])
def test_a_task_builds_the_same_model_behind_it(kind: type[Task]) -> None:
    plain, x = kind("cnn-bn", (3, 8, 8), 4), torch.rand(2, 3, 8, 8)
    task = normalising(plain, USUAL[-1])
    torch.testing.assert_close(task.build().eval()(x), plain.build().eval()(shown(x, USUAL[-1])))
    assert [type(m) for m in task.build().modules()][1:] == [type(m) for m in plain.build().modules()][1:]


@pytest.mark.parametrize("channels", [1, 3])
def test_the_pixels_come_back_from_each_usual_way(channels: int) -> None:
    x = torch.rand(1, channels, 8, 8, generator=torch.Generator().manual_seed(0))
    x[0, :, 0, :2] = torch.tensor([0.0, 1.0])
    for normal in usual(channels):
        found = pixels(shown(x, normal))
        torch.testing.assert_close(next(image for image, how in found if how == normal), x)
        assert found[0][1] == normal or len(found[0][1][0]) == 3, "each channel's own before one for all"


def test_what_fits_no_usual_way_is_stretched_over_the_range() -> None:
    x = torch.tensor([[[[0.0, 0.25], [0.5, 1.0]]]])
    ((found, normal),) = pixels(7 * x - 30)
    torch.testing.assert_close(found, x)
    torch.testing.assert_close(shown(found, normal), 7 * x - 30)


def test_the_wide_range_holds_all_others() -> None:
    low, high = (float(shown(torch.tensor([[[end]]]), WIDE)) for end in (0.0, 1.0))
    for normal in USUAL:
        ends = torch.cat([shown(torch.full((3, 1, 1), end), normal) for end in (0.0, 1.0)])
        assert low <= float(ends.min()) and float(ends.max()) <= high, normal


def test_pale_pixels_of_8_bits_tell_which_of_several_ways_it_was() -> None:
    x = torch.randint(100, 150, (1, 3, 16, 16), generator=torch.Generator().manual_seed(0)) / 255
    for normal in usual(3):
        found, how = pixels(shown(x, normal))[0]
        torch.testing.assert_close(found, x)
        assert how == normal


def test_a_model_that_keeps_its_forward_itself_is_refused() -> None:
    own = nn.Linear(4, 2)
    own.forward = lambda x: x
    with pytest.raises(ConfigError, match="subclass it"):
        normalised(own, USUAL[0])
