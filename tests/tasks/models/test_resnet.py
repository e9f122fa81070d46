import pytest
import torch

from prunella.tasks.models.resnet import BasicBlock, resnet10, resnet18


@pytest.mark.parametrize(("builder", "count"), [(resnet10, 4_903_242), (resnet18, 11_173_962)])
def test_has_the_published_number_of_parameters(builder, count, parameters):
    assert parameters(builder, (3, 32, 32), 10) == count


def test_resnet18_makes_dgps_mebibytes(parameters):
    assert round(2 * 4 * parameters(resnet18, (3, 32, 32), 10) / 2**20, 3) == 85.251


def test_a_block_with_a_silent_body_is_the_rectified_input():
    block = BasicBlock(4, 4, 1).eval()
    torch.nn.init.zeros_(block.body[2][1].weight)
    x = torch.randn(2, 4, 8, 8)
    assert torch.equal(block(x), x.relu())


def test_a_block_halves_where_it_strides():
    assert BasicBlock(4, 8, 2)(torch.randn(2, 4, 8, 8)).shape == (2, 8, 4, 4)


def test_any_size_of_image_goes():
    assert resnet10((1, 28, 28), 5).eval()(torch.zeros(2, 1, 28, 28)).shape == (2, 5)


def test_three_of_four_stages_halve():
    assert resnet10((3, 32, 32), 10)[:-3](torch.zeros(2, 3, 32, 32)).shape == (2, 512, 4, 4)
