"""deploy/systemd as systemd's own checker reads it, and its command lines as Prunella's; no machine that boots."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import click
import pytest
import typer

from prunella.deploy.cli import main as cli
from prunella.deploy.console.terminal import INTERRUPTED

FILES = Path(__file__).parents[2] / "deploy" / "systemd"
SUPERNODE, SUPERLINK, FORM = "prunella-supernode@.service", "prunella-superlink.service", "supernode.env"
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def service(name: str) -> dict[str, list[str]]:
    """Every setting of the unit's [Service], by name."""
    found: dict[str, list[str]] = {}
    for line in (FILES / name).read_text().partition("[Service]")[2].partition("[Install]")[0].splitlines():
        if line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def form() -> dict[str, str]:
    """What the site's own file sets."""
    lines = [line for line in (FILES / FORM).read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def words(name: str, given: Mapping[str, str]) -> list[str]:
    """The command line, with %i and the variables filled in. One that is not given stays."""
    (line,) = service(name)["ExecStart"]
    line = re.sub(r"\$\{(\w+)\}", lambda found: shlex.quote(given.get(found[1], found[0])), line.replace("%i", "north"))
    return shlex.split(line.replace("$OPTIONS", given["OPTIONS"]))  # systemd splits it into words


def parse(command: list[str]) -> dict[str, object]:
    """A command's options as Typer reads them; nothing is run."""
    group = typer.main.get_command(cli.app)
    assert isinstance(group, click.Group)
    found = group.commands[command[0]]
    return found.make_context(command[0], list(command[1:])).params


@pytest.mark.parametrize("name", [SUPERNODE, SUPERLINK])
def test_a_service_that_is_stopped_has_not_failed(name: str) -> None:
    assert service(name)["SuccessExitStatus"] == [str(INTERRUPTED)] and service(name)["Restart"] == ["always"]


@pytest.mark.parametrize("name", [SUPERNODE, SUPERLINK])
def test_the_command_is_one_that_prunella_takes_and_writes_to_the_state_directory_only(name: str) -> None:
    program, *command = words(name, form())
    assert program == "/opt/prunella/bin/prunella"
    said = parse(command)
    own = f"/{'north' if '@' in name else 'superlink'}"
    assert str(said["home"]) == f"/var/lib/prunella{own}" and service(name)["ProtectSystem"] == ["strict"]
    assert service(name)["StateDirectory"][0].replace("%i", "north").split() == ["prunella", f"prunella{own}"]
    assert not said["insecure"] and not said["insecure_anyway"], "TLS and keys"


@pytest.mark.parametrize("name", sorted(path.name for path in FILES.glob("*.service")))
def test_every_unit_limits_memory_processors_and_processes(name: str) -> None:
    patterns = {"MemoryMax": r"[1-9]\d*G", "CPUQuota": r"[1-9]\d*00%", "TasksMax": r"[1-9]\d*"}
    for key, pattern in patterns.items():
        (limit,) = service(name)[key]
        assert re.fullmatch(pattern, limit), key


def test_the_site_s_own_file_has_every_variable_and_denies_audits() -> None:
    (line,) = service(SUPERNODE)["ExecStart"]
    read = set(re.findall(r"\$\{?(\w+)", line))
    assert read == {name for name in form() if not name.startswith("PRUNELLA_")}
    said = parse(words(SUPERNODE, form())[1:])
    assert str(said["audit"]) == "deny" and said["superlink"] == form()["SUPERLINK"]
    plain = parse(words(SUPERNODE, form() | {"OPTIONS": ""})[1:])
    assert str(said["data"]) == "/srv/prunella/data" and plain["data"] is None and str(plain["audit"]) == "deny"
    assert not re.search(r"\$\{", " ".join(words(SUPERNODE, form())))


@needs_systemd
@pytest.mark.parametrize(("slip", "fine"), [("", True), ("ProtectSystm=strict\n", False), ("Restart=alway\n", False)])
def test_systemd_reads_every_setting(slip: str, fine: bool, tmp_path: Path) -> None:
    """On copies whose program and user are there, instance and all; one with a slip of the pen is told."""
    for name in (SUPERNODE, SUPERLINK):
        text = (FILES / name).read_text().replace("/opt/prunella/bin/prunella", "/bin/true")
        text = text.replace("User=prunella", "User=root").replace("[Install]", f"{slip}[Install]")
        unit = tmp_path / name.replace("@.", "@north.")
        unit.write_text(text)
        done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
        told = [line for line in done.stderr.splitlines() if "prunella-" in line and "Command " not in line]
        assert (not told) is fine, done.stderr
