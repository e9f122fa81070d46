"""The curious server: one file per attack, the inversion engine they share, scoring, traces and the positive control.

An attack maps (ServerView, Task, settings, Generator) to a Reconstruction. Only ``attacks.score.leakage`` reads the
truth. ``privacy`` has the list of the papers that docstrings cite by abbreviation.

The registry imports every attack, and so PyTorch, when one of its names is first used: a report reads scores only.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prunella.attacks.registry import ATTACKS, PROBES, SECTIONS, Attack, Probe, find_attack

__all__ = ["ATTACKS", "PROBES", "SECTIONS", "Attack", "Probe", "find_attack"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from prunella.attacks import registry

    return getattr(registry, name)
