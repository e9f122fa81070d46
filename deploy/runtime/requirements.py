"""What must be installed where Flower's processes are started: an extra's packages, and the Flower that we know.

The library runs with any Flower of pyproject.toml's range. SuperLinks and SuperNodes are another matter: they are
patched to be forked, and speak gRPC or HTTP with each other (``deploy.runtime.flower_release``).
"""

import sys

from prunella.core.extras import require
from prunella.deploy.errors import UsageError
from prunella.deploy.runtime import flower_release

ELSEWHERE = (
    "use the Docker image, or Flower's own commands: a client runs under `flower-supernode`, a simulation under "
    "`flwr run`"
)


def check_system() -> None:
    """Raise ``UsageError`` where the kernel does not end processes whose parent is gone."""
    if sys.platform != "linux":
        raise UsageError(f"Prunella starts processes on Linux only: {ELSEWHERE}")


def check(extra: str = "") -> None:
    """Raise ``ConfigError`` for a package of ``extra`` that is missing, ``UsageError`` for another Flower or system."""
    check_system()
    if not flower_release.is_started():
        raise UsageError(
            f"SuperLinks and SuperNodes of flwr {flower_release.version()} are not started: {flower_release.install()}"
        )
    if extra:
        require(extra)
