"""SGI in expectation over PriPrune's random mask: the attack adapted to weights that were drawn, not sent.

Threat model: an honest-but-curious server that knows the model, the masked update and that the client trained under
PriPrune: before training, each coordinate the client had withheld earlier was, by a coin, either the server's weight or
the client's own stored one (PRI Alg. 3, Eq. 18). So the gradient was not taken at the weights the server sent, and the
server can only match it in expectation (EOT, Athalye et al. 2018): the dummy gradient is the mean over ``draws`` masks,
in which a coordinate that did not arrive is, with ``probability``, off by as much as one round typically moves a weight
(``spread`` times the deviation of the update where it arrived). Coordinates that arrived are known.

Of a full view this is SGI. Not from a paper: ours.
"""

import dataclasses
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from prunella.attacks.engine.adapted import AdaptedTarget, solve
from prunella.attacks.engine.inversion import Inversion
from prunella.attacks.engine.matching import dummy_gradient, recovered_support, target_of
from prunella.attacks.engine.objectives import flatten
from prunella.attacks.engine.resume import ResumeStore
from prunella.core.config import Count, Positive, Share
from prunella.core.trees import Tree, map_trees
from prunella.core.types import Reconstruction, ServerView
from prunella.tasks.task import Task


@dataclass(frozen=True)
class Expectation(Inversion):
    """SGI in expectation over the random mask of PriPrune."""

    draws: Count = 4  #: masks that the guess's gradient is averaged over
    probability: Share = 0.5  #: that a coordinate that did not arrive was the client's own stored weight
    spread: Positive = 1.0  #: how far a stored weight is off, in deviations of the update where it arrived


def drawn_params(view: ServerView, attack: Expectation, generator: Generator) -> Tree:
    """Weights the client may have trained from: those sent, with some of the withheld coordinates moved."""
    support = recovered_support(view)
    arrived = torch.cat([view.update[name][support[name]] for name in view.update])
    scale = attack.spread * float(arrived.square().mean().sqrt()) if len(arrived) else 0.0

    def move(sent: Tensor, mask: Tensor) -> Tensor:
        coin = torch.rand(sent.shape, generator=generator) < attack.probability
        noise = torch.randn(sent.shape, generator=generator) * scale
        return sent + torch.where(coin.to(mask.device) & ~mask, noise.to(sent.device), 0.0)

    return map_trees(move, view.params, support)


def reconstruct(
    view: ServerView, task: Task, attack: Expectation, generator: Generator, resume: ResumeStore | None = None
) -> Reconstruction:
    """The images [N, C, H, W] and labels [N] that explain the view best in expectation over the mask."""
    target = target_of(view, task.build(), attack.mask_aware, attack.max_images)
    trees = [target.params]
    if not all(bool(mask.all()) for mask in recovered_support(view).values()):
        trees = [drawn_params(view, attack, generator) for _ in range(attack.draws)]
    drawn = [
        dataclasses.replace(target, params={name: p.detach().requires_grad_() for name, p in tree.items()})
        for tree in trees
    ]

    def dummy(x: Tensor, y: Tensor) -> Tensor:
        return torch.stack([flatten(dummy_gradient(each, x, y)) for each in drawn]).mean(dim=0)

    return solve(AdaptedTarget(dummy, target.flat, target.support, target), view, task, attack, generator, resume)
