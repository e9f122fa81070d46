"""What ``run``, ``simulate`` and ``submit`` do around a federation: settings before, report and table after."""

import importlib
import os
import re
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from prunella.deploy.console.progress import ConsoleView, Line, State, fold, view
from prunella.deploy.console.terminal import console, errors, say
from prunella.deploy.errors import LaunchError, UsageError
from prunella.deploy.local.launcher import launch, room
from prunella.deploy.machines.submit import Destination, submit
from prunella.deploy.runs import RunDir, every, find, point_latest
from prunella.deploy.runtime import settings
from prunella.deploy.runtime.request import RunRequest, restored
from prunella.deploy.runtime.watch import Outcome, Status, tail

ANSI = re.compile(r"\x1b\[[0-9;]*m")
OWN_ERROR = re.compile(r"^prunella\.core\.errors\.\w+: ", re.M)
FULL = 100_000  # bytes: where fewer are left, a run that failed failed for that


class ReportPreloader:
    """A view that imports the report's modules while the last audits run, so that the report comes sooner."""

    def __init__(self, view: ConsoleView) -> None:
        self._view, self._state, self._begun = view, State(), False
        self.say, self.close = view.say, view.close

    def show(self, lines: Iterable[Line]) -> None:
        lines = list(lines)
        self._view.show(lines)
        for line in lines:
            self._state = fold(self._state, line)
        if not self._begun and self._state.rounds and self._state.round >= self._state.rounds:
            self._begun = True
            threading.Thread(target=preload, daemon=True).start()


def preload() -> None:
    """Import what a report needs; an error here comes up again, and is shown, when the report is written."""
    for module in ("prunella.server.report.build", "prunella.deploy.console.summary"):
        with suppress(Exception):
            importlib.import_module(module)


def of_new_runs(context: typer.Context, resume: str, *names: str) -> None:
    """Raise ``UsageError`` where a run to go on with is named, and with it an option that only a new one has, or where
    it is named by nothing, as by a shell's unset variable. What was typed and not done, nobody notices."""

    def typed(name: str) -> bool:
        source = context.get_parameter_source(name)
        return source is not None and source.name == "COMMANDLINE"

    if typed("resume") and not resume:
        raise UsageError("--resume names no run: give an id, a path or 'latest', or leave it out for a new run")
    words = {option.name: max(option.opts, key=len) for option in context.command.params}
    if resume and (wrong := [words[name] for name in names if name in words and typed(name)]):
        raise UsageError(f"a resumed run keeps its settings: leave out {', '.join(wrong)}, or start a new run")


def run_local(
    app: Path | None, runs: Path, given: Sequence[str], resume: str, keep: bool, options: Mapping[str, Any]
) -> Status:
    """Start a federation on this machine, or go on with the run ``resume``, and follow it to its end."""
    run = resumed(runs, resume, given)
    if run and "completed" in (run.status(), run.ended()):
        what = f"report is {run.path}/report.html" if run.status() else f"logs are in {run.logs}"
        say(f"run {run.id} is completed already; its {what}")
        return "completed"
    request = restored(run, keep) if run else asked(app, runs, given, keep=keep, **options)
    started = time.time()
    with shown() as view:
        outcome = launch(request, view, checker(request, view, here=True), run)
    if outcome.status == "completed" and not outcome.run.status():
        outcome = judged(outcome)
    if outcome.status == "failed" and room(outcome.run.path) < FULL:
        raise LaunchError(f"the disk of {runs} is full: free some space, then go on with {again(outcome.run)}")
    if outcome.status != "completed":
        record(outcome, settings.is_prunella(settings.read_app(request.app)))
        explain(outcome)
    if outcome.status == "failed" and not outcome.run.status():
        outcome.run.end("failed")
    if outcome.status == "completed" and not outcome.run.status():
        from prunella.deploy.tools.other_app import closing

        for line in closing(outcome.run, request.app, started):
            say(line)
        outcome.run.end("completed")
    elif outcome.status != "stopped":
        finish(outcome.run)
    return outcome.status


