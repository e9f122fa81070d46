"""A real Prometheus on the files of deploy/prometheus, for tests: what changes is targets, ports and patience."""

import json
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
FILES = ROOT / "deploy" / "prometheus"
INTERVAL = "1s"
NEEDS = "Prometheus is not installed (Debian: apt-get install prometheus)"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """Queries over Prometheus' own HTTP interface."""

    def __init__(self, address: str) -> None:
        self.address = address

    def get(self, path: str, **parameters: str) -> Any:
        url = f"http://{self.address}{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as reply:
            return json.loads(reply.read())["data"]

    def ask(self, expression: str, seconds: float = 10.0) -> list[tuple[dict[str, str], float]]:
        """Labels and value of every series; none if there is none for ``seconds``: a busy machine skips scrapes."""
        end = time.monotonic() + seconds
        while True:
            found = self.get("/api/v1/query", query=expression)
            assert found["resultType"] == "vector", expression
            if found["result"] or time.monotonic() > end:
                return [(series["metric"], float(series["value"][1])) for series in found["result"]]
            time.sleep(0.2)

    def value(self, expression: str) -> float:
        ((_, value),) = self.ask(expression)
        return value

    def until(self, expression: str) -> None:
        """Wait until ``expression`` gives anything."""
        assert self.ask(expression, 60.0), f"nothing for {expression}"


def write_files(folder: Path, targets: Mapping[str, str]) -> Path:
    """The committed configuration with shorter intervals and ``targets`` (federation to address)."""
    shutil.copytree(FILES, folder)
    config = yaml.safe_load((folder / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": INTERVAL, "scrape_timeout": INTERVAL, "evaluation_interval": INTERVAL}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    entries = [{"targets": [address], "labels": {"federation": name}} for name, address in targets.items()]
    (folder / "targets.yml").write_text(yaml.safe_dump(entries))
    return folder / "prometheus.yml"


def _await_ready(address: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 30
    while True:
        try:
            urllib.request.urlopen(f"http://{address}/-/ready", timeout=2).close()
            return
        except OSError as error:
            assert process.poll() is None and time.monotonic() < end, f"Prometheus does not answer: {error}"
            time.sleep(0.1)


@contextmanager
def prometheus(folder: Path, targets: Mapping[str, str]) -> Iterator[Server]:
    config, address = write_files(folder / "etc", targets), f"127.0.0.1:{free_port()}"
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*command, f"--web.listen-address={address}"], stdout=log, stderr=log)
        try:
            _await_ready(address, process)
            yield Server(address)
        finally:
            process.terminate()
            process.wait(timeout=20)
