"""What a guess would have sent, and its pullback: from a slope on that to slopes on the images and labels.

``linearised`` returns the dummy gradient of ``attacks.engine.matching`` as one vector and its vector-Jacobian product.
With a ``Network`` both are by hand: forward, the steps of SGD keep their weights and passes; back, the adjoint of one
step

    v' = m * (momentum * v + g(w, x) + decay * w),    w' = m * w - rate * v'

needs one derivative of <g, s> (in x, y and w), where s is the cotangent of g. Without a network autograd differentiates
the whole walk (``attacks.engine.matching.dummy_gradient``). Both are equal up to rounding.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from prunella.attacks.engine.matching import Target, TrainingPlan, dummy_gradient
from prunella.attacks.engine.network import Network, Pass
from prunella.attacks.engine.objectives import flatten, split
from prunella.core.trees import Tree

Slopes = tuple[Tensor, Tensor | None]
Pullback = Callable[[Tensor], Slopes]


def linearised(target: Target, x: Tensor, y: Tensor) -> tuple[Tensor, Pullback]:
    """The dummy gradient at x [N, C, H, W], y [N] or [N, K], and what turns a slope on it into ones on x and y.

    The slope on y is one on probabilities, None where labels are given as numbers.
    """
    x, y = x.detach(), y.detach()
    return _by_autograd(target, x, y) if target.network is None else _by_hand(target, target.network, x, y)


def _by_autograd(target: Target, x: Tensor, y: Tensor) -> tuple[Tensor, Pullback]:
    variables = [x.requires_grad_()] + ([y.requires_grad_()] if y.is_floating_point() else [])
    dummy = dummy_gradient(target, x, y)

    def pullback(slope: Tensor) -> Slopes:
        # Under a loss whose slope is known the gradient of the logits' bias is that slope, whatever x and y are.
        moving = [(d, s) for d, s in zip(dummy, split(slope, target.params).values(), strict=True) if d.requires_grad]
        outputs, seeds = zip(*moving, strict=True)
        slopes = torch.autograd.grad(outputs, variables, seeds, materialize_grads=True)
        return slopes[0], slopes[1] if len(slopes) > 1 else None

    return flatten(dummy).detach(), pullback


def _by_hand(target: Target, network: Network, x: Tensor, y: Tensor) -> tuple[Tensor, Pullback]:
    walk = _Walk(target, network)
    flat = walk.forth(x, y)

    def pullback(slope: Tensor) -> Slopes:
        slopes = walk.back(slope)
        on_x = _gathered(target.plan, x, [s[0] for s in slopes])
        return on_x, _gathered(target.plan, y, [s[1] for s in slopes]) if y.is_floating_point() else None

    return flat, pullback


class _Walk:
    """The local steps of a guess, forth and back, on flat weights: one operation for all layers instead of one each."""

    def __init__(self, target: Target, network: Network) -> None:
        self.plan, self.sgd, self.network = target.plan, target.plan.sgd, network
        self.like = {name: tensor.detach() for name, tensor in target.params.items()}
        self.mask = None
        if target.mask is not None and len(self.plan.batches) > 1:
            self.mask = flatten(target.mask[name] for name in self.like).to(target.flat.dtype)
        self.visits: list[tuple[Tree, Pass]] = []  # the weights before every step, and its gradient

    def kept(self, flat: Tensor) -> Tensor:
        return flat if self.mask is None else flat * self.mask

    def visit(self, tree: Tree, x: Tensor, y: Tensor, rows: tuple[int, ...]) -> Tensor:
        at = self.network.gradient(tree, _pick(x, rows), _pick(y, rows))
        self.visits.append((tree, at))
        return flatten(at.gradient[name] for name in self.like)

    def forth(self, x: Tensor, y: Tensor) -> Tensor:
        """The mean gradient over the local steps: what ``attacks.engine.matching`` compares."""
        batches, sgd = self.plan.batches, self.sgd
        if len(batches) == 1:
            return self.visit(self.like, x, y, batches[0])
        w = start = flatten(self.like.values())
        velocity = None
        for rows in batches:
            step = self.visit(split(w, self.like), x, y, rows)
            if sgd.weight_decay:
                step = step.add(w, alpha=sgd.weight_decay)
            if velocity is not None:
                step = step.add(velocity, alpha=sgd.momentum)
            w = self.kept(w.add(step, alpha=-sgd.learning_rate))
            velocity = self.kept(step) if sgd.momentum else None
        return (start - w) / (sgd.learning_rate * len(batches))

    def back(self, slope: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Slopes on the rows of every step, in order, from one on what ``forth`` returned."""
        sgd, steps = self.sgd, len(self.visits)
        if steps == 1:
            return [self.network.derivative(*self.visits[0], split(slope, self.like), curved=False)[:2]]
        slopes = []
        on_w, on_velocity = slope / (-sgd.learning_rate * steps), None
        for place in range(steps - 1, -1, -1):
            on_w = self.kept(on_w)
            on_step = on_w * -sgd.learning_rate
            if on_velocity is not None:
                on_step = on_step + on_velocity
            direction = split(on_step, self.like)
            on_x, on_y, curvature = self.network.derivative(*self.visits[place], direction, curved=place > 0)
            slopes.append((on_x, on_y))
            if place:
                on_w = on_w + flatten(curvature[name] for name in self.like)
                on_w = on_w.add_(on_step, alpha=sgd.weight_decay) if sgd.weight_decay else on_w
                on_velocity = self.kept(on_step * sgd.momentum) if sgd.momentum else None
        return slopes[::-1]


def _pick(x: Tensor, rows: tuple[int, ...]) -> Tensor:
    """Rows of x; neighbours are a view, and cost nothing."""
    first, last = rows[0], rows[0] + len(rows)
    return x[first:last] if rows == tuple(range(first, last)) else x[list(rows)]


def _gathered(plan: TrainingPlan, x: Tensor, parts: list[Tensor]) -> Tensor:
    """The parts of all steps, added up where their rows are in x."""
    order = [row for rows in plan.batches for row in rows]
    if order == list(range(len(x))):
        return torch.cat(parts)
    return torch.zeros_like(x).index_add_(0, torch.tensor(order, device=x.device), torch.cat(parts))
