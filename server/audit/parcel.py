"""A job's files as bytes, for a machine that shares no disk with the server, and its answer written back.

What is written is what the local worker leaves in a job's folder, file by file; ``result.json`` comes last, since it
says that the rest is there. ``server.audit.remote`` is the other side.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from prunella.core.errors import AttackError
from prunella.core.files import write_atomically
from prunella.server.audit.job import JOB, PATTERN, PRIOR, REBUILT, RESULT, SENT, TRUTH, VIEW
from prunella.server.audit.worker import JobResult

THERE = (JOB, VIEW, PATTERN, SENT, TRUTH)
BACK = (TRUTH, VIEW, REBUILT)  # a canary's view and truth are made where it is attacked
Parcel = Mapping[str, bytes]


def pack(folder: Path) -> dict[str, bytes]:
    """The files of the job in ``folder`` by name, with the network that its attack learnt before, if it has one.

    Raises ``OSError``, ``ValueError`` or ``KeyError`` where the job cannot be read."""
    files = {name: (folder / name).read_bytes() for name in THERE if (folder / name).exists()}
    job = json.loads(files[JOB])
    prior = job["settings"].get(f"{job['attack']}.prior")
    return files | ({PRIOR: Path(prior).read_bytes()} if prior else {})


def deliver(folder: Path, answer: Parcel) -> None:
    """Write the answer into the job's ``folder``. Raises ``AttackError``, and writes nothing, where it is none."""
    try:
        result = JobResult(**json.loads(answer[RESULT]))
    except (KeyError, ValueError, TypeError):
        raise AttackError("the answer of the Ray cluster cannot be read") from None
    if result.error is None and REBUILT not in answer:
        raise AttackError("the answer of the Ray cluster has no reconstruction")
    for name in (name for name in BACK if name in answer):
        _write(folder / name, answer[name])
    if VIEW in answer:
        (folder / PATTERN).unlink(missing_ok=True)  # its view is made
    _write(folder / RESULT, answer[RESULT])


def _write(path: Path, content: bytes) -> None:
    write_atomically(path, lambda temporary: temporary.write_bytes(content))
