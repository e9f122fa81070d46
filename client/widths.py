"""A client that trains a sub-model (``pruning.widths``): what it may be sent; and what any client says in its log when
it trains a smaller network than the model. ``strategies.require_place`` has the runs that a width has no place in.

Errors: ``ConfigError``, with the fix.
"""

import logging

from flwr.common.logger import log

from prunella.client.session import Session
from prunella.core.errors import ConfigError
from prunella.core.trees import Mask, count, same_trees, size
from prunella.strategies.round.local import LocalResult


def require_held(session: Session, mask: Mask) -> None:
    """Refuse a model that is wider than this client's owner lets it train."""
    held = session.data.held
    if held is not None and any(bool((mask[name] & ~inside).any()) for name, inside in held.items()):
        raise ConfigError(f"this client trains sub-models of width {session.node.width:g}, and was sent more")


def tell_small(session: Session, result: LocalResult) -> None:
    """Say that the network without its pruned channels was trained (``strategies.round.small``), once for each mask."""
    before = session.store.mask() if result.small else None
    if result.small and (before is None or not same_trees(before, result.base)):
        kept, whole = count(result.base), size(result.base)
        log(logging.INFO, "training without the pruned channels: the mask keeps %d of %d parameters", kept, whole)
