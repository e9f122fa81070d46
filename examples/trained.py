"""A small network that learned scikit-learn's digits in a second: it stands for a model of your own."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from prunella.tasks.public import digits


def digits_and_network() -> tuple[nn.Module, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The network, a private batch of one image, and public images of the same kind."""
    torch.manual_seed(0)
    every = digits()
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Sigmoid(), nn.Linear(32, 10))
    public = every.x[100:], every.y[100:]
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    for _ in range(80):
        optimizer.zero_grad()
        cross_entropy(network(public[0]), public[1]).backward()
        optimizer.step()
    return network, (every.x[:1], every.y[:1]), public


class Net(nn.Sequential):
    """A network that takes no arguments, as those of Flower's tutorials."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 32), nn.Sigmoid(), nn.Linear(32, 10))


def private_image(client: int) -> tuple[Tensor, Tensor]:
    """One image of that client's, and its label."""
    every = digits()
    return every.x[client : client + 1], every.y[client : client + 1]
