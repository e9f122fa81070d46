"""Command lines that Flower's own parsers accept, and what is refused before anything starts."""

import json
import stat
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE

import pytest

from prunella.client.session import read_node
from prunella.core.errors import ConfigError
from prunella.deploy.errors import LaunchError, UsageError
from prunella.deploy.machines import commands as machines
from prunella.deploy.machines import connection_errors, keys
from prunella.deploy.machines.commands import NUMBERS, SuperLink, SuperNode
from prunella.deploy.machines.keys import Keys
from prunella.deploy.ports import Address, free_ports
from prunella.deploy.runtime.processes import environment, importable

FLEET = Address("0.0.0.0", 9092)


@pytest.fixture
def made(tmp_path: Path) -> Keys:
    keys.make(tmp_path / "keys", ["a"], [])
    return Keys(tmp_path / "keys")


@pytest.fixture
def node(tmp_path: Path, made: Keys) -> SuperNode:
    return SuperNode(tmp_path / "home", Address("10.0.0.1", 9092), 0, 2, 9094, made.ca, made.supernode("a"))


def test_plain_connections_stay_on_the_machine_unless_forced() -> None:
    machines.must_be_safe(Address("127.0.0.1", 9092), insecure=True, anyway=False)
    machines.must_be_safe(FLEET, insecure=False, anyway=False)
    machines.must_be_safe(FLEET, insecure=True, anyway=True)
    with pytest.raises(UsageError, match="--insecure-anyway"):
        machines.must_be_safe(FLEET, insecure=True, anyway=False)


def test_the_control_api_stays_on_the_machine_unless_forced() -> None:
    machines.must_be_private(Address("127.0.0.1", 8000), opened=False)
    machines.must_be_private(FLEET, opened=True)
    with pytest.raises(UsageError, match="asks for no login"):
        machines.must_be_private(FLEET, opened=False)


def test_a_superlink_asks_for_keys_and_a_plain_one_cannot(tmp_path: Path, made: Keys) -> None:
    secure, executor = machines.link_processes(SuperLink(tmp_path, made, FLEET))
    assert {"--enable-supernode-auth", "--ssl-certfile", "--database"} <= set(secure.args)
    assert "--insecure" not in secure.args and "--insecure" not in executor.args
    assert executor.args[:2] == ("--root-certificates", str(made.ca))
    plain, *rest = machines.link_processes(SuperLink(tmp_path, None, FLEET, in_memory=True, stock=True))
    assert "--insecure" in plain.args and "--database" not in plain.args and rest == []
    assert "--enable-supernode-auth" not in plain.args and "--isolation" not in plain.args


def test_a_superlink_that_forgets_its_keys_forgets_whose_the_client_numbers_are(tmp_path: Path, made: Keys) -> None:
    """Its nodes get new ids then, and would all be refused for ever."""
    for in_memory in (False, True):
        link = SuperLink(tmp_path / "link", made, FLEET, in_memory=in_memory)
        machines.make_home(link.home)
        numbers = link.home / "flower" / NUMBERS
        numbers.write_text("{}")
        machines.forget_numbers(link)
        assert numbers.exists() is not in_memory
    machines.forget_numbers(link)
    from prunella.server import app

    assert app.NUMBERS == NUMBERS


def test_flowers_parsers_accept_the_command_lines(tmp_path: Path, made: Keys, node: SuperNode) -> None:
    from flwr.supercore.cli.flower_superexec import _parse_args
    from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink
    from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

    link, executor = machines.link_processes(SuperLink(tmp_path, made, FLEET, Address("0.0.0.0", 8000)))
    parsed = _parse_args_run_superlink().parse_args(link.args)
    assert (parsed.host, parsed.port, parsed.fleet_api_address) == ("0.0.0.0", 8000, "0.0.0.0:9092")
    assert parsed.ssl_certfile == str(made.certificate) and parsed.enable_supernode_auth
    assert _parse_args().parse_args(executor.args).runtime_api_address == "127.0.0.1:8000"
    config = tmp_path / "node.toml"
    supernode, executor = machines.node_processes(node, config)
    parsed = _parse_args_run_supernode().parse_args(supernode.args)
    assert (parsed.superlink, parsed.host, parsed.port) == ("10.0.0.1:9092", "127.0.0.1", 9094)
    assert parsed.auth_supernode_private_key == str(node.key) and not parsed.insecure
    assert _parse_args().parse_args(executor.args).insecure, "its own Runtime API never leaves loopback"
    plain, _ = machines.node_processes(replace(node, ca=None, key=None), config)
    assert _parse_args_run_supernode().parse_args(plain.args).insecure


