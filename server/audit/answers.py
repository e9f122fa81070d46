"""What an audited client answers, checked: its scores and, if it consented to them, its pictures.

The answer comes from a machine that the server does not control, so every name, number and shape is checked, and
anything else raises ``AttackError``.
"""

from typing import Any

import torch
from flwr.app import ArrayRecord, MetricRecord
from torch import Tensor

from prunella.core.errors import AttackError
from prunella.core.untrusted import figure
from prunella.wire.records import from_dense, unflatten

# The scores of ``attacks.score.leakage`` and the ranges they have; rounding may pass them by a little.
SCORES = {
    "psnr": (-1.0, 101.0), "nmi": (-0.01, 1.01), "ami": (-10.0, 1.01), "ssim": (-1.01, 1.01), "mse": (0.0, 1.01),
    "ncc": (0.0, 1.01),
}  # fmt: skip
SHARES = {"iip": (0.0, 1.0), "iip_random": (0.0, 1.0), "label_accuracy": (0.0, 1.0), "images": (0.0, 1e6)}
STATS = ("mean", "worst", "random", "other")
# Of a client that has a gallery, all of them:
RECOGNITION = {"hits": (0.0, 1e6), "images": (1.0, 1e6), "gallery": (1.0, 1e6), "chance": (0.0, 1.0), "low": (0.0, 1.0)}
BESIDE_GALLERY = {f"{score}.blind": limits for score, limits in SCORES.items()} | {
    f"recognition.{name}": limits for name, limits in RECOGNITION.items()
}
UNTOLD = {"label_accuracy", "label_chance", "iip_random", "iip_other"}  # not every attack, gallery or release has them
OTHERS = {f"{score}.other" for score in SCORES}  # without a gallery, of one image or of twins, none
MAX_PICTURES = 16


def read_scores(record: MetricRecord) -> dict[str, Any]:
    """A client's scores as ``Leakage.to_dict`` returns them. Raises ``AttackError`` on other names or odd numbers."""
    bounds = {f"{score}.{stat}": limits for score, limits in SCORES.items() for stat in STATS} | SHARES
    if BESIDE_GALLERY.keys() & record.keys():
        bounds |= BESIDE_GALLERY | {"label_chance": (0.0, 1.0), "iip_other": (0.0, 1.0)}
    optional = UNTOLD if (OTHERS | BESIDE_GALLERY.keys()) & record.keys() else UNTOLD | OTHERS
    if not bounds.keys() - optional <= record.keys() <= bounds.keys():
        raise AttackError("scores are missing or unexpected")
    checked = {name: figure(value, *bounds[name]) for name, value in record.items()}
    numbers = {name: value for name, value in checked.items() if value is not None}
    if len(numbers) < len(checked):
        raise AttackError("a score is not a number within its bounds")
    return {"label_accuracy": None, "label_chance": None, "recognition": None, **unflatten(numbers)}


def read_pictures(record: ArrayRecord | None, shape: tuple[int, int, int]) -> tuple[Tensor, Tensor] | None:
    """Originals and reconstructions [N, C, H, W] of a consenting client, or ``AttackError``."""
    if record is None:
        return None
    try:
        tree = from_dense(record)
        pair = tree["original"], tree["reconstruction"]
    except Exception as error:  # noqa: BLE001 - bytes of a stranger: whatever reading them raises, they are no pictures
        raise AttackError("the pictures cannot be read") from error
    for x in pair:
        if x.dtype != torch.float32 or tuple(x.shape[1:]) != shape or not bool(torch.isfinite(x).all()):
            raise AttackError("the pictures are not images of this task")
    if not len(pair[0]) == len(pair[1]) <= MAX_PICTURES:
        raise AttackError("the pictures are not pairs, or too many")
    return pair[0].clamp(0, 1), pair[1].clamp(0, 1)
