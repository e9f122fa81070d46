"""What an app answered: which of its arrays a defense works on, and which are one array under several names.

Errors: ``DefenseError`` for what no defense works on.
"""

import logging
from collections.abc import Container

import torch

from prunella.client.policy import check_model
from prunella.core.errors import DefenseError
from prunella.core.trees import Tree
from prunella.flower.arrays import is_buffer
from prunella.flower.site import Site
from prunella.privacy import chain

logger = logging.getLogger(__name__)


def check_floats(received: Tree) -> None:
    """Refuse (``DefenseError``), before the app is asked, a message without a weight that a defense could work on."""
    if not any(tensor.is_floating_point() for tensor in received.values()):
        raise DefenseError(
            "the message has no floating-point arrays, and no defense works on others, such as boosted trees: leave "
            "Defend out of this app, or send weights to begin with (no empty record)"
        )


def check_answer(site: Site, after: Tree, before: Tree) -> list[str]:
    """The names of the floating parameters of an answer. Raises ``DefenseError`` for what no defense works on."""
    if after.keys() != before.keys():
        odd = sorted(after.keys() ^ before.keys())
        raise DefenseError(f"the answer differs from the model received in {len(odd)} names, first: {odd[0]}")
    names, buffers = list[str](), dict[str, torch.Tensor]()
    for name, tensor in after.items():
        if tensor.shape != before[name].shape:
            # How many rows it has is how many classes this site's data has.
            logger.error("%s of the answer has the shape %s", name, tuple(tensor.shape))
            raise DefenseError("an array of the answer has another shape than it had: this client's log names it")
        if is_buffer(name, after):
            buffers[name] = tensor
        elif tensor.is_floating_point():
            names.append(name)
        elif not torch.equal(tensor, before[name]):
            raise DefenseError(f"{name} is {tensor.dtype} and changed: no defense works on it")
    check_model(site.policy, "this app's", buffers)
    chain.check_model(site.chain, buffers)
    return names


def twins(names: list[str], before: Tree, after: Tree, parameters: Container[str] = frozenset()) -> dict[str, str]:
    """Of names with equal values before and after, every later one and the first: tied weights.

    ``parameters`` are known not to be tied to each other, whatever their values: the biases of batch norm on both sides
    of a residual sum begin at zero and get the same gradients.
    """
    firsts: dict[tuple[int, ...], list[str]] = {}
    found: dict[str, str] = {}
    for name in names:
        same = firsts.setdefault(tuple(after[name].shape), [])
        for first in same:
            apart = first in parameters and name in parameters
            if not apart and torch.equal(after[first], after[name]) and torch.equal(before[first], before[name]):
                found[name] = first
                break
        else:
            same.append(name)
    return found
