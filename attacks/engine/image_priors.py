"""What is known of images before any update arrives: neighbouring pixels are similar, and pixels lie in [0, 1].

``total_variation`` is the anisotropic one of Geiping et al. 2020 (Eq. 4), the mean absolute difference of neighbours
over images [B, C, H, W] of any channel count, with its (sub)gradient in closed form.

>>> value, gradient = total_variation(torch.tensor([[[[0.0, 1.0]]]]))
>>> float(value), gradient.flatten().tolist()
(1.0, [-1.0, 1.0])
"""

import torch
from torch import Tensor


def total_variation(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean |horizontal difference| + mean |vertical difference|, and its gradient; 0 along a side of one pixel."""
    value, gradient = x.new_zeros(()), torch.zeros_like(x)
    for dim in (-1, -2):
        difference = x.diff(dim=dim)
        if not difference.numel():
            continue
        value = value + difference.abs().mean()
        slope = difference.sign() / difference.numel()
        gradient.narrow(dim, 1, x.shape[dim] - 1).add_(slope)
        gradient.narrow(dim, 0, x.shape[dim] - 1).sub_(slope)
    return value, gradient


def total_variation_each(x: Tensor) -> tuple[Tensor, Tensor]:
    """``total_variation`` of every image by itself, [B], and its gradient."""
    parts = [x.diff(dim=dim).abs().flatten(1) for dim in (-1, -2) if x.shape[dim] > 1]
    value = torch.stack([part.mean(dim=1) for part in parts]).sum(0) if parts else x.new_zeros(len(x))
    return value, total_variation(x)[1] * len(x)


def into_box(x: Tensor) -> Tensor:
    """The nearest image with all pixels in [0, 1]."""
    return x.clamp(0.0, 1.0)
