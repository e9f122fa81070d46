"""The commands of ``prunella``."""
