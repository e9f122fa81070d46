"""``prunella reproduce``: runs the benchmarks in their own process, since ``deploy`` must not import them."""

import subprocess
import sys
from collections.abc import Sequence

from prunella.deploy.runtime.processes import environment, importable

MODULE = "prunella.benchmarks.reproduce"


def reproduce(arguments: Sequence[str]) -> int:
    """Run the engine with its own options; its exit code."""
    return subprocess.run([sys.executable, "-m", MODULE, *arguments], env=importable(environment())).returncode
