"""A client that trains a sub-model (``pruning.widths``): what it may be sent, and the runs that it has no place in;
and what any client says in its log when it trains a smaller network than the model.

Errors: ``ConfigError``, with the fix.
"""

import logging

from flwr.common.logger import log

from prunella.client.session import Session
from prunella.core.errors import ConfigError
from prunella.core.trees import Mask, count, same_trees, size
from prunella.privacy.adgp import NAME as ADGP
from prunella.strategies.round.local import LocalResult
from prunella.strategies.secure_sum.vector import NAME as SECURE_SUM


def require_held(session: Session, mask: Mask) -> None:
    """Refuse a model that is wider than this client's owner lets it train."""
    held = session.data.held
    if held is not None and any(bool((mask[name] & ~inside).any()) for name, inside in held.items()):
        raise ConfigError(f"this client trains sub-models of width {session.node.width:g}, and was sent more")


def require_plain(session: Session) -> None:
    """Refuse a run in which a client of this one's width has no place: where clients have masks of their own, location
    sets, or one sum of vectors that are equally long."""
    scheme, run = session.scheme, session.run
    own = scheme.personal or scheme.client.plan is not None
    if session.node.width < 1 and (own or ADGP in run.defense_names or run.aggregation == SECURE_SUM):
        raise ConfigError(
            f"a client with a width takes part where all share one mask and each reply is read alone: choose another "
            f"strategy than {run.strategy}, no {ADGP}, no {SECURE_SUM}, or width=1"
        )


def tell_small(session: Session, result: LocalResult) -> None:
    """Say that the network without its pruned channels was trained (``strategies.round.small``), once for each mask."""
    before = session.store.mask() if result.small else None
    if result.small and (before is None or not same_trees(before, result.base)):
        kept, whole = count(result.base), size(result.base)
        log(logging.INFO, "training without the pruned channels: the mask keeps %d of %d parameters", kept, whole)
