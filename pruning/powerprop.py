"""Powerpropagation: weights w = θ |θ|^(β−1), trained through θ. Schwarz et al., NeurIPS 2021, Eq. (2) and (3).

By the chain rule a step of θ is scaled with β |θ|^(β−1), so that large weights move more and small ones less, and a
weight of exactly zero does not move at all: what was pruned stays pruned without a mask. β = 1 is plain SGD.

``undone`` is what whoever knows β makes of the way from w to w': the gradient's own way to first order. For one step
without momentum and weight decay it is −η g exactly, so that an attack that expects plain SGD loses nothing to β.

>>> power = Power(2.0, frozenset({"w"}))
>>> hidden = power.hidden({"w": torch.tensor([-4.0, 0.0]), "b": torch.tensor([3.0])})
>>> hidden["w"].tolist(), hidden["b"].tolist(), power.shown(hidden)["w"].tolist()
([-2.0, 0.0], [3.0], [-4.0, 0.0])
>>> power.pulled({"w": torch.tensor([1.0, 1.0]), "b": torch.tensor([1.0])}, hidden)["w"].tolist()
[4.0, 0.0]
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from prunella.core.trees import Tree


@dataclass(frozen=True)
class Power:
    """β, and the tensors that it holds for; others are as they are."""

    beta: float
    names: frozenset[str]

    def _mapped(self, tree: Tree, function: Callable[[str, Tensor], Tensor]) -> Tree:
        return {name: function(name, tensor) if name in self.names else tensor for name, tensor in tree.items()}

    def hidden(self, weights: Tree) -> Tree:
        """θ of w."""
        return self._mapped(weights, lambda name, w: w.sign() * w.abs() ** (1 / self.beta))

    def shown(self, hidden: Tree) -> Tree:
        """w of θ."""
        return self._mapped(hidden, lambda name, t: t.sign() * t.abs() ** self.beta)

    def slope(self, hidden: Tensor) -> Tensor:
        """dw/dθ."""
        return self.beta * hidden.abs() ** (self.beta - 1)

    def pulled(self, gradient: Tree, hidden: Tree) -> Tree:
        """The gradient by θ, of the one by w."""
        return self._mapped(gradient, lambda name, g: g * self.slope(hidden[name]))

    def undone(self, start: Tree, update: Tree) -> Tree:
        """The update that plain SGD would have sent from ``start``, to first order; zero where a weight was zero."""
        before = self.hidden(start)
        after = self.hidden({name: start[name] + update[name] for name in start})

        def divided(name: str, change: Tensor) -> Tensor:
            slope = self.slope(before[name])
            return torch.where(slope > 0, (after[name] - before[name]) / slope.clamp(min=1e-12), 0.0).to(change.dtype)

        return self._mapped(update, divided)
