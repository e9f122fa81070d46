"""What a client's installation costs: disk, importing, memory, and processor time of a message, of several releases.

Each arm is a Python that has one: this one, and those of ``--beside`` (``NAME=PYTHON``, parted by commas), so that
releases and lists of dependencies are compared in one run, in turns. Measured of each:

* ``packages`` and ``megabytes`` of all that ``pip install prunella`` brings there, by the packages' own lists of files
  (bytecode as well, where it is listed); ``torch`` is the part of PyTorch and what it needs of CUDA;
* ``import``: processor seconds of a new process that imports the client's app and the command line, and what its
  memory holds then (``above``), both above one that imports PyTorch alone (``floor``);
* ``message``: processor seconds of all processes of a whole federation, SuperLink and ServerApp too, a message to a
  client: what ``--rounds`` rounds take more than two, over rounds and clients. The main job's digits, no audits.

Linux only.

    python -m prunella.benchmarks.speed.client [--beside before=../old/.venv/bin/python] [--repeat 5] [--json]
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from argparse import ArgumentTypeError
from collections.abc import Mapping
from typing import Any

from prunella.benchmarks.speed.bench import command, show_table

SUPERNODES, FEW, HERE = 4, 2, "this"
_BECOME_SUBREAPER = 36  # of prctl: whatever loses its parent is waited for here, so that its time is counted
APP = "import prunella.client.app, prunella.deploy.cli.main"
TORCH = "import torch"
SIZES = """
import json
from importlib.metadata import PackageNotFoundError, distribution
from packaging.requirements import Requirement

todo, seen, sizes = [("prunella", "")], set(), {}
while todo:
    name, extra = todo.pop()
    if (name, extra) in seen:
        continue
    seen.add((name, extra))
    try:
        found = distribution(name)
    except PackageNotFoundError:
        continue
    if name != "prunella":
        files = (found.locate_file(f) for f in found.files or ())
        sizes[name] = sum(f.stat().st_size for f in files if f.is_file())
    for line in found.requires or ():
        wanted = Requirement(line)
        if wanted.marker is None or wanted.marker.evaluate({"extra": extra}):
            its = wanted.name.lower().replace("_", "-")
            todo += [(its, each) for each in ("", *wanted.extras)]
of_torch = [n for n in sizes if n in ("torch", "triton") or n.startswith(("nvidia-", "cuda-"))]
print(json.dumps({"packages": len(sizes), "megabytes": sum(sizes.values()) / 1e6,
                  "torch": sum(sizes[n] for n in of_torch) / 1e6}))
"""
SPENT = f"""
import ctypes, os, resource, subprocess, sys
ctypes.CDLL(None).prctl({_BECOME_SUBREAPER}, 1)
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
try:
    while True:
        os.wait()
except ChildProcessError:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
"""


def arms(beside: str) -> dict[str, str]:
    """Pythons by name.

    >>> list(arms("old=/srv/old/bin/python"))
    ['this', 'old']
    """
    found = {HERE: sys.executable}
    for each in filter(None, beside.split(",")):
        name, _, python = each.partition("=")
        if not python:
            raise ArgumentTypeError(f"--beside takes NAME=PYTHON, not {each!r}")
        found[name] = python
    return found


def spent(python: str, *arguments: str) -> tuple[float, float]:
    """Processor seconds of a Python process and all that it starts, and the most that one of them held, in MiB."""
    with tempfile.TemporaryDirectory() as folder:
        whole = [sys.executable, "-c", SPENT, python, *arguments]
        done = subprocess.run(whole, cwd=folder, check=True, capture_output=True, text=True, timeout=1800)
    seconds, memory = map(float, done.stdout.split())
    return seconds, memory


def imported(python: str) -> dict[str, float]:
    (base, floor), (seconds, memory) = spent(python, "-c", TORCH), spent(python, "-c", APP)
    return {"import": seconds - base, "above": memory - floor, "floor": floor}


def message(python: str, rounds: int) -> dict[str, float]:
    def federation(rounds: int) -> float:
        asked = ["run", "--supernodes", str(SUPERNODES), "-c", f"rounds={rounds}", "-c", "audit-every=0"]
        return spent(python, "-c", "from prunella.deploy.cli.main import app; app()", *asked)[0]

    return {"message": (federation(rounds) - federation(FEW)) / (rounds - FEW) / SUPERNODES}


def size(python: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:  # not where a checkout would be found first
        done = subprocess.run([python, "-c", SIZES], cwd=folder, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def measure(options: Any) -> dict[str, Any]:
    """The result of a command line."""
    if options.repeat < 1 or options.rounds <= FEW:
        raise ArgumentTypeError(f"--repeat must be at least 1, --rounds more than {FEW}")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    pythons = arms(options.beside)
    found: dict[str, dict[str, list[float]]] = {name: {} for name in pythons}
    for _ in range(options.repeat):
        for name, python in pythons.items():
            for key, value in {**imported(python), **message(python, options.rounds)}.items():
                found[name].setdefault(key, []).append(value)
    return {"arms": {name: {**size(python), **found[name]} for name, python in pythons.items()}}


def show(result: Mapping[str, Any]) -> None:
    def middle(values: list[float], digits: int) -> str:
        return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"

    rows = [
        (
            name,
            f"{arm['packages']:.0f}",
            f"{arm['megabytes']:.0f} ({arm['torch']:.0f})",
            middle(arm["import"], 2),
            middle(arm["above"], 0),
            middle(arm["message"], 3),
        )
        for name, arm in result["arms"].items()
    ]
    heads = "release, packages, MB (of PyTorch), import s, MiB above PyTorch, processor s a message"
    show_table("a client", heads, rows, 120)


if __name__ == "__main__":
    command(__doc__, measure, show, {"--beside": "", "--repeat": 5, "--rounds": 12})
