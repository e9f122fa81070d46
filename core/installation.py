"""Where this code is: a checkout or an app's bundle has the packages beside the folder ``prunella``, else inside it."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import prunella

if getattr(prunella, "__file__", None) is None:  # of an editable installation: Python looks for it in folders first
    raise ImportError(
        f"Python takes the folder {prunella.__path__[0]} for the package, since it is called prunella: work elsewhere "
        f"than beside it and leave {Path(prunella.__path__[0]).parent} out of PYTHONPATH, or put the clone itself there"
    )
IMPORT_ROOT = Path(prunella.__file__).resolve().parent.parent  # what ``PYTHONPATH`` needs for ``import prunella``
ROOMS = Path(prunella.__path__[-1]).resolve()  # the folder that has ``core``, ``client`` and the others
# The packages that an app's bundle holds, as an installation does.
BUNDLED = ("attacks", "client", "core", "privacy", "pruning", "server", "strategies", "tasks", "wire")


def digest_of_code(packages: Iterable[str] = BUNDLED) -> str:
    """SHA-256 of every Python file of ``packages``, by name, so that two installations of one release agree."""
    found = hashlib.sha256()
    for path in sorted(file for package in packages for file in (ROOMS / package).rglob("*.py")):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        found.update(f"{path.relative_to(ROOMS).as_posix()}\0{digest}\n".encode())
    return found.hexdigest()
