"""The ServerApp: reads the settings, builds the federation, runs it, and records how it ended."""

import os
import threading
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from logging import INFO, WARNING, getLogger
from pathlib import Path

from flwr.app import Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.exit import add_exit_handler

from prunella.attacks import SECTIONS as ATTACK_SECTIONS
from prunella.core.config import Raw, Run, check_sections, parse_run
from prunella.core.errors import ConfigError
from prunella.core.untrusted import clean
from prunella.privacy import SECTIONS as PRIVACY_SECTIONS
from prunella.privacy.chain import build_chain, check_model
from prunella.server.audit.canary import WAY_OUT, load_pool, shortage
from prunella.server.audit.queue import Auditor
from prunella.server.audited import tell_verdict
from prunella.server.exporter import Exporter
from prunella.server.grid import OrderedGrid
from prunella.server.preflight import require_test
from prunella.server.rounds import Federation, federate, require_replies, set_threads
from prunella.server.simulated import untold
from prunella.server.store.rows import ledger_rows
from prunella.server.store.schema import row
from prunella.server.store.write import RunStore, Status, claimed, now
from prunella.strategies import SECTIONS as STRATEGY_SECTIONS
from prunella.strategies import build_strategy, find, scheme_settings, uses_public
from prunella.strategies.round.numbering import Numbering
from prunella.strategies.round.server_model import ServerModel
from prunella.strategies.round.telling import first_telling
from prunella.tasks.data import class_names, load_test, make_task
from prunella.tasks.examples import Examples
from prunella.tasks.public import set_apart
from prunella.tasks.recommended import choice, settled
from prunella.tasks.task import initial, prunable, require_fit

app = ServerApp()
Loader = Callable[[str, Path | None], Examples | None]

SECTIONS = {**PRIVACY_SECTIONS, **STRATEGY_SECTIONS, **ATTACK_SECTIONS}
NUMBERS = "client-numbers.json"
LAUNCHED = "launch.json"  # what `prunella run` and `prunella submit` write into the directory of a run
LAST_SCRAPE = 15.0  # seconds that monitoring has to read a run's last figures: three scrapes of deploy/prometheus
MAX_ERROR = 2_000  # characters of the error that ended a run
_PACKAGES = ("prunella", "flwr", "torch", "numpy")


def versions() -> dict[str, str]:
    """Versions that decide whether two runs can be compared."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "source"
    return found


def placed(run: Run, number: int) -> Run:
    """The run with a directory: ``run-dir``, or with Flower's own `flwr run` one below ``FLWR_HOME``, in which Flower
    keeps everything else. ``number`` is Flower's of this run. Raises ``ConfigError``."""
    if not run.run_dir and run.resume:
        raise ConfigError("resume needs the run-dir of the run to go on with; the log of that run names it")
    home = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
    folder = run.run_dir or str((home / "prunella" / "runs" / run.name(number)).absolute())
    return run.model_copy(update={"run_dir": folder})


def numbering_file(folder: Path) -> Path:
    """The file that maps SuperNodes to client numbers: in FLWR_HOME, shared by a SuperLink's runs, or in ``folder``."""
    return Path(os.environ.get("FLWR_HOME") or folder) / NUMBERS


def assemble(run: Run, raw: Raw, load: Loader = load_test) -> Federation:
    """Build every part of a run from its settings; ``load`` loads the test examples.

    Raises ``ConfigError`` before anything starts."""
    check_sections(raw, SECTIONS)
    folder = Path(run.run_dir)
    task = make_task(run.model, run.dataset, None)
    module = task.build()
    require_fit(task, module)
    test = load(run.dataset, None)
    require_test(run, test is not None)
    params, buffers = initial(task, run.seed)
    check_model(build_chain(run.defense_names, raw), buffers)
    pool = load_pool(task, test, run.seed)
    public, test = set_apart(task, test, run.seed) if uses_public(run.strategy) else (None, test)
    model = ServerModel(module, task.shape, tuple(params), prunable(module), public, task)
    strategy = build_strategy(run, raw, model)
    strategy.roster.classes = class_names(run.dataset, None)
    strategy.roster.learning_rate = run.learning_rate
    strategy.roster.numbering = Numbering(numbering_file(folder) if run.registered_keys else None)
    auditor = Auditor(run, raw, task, pool, strategy.roster, folder)
    auditor.telling = first_telling(run, find(run.strategy).client, scheme_settings(run.strategy, raw))
    store = RunStore.open(folder)
    exporter = Exporter(run.metrics_address, versions(), folder) if run.metrics_address else None
    federation = Federation(run, raw, task, model, strategy, auditor, store, exporter, test, folder)
    strategy.listener, strategy.asking = federation.on_reply, federation.on_question
    return federation


