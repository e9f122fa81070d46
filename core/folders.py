"""Whether a folder can be written into, before work is done for what it is to hold, and who may do so meanwhile.

Imports nothing heavy.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def unwritable(folder: Path) -> str:
    """Why nothing can be written into ``folder``, or into the nearest one above it that exists; "" where it can.

    A folder is made there and removed again: permissions alone say yes of ``/proc`` and, to root, of anything.

    >>> unwritable(Path(tempfile.gettempdir()) / "not" / "yet")
    ''
    """
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if os.path.exists(each))
    if not there.is_dir():
        return f"{there} is a file"
    try:
        with tempfile.TemporaryDirectory(prefix=".prunella-", dir=there):
            return ""
    except OSError:
        return f"{there} may not be written to"


@contextmanager
def locked(file: Path, otherwise: Exception, seconds: float = 0.0) -> Iterator[None]:
    """Hold the lock ``file`` until the block or this process ends. Raises ``otherwise`` where another process holds it
    for longer than ``seconds``."""
    from filelock import FileLock, Timeout

    lock = FileLock(file, timeout=seconds, mode=0o600)
    try:
        lock.acquire()
    except Timeout:
        raise otherwise from None
    try:
        yield
    finally:
        lock.release()
