"""What a positive control attacks: an undefended update, and how well it must be rebuilt.

A low leakage figure means something only where the same attack, on the same model, rebuilds what nobody protects. What
a client makes of many images in several steps is harder to rebuild than one image's gradient, so a control must be of
the same kind: ``matched_view``. ``undefended_view`` is one step of full-batch SGD.
"""

from collections.abc import Sequence
from dataclasses import replace

from prunella.attacks.score.leakage import Leakage
from prunella.attacks.score.level import level
from prunella.core.trees import Tree, apply_mask, full_mask, scale, subtract
from prunella.core.types import PrivateBatch, ServerView
from prunella.tasks.task import Task
from prunella.tasks.training import Sgd, loss_and_gradient, sgd_step

PSNR_FLOOR = 20.0  # dB: mean pixel error of a tenth of the range, at which a picture is plainly recognisable
_LEARNING_RATE = 0.1


def undefended_view(task: Task, params: Tree, buffers: Tree, batch: PrivateBatch) -> ServerView:
    """What a server sees of one full-batch SGD step on ``batch`` when nothing is pruned, withheld or noised."""
    _, gradient, _ = loss_and_gradient(task.build().to(batch.x.device), params, buffers, batch.x, batch.y)
    update = scale(gradient, -_LEARNING_RATE)
    size = len(batch.y)
    return ServerView(
        params, update, buffers=buffers, num_examples=size, steps=1, batch_size=size, learning_rate=_LEARNING_RATE
    )


def matched_view(task: Task, view: ServerView, batches: Sequence[PrivateBatch]) -> ServerView:
    """``view`` with what a client without a defense would have sent after one step of SGD on each of ``batches``."""
    mask, module = view.mask or full_mask(view.params), task.build().to(batches[0].x.device)
    sgd = Sgd(view.learning_rate or _LEARNING_RATE, view.momentum, view.weight_decay)
    params, buffers = apply_mask(view.params, mask), view.buffers
    velocity: Tree = {}
    for batch in batches:
        _, gradient, buffers = loss_and_gradient(module, params, buffers, batch.x, batch.y)
        params, velocity = sgd_step(params, gradient, velocity, sgd, mask)
    update = apply_mask(subtract(params, view.params), mask)
    received = buffers if view.received_buffers else {}
    return replace(view, update=update, shared=mask, received_buffers=received, importance=None, defenses=("none",))


def is_rebuilt(leakage: Leakage) -> bool:
    """Whether the worst image was rebuilt, by the rule that judges clients (``attacks.score.level``)."""
    return level({"scores": leakage.to_dict()}) == "rebuilt"
