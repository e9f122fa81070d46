"""Whether a federation's memory stays flat, and what a SuperNode costs: every process looked at after every round.

``prunella run`` over gRPC on loopback, its page asked for figures once a round as Prometheus would. RSS is what a
process holds, the pages it shares with the process it was forked from included; the last row is all processes
together, each shared page counted once (PSS). ``growth`` is the slope of a straight line through the rounds after the
first quarter, in MB per 100 rounds; flat means less than 1 % of the mean. ClientApps live for one message and are left
out: what they leave behind would show in the row below.

    python -m prunella.benchmarks.speed.soak [--rounds 200] [--supernodes 4] [-c KEY=VALUE] [--json FILE] [--plot FILE]
"""

import itertools
import os
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from prunella.benchmarks.engine.plots import style
from prunella.benchmarks.speed.bench import command, show_table
from prunella.benchmarks.speed.round import RecordingView
from prunella.deploy.console.progress import Line
from prunella.deploy.local.launcher import launch
from prunella.deploy.ports import LOOPBACK, free_ports
from prunella.deploy.runtime import settings
from prunella.deploy.runtime.request import RunRequest

# A process by the name it gives itself; the audit worker and the one all are forked from by their command lines.
KINDS = {
    "SuperLink": ("superlink", "flower-superlin"),  # as Linux cuts the name of Flower's own command
    "ServerApp and exporter": "flwr-serverapp",
    "SuperNodes": "supernode-",
    "executors": ("client-exec", "server-exec"),
}
ALL = "all together"
FLAT = 0.01
Sample = dict[str, Any]


def kind_of(process: psutil.Process) -> str:
    name = process.name()
    found = next((kind for kind, start in KINDS.items() if name.startswith(start)), "")
    return found or ("audit worker" if "prunella.server.audit.worker" in process.cmdline() else "")


def look() -> Sample:
    """MB by kind of process: the mean RSS, and PSS over all of our descendants; their number, open files and the
    processor seconds, by kind and in all, that they and those they outlived have used."""
    resident: dict[str, list[int]] = {}
    spent = {ALL: 0.0}
    whole = files = count = 0
    for process in psutil.Process().children(recursive=True):
        try:
            memory, kind = process.memory_full_info(), kind_of(process)
            files += process.num_fds()
            used = sum(process.cpu_times()[:4])  # its own and those of children that have ended
        except psutil.Error:  # it has ended meanwhile
            continue
        count, whole = count + 1, whole + memory.pss
        spent[ALL] += used
        if kind:
            spent[kind] = spent.get(kind, 0.0) + used
            resident.setdefault(kind, []).append(memory.rss)
    found = {kind: statistics.mean(values) / 1e6 for kind, values in resident.items()}
    return {"memory": found | {ALL: whole / 1e6}, "files": files, "processes": count, "processor": spent}


