"""The ``prunella`` command and everything that launches a federation."""
