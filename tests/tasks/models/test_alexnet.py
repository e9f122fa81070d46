import torch

from prunella.tasks.models.alexnet import PLAN, alexnet
from prunella.tasks.models.layers import convolutions


def test_has_the_published_number_of_parameters(parameters):
    assert parameters(alexnet, (3, 32, 32), 10) == 35_855_178
    assert f"{35_855_178:.2e}" == "3.59e+07"


def test_ends_with_four_by_four_features():
    assert convolutions(3, PLAN)(torch.zeros(1, 3, 32, 32)).shape == (1, 256, 4, 4)
