import pytest
import torch

from prunella.tasks.models.conv import conv_1, conv_2, conv_4, conv_6

PUBLISHED = [(conv_1, 3_815_566), (conv_2, 6_603_710), (conv_4, 13_657_406), (conv_6, 25_324_350)]


@pytest.mark.parametrize(("builder", "count"), PUBLISHED)
def test_has_the_published_number_of_parameters(builder, count, parameters):
    assert parameters(builder, (1, 28, 28), 62) == count


def test_conv_1_sees_fifteen_by_fifteen_features():
    model = conv_1((1, 28, 28), 62)
    assert model[0](torch.zeros(2, 1, 28, 28)).shape == (2, 8, 15, 15)
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 62)
