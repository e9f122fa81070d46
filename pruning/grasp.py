"""GraSP: gradient signal preservation. Wang et al., ICLR 2020, Eq. (8) and Alg. 1.

Removing weights changes the gradient's squared norm, and with it how fast the loss can fall, by S = −w ⊙ (H g) to first
order, with H the Hessian of the loss. A weight with a HIGH score holds the gradient flow back: the highest go.

``loss`` maps parameters to a 0-d loss on one batch. H g is one Hessian-vector product, by differentiating gᵀ·stop(g).
Scores are float64 trees of the shapes of ``params``. As in the paper the product is over all parameters, biases
included, though those are never pruned.

>>> grasp({"w": torch.tensor([1.0, -2.0])}, lambda p: (p["w"] ** 2).sum())["w"].tolist()
[-4.0, -16.0]
"""

import torch

from prunella.core.trees import Tree
from prunella.pruning.snip import Loss, leaves


def hessian_gradient(params: Tree, loss: Loss) -> Tree:
    """H g at ``params``."""
    here = leaves(params)
    values = list(here.values())
    gradient = torch.autograd.grad(loss(here), values, create_graph=True, materialize_grads=True)
    along = torch.stack([(g * g.detach()).sum() for g in gradient]).sum()
    product = torch.autograd.grad(along, values, materialize_grads=True)
    return {name: t.detach() for name, t in zip(here, product, strict=True)}


def grasp(params: Tree, loss: Loss) -> Tree:
    """Prune the highest."""
    product = hessian_gradient(params, loss)
    return {name: -params[name].double() * product[name] for name in params}
