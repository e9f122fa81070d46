"""A federation over a thin link: seconds of a round against its bytes, and what a cut in mid-upload costs.

``prunella superlink`` and ``submit`` in one network namespace, two ``prunella supernode`` in another, TLS and keys as
between machines, and between them the emulated link of ``thin_link`` (needs root, iproute2 and ``/dev/net/tun``; where
one is missing, a line says so and nothing is measured). Arms: ``dense`` is FedAvg of the whole model; ``pruned`` keeps
a tenth of its prunable weights under a random mask; ``pruned, int8`` also sends updates as int8. Rounds are those
after the first, in which the sites import PyTorch; ``on the wire`` is what the link carried in both directions from
the end of round 1 to that of the last, TLS, headers, requests for work and signs of life included.

    python -m prunella.benchmarks.speed.link [--rate 1e6] [--delay 0.1] [--loss 0] [--rounds 5] [-c KEY=VALUE]
        [--cut SECONDS,…] [--json FILE]

``--cut 8,30`` adds runs of ``dense`` in which nothing passes for so long, from the middle of an upload on.
"""

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from prunella.benchmarks.speed.bench import command, show_table
from prunella.benchmarks.speed.thin_link import CENTRE, Line, ThinLink, missing, thin_link
from prunella.server.store.read import read_metrics

SITES = ("north", "south")
COMMON = ("model=vgg-4", "audit-every=0", "defenses=none", "membership=false")  # 566 kB in float32
ARMS = {
    "dense": ("strategy=fedavg",),
    "pruned": ("strategy=random", "rate=0.9"),
    "pruned, int8": ("strategy=random", "rate=0.9", "values=int8"),
}
PATIENCE = 900.0  # seconds for anything to happen


class Deployed:
    """A SuperLink at the centre of a link and a SuperNode for each of ``SITES`` at its other end."""

    def __init__(self, link: ThinLink, folder: Path, stack: ExitStack) -> None:
        self.link, self.folder = link, folder
        self._stack = stack

    def start(self, where: str, log: str, *arguments: str) -> subprocess.Popen[bytes]:
        """A ``prunella`` command in a namespace; it ends with the stack."""
        root = str(Path(__file__).parents[2])
        env = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1", "TERM": "dumb", "COLUMNS": "200"}
        code = "from prunella.deploy.cli.main import app; app()"
        prunella = ["ip", "netns", "exec", where, sys.executable, "-c", code]
        with (self.folder / log).open("w") as out:
            process = subprocess.Popen([*prunella, *arguments], cwd=self.folder, env=env, stdout=out, stderr=out)
        self._stack.callback(_end, process)
        return process

    def open(self) -> None:
        """Raises ``RuntimeError`` with what was said where a step fails."""
        names = [part for site in SITES for part in ("--name", site)]
        self._finish("keys.log", self.start(self.link.centre, "keys.log", "keys", *names, "--host", CENTRE))
        self.start(self.link.centre, "superlink.log", "superlink")
        self._finish("register.log", self.start(self.link.centre, "register.log", "register"))
        for number, site in enumerate(SITES):
            which = ("--name", site, "--client-id", str(number), "--clients", str(len(SITES)))
            self.start(self.link.site, f"{site}.log", "supernode", "--superlink", f"{CENTRE}:9092", *which)

    def submit(self, run: str, *given: str) -> subprocess.Popen[bytes]:
        changed = [part for setting in (*COMMON, *given) for part in ("-c", setting)]
        return self.start(self.link.centre, f"{run}.log", "submit", "--run-id", run, *changed)

    def lines(self, run: str, metric: str) -> list[dict[str, Any]]:
        path = self.folder / "runs" / run
        return [line for line in read_metrics(path) if line["metric"] == metric] if path.exists() else []

    def finish(self, run: str, process: subprocess.Popen[bytes]) -> None:
        """Wait for a submitted run to end. Raises ``RuntimeError`` where it failed."""
        self._finish(f"{run}.log", process)

    def _finish(self, log: str, process: subprocess.Popen[bytes]) -> None:
        if process.wait(PATIENCE):
            raise RuntimeError((self.folder / log).read_text(errors="replace")[-2000:])


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Raises ``RuntimeError`` after ``PATIENCE`` seconds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"gave up waiting for {what}")
        time.sleep(0.05)