def _guessing(federation: Federation) -> dict[str, float]:
    """What a model that only guesses would score on the server's test examples: how many there are, and the share of
    the most frequent class. Nothing where the clients evaluate."""
    test = federation.test
    if test is None or not len(test) or federation.run.evaluation == "clients":
        return {}
    return {"test_examples": len(test), "largest_class": int(test.y.bincount().max()) / len(test)}


def describe(federation: Federation) -> None:
    """Record in the run store what is about to run."""
    run = federation.run
    chain = build_chain(run.defense_names, federation.raw)
    if run.audit_every and (few := shortage(federation.auditor.pool[0], run.local_steps * run.batch_size)):
        log(WARNING, "audits will prove nothing about a client's own update: %s; %s", few, WAY_OUT)
    federation.store.write_run(
        id=federation.folder.name,
        status="running",
        error=None,
        note=None,
        settings=dict(federation.raw),
        versions=versions(),
        model_parameters=sum(t.numel() for t in initial(federation.task, 0)[0].values()),
        shape=list(federation.task.shape),
        classes=federation.task.classes,
        **_guessing(federation),
        started=federation.store.run().get("started") or now(),
        threat_model=f"{federation.auditor.attack.threat}. Strategy {run.strategy}, defenses {','.join(chain.names)}.",
        claims=[f"{name}: {claim}" for name, claim in zip(chain.names, chain.claims, strict=True)],
    )


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation named by the run's settings."""
    set_threads()
    given = {k: v for k, v in context.run_config.items() if isinstance(v, str | int | float | bool)}
    raw: Raw = settled(given)
    if said := choice(given):
        log(INFO, "%s", said)
    run = placed(parse_run(raw), context.run_id)
    with claimed(Path(run.run_dir)):
        log(INFO, "this run is kept in %s", run.run_dir)
        federation = assemble(run, raw)
        try:
            run_to_end(federation, grid)
        finally:
            report(federation)


def report(federation: Federation) -> None:
    """Write the report of a run that no launcher follows, and say where; a launcher writes its own, and nobody waits
    for that of a run that was told to stop."""
    if (federation.folder / LAUNCHED).exists() or federation.store.run()["status"] not in ("completed", "failed"):
        return
    from prunella.server.report.build import write_report

    log(INFO, "report: %s", write_report(federation.folder))


def finish(federation: Federation, status: Status, error: str | None = None) -> None:
    """Record how the run ended, and tell monitoring that what it shows from now on is not of a run that goes on. Only
    of one that is complete a verdict may be clear."""
    federation.store.finish(status, error)
    tell_verdict(federation)
    if federation.exporter is not None:
        federation.exporter.update([*ledger_rows(federation.ledgers), row("run_ended", 1)])  # a round may be cut short


def stopped(federation: Federation) -> None:
    """Flower ends a simulation, whose ServerApp is a thread that no signal reaches: ``flwr stop``, most likely."""
    if federation.store.run()["status"] == "running":
        finish(federation, "stopped")
    if federation.exporter is not None:
        federation.exporter.hurry()


def run_to_end(federation: Federation, grid: Grid) -> None:
    """Run the federation and record whether it completed, failed or was stopped."""
    run, exporter, patience = federation.run, federation.exporter, 0.0
    describe(federation)
    if exporter is not None:
        exporter.update([row("rounds_void_total", 0), row("run_ended", 0)])
    if threading.current_thread() is not threading.main_thread():
        add_exit_handler(lambda: stopped(federation))
        getLogger("flwr").addFilter(untold)
    try:
        federate(federation, OrderedGrid(grid, run.poll_seconds, arriving=run.speed_tiers > 1))
        require_replies(federation, run.rounds)
    except BaseException as error:
        if isinstance(error, SystemExit) and not error.code:  # how Flower ends a run that was told to stop
            finish(federation, "stopped")
            raise
        if federation.store.run()["status"] == "stopped":
            raise
        finish(federation, "failed", clean(f"{type(error).__name__}: {error}", MAX_ERROR))
        patience = LAST_SCRAPE if isinstance(error, Exception) else 0.0  # whoever presses Ctrl-C does not wait
        raise
    else:
        finish(federation, "completed")
        patience = LAST_SCRAPE
    finally:
        federation.auditor.close()
        if exporter is not None:
            exporter.close(patience)
