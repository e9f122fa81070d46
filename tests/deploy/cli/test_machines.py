"""The commands' options, what they refuse, and what they tell to do next."""

import datetime
import json
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from prunella.deploy.cli import federation
from prunella.deploy.cli import main as cli
from prunella.deploy.machines import commands as machines
from prunella.deploy.machines import keys as made
from prunella.deploy.machines import submit, supervisor
from prunella.deploy.runs import RunDir
from prunella.deploy.runtime import flower_release
from prunella.deploy.runtime.processes import Process

RUNNER = CliRunner()
WIDE = {"COLUMNS": "200"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert RUNNER.invoke(cli.app, ["keys", "--supernodes", "2", "--host", "10.9.0.1"]).exit_code == 0
    return tmp_path


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    seen: list[tuple] = []
    monkeypatch.setattr(supervisor, "serve", lambda *given, **more: seen.append((*given, *more.values())))
    monkeypatch.setattr(machines, "check_certificate", lambda node: None)
    return seen


def keys_says(*arguments: str) -> list[str]:
    result = RUNNER.invoke(cli.app, ["keys", *arguments], env=WIDE)
    assert result.exit_code == 0, result.output
    return [line.strip() for line in result.output.splitlines()]


def commands_of(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("prunella supernode")]


def test_keys_tells_what_to_type_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = keys_says("--host", "10.9.0.1", "--name", "a", "--name", "b", "--out", "other")
    assert "prunella superlink --keys other" in lines and "prunella register --keys other" in lines
    assert commands_of(lines) == [
        f"prunella supernode --superlink 10.9.0.1:9092 --keys other --name {name} --client-id {client} --clients 2"
        for client, name in enumerate("ab")
    ]
    assert "prunella register --keys 'my keys'" in keys_says("--name", "a", "--out", "my keys")
    (later,) = commands_of(keys_says("--name", "c", "--out", "other"))
    assert "--superlink 10.9.0.1:9092" in later and "--name c --client-id 2 --clients 3" in later


def test_keys_does_not_guess_which_of_several_addresses_a_supernode_reaches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = keys_says("--host", "10.9.0.1", "--host", "link.example", "--name", "a", "--name", "b")
    assert all("--superlink HOST:9092" in line for line in commands_of(lines)) and len(commands_of(lines)) == 2
    assert [line for line in lines if "10.9.0.1, link.example" in line and line.startswith("HOST")]


def test_keys_without_a_host_are_for_this_machine_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = keys_says("--supernodes", "1")
    assert any("--host" in line and "this machine alone" in line for line in lines)
    assert "--superlink 127.0.0.1:9092" in commands_of(lines)[0]


def test_keys_writes_an_ipv6_address_as_it_is_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (line,) = commands_of(keys_says("--host", "fd00::1", "--name", "a"))
    assert "--superlink [fd00::1]:9092" in line


def test_every_command_that_keys_prints_can_be_typed(here: Path, served: list[tuple]) -> None:
    for line in commands_of(keys_says("--name", "c")):
        assert RUNNER.invoke(cli.app, line.split()[1:]).exit_code == 0
    assert len(served) == 1


def test_keys_refuses_to_overwrite_and_names_the_file(here: Path) -> None:
    result = RUNNER.invoke(cli.app, ["keys", "--supernodes", "1"])
    assert result.exit_code == 2 and "keys/supernodes/node-0 exists already" in result.output


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["superlink", "--insecure", "--fleet", "0.0.0.0:9092"], "--insecure-anyway"),
        (["superlink", "--control", "0.0.0.0:8000"], "--open-control"),
        (["superlink", "--keys", "elsewhere"], "elsewhere/ca.crt is missing"),
        (["supernode", "--superlink", "10.9.0.1:9092", "--client-id", "0", "--clients", "2", "--insecure"], "anyway"),
        (["supernode", "--superlink", "10.9.0.1", "--client-id", "0", "--clients", "2"], "is not HOST:PORT"),
        (["supernode", "--superlink", "10.9.0.1:1", "--client-id", "2", "--clients", "3"], "node-2 is missing"),
        (["supernode", "--superlink", "10.9.0.1:1", "--client-id", "2", "--clients", "2", "--name", "node-0"], "to 1"),
        (["supernode", "--superlink", "10.9.0.1:1", "--client-id", "0"], "--clients"),
        (["register", "--keys", "elsewhere"], "elsewhere/ca.crt is missing"),
        (["submit", "--superlink", "10.9.0.1:8000"], "--run-dir"),
        (["submit", "-c", "round=3"], "did you mean 'rounds'"),
    ],
)
def test_wrong_usage_is_2_and_starts_nothing(here: Path, served: list[tuple], arguments: list[str], words: str) -> None:
    result = RUNNER.invoke(cli.app, arguments, env=WIDE)
    assert result.exit_code == 2 and words in result.output, result.output
    assert served == [] and not (here / "runs").exists() and not (here / "superlink").exists()


