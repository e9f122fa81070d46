"""The audit worker's process, seen from the server: started for work, restarted if it dies, ended with the run.

It attacks on this machine (``server.audit.worker``), or has a Ray cluster attack (``server.audit.cluster``).
"""

import os
import subprocess
import sys
from pathlib import Path

from prunella.core.installation import IMPORT_ROOT
from prunella.server.audit.job import STOP

MAX_STARTS = 5  # without an answer in between; a worker that cannot start would be started for ever
ENDING = 60.0  # seconds


class WorkerProcess:
    """The process that serves ``queue``, up to ``parallel`` jobs at a time, on the Ray ``cluster`` if one is named."""

    def __init__(self, queue: Path, parallel: int, cluster: str = "") -> None:
        self.queue, self.parallel, self.cluster = queue, parallel, cluster
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0

    def ensure(self) -> bool:
        """Start the worker unless it is running. False once it has ended ``MAX_STARTS`` times without an answer."""
        if self._process is not None and self._process.poll() is None:
            return True
        if self._starts == MAX_STARTS:
            return False
        self._starts += 1
        (self.queue / STOP).unlink(missing_ok=True)
        root = str(IMPORT_ROOT)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]),
            "OMP_NUM_THREADS": "1",
        }
        arguments = str(self.queue), str(os.getpid()), str(self.parallel)
        command = [sys.executable, "-m", "prunella.server.audit.worker", *arguments]
        if self.cluster:
            command = [sys.executable, "-m", "prunella.server.audit.cluster", *arguments, self.cluster]
        self._process = subprocess.Popen(command, env=environment, cwd=root, stdin=subprocess.DEVNULL)
        return True

    def answered(self) -> None:
        """An answer has arrived: the worker works, so ``ensure`` counts its starts from zero again."""
        self._starts = 0

    def close(self) -> None:
        """End the worker and the attacks it is running."""
        if self._process is None:
            return
        (self.queue / STOP).touch()
        self._process.terminate()
        try:
            self._process.wait(timeout=ENDING)
        except subprocess.TimeoutExpired:  # on an overloaded machine; the run itself has ended well
            self._process.kill()
            self._process.wait()
