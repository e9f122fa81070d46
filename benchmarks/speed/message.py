"""What a message costs its client: processor time and memory of a ClientApp's process, forked from a template or not.

A real federation of the main app: digits, the default settings, no audits. Each client's first message is forked from
the zygote, where Flower unpacks the bundle and the app is imported, as it does for every message of other people's
apps. The next ones are forked from the template, which has done both. Both hold the work itself, some steps of
training. Counted by the kernel when a process has ended (wait4), from its fork on. "above torch" is the largest
resident size over that of a Python that has imported torch alone.

    python -m prunella.benchmarks.speed.message [--rounds 10] [--supernodes 4] [--json]
"""

import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prunella.benchmarks.speed.bench import command, show_table
from prunella.benchmarks.speed.round import RecordingView
from prunella.core.installation import IMPORT_ROOT
from prunella.deploy.local.launcher import launch
from prunella.deploy.runtime.request import RunRequest

LINE = re.compile(r"^flwr-clientapp of .*, of the (zygote|template): ([\d.]+) s, (\d+) MiB", re.MULTILINE)
TORCH = "import resource, torch; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"


def costs(log: str, floor: float) -> dict[str, dict[str, float]]:
    """Messages, median and largest processor seconds, and MiB above ``floor``, by what they were forked from.

    >>> line = "flwr-clientapp of client-exec-0, of the template: {} s, 30 MiB at most\\n"
    >>> costs(line.format("0.200") + line.format("0.400") + "ready", 20)
    {'template': {'messages': 2, 'seconds': 0.3, 'most': 0.4, 'above torch': 10.0}}
    """
    found: dict[str, list[Sequence[str]]] = {}
    for source, *values in LINE.findall(log):
        found.setdefault(source, []).append(values)
    result = {}
    for source, values in found.items():
        seconds = [float(each) for each, _ in values]
        memory = max(float(each) for _, each in values) - floor
        middle = round(statistics.median(seconds), 4)
        result[source] = {"messages": len(seconds), "seconds": middle, "most": max(seconds), "above torch": memory}
    return result


def measure(options: Any) -> dict[str, Any]:
    """The result of a command line."""
    settings = {"rounds": options.rounds, "dataset": "digits", "audit-every": 0}
    floor = float(subprocess.run([sys.executable, "-c", TORCH], capture_output=True, text=True, check=True).stdout)
    with tempfile.TemporaryDirectory() as scratch:
        outcome = launch(RunRequest(IMPORT_ROOT, Path(scratch), settings, options.supernodes), RecordingView())
        if outcome.status != "completed":
            raise RuntimeError(f"the federation failed: {outcome.error}")
        found = costs(outcome.run.log("zygote").read_text(), floor)
    return {"supernodes": options.supernodes, "rounds": options.rounds, "import torch": floor, "forked from": found}


def show(result: Mapping[str, Any]) -> None:
    rows = [
        (
            source,
            f"{each['messages']:.0f}",
            f"{each['seconds']:.2f}",
            f"{each['most']:.2f}",
            f"{each['above torch']:.0f}",
        )
        for source, each in result["forked from"].items()
    ]
    show_table("a message to a client", "forked from, messages, processor s, most, MiB above torch", rows)


if __name__ == "__main__":
    command(__doc__, measure, show, {"--rounds": 10, "--supernodes": 4})
