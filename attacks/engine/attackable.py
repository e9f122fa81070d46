"""Whether a task is one that an attack of this project could rebuild anything of: images in, a logit a class out, of
two classes or more.

Nothing is known of how private the other models' updates are, and saying that nothing was rebuilt would sound as if it
were. Errors: ``AttackError`` that says so.
"""

import torch
from torch import Tensor, nn

from prunella.core.errors import AttackError
from prunella.core.types import ServerView
from prunella.tasks.task import Task


def require_images(view: ServerView, task: Task) -> None:
    """Raise ``AttackError`` where the task's model takes no images of its shape, or has one class."""
    if task.classes < 2:
        raise AttackError(
            f"{task.model} answers with one logit, and the cross-entropy of one class, which the attacks here match, "
            "is always 0: none was tried. This says nothing of what the update tells; record the app with two logits "
            "and cross_entropy"
        )
    module = task.build()
    try:
        with torch.no_grad():
            answer = module.eval()(torch.zeros(2, *task.shape))
    except Exception:  # noqa: BLE001 - a model of anybody's: whatever it raises, images are not what it takes
        answer = None
    if not isinstance(answer, Tensor) or answer.shape != (2, task.classes):
        raise AttackError(
            f"{task.model} does not turn images of {task.shape} into {task.classes} logits, and the attacks here "
            f"rebuild images: none was tried. This says nothing of what the update tells{_tokens(view, module)}"
        )


def _tokens(view: ServerView, module: nn.Module) -> str:
    """What anybody reads off the update of a model of tokens."""
    tables = [f"{n}.weight" for n, layer in module.named_modules() if isinstance(layer, nn.Embedding)]
    found = [name for name in tables if name in view.update]
    if not found:
        return ""
    name = max(found, key=lambda each: len(view.update[each]))
    moved = int((view.update[name] != 0).flatten(1).any(dim=1).sum())
    return (
        f": of {name} {moved} of {len(view.update[name])} rows moved, and where neither decay nor a defense moves or "
        "keeps a row, those that moved are the tokens that were trained on"
    )
