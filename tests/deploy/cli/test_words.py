"""What typer and click leave a user alone with: arguments without help, settings without -c, narrow encodings."""

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from prunella.deploy.cli.main import app
from prunella.deploy.runtime.processes import environment, importable

RUNNER = CliRunner()
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", [name for name, each in COMMANDS.items() if each.params])
def test_every_argument_and_option_has_a_help(name: str) -> None:
    said = " ".join(RUNNER.invoke(app, [name, "--help"], env={"COLUMNS": "400"}).output.split())
    for each in COMMANDS[name].params:
        words = each.help or "none"  # type: ignore[attr-defined]
        assert words.replace("`", "") in said, each.name


def test_a_setting_without_its_c_is_told_how_it_is_written() -> None:
    result = RUNNER.invoke(app, ["run", "rounds=3"], env={"COLUMNS": "200"})
    assert result.exit_code == 2 and "(rounds=3): a setting is written -c KEY=VALUE" in result.output
    assert "-c KEY=VALUE" not in RUNNER.invoke(app, ["report", "a=b", "c=d"], env={"COLUMNS": "200"}).output


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_knows_no_epsilon_gets_a_question_mark(encoding: str) -> None:
    code = "from prunella.deploy.cli.main import app; app(['run', '--help'])"
    env = {**importable(environment()), "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True)
    assert done.returncode == 0 and b"no ?" in done.stdout, done.stderr[-500:]


def test_a_command_that_was_likely_meant_is_named_once() -> None:
    said = RUNNER.invoke(app, ["rnu"], env={"COLUMNS": "200"})
    assert said.exit_code == 2 and said.output.count("Did you mean 'run'") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("asked", ["--help", "--version", "reproduce --list", "run --help"])
def test_what_a_full_disk_does_not_take_is_told_of_in_one_line(asked: str) -> None:
    code = "from prunella.deploy.cli import start; start()"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, *asked.split()],
            env=importable(environment()),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 1 and done.stderr.startswith("prunella: the disk is full"), done.stderr[-500:]
    assert "Traceback" not in done.stderr
