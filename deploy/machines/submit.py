"""Submitting the app to a SuperLink that is running already, and following the run to its end.

The ServerApp runs on the SuperLink's machine and keeps the run there. Submitted from that machine, a run looks and ends
like one of ``prunella run``: ``runs/<id>/``, live rounds, report; likewise from a machine that shares the directory of
runs, at the same path. Submitted from any other machine, ``elsewhere`` says where the SuperLink's machine keeps the
run, and only the status that Flower reports is seen here. Ctrl-C leaves the federation going.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prunella.core.interrupts import signals_interrupt
from prunella.deploy.console.progress import ConsoleView, Follower
from prunella.deploy.errors import LaunchError, UsageError
from prunella.deploy.machines.keys import KeyFileError, Keys, present
from prunella.deploy.ports import Address, free_ports, wait_open
from prunella.deploy.runs import RunDir, create, locked, new_id, point_latest, prepare, written
from prunella.deploy.runtime import requirements, settings
from prunella.deploy.runtime.processes import Process, StockBackend
from prunella.deploy.runtime.request import RunRequest, describe, run_config, submission
from prunella.deploy.runtime.services import Folders
from prunella.deploy.runtime.services import control as control_process
from prunella.deploy.runtime.watch import INTERVAL, Outcome, Watch

EVERY = 1.0  # seconds between two checks of the status: each is a line in the SuperLink's log
PATIENCE = 120.0  # seconds a SuperLink may be away in the middle of a run
SILENT = 2.0  # seconds of waiting that need no word
START = 60.0  # seconds a SuperLink may take to answer: on a busy machine it needs more than 20 to begin


@dataclass(frozen=True)
class Destination:
    """A SuperLink's Control API. ``keys`` is None without TLS; ``elsewhere`` is the run's directory over there.

    ``shared``: the directory of runs is the same one, at the same path, where the ServerApp runs.
    """

    address: Address
    keys: Keys | None
    elsewhere: str = ""
    shared: bool = False

    def request(self) -> dict[str, Any]:
        """The part of ``deploy.runtime.control_api``'s request that every use has."""
        found = {"address": str(self.address)}
        return found | ({"ca": str(self.keys.ca.absolute())} if self.keys else {})


def check(target: Destination) -> None:
    """The authority's certificate is here, and it is known where the run is kept. Raises ``UsageError``."""
    if target.keys:
        present(target.keys.ca)
    if not (target.address.loopback or target.elsewhere or target.shared):
        raise UsageError(
            f"the run is kept on the machine of {target.address}: submit there, name its directory with --run-dir, or "
            "add --shared-runs if both have the same directory of runs"
        )


def public_keys(keys: Keys) -> list[str]:
    """The files of the SuperNodes' public keys. Raises ``KeyFileError`` when there is none."""
    found = [str(path.absolute()) for path in keys.public()]
    if not found:
        raise KeyFileError(f"{keys.path}/supernodes holds no public key: make some with `prunella keys`")
    return found


def reachable(target: Destination) -> None:
    """Wait for a SuperLink that is starting. Raises ``LaunchError`` when nothing listens there."""
    port, host = target.address.port, target.address.host
    if wait_open(port, SILENT, every=0.2, host=host):
        return
    print(f"waiting up to {START:.0f} s for a SuperLink at {target.address}", file=sys.stderr)
    if not wait_open(port, START - SILENT, every=0.2, host=host):
        raise LaunchError(f"no SuperLink answers at {target.address}: start it with `prunella superlink`")


def register(target: Destination, folder: Path) -> tuple[list[str], list[str]]:
    """Let the SuperNodes of ``target.keys`` in; the names of those that are new there, and of those that were removed
    there. Raises ``LaunchError``."""
    if target.keys is None:
        raise UsageError("keys need TLS: leave out --insecure")
    present(target.keys.ca)
    files = public_keys(target.keys)
    reachable(target)
    answer = ask(target, folder, "registered", {"register": files})
    return list(answer["names"]), list(answer["removed"])