def test_a_site_signs_for_masked_sums_with_its_own_key(node: SuperNode, tmp_path: Path) -> None:
    known = replace(node, sums=(tmp_path / "peers", 4, "0, 1"), key=tmp_path / "north")
    config = machines.node_config(known)
    assert (
        config["sum-key"] == str(known.key)
        and config["sum-least"] == 4
        and config["sum-with"] == "0, 1"
        and known.conditions
    )
    with pytest.raises(UsageError, match="own key"):
        machines.check_node(replace(known, key=None))
    with pytest.raises(UsageError, match="no masked sums"):
        machines.check_node(replace(known, sums=(None, 4, ""), key=None, approve=("0" * 64,)))


def test_a_delta_without_a_budget_would_bound_nothing(node: SuperNode) -> None:
    with pytest.raises(UsageError, match=r"privacy.delta<=1e-08"):
        machines.check_node(replace(node, require="dp-sgd", delta=1e-8))
    machines.check_node(replace(node, require="dp-sgd", delta=1e-8, epsilon_budget=3.0))


def test_the_client_reads_the_node_config_and_denies_audits(node: SuperNode, tmp_path: Path) -> None:
    machines.make_home(node.home, "state")
    read = read_node(tomllib.loads(machines.write_node_config(replace(node, data=tmp_path)).read_text()))
    assert read.width == 1.0 and "width" not in machines.node_config(node)
    assert read_node(machines.node_config(replace(node, width=0.5))).width == 0.5
    assert (read.client, read.clients, read.data) == (0, 2, tmp_path)
    assert (read.state_dir, read.consent) == (node.home / "state", "deny")


def test_a_members_directory_is_its_owners(node: SuperNode) -> None:
    machines.make_home(node.home, "state")
    for path in (node.home, node.home / "state", node.home / "logs", node.home / "flower"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert (node.home / ".gitignore").read_text() == "*\n", "by default it lies in the checkout"


def test_missing_files_and_wrong_numbers_are_refused_with_the_fix(node: SuperNode, tmp_path: Path, made: Keys) -> None:
    machines.check_node(node)
    machines.check_link(SuperLink(tmp_path, made, FLEET))
    for broken, words in (
        (replace(node, key=tmp_path / "b"), "is missing: make it with `prunella keys`, copy it"),
        (replace(node, client=2), "--client-id counts from 0 to 1"),
        (replace(node, data=tmp_path / "none"), "does not exist"),
    ):
        with pytest.raises(UsageError, match=words):
            machines.check_node(broken)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="choose another with --home"):
        machines.make_home(tmp_path / "file")
    for folder, mine in (("north", "cats"), ("disk", "lost+found")):
        (tmp_path / folder / mine).mkdir(parents=True)
    with pytest.raises(UsageError, match="north holds files that are not this command's"):
        machines.make_home(tmp_path / "north")
    assert [path.name for path in (tmp_path / "north").iterdir()] == ["cats"], "a site's images stay as they were"
    for _ in range(2):
        machines.make_home(tmp_path / "disk")


def test_one_command_at_a_time_has_a_home(node: SuperNode) -> None:
    first = replace(node, superlink=Address("127.0.0.1", free_ports(1)[0]))
    second = replace(first, audit="pictures")
    with machines.prepared(first):
        written = (node.home / "node.toml").read_text()
        with (
            pytest.raises(LaunchError, match="another command runs in .*home: end it, or choose"),
            machines.prepared(second),
        ):
            raise AssertionError("the other's configuration would be exchanged")
        assert (node.home / "node.toml").read_text() == written and "deny" in written
    with machines.prepared(second):
        assert "pictures" in (node.home / "node.toml").read_text()


