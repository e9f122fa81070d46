"""Runs on disk: ``runs/<id>/``, with ``runs/latest`` pointing at the newest.

    launch.json          how the run was started, for ``--resume``
    run.json, metrics.jsonl, audits.jsonl, pictures/, checkpoint/, best/, report.html     written by the server
    ended.json           how a run of an app that keeps no run.json ended
    logs/                one file per process
    nodes/<i>/state/     what client i keeps between messages, owner-readable only
    .launcher, .writer   empty; locked by the launcher, and by the server that writes the run
    flower/              Flower's own directories (bundles, requests); removed when the run succeeds

An id, if none is given, is its start time and four random letters, so that ids sort by age: ``20261121-134501-kfzq``.
"""

import json
import os
import re
import secrets
import string
import time
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from prunella.core import folders
from prunella.deploy.errors import UsageError, why

LATEST = "latest"
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # a folder's name that no shell reads otherwise
LAUNCHER = ".launcher"  # locked by the launcher that runs it
UNREADABLE = "unreadable"  # the status to show for a run whose files are damaged
WRITER = ".writer"  # as in server.store.write, which is slow to import


class RunError(UsageError):
    """No such run, or a directory that cannot hold one."""


@dataclass(frozen=True)
class RunDir:
    """The directory of one run and the paths in it."""

    path: Path

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def flower(self) -> Path:
        return self.path / "flower"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def events(self) -> Path:
        return self.flower / "events.jsonl"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def node(self, index: int) -> Path:
        return self.path / "nodes" / str(index)

    def home(self, name: str) -> Path:
        """The FLWR_HOME of a process: SuperNodes that share one unpack the bundle at the same time and fail."""
        return self.flower / name

    def launch(self) -> dict[str, Any]:
        """The content of ``launch.json``, empty when it is missing."""
        return _object(self.path / "launch.json")

    def status(self) -> str:
        """The status in ``run.json``, "" before there is one."""
        return str(_object(self.path / "run.json").get("status", ""))

    def ended(self) -> str:
        """How a run of an app without ``run.json`` ended, "" before it did."""
        return str(_object(self.path / "ended.json").get("status", ""))

    def end(self, status: str) -> None:
        """Keep how such a run ended."""
        (self.path / "ended.json").write_text(json.dumps({"status": status}))


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise RunError(f"{path} is not a JSON object: restore it, or remove the whole run")
    return found


def new_id(now: float | None = None) -> str:
    """
    >>> new_id(0.0)[:9]
    '19700101-'
    """
    letters = "".join(secrets.choice(string.ascii_lowercase) for _ in range(4))
    return time.strftime("%Y%m%d-%H%M%S-", time.gmtime(now)) + letters


def create(runs: Path, run_id: str, nodes: int) -> RunDir:
    """The directory of a new run, private to its owner. Raises ``RunError``."""
    run = RunDir(runs.absolute() / run_id)
    if run_id == LATEST:
        raise RunError(f"{run_id!r} always means the newest run: choose another --run-id")
    if not ID.fullmatch(run_id):
        raise RunError(f"{run_id!r} is not a run id: use letters, digits and, not first, '-', '_' or '.'")
    try:
        runs.mkdir(parents=True, exist_ok=True)
        if run.path.exists():
            raise RunError(f"{run.path} exists already: choose another --run-id, or --resume {run_id}")
        run.path.mkdir(mode=0o700)
        prepare(run, nodes)
    except OSError as error:
        raise RunError(f"cannot write to {runs} ({why(error)}): choose another directory with --runs") from None
    return run


def locked(run: RunDir) -> AbstractContextManager[None]:
    """Hold a run for this process. Raises ``RunError`` when another launcher holds it."""
    busy = RunError(f"run {run.id} is still going on: wait for it, or stop it with Ctrl-C where it was started")
    return folders.locked(run.path / LAUNCHER, busy)


def written(run: RunDir) -> bool:
    """Whether a ServerApp on this machine is writing the run now, as far as this user can see."""
    return _held(run.path / WRITER)


def _held(file: Path) -> bool:
    """Whether another process has locked ``file``, as far as this user can see: a file that it may not write to, it
    cannot lock either."""
    if not os.access(file, os.W_OK):
        return False
    try:
        with FileLock(file, timeout=0, mode=0o600):
            return False
    except Timeout:
        return True


def state(run: RunDir) -> str:
    """The status to show for a run: one that says "running" but that no process holds was interrupted."""
    try:
        status = run.status() or run.ended() or "started"
    except RunError:
        return UNREADABLE
    if status not in ("running", "started"):
        return status
    return "running" if written(run) or _held(run.path / LAUNCHER) else "interrupted"


def prepare(run: RunDir, nodes: int) -> None:
    """Make the directories of a run, which may exist already; those of clients are for their owner only."""
    (run.path / "nodes").mkdir(exist_ok=True)
    for index in range(nodes):
        (run.node(index) / "state").mkdir(parents=True, exist_ok=True)
    for path in (run.path / "nodes", *(run.path / "nodes").glob("*"), *(run.path / "nodes").glob("*/state")):
        path.chmod(0o700)
    for path in (run.flower, run.logs):
        path.mkdir(exist_ok=True)
        path.chmod(0o700)


def point_latest(runs: Path, run_id: str) -> None:
    """Point ``runs/latest`` at ``run_id``, atomically."""
    link = runs / f".{LATEST}-{secrets.token_hex(4)}"
    link.symlink_to(run_id, target_is_directory=True)
    os.replace(link, runs / LATEST)


def _began(run: RunDir) -> float:
    """When a run began, in seconds: by its own word, else by the age of its files."""
    with suppress(RunError, KeyError, TypeError, ValueError):
        return datetime.fromisoformat(_object(run.path / "run.json")["started"]).timestamp()
    files = [path for path in (run.path / "launch.json", run.path) if os.path.exists(path)]
    return files[0].stat().st_mtime if files else 0.0


def every(runs: Path) -> list[RunDir]:
    """The runs, oldest first; the folder also holds results of ``prunella reproduce``. A folder that is closed to this
    user, as the runs of others are, counts as a run: ``state`` calls it unreadable."""
    folders = (path for path in runs.glob("*") if not path.is_symlink())
    found = [
        RunDir(path) for path in folders if _closed(path) or (path / "logs").is_dir() or (path / "run.json").exists()
    ]
    return sorted(found, key=lambda run: (_began(run), run.id))


def _closed(folder: Path) -> bool:
    """Whether a folder is closed to this user: what it holds cannot be known."""
    try:
        os.stat(folder / "run.json")
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def find(runs: Path, name: str) -> RunDir:
    """The run with this id, path or unambiguous beginning of an id; ``latest`` works. Raises ``RunError``."""
    for path in (runs / name, Path(name)):
        if _closed(path):
            raise RunError(f"{path} is not yours to read: ask its owner, or change its permissions")
        if (path / "launch.json").exists() or (path / "run.json").exists():
            return RunDir(path.resolve())
    if folders := [path for path in (runs / name, Path(name)) if name and path.exists()]:
        raise RunError(f"{folders[0]} holds no run: there is neither a launch.json nor a run.json in it")
    known = [run.id for run in every(runs)]
    matching = [known_id for known_id in known if name and known_id.startswith(name)]
    if len(matching) == 1:
        return RunDir((runs / matching[0]).resolve())
    listed = f"the newest are {', '.join(known[-3:])}" if known else "there is none yet: start one with `prunella run`"
    raise RunError(f"no run {name!r} in {runs}: {listed}")
