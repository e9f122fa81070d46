"""Copies of networks whose weights are made of others, which ``copy.deepcopy`` refuses after a pass."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.prune import l1_unstructured

from prunella.core.copies import copied
from prunella.library.module import own_task


@pytest.mark.parametrize(
    "made", [nn.utils.weight_norm, nn.utils.spectral_norm, lambda at: l1_unstructured(at, "weight", 0.5)]
)
def test_a_copy_computes_the_same_and_shares_nothing(made: Any) -> None:
    net, x = nn.Sequential(nn.Flatten(), made(nn.Linear(16, 4)), nn.Linear(4, 2)).eval(), torch.rand(3, 1, 4, 4)
    before = net(x)
    with pytest.raises(RuntimeError, match="deepcopy"):
        copy.deepcopy(net)
    other = copied(net)
    assert torch.equal(other(x), before) and other.state_dict().keys() == net.state_dict().keys()
    with torch.no_grad():
        for tensor in other.parameters():
            tensor.add_(1.0)
    assert torch.equal(net(x), before) and not torch.equal(other(x), before)


def test_a_model_of_ones_own_with_weight_norm_is_audited() -> None:
    net = nn.Sequential(nn.Flatten(), nn.utils.weight_norm(nn.Linear(16, 4)))
    x = torch.rand(1, 1, 4, 4)
    assert torch.equal(own_task(net, (1, 4, 4)).build()(x), net.eval()(x))