def judged(outcome: Outcome) -> Outcome:
    """A run of another app that Flower calls completed: failed, if no client's answer counted in it."""
    from prunella.deploy.tools.other_app import nothing_trained

    logs = [outcome.run.log(name) for name in ("server", "superlink")]
    if error := nothing_trained(logs):
        return replace(outcome, status="failed", error=error, log=next(log for log in logs if log.exists()))
    return outcome


def submit_run(
    app: Path | None, runs: Path, given: Sequence[str], target: Destination, resume: str, options: Mapping[str, Any]
) -> Status:
    """Submit a run, or one to go on with, to a running SuperLink and follow it to its end."""
    run = resumed(runs, resume, given)
    request = restored(run) if run else asked(app, runs, given, audit="deny", **options)
    with shown() as view:
        outcome = submit(request, target, view, checker(request, view), run)
    if outcome.status == "stopped":
        say(f"run {outcome.run.id}: {outcome.error}", errors)
        return outcome.status
    if outcome.status == "failed":
        explain(outcome)
        say("--- the ServerApp's log is logs/server.log in the SuperLink's --home", errors)
    finish(outcome.run)
    return outcome.status


def resumed(runs: Path, name: str, given: Sequence[str]) -> RunDir | None:
    """The run to go on with, if one is named. It keeps the settings and the clients' memory it had."""
    if not name:
        return None
    run = find(runs, name)
    if given:
        raise UsageError("a resumed run keeps its settings: leave out -c, or start a new run")
    return run


def asked(app: Path | None, runs: Path, given: Sequence[str], **options: Any) -> RunRequest:
    """A new run of this app, by default Prunella's own, with the settings as typed."""
    directory = app.absolute() if app else settings.app_directory()
    typed = settings.parse(given, settings.defaults(settings.read_app(directory)))
    return RunRequest(directory, runs, typed, **options)


def checker(request: RunRequest, view: ConsoleView, here: bool = False) -> Callable[[], None]:
    """Raises ``ConfigError`` where the rules refuse the settings, and says what was chosen; it may take seconds."""

    def check() -> None:
        if said := settings.check(settings.read_app(request.app), request.settings, here):
            view.say(said)

    return check


@contextmanager
def shown() -> Iterator[ConsoleView]:
    """The progress of a run on the terminal."""
    progress = ReportPreloader(view(console))
    try:
        yield progress
    finally:
        progress.close()


def record(outcome: Outcome, ours: bool = False) -> None:
    """Write into ``run.json`` how the run ended where the server could not; its own error message stays. A run of
    ``ours`` that ended before its first round is not what ``latest`` means, if any other began."""
    if ours and not outcome.run.metrics.exists():
        began = [run.id for run in every(outcome.run.path.parent) if os.path.exists(run.metrics)]
        if began:
            point_latest(outcome.run.path.parent, began[-1])
    known = outcome.run.status()
    if not (known or ours) or (outcome.status, known) == ("failed", "failed"):
        return
    from prunella.server.store.write import RunStore

    RunStore.open(outcome.run.path).finish(outcome.status, outcome.error)


def again(run: RunDir) -> str:
    """What to type to go on with a run."""
    return shlex.join(["prunella", "run", "--resume", run.id, "--runs", str(run.path.parent)])


def explain(outcome: Outcome) -> None:
    """Why a run did not complete: Flower's message, the end of the log unless that message is one of ours and says it
    all, and where to look."""
    if outcome.status == "stopped":
        say(f"stopped; go on with: {again(outcome.run)}", errors)
        return
    say(f"prunella: the federation failed: {outcome.error}", errors)
    if outcome.log and (end := ANSI.sub("", tail(outcome.log))) and not OWN_ERROR.search(end):
        say(f"--- last lines of {outcome.log}\n{end}", errors)
    say(f"--- all logs: {outcome.run.logs}", errors)


def finish(run: RunDir) -> None:
    """Write the report of a run and print its table. Another app that keeps no ``run.json`` has neither."""
    if not run.status():
        return
    from prunella.deploy.console.summary import summary
    from prunella.server.report.build import write_report

    path = write_report(run.path)
    console.print(summary(run))
    say(f"report: {path}")
