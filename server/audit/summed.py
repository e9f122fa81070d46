"""A masked sum of clients that are played: how their images are shared out, and the view of their sum.

The shadow of ``server.audit.shadow`` plays each client by itself, as a real one trains. What is summed is rounded to
the grid of masked sums and read back (``strategies.secure_sum.vector``), every client with the weight of one example.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from prunella.core.errors import AttackError
from prunella.core.trees import Mask, map_trees, to_device
from prunella.core.types import ServerView
from prunella.strategies.secure_sum.collector import moved
from prunella.strategies.secure_sum.vector import SecureSum, opened


def shares(images: int, batch: int, sites: int) -> list[tuple[Tensor, int]]:
    """For each of ``sites`` the rows of its images and the size of its batches. Raises ``AttackError``.

    >>> [(rows.tolist(), size) for rows, size in shares(5, 3, 2)]
    [([0, 1, 2], 2), ([3, 4], 1)]
    """
    if min(images, batch) < sites:
        raise AttackError(f"a sum of {sites} clients has an image of each in every step, and here are {images}")
    rows = torch.arange(images).tensor_split(sites)
    sizes = (len(part) for part in torch.arange(batch).tensor_split(sites))
    return list(zip(rows, sizes, strict=True))


def summed(views: Sequence[ServerView], mask: Mask, settings: SecureSum) -> ServerView:
    """The view of the sum of clients that received the same model under ``mask``, from a view of each. Labels are told
    in the order of the clients. Raises ``DefenseError`` for an update outside the range of masked sums."""
    first = views[0]
    back = bool(first.received_buffers)
    updates = [to_device(view.update, "cpu") for view in views]
    before = to_device(first.buffers, "cpu") if back else {}
    changes = [
        map_trees(lambda new, old: new.double() - old.double(), to_device(view.received_buffers, "cpu"), before)
        for view in views
    ]
    mean, change = opened(updates, to_device(mask, "cpu"), changes, settings)
    device = next(iter(first.params.values())).device
    labels = [view.labels for view in views if view.labels is not None]
    return replace(
        first,
        update=to_device(map_trees(lambda found, like: found.to(like.dtype), mean, updates[0]), device),
        shared=mask,
        received_buffers=to_device(map_trees(moved, before, change), device),
        num_examples=None if first.num_examples is None else sum(view.num_examples or 0 for view in views),
        labels=torch.cat(labels) if labels else None,
        batch_size=sum(view.batch_size or 0 for view in views),
    )
