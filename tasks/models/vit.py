"""A small vision transformer (Dosovitskiy et al., ICLR 2021, arXiv 2010.11929): patches of 4 pixels, a class token,
learnt positions, four blocks with the norm first, and nothing that depends on the batch.

For 3x32x32 and 10 classes: 142,026 parameters. Attention is written out, since PyTorch's fused one has no second
derivative on a CPU, which whoever attacks a gradient needs, and keeps its three projections where no layer is.
"""

import torch
from torch import Tensor, nn

from prunella.core.errors import ConfigError
from prunella.tasks.models.layers import Shape

PATCH, WIDTH, HEADS, BLOCKS = 4, 64, 4, 4


class Attention(nn.Module):
    """Of every token [B, N, WIDTH] to all tokens, by ``HEADS`` heads."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, tokens: Tensor) -> Tensor:
        query, key, value = (
            layer(tokens).unflatten(2, (HEADS, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        weights = (query @ key.transpose(2, 3) * query.shape[3] ** -0.5).softmax(dim=3)
        return self.out((weights @ value).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class TransformerBlock(nn.Module):
    """Attention, then two layers on each token alone, each beside an identity and behind a norm of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(WIDTH), Attention())
        layers = nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        self.each = nn.Sequential(nn.LayerNorm(WIDTH), *layers)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.attention(tokens)
        return tokens + self.each(tokens)  # type: ignore[no-any-return]


class VisionTransformer(nn.Module):
    """Logits [B, classes] of images [B, C, H, W] with sides that ``PATCH`` divides; else ``ConfigError``."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        if height % PATCH or width % PATCH:
            raise ConfigError(f"images of {height}x{width} are no whole patches of {PATCH}x{PATCH} for this model")
        self.patches = nn.Conv2d(channels, WIDTH, PATCH, stride=PATCH)
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH) * 0.02)
        self.places = nn.Parameter(torch.randn(1, 1 + height * width // PATCH**2, WIDTH) * 0.02)
        self.blocks = nn.Sequential(*(TransformerBlock() for _ in range(BLOCKS)))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, classes))

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), patches], dim=1) + self.places
        return self.head(self.blocks(tokens)[:, 0])  # type: ignore[no-any-return]


def vit(shape: Shape, classes: int) -> nn.Module:
    return VisionTransformer(shape, classes)
