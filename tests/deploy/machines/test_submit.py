"""What is sent to a running SuperLink, what is refused before, and how losing sight of a run differs from its end."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from prunella.deploy.console.progress import PlainView
from prunella.deploy.errors import LaunchError, UsageError
from prunella.deploy.machines import keys, submit
from prunella.deploy.machines.keys import KeyFileError, Keys
from prunella.deploy.machines.submit import Destination
from prunella.deploy.ports import Address, free_ports
from prunella.deploy.runs import WRITER, RunDir, create, state, written
from prunella.deploy.runtime.processes import Exit, Process
from prunella.deploy.runtime.request import RunRequest
from prunella.server.store import write
from prunella.server.store.write import RunStore, claimed

HERE = Address("127.0.0.1", 8000)


@pytest.fixture
def made(tmp_path: Path) -> Keys:
    keys.make(tmp_path / "keys", ["a", "b"], [])
    return Keys(tmp_path / "keys")


@pytest.fixture
def request_(tmp_path: Path, smallest_app: Path) -> RunRequest:
    return RunRequest(smallest_app, tmp_path / "runs", {"rounds": 3}, supernodes=2, run_id="one")


def spy(spawn: Any, asked: list[dict]) -> Any:
    """``spawn`` that also notes what was asked."""

    def noted(self: Any, process: Process) -> None:
        asked.append(json.loads(Path(process.args[0]).read_text()))
        spawn(self, process)

    return noted


class Scripted:
    """A control process that leaves these events and this exit."""

    events: list[dict] = []
    code = 0
    stopped = 0

    def spawn(self, process: Process) -> None:
        out = Path(json.loads(Path(process.args[0]).read_text())["out"])
        out.write_text("".join(json.dumps(event) + "\n" for event in self.events))

    def exits(self) -> list[Exit]:
        return [Exit("control", self.code)]

    def stop(self) -> None:
        type(self).stopped += 1


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> type[Scripted]:
    monkeypatch.setattr(submit, "StockBackend", Scripted)
    monkeypatch.setattr(submit, "reachable", lambda target: None)
    Scripted.stopped = 0
    return Scripted


def test_the_request_carries_keys_settings_and_where_the_run_is_kept(
    tmp_path: Path, made: Keys, request_: RunRequest
) -> None:
    run = create(tmp_path / "runs", "one", 0)
    process = submit.control(request_, Destination(HERE, made), run, resume=True)
    sent = json.loads(Path(process.args[0]).read_text())
    assert sent["address"] == "127.0.0.1:8000" and sent["ca"] == str(made.ca)
    assert sent["register"] == [str(path) for path in made.public()]
    assert sent["config"] == {"rounds": 3, "run-dir": str(run.path), "resume": True}
    process = submit.control(request_, Destination(Address("10.0.0.1", 8000), None, "/srv/run"), run, resume=False)
    sent = json.loads(Path(process.args[0]).read_text())
    assert "ca" not in sent and sent["register"] == [] and sent["config"]["run-dir"] == "/srv/run"


@pytest.mark.parametrize(("given", "wanted"), [({}, True), ({"registered-keys": False}, False)])
def test_with_keys_client_numbers_are_the_keys(tmp_path: Path, made: Keys, given: dict, wanted: bool) -> None:
    run = create(tmp_path / "runs", "one", 0)
    request = RunRequest(Path(__file__).parents[3], tmp_path / "runs", given, supernodes=2, run_id="one")
    configs = []
    for found in (made, None):
        process = submit.control(request, Destination(HERE, found), run, resume=False)
        configs.append(json.loads(Path(process.args[0]).read_text())["config"])
    assert configs[0]["registered-keys"] is wanted and configs[1].get("registered-keys", False) is False


def test_a_run_kept_elsewhere_needs_its_place(made: Keys) -> None:
    submit.check(Destination(HERE, made))
    submit.check(Destination(Address("10.0.0.1", 8000), made, "/srv/run"))
    submit.check(Destination(Address("10.0.0.1", 8000), made, shared=True))
    with pytest.raises(UsageError, match="--run-dir"):
        submit.check(Destination(Address("10.0.0.1", 8000), made))
    made.ca.unlink()
    with pytest.raises(KeyFileError, match="is missing"):
        submit.check(Destination(HERE, made))


def test_nobody_at_the_address(monkeypatch: pytest.MonkeyPatch, made: Keys) -> None:
    monkeypatch.setattr(submit, "START", 0.0)
    with pytest.raises(LaunchError, match="prunella superlink"):
        submit.reachable(Destination(Address("127.0.0.1", free_ports(1)[0]), made))


def test_a_run_of_this_machine_s_own_launcher_is_not_asked_of_a_superlink(tmp_path: Path, made: Keys) -> None:
    run = create(tmp_path, "local", 1)
    run.events.parent.mkdir(parents=True, exist_ok=True)
    run.events.write_text(json.dumps({"event": "started", "flower_run": 1}) + "\n")
    with pytest.raises(UsageError, match="Ctrl-C where it runs"):
        submit.stop(Destination(HERE, made), run, tmp_path)


@pytest.mark.parametrize("expected", ["completed", "failed", "stopped"])
def test_the_outcome_is_flowers_word(scripted: type[Scripted], made: Keys, request_: RunRequest, expected: str) -> None:
    scripted.events = [
        {"event": "registered", "names": ["a"]},
        {"event": "started", "flower_run": 7},
        {"event": "status", "status": "running"},
        {"event": "status", "status": f"finished:{expected}", "details": "why"},
    ]
    scripted.code = 0
    with Console().capture() as _:
        outcome = submit.submit(request_, Destination(HERE, made), PlainView(Console(quiet=True)), lambda: None)
    assert outcome.status == expected and scripted.stopped == 1
    assert (outcome.error == "why") == (expected == "failed")
    assert json.loads((outcome.run.path / "launch.json").read_text())["settings"] == {"rounds": 3}


def test_a_refused_app_is_a_failed_run(scripted: type[Scripted], made: Keys, request_: RunRequest) -> None:
    scripted.events, scripted.code = [{"event": "error", "message": "copy ca.crt"}], 1
    outcome = submit.submit(request_, Destination(HERE, made), PlainView(Console(quiet=True)), lambda: None)
    assert (outcome.status, outcome.error) == ("failed", "copy ca.crt")


def test_ctrl_c_stops_looking_only(
    scripted: type[Scripted], made: Keys, request_: RunRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    scripted.events, scripted.code = [{"event": "started", "flower_run": 7}], 0
    monkeypatch.setattr(submit.time, "sleep", interrupt)
    outcome = submit.submit(request_, Destination(HERE, made), PlainView(Console(quiet=True)), lambda: None)
    assert outcome.status == "stopped" and "goes on" in outcome.error and scripted.stopped == 1


def test_nothing_is_made_when_the_settings_are_wrong(made: Keys, request_: RunRequest) -> None:
    def refuse() -> None:
        raise UsageError("no")

    with pytest.raises(UsageError):
        submit.submit(request_, Destination(HERE, made), PlainView(Console(quiet=True)), refuse)
    assert not request_.runs.exists()


def test_register_tells_new_names_or_the_reason(scripted: type[Scripted], made: Keys, tmp_path: Path) -> None:
    folder = tmp_path / "r"
    folder.mkdir()
    scripted.events, scripted.code = [{"event": "registered", "names": ["a"], "removed": ["b"]}], 0
    assert submit.register(Destination(HERE, made), folder) == (["a"], ["b"])
    (folder / "events.jsonl").unlink()
    scripted.events, scripted.code = [{"event": "error", "message": "hung up"}], 1
    with pytest.raises(LaunchError, match="hung up"):
        submit.register(Destination(HERE, made), folder)
    with pytest.raises(UsageError, match="need TLS"):
        submit.register(Destination(HERE, None), folder)
    for path in made.public():
        path.unlink()
    with pytest.raises(KeyFileError, match="no public key"):
        submit.register(Destination(HERE, made), folder)


@pytest.fixture
def going(tmp_path: Path) -> RunDir:
    """A run that was submitted as Flower's number 7 and calls itself running."""
    run = create(tmp_path / "runs", "one", 0)
    run.events.write_text(json.dumps({"event": "started", "flower_run": 7}) + "\n")
    RunStore.open(run.path).write_run(id="one", status="running")
    return run


