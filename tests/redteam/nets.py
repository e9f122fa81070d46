"""A model whose gradients are easy to read, as a malicious server would choose it: one linear layer."""

from torch import nn


def linear(shape: tuple[int, int, int], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))


class Scaled(nn.Sequential):
    """``linear`` with the same tensors, and other code."""

    def forward(self, x):  # type: ignore[no-untyped-def]
        return super().forward(2 * x)


def scaled(shape: tuple[int, int, int], classes: int) -> nn.Module:
    return Scaled(*linear(shape, classes))
