"""``prunella reproduce`` and ``prunella advise`` hand everything to their engines."""

import os
import signal
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from prunella.benchmarks.advise.command import parser as advise_parser
from prunella.benchmarks.engine.results import listing
from prunella.benchmarks.registry import CLAIMS, TABLES
from prunella.benchmarks.reproduce import parser
from prunella.deploy.cli import main as cli
from prunella.deploy.tools import claims


def test_the_list_is_that_of_the_engine() -> None:
    """Where it is not: python -m prunella.benchmarks reproduce --list > benchmarks/claims.txt"""
    shown = CliRunner().invoke(cli.app, ["reproduce", "--list"])
    assert shown.exit_code == 0 and "D3  DGP, Table 3: " in shown.output and "[runs: small" in shown.output
    assert claims.listed() == listing((*CLAIMS.values(), *TABLES.values()))


def test_the_list_imports_nothing_heavy() -> None:
    code = "import sys; from prunella.deploy.tools.claims import listed; listed(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_options_pass_through(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[str] = []

    def fake(module: tuple[str, ...], arguments: list[str]) -> None:
        assert module == claims.REPRODUCE
        seen.extend(arguments)

    monkeypatch.setattr(claims, "measure", fake)
    arguments = ["reproduce", "L3", "--out", str(tmp_path), "--data", str(tmp_path)]
    assert CliRunner().invoke(cli.app, arguments).exit_code == 0
    assert seen[0] == "L3" and f"--out={tmp_path}" in seen and f"--data={tmp_path}" in seen


@pytest.mark.parametrize(("name", "engine"), [("reproduce", parser()), ("advise", advise_parser())])
def test_a_value_that_begins_with_a_hyphen_is_refused_as_what_it_is(
    name: str, engine: ArgumentParser, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(claims, "measure", lambda module, arguments: seen.extend(arguments))
    assert CliRunner().invoke(cli.app, [name, "--budget=-5min"]).exit_code == 0
    with pytest.raises(SystemExit):
        engine.parse_args(seen)
    assert "'-5min' is no time: write 90s, 30min or 2h" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "engine"), [("reproduce", parser()), ("advise", advise_parser())])
def test_the_command_has_every_option_of_the_engine(name: str, engine: ArgumentParser) -> None:
    """One that is missing here cannot be asked for, whatever the docs say."""
    command = get_command(cli.app).commands[name]  # type: ignore[attr-defined]
    ours = {name for parameter in command.params for name in parameter.opts if name.startswith("--")}
    theirs = {name for action in engine._actions for name in action.option_strings if name.startswith("--")}
    assert theirs - {"--help"} <= ours


def test_advice_is_asked_for_as_it_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(claims, "measure", lambda module, arguments: seen.extend([*module, *arguments]))
    asked = ["advise", "-c", "rounds=3", "-c", "dataset=mnist", "--budget", "9min", "--may-lose", "5"]
    assert CliRunner().invoke(cli.app, asked).exit_code == 0
    chosen = advise_parser().parse_args(seen[seen.index(claims.ADVISE[-1]) + 1 :])
    assert chosen.set == ["rounds=3", "dataset=mnist"] and chosen.budget == 540 and chosen.may_lose == 5.0


# An engine that is asked to stop takes longer than the 0.25 s that ``subprocess.run`` leaves a process after Ctrl-C.
ENGINE = """
import sys, time
from pathlib import Path
from prunella.core.interrupts import signals_interrupt
try:
    with signals_interrupt():
        print(*sys.argv[1:], flush=True)
        time.sleep(600)
except KeyboardInterrupt:
    time.sleep(1)
    Path("written").touch()
    sys.exit(130)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_engine_that_is_ended_writes_what_it_has(number: signal.Signals, tmp_path: Path) -> None:
    """SIGINT goes to all processes of a terminal, as Ctrl-C does; SIGTERM to the one that was started."""
    (tmp_path / "engine.py").write_text(ENGINE)
    code = "from prunella.deploy.tools.claims import measure; measure(['engine.py'], ['--budget=9min'])"
    command = [sys.executable, "-c", code]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # whatever the tests were started under
    )
    assert process.stdout is not None and process.stdout.readline() == "--budget=9min\n"
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    assert process.wait(timeout=60) == 130 and (tmp_path / "written").exists()


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "NEEDED", ("matplotlib", "no_such_package"))
    refused = CliRunner().invoke(cli.app, ["advise"])
    assert refused.exit_code == 2 and "no_such_package" in refused.output and "prunella[benchmarks]" in refused.output
