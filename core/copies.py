"""A copy of a network, also of one whose weights are made of others before every pass.

PyTorch's old ``weight_norm`` and ``spectral_norm`` leave the weight they made on the layer, with the graph that made
it, and ``copy.deepcopy`` refuses a tensor with a graph.

>>> layer = nn.utils.weight_norm(nn.Linear(2, 2))
>>> bool((copied(layer).weight == layer.weight).all())
True
"""

import copy
from typing import TypeVar

from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


def copied(module: M) -> M:
    """The next pass of the copy makes such a weight anew; until then it has the module's."""
    made = [each for layer in module.modules() for each in vars(layer).values() if isinstance(each, Tensor)]
    known = {id(each): each.detach().clone() for each in made if not each.is_leaf}
    return copy.deepcopy(module, known)
