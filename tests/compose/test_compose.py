"""The images of docker/ built, and their federation brought up, run to its end, watched and taken down: for real.

Needs a Docker engine with compose, and skips with the reason where there is none. Building takes minutes the first
time, mostly PyTorch; after that the layers are there. Grafana is left out where its image cannot be had
(tests/compose/test_files.py checks what it would be given).
"""

import json
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from prunella.deploy.ports import free_ports
from tests.compose import engine
from tests.compose.engine import FILES, ROOT, Project

pytestmark = [pytest.mark.federation, pytest.mark.timeout(3600)]
NODES = [f"supernode-{i}" for i in range(4)]
MEMBERS = ["superlink", "executor", *NODES]
PORTS = ("PAGE_PORT", "PROMETHEUS_PORT", "GRAFANA_PORT", "FLEET_PORT")
ROUNDS = 6
REACH = """
import socket
for host, port in {targets}:
    try:
        socket.create_connection((host, port), 2).close()
        print("open")
    except OSError:
        print("closed")
"""


def service(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((FILES / "compose.yml").read_text())["services"][name])


def default_image(name: str) -> str:
    return str(service(name)["image"]).split(":-")[1].rstrip("}")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Images, built, and the environment that names them."""
    if reason := engine.missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("images")
    base = service("superlink")["build"]["args"]["BASE_IMAGE"].split(":-")[1].rstrip("}")
    if not engine.has(engine.build_settings().get("BASE_IMAGE", base)):
        pytest.skip(f"the base image {base} cannot be had here, and BASE_IMAGE names no other")
    found = engine.build_settings() | {"PRUNELLA_VERSION": "test"}
    Project("build", (), found).do("build", "superlink", "supernode-0", seconds=3000)
    return found | {"PROMETHEUS_IMAGE": engine.prometheus_image(folder / "prometheus", default_image("prometheus"))}


@contextmanager
def federation(settings: dict[str, str], *overlays: str, more: tuple[str, ...] = ()) -> Iterator[Project]:
    ports = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
    project = Project(f"prunella-{uuid.uuid4().hex[:8]}", overlays, settings | ports)
    try:
        project.up(*MEMBERS, *more)
        yield project
    finally:
        project.call("down", "--volumes", "--remove-orphans", "--timeout", "15")


def wait_for(condition: Callable[[], object], what: str, seconds: float = 600) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"gave up waiting for {what}"
        time.sleep(2)


def healthy(project: Project) -> bool:
    return project.states(MEMBERS, ".State.Health.Status") == ["healthy"] * len(MEMBERS)


def get(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return str(reply.read().decode())
    except OSError:
        return ""


def read(project: Project, run: str, name: str) -> list[dict[str, Any]]:
    """The objects in a file of the executor's disk, one or one a line."""
    text = project.python("executor", f"print(open('/runs/{run}/{name}').read())")
    return [json.loads(text)] if name.endswith(".json") else [json.loads(line) for line in text.splitlines() if line]


