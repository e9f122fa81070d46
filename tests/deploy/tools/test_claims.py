"""``prunella reproduce`` hands everything to the engine and its exit code back."""

from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from prunella.benchmarks.reproduce import parser
from prunella.deploy.cli import main as cli
from prunella.deploy.tools import claims


def test_the_engine_lists_its_claims_in_a_process_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    assert CliRunner().invoke(cli.app, ["reproduce", "--list"]).exit_code == 0
    listed = capfd.readouterr().out
    assert "D3  DGP, Table 3: " in listed and "[runs: small" in listed


def test_options_and_exit_code_pass_through(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[str] = []

    def fake(arguments: list[str]) -> int:
        seen.extend(arguments)
        return 2

    monkeypatch.setattr(claims, "reproduce", fake)
    arguments = ["reproduce", "L3", "--out", str(tmp_path), "--data", str(tmp_path)]
    assert CliRunner().invoke(cli.app, arguments).exit_code == 2
    assert seen[0] == "L3" and seen[seen.index("--out") + 1] == str(tmp_path) and "--data" in seen


def test_the_command_has_every_option_of_the_engine() -> None:
    """One that is missing here cannot be asked for, whatever the docs say."""
    command = get_command(cli.app).commands["reproduce"]  # type: ignore[attr-defined]
    ours = {name for parameter in command.params for name in parameter.opts if name.startswith("--")}
    theirs = {name for action in parser()._actions for name in action.option_strings if name.startswith("--")}
    assert theirs - {"--help"} <= ours
