"""A Docker engine and compose, for tests: what there is here, and the federation of docker/ brought up with it."""

import os
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = ROOT / "docker"
LOCAL_BASE = "local/python:3.11"  # what a machine that can pull no image may have made from its distribution
PROMETHEUS = f"""FROM {LOCAL_BASE}
COPY prometheus /bin/prometheus
RUN install -d -o 65534 -g 65534 /prometheus
USER 65534
ENTRYPOINT ["/bin/prometheus"]
"""


def docker(*arguments: str, seconds: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=seconds)


def missing() -> str:
    """Why there is no engine here; "" when there is one."""
    if not shutil.which("docker"):
        return "no docker on this machine"
    try:
        answers = docker("info").returncode == 0
    except subprocess.TimeoutExpired:
        answers = False
    if not answers:
        return "`docker info` fails: no engine runs, or this user may not use it"
    return "" if compose_command() else "neither `docker compose` nor `docker-compose` is installed"


def compose_command() -> list[str]:
    if docker("compose", "version").returncode == 0:
        return ["docker", "compose"]
    return ["docker-compose"] if shutil.which("docker-compose") else []


def has(image: str) -> bool:
    """Whether an image is here, or can be had."""
    return docker("image", "inspect", image).returncode == 0 or docker("pull", "-q", image, seconds=600).returncode == 0


def reachable(host: str) -> bool:
    try:
        socket.create_connection((host, 443), timeout=5).close()
    except OSError:
        return False
    return True


def build_settings() -> dict[str, str]:
    """Where images and wheels come from on this machine. The environment decides, if it says anything.

    Without a way to PyTorch's own index the registry's builds are taken, CUDA and all: 7 GB instead of 2, made once.
    """
    found = {"BUILD_NETWORK": "host"}
    if docker("image", "inspect", LOCAL_BASE).returncode == 0:
        found["BASE_IMAGE"] = LOCAL_BASE
    if not reachable("download.pytorch.org"):
        found["TORCH_INDEX"] = ""
    return found | {name: os.environ[name] for name in ("BASE_IMAGE", "TORCH_INDEX") if name in os.environ}


def prometheus_image(folder: Path, usual: str) -> str:
    """The usual image, else one made of this machine's own Prometheus, else ""."""
    if has(usual):
        return usual
    binary = shutil.which("prometheus")
    if not binary or not has(LOCAL_BASE):
        return ""
    folder.mkdir()
    shutil.copy(binary, folder / "prometheus")
    (folder / "Dockerfile").write_text(PROMETHEUS)
    built = docker("build", "-q", "-t", "prunella-test-prometheus", str(folder), seconds=300)
    assert built.returncode == 0, built.stderr
    return "prunella-test-prometheus"


class Project:
    """One compose project: the files of docker/ under a name of its own."""

    def __init__(self, name: str, overlays: Sequence[str], env: dict[str, str]) -> None:
        files = [FILES / f"{part}.yml" for part in ("compose", *(f"compose.{overlay}" for overlay in overlays))]
        self.name, self.env = name, {**os.environ, **env}
        self._containers: dict[str, str] = {}
        self.command = [*compose_command(), "-p", name, *(part for file in files for part in ("-f", str(file)))]

    def call(self, *arguments: str, seconds: float = 300) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, *arguments], env=self.env, capture_output=True, text=True, timeout=seconds
        )

    def do(self, *arguments: str, seconds: float = 300) -> str:
        done = self.call(*arguments, seconds=seconds)
        assert done.returncode == 0, f"{' '.join(arguments)}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout

    def up(self, *services: str) -> None:
        self.do("up", "-d", "--no-build", *services)
        self._containers = {}

    def container(self, service: str) -> str:
        """The id of a container, "" without one. Compose is slow to answer: it is asked once after ``up``."""
        if service not in self._containers:
            self._containers[service] = self.do("ps", "-q", service).strip()
        return self._containers[service]

    def states(self, services: Sequence[str], field: str) -> list[str]:
        """A field of ``docker inspect`` for each service."""
        containers = [self.container(service) for service in services]
        return docker("inspect", "--format", f"{{{{{field}}}}}", *containers).stdout.split()

    def python(self, service: str, code: str) -> str:
        """What Python says in a service's container."""
        done = docker("exec", self.container(service), "python3", "-c", code)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()
