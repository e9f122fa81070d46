"""SGI over several rounds of one client, with its error feedback unrolled: the attack adapted to DGP and Top-k.

Threat model: an honest-but-curious server that keeps what it received. A client with error feedback (DGP Alg. 1:
P = update + e, g = what is sent of P, e <- P - g) owes what it did not send, so a coordinate that arrives in round t
carries the sum of all its updates since it last arrived. The server knows the weights of every round and what arrived
when, and can walk the same sums for its guess: acc <- acc + gradient(w_t, x), compared with what was sent where it was
sent, acc <- 0 there. What one round withholds, a later one brings. The client is taken to train on the same images in
every round (few images, or one: its worst case) and to have owed nothing before the first view.

Of one view alone this is SGI. Not from a paper: ours. Errors: ``AttackError`` for views of different models or
numbers of images.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from prunella.attacks.engine.adapted import AdaptedTarget, solve
from prunella.attacks.engine.inversion import Inversion
from prunella.attacks.engine.matching import Target, dummy_gradient, recovered_support, target_gradient, target_of
from prunella.attacks.engine.objectives import flatten
from prunella.attacks.engine.resume import ResumeStore
from prunella.core.errors import AttackError
from prunella.core.trees import add
from prunella.core.types import Reconstruction, ServerView
from prunella.tasks.task import Task


@dataclass(frozen=True)
class Unrolling(Inversion):
    """SGI over several rounds of one client, against error feedback."""

    mask_aware: bool = True


@dataclass(frozen=True)
class Round:
    """One view as a problem: ``sent`` [P] is minus the update per learning rate, zero where ``arrived`` [P] is 0."""

    target: Target
    sent: Tensor
    arrived: Tensor


def round_of(view: ServerView, module: nn.Module, attack: Unrolling) -> Round:
    target = target_of(view, module, False, attack.max_images, attack.bf16)
    support = recovered_support(view)
    arrived = flatten(support[name] for name in view.update).to(target.flat.dtype)
    return Round(target, flatten(target_gradient(view).values()) * arrived, arrived)


def walk(gradients: Sequence[Tensor], arrived: Sequence[Tensor]) -> list[Tensor]:
    """What a client with error feedback sends of these gradients, round by round, at the coordinates that arrived.

    >>> g = [torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])]
    >>> [sent.tolist() for sent in walk(g, [torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1.0])])]
    [[1.0, 0.0], [10.0, 22.0]]
    """
    owed, sent = torch.zeros_like(gradients[0]), []
    for gradient, mask in zip(gradients, arrived, strict=True):
        owed = owed + gradient
        sent.append(owed * mask)
        owed = owed * (1 - mask)
    return sent


def merged_view(views: Sequence[ServerView]) -> ServerView:
    """The last view with everything that arrived in any round: what the labels are read from."""
    total = views[0].update
    for view in views[1:]:
        total = add(total, view.update)
    return dataclasses.replace(views[-1], update=total, shared=None)


def reconstruct(
    view: ServerView,
    task: Task,
    attack: Unrolling,
    generator: Generator,
    earlier: Sequence[ServerView] = (),
    resume: ResumeStore | None = None,
) -> Reconstruction:
    """The images [N, C, H, W] and labels [N] that best explain this view and the ``earlier`` ones, oldest first."""
    views = [*earlier, view]
    if any(each.batch_size != view.batch_size or each.num_examples != view.num_examples for each in views):
        raise AttackError("the views are of different numbers of images")
    rounds = [round_of(each, task.build(), attack) for each in views]
    arrived = [each.arrived for each in rounds]

    def dummy(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat(walk([flatten(dummy_gradient(each.target, x, y)) for each in rounds], arrived))

    summed = target_of(merged_view(views), task.build(), False, attack.max_images, attack.bf16)
    # Both sides are zero where nothing arrived, so that everything is compared.
    adapted = AdaptedTarget(dummy, torch.cat([each.sent for each in rounds]), None, summed)
    return solve(adapted, view, task, attack, generator, resume)
