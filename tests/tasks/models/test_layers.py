import pytest
import torch
from torch import nn

from prunella.core.errors import ConfigError
from prunella.tasks.models.layers import convolutions, dense, flat_size, with_head


def test_default_padding_keeps_height_and_width():
    stack = convolutions(3, [(3, 4, False), (5, 6, False)])
    assert stack(torch.zeros(2, 3, 11, 9)).shape == (2, 6, 11, 9)


def test_pooling_halves():
    assert convolutions(1, [(3, 4, True)])(torch.zeros(1, 1, 8, 8)).shape == (1, 4, 4, 4)


def test_flat_size_leaves_batch_norm_alone():
    features = nn.Sequential(nn.Conv2d(1, 2, 8), nn.BatchNorm2d(2))
    assert flat_size(features, (1, 8, 8)) == 2
    assert features.training and int(features[1].num_batches_tracked) == 0


def test_an_image_too_small_is_a_readable_error():
    with pytest.raises(ConfigError, match="4x4"):
        flat_size(convolutions(1, [(5, 2, False)], padding=0), (1, 4, 4))


def test_dense_ends_in_a_linear_layer():
    assert [type(m) for m in dense([4, 3, 2, 1])] == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]


def test_with_head_gives_logits():
    assert with_head(convolutions(1, [(3, 2, True)]), (1, 8, 8), [5], 3)(torch.zeros(4, 1, 8, 8)).shape == (4, 3)
