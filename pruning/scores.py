"""Scores that rank weights; the lowest go first. Trees in, a tree of the same shapes out.

>>> magnitude({"w": torch.tensor([-3.0, 1.0])})["w"].tolist()
[3.0, 1.0]
"""

import torch

from prunella.core.trees import Tree, map_trees


def magnitude(params: Tree) -> Tree:
    """|w|, the classic criterion (Han et al. 2015)."""
    return map_trees(torch.abs, params)


def random(params: Tree, generator: torch.Generator) -> Tree:
    """Uniform scores in [0, 1), independent of the weights, so a random mask tells nothing about any data."""
    return {name: torch.rand(t.shape, generator=generator, dtype=torch.float64) for name, t in params.items()}