# First, while no other federation runs: two of them are too much for a small machine.
def test_with_tls_and_state_a_federation_outlives_its_containers(settings: dict[str, str], tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    prunella = [sys.executable, "-c", "from prunella.deploy.cli.main import app; app()"]
    made = [*prunella, "keys", "--out", str(keys), "--supernodes", "4", "--host", "superlink", "--host", "control"]
    subprocess.run(made, check=True, cwd=ROOT, capture_output=True)
    give = ["run", "--rm", "-v", f"{keys}:/keys", "--user", "0", "--entrypoint", "chown", "prunella-server:test"]
    if engine.docker(*give, "-R", "10001:10001", "/keys").returncode:
        pytest.skip("this engine does not let a container own files of the host")
    # Every site insists on a defense, and so compares what the run brings with the code in its own image.
    asked = {"PRUNELLA_KEYS": str(keys), "PRUNELLA_REQUIRE": "priprune"}
    with federation(settings | asked, "tls", "state") as project:
        fast = ("-c", "audit-every=0", "-c", "strategy=random")
        project.do("run", "--rm", "-T", "submit", "--run-id", "first", "-c", "rounds=2", *fast, seconds=400)
        project.do("down", "--timeout", "15")
        project.up(*MEMBERS)
        # The keys are registered still: the SuperNodes are let in before anybody submits anything.
        wait_for(lambda: healthy(project), "every container to be healthy again")
        project.do("run", "--rm", "-T", "submit", "--run-id", "second", "-c", "rounds=2", *fast, seconds=400)
        said = project.do("logs", "superlink")
        assert "--enable-supernode-auth" in said and "--insecure" not in said.splitlines()[0]
        assert 'require = "priprune"' in project.python("supernode-1", "print(open('/state/node.toml').read())")
        shown = project.python("supernode-1", "import os; print(*sorted(os.listdir('/keys/supernodes')))")
        assert shown == "node-1", "a SuperNode is shown its own key and no other"
        runs = project.python("executor", "import os; print(*sorted(os.listdir('/runs')))")
        assert runs == "first latest second"


@pytest.fixture(scope="module")
def base(settings: dict[str, str]) -> Iterator[Project]:
    more = ("prometheus",) if settings["PROMETHEUS_IMAGE"] else ()
    more += ("grafana",) if engine.has(default_image("grafana")) else ()
    with federation(settings, more=more) as project:
        wait_for(lambda: healthy(project), "every container to be healthy")
        yield project


def test_nobody_is_root_or_can_write_to_the_image(base: Project) -> None:
    for name in MEMBERS:
        assert base.python(name, "import os; print(os.getuid(), os.access('/opt/prunella', os.W_OK))") == "10001 False"
    assert base.states(MEMBERS, ".HostConfig.ReadonlyRootfs") == ["true"] * len(MEMBERS)


def test_a_supernode_reaches_the_fleet_port_and_nothing_else(base: Project) -> None:
    targets = [("superlink", 9092), ("superlink", 8000), ("control", 8000), ("executor", 9464), ("supernode-1", 9094)]
    said = base.python("supernode-0", REACH.format(targets=targets)).split()
    assert said == ["open", "closed", "closed", "closed", "closed"]
    assert base.python("executor", REACH.format(targets=[("control", 8000)])) == "open"


def test_the_job_runs_to_its_end_and_is_seen(base: Project) -> None:
    options = ["--run-id", "job", "-c", f"rounds={ROUNDS}", "-c", "audit-every=3"]
    run = [*base.command, "run", "--rm", "-T", "submit", *options]
    job = subprocess.Popen(run, env=base.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    page = f"http://127.0.0.1:{base.env['PAGE_PORT']}"
    seen = ""
    while job.poll() is None:
        seen = get(page) or seen
        time.sleep(1)
    said = job.communicate()[0]
    assert job.returncode == 0 and f"round {ROUNDS}/{ROUNDS}" in said, said + base.call("logs", "--tail=30").stdout
    assert "Prunella live" in seen and "run job" in seen and "<img" not in seen
    assert read(base, "job", "run.json")[0]["status"] == "completed"
    rounds = [line for line in read(base, "job", "metrics.jsonl") if line["metric"] == "clients_selected"]
    assert [line["value"] for line in rounds] == [4.0] * ROUNDS
    audits = read(base, "job", "audits.jsonl")
    # Nobody was asked for consent, so nobody gave it: the server attacked its own canary and no client.
    assert audits and {audit["kind"] for audit in audits} == {
        "control",
        "control-defended",
        "single",
        "single-defended",
    }
    assert "Starting Fleet API (gRPC-rere)" in base.do("logs", "superlink")


def test_prometheus_saw_the_rounds(base: Project) -> None:
    if not base.env["PROMETHEUS_IMAGE"]:
        pytest.skip("no image of Prometheus can be had, and it is not installed here")
    address = f"http://127.0.0.1:{base.env['PROMETHEUS_PORT']}/api/v1/query?query="
    answer = json.loads(get(f"{address}max_over_time(prunella_round%5B30m%5D)"))["data"]["result"]
    assert [series["metric"]["federation"] for series in answer] == ["compose"]
    assert ROUNDS - 3 <= float(answer[0]["value"][1]) <= ROUNDS, "it scrapes every 5 s; the last may go unseen"
    rules = json.loads(get(f"http://127.0.0.1:{base.env['PROMETHEUS_PORT']}/api/v1/rules"))["data"]["groups"]
    assert {rule["health"] for group in rules for rule in group["rules"]} == {"ok"}


def test_grafana_has_the_dashboards(base: Project) -> None:
    if not base.container("grafana"):
        pytest.skip("Grafana's image cannot be had here")
    address = f"http://admin:admin@127.0.0.1:{base.env['GRAFANA_PORT']}/api/search?type=dash-db"
    wait_for(lambda: len(json.loads(get(address) or "[]")) == 2, "Grafana's two dashboards", 120)