def row(place: Deployed, run: str, carried: float) -> dict[str, float]:
    """A run's figures, of its rounds after the first."""
    rounds = [line["value"] for line in place.lines(run, "round_seconds")][1:]
    counted = {way: [line["value"] for line in place.lines(run, "wire_bytes_total") if line["labels"] == {
        "direction": way}] for way in ("down", "up")}  # fmt: skip
    spent = {way: (values[-1] - values[0]) / len(rounds) for way, values in counted.items()}
    failures = {line["labels"]["reason"]: line["value"] for line in place.lines(run, "client_failures_total")}
    return {
        "seconds": statistics.median(rounds),
        "longest": max(rounds),
        **spent,
        "wire": carried / len(rounds),
        "left out": sum(failures.values()),
    }


def carried(link: ThinLink) -> int:
    """Bytes in both directions so far."""
    return link.up.carried + link.down.carried


def arm(place: Deployed, name: str, given: Sequence[str]) -> dict[str, float]:
    """A run to its end."""
    run = name.replace(", ", "-").replace(" ", "-")
    process = place.submit(run, *given)
    wait_for(lambda: place.lines(run, "round_seconds") or process.poll() is not None, "round 1")
    before = carried(place.link)
    place.finish(run, process)
    return row(place, run, carried(place.link) - before)


def cut_upload(place: Deployed, run: str, seconds: float, *given: str) -> dict[str, float]:
    """A run in which nothing passes for so long, from the middle of the uploads of round 2 on."""
    process = place.submit(run, *given)
    wait_for(lambda: place.lines(run, "round_seconds") or process.poll() is not None, "round 1")
    (first,) = (line["value"] for line in place.lines(run, "wire_bytes_total") if line["labels"] == {"direction": "up"})
    before, begin = carried(place.link), place.link.up.carried
    wait_for(lambda: place.link.up.carried > begin + 0.5 * first, "half an upload")
    place.link.cut.set()
    time.sleep(seconds)
    place.link.cut.clear()
    place.finish(run, process)
    return row(place, run, carried(place.link) - before)


def measure(options: Any) -> dict[str, Any]:
    """The result of a command line."""
    if options.rounds < 2:
        raise ArgumentTypeError("--rounds must be at least 2: the first one is left out")
    line = Line(options.rate, options.delay, options.loss)
    common = {"rate": line.rate, "delay": line.delay, "loss": line.loss, "rounds": options.rounds}
    if why := missing():
        return {**common, "missing": why, "rows": {}}
    given, rows = (f"rounds={options.rounds}", *options.given), dict[str, dict[str, float]]()
    with tempfile.TemporaryDirectory() as folder, thin_link(line) as link, ExitStack() as stack:
        place = Deployed(link, Path(folder), stack)
        place.open()
        for name, own in ARMS.items():
            rows[name] = arm(place, name, (*own, *given))
            print(name, rows[name], flush=True)
        for seconds in (float(part) for part in options.cut.split(",") if part):
            name = f"dense, cut for {seconds:g} s"
            rows[name] = cut_upload(place, f"cut-{seconds:g}", seconds, *ARMS["dense"], *given)
            print(name, rows[name], flush=True)
    return {**common, "missing": "", "rows": rows}


def show(result: Mapping[str, Any]) -> None:
    if result["missing"]:
        print(f"nothing measured: {result['missing']}")
        return
    rows, base = [], result["rows"]["dense"]
    for name, each in result["rows"].items():
        figures = (f"{each['seconds']:.1f}", f"{each['seconds'] / base['seconds']:.2f}", f"{each['longest']:.1f}")
        sizes = (f"{each[what] / 1e3:.0f}" for what in ("down", "up", "wire"))
        rows.append((name, *figures, *sizes, f"{each['wire'] / base['wire']:.2f}", f"{each['left out']:.0f}"))
    title = f"{result['rate'] / 1e6:g} Mbit/s, {2e3 * result['delay']:g} ms there and back, {result['loss']:.1%} lost"
    heads = "arm, seconds a round, ratio, longest, kB down, kB up, kB on the wire, ratio, left out"
    show_table(f"{title}, {result['rounds']} rounds", heads, rows, 120)


if __name__ == "__main__":
    given = {"dest": "given", "action": "append", "default": [], "metavar": "KEY=VALUE"}
    options = {"--rate": 1e6, "--delay": 0.1, "--loss": 0.0, "--rounds": 5, "--cut": "", "-c": given}
    command(__doc__, measure, show, {**options, "--json": {"type": Path}})
