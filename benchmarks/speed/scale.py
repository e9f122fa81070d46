"""What another client costs: seconds, processor time and memory of a round, by the number of clients on this machine.

The app of ``prunella run``, one federation for each of ``--sizes``, without audits: a SuperLink, a SuperNode and an
executor for every client, over gRPC on loopback; with ``--simulate`` virtual clients on Flower's simulation engine
(Ray), of which ``-c fraction=0.01`` takes one in a hundred each round. With ``--stock`` it is Flower's own ``FedAvg``
under Flower's own commands (``stock_app``).

Processor seconds of a round are those of all processes together, and of the two in the middle, from the end of the
first round to that of the last but one: after the last, processes end. Memory is PSS, each shared page counted once,
the most seen at the end of a round. What it takes to begin, the first round included, stands apart. The last row is the
straight line through the sizes: what one more client costs.

    python -m prunella.benchmarks.speed.scale [--sizes 5,10,20] [--rounds 4] [--simulate] [--stock] [-c KEY=VALUE]
        [--json FILE] [--read FILE ...] [--plot FILE]

``--read`` measures nothing: it shows, and with ``--plot`` draws, what is in files of ``--json``.
"""

import itertools
import json
import math
import os
import statistics
import tempfile
from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from prunella.benchmarks.engine.plots import style
from prunella.benchmarks.speed.bench import command, show_table
from prunella.benchmarks.speed.soak import ALL, soak
from prunella.benchmarks.speed.stock_app import write_stock_app
from prunella.deploy.runtime import settings

COLUMNS = {
    "begin": "{:.0f}",
    "seconds": "{:.1f}",
    "processor": "{:.2f}",
    "SuperLink": "{:.2f}",
    "ServerApp": "{:.2f}",
    "memory": "{:.0f}",
    "processes": "{:.0f}",
    "failures": "{:.0f}",
}
SERVER = {"SuperLink": "SuperLink", "ServerApp": "ServerApp and exporter", "processor": ALL}


def row(result: Mapping[str, Any]) -> dict[str, float]:
    """A federation's figures, of a result of ``soak``."""
    samples = result["samples"][:-1]
    first, last = (samples[at]["processor"] for at in (0, -1))
    spent = {name: (last.get(kind, 0) - first.get(kind, 0)) / (len(samples) - 1) for name, kind in SERVER.items()}
    times = [sample["time"] for sample in samples]
    return {
        "clients": result["supernodes"],
        "begin": samples[0]["processor"][ALL],
        "seconds": statistics.median(later - before for before, later in zip(times, times[1:], strict=False)),
        **spent,
        "memory": max(sample["memory"][ALL] for sample in result["samples"]),
        "processes": result["processes"],
        "failures": result["failures"],
    }


def another(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The slope of every column over the number of clients.

    >>> another([{"clients": n, **dict.fromkeys(COLUMNS, 3.0 * n)} for n in (1, 2, 4)])["memory"]
    3.0
    """
    clients = [each["clients"] for each in rows]
    return {name: round(float(np.polyfit(clients, [each[name] for each in rows], 1)[0]), 4) for name in COLUMNS}


def measure(options: Any) -> dict[str, Any]:
    """The result of a command line."""
    sizes = sorted({int(size) for size in options.sizes.split(",") if size.isdigit()})
    if len(sizes) < 2 or options.rounds < 3:
        raise ArgumentTypeError("at least two --sizes, as in 5,10,20, and three --rounds: two are left out")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rows = []
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            stock = write_stock_app(Path(folder) / "app") if options.stock else None
            app = settings.read_app(stock or settings.app_directory())
            own = [] if stock else ["audit-every=0"]
            given = settings.parse([f"rounds={options.rounds}", *own, *options.given], settings.defaults(app))
            settings.check(app, given)
            rows.append(row(soak(size, given, Path(folder), options.simulate, stock)))
        print({name: round(value, 2) for name, value in rows[-1].items()}, flush=True)
    how = {"simulate": options.simulate, "stock": options.stock, "rounds": options.rounds}
    return {**how, "rows": rows, "another": another(rows)}


def asked(options: Any) -> dict[str, Any]:
    """The result of a command line."""
    if not options.read:
        found = [measure(options)]
    else:
        found = [each for file in options.read for each in json.loads(file.read_text(encoding="utf-8"))["measured"]]
    if options.plot:
        plot(found, options.plot)
    return {"measured": found}


def name_of(result: Mapping[str, Any]) -> str:
    return f"{'virtual clients' if result['simulate'] else 'SuperNodes'}{' of stock Flower' if result['stock'] else ''}"


def plot(results: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Processor seconds of a round, and memory, over the number of clients; one line a measurement."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.5), layout="constrained")
    panels = {"processor": "processor seconds a round", "memory": "memory, MB"}
    for axes, (column, label) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        for each, look in zip(results, map(style, itertools.count()), strict=False):
            points = [(row["clients"], row[column]) for row in each["rows"]]
            dress: dict[str, Any] = {"color": look.colour, "marker": look.marker, "linestyle": look.dash}
            axes.plot(*zip(*points, strict=True), linewidth=1, label=each.get("name", name_of(each)), **dress)
        axes.set(xlabel="clients", ylabel=label, xscale="log", yscale="log")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(path, dpi=120)


def show(found: Mapping[str, Any]) -> None:
    for result in found["measured"]:
        show_one(result)


def show_one(result: Mapping[str, Any]) -> None:
    rows = [(f"{each['clients']:.0f}", *(form.format(each.get(name, math.nan)) for name, form in COLUMNS.items()))
            for each in result["rows"]]  # fmt: skip
    rows.append(("one more", *(f"{result['another'].get(name, math.nan):+.3f}" for name in COLUMNS)))
    heads = (
        "clients, processor s to begin, seconds a round, processor s of a round, of the SuperLink, of the ServerApp, "
        "MB (PSS), processes, left out"
    )
    show_table(f"{name_of(result)}, {result['rounds']} rounds", heads, rows, 110)


if __name__ == "__main__":
    given = {"dest": "given", "action": "append", "default": [], "metavar": "KEY=VALUE"}
    virtual = {"action": "store_true", "help": "virtual clients on Ray instead of SuperNodes"}
    peer = {"action": "store_true", "help": "Flower's own FedAvg, under Flower's own commands"}
    options = {"--sizes": "5,10,20", "--rounds": 4, "--simulate": virtual, "--stock": peer, "-c": given}
    options |= {"--json": {"type": Path}, "--read": {"type": Path, "nargs": "+"}, "--plot": {"type": Path}}
    command(__doc__, asked, show, options)
