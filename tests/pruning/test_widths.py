import pytest
import torch
from torch.func import functional_call

from prunella.core.errors import PrunellaError
from prunella.core.trees import apply_mask
from prunella.pruning.widths import sub_mask
from prunella.tasks.models import MODELS
from prunella.tasks.task import Task, initial


def sliced(params, mask):
    """The tensors of the small network: what the mask keeps, packed."""
    small = {}
    for name, tensor in params.items():
        kept = tensor
        for dim in range(tensor.ndim):
            others = [d for d in range(tensor.ndim) if d != dim]
            alive = mask[name].any(dim=others[0]) if len(others) == 1 else mask[name].clone()
            for other in sorted(others, reverse=True) if len(others) > 1 else []:
                alive = alive.any(dim=other)
            kept = kept.index_select(dim, torch.nonzero(alive).reshape(-1))
        small[name] = kept
    return small


@pytest.mark.parametrize("model", ["cnn", "conv-2", "vgg-4", "lenet-zhu", "cnn6"])
@pytest.mark.parametrize("width", [0.3, 0.5])
def test_the_masked_network_computes_what_the_small_one_does(model: str, width: float) -> None:
    task = Task(model, (1, 28, 28), 10)
    module, (params, _) = task.build().eval(), initial(task, 0)
    mask = sub_mask(module, task.shape, width)
    x, small = torch.rand(3, 1, 28, 28), sliced(params, mask)
    assert torch.allclose(functional_call(module, apply_mask(params, mask), (x,)),
                          functional_call(module, small, (x,)), atol=1e-5)  # fmt: skip
    whole = sum(t.numel() for t in params.values())
    assert sum(t.numel() for t in small.values()) == sum(int(m.sum()) for m in mask.values()) < 0.75 * whole


@pytest.mark.parametrize("model", sorted(set(MODELS) - {"precode-cnn"})[:12])
def test_a_smaller_width_lies_inside_a_larger_one_and_width_1_is_all(model: str) -> None:
    shape = (3, 32, 32)
    try:
        masks = [sub_mask(MODELS[model](shape, 10), shape, width) for width in (0.25, 0.5, 1.0)]
    except PrunellaError as error:
        assert "structure cannot be followed" in str(error)  # noqa: PT017
        return
    small, half, whole = masks
    assert all(bool(m.all()) for m in whole.values())
    for name in whole:
        assert not bool((small[name] & ~half[name]).any())
    last = [n for n in whole if n.endswith("weight")][-1]
    assert bool(half[last].any(1).all()), "every class keeps its output"


def test_a_width_is_no_more_than_it_says() -> None:
    """0.55 times 100 is 55.00000000000001 in binary."""
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 100), torch.nn.Linear(100, 2))
    assert int(sub_mask(net, (1, 2, 2), 0.55)["1.bias"].sum()) == 55
    assert int(sub_mask(net, (1, 2, 2), 0.551)["1.bias"].sum()) == 56


def test_channels_that_are_added_up_are_the_same_ones() -> None:
    task = Task("resnet10", (1, 28, 28), 10)
    mask = sub_mask(task.build(), task.shape, 0.5)
    kept = [float(m.float().mean()) for m in mask.values() if m.ndim == 4]
    assert kept[0] == 0.5 and set(kept[1:]) == {0.25}  # of an image's channels, and of half the channels
