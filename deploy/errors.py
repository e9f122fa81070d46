"""The launcher's errors. Each is one line for the user that names the fix.

Kept apart from ``core.errors``: the zygote imports these, and must import nothing that is in the app's bundle.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class UsageError(Exception):
    """What the user asked for cannot be done: exit code 2."""


class LaunchError(Exception):
    """The federation broke: exit code 1."""


def why(error: OSError) -> str:
    """Why a folder cannot be made or written to.

    >>> why(FileExistsError(17, "File exists")), why(PermissionError(13, "Permission denied"))
    ('it is a file, not a folder', 'Permission denied')
    """
    if isinstance(error, FileExistsError):
        return "it is a file, not a folder"
    if isinstance(error, NotADirectoryError):
        return "a file stands where a folder above it should be"
    return error.strerror or str(error)


@contextmanager
def writable(path: Path, option: str = "--out") -> Iterator[None]:
    """``UsageError`` where ``path``, which ``option`` names, cannot be written.

    >>> with writable(Path("there"), "--out"):
    ...     raise PermissionError(13, "Permission denied")
    Traceback (most recent call last):
    prunella.deploy.errors.UsageError: cannot write there (Permission denied): choose another with --out
    """
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write {path} ({why(error)}): choose another with {option}") from None
