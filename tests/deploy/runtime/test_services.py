import json
import tomllib
from pathlib import Path

import pytest

from prunella.deploy.runs import RunDir, create
from prunella.deploy.runtime import services
from prunella.deploy.runtime.processes import CONTROL
from prunella.deploy.runtime.zygote import CLIENT_AFTER, SERVER_AFTER

PORTS = services.Ports.of([20001, 20002, 20003, 20004])


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return create(tmp_path / 'a "quoted" dir', "one", 2)


def test_any_path_survives_the_node_config(run: RunDir) -> None:
    config = {"partition-id": 1, "state-dir": str(run.node(1)), "audit": "deny", "x": 0.5, "y": True}
    assert tomllib.loads(services.write_node_config(run, 1, config).read_text()) == config


def test_warm_federation(run: RunDir) -> None:
    found = {p.name: p for p in services.deployment(run, PORTS, [Path("a.toml"), Path("b.toml")], warm=True)}
    assert list(found) == ["superlink", "supernode-0", "supernode-1", "server-exec", "client-exec-0", "client-exec-1"]
    assert all("process" in found[name].args for name in ("superlink", "supernode-0"))
    assert found["supernode-0"].wait_for == (20002,) and found["client-exec-1"].wait_for == (20004,)
    assert found["server-exec"].after == SERVER_AFTER and found["client-exec-0"].after == CLIENT_AFTER
    homes = [found[name].env["FLWR_HOME"] for name in ("superlink", "supernode-0", "supernode-1")]
    assert len(set(homes)) == 3, "SuperNodes that share a home install the bundle at once and fail"
    assert found["client-exec-1"].env["FLWR_HOME"] == found["supernode-1"].env["FLWR_HOME"]
    assert found["client-exec-1"].task_log.endswith("client-1.log")


def test_stock_federation_leaves_superexecs_to_flower(run: RunDir) -> None:
    found = services.deployment(run, PORTS, [Path("a.toml"), Path("b.toml")], warm=False)
    assert [p.command for p in found] == ["flower-superlink", "flower-supernode", "flower-supernode"]
    assert not any("--isolation" in p.args for p in found)


def test_every_address_is_loopback_and_dependencies_are_never_installed(run: RunDir) -> None:
    found = services.deployment(run, PORTS, [Path("a.toml"), Path("b.toml")], True) + services.simulation(run, PORTS)
    for process in found:
        for flag, value in zip(process.args, process.args[1:], strict=False):
            if flag in ("--host", "--superlink", "--runtime-api-address", "--fleet-api-address"):
                assert value.split(":")[0] == "127.0.0.1"
    links = [p for p in found if p.name == "superlink"]
    assert all({"--insecure", "--host", services.NO_INSTALL} <= set(p.args) for p in links)
    assert "--simulation" in links[1].args


def test_the_request_for_control(run: RunDir) -> None:
    process = services.control(run, PORTS, {"app": "/app", "config": {"rounds": 3}})
    request = json.loads(Path(process.args[0]).read_text())
    assert process.command == CONTROL
    assert request == {
        "app": "/app",
        "address": "127.0.0.1:20001",
        "config": {"rounds": 3},
        "out": str(run.events),
    }
