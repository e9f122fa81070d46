"""How the words of a command line are read, where typer and click leave a user alone."""

import io
import sys
from typing import Any

import click.exceptions
import typer.main
from click import Context, UsageError
from typer.core import TyperArgument, TyperGroup

from prunella.deploy.console.terminal import FAILED, about_disk, errors, require_package, say


class Argument(TyperArgument):
    """Keeps its help, which the arguments of click 8.5 empty after typer 0.20, which Flower asks for, has set it."""

    def __init__(self, *, help: str | None = None, **rest: Any) -> None:
        super().__init__(help=help, **rest)
        self.help = help


typer.main.TyperArgument = Argument  # type: ignore[attr-defined]


class Commands(TyperGroup):
    """The command ``prunella``."""

    def __init__(self, **given: Any) -> None:
        """click 8.5 names the command that was likely meant, and typer 0.20 does so once more."""
        super().__init__(**{**given, "suggest_commands": not hasattr(click.exceptions, "NoSuchCommand")})

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """On a terminal that does not know ε or …, a question mark stands for them. What cannot be written, such as
        ``--help`` into a file on a full disk, is told of in one line."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
        try:
            return super().main(*args, **kwargs)
        except OSError as error:
            say(f"prunella: {about_disk(error)}", errors)
            sys.exit(FAILED)

    def invoke(self, ctx: Context) -> Any:
        """``prunella run rounds=3`` is told how a setting is written."""
        require_package()
        try:
            return super().invoke(ctx)
        except UsageError as error:
            takes = [] if error.ctx is None else [option for each in error.ctx.command.params for option in each.opts]
            if "-c" in takes and "=" in error.message and "unexpected extra" in error.message:
                how = "a setting is written -c KEY=VALUE, each with a -c of its own"
                raise UsageError(f"{error.message}: {how}", error.ctx) from None
            raise
