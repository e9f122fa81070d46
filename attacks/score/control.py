"""What a positive control attacks: the undefended update of public images.

A low leakage figure means something only where the same attack, on the same model, rebuilds what nobody protects.
"""

from prunella.attacks.score.level import LEGIBLE
from prunella.core.trees import Tree, scale
from prunella.core.types import PrivateBatch, ServerView
from prunella.tasks.task import Task
from prunella.tasks.training import loss_and_gradient

# dB: what papers and our stored results count as a rebuilt image, a mean pixel error of a tenth of the range. Stricter
# than what is legible, since an attack that works gets far above it.
PSNR_FLOOR = LEGIBLE["psnr"] + 2
_LEARNING_RATE = 0.1


def undefended_view(task: Task, params: Tree, buffers: Tree, batch: PrivateBatch) -> ServerView:
    """What a server sees of one full-batch SGD step on ``batch`` when nothing is pruned, withheld or noised."""
    _, gradient, _ = loss_and_gradient(task.build().to(batch.x.device), params, buffers, batch.x, batch.y)
    update = scale(gradient, -_LEARNING_RATE)
    size = len(batch.y)
    return ServerView(
        params, update, buffers=buffers, num_examples=size, steps=1, batch_size=size, learning_rate=_LEARNING_RATE
    )