def test_superlink_is_secure_by_default(here: Path, served: list[tuple]) -> None:
    assert RUNNER.invoke(cli.app, ["superlink"]).exit_code == 0
    processes, stock, *_ = served[0]
    assert not stock and [p.name for p in processes] == ["superlink", "executor"]
    assert {"--enable-supernode-auth", "0.0.0.0:9092", str(here / "keys" / "superlink.crt")} <= set(processes[0].args)
    assert (here / "superlink" / "logs").is_dir()


def test_superlink_reminds_of_the_end_of_its_certificate(
    here: Path, served: list[tuple], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert RUNNER.invoke(cli.app, ["superlink"]).exit_code == 0
    assert RUNNER.invoke(cli.app, ["superlink", "--insecure", "--home", "plain"]).exit_code == 0
    (*_, reminders), (*_, none) = served
    assert reminders() == none() == []
    monkeypatch.setattr(made, "SOON", datetime.timedelta(days=made.SUPERLINK_DAYS + 1))
    assert ["superlink.crt ends on" in line for line in reminders()] == [True] and none() == []


def test_insecure_means_loopback(here: Path, served: list[tuple]) -> None:
    assert RUNNER.invoke(cli.app, ["superlink", "--insecure", "--stock"]).exit_code == 0
    processes, stock, *_ = served[0]
    [link] = processes
    fleet = "127.0.0.1:9092" if flower_release.speaks_grpc() else "127.0.0.1:8000"
    assert stock and isinstance(link, Process) and fleet in link.args


def test_supernode_denies_audits_unless_told_otherwise(here: Path, served: list[tuple]) -> None:
    command = ["supernode", "--superlink", "10.9.0.1:9092", "--client-id", "1", "--clients", "50", "--patience", "7"]
    assert RUNNER.invoke(cli.app, command).exit_code == 0
    assert 'audit = "deny"' in (here / "node-1" / "node.toml").read_text()
    assert str(here / "keys" / "supernodes" / "node-1") in served[0][0][0].args
    assert served[0][-2:] == (7.0, 1.0)  # a SuperLink that fifty ask ten times a second has time for nothing else
    assert RUNNER.invoke(cli.app, [*command, "--audit", "scores", "--home", "b"]).exit_code == 0
    assert 'audit = "scores"' in (here / "b" / "node.toml").read_text()


def test_an_executor_apart_leaves_the_superlink_without_one(here: Path, served: list[tuple]) -> None:
    control = ["--control", "control:8000", "--open-control"]
    assert RUNNER.invoke(cli.app, ["superlink", "--no-executor", *control]).exit_code == 0
    assert RUNNER.invoke(cli.app, ["executor", "--superlink", "control:8000"]).exit_code == 0
    link, executor = served[0][0], served[1][0]
    assert [process.name for process in link] == ["superlink"] and "process" in link[0].args
    assert [process.name for process in executor] == ["executor"]
    assert executor[0].args == (
        "--root-certificates", str(here / "keys" / "ca.crt"), "--runtime-api-address", "control:8000"
    )  # fmt: skip


def test_an_executor_far_from_its_superlink_needs_tls(here: Path, served: list[tuple]) -> None:
    assert RUNNER.invoke(cli.app, ["executor", "--superlink", "control:8000", "--insecure"]).exit_code == 2
    assert RUNNER.invoke(cli.app, ["executor", "--superlink", "control:8000", "--keys", "none"]).exit_code == 2
    assert served == []
    assert RUNNER.invoke(cli.app, ["executor", "--superlink", "control:8000", "--insecure-anyway"]).exit_code == 0
    assert served[0][0][0].args[0] == "--insecure"


@pytest.mark.parametrize("status, code", [("completed", 0), ("failed", 1), ("stopped", 130)])
def test_submit_ends_as_the_federation_did(here: Path, monkeypatch: pytest.MonkeyPatch, status: str, code: int) -> None:
    seen: list[tuple] = []
    monkeypatch.setattr(federation, "submit_run", lambda *given: seen.append(given) or status)
    result = RUNNER.invoke(cli.app, ["submit", "-c", "rounds=3", "--supernodes", "5", "--superlink", "[::1]:8000"])
    assert result.exit_code == code
    _, runs, given, target, resume, options = seen[0]
    assert (runs, given, resume, options["supernodes"]) == (Path("runs"), ["rounds=3"], "", 5)
    assert target == submit.Destination(submit.Address("::1", 8000), submit.Keys(Path("keys")))


@pytest.mark.parametrize("done, words", [(True, "run one is stopped"), (False, "had ended already")])
def test_stop_names_the_run_and_says_what_came_of_it(
    here: Path, monkeypatch: pytest.MonkeyPatch, done: bool, words: str
) -> None:
    (here / "runs" / "one").mkdir(parents=True)
    (here / "runs" / "one" / "launch.json").write_text("{}")
    seen: list[tuple] = []
    monkeypatch.setattr(submit, "stop", lambda *given: seen.append(given) or done)
    result = RUNNER.invoke(cli.app, ["stop", "one"], env=WIDE)
    assert result.exit_code == 0 and words in result.output
    assert seen[0][:2] == (submit.Destination(submit.Address("127.0.0.1", 8000), submit.Keys(Path("keys"))), RunDir(
        (here / "runs" / "one").resolve()))  # fmt: skip
    assert RUNNER.invoke(cli.app, ["stop", "two"], env=WIDE).exit_code == 2 and len(seen) == 1


def test_a_number_is_freed_of_a_key_that_was_removed_before(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit, "reachable", lambda target: None)
    monkeypatch.setattr(submit, "ask", lambda *_: {"event": "removed", "node": 7, "already": True})
    numbers = here / "superlink" / "flower" / machines.NUMBERS
    numbers.parent.mkdir(parents=True)
    numbers.write_text('{"0": 7, "1": 8}')
    result = RUNNER.invoke(cli.app, ["unregister", "north", "--free-number"], env=WIDE)
    assert result.exit_code == 0 and json.loads(numbers.read_text()) == {"1": 8}, result.output
    assert "north is removed already" in result.output and "client number 0 is free" in result.output


def test_the_guide_types_only_what_exists() -> None:
    import click

    guide = (Path(__file__).parents[3] / "docs" / "deployment.md").read_text()
    blocks = [block for block in guide.split("```")[1::2] if block.startswith("sh\n")]
    blocks = [block.replace("\\\n", "") for block in blocks]  # a command may go on in the next line
    lines = [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()[1:]]
    services = [line for line in guide.splitlines() if line.startswith("ExecStart=")]
    lines += [["prunella", *line.split()[1:]] for line in services if "/bin/prunella " in line]
    assert services
    # In containers, what follows a prompt, `exec … --` or the service `submit` is ours.
    typed = [line[1:] for line in lines if line[:1] == ["prunella"]]
    typed += [line[line.index("--") + 2 :] for line in lines if line[:1] == ["kubectl"] and "--" in line]
    typed += [line[line.index("submit") :] for line in lines if line[:1] == ["docker"] and "submit" in line]
    assert len(typed) >= 13
    assert {words[0] for words in typed} >= {"keys", "superlink", "register", "supernode", "submit"}
    commands = typer.main.get_command(cli.app)
    assert isinstance(commands, click.Group)
    for name, *arguments in typed:
        command = commands.get_command(click.Context(commands), name)
        assert command is not None
        command.make_context(name, list(arguments))
