"""The positive control of an audit: an undefended update of one public image, attacked and scored.

A low leakage figure means something only where the same attack, on the same model, rebuilds what nobody protects. The
canary is public or made up, never a client's; the view is dense, batch 1, one step of plain SGD.

>>> from prunella.attacks.sgi import Sgi
>>> from prunella.core.randomness import stream
>>> from prunella.tasks.task import initial
>>> task = Task("cnn", (1, 8, 8), 10)
>>> canary = PrivateBatch(torch.rand((1, 1, 8, 8), generator=stream(0, purpose="canary")), torch.tensor([3]))
>>> positive_control(task, *initial(task, seed=0), canary, Sgi(), stream(0, purpose="control")).ok
True
"""

from dataclasses import dataclass

import torch
from torch import Generator

from prunella.attacks.engine.inversion import Inversion, reconstruct
from prunella.attacks.score.leakage import Leakage, score
from prunella.core.errors import AttackError
from prunella.core.trees import Tree, scale
from prunella.core.types import PrivateBatch, Reconstruction, ServerView
from prunella.tasks.task import Task
from prunella.tasks.training import loss_and_gradient

PSNR_FLOOR = 20.0  # dB: mean pixel error of a tenth of the range, at which a picture is plainly recognisable
_LEARNING_RATE = 0.1


@dataclass(frozen=True)
class Control:
    """``ok`` when the label is right and the PSNR at least ``PSNR_FLOOR``."""

    ok: bool
    label_right: bool
    leakage: Leakage
    reconstruction: Reconstruction


def undefended_view(task: Task, params: Tree, buffers: Tree, batch: PrivateBatch) -> ServerView:
    """What a server sees of one full-batch SGD step on ``batch`` when nothing is pruned, withheld or noised."""
    _, gradient, _ = loss_and_gradient(task.build().to(batch.x.device), params, buffers, batch.x, batch.y)
    update = scale(gradient, -_LEARNING_RATE)
    size = len(batch.y)
    return ServerView(
        params, update, buffers=buffers, num_examples=size, steps=1, batch_size=size, learning_rate=_LEARNING_RATE
    )


def positive_control(
    task: Task, params: Tree, buffers: Tree, canary: PrivateBatch, attack: Inversion, generator: Generator
) -> Control:
    """Attack one undefended ``canary`` image."""
    if len(canary.y) != 1:
        raise AttackError(f"the positive control takes one image, not {len(canary.y)}")
    view = undefended_view(task, params, buffers, canary)
    reconstruction = reconstruct(view, task, attack, generator)
    leakage = score(reconstruction, canary)
    right = reconstruction.y is not None and bool(torch.equal(reconstruction.y.cpu(), canary.y.cpu()))
    return Control(right and leakage.psnr.mean >= PSNR_FLOOR, right, leakage, reconstruction)
