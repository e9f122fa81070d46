"""Flower's wrappers for central differential privacy (``DifferentialPrivacy…``) beside this project's layers.

Such a wrapper clips what each client answers, and adds noise for the most that one clipped answer can move the mean. A
median can move further than that, and so can a mask that one client chose, or answers that were filled with the mean of
others: the noise would be too small, and whoever computes an ε from it would be told one that does not hold. So layers
that make more of an answer than a mean of it refuse to stand beside such a wrapper.

Errors: ``ConfigError``.
"""

import sys
from types import FrameType

from prunella.core.errors import ConfigError

WRAPPERS = ("flwr.serverapp.strategy.dp_", "flwr.server.strategy.dp_")  # of the Message API, and of the older one


def _is_wrapper(strategy: object) -> bool:
    return any(base.__module__.startswith(WRAPPERS) for base in type(strategy).__mro__)


def wrapper_inside(strategy: object) -> str:
    """The name of Flower's wrapper among a strategy and those that it wraps, or ""."""
    while strategy is not None and not _is_wrapper(strategy):
        strategy = vars(strategy).get("strategy") or vars(strategy).get("older")
    return "" if strategy is None else type(strategy).__name__


def wrapper_around() -> str:
    """The name of Flower's wrapper whose ``configure_train`` or ``configure_fit`` is being called, or "": a strategy is
    not told what stands around it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        own = frame.f_locals.get("self")
        if frame.f_code.co_name in ("configure_train", "configure_fit") and _is_wrapper(own):
            return type(own).__name__
        frame = frame.f_back
    return ""


def refuse_beside(name: str, wrapper: str, instead: str) -> None:
    """Raise ``ConfigError`` where there is a ``wrapper`` beside the layer or scheme of this ``name``."""
    if wrapper:
        raise ConfigError(
            f"{wrapper} adds noise for the mean of clipped answers, and {name} lets one client move the model further: "
            f"{instead}"
        )
