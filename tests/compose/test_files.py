"""The files of docker/ read without an engine: what is pinned, confined, published and typed."""

import re
from pathlib import Path
from typing import Any

import click
import pytest
import typer
import yaml

from deploy import cli

ROOT = Path(__file__).parents[2]
FILES = ROOT / "docker"
VARIABLE = re.compile(r"\$\{\w+(?::?-([^}]*))?\}")
MEMBERS = ("superlink", "executor", "submit", "supernode-0", "supernode-1", "supernode-2", "supernode-3")


def expanded(value: Any) -> Any:
    """As compose reads it when the environment says nothing."""
    if isinstance(value, dict):
        return {key: expanded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [expanded(each) for each in value]
    return VARIABLE.sub(lambda found: found[1] or "", value) if isinstance(value, str) else value


def services(name: str = "compose.yml") -> dict[str, dict[str, Any]]:
    return dict(expanded(yaml.safe_load((FILES / name).read_text()))["services"])


def typed(service: dict[str, Any], before: dict[str, Any]) -> click.Context:
    """The command line of a service, as the `prunella` of the image parses it."""
    entry = str(service.get("entrypoint", before.get("entrypoint", "prunella"))).split()[1:]
    given = service.get("command", before.get("command"))
    name, *arguments = [*entry, *(given.split() if isinstance(given, str) else given)]
    commands = typer.main.get_command(cli.app)
    assert isinstance(commands, click.Group)
    command = commands.get_command(click.Context(commands), name)
    assert command is not None, name
    return command.make_context(name, arguments)


@pytest.mark.parametrize("name", services())
def test_every_container_is_confined(name: str) -> None:
    service = services()[name]
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not service.keys() & {"privileged", "cap_add", "pid", "network_mode", "user", "devices"}
    assert not [volume for volume in service.get("volumes", []) if "docker.sock" in volume]


def test_images_are_pinned() -> None:
    for service in services().values():
        assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", service["image"]), service["image"]
    base = re.search(r"^ARG BASE_IMAGE=(.*)$", (FILES / "Dockerfile").read_text(), re.MULTILINE)
    assert base and re.fullmatch(r"python:3\.11\.\d+-slim-\w+", base[1])
    assert {service["build"]["args"]["BASE_IMAGE"] for name, service in services().items() if name in MEMBERS} == {
        base[1]
    }


def test_only_the_fleet_port_is_published_beyond_this_machine_and_only_with_tls() -> None:
    for service in services().values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    opened = {name: service["ports"] for name, service in services("compose.tls.yml").items() if "ports" in service}
    assert opened == {"superlink": ["9092:9092"]}
    assert all(
        "ports" not in service for name in ("state", "gpu") for service in services(f"compose.{name}.yml").values()
    )


def test_a_supernode_is_on_a_network_that_leads_nowhere() -> None:
    networks = yaml.safe_load((FILES / "compose.yml").read_text())["networks"]
    assert networks["fleet"]["internal"] and networks["control"]["internal"]
    found = services()
    assert all(found[name]["networks"] == ["fleet"] for name in MEMBERS if name.startswith("supernode"))
    assert "fleet" not in found["executor"]["networks"]


@pytest.mark.parametrize("overlay", ["", "tls"])
@pytest.mark.parametrize("name", MEMBERS)
def test_every_command_is_one_that_exists(name: str, overlay: str) -> None:
    before = services()[name]
    service = services(f"compose.{overlay}.yml")[name] if overlay else before
    options = typed(service, before).params
    if name.startswith("supernode"):
        number = int(name.removeprefix("supernode-"))
        assert (options["client_id"], options["clients"], options["audit"]) == (number, 4, "deny")
        assert options["name"] == (f"node-{number}" if overlay else "")
    plain = bool(options.get("insecure") or options.get("insecure_anyway"))
    assert plain == (not overlay), "plain without the overlay, TLS with it"


def test_overlays_change_services_that_there_are() -> None:
    for path in FILES.glob("compose.*.yml"):
        assert services(path.name).keys() <= services().keys(), path.name


def test_a_supernode_is_shown_its_own_key_and_nobody_the_authoritys() -> None:
    for name, service in services("compose.tls.yml").items():
        shown = {volume["source"].removeprefix("../keys/") for volume in service["volumes"]}
        private = {file for file in shown if not file.endswith((".crt", ".pub"))}
        own = {"superlink": {"superlink.key"}, "executor": set(), "submit": set()}
        assert private == own.get(name, {f"supernodes/node-{name[-1]}"}), name
        assert all(volume["read_only"] for volume in service["volumes"])


def test_grafana_is_given_what_its_files_ask_for() -> None:
    environment = services()["grafana"]["environment"]
    place = ROOT / "deploy" / "grafana"
    provisioning = "".join(path.read_text() for path in (place / "provisioning").rglob("*.yml"))
    asked = set(re.findall(r"\$\{?([A-Z_]+)", provisioning))
    assert asked and asked <= environment.keys()
    source, target, mode = services()["grafana"]["volumes"][0].split(":")
    assert (FILES / source).resolve() == place and mode == "ro"
    for name in ("PRUNELLA_DASHBOARDS", "GF_PATHS_PROVISIONING"):
        assert (place / Path(environment[name]).relative_to(target)).is_dir()
    assert environment["PROMETHEUS_URL"] == "http://prometheus:9090"


def test_prometheus_looks_where_the_run_serves() -> None:
    (target,) = yaml.safe_load((FILES / "prometheus-targets.yml").read_text())
    assert target["targets"] == ["executor:9464"] and target["labels"]["federation"]
    assert "metrics-address=0.0.0.0:9464" in services()["submit"]["entrypoint"]
    assert set(services()["executor"]["networks"]) & set(services()["prometheus"]["networks"])


def test_nothing_private_can_reach_a_layer() -> None:
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    allowed = {rule[1:] for rule in rules if rule.startswith("!")}
    assert rules[0] == "*" and not allowed & {"keys", "runs", "tests", ".git", ".venv", "data"}
    assert not [name for name in allowed if not (ROOT / name).exists()]
