"""The commands of ``prunella``."""

from prunella.core.interrupts import end_at_once


def start() -> None:
    """The console script: the commands are imported when Ctrl-C can end that in one line."""
    end_at_once()
    from prunella.deploy.cli.main import app

    app()
