"""Whether a folder can be written into, before work is done for what it is to hold. Imports nothing heavy."""

import os
import tempfile
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
