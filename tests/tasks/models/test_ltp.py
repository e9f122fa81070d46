import torch

from prunella.tasks.models.ltp import ltp_1, ltp_2


def test_model_1_flattens_to_320(parameters):
    model = ltp_1((1, 28, 28), 10)
    assert model[:2](torch.zeros(1, 1, 28, 28)).shape == (1, 320)
    assert parameters(ltp_1, (1, 28, 28), 10) == 260 + 5_020 + 320 * 321 + 3_210


def test_model_2_makes_the_published_megabytes(parameters):
    assert parameters(ltp_2, (1, 28, 28), 10) == 843_658
    assert round(2 * 4 * 843_658 * 100 * 0.1 / 2**20, 2) == 64.37  # printed as 64.36
