"""What a SuperNode costs while it waits: processor time of the SuperLink, of itself and of its executor, without a run.

The processes of ``prunella run`` over gRPC on loopback, and no app is submitted. After ``--settle`` seconds, when they
ask for work as seldom as they ever do (``deploy.runtime.patches.PatientTime``), processor time is counted for
``--seconds``. ``milli`` is thousandths of a processor for each SuperNode, so its inverse is how many keep one processor
busy with nothing else to do.

    python -m prunella.benchmarks.speed.idle [--supernodes 20] [--settle 110] [--seconds 90] [--json]
"""

import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prunella.benchmarks.speed.bench import command, show_table
from prunella.benchmarks.speed.soak import Sample, look
from prunella.deploy.local.launcher import start_backend
from prunella.deploy.local.topology import Ports, deployment
from prunella.deploy.ports import free_ports
from prunella.deploy.runs import create, new_id, prepare
from prunella.deploy.runtime import settings
from prunella.deploy.runtime.request import RunRequest


def milli(before: Sample, after: Sample, seconds: float, supernodes: int) -> dict[str, float]:
    """Thousandths of a processor for each SuperNode, by kind of process.

    >>> before, after = ({"processor": {"SuperLink": spent}} for spent in (3.0, 4.0))
    >>> milli(before, after, 50, 10)
    {'SuperLink': 2.0}
    """
    spent = {kind: value - before["processor"].get(kind, 0.0) for kind, value in after["processor"].items()}
    return {kind: round(1000 * value / seconds / supernodes, 3) for kind, value in spent.items()}


def measure(options: Any) -> dict[str, Any]:
    """The result of a command line."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    count: int = options.supernodes
    with tempfile.TemporaryDirectory() as folder:
        request = RunRequest(settings.app_directory(), Path(folder), {}, count)
        run = create(request.runs, new_id(), count)
        prepare(run, count)
        backend = start_backend(request, run)
        try:
            for process in deployment(run, Ports.of(free_ports(2 + count)), request):
                backend.spawn(process)
            time.sleep(options.settle)
            before, begin = look(), time.monotonic()
            time.sleep(options.seconds)
            after, seconds = look(), time.monotonic() - begin
            ended = [exit.name for exit in backend.exits()]
        finally:
            backend.stop()
    if ended:
        raise RuntimeError(f"{', '.join(ended)} ended meanwhile")
    return {"supernodes": count, "seconds": seconds, "milli": milli(before, after, seconds, count)}


def show(result: Mapping[str, Any]) -> None:
    rows = [(kind, f"{value:.2f}") for kind, value in result["milli"].items()]
    show_table(f"{result['supernodes']} SuperNodes that wait", "of, thousandths of a processor for each", rows)


if __name__ == "__main__":
    command(__doc__, measure, show, {"--supernodes": 20, "--settle": 110, "--seconds": 90})
