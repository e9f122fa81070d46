"""The places of living channels: a channel is dead only without any weight, and what is cut out comes back."""

import torch
from torch import nn
from torch.func import functional_call

from prunella.core.randomness import stream
from prunella.core.trees import Tree, apply_mask, full_mask, put, take
from prunella.pruning.channels import channel_groups
from prunella.pruning.compact import living, may_have_dead, places
from prunella.pruning.filters import keep_channels
from prunella.pruning.scores import magnitude
from prunella.tasks.exported import fitted
from prunella.tasks.task import Task, initial, prunable

NET = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=4), nn.Flatten(), nn.Linear(16, 3))
GROUPS = channel_groups(NET, (2, 6, 6))


def tensors() -> Tree:
    return {n: torch.rand(p.shape, generator=stream(0, purpose=n)) for n, p in NET.named_parameters()}


def test_a_channel_lives_while_one_weight_of_any_of_its_layers_does() -> None:
    for name, at in (("0.weight", (1, 0, 2, 2)), ("2.weight", (1, 0, 0, 0)), ("4.weight", (2, 5))):
        mask = full_mask(tensors())
        mask["0.weight"][[1, 3]] = mask["2.weight"][[1, 3]] = False
        mask["4.weight"].view(3, 4, 4)[:, [1, 3]] = False
        assert may_have_dead(mask)
        assert [units.tolist() for units in living(GROUPS, mask)] == [[True, False, True, False]]
        mask[name][at] = True  # of channel 1
        assert [units.tolist() for units in living(GROUPS, mask)] == [[True, True, True, False]], name


def test_a_group_without_a_weight_keeps_a_channel() -> None:
    mask = {name: torch.zeros_like(tensor, dtype=torch.bool) for name, tensor in tensors().items()}
    assert [units.tolist() for units in living(GROUPS, mask)] == [[True, False, False, False]]
    assert not may_have_dead(full_mask(tensors()))


def test_what_is_cut_out_computes_what_the_masked_network_does_and_comes_back() -> None:
    task = Task("resnet10", (3, 16, 16), 10)
    module, (params, buffers) = task.build().eval(), initial(task, 0)
    groups, names = channel_groups(module, task.shape), prunable(module)
    mask = keep_channels(magnitude(params), groups, names, 0.6, "global")
    whole = apply_mask(params, mask) | buffers
    at = places(groups, living(groups, mask), whole)
    small = take(whole, at)
    x = torch.rand(2, *task.shape, generator=stream(0, purpose="x"))
    with torch.no_grad():
        expected = functional_call(module, whole, (x,))
        assert torch.allclose(fitted(task.build(), small).eval()(x), expected, atol=1e-5)
    assert sum(small[n].numel() for n in names) == sum(int(mask[n].sum()) for n in names)
    back = put({name: torch.zeros_like(tensor) for name, tensor in whole.items()}, small, at)
    assert all(torch.equal(back[name], whole[name]) for name in names)
    assert whole["0.1.weight"].all() and int(back["0.1.weight"].count_nonzero()) == len(small["0.1.weight"]) < 64
