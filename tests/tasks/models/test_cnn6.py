import torch
from torch import nn

from prunella.tasks.models.cnn6 import cnn6


def test_has_the_published_number_of_parameters(parameters):
    assert parameters(cnn6, (3, 32, 32), 10) == 154_256
    assert round(2 * 4 * 154_256 / 2**20, 3) == 1.177


def test_r_gap_can_peel_it_layer_by_layer():
    model = cnn6((3, 32, 32), 10)
    assert not [name for name, _ in model.named_parameters() if name.endswith("bias")]
    kinds = {type(m) for m in model.modules() if not isinstance(m, nn.Sequential)}
    assert kinds == {nn.Conv2d, nn.LeakyReLU, nn.Flatten, nn.Linear}
    assert model[0](torch.zeros(1, 3, 32, 32)).shape == (1, 128, 5, 5)