def unregister(target: Destination, which: str, folder: Path) -> tuple[int, bool]:
    """Keep the SuperNode with this name or node id out for good; its node id, and whether it was out already. Raises
    ``LaunchError``."""
    if target.keys:
        present(target.keys.ca)
    reachable(target)
    removed = ask(target, folder, "removed", {"remove": which})
    return int(removed["node"]), bool(removed["already"])


def ask(target: Destination, folder: Path, wanted: str, question: dict[str, Any]) -> dict[str, Any]:
    """The event ``wanted`` in answer to one question to the SuperLink. Raises ``LaunchError``."""
    events = folder / "events.jsonl"
    process = control_process(Folders(folder, folder), folder, {**target.request(), **question, "out": str(events)})
    backend = StockBackend()
    backend.spawn(process)
    try:
        while not backend.exits():
            time.sleep(INTERVAL)
    finally:
        backend.stop()
    for event in Follower(events).read():
        if event["event"] == wanted:
            return dict(event)
        raise LaunchError(str(event["message"]))
    raise LaunchError(f"the SuperLink gave no answer: {Path(process.log).read_text()[-500:]}")


def stop(target: Destination, run: RunDir, folder: Path) -> bool:
    """End a run on the SuperLink it was submitted to, wait until nothing writes it, and record that in ``run.json``.

    False when it had ended already. Raises ``UsageError`` for a run that was never submitted, else ``LaunchError``.
    """
    started = [event["flower_run"] for event in Follower(run.events).read() if event["event"] == "started"]
    if run.node(0).exists():
        raise UsageError(f"run {run.id} is one of `prunella run`: end it with Ctrl-C where it runs")
    if not started:
        raise UsageError(
            f"run {run.id} was not submitted to a SuperLink from here, or has completed: see `prunella runs`"
        )
    if target.keys:
        present(target.keys.ca)
    reachable(target)
    done = bool(ask(target, folder, "stopped", {"stop": started[-1]})["done"])
    limit = time.monotonic() + START
    while written(run):
        if time.monotonic() > limit:
            raise LaunchError(
                f"Flower ended run {run.id}, but its ServerApp still writes {run.path} after {START:.0f} s: restart "
                "the SuperLink, or the executor where it is on its own"
            )
        time.sleep(INTERVAL)
    if done and run.status():
        from prunella.server.store.write import RunStore

        RunStore.open(run.path).finish("stopped")
    return done


def control(request: RunRequest, target: Destination, run: RunDir, resume: bool) -> Process:
    """The process that registers the keys, submits the run and reports on it."""
    config = run_config(request, run, free_ports(1)[0], resume)
    if target.keys and "registered-keys" in settings.defaults(settings.read_app(request.app)):
        config = {"registered-keys": True} | config
    if target.elsewhere:
        config |= {"run-dir": target.elsewhere}
    keys = [str(path.absolute()) for path in target.keys.public()] if target.keys else []
    follow = {"register": keys, "every": EVERY, "patience": PATIENCE}
    return submission(request, run, config, **target.request(), **follow)


def submit(
    request: RunRequest,
    target: Destination,
    view: ConsoleView,
    verify: Callable[[], None],
    resume: RunDir | None = None,
) -> Outcome:
    """Submit and follow to the end. "stopped" by Ctrl-C means no longer followed: the federation goes on."""
    requirements.check_system()
    verify()
    check(target)
    reachable(target)
    if resume and written(resume):
        raise UsageError(
            f"run {resume.id} is still going on: wait until it has ended, or end it with `prunella stop {resume.id}`"
        )
    run = resume or create(request.runs, request.run_id or new_id(), 0)
    with signals_interrupt(), locked(run):
        prepare(run, 0)
        run.events.unlink(missing_ok=True)
        (run.path / "launch.json").write_text(json.dumps(describe(request), indent=1))
        point_latest(run.path.parent, run.id)
        view.say(f"run {run.id}: submitting to {target.address}")
        backend = StockBackend()
        watch = Watch(run, backend, view, stock=False)
        try:
            backend.spawn(control(request, target, run, resume is not None))
            outcome = watch.wait()
        except KeyboardInterrupt:
            return Outcome(
                run, "stopped", f"no longer followed; the federation goes on. `prunella stop {run.id}` ends it"
            )
        finally:
            backend.stop()
    return replace(outcome, log=run.log("control")) if outcome.log else outcome
