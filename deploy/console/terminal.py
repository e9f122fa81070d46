"""What every command shares: the terminal, exit codes, and errors in one line.

Exit codes: 0 success, 1 the federation (or a check) failed, 2 wrong usage or setting, 130 Ctrl-C.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import NoReturn

import typer
from rich.console import Console

from prunella.deploy.errors import LaunchError, UsageError

FAILED, USAGE, INTERRUPTED = 1, 2, 130
console = Console()
errors = Console(stderr=True)


class Audit(StrEnum):
    """What a client lets the server's audit have."""

    deny = "deny"
    scores = "scores"
    numbers = "numbers"
    pictures = "pictures"


def say(text: str) -> None:
    """A line as it is, however long."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def explained() -> Iterator[None]:
    """Turn the errors a user can mend into one line and an exit code."""
    from prunella.core.errors import PrunellaError
    from prunella.core.extras import extra_of

    try:
        yield
    except (UsageError, PrunellaError) as error:
        fail(str(error), USAGE)
    except LaunchError as error:
        fail(str(error), FAILED)
    except ModuleNotFoundError as missing:
        if (extra := extra_of(missing.name or "")) is None:
            raise
        fail(f'{missing.name} is not installed: pip install "prunella[{extra}]"', USAGE)
    except KeyboardInterrupt:
        fail("stopped", INTERRUPTED)


def fail(message: str, code: int) -> NoReturn:
    errors.print(f"prunella: {message}", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(code)
