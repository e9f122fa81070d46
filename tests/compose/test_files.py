"""The files of docker/ read without an engine: what is pinned, confined, published and typed."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import typer
import yaml

from prunella.deploy.cli import main as cli

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


def unit(name: str) -> dict[str, str]:
    """What a unit of deploy/systemd sets."""
    text = (ROOT / "deploy" / "systemd" / name).read_text()
    return dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))


def test_every_container_is_limited_and_a_supernode_as_its_unit_is() -> None:
    text = (FILES / "compose.yml").read_text()
    for name, service in services().items():
        assert re.fullmatch(r"\d+g", service["mem_limit"]), name
        assert float(service.get("cpus", 0)) == 0 and service["pids_limit"] > 0, name  # a small host has few to promise
        role = name.split("-")[0].upper()
        assert name == "submit" or {f"${{{role}_{kind}:-" in text for kind in ("MEMORY", "CPUS")} == {True}, name
    limits, found = unit("prunella-supernode@.service"), services()["supernode-0"]
    assert found["mem_limit"] == limits["MemoryMax"].lower() and found["pids_limit"] == int(limits["TasksMax"])
    shared, two = unit("prunella-superlink.service"), [services()[name] for name in ("superlink", "executor")]
    assert sum(int(each["mem_limit"].rstrip("g")) for each in two) == int(shared["MemoryMax"].rstrip("G"))
    assert sum(each["pids_limit"] for each in two) == int(shared["TasksMax"])


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


def expression(pattern: str) -> re.Pattern[str]:
    """A pattern of .dockerignore: anchored at the root, ``*`` within a directory, ``**`` across any number of them."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", pattern.strip().strip("/"))
    words = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(words.get(part, re.escape(part)) for part in parts))


def rules() -> list[tuple[bool, str]]:
    """Whether a line of .dockerignore takes files out, and its pattern, in the file's order."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    return [(line[0] != "!", line.removeprefix("!")) for line in lines]


def excluded(path: str) -> bool:
    """Whether the last rule that matches this path, or a directory above it, takes it out."""
    above, out = [path, *map(str, Path(path).parents)][:-1], False
    for excludes, pattern in rules():
        out = excludes if any(expression(pattern).fullmatch(each) for each in above) else out
    return out


def sent(path: str) -> bool:
    """Whether a file is in the build context.

    Builders before BuildKit do not enter a directory that is taken out unless some exception begins with its name.
    """
    exceptions = [pattern for excludes, pattern in rules() if not excludes]
    closed = [
        folder
        for folder in map(str, Path(path).parents)
        if folder != "." and excluded(folder) and not any(each.startswith(f"{folder}/") for each in exceptions)
    ]
    return not excluded(path) and not closed


def test_the_matcher_reads_patterns_as_docker_does() -> None:
    for pattern, path, wanted in [
        ("*", "keys", True),
        ("*", "keys/ca.key", False),
        ("core/*.py", "core/trees.py", True),
        ("core/*.py", "core/keys/a.py", False),
        ("**/*.pyc", "a.pyc", True),
        ("**/*.pyc", "a/b/c.pyc", True),
        ("a?c", "abc", True),
    ]:
        assert (expression(pattern).fullmatch(path) is not None) is wanted, (pattern, path)


def requirements(folder: Path, vision: str) -> tuple[str, str]:
    """The step of the Dockerfile that writes the lists of a client and a server, run as it stands there."""
    (step,) = re.findall(r"^RUN python3 -c '(.*?)'$", (FILES / "Dockerfile").read_text(), re.MULTILINE | re.DOTALL)
    code = step.replace("\\\n", "").replace('"/client.txt"', '"client.txt"').replace('"/server.txt"', '"server.txt"')
    (folder / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    subprocess.run([sys.executable, "-c", code], cwd=folder, env=os.environ | {"VISION": vision}, check=True)
    return (folder / "client.txt").read_text(), (folder / "server.txt").read_text()


def test_images_install_what_their_half_needs(tmp_path: Path) -> None:
    client, server = requirements(tmp_path, "yes")
    assert {"torch>=2.6,<3", "flwr==1.39.*"} <= set(client.splitlines()) and "torchvision" in client
    assert not [name for name in ("scikit-learn", "ray", "opacus", "matplotlib", "simulation") if name in client]
    assert {"jinja2", "scikit-learn", "prometheus-client"} <= {re.split("[<>=]", line)[0] for line in server.split()}
    small, same = requirements(tmp_path, "")
    assert same == server and set(small.split()) < set(client.split())
    assert not [name for name in ("torchvision", "datasets", "pyarrow", "pillow") if name in small]


def test_the_environment_sees_the_bases_pytorch_where_it_is_asked_to(tmp_path: Path) -> None:
    """Wherever the base has it, a virtual environment of its own included, whose packages another one does not see."""
    (step,) = re.findall(
        r"^RUN (base=.*?) \\\n && useradd", (FILES / "Dockerfile").read_text(), re.MULTILINE | re.DOTALL
    )
    base = tmp_path / "base" / "torch"
    base.mkdir(parents=True)
    (base / "__init__.py").write_text("raise OSError('its libraries are the device’s')")
    for asked, wanted in (("yes", str(base / "__init__.py")), ("", "None")):
        made = tmp_path / f"made-{asked}"
        code = step.replace("/opt/prunella", str(made)).replace("python3 -", f"{sys._base_executable} -")  # type: ignore[attr-defined]
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(base.parent), "BASE_TORCH": asked}
        subprocess.run(["sh", "-ec", code], env=env, check=True)
        look = "import importlib.util as u; s = u.find_spec('torch'); print(s and s.origin)"
        said = subprocess.run(
            [made / "bin" / "python3", "-c", look], env={}, capture_output=True, text=True, check=True
        )
        assert said.stdout.strip() == wanted


def installed() -> set[str]:
    """What `pip install .` reads: the sources and data of the packages, and three files beside them."""
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {name: ROOT / name.removeprefix("prunella.").replace(".", "/") for name in setup["packages"]}
    sources = {str(path.relative_to(ROOT)) for folder in folders.values() for path in folder.glob("*.py")}
    data = {str((folders[name] / file).relative_to(ROOT)) for name, f in setup["package-data"].items() for file in f}
    return sources | data | {"pyproject.toml", "README.md", "LICENSE"}


def test_everything_that_is_installed_reaches_the_build_and_nothing_else() -> None:
    assert not [path for path in installed() if not sent(path)]
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    there = set(tracked.stdout.split()) if tracked.returncode == 0 else set()
    assert {path for path in there if sent(path)} <= installed()


FOLDERS = (
    "", "keys", "deploy", "deploy/kubernetes", "deploy/kubernetes/keys", "docker", "docker/keys", "client/state",
    "core", "core/keys", "server", "tasks/models", "tasks/datasets/keys", "benchmarks/papers", "runs/r-1/traces",
    "superlink", "north/state", "a/b/c",
)  # fmt: skip
SECRETS = (
    "ca.key", "ca.crt", "superlink.key", "supernodes/north", "supernodes/north.py", ".env", "prod.env", "id_rsa",
    "secret", "ledger.json", "kubeconfig", "truth.safetensors", "scan.npy", ".git/config",
)  # fmt: skip


def test_no_key_no_state_and_no_run_reaches_a_layer() -> None:
    """Wherever in the checkout somebody has put it."""
    planted = [str(Path(folder) / name) for folder in FOLDERS for name in SECRETS]
    assert not [path for path in planted if sent(path)]
