"""Which processes a federation on this machine has, where they listen and what they keep apart."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from prunella.deploy.local.topology import Ports, deployment, node_config, simulation
from prunella.deploy.runs import RunDir, create
from prunella.deploy.runtime import services
from prunella.deploy.runtime.callers import ONE_USER
from prunella.deploy.runtime.processes import CLIENT_AFTER, SERVER_AFTER
from prunella.deploy.runtime.request import RunRequest

PORTS = Ports.of([20001, 20002, 20003, 20004])


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return create(tmp_path / 'a "quoted" dir', "one", 2)


@pytest.fixture
def request_(run: RunDir, smallest_app: Path) -> RunRequest:
    return RunRequest(smallest_app, run.path.parent, {}, 2, audit="deny")


def test_forked_federation(run: RunDir, request_: RunRequest) -> None:
    found = {p.name: p for p in deployment(run, PORTS, request_)}
    assert list(found) == ["superlink", "supernode-0", "supernode-1", "server-exec", "client-exec-0", "client-exec-1"]
    assert all("process" in found[name].args for name in ("superlink", "supernode-0"))
    assert found["supernode-0"].wait_for == (20002,) and found["client-exec-1"].wait_for == (20004,)
    assert found["server-exec"].after == SERVER_AFTER and found["client-exec-0"].after == CLIENT_AFTER
    homes = [found[name].env["FLWR_HOME"] for name in ("superlink", "supernode-0", "supernode-1")]
    assert len(set(homes)) == 3, "SuperNodes that share a home install the bundle at once and fail"
    assert found["client-exec-1"].env["FLWR_HOME"] == found["supernode-1"].env["FLWR_HOME"]
    assert found["client-exec-1"].task_log.endswith("client-1.log")


def test_stock_federation_leaves_superexecs_to_flower(run: RunDir, request_: RunRequest) -> None:
    found = deployment(run, PORTS, replace(request_, stock=True))
    assert [p.command for p in found] == ["flower-superlink", "flower-supernode", "flower-supernode"]
    assert not any("--isolation" in p.args for p in found)


def test_every_address_is_loopback_and_dependencies_are_never_installed(run: RunDir, request_: RunRequest) -> None:
    found = deployment(run, PORTS, request_) + simulation(run, PORTS)
    for process in found:
        for flag, value in zip(process.args, process.args[1:], strict=False):
            if flag in ("--host", "--superlink", "--runtime-api-address", "--fleet-api-address"):
                assert value.split(":")[0] == "127.0.0.1"
    configs = [p.args[p.args.index("--node-config") + 1] for p in found if p.name.startswith("supernode")]
    assert [tomllib.loads(Path(path).read_text())["partition-id"] for path in configs] == [0, 1]
    links = [p for p in found if p.name == "superlink"]
    assert all({"--insecure", "--host", services.NO_INSTALL} <= set(p.args) for p in links)
    assert "--simulation" in links[1].args
    servers = [p for p in found if p.name.startswith("super")]
    assert len(servers) == 4 and all(p.env[ONE_USER] == "1" for p in servers), "no other user may call them"


def test_a_simulation_s_ray_asks_for_a_token_of_the_run_s(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs what any process sends that reaches its ports."""
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    both = [simulation(run, PORTS) for _ in range(2)]
    tokens = [{process.env["RAY_AUTH_TOKEN"] for process in found} for found in both]
    assert all(process.env["RAY_AUTH_MODE"] == "token" for found in both for process in found)
    assert [len(of_a_run) for of_a_run in tokens] == [1, 1] and tokens[0] != tokens[1]
    assert not any(token in " ".join(process.args) for process in both[0] for token in tokens[0])
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # somebody's own word
    assert not any("RAY_AUTH_TOKEN" in process.env for process in simulation(run, PORTS))


def test_each_client_has_its_own_state_and_consent(run: RunDir, request_: RunRequest) -> None:
    configs = [node_config(request_, run, i) for i in range(2)]
    assert [c["partition-id"] for c in configs] == [0, 1]
    assert configs[0]["state-dir"] != configs[1]["state-dir"]
    assert all(c["audit"] == "deny" and "client-seed" not in c for c in configs)
    assert node_config(replace(request_, client_seed=0), run, 1)["client-seed"] == 0


def test_a_stock_superlink_that_simulates_starts_its_executor_itself(run: RunDir) -> None:
    [link] = simulation(run, PORTS, stock=True)
    ours = simulation(run, PORTS)
    assert "--simulation" in link.args and "--isolation" not in link.args
    assert "--isolation" in ours[0].args and [each.command for each in ours[1:]] == ["flower-superexec"]
