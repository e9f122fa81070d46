"""Channels as they travel: the mask that is made of them is the one of the groups themselves; others are refused."""

import json

import pytest
import torch
from torch import nn

from prunella.core.errors import WireError
from prunella.flower.channels import Told, parsed, read, told
from prunella.pruning.channels import channel_groups
from prunella.pruning.filters import keep_channels
from prunella.pruning.scores import magnitude
from prunella.tasks.task import Task, initial, prunable

TASK = Task("resnet10", (3, 16, 16), 10)


def test_what_was_told_makes_the_same_trees() -> None:
    module, (params, _) = TASK.build(), initial(TASK, 0)
    groups, names = channel_groups(module, TASK.shape), prunable(module)
    sent = parsed(json.loads(json.dumps(told(groups))))
    assert sent == told(groups)
    ours, theirs = (keep_channels(magnitude(params), g, names, 0.6, "global") for g in (groups, read(sent, params)))
    assert all(torch.equal(ours[n], theirs[n]) for n in ours) and not all(bool(m.all()) for m in ours.values())


@pytest.mark.parametrize("given", [3, [3], [[0, [], [], []]], [[True, [], [], []]], [[2, ["a"], []]], [[2, 1, 2, 3]]])
def test_nonsense_cannot_be_read(given: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        parsed(given)


@pytest.mark.parametrize(
    "given",
    [((4, ("0",), (), ("2",)),), ((3, ("1",), (), ("2",)),), ((3, ("0",), ("2",), ()),), ((3, ("0",), (), ("x",)),),
     ((3, ("0",), (), ("2", "0")),)],
)  # fmt: skip
def test_channels_of_another_model_are_refused(given: Told) -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    with pytest.raises(WireError, match="does not have"):
        read(given, dict(net.named_parameters()))
