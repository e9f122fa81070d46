"""A small model and one step of it, for the tests of defenses that look at single examples."""

import torch
from torch import nn

from prunella.core.trees import Mask, Tree, full_mask
from prunella.privacy.defense import Step
from prunella.tasks.per_example import per_example_gradients
from prunella.tasks.sensitivity import representation_sensitivity


class Net(nn.Module):
    """Convolution, tanh, two linear layers; 1 x 4 x 4 images, 3 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.one, self.two = nn.Conv2d(1, 2, 3), nn.Linear(8, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.tanh(self.one(torch.tanh(self.conv(x)).flatten(1))))


def make(batch: int = 6, seed: int = 0, scale: float = 1.0) -> tuple[Net, Tree, torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    net = Net()
    params = {name: p.detach().clone() for name, p in net.named_parameters()}
    return net, params, scale * torch.rand(batch, 1, 4, 4), torch.randint(3, (batch,))


def step_of(
    net: Net, params: Tree, x: torch.Tensor, y: torch.Tensor, mask: Mask | None = None, number: int = 0
) -> Step:
    return Step(
        params=params,
        mask=full_mask(params) if mask is None else mask,
        number=number,
        batch=max(1, len(y)),
        per_example=lambda: per_example_gradients(net, params, {}, x, y),
        representation=lambda: representation_sensitivity(net, params, {}, x),
    )