def test_stop_asks_for_the_run_s_number_waits_for_its_writer_and_writes_it_down(
    scripted: type[Scripted], made: Keys, going: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted.events, scripted.code = [{"event": "stopped", "done": True}], 0
    asked = []
    monkeypatch.setattr(Scripted, "spawn", spy(Scripted.spawn, asked))
    with ExitStack() as writer:
        writer.enter_context(claimed(going.path))
        monkeypatch.setattr(submit.time, "sleep", lambda _: writer.close())
        assert submit.stop(Destination(HERE, made), going, tmp_path)
        monkeypatch.undo()
    assert asked[0]["stop"] == 7 and "app" not in asked[0] and asked[0]["ca"] == str(made.ca)
    assert going.status() == "stopped"


def test_a_run_that_had_ended_keeps_its_word_and_one_never_submitted_is_refused(
    scripted: type[Scripted], made: Keys, going: RunDir, tmp_path: Path
) -> None:
    scripted.events, scripted.code = [{"event": "stopped", "done": False}], 0
    assert not submit.stop(Destination(HERE, made), going, tmp_path)
    assert going.status() == "running"
    going.events.unlink()
    with pytest.raises(UsageError, match="was not submitted"):
        submit.stop(Destination(HERE, made), going, tmp_path)


def test_a_run_that_goes_on_is_not_resumed(
    scripted: type[Scripted], made: Keys, request_: RunRequest, going: RunDir
) -> None:
    view = PlainView(Console(quiet=True))
    with claimed(going.path):
        assert written(going) and state(going) == "running"
        with pytest.raises(UsageError, match="prunella stop one"):
            submit.submit(request_, Destination(HERE, made), view, lambda: None, going)
    assert WRITER == write.WRITER and scripted.stopped == 0 and not written(going) and state(going) == "interrupted"
    scripted.events, scripted.code = [{"event": "status", "status": "finished:completed"}], 0
    assert submit.submit(request_, Destination(HERE, made), view, lambda: None, going).status == "completed"
