"""SGI over several rounds of one client, with its error feedback unrolled: the attack adapted to DGP and Top-k.

Threat model: an honest-but-curious server that keeps what it received. A client with error feedback (DGP Alg. 1:
P = update + e, g = what is sent of P, e <- P - g) owes what it did not send, so a coordinate that arrives in round t
carries the sum of all its updates since it last arrived. The server knows the weights and the learning rate of every
round and what arrived when, and can walk the same sums for its guess: acc <- acc + rate_t * gradient(w_t, x), compared
with what was sent where it was sent, acc <- 0 there. What one round withholds, a later one brings. The client is taken
to train on the same images in every round (few images, or one: its worst case) and to have owed nothing before the
first view.

Of one view alone this is SGI. Not from a paper: ours. Errors: ``AttackError`` for views of different models or
numbers of images.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from prunella.attacks.engine.adapted import AdaptedTarget, solve
from prunella.attacks.engine.inversion import Inversion
from prunella.attacks.engine.matching import Target, dummy_gradient, recovered_support, target_of
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


def walk_back(slopes: Sequence[Tensor], arrived: Sequence[Tensor]) -> list[Tensor]:
    """The adjoint of ``walk``: from slopes on what was sent to slopes on the gradients, round by round.

    >>> s, m = [torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])], [torch.tensor([1.0, 0.0]), torch.ones(2)]
    >>> [slope.tolist() for slope in walk_back(s, m)]
    [[1.0, 20.0], [10.0, 20.0]]
    """
    later, found = torch.zeros_like(slopes[0]), list[Tensor]()
    for slope, mask in zip(reversed(slopes), reversed(arrived), strict=True):
        later = slope * mask + later * (1 - mask)
        found.append(later)
    return found[::-1]


@dataclass(frozen=True)
class Feedback:
    """What a client with error feedback sends of its gradients, in the units of ``target_gradient``, and its adjoint.

    What it owes is kept in units of the update, and the learning rate may change between rounds: ``rates`` are those
    of the rounds by any one unit. ``decays`` [P] is the weight decay that ``target_gradient`` left out of each round,
    which was owed as well.
    """

    arrived: Sequence[Tensor]
    rates: Sequence[float]
    decays: Sequence[Tensor | float]

    def sent(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        rounds = list(zip(gradients, self.arrived, self.rates, self.decays, strict=True))
        sums = walk([rate * (gradient + decay) for gradient, _, rate, decay in rounds], self.arrived)
        return [s / rate - decay * mask for s, (_, mask, rate, decay) in zip(sums, rounds, strict=True)]

    def back(self, slopes: Sequence[Tensor]) -> list[Tensor]:
        later = walk_back([s / rate for s, rate in zip(slopes, self.rates, strict=True)], self.arrived)
        return [rate * each for rate, each in zip(self.rates, later, strict=True)]


def feedback_of(views: Sequence[ServerView], targets: Sequence[Target]) -> Feedback:
    """The rule of a client that owed nothing before the first view; ``targets`` are the views' problems."""
    arrived, decays, dtype = list[Tensor](), list[Tensor | float](), targets[0].flat.dtype
    for view in views:
        support = recovered_support(view)
        arrived.append(flatten(support[name] for name in view.update).to(dtype))
        left_out = view.weight_decay if (view.steps or 1) == 1 else 0.0
        decays.append(left_out and left_out * flatten(view.params[name] for name in view.update).to(dtype))
    rates = [target.plan.sgd.learning_rate * len(target.plan.batches) for target in targets]
    return Feedback(arrived, [rate / rates[-1] for rate in rates], decays)  # 1 where they are equal: no rounding


def merged_view(views: Sequence[ServerView]) -> ServerView:
    """The last view with everything that arrived in any round: what the labels are read from. Its learning rate is
    the sum of theirs, so that its gradient is the mean of the rounds'."""
    total = views[0].update
    for view in views[1:]:
        total = add(total, view.update)
    rates = [view.learning_rate for view in views if view.learning_rate is not None]
    rate = sum(rates) if len(rates) == len(views) else None
    return dataclasses.replace(views[-1], update=total, shared=None, learning_rate=rate)


def problem(views: Sequence[ServerView], task: Task, attack: Unrolling) -> AdaptedTarget:
    """All rounds at once. Both sides are zero where nothing arrived, so that everything is compared."""
    rounds = [target_of(each, task.build(), False, attack.max_images) for each in views]
    feedback = feedback_of(views, rounds)

    def dummy(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat(feedback.sent([flatten(dummy_gradient(each, x, y)) for each in rounds]))

    summed = target_of(merged_view(views), task.build(), False, attack.max_images)
    return AdaptedTarget(dummy, torch.cat([each.flat for each in rounds]), None, summed)


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
    if any(each.batch_size != view.batch_size or each.images_used != view.images_used for each in views):
        raise AttackError("the views are of different numbers of images")
    return solve(problem(views, task, attack), view, task, attack, generator, resume)
