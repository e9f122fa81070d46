"""The run loop: rounds, evaluation, checkpoints, metrics and audits, and resuming a run after its server was killed."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from logging import INFO, WARNING
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.common.logger import log
from flwr.serverapp import Grid

from prunella.core.config import Raw, Run, parse_section
from prunella.core.errors import ConfigError, PrunellaError
from prunella.core.trees import Mask, Tree
from prunella.privacy.accounting import Privacy
from prunella.privacy.ledger import spending
from prunella.privacy.ledger.spending import Line
from prunella.server import checkpoint as checkpoints
from prunella.server.audit.membership import ask_membership
from prunella.server.audit.queue import Auditor
from prunella.server.audit.view import any_left, never_audited
from prunella.server.audited import drain, show_again, take_audits, tell_verdict
from prunella.server.best import best_score, keep_best
from prunella.server.budget import past_budget, too_few
from prunella.server.checkpoint import Checkpoint
from prunella.server.doubts import diverged_rows
from prunella.server.evaluation import LEAST, PATIENCE, Evaluator, on_all
from prunella.server.exporter import Exporter
from prunella.server.questions import note_answer, note_first, note_line, note_refusal
from prunella.server.report.units import plural
from prunella.server.store.rows import (
    audits_counted,
    counter_rows,
    evaluation_rows,
    half_interval,
    ledger_rows,
    round_rows,
    stage_rows,
)
from prunella.server.store.schema import Row, row
from prunella.server.store.write import RunStore
from prunella.strategies.round.replies import Contribution
from prunella.strategies.round.server_model import ServerModel
from prunella.strategies.round.strategy import MaskedMean
from prunella.strategies.shortfall import shortfall, standing
from prunella.tasks.data import Examples
from prunella.tasks.task import Task, initial
from prunella.tasks.training import Evaluation
from prunella.wire.records import from_dense, to_dense

FAILED = "audits_total|failed"
EMPTY_ROUNDS = 3  # rounds without a single valid reply before the run gives up


@dataclass
class Federation:
    """Everything a run needs, put together by ``server.app``."""

    run: Run
    raw: Raw
    task: Task
    model: ServerModel
    strategy: MaskedMean
    auditor: Auditor
    store: RunStore
    exporter: Exporter | None
    test: Examples | None
    folder: Path
    counters: dict[str, float] = field(default_factory=dict)
    ledgers: dict[str, Line] = field(default_factory=dict)
    round: int = 0  # that goes on, or the last
    empty_rounds: int = 0
    best: float = -1.0
    evaluator: Evaluator = field(init=False)
    squared: set[int] = field(default_factory=set)  # rounds in which squared gradients came

    def __post_init__(self) -> None:
        self.evaluator = Evaluator(self.run, self.model, self.test)

    def on_question(self, clients: Iterable[int]) -> None:
        """Before clients are asked what they are charged for: it counts from now on, if this server is killed, too."""
        self.ledgers = spending.asked(self.ledgers, clients)
        self.keep_ledgers()
        if rows := ledger_rows(self.ledgers):  # a round that a kill or an error cuts short tells nothing at its end
            self.store.append_metrics(self.round, rows)
            if self.exporter is not None:  # answers may still come: the alert of those that did not waits for the end
                self.exporter.update(each for each in rows if each.metric != "privacy_epsilon_unknown")

    def keep_ledgers(self) -> None:
        """Write what clients have spent, the questions under way among it, for a resume."""
        checkpoints.save_ledgers(self.folder / "checkpoint", self.ledgers)

    def on_reply(self, contribution: Contribution) -> None:
        """For every valid reply, beside aggregation: keep its ledger line, and file an audit if one is due."""
        member = self.strategy.downlink.asked.get(contribution.node)
        if member is not None:
            note_line(self, member.client, contribution.ledger, trained=not self.run.resume)
        expected = self.strategy.downlink.expected(contribution.node)
        self.squared |= {expected.round} if any_left(contribution.importance) else set()
        if self.auditor.due(expected.round):
            start = self.strategy.view_start(expected, contribution)
            self.auditor.file_client(expected, contribution, member, start)

    def emit(self, round: int, rows: list[Row]) -> None:
        """Write metrics to the run store and to Prometheus."""
        self.store.append_metrics(round, rows)
        if self.exporter is not None:
            self.exporter.update(rows)


def begin(federation: Federation) -> tuple[int, Tree]:
    """Round and weights to start from: the newest checkpoint of a resumed run, or round 0 and initial weights."""
    run, folder = federation.run, federation.folder / "checkpoint"
    if not run.resume and folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{federation.folder} holds a run already: set resume=true, or choose another run-dir")
    saved = checkpoints.load(folder) if run.resume else None
    federation.ledgers = checkpoints.load_ledgers(folder) if run.resume else {}
    if saved is None:
        params, buffers = initial(federation.task, run.seed)
        federation.store.rewind(0)
        federation.auditor.recover(0, ())
        federation.emit(0, ledger_rows(federation.ledgers))
        return 0, {**params, **buffers}
    checkpoints.require_same_settings(saved, federation.raw)
    federation.strategy.mask, _ = federation.model.split(saved.mask)  # in the model's order, which draws depend on
    federation.strategy.recall(saved.scheme)
    federation.counters = dict(saved.counters)
    federation.best = best_score(federation.folder)
    federation.store.rewind(saved.round)
    federation.round = saved.round
    federation.emit(saved.round, ledger_rows(federation.ledgers))  # with what the round that was cut short was charged
    audits = federation.store.audits()
    outcomes = Counter(audit["outcome"] for audit in audits)
    before = audits_counted(federation.counters)
    federation.counters |= dict.fromkeys(before, 0.0)  # some were taken back
    federation.counters |= {f"audits_total|{outcome}": float(count) for outcome, count in outcomes.items()}
    # Of the lines that were lost, those come again whose error still lies in a folder; the count tells of the others.
    lost = before.get(FAILED, 0.0) - outcomes["failed"] - federation.auditor.recover(saved.round, audits)
    if lost > 0:
        federation.counters[FAILED] = outcomes["failed"] + lost
    show_again(federation)
    told = {line["round"] for line in federation.store.metrics() if line["metric"] == "accuracy_ratio"}
    if federation.run.evaluation == "server" and saved.round not in told:
        federation.evaluator.start(saved.round, saved.tree)  # the server was killed while it went on
    log(INFO, "resuming after round %d", saved.round)
    return saved.round, saved.tree


def evaluate_round(federation: Federation, round: int, arrays: ArrayRecord, grid: Grid) -> Evaluation | None:
    """The clients' word on their held-out examples, where it is due; or the server's own evaluation is begun."""
    if federation.run.evaluation == "server":
        federation.evaluator.start(round, from_dense(arrays))
        return None
    if not on_all(federation.run, round):
        return None
    return evaluate_on_clients(federation, round, arrays, grid)


def evaluate_on_clients(federation: Federation, round: int, arrays: ArrayRecord, grid: Grid) -> Evaluation | None:
    messages = list(federation.strategy.configure_evaluate(round, arrays, ConfigRecord(), grid))
    members = federation.strategy.roster.members
    clients = {m.metadata.dst_node_id: members[m.metadata.dst_node_id].client for m in messages}
    federation.on_question(clients.values())
    replies = list(grid.send_and_receive(messages, timeout=federation.run.round_seconds))
    for reply in replies:
        client = clients.get(reply.metadata.src_node_id)
        if client is not None:
            note_answer(federation, client, reply)
    metrics = federation.strategy.aggregate_evaluate(round, replies)
    if metrics is None:
        return None
    return Evaluation(float(str(metrics["loss"])), float(str(metrics["accuracy"])), 0)


def tell_evaluation(federation: Federation) -> None:
    """Wait for the evaluation that goes on beside a round, and tell what it found."""
    done = federation.evaluator.take()
    if done is not None:
        round, result = done
        federation.emit(round, evaluated_rows(federation, round, result))
        log(INFO, "round %d/%d: accuracy %.3f", round, federation.run.rounds, result.accuracy)


def evaluated_rows(federation: Federation, round: int, result: Evaluation, whole: bool = False) -> list[Row]:
    """What an evaluation says: accuracy, loss, how sure it is where some are of a sample, and whether it diverged."""
    run, rows = federation.run, evaluation_rows(result)
    if run.evaluate_examples and run.evaluation == "server":
        exact = whole or on_all(run, round)
        rows.append(row("accuracy_error_ratio", 0.0 if exact else half_interval(result)))
    return rows + diverged_rows(result, federation.task.classes, run.evaluation == "server")


def _count(federation: Federation) -> None:
    stats, counters = federation.strategy.stats, federation.counters
    amounts = {
        "wire_bytes_total|down": stats.down,
        "wire_bytes_total|up": stats.up,
        "wire_dense_bytes_total|down": stats.dense * stats.sent,
        "wire_dense_bytes_total|up": stats.dense * stats.replies,
        "rounds_void_total": stats.void,
        **{f"client_failures_total|{reason}": count for reason, count in stats.failures.items()},
    }
    for name, amount in amounts.items():
        counters[name] = counters.get(name, 0.0) + amount


def _mask(federation: Federation) -> Mask:
    mask = federation.strategy.mask
    assert mask is not None
    return mask


def _save(federation: Federation, round: int, arrays: ArrayRecord, result: Evaluation | None) -> None:
    mask = _mask(federation)
    settings = dict(federation.raw)
    scheme = federation.strategy.remembered()
    federation.keep_ledgers()
    saved = Checkpoint(round, from_dense(arrays), mask, settings, federation.counters, federation.ledgers, scheme)
    checkpoints.save(federation.folder / "checkpoint", saved)
    if federation.run.evaluation == "clients" and result is not None:
        federation.best = keep_best(federation.folder, saved, result.accuracy, federation.best)


def require_replies(federation: Federation, rounds: int = EMPTY_ROUNDS) -> None:
    """Raise where nobody has answered in as many rounds up to now; ``rounds`` is all of a run that has ended."""
    if federation.empty_rounds >= rounds:
        stats = federation.strategy.stats
        reasons = ", ".join(f"{reason} ({count})" for reason, count in sorted(stats.failures.items())) or "no client"
        words = f": {stats.said}" if stats.said else ". See the logs of the SuperNodes"
        raise PrunellaError(f"no valid reply in {plural(federation.empty_rounds, 'round')}, last: {reasons}{words}")


def noting(federation: Federation, replies: Iterable[Message], silent: dict[int, str]) -> Iterator[Message]:
    """The replies as they come; ``silent`` gets why the nodes that answered with an error did."""
    downlink = federation.strategy.downlink
    for reply in replies:
        if reply.has_error():
            node = downlink.node_of(reply)
            silent[node] = reply.error.reason or f"Flower error {reply.error.code}"
            if node in downlink.asked:
                note_refusal(federation, downlink.asked[node].client, reply)
        yield reply


def file_audits(federation: Federation, round: int, silent: Mapping[int, str]) -> None:
    """The audits of a round whose replies are in, beside those of clients whose updates came one by one."""
    strategy, auditor = federation.strategy, federation.auditor
    expected, asked = strategy.downlink.expected(), strategy.downlink.asked
    if strategy.exchange is None:
        auditor.file_controls(expected, strategy.importance_names(round))
        auditor.miss(round, asked, silent)
    elif strategy.opened is not None:
        auditor.file_sum(expected, strategy.opened, asked.values())
        auditor.file_controls(expected)
    else:
        auditor.miss(round, asked, dict.fromkeys(asked, "the round's sum was not opened"))


def one_round(federation: Federation, grid: Grid, round: int, arrays: ArrayRecord) -> ArrayRecord:
    """Train, aggregate, evaluate, checkpoint, report."""
    begin_time = time.perf_counter()
    strategy, federation.round = federation.strategy, round
    messages = strategy.configure_train(round, arrays, ConfigRecord(), grid)
    silent: dict[int, str] = {}
    note_first(federation, strategy.stats.first)
    federation.on_question(m.client for m in strategy.downlink.asked.values())
    replies = grid.send_and_receive(messages, timeout=strategy.pace.deadline)
    aggregated, _ = strategy.aggregate_train(round, noting(federation, replies, silent))
    for client, ledger in strategy.ledgers.items():
        note_line(federation, client, ledger, trained=not federation.run.resume)
    federation.keep_ledgers()
    if federation.auditor.due(round):
        file_audits(federation, round, silent)
    arrays = aggregated if aggregated is not None else arrays
    stages = {"train": time.perf_counter()}  # when each was over
    tell_evaluation(federation)  # of the round before
    result = evaluate_round(federation, round, arrays, grid)
    quick = federation.evaluator.take(max(LEAST, PATIENCE * (stages["train"] - begin_time)))
    result = quick[1] if quick is not None else result
    stages["evaluate"] = time.perf_counter()
    take_audits(federation, grid)  # before the checkpoint: an audit that failed without an attack is in no folder
    _count(federation)
    _save(federation, round, arrays, result)
    stages["store"] = time.perf_counter()
    kept = strategy.downlink.density(_mask(federation))
    seconds = time.perf_counter() - begin_time
    rows = round_rows(round, federation.run.rounds, strategy.stats, kept, seconds)
    rows += stage_rows(begin_time, stages) + ([] if result is None else evaluated_rows(federation, round, result))
    denying = sum(member.consent == "deny" for member in strategy.roster.members.values())
    rows += [row("clients_denying_audits", denying), row("clients_refusing", len(strategy.roster.refusing(grid)))]
    federation.emit(round, rows + counter_rows(federation.counters) + ledger_rows(federation.ledgers))
    tell_verdict(federation)
    log(INFO, "round %d/%d: accuracy %s, density %.3f, %.1f s", round, federation.run.rounds,
        f"{result.accuracy:.3f}" if result else "not known", kept, seconds)  # fmt: skip
    federation.empty_rounds = 0 if federation.strategy.stats.replies else federation.empty_rounds + 1
    require_replies(federation)
    return arrays


def evaluate_last(federation: Federation, round: int, arrays: ArrayRecord, grid: Grid) -> None:
    """What is still being evaluated; and a run that ended before its planned last round, on all examples."""
    tell_evaluation(federation)
    if not round or on_all(federation.run, round):
        return
    if federation.run.evaluation == "clients":
        result = evaluate_on_clients(federation, round, arrays, grid)
        _save(federation, round, arrays, result)  # their counts were charged
        federation.emit(round, ledger_rows(federation.ledgers))
    else:
        federation.evaluator.start(round, from_dense(arrays), whole=True)
        done = federation.evaluator.take()
        result = done and done[1]
    if result is not None:
        federation.emit(round, evaluated_rows(federation, round, result, whole=True))


def reason_to_stop(federation: Federation, round: int) -> str | None:
    """Why the round must not take place, or None. Clients that would exceed their ε budget are asked no more."""
    run, roster = federation.run, federation.strategy.roster
    budget = parse_section(federation.raw, "privacy", Privacy).epsilon_budget
    over = past_budget(federation.ledgers, budget)
    if new := over.keys() - roster.spent:
        log(WARNING, "round %d would bring clients %s past their ε budget: they are asked no more",
            round, ", ".join(map(str, sorted(new))))  # fmt: skip
    roster.spent = frozenset(over)
    return too_few((member.client for member in roster.members.values()), over, run.min_clients, budget, round)


def federate(federation: Federation, grid: Grid) -> None:
    """The whole run."""
    run = federation.run
    start, tree = begin(federation)
    federation.auditor.prepare()
    wanted = max(run.min_clients, run.expected_clients)

    def emit_available(count: int, refusing: int) -> None:
        federation.emit(start, [row("clients_available", count), row("clients_refusing", refusing)])

    roster = federation.strategy.roster
    roster.wait_for(grid, wanted, run.round_seconds, emit_available, run.min_clients)
    arrays, reason, done = to_dense(tree), None, start
    for round in range(start + 1, run.rounds + 1):
        if reason := reason_to_stop(federation, round):
            log(WARNING, "%s", reason)
            break
        arrays, done = one_round(federation, grid, round, arrays), round
    evaluate_last(federation, done, arrays, grid)
    found = (shortfall(federation.strategy, done), standing(federation.strategy))
    for said in filter(None, found):
        log(WARNING, "%s", said)
    federation.store.write_run(note="; ".join(filter(None, (reason, roster.refused(), *found))) or None)
    ask_membership(federation.auditor, grid, done, federation.store.audits())
    drain(federation, grid, done)
    sent = sorted(federation.squared.union(filter(federation.strategy.importance_names, range(1, start + 1))))
    unaudited = never_audited(run, sent, federation.store.audits(), federation.auditor.queue)
    federation.store.write_run(unaudited=unaudited or None)


def set_threads() -> None:
    """One thread: the clients of a local run share the machine, and sums keep their order."""
    torch.set_num_threads(1)
