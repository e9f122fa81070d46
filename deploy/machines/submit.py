"""Submitting the app to a SuperLink that is running already, and following the run to its end.

The ServerApp runs on the SuperLink's machine and keeps the run there. Submitted from that machine, a run looks and ends
like one of ``prunella run``: ``runs/<id>/``, live rounds, report; likewise from another one that shares the directory
of runs, at the same path. Submitted from afar, ``elsewhere`` says where the SuperLink's machine keeps it, and only
Flower's word on it is seen here. Ctrl-C leaves the federation going.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prunella.deploy.console.progress import Follower, View
from prunella.deploy.errors import LaunchError, UsageError
from prunella.deploy.local.launcher import LOOK, Outcome, Request, Watch, describe, run_config, terminated
from prunella.deploy.machines.commands import Address
from prunella.deploy.machines.keys import KeyFileError, Keys, present
from prunella.deploy.ports import free_ports, wait_open
from prunella.deploy.runs import RunDir, create, locked, new_id, point_latest, prepare, written
from prunella.deploy.runtime import settings
from prunella.deploy.runtime.processes import CONTROL, Process, Stock

EVERY = 1.0  # seconds between two looks at the status: each is a line in the SuperLink's log
PATIENCE = 120.0  # seconds a SuperLink may be away in the middle of a run
START = 60.0  # seconds a SuperLink may take to answer: on a busy machine it needs more than 20 to begin


@dataclass(frozen=True)
class Target:
    """A SuperLink's Control API. ``keys`` is None without TLS; ``elsewhere`` is the run's directory over there.

    ``shared``: the directory of runs is the same one, at the same path, where the ServerApp runs.
    """

    address: Address
    keys: Keys | None
    elsewhere: str = ""
    shared: bool = False

    def request(self) -> dict[str, Any]:
        """The part of ``deploy.runtime.control``'s request that every use has."""
        found = {"address": str(self.address)}
        return found | ({"ca": str(self.keys.ca.absolute())} if self.keys else {})


def check(target: Target) -> None:
    """The SuperLink answers and its authority's certificate is here. Raises ``UsageError``."""
    if target.keys:
        present(target.keys.ca)
    if not (target.address.loopback or target.elsewhere or target.shared):
        raise UsageError(
            f"the run is kept on the machine of {target.address}: submit there, name its directory with --run-dir, or "
            "say --shared-runs if both have the same directory of runs"
        )


def public_keys(keys: Keys) -> list[str]:
    """The files of the SuperNodes' public keys. Raises ``KeyFileError`` when there is none."""
    found = [str(path.absolute()) for path in keys.public()]
    if not found:
        raise KeyFileError(f"{keys.path}/supernodes holds no public key: make some with `prunella keys`")
    return found


def reachable(target: Target) -> None:
    """Wait for a SuperLink that is starting. Raises ``LaunchError`` when nobody listens there."""
    if not wait_open(target.address.port, START, every=0.2, host=target.address.host):
        raise LaunchError(f"no SuperLink answers at {target.address}: start it with `prunella superlink`")


def register(target: Target, folder: Path) -> list[str]:
    """Let the SuperNodes of ``target.keys`` in; the names of those that are new there. Raises ``LaunchError``."""
    if target.keys is None:
        raise UsageError("keys need TLS: leave out --insecure")
    present(target.keys.ca)
    files = public_keys(target.keys)
    reachable(target)
    return list(ask(target, folder, "registered", {"register": files})["names"])


def ask(target: Target, folder: Path, wanted: str, question: dict[str, Any]) -> dict[str, Any]:
    """The event ``wanted`` in answer to one question to the SuperLink. Raises ``LaunchError``."""
    request, events, log = folder / "request.json", folder / "events.jsonl", folder / "control.log"
    request.write_text(json.dumps({**target.request(), **question, "out": str(events)}))
    backend = Stock()
    backend.spawn(Process("control", CONTROL, (str(request),), str(log), {"FLWR_HOME": str(folder)}))
    try:
        while not backend.exits():
            time.sleep(LOOK)
    finally:
        backend.stop()
    for event in Follower(events).read():
        if event["event"] == wanted:
            return dict(event)
        raise LaunchError(str(event["message"]))
    raise LaunchError(f"the SuperLink gave no answer: {log.read_text()[-500:]}")


def stop(target: Target, run: RunDir, folder: Path) -> bool:
    """End a run on the SuperLink it was submitted to, wait until nobody writes it, and have ``run.json`` say so.

    False when it had ended already. Raises ``UsageError`` for a run that was never submitted, else ``LaunchError``.
    """
    started = [event["flower_run"] for event in Follower(run.events).read() if event["event"] == "started"]
    if not started:
        raise UsageError(f"run {run.id} was not submitted to a SuperLink from here, or has completed")
    if target.keys:
        present(target.keys.ca)
    reachable(target)
    done = bool(ask(target, folder, "stopped", {"stop": started[-1]})["done"])
    limit = time.monotonic() + START
    while written(run):
        if time.monotonic() > limit:
            raise LaunchError(
                f"Flower ended run {run.id}, but its ServerApp still writes {run.path} after {START:.0f} s"
            )
        time.sleep(LOOK)
    if done and run.status():
        from prunella.server.store.write import RunStore

        RunStore.open(run.path).finish("stopped")
    return done


def control(request: Request, target: Target, run: RunDir, resume: bool) -> Process:
    """The process that submits the run and reports on it."""
    config = run_config(request, run, free_ports(1)[0], resume)
    if target.keys and "registered-keys" in settings.defaults(settings.read_app(request.app)):
        config = {"registered-keys": True} | config
    if target.elsewhere:
        config |= {"run-dir": target.elsewhere}
    path = run.flower / "request.json"
    app = {"app": str(request.app), "packages": str(settings.packages_of(request.app)), "config": config}
    keys = [str(path.absolute()) for path in target.keys.public()] if target.keys else []
    sent = {
        **target.request(),
        **app,
        "register": keys,
        "every": EVERY,
        "patience": PATIENCE,
        "simulation": None,
        "out": str(run.events),
    }
    path.write_text(json.dumps(sent))
    env = {"FLWR_HOME": str(run.home("control"))}
    return Process("control", CONTROL, (str(path),), str(run.log("control")), env)


def submit(
    request: Request, target: Target, view: View, verify: Callable[[], None], resume: RunDir | None = None
) -> Outcome:
    """Submit and follow to the end. "stopped" means that we stopped looking; the federation goes on."""
    verify()
    check(target)
    reachable(target)
    if resume and written(resume):
        raise UsageError(
            f"run {resume.id} is going on: wait until it has ended, or end it with `prunella stop {resume.id}`"
        )
    run = resume or create(request.runs, request.run_id or new_id(), 0)
    with terminated(), locked(run):
        prepare(run, 0)
        run.events.unlink(missing_ok=True)
        (run.path / "launch.json").write_text(json.dumps(describe(request), indent=1))
        point_latest(run.path.parent, run.id)
        view.say(f"run {run.id}: submitting to {target.address}")
        backend = Stock()
        watch = Watch(run, backend, view, stock=False)
        try:
            backend.spawn(control(request, target, run, resume is not None))
            while (outcome := watch.step()) is None:
                time.sleep(LOOK)
        except KeyboardInterrupt:
            return Outcome(
                run, "stopped", f"no longer followed; the federation goes on. `prunella stop {run.id}` ends it"
            )
        finally:
            backend.stop()
    return replace(outcome, log=run.log("control")) if outcome.log else outcome
