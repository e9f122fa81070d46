"""What all commands share: the terminal, exit codes, and errors in one line.

Exit codes: 0 success, 1 the federation (or a check) failed, 2 wrong usage or setting, 130 Ctrl-C or SIGTERM.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Literal, NoReturn

import typer
from rich.console import Console

import prunella
from prunella.deploy.errors import LaunchError, UsageError

FAILED, USAGE, INTERRUPTED = 1, 2, 130
console = Console()
errors = Console(stderr=True)
EXIT = {"completed": 0, "failed": FAILED, "stopped": INTERRUPTED}  # by the status of a run
DENIED = {errno.EACCES: "not allowed", errno.EPERM: "not allowed", errno.EROFS: "read-only"}
FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk's quota is used up"}
Consent = Literal["deny", "scores", "numbers", "pictures"]  # what a client gives the server's audit


def say(text: str, to: Console = console) -> None:
    """Print a line as it is, however long."""
    to.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def explained() -> Iterator[None]:
    """Turn errors that the user can fix into one line and an exit code; SIGTERM and a closed terminal act like Ctrl-C,
    so that no command leaves its temporary files and processes behind."""
    from prunella.core.errors import PrunellaError
    from prunella.core.extras import extra_of
    from prunella.core.interrupts import signals_interrupt

    try:
        with signals_interrupt():
            yield
    except (UsageError, PrunellaError) as error:
        fail(str(error), USAGE)
    except LaunchError as error:
        fail(str(error), FAILED)
    except ModuleNotFoundError as missing:
        if (extra := extra_of(missing.name or "")) is None:
            raise
        fail(f'{missing.name} is not installed: pip install "prunella[{extra}]"', USAGE)
    except OSError as error:
        fail(about_disk(error), FAILED)
    except KeyboardInterrupt:
        fail("stopped", INTERRUPTED)


def about_disk(error: OSError) -> str:
    """What to do about a disk that is full or may not be written to; any other error is raised again."""
    code, where = error.errno or 0, f": {error.filename}" if error.filename else ""
    if code in FULL:
        return f"{FULL[code]}{where}: free some space, or name a directory on another one"
    if code in DENIED:
        return f"{DENIED[code]}{where}: change its permissions, or name another"
    raise error


def fail(message: str, code: int) -> NoReturn:
    say(f"prunella: {message}", errors)
    raise typer.Exit(code)


def require_package() -> None:
    """End, with the fix, where Python took a folder called prunella for the package."""
    if getattr(prunella, "__file__", None) is None:
        try:
            import_module("prunella.core.installation")
        except ImportError as error:
            fail(str(error), USAGE)
