"""What a machine of the Ray cluster does with a job: check the release, then have the local worker attack it.

The job is unpacked into a folder of its own, and ``WorkerProcess`` serves that folder exactly as it serves the queue of
a server, so that the verdict is the same. The process that does the work ends with Ray's, and a long attack that is
killed begins again: its ``descents/`` are gone with the folder. A folder that a killed process left is removed by the
next job on that machine.

Only the standard library and small modules are imported: this runs inside Ray's own process, which stays small.
"""

import json
import platform
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from filelock import FileLock, Timeout

from prunella.core.installation import digest_of_code
from prunella.server.audit.job import JOB, PRIOR, PUBLIC, REBUILT, RESULT, TRUTH, VIEW
from prunella.server.audit.process import MAX_STARTS, WorkerProcess

PREFIX = "prunella-audit-"
POLL = 0.1
ANSWER = (RESULT, REBUILT, VIEW, TRUTH)
Release = dict[str, str]


def release() -> Release:
    """What has to be equal on both machines, or an audit would be another one than the server asked for."""
    return {"Prunella's code": digest_of_code()[:12], "Python": platform.python_version(), "Ray": version("ray")}


def difference(server: Release, here: Release) -> str | None:
    """One line that names what differs between the server and this machine; None where nothing does."""
    odd = [f"{name} {here.get(name)} instead of {server[name]}" for name in server if here.get(name) != server[name]]
    return f"a machine of the Ray cluster has {', '.join(odd)}: install the server's release there" if odd else None


def attack_here(files: Mapping[str, bytes], public: bytes | None, server: Release) -> dict[str, bytes] | str:
    """The files of the answer to the job in ``files``; or why this machine gives none."""
    if why := difference(server, release()):
        return why
    with _scratch() as queue:
        folder = _unpack(files, public, queue)
        worker = WorkerProcess(queue, 1)
        try:
            while not (folder / RESULT).exists():
                if not worker.ensure():
                    return f"the audit worker ended {MAX_STARTS} times without an answer on the Ray cluster"
                time.sleep(POLL)
        finally:
            worker.close()
        return {name: (folder / name).read_bytes() for name in ANSWER if (folder / name).exists()}


def _unpack(files: Mapping[str, bytes], public: bytes | None, queue: Path) -> Path:
    folder = queue / "job"
    folder.mkdir(mode=0o700)
    if public is not None:
        (queue / PUBLIC).write_bytes(public)
    job = json.loads(files[JOB])
    if PRIOR in files:
        job["settings"][f"{job['attack']}.prior"] = str(folder / PRIOR)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (folder / JOB).write_text(json.dumps(job))
    return folder


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder for this process alone. It is locked as long as the process lives, which tells it from what is left."""
    place = Path(tempfile.gettempdir())
    _sweep(place)
    folder = place / f"{PREFIX}{secrets.token_hex(8)}"
    with FileLock(f"{folder}.lock", mode=0o600):
        folder.mkdir(mode=0o700)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            Path(f"{folder}.lock").unlink(missing_ok=True)


def _sweep(place: Path) -> None:
    """Remove the folders of processes that were killed: what clients sent stays nowhere for longer than it must."""
    for folder in (path for path in place.glob(f"{PREFIX}*") if path.is_dir()):
        try:
            with FileLock(f"{folder}.lock", timeout=0, mode=0o600):
                shutil.rmtree(folder, ignore_errors=True)
                Path(f"{folder}.lock").unlink(missing_ok=True)
        except (Timeout, OSError):  # its process is at work, or another user's
            continue
