"""The commands of ``prunella``."""


def start() -> None:
    """The console script: the commands are imported when Ctrl-C can end that in one line."""
    from prunella.core.interrupts import end_at_once

    end_at_once()
    from prunella.deploy.cli.main import app

    app()
