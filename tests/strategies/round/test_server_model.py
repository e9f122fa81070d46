import torch
from torch import nn

from prunella.strategies.round.server_model import ServerModel


def test_a_tree_is_split_into_parameters_and_buffers() -> None:
    model = ServerModel(nn.Identity(), (1, 1, 1), ("w", "b"), frozenset({"w"}))
    tree = {"mean": torch.zeros(1), "w": torch.ones(2), "b": torch.ones(1)}
    params, buffers = model.split(tree)
    assert list(params) == ["w", "b"] and list(buffers) == ["mean"] and params["w"] is tree["w"]
