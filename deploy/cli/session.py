"""What ``prunella run`` and ``prunella simulate`` do around a federation: settings before, report and table after."""

import importlib
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console

from prunella.deploy.console.progress import Line, State, View, fold, view
from prunella.deploy.errors import UsageError
from prunella.deploy.local.launcher import Outcome, Request, Status, launch, restored, tail
from prunella.deploy.machines.submit import Target, submit
from prunella.deploy.runs import RunDir, find
from prunella.deploy.runtime import settings

out = Console()
errors = Console(stderr=True)


class Foresighted:
    """A view that has the report's modules imported while the last audits run: seconds that nobody then waits for."""

    def __init__(self, shown: View) -> None:
        self._shown, self._state, self._begun = shown, State(), False
        self.say, self.close = shown.say, shown.close

    def show(self, lines: Iterable[Line]) -> None:
        lines = list(lines)
        self._shown.show(lines)
        for line in lines:
            self._state = fold(self._state, line)
        if not self._begun and self._state.rounds and self._state.round >= self._state.rounds:
            self._begun = True
            threading.Thread(target=preload, daemon=True).start()


def preload() -> None:
    """What a report needs; whatever fails here fails again, and is told, when the report is written."""
    for module in ("prunella.server.report.build", "prunella.deploy.console.summary", "torchmetrics.functional.image"):
        with suppress(Exception):
            importlib.import_module(module)


def federation(
    app: Path | None, runs: Path, given: Sequence[str], resume: str, keep: bool, options: Mapping[str, Any]
) -> Status:
    """Start a run, or go on with the run ``resume``, and see it to its end."""
    if resume:
        return again(find(runs, resume), given, keep)
    directory = app.absolute() if app else settings.app_directory()
    typed = settings.parse(given, settings.defaults(settings.read_app(directory)))
    return see_through(Request(directory, runs, typed, keep=keep, **options), None)


def again(run: RunDir, given: Sequence[str], keep: bool) -> Status:
    """Go on with a run, with the settings and the clients' memory it had."""
    if given:
        raise UsageError("a resumed run keeps its settings: leave out -c, or start a new run")
    if run.status() == "completed":
        say(out, f"run {run.id} is completed already; its report is {run.path}/report.html")
        return "completed"
    return see_through(restored(run, keep), run)


def see_through(request: Request, resume: RunDir | None) -> Status:
    """Run to the end, whichever it is, and tell how it went."""
    app = settings.read_app(request.app)
    shown = Foresighted(view(out))
    try:
        outcome = launch(request, shown, lambda: settings.check(app, request.settings), resume)
    finally:
        shown.close()
    if outcome.status != "completed":
        record(outcome)
        explain(outcome)
    if outcome.status != "stopped":
        finish(outcome.run, out)
    return outcome.status


def submission(
    app: Path | None, runs: Path, given: Sequence[str], target: Target, resume: str, options: Mapping[str, Any]
) -> Status:
    """Submit a run, or one to go on with, to a SuperLink elsewhere and follow it to its end."""
    run = find(runs, resume) if resume else None
    if run and given:
        raise UsageError("a resumed run keeps its settings: leave out -c, or start a new run")
    if run:
        request = restored(run)
    else:
        directory = app.absolute() if app else settings.app_directory()
        typed = settings.parse(given, settings.defaults(settings.read_app(directory)))
        request = Request(directory, runs, typed, audit="deny", **options)
    shown = Foresighted(view(out))
    try:
        outcome = submit(
            request, target, shown, lambda: settings.check(settings.read_app(request.app), request.settings), run
        )
    finally:
        shown.close()
    if outcome.status == "stopped":
        say(errors, f"run {outcome.run.id}: {outcome.error}")
    else:
        if outcome.status == "failed":
            explain(outcome)
            say(errors, "--- the ServerApp's own words: logs/server.log in the SuperLink's --home")
        finish(outcome.run, out)
    return outcome.status


def record(outcome: Outcome) -> None:
    """Have ``run.json`` say how the run ended, where the server could not; its own account of a failure stays."""
    if not outcome.run.status() or (outcome.status, outcome.run.status()) == ("failed", "failed"):
        return
    from prunella.server.store.write import RunStore

    RunStore.open(outcome.run.path).finish(outcome.status, outcome.error)


def explain(outcome: Outcome) -> None:
    """Why a run did not complete: Flower's words, the end of the log, where to look."""
    if outcome.status == "stopped":
        say(errors, f"stopped; go on with: prunella run --resume {outcome.run.id} --runs {outcome.run.path.parent}")
        return
    say(errors, f"prunella: the federation failed: {outcome.error}")
    if outcome.log and (end := tail(outcome.log)):
        say(errors, f"--- last lines of {outcome.log}\n{end}")
    say(errors, f"--- all logs: {outcome.run.path}/logs")


def finish(run: RunDir, console: Console) -> None:
    """The report and the table of a run. A foreign app that keeps no ``run.json`` has neither."""
    if not run.status():
        return
    from prunella.deploy.console.summary import summary
    from prunella.server.report.build import write_report

    path = write_report(run.path)
    console.print(summary(run))
    say(console, f"report: {path}")


def say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
