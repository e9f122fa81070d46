"""A Ray of the tests' own: one machine with one processor on loopback, ended with the processes it started."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from prunella.core.installation import IMPORT_ROOT
from prunella.deploy.ports import free_ports, is_open


class RayHead:
    """``process`` is the command, whose children are Ray's services; ``scratch`` is where its tasks keep files."""

    def __init__(self, process: psutil.Popen, port: int, scratch: Path) -> None:
        self.process, self.scratch = process, scratch
        self.address = f"ray://127.0.0.1:{port}"

    def attacking(self) -> list[psutil.Process]:
        """Ray's processes in which an attack is under way: each has the worker as its child, and that a fork."""
        found = []
        for process in self.process.children(recursive=True):
            try:
                if "prunella.server.audit.worker" in process.cmdline() and process.children():
                    found.append(process.parent())
            except psutil.NoSuchProcess:
                continue
        return [process for process in found if process is not None and process.name().startswith("ray::")]

    def end(self) -> None:
        """End this Ray and nobody else's."""
        if self.process.poll() is not None:
            return
        processes = [self.process, *self.process.children(recursive=True)]
        for process in processes:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(processes, timeout=60)


@contextmanager
def ray_head(**environment: str) -> Iterator[RayHead]:
    """A running Ray, with ``environment`` beside what it needs."""
    # Not below pytest's own folder: the paths of Ray's sockets may have 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    (folder / "tmp").mkdir()
    gcs, client = free_ports(2)
    ray = str(Path(sys.executable).with_name("ray"))
    command = [ray, "start", "--head", "--block", "--num-cpus=1", f"--port={gcs}"]
    command += [f"--ray-client-server-port={client}", "--min-worker-port=0", "--max-worker-port=0"]
    command += ["--node-ip-address=127.0.0.1", "--include-dashboard=false", "--disable-usage-stats"]
    command += ["--object-store-memory=100000000", f"--temp-dir={folder / 'ray'}"]
    env = {
        **os.environ,
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # loopback, and nothing else
        "PYTHONPATH": str(IMPORT_ROOT),
        "TMPDIR": str(folder / "tmp"),
        **environment,
    }
    with (folder / "log").open("wb") as log:
        process = psutil.Popen(command, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    head = RayHead(process, client, folder / "tmp")
    try:
        for _ in range(1200):
            if is_open(client) and b"Ray runtime started" in (folder / "log").read_bytes():
                break
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.1)
        else:
            raise AssertionError("Ray does not start")
        yield head
    finally:
        head.end()
        shutil.rmtree(folder, ignore_errors=True)
