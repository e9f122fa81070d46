"""Model inversion (Fredrikson, Jha, Ristenpart 2015, as CHN 6.1 uses it): what does a class look like to this model?

Threat model: an honest-but-curious server, or anyone who holds the weights. Not an image of a client is sought but the
typical image of each class, which is private where a class is a person. From the mean of images that were not trained
on (a flat grey where there is none), Adam at 1e-2 for 600 iterations lowers the cross-entropy of each target label.

The weights are those training ended with, as far as they arrived: params + update. Score against the class centres.

Departures: the box [0, 1], and a total-variation prior that is 0 by default, as printed.
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from prunella.attacks.engine.image_priors import total_variation
from prunella.attacks.engine.matching import check_view
from prunella.core.config import Count, Positive, Weight
from prunella.core.trees import add
from prunella.core.types import Reconstruction, ServerView
from prunella.tasks.task import Task

GREY = 0.5


@dataclass(frozen=True)
class ModelInversion:
    """What a typical image of each class looks like to the model."""

    learning_rate: Positive = 1e-2  #: of the descent on the image
    iterations: Count = 600  #: of the descent
    tv: Weight = 0.0  #: weight of the total-variation prior, which prefers smooth images


def reconstruct(
    view: ServerView, task: Task, attack: ModelInversion, generator: Generator, start: Tensor | None = None
) -> Reconstruction:
    """One image per class [K, C, H, W], labels 0 to K - 1; ``start`` [C, H, W] is a mean of public images. Nothing is
    drawn from ``generator``."""
    module = task.build()
    check_view(view, module)
    state = {**add(view.params, view.update), **(view.received_buffers or view.buffers)}
    device = next(iter(state.values())).device
    module = module.to(device).eval()
    begin = torch.full(task.shape, GREY) if start is None else start
    x = begin.to(device).expand(task.classes, *task.shape).clone().requires_grad_()
    labels = torch.arange(task.classes, device=device)
    optimizer = torch.optim.Adam([x], lr=attack.learning_rate)
    loss = torch.zeros(())
    for _ in range(attack.iterations):
        # The sum over classes: each image is inverted on its own.
        loss = cross_entropy(functional_call(module, state, (x,)), labels, reduction="sum")
        (x.grad,) = torch.autograd.grad(loss, x)
        if attack.tv:
            x.grad.add_(total_variation(x.detach())[1], alpha=attack.tv * task.classes)
        optimizer.step()
        with torch.no_grad():
            x.clamp_(0.0, 1.0)
    return Reconstruction(x.detach(), labels, float(loss.detach()) / task.classes, attack.iterations, compared=False)