class Watcher(RecordingView):
    """A view that takes a sample and a scrape besides when a round ends."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.samples: list[Sample] = []
        self.seconds: list[float] = []
        self.failures, self._address = 0.0, address

    def show(self, lines: Iterable[Line]) -> None:
        for line in lines:
            if line["metric"] == "client_failures_total":
                self.failures = max(self.failures, line["value"])
            if line["metric"] == "round_seconds":
                self.seconds.append(line["value"])
                self.samples.append({"round": line["round"], "time": time.time(), **look()})
                self._scrape()

    def _scrape(self) -> None:
        with suppress(OSError), urllib.request.urlopen(f"http://{self._address}/metrics", timeout=10) as page:
            page.read()  # after the last round the page is gone


def growth(rounds: Iterable[float], values: Iterable[float]) -> float:
    """Slope of the straight line nearest to the points, per 100 rounds.

    >>> round(growth([1, 2, 3, 4], [5.0, 5.5, 6.0, 6.5]), 6)
    50.0
    """
    x, y = np.asarray(list(rounds)), np.asarray(list(values))
    return float(np.polyfit(x, y, 1)[0]) * 100 if len(x) > 1 else 0.0


def summary(samples: list[Sample]) -> dict[str, dict[str, float | bool]]:
    """By kind of process: MB when a quarter of the rounds was over and at the end, and the growth since."""
    settled = samples[len(samples) // 4 :]
    kinds = [kind for kind in (*KINDS, "audit worker", ALL) if all(kind in each["memory"] for each in settled)]
    rows: dict[str, dict[str, float | bool]] = {}
    for kind in kinds:
        values = [each["memory"][kind] for each in settled]
        slope = growth([each["round"] for each in settled], values)
        flat = slope < FLAT * statistics.mean(values)
        rows[kind] = {"begin": values[0], "end": values[-1], "most": max(values), "growth": slope, "flat": flat}
    return rows


def soak(
    supernodes: int, given: Mapping[str, Any], folder: Path, simulate: bool = False, stock: Path | None = None
) -> dict[str, Any]:
    """A run to its end; its samples, its rows, and how the rounds went. What a failed run had come to is not lost.
    ``stock`` is an app to run with Flower's own commands in the place of ours."""
    address = f"{LOOPBACK}:{free_ports(1)[0]}"
    watcher = Watcher(address)
    app = stock or settings.app_directory()
    request = RunRequest(app, folder, {**given, "metrics-address": address}, supernodes)
    request = replace(request, simulate=simulate, stock=stock is not None)
    outcome = launch(request, watcher)
    samples = watcher.samples
    if not samples:
        raise RuntimeError(f"the federation failed: {outcome.error}; see {outcome.run.path}/logs")
    found: dict[str, Any] = {
        "status": outcome.status,
        "supernodes": supernodes,
        "rounds": len(samples),
        "samples": samples,
    }
    found |= {"seconds": statistics.median(watcher.seconds), "failures": watcher.failures, "memory": summary(samples)}
    found["files"] = [samples[len(samples) // 4]["files"], samples[-1]["files"]]
    return {**found, "processes": max(each["processes"] for each in samples)}


def show(result: Mapping[str, Any]) -> None:
    title = f"{result['supernodes']} SuperNodes, {result['rounds']} rounds of {result['seconds']:.1f} s (median)"
    rows = []
    for kind, row in result["memory"].items():
        numbers = (f"{row['begin']:.1f}", f"{row['end']:.1f}", f"{row['most']:.1f}", f"{row['growth']:+.2f}")
        rows.append((kind, *numbers, "yes" if row["flat"] else "no"))
    show_table(title, "MB, after a quarter, at the end, most, per 100 rounds, flat", rows, 110)
    before, after = result["files"]
    print(f"open files {before} then {after}; at most {result['processes']} processes")
    print(f"replies left out: {result['failures']:.0f}; the run: {result['status']}")


def plot(result: Mapping[str, Any], path: Path) -> None:
    """Memory by round, one line a kind."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    for kind, look in zip(result["memory"], map(style, itertools.count()), strict=False):
        seen = [each for each in result["samples"] if kind in each["memory"]]
        rows = [each["round"] for each in seen], [each["memory"][kind] for each in seen]
        dress: dict[str, Any] = {"color": look.colour, "marker": look.marker, "linestyle": look.dash}
        axes.plot(*rows, label=kind, markevery=0.2, linewidth=1, **dress)
    axes.set(xlabel="round", ylabel="memory, MB", ylim=(0, None))
    figure.legend(loc="outside right upper", frameon=False, fontsize="small")
    figure.savefig(path, dpi=120)


def asked(options: Any) -> dict[str, Any]:
    """The result of a command line."""
    app = settings.read_app(settings.app_directory())
    given = settings.parse([f"rounds={options.rounds}", *options.given], settings.defaults(app))
    settings.check(app, given)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        result = soak(options.supernodes, given, Path(folder))
    if options.plot:
        plot(result, options.plot)
    return result


if __name__ == "__main__":
    given = {"dest": "given", "action": "append", "default": [], "metavar": "KEY=VALUE"}
    options = {"--rounds": 200, "--supernodes": 4, "-c": given, "--json": {"type": Path}, "--plot": {"type": Path}}
    sys.exit(command(__doc__, asked, show, options)["status"] != "completed")
