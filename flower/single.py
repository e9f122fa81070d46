"""What is asked of a loop's model and loss under an ε, before its first step is charged: of one example alone.

The gradient of a batch is then the mean of its examples' gradients, each of ``loss(model(x), y)`` of a batch of one.
Where there is none the message is refused; where the loss of a batch is something else than the mean of such, the
client's log says so. Random numbers in the shapes of the batch are asked about, so that no answer tells of examples.
"""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from prunella.core.errors import ConfigError
from prunella.core.randomness import stream
from prunella.core.trees import Tree
from prunella.flower.handled import Handled, wide
from prunella.flower.site import Site
from prunella.tasks.per_example import require_gradients

logger = logging.getLogger(__name__)
ROWS = 8  # random examples whose loss is asked about: by chance all of one class once in thousands of times
Loss = Callable[[Any, Tensor], Tensor]
JOINT = (
    "under an ε the gradient of a batch is the mean of its examples', each of the loss of one example alone, and this "
    "loss of a batch is not the mean of theirs: class weights divide out (on one example they do nothing), and "
    "reduction='sum' becomes a mean. Write it as a mean over examples, such as  lambda o, y: (w[y] * cross_entropy(o, "
    "y, reduction='none')).mean()"
)


def require_single_gradients(
    work: Handled, model: nn.Module, params: Tree, x: Tensor, y: Tensor, expected: int, loss: Loss
) -> None:
    """Refuse the message where a single example like those of x [B, ...], y [B] has no gradient; ``params`` by the
    module's names."""
    try:
        require_gradients(model, params, {}, x, y, expected, loss)
    except Exception as error:  # of somebody's model and loss: its text stays here
        logger.warning("no example has a gradient of its own", exc_info=error)
        raise work.refuse(
            ConfigError(
                "under an ε every example's gradient is computed alone, by torch.func.grad, which fails on this model "
                f"or loss, on random examples too ({type(error).__name__}; the rest is in this client's own log): "
                "replace the layer or the loss that it names, or choose a defense without an ε"
            )
        ) from None


def warn_of_joint_loss(site: Site, answer: Any, y: Tensor, loss: Loss) -> None:
    """Say once in a run that the loss of a batch is not the mean of its examples'. Of the model's ``answer`` and y [B]
    only shapes are looked at."""
    try:
        joint = isinstance(answer, Tensor) and is_joint(loss, answer, y)
    except Exception:  # noqa: BLE001 - a loss that takes other numbers than the random ones
        return
    if joint and site.first("joint-loss"):
        logger.warning("%s", JOINT)


def is_joint(loss: Loss, answer: Tensor, y: Tensor) -> bool:
    """Whether ``loss`` of random answers and labels, in the shapes of answer [B, ...] and y [B, ...], is another number
    than the mean of the single examples' losses.

    >>> from torch.nn.functional import mse_loss
    >>> is_joint(mse_loss, torch.ones(5, 2), torch.ones(5, 2))
    False
    >>> is_joint(lambda o, y: mse_loss(o, y, reduction="sum"), torch.ones(5, 2), torch.ones(5, 2))
    True
    """
    drawn = stream(0, purpose="answers that a loss is asked about")
    classes = 2 if y.is_floating_point() or answer.dim() < 2 else max(2, answer.shape[1])
    answers = torch.rand(ROWS, *answer.shape[1:], generator=drawn).to(wide(answer))  # logits, or probabilities
    labels = torch.randint(classes, (ROWS, *y.shape[1:]), generator=drawn).to(y)
    with torch.no_grad(), torch.random.fork_rng([answer.device] if answer.is_cuda else []):
        together = loss(answers, labels)
        each = [loss(answers[i : i + 1], labels[i : i + 1]) for i in range(ROWS)]
    return together.dim() == 0 and not torch.allclose(together, torch.stack(each).mean(), rtol=1e-3, atol=1e-6)
