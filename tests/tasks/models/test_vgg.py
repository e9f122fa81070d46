import pytest
import torch

from prunella.core.errors import ConfigError
from prunella.tasks.models.vgg import vgg11_bn, vgg16, vgg_4, vgg_6, vgg_9, vgg_11

PUBLISHED = [
    (vgg_4, 1_125_642),
    (vgg_6, 1_814_538),
    (vgg_9, 6_436_106),
    (vgg_11, 9_385_994),
    (vgg11_bn, 9_231_114),
    (vgg16, 134_301_514),
]


@pytest.mark.parametrize(("builder", "count"), PUBLISHED)
def test_has_the_published_number_of_parameters(builder, count, parameters):
    assert parameters(builder, (3, 32, 32), 10) == count


def test_vgg11_batch_norm_makes_dgps_mebibytes(parameters):
    assert round(2 * 4 * parameters(vgg11_bn, (3, 32, 32), 10) / 2**20, 3) == 70.428


def test_vgg16_is_torchvisions_without_dropout(parameters):
    from torchvision.models import vgg16 as reference

    assert parameters(vgg16, (3, 32, 32), 10) == parameters(lambda s, c: reference(num_classes=c), (3, 32, 32), 10)


def test_logits_have_the_classes():
    assert vgg_9((3, 32, 32), 7)(torch.zeros(2, 3, 32, 32)).shape == (2, 7)


def test_an_image_too_small_is_a_readable_error():
    with pytest.raises(ConfigError, match="8x8 are too small"):
        vgg_11((1, 8, 8), 10)
