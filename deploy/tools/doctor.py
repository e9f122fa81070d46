"""``prunella doctor``: what could keep a federation from running here, each problem with its fix.

A check is a small function that returns a ``Check``; ``bad`` must be fixed, ``warn`` may matter. Packages are imported
in a fresh Python, since a broken pair of PyTorch and torchvision can take the process down.
"""

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from rich.table import Table
from rich.text import Text

from prunella.core.errors import ConfigError, DataError
from prunella.core.folders import unwritable
from prunella.deploy.errors import UsageError
from prunella.deploy.ports import Address, PortError, free_ports, is_open
from prunella.deploy.runtime import flower_release, requirements, settings
from prunella.deploy.runtime.processes import environment

Severity = Literal["ok", "warn", "bad"]
SCRIPTS = ("flower-superlink", "flower-supernode", "flower-superexec", "flwr-serverapp", "flwr-clientapp", "flwr")
PORTS = 8
EARLIEST = 1735689600  # 2025-01-01: a clock before this breaks certificates and signed metadata
# What a site that only trains may do without, and where it is needed.
BESIDES = {
    "torchvision": ("vision", "datasets of the hub and folders of images"),
    "scikit-learn": ("server", "machines that start a federation, and the dataset digits"),
}
SPACE = 2e9  # bytes a few runs and bundles may need


@dataclass(frozen=True)
class Check:
    """One finding; ``fix`` is what to do about it."""

    name: str
    state: Severity
    found: str
    fix: str = ""


def system() -> Check:
    """The launcher needs Linux to end its processes."""
    return Check("system", "ok" if sys.platform == "linux" else "bad", sys.platform, requirements.ELSEWHERE)


def python() -> Check:
    found = ".".join(map(str, sys.version_info[:3]))
    return Check("python", "ok" if sys.version_info >= (3, 11) else "bad", found, "install Python 3.11 or newer")


def packages() -> list[Check]:
    """Versions of what this was written against."""
    checks = []
    for name in ("flwr", "torch", *BESIDES):
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            found = ""
        right = bool(found) and (name != "flwr" or flower_release.is_started())
        fix = flower_release.install() if name == "flwr" else f"pip install '{name}'"
        wrong: Severity = "bad"
        if name in BESIDES:
            wrong, (extra, why) = "warn", BESIDES[name]
            fix = f"pip install 'prunella[{extra}]', for {why}"
        checks.append(Check(name, "ok" if right else wrong, found or "missing", fix))
    return checks


def _python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment())


def torch_pair() -> Check:
    """PyTorch and torchvision must come from the same build."""
    done = _python("import torch, torchvision; torchvision.ops.nms")
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    if done.returncode == 0:
        return Check("torch + torchvision", "ok", "import together")
    return Check("torch + torchvision", "bad", last, "reinstall both from the same index")


def gpu() -> Check:
    """A GPU is optional."""
    done = _python("import torch; print(torch.cuda.is_available() and torch.cuda.get_device_name())")
    found = done.stdout.strip()
    if found in ("", "False"):
        return Check("gpu", "ok", "none; runs use the processor")
    return Check("gpu", "ok", found)


def scripts() -> Check:
    """Flower's processes start one another by name, so their commands must be on PATH."""
    path = environment()["PATH"]
    missing = [name for name in SCRIPTS if not shutil.which(name, path=path)]
    return Check(
        "flower's commands",
        "bad" if missing else "ok",
        f"missing: {', '.join(missing)}" if missing else "found",
        "install flwr into the same environment as prunella",
    )


def ports() -> Check:
    try:
        free_ports(PORTS)
    except PortError as error:
        return Check("ports", "bad", str(error), "stop what holds them")
    return Check("ports", "ok", f"{PORTS} free on loopback")


def clock(now: float | None = None) -> Check:
    """SuperNode authentication tolerates 300 s; a wrong year breaks TLS."""
    now = time.time() if now is None else now
    shown = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now))
    return Check("clock", "ok" if now > EARLIEST else "bad", shown, "set the clock, best with NTP")


def writable(runs: Path) -> Check:
    """The runs directory, or the nearest one above it that exists."""
    if reason := unwritable(runs):
        return Check("runs", "bad", f"cannot write to {runs}: {reason}", "choose another directory with --runs")
    place = next(path for path in (runs.absolute(), *runs.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    state: Severity = "ok" if free > SPACE else "warn"
    return Check("runs", state, f"{runs} ({free / 1e9:.0f} GB free)", "free some space, or use another --runs")


def app_of(directory: Path | None) -> Check:
    """The app must be readable and every default valid."""
    try:
        path = directory or settings.app_directory()
        app = settings.read_app(path)
        settings.check(app, settings.defaults(app))
    except ConfigError as error:
        return Check("app", "bad", str(error), "correct the app's pyproject.toml, or name another with --app")
    return Check("app", "ok", f"{app['project']['name']}, {len(settings.defaults(app))} settings")


def data(directory: Path | None, dataset: str) -> Check:
    """The configured dataset can be read. One that nobody named may be another than the site's."""
    from prunella.tasks.data import has_test, load_test, make_task, require_folder

    try:
        chosen = dataset or str(settings.defaults(settings.read_app(directory or settings.app_directory()))["dataset"])
        require_folder(chosen)
        task = make_task("cnn", chosen, None)
        examples = load_test(chosen, None) if has_test(chosen) else None
    except (ConfigError, DataError, KeyError) as error:
        return Check("data", "bad" if dataset else "warn", str(error), "check the path or name after dataset=")
    held = f"{len(examples.y)} test examples" if examples else "no test examples, so set evaluation=clients"
    return Check("data", "ok", f"{chosen}: {task.shape}, {task.classes} classes, {held}")


def reachable(address: str) -> Check:
    """A SuperLink on another machine accepts connections from this one."""
    try:
        link = Address.parse(address)
    except UsageError as error:
        return Check("superlink", "bad", str(error), "give its name and its Fleet API port")
    try:
        socket.getaddrinfo(link.host, link.port)
    except OSError:
        return Check("superlink", "bad", f"this machine knows no {link.host}", "correct the name, or give its address")
    if is_open(link.port, link.host):
        return Check("superlink", "ok", f"{link} answers")
    fix = "start it, open its port in the firewall, or correct the name; it must listen on more than 127.0.0.1"
    return Check("superlink", "bad", f"{link} does not answer", fix)


def examine(app: Path | None, runs: Path, dataset: str, reach: str = "") -> list[Check]:
    """Every check. Those that import packages run only when the others have passed."""
    checks = [system(), python(), *packages(), scripts(), ports(), clock(), writable(runs)]
    checks += [reachable(reach)] if reach else []
    if must_fix(checks):
        return checks
    pair = [torch_pair()] if find_spec("torchvision") else []
    return [*checks, *pair, gpu(), app_of(app), data(app, dataset)]


def must_fix(checks: Iterable[Check]) -> bool:
    return any(check.state == "bad" for check in checks)


def table(checks: Iterable[Check]) -> Table:
    marks = {"ok": "[green]ok[/]", "warn": "[yellow]warn[/]", "bad": "[red]fix[/]"}
    shown = Table(show_header=False)
    for check in checks:
        text = f"{check.found}\n  -> {check.fix}" if check.state != "ok" else check.found
        shown.add_row(marks[check.state], check.name, Text(text))
    return shown
