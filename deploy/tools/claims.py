"""``prunella reproduce`` and ``prunella advise`` are started anew, since ``deploy`` must not import them."""

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import resources
from importlib.util import find_spec
from typing import NoReturn

from prunella.deploy.errors import UsageError
from prunella.deploy.runtime.processes import environment, importable

REPRODUCE = ("-m", "prunella.benchmarks", "reproduce")
ADVISE = ("-P", "-m", "prunella.benchmarks", "advise.command")  # finds somebody's own code where `prunella run` does
NEEDED = ("matplotlib", "opacus", "psutil", "sklearn")


def listed() -> str:
    """All claims and tables, as ``python -m prunella.benchmarks reproduce --list`` wrote them into ``claims.txt``: the
    claims themselves import PyTorch, which takes seconds."""
    return resources.files("prunella.benchmarks").joinpath("claims.txt").read_text(encoding="utf-8").rstrip()


def given(**values: object) -> list[str]:
    """The options as their engine takes them; each in one word, so that a value may begin with a hyphen.

    >>> given(may_lose=5, budget="-5min", data=None)
    ['--may-lose=5', '--budget=-5min']
    """
    return [f"--{name.replace('_', '-')}={value}" for name, value in values.items() if value not in (None, "")]


def measure(module: Sequence[str], arguments: Sequence[str]) -> NoReturn:
    """Become a module with its own options. As another process, it would be killed a moment after Ctrl-C, before it has
    written what it found, and survive a signal to this one. Raises ``UsageError`` where what it needs is not installed.
    """
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise UsageError(f"this needs {', '.join(missing)}: pip install 'prunella[benchmarks]'")
    sys.stdout.flush()
    sys.stderr.flush()
    if os.name == "nt":  # there "to become" is to start and to leave
        sys.exit(subprocess.run([sys.executable, *module, *arguments], env=importable(environment())).returncode)
    os.execve(sys.executable, [sys.executable, *module, *arguments], importable(environment()))
