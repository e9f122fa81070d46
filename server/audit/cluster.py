"""The audit worker of a run whose attacks run on a Ray cluster: it hands the jobs to Ray and takes the answers.

``python -m prunella.server.audit.cluster DIRECTORY PID JOBS ADDRESS`` stands where ``server.audit.worker`` stands: a
process of its own beside the ServerApp, started again if it dies, with the folder of jobs as the queue. Up to JOBS jobs
at a time are Ray tasks (``server.audit.remote`` on the other side); Ray places them, waits for a free machine, and runs
a task again if its process or its machine dies. A restarted worker submits again whatever has no answer.

It fails closed. A cluster that does not answer for ``CONNECTING`` seconds, another release there, a task that Ray gives
up: each is the answer of its job, a failed audit with a reason. The next job tries again. Training notices nothing.

ADDRESS is the setting ``audit-cluster`` (``server.audit.address``). Ray's own environment variables hold for the
connection, of which ``RAY_USE_TLS`` and the paths of the certificates matter most.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prunella.core.errors import AttackError, ConfigError
from prunella.core.files import write_json
from prunella.core.untrusted import clean
from prunella.server.audit.address import cluster_address, require_answer
from prunella.server.audit.job import JOB, PUBLIC, RESULT
from prunella.server.audit.parcel import deliver, pack
from prunella.server.audit.remote import Release, release
from prunella.server.audit.worker import NICE, failed, serve

CONNECTING = 60.0  # seconds that a cluster may be away, as one that is being restarted, before its jobs fail
PAUSE = 1.0  # seconds between two attempts to connect
RETRIES = 3  # of a task whose process or machine died; a task that only failed is not run again


def travelling() -> Callable[[Mapping[str, bytes], bytes | None, Release], dict[str, bytes] | str]:
    """The function that Ray carries to the other machine. A function inside another travels as its code, and so can say
    that there is no Prunella, or no such release of it, where it arrives."""

    def attack(files: Mapping[str, bytes], public: bytes | None, server: Release) -> dict[str, bytes] | str:
        try:
            from prunella.server.audit.remote import attack_here
        except ImportError:
            return "a machine of the Ray cluster lacks this release: pip install 'prunella[simulation]' there"
        return attack_here(files, public, server)

    return attack


def with_gpu(device: str, gpus: float) -> bool:
    """Whether a job for ``device`` asks Ray for a GPU, on a cluster that has ``gpus``. Raises ``ConfigError``."""
    if device.startswith("cuda") and not gpus:
        raise ConfigError(f"attack-device={device}: no machine of the Ray cluster has a GPU")
    return bool(gpus) and device != "cpu"


def away(how: str, error: Exception) -> str:
    """A reason for everybody. Ray's own words may name the host."""
    return f"the Ray cluster of audit-cluster cannot be {how} ({type(error).__name__}): the server's log says more"


class ClusterJobs:
    """The jobs under way on the cluster, up to ``limit`` at a time."""

    def __init__(self, setting: str, limit: int) -> None:
        self.setting, self.limit = setting, limit
        self.running: dict[Path, Any] = {}
        self._ray: Any = None  # the module, once it is connected
        self._public: Any = None
        self._away: float | None = None  # since when the cluster does not answer, of ``time.monotonic``
        self._next = 0.0  # attempt to connect

    def start(self, folders: list[Path]) -> None:
        """Submit as many of ``folders`` as the limit allows."""
        waiting = [f for f in folders if f not in self.running][: self.limit - len(self.running)]
        if not waiting or not self._connected(folders):
            return
        for folder in waiting:
            try:
                files = pack(folder)
                device = str(json.loads(files[JOB])["device"])
            except (OSError, ValueError, KeyError) as error:
                answer_failed(folder, f"the job cannot be read: {type(error).__name__}")
                continue
            self._submit(folder, files, device)

    def reap(self) -> None:
        """Write the answers that have arrived."""
        if not self.running:
            return
        done, _ = self._ray.wait(list(self.running.values()), num_returns=len(self.running), timeout=0)
        for folder in [folder for folder, task in self.running.items() if task in done]:
            self._take(folder, self.running.pop(folder))

    def stop(self) -> None:
        """Leave the cluster, which ends the tasks of this connection."""
        if self._ray is not None:
            self._ray.shutdown()

    def _connected(self, folders: list[Path]) -> bool:
        """Whether jobs can be submitted now; ``folders`` are answered where they cannot and will not."""
        now = time.monotonic()
        if self._ray is not None or now < self._next:
            return self._ray is not None
        self._next = now + PAUSE
        try:
            self._connect(folders[0].parent / PUBLIC)
        except ConnectionError as error:
            self._away = now if self._away is None else self._away
            if now < self._away + CONNECTING:
                return False
            reason, why = away("reached", error), str(error)
        except ConfigError as error:
            reason, why = str(error), ""
        except Exception as error:  # noqa: BLE001 - Ray's own, of another release or of a certificate; nothing was sent
            reason, why = away("used", error), str(error)
        else:
            self._away = None
            return True
        self._away = None
        for folder in folders:
            answer_failed(folder, reason, why)
        return False

    def _connect(self, public: Path) -> None:
        address = cluster_address(self.setting)
        require_answer(address)
        import ray

        ray.shutdown()  # of an attempt that failed halfway
        ray.init(address, logging_level=logging.ERROR, log_to_driver=False)
        self._public = ray.put(public.read_bytes()) if public.exists() else None
        self._ray = ray

    def _submit(self, folder: Path, files: Mapping[str, bytes], device: str) -> None:
        try:
            gpu = with_gpu(device, self._ray.cluster_resources().get("GPU", 0))
        except ConfigError as error:
            return answer_failed(folder, str(error))
        asked = self._ray.remote(num_cpus=1, num_gpus=int(gpu), max_retries=RETRIES)
        self.running[folder] = asked(travelling()).remote(files, self._public, release())

    def _take(self, folder: Path, task: Any) -> None:
        try:
            told = self._ray.get(task)
        except self._ray.exceptions.RayError as error:
            return answer_failed(folder, f"the Ray task ended without an answer: {type(error).__name__}", str(error))
        if isinstance(told, str):
            return answer_failed(folder, told)
        try:
            deliver(folder, told)
        except AttackError as error:
            answer_failed(folder, str(error))


def answer_failed(folder: Path, reason: str, why: str = "") -> None:
    """Answer the job in ``folder``: failed, for a ``reason`` that everybody may read. ``why`` is for the log."""
    write_json(folder / RESULT, asdict(failed(why or reason, reason)))


def main(queue: str, parent: str, limit: str, setting: str) -> None:
    os.nice(NICE)
    try:
        serve(Path(queue), int(parent), ClusterJobs(setting, int(limit)))
    except ConnectionError as error:  # the next process connects anew and submits again
        sys.exit(f"the Ray cluster that runs the audits has gone: {clean(str(error))}")


if __name__ == "__main__":
    main(*sys.argv[1:])
