"""SNIP: connection sensitivity |g ⊙ w| at initialisation. Lee et al., ICLR 2019, Eq. (3) and Alg. 1.

Multiplying weight j by c_j, the loss moves by ∂L/∂c_j = g_j w_j at c = 1; the weights with the smallest absolute value
of it go. The paper divides by the sum over all weights, which changes no order and is left out.

``loss`` maps parameters to a 0-d loss on one batch. Scores are float64 trees of the shapes of ``params``, which are not
changed.

>>> snip({"w": torch.tensor([2.0, -1.0])}, lambda p: (p["w"] * torch.tensor([3.0, 3.0])).sum())["w"].tolist()
[6.0, 3.0]
"""

from collections.abc import Callable

import torch

from prunella.core.trees import Tree, map_trees

Loss = Callable[[Tree], torch.Tensor]


def leaves(params: Tree) -> Tree:
    """Copies in float64 that autograd follows."""
    return map_trees(lambda t: t.detach().double().requires_grad_(), params)


def snip(params: Tree, loss: Loss) -> Tree:
    """Keep the highest."""
    here = leaves(params)
    gradient = torch.autograd.grad(loss(here), list(here.values()), materialize_grads=True)
    return {name: (g * here[name]).abs().detach() for name, g in zip(here, gradient, strict=True)}
