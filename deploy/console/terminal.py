"""What all commands share: the terminal, exit codes, and errors in one line.

Exit codes: 0 success, 1 the federation (or a check) failed, 2 wrong usage or setting, 130 Ctrl-C.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NoReturn

import typer
from rich.console import Console

from prunella.deploy.errors import LaunchError, UsageError

FAILED, USAGE, INTERRUPTED = 1, 2, 130
console = Console()
errors = Console(stderr=True)
EXIT = {"completed": 0, "failed": FAILED, "stopped": INTERRUPTED}  # by the status of a run
Consent = Literal["deny", "scores", "numbers", "pictures"]  # what a client gives the server's audit


def say(text: str, to: Console = console) -> None:
    """Print a line as it is, however long."""
    to.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def explained() -> Iterator[None]:
    """Turn errors that the user can fix into one line and an exit code."""
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
    say(f"prunella: {message}", errors)
    raise typer.Exit(code)