def test_a_home_is_free_when_its_command_was_killed(tmp_path: Path) -> None:
    code = f"""
import pathlib, sys
from prunella.deploy.machines.commands import held
with held(pathlib.Path({str(tmp_path)!r})):
    print("there", flush=True)
    sys.stdin.read()
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, env=importable(environment()), stdin=PIPE, stdout=PIPE, text=True) as other:
        assert other.stdout and other.stdout.readline() == "there\n"
        with pytest.raises(LaunchError, match="another command"), machines.held(tmp_path):
            raise AssertionError
        other.kill()
        other.wait()
        with machines.held(tmp_path):
            pass


def test_a_superlink_that_proves_to_be_another_ends_the_start(node: SuperNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_errors, "check_tls", lambda *_: connection_errors.ANOTHER_AUTHORITY)
    with pytest.raises(LaunchError, match="copy ca.crt"):
        machines.check_certificate(node)
    machines.check_certificate(replace(node, ca=None, key=None))
    monkeypatch.setattr(connection_errors, "check_tls", lambda *_: None)
    machines.check_certificate(node)


def test_conditions_reach_the_client_and_its_own_code_comes_with_them(node: SuperNode) -> None:
    from prunella.client.policy import Policy
    from prunella.deploy.runtime.own_code import OWN_CODE

    config = machines.write_node_config(replace(prepared(node), require="dgp, dgp.top=0.05", epsilon_budget=3.0))
    read = read_node(tomllib.loads(config.read_text())).policy
    assert read == Policy(("dgp",), {"dgp.top": 0.05}, 3.0, 1e-5)
    for conditions in ({"require": "dgp"}, {"epsilon_budget": 1.0}):
        asking = replace(node, **conditions)
        machines.check_node(asking)
        assert {p.env.get(OWN_CODE) for p in machines.node_processes(asking, config)} == {"1"}
        with pytest.raises(UsageError, match="--stock"):
            machines.check_node(replace(asking, stock=True))
    assert {p.env.get(OWN_CODE) for p in machines.node_processes(node, config)} == {None}
    with pytest.raises(ConfigError, match="did you mean 'dgp'"):
        machines.check_node(replace(node, require="dpg"))


def test_an_approved_bundle_reaches_the_tasks_with_the_conditions_and_not_with_stock(node: SuperNode) -> None:
    from prunella.deploy.runtime.approved import APPROVED
    from prunella.deploy.runtime.own_code import OWN_CODE

    gated = replace(prepared(node), approve=("ab" * 32,), require="dp-sgd, clip<=1", epsilon_budget=3.0, metrics="loss")
    machines.check_node(gated)
    for process in machines.node_processes(gated, machines.write_node_config(gated)):
        told = json.loads(process.env[APPROVED])
        assert told == {"hashes": ["ab" * 32], "config": machines.node_config(gated)} and OWN_CODE not in process.env
        assert told["config"] == tomllib.loads((node.home / "node.toml").read_text())
    for broken, words in (
        (replace(gated, stock=True), "--stock"),
        (replace(node, metrics="loss"), "add --approve"),
        (replace(gated, require="local-steps=2", epsilon_budget=0.0), "no defense"),
        (replace(gated, require="dgp"), "require dp-sgd"),
    ):
        with pytest.raises((UsageError, ConfigError), match=words):
            machines.check_node(broken)


def prepared(node: SuperNode) -> SuperNode:
    machines.make_home(node.home, "state")
    return node


@pytest.mark.parametrize("grpc", [True, False])
def test_stock_over_http_has_one_port_and_everything_else_two(
    tmp_path: Path, made: Keys, monkeypatch: pytest.MonkeyPatch, grpc: bool
) -> None:
    monkeypatch.setattr(machines.flower_release, "speaks_grpc", lambda: grpc)
    both = Address("127.0.0.1", 8000)
    ours, stock = SuperLink(tmp_path, made, FLEET), SuperLink(tmp_path, made, FLEET, stock=True)
    machines.check_link(ours)
    with pytest.raises(UsageError, match="need two ports"):
        machines.check_link(replace(ours, fleet=Address("10.0.0.1", both.port)))
    given = stock if grpc else replace(stock, fleet=both)
    machines.check_link(given)
    with pytest.raises(UsageError, match="need two ports" if grpc else "the same HOST:PORT"):
        machines.check_link(replace(stock, fleet=both) if grpc else stock)
    assert machines.fleet_address("127.0.0.1:8000", True, True) == ("127.0.0.1:9092" if grpc else "127.0.0.1:8000")
    assert machines.fleet_address("127.0.0.1:8000", False, False) == "0.0.0.0:9092"
