"""LPIPS (Zhang, Isola, Efros, Shechtman, Wang 2018), AlexNet, as DGP scores with it; lower leaks more.

torchmetrics brings the calibration along, but not AlexNet's weights of ImageNet: they are used where torchvision has
put them (its cache, ``$TORCH_HOME/hub/checkpoints``), and never fetched. Without them LPIPS is left out, with the
reason. Grey images count as three equal colours; a side below 32 pixels, of which AlexNet leaves nothing, is enlarged.

Errors: ``AttackError``, which is that reason.
"""

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from prunella.core.errors import AttackError, ConfigError
from prunella.core.extras import require

WEIGHTS = "alexnet-owt-7be5be79.pth"
_SMALLEST = 32


def weights() -> Path:
    """Where AlexNet's weights are looked for."""
    return Path(torch.hub.get_dir()) / "checkpoints" / WEIGHTS


@lru_cache(maxsize=1)
def network() -> nn.Module:
    """The metric with its weights. Raises ``AttackError`` where they are not on disk."""
    if not weights().is_file():
        raise AttackError(f"AlexNet's weights are not in torchvision's cache, as {weights()}")
    try:
        require("vision", "torchvision", "torchmetrics")
    except ConfigError as error:
        raise AttackError(str(error)) from None
    from torchmetrics.image.lpip import LearnedPerceptualImagePatchSimilarity

    return LearnedPerceptualImagePatchSimilarity(net_type="alex", normalize=True).eval()


def lpips(truth: Tensor, guess: Tensor, metric: nn.Module | None = None) -> list[float]:
    """Distances of paired images [N, C, H, W] in [0, 1]. Raises ``AttackError`` where weights are missing."""
    metric = network() if metric is None else metric
    pairs = zip(_fitting(truth), _fitting(guess), strict=True)
    with torch.no_grad():
        return [float(metric(t[None], g[None])) for t, g in pairs]


def _fitting(x: Tensor) -> Tensor:
    x = x.detach().cpu().float().clamp(0, 1).expand(-1, 3, -1, -1)
    if min(x.shape[-2:]) >= _SMALLEST:
        return x
    factor = -(-_SMALLEST // min(x.shape[-2:]))
    return nn.functional.interpolate(x, scale_factor=factor, mode="bilinear").clamp(0, 1)
