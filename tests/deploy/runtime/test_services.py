"""Flower's processes: their files, addresses and trust."""

import json
import tomllib
from pathlib import Path

from prunella.deploy.ports import Address
from prunella.deploy.runtime import services
from prunella.deploy.runtime.processes import CLIENT_AFTER, CONTROL, SERVER_AFTER, Process
from prunella.deploy.runtime.services import Folders

FOLDERS = Folders(Path("/a/logs"), Path("/a/flower"), {"MORE": "1"})


def test_any_path_survives_the_node_config(tmp_path: Path) -> None:
    config = {"partition-id": 1, "state-dir": 'a "quoted" dir', "audit": "deny", "x": 0.5, "y": True}
    assert tomllib.loads(services.write_node_config(tmp_path / "node.toml", config).read_text()) == config


def test_a_process_has_its_files_where_it_is_told() -> None:
    process = services.client_exec(FOLDERS, "client-exec-1", 20004, "client-1")
    assert process == Process(
        "client-exec-1",
        "flower-superexec",
        ("--insecure", "--runtime-api-address", "127.0.0.1:20004"),
        "/a/logs/client-exec-1.log",
        {"FLWR_HOME": "/a/flower", "MORE": "1"},
        (20004,),
        CLIENT_AFTER,
        "/a/logs/client-1.log",
    )
    assert services.supernode(FOLDERS, Address("b", 1), 2, Path("c")).task_log == ""


def test_a_server_exec_waits_for_a_superlink_of_its_own_machine_only() -> None:
    ca = Path("ca.crt")
    near = services.server_exec(FOLDERS, "executor", Address("127.0.0.1", 8000), ca)
    far = services.server_exec(FOLDERS, "executor", Address("10.0.0.1", 8000), ca)
    assert (near.wait_for, far.wait_for, near.after) == ((8000,), (), SERVER_AFTER)
    assert far.args == ("--root-certificates", "ca.crt", "--runtime-api-address", "10.0.0.1:8000")


def test_a_superlink_serves_supernodes_or_simulates_them() -> None:
    real = services.superlink(FOLDERS, Address("127.0.0.1", 1), Address("::1", 2), database=Path("state.db"))
    assert real.args == (
        "--insecure", "--host", "127.0.0.1", "--port", "1", services.NO_INSTALL,
        "--fleet-api-address", "[::1]:2", "--database", "state.db", "--isolation", "process",
    )  # fmt: skip
    simulated = services.superlink(FOLDERS, Address("127.0.0.1", 1), None, isolated=False)
    assert simulated.args[-1] == "--simulation"


def test_a_supernode_with_a_key_uses_tls() -> None:
    found = services.supernode(
        FOLDERS, Address("b", 1), 2, Path("c"), ca=Path("ca.crt"), key=Path("key"), isolated=False
    )
    assert found.args == (
        "--root-certificates", "ca.crt", "--auth-supernode-private-key", "key", "--superlink", "b:1",
        "--host", "127.0.0.1", "--port", "2", "--node-config", "c",
    )  # fmt: skip


def test_the_request_for_control(tmp_path: Path) -> None:
    process = services.control(FOLDERS, tmp_path, {"app": "/app", "config": {"rounds": 3}})
    assert (process.command, process.args) == (CONTROL, (str(tmp_path / "request.json"),))
    assert json.loads(Path(process.args[0]).read_text()) == {"app": "/app", "config": {"rounds": 3}}
