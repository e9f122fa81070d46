"""A client's round, and the commands that need no launcher, without what only POSIX systems have: ``python -m
tests.elsewhere FOLDER``.

It stands in for Windows as far as Linux can: modules and functions of the standard library that are not there are taken
away, and files behave as they do there where that has broken something. What is installed besides was built for Linux,
and is imported before.
"""

import builtins
import ctypes
import functools
import multiprocessing.context
import os
import shutil
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

BEFORE = ("torch", "numpy", "scipy.optimize", "flwr.clientapp", "flwr.serverapp", "flwr.supercore.task_identity")
BEFORE += ("pydantic", "dp_accounting", "filelock", "rich.progress", "sklearn.metrics", "pyarrow.parquet", "PIL.Image")
BEFORE += ("safetensors.torch", "jinja2", "typer.testing", "torch._dynamo", "sklearn.datasets")
MODULES = ("fcntl", "grp", "pwd", "resource", "syslog", "termios")
FUNCTIONS: dict[Any, tuple[str, ...]] = {
    os: ("O_DIRECTORY", "chown", "fork", "getloadavg", "getuid", "geteuid", "killpg", "nice", "setsid"),
    signal: ("SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "pthread_sigmask"),
    multiprocessing.context: ("ForkProcess",),
}


def take_away() -> None:
    """From now on nothing imports ``MODULES`` or finds ``FUNCTIONS``."""
    for module in BEFORE:
        import_module(module)
    for module in MODULES:
        sys.modules.pop(module, None)
    found = builtins.__import__

    def imported(name: str, *args: Any, **kwargs: Any) -> Any:
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return found(name, *args, **kwargs)

    builtins.__import__ = imported
    for module, names in FUNCTIONS.items():
        for name in names:
            delattr(module, name)
    ctypes.CDLL, os.fsync, os.replace, os.unlink = _library, _flushed, _unmapped(os.replace), _unmapped(os.unlink)
    sys.platform = "win32"


def _library(name: str | None, *_: Any, **__: Any) -> Any:
    raise TypeError("argument of type 'NoneType' is not iterable") if name is None else OSError(name)


def _flushed(handle: int) -> None:
    """Windows flushes what was opened for writing only."""
    flags = next(line for line in Path(f"/proc/self/fdinfo/{handle}").read_text().splitlines() if "flags" in line)
    if not int(flags.split()[1], 8) & (os.O_WRONLY | os.O_RDWR):
        raise OSError(9, "Bad file descriptor")


def _unmapped(function: Callable[..., None]) -> Callable[..., None]:
    """Windows neither replaces nor removes a file that is mapped into memory."""

    def changed(*paths: Any, **kwargs: Any) -> None:
        if os.path.realpath(paths[-1]) in Path("/proc/self/maps").read_text():
            raise PermissionError(13, "Access is denied", str(paths[-1]))
        function(*paths, **kwargs)

    return changed


def main(folder: Path) -> None:
    take_away()
    for name in import_module("prunella").__all__:
        getattr(import_module("prunella"), name)
    inprocess = import_module("prunella.benchmarks.engine.inprocess")
    run = {"model": "cnn", "dataset": "digits", "rounds": 2, "local_steps": 1, "audit_every": 0}
    federation = inprocess.run_in_process(folder, 2, examples=32, tested=32, defenses="dgp, top-k", **run)
    assert not inprocess.failures(federation), federation.counters
    told = functools.partial(
        import_module("typer.testing").CliRunner().invoke, import_module("prunella.deploy.cli.main").app
    )
    trace = [
        str(folder / "mine.safetensors"),
        "--attack",
        "ig",
        "-c",
        "ig.iterations=3",
        "-c",
        "ig.labels-tried=1",
        "--out",
        str(folder),
    ]
    here, other, new = (str(folder / name) for name in ("run", "other", "new"))
    shutil.copytree(here, other)
    for words in (
        ["report", here],
        ["compare", here, other],
        ["runs", "--runs", str(folder)],
        ["audit", "--worst-case", *trace],
    ):
        done = told(words)
        assert done.exit_code == 0, (words, done.output, done.exception)
    for words in (["run", "--runs", new], ["superlink", "--insecure", "--home", new], ["doctor", "--runs", new]):
        done = told(words)
        assert done.exit_code in (1, 2) and "flower-supernode" in " ".join(done.output.split()), done


if __name__ == "__main__":
    main(Path(sys.argv[1]))
