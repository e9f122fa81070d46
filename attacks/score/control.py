"""What a positive control attacks, the undefended update of public images, and when it succeeded.

A low leakage figure means something only where the same attack, on the same model, rebuilds what nobody protects.
"""

from collections.abc import Mapping
from typing import Any

from prunella.attacks.score.level import LEGIBLE, level
from prunella.core.trees import Tree, scale
from prunella.core.types import PrivateBatch, ServerView
from prunella.tasks.task import Task
from prunella.tasks.training import loss_and_gradient

# dB: what papers and our stored results count as a rebuilt image, a mean pixel error of a tenth of the range. Stricter
# than what is legible, since an attack that works gets far above it.
PSNR_FLOOR = LEGIBLE["psnr"] + 2
_LEARNING_RATE = 0.1


def rebuilt_control(scores: Mapping[str, Any]) -> bool:
    """Whether a control with these ``scores`` (``Leakage.to_dict``) was rebuilt, its labels among it."""
    return scores["label_accuracy"] == 1.0 and level({"scores": scores}) == "rebuilt"


def undefended_view(task: Task, params: Tree, buffers: Tree, batch: PrivateBatch) -> ServerView:
    """What a server sees of one full-batch SGD step on ``batch`` when nothing is pruned, withheld or noised."""
    _, gradient, _ = loss_and_gradient(task.build().to(batch.x.device), params, buffers, batch.x, batch.y)
    update = scale(gradient, -_LEARNING_RATE)
    size = len(batch.y)
    return ServerView(
        params, update, buffers=buffers, num_examples=size, steps=1, batch_size=size, learning_rate=_LEARNING_RATE
    )
