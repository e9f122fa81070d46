"""The library without a federation: a view of an update, an attack on it, and an audit with its control, in one call.

``prunella.view``, ``prunella.attack`` and ``prunella.audit`` are these functions; docs/library.md shows them.
"""

DEFAULT_ATTACK = "portfolio"  # where none is named, as in a run
