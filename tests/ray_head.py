"""A Ray of the tests' own: one machine with one processor on loopback, ended with the processes it started."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from prunella.core.installation import IMPORT_ROOT
from prunella.deploy.ports import free_ports, is_open

ATTEMPTS = 5  # Ray gives its own start 30 seconds, which a busy machine may not keep


class RayHead:
    """The Ray whose files lie in ``folder``; ``scratch`` is where its tasks keep theirs."""

    def __init__(self, folder: Path) -> None:
        gcs, client = free_ports(2)
        self.folder, self.scratch, self.address = folder, folder / "tmp", f"ray://127.0.0.1:{client}"
        self.port = client
        self.scratch.mkdir()
        ray = str(Path(sys.executable).with_name("ray"))
        command = [ray, "start", "--head", "--block", "--num-cpus=1", f"--port={gcs}"]
        command += [f"--ray-client-server-port={client}", "--min-worker-port=0", "--max-worker-port=0"]
        command += ["--node-ip-address=127.0.0.1", "--include-dashboard=false", "--disable-usage-stats"]
        command += ["--object-store-memory=100000000", f"--temp-dir={folder / 'ray'}"]
        env = {
            **os.environ,
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # loopback, and nothing else
            "PYTHONPATH": str(IMPORT_ROOT),
            "TMPDIR": str(self.scratch),
        }
        with (folder / "log").open("wb") as log:
            self.process = psutil.Popen(command, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def started(self) -> bool:
        """Wait until it serves; False where it ended instead."""
        while self.process.poll() is None:
            if b"Ray runtime started" in (self.folder / "log").read_bytes() and is_open(self.port):
                return True
            time.sleep(0.1)
        return False

    def attacking(self) -> list[psutil.Process]:
        """Ray's processes in which an attack is under way: each has the worker as its child, and that a fork."""
        found = []
        for process in self.process.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if "prunella.server.audit.worker" in process.cmdline() and process.children():
                    found.append(process.parent())
        return [process for process in found if process is not None and process.name().startswith("ray::")]

    def end(self) -> None:
        """End this Ray and nobody else's: what it started, and what names its folder."""
        ours = [self.process]
        with suppress(psutil.NoSuchProcess):
            ours += self.process.children(recursive=True)
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if any(str(self.folder) in word for word in process.cmdline()):
                    ours.append(process)
        for process in ours:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(ours, timeout=60)


@contextmanager
def ray_head() -> Iterator[RayHead]:
    """A Ray that serves until the block ends."""
    for _ in range(ATTEMPTS):
        # Not below pytest's own folder: the paths of Ray's sockets may have 107 characters.
        head = RayHead(Path(tempfile.mkdtemp(prefix="ray-")))
        try:
            if head.started():
                yield head
                return
        finally:
            head.end()
            shutil.rmtree(head.folder, ignore_errors=True)
    raise AssertionError(f"Ray did not start in {ATTEMPTS} attempts")
