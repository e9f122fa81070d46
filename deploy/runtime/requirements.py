"""What must be installed where Flower's processes are started: an extra's packages, and the Flower that we know.

The library runs with any Flower of pyproject.toml's range. SuperLinks and SuperNodes are another matter: they are
patched to be forked, and from 1.40 on Flower no longer speaks gRPC.
"""

from importlib import metadata

from prunella.core.extras import require
from prunella.deploy.errors import UsageError

FLOWER = "1.39."


def check(extra: str = "") -> None:
    """Raise ``ConfigError`` for a package of ``extra`` that is missing, ``UsageError`` for another Flower."""
    found = metadata.version("flwr")
    if not found.startswith(FLOWER):
        raise UsageError(
            f"SuperLinks and SuperNodes are started with flwr {FLOWER}*, here is {found}: pip install 'flwr=={FLOWER}*'"
        )
    if extra:
        require(extra)
