"""The ClientApp: receive, train under the defenses, reply; answer consented audits.

Message types: ``train`` (a round), ``train.initial`` (PruneFL's first mask), ``evaluate``, ``query.hello`` (who is
this), ``query.audit`` (score a reconstruction). What leaves is built field by field from an allow-list: arrays of the
update, an example count, a time, the names of the defenses, the ledger line. An exception becomes an error reply whose
text the server reads, so nothing below formats a value of a tensor.
"""

import functools
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from client.audit import answer
from client.budget import account, epsilon_next, noisy_correct, require_charged, require_uncovered_is_allowed
from client.download import proposed, receive_locations, receive_model
from client.guard import after_training, before_training
from client.session import Session
from client.state import ANSWERS_PER_ROUND, Memory
from core.config import parse_section
from core.errors import ConfigError, PrunellaError, WireError
from core.records import from_dense, mask_to_coded
from core.trees import Mask, Tree, to_device
from core.wire import fingerprint
from privacy.adgp import NAME as ADGP
from privacy.chain import start
from privacy.imprint import refuse_imprint
from privacy.ledger import line, merge
from pruning.prunefl import weight_cost
from strategies import STRATEGIES
from strategies.local import NOTHING, LocalResult, Received, local_update
from strategies.locations import RECORD
from strategies.plan import Here, Plan
from strategies.prunefl import Schedule, initial_mask, with_limit
from strategies.replies import build_reply
from tasks.data import class_names, require_same_classes
from tasks.task import initial as initial_weights
from tasks.task import prunable
from tasks.training import evaluate as evaluate_model

app = ClientApp()
logger = logging.getLogger(__name__)
Handler = Callable[[Message, Context], Message]


def guarded(handler: Handler) -> Handler:
    """Let only this project's own errors out: any other text may quote a label or a pixel, and Flower sends it on."""

    @functools.wraps(handler)
    def run(message: Message, context: Context) -> Message:
        try:
            return handler(message, context)
        except PrunellaError:
            raise
        except Exception as error:
            logger.exception("a message could not be handled")
            raise PrunellaError(f"{type(error).__name__}: this client's own log has the details") from None

    return run


def _receive(session: Session, content: RecordDict) -> tuple[Received, Mask]:
    """The model of a message, on the device, and its mask on the CPU as the wire codec wants it. One that would copy
    images into the update is refused."""
    params_like, buffers_like = session.like
    params, mask = receive_model(session.store, content, params_like)
    buffers = from_dense(content.array_records.get("buffers", ArrayRecord()))
    if buffers.keys() != buffers_like.keys():
        raise WireError("name", "the server's buffers are not those of this model: update both sides to one release")
    refuse_imprint(session.procedure.module, params)
    device = session.device
    return Received(to_device(params, device), to_device(mask, device), to_device(buffers, device)), mask


def _round_of(content: RecordDict) -> int:
    return int(str(content.config_records["config"]["round"]))


def _remember(session: Session, round: int) -> Memory:
    memory = session.store.load(round)
    like = to_device(session.like[0], session.device)
    state = start(session.procedure.chain, session.examples.x, like, memory.state)
    ledger = merge(memory.ledger, session.accounts.charged())
    return Memory(state, ledger, {n: to_device(tree, session.device) for n, tree in memory.scheme.items()})


def _plan(session: Session, round: int, received: Received, kept: dict[str, Tree]) -> Plan:
    """What the run's scheme changes in this round, if it has a client half."""
    scheme = STRATEGIES[session.run.strategy]
    if scheme.plan is None or scheme.settings is None:
        return NOTHING
    settings: Any = parse_section(session.raw, scheme.section or session.run.strategy, scheme.settings)
    module = session.procedure.module

    def accuracy(params: Tree) -> float:
        require_uncovered_is_allowed(session, f"strategy={session.run.strategy}", "choose another strategy")
        held_out = session.held_out
        return evaluate_model(module, params, received.buffers, held_out.x, held_out.y).accuracy

    def fresh() -> Tree:
        return to_device(initial_weights(session.task, session.run.seed)[0], session.device)

    here = Here(session.run, settings, round, received.params, received.mask, prunable(module), kept, fresh, accuracy)
    return scheme.plan(here)


def _importance_names(session: Session, content: RecordDict) -> frozenset[str]:
    """Tensors whose squared gradients leave: those asked for, in the rounds in which the scheme uses them, or none."""
    wanted = content.config_records["config"].get("importance")
    if session.run.strategy != "prunefl" or not isinstance(wanted, list):
        return frozenset()
    if _round_of(content) % parse_section(session.raw, "prunefl", Schedule).adjust_interval:
        return frozenset()
    return prunable(session.procedure.module) & {str(name) for name in wanted}


def _to_cpu(result: LocalResult) -> LocalResult:
    out = result.outgoing
    moved = type(out)(*(to_device(tree, "cpu") for tree in (out.update, out.shared, out.spoken, out.local)))
    buffers, importance = to_device(result.buffers, "cpu"), to_device(result.importance, "cpu")
    base = to_device(result.base, "cpu")
    return LocalResult(moved, base, buffers, importance, result.state, result.applied, result.steps)


@app.train()
@guarded
def train(message: Message, context: Context) -> Message:
    """One round. State is on the disk before the reply exists: a crash may repeat work, never forget it."""
    content, session = message.content, Session(context)
    round = _round_of(content)
    received, mask = _receive(session, content)
    memory = _remember(session, round)
    memory = replace(memory, state=receive_locations(session.procedure.chain, memory.state, content, mask))
    ledger = account(session, memory, received, str(round), session.run.local_steps)
    begin = time.perf_counter()
    generator = session.generator(round, "defense")
    plan = _plan(session, round, received, memory.scheme)
    state = before_training(session, memory.state)
    result = local_update(session.procedure, received, session.batches(round), state, generator, plan)
    result = _to_cpu(after_training(session, round, received, result))
    seconds = time.perf_counter() - begin
    require_charged(session, result.steps, session.run.local_steps)
    session.accounts.write(ledger)
    session.store.save(round, Memory(result.state, ledger, plan.keep))
    session.store.save_mask(result.base)
    if ADGP in result.applied:
        session.store.save_model(to_device(received.params, "cpu"), to_device(result.state[ADGP]["locations"], "cpu"))
    names = _importance_names(session, content)
    provenance = ConfigRecord({"round": round, "mask": fingerprint(mask), "applied": list(result.applied)})
    provenance["values"] = session.run.values
    metrics = MetricRecord({"num-examples": len(session.examples.y), "train-seconds": seconds})
    reply = RecordDict(
        {**build_reply(result, mask, names, session.run.values), "metrics": metrics, "provenance": provenance}
    )
    proposal = proposed(session.procedure.chain, result.state, content)
    if proposal is not None:
        reply[RECORD] = mask_to_coded(proposal, mask)
    reply["ledger"] = ConfigRecord({**line(ledger, session.elsewhere), **epsilon_next(session, ledger)})
    return Message(reply, reply_to=message)


@app.train("initial")
@guarded
def initial(message: Message, context: Context) -> Message:
    """PruneFL's initial pruning: this client's first mask, and nothing else. It counts as steps in the ledger."""
    session = Session(context)
    received, _ = _receive(session, message.content)
    memory = _remember(session, 1)
    module = session.procedure.module
    scheme = with_limit(parse_section(session.raw, "prunefl", Schedule), session.run.rate)
    cost = weight_cost(session.task.build(), session.task.shape, prunable(module), scheme.cost)
    ledger = account(session, memory, received, "initial", scheme.initial_steps)
    batches = session.batches(0, scheme.initial_steps, "initial")
    generator = session.generator(0, "defense")
    mask = initial_mask(session.procedure, received, batches, memory.state, generator, (scheme, cost))
    session.accounts.write(ledger)
    session.store.save(0, Memory(memory.state, ledger))
    return Message(RecordDict({"mask": mask_to_coded(to_device(mask, "cpu"))}), reply_to=message)


@app.evaluate()
@guarded
def evaluate(message: Message, context: Context) -> Message:
    """Loss and accuracy of the global model on the fifth of this client's examples it never trains on. Under an epsilon
    only the accuracy, of a noisy count."""
    session, of = Session(context), _round_of(message.content)
    if not session.privacy.validation_noise:
        mend = "set evaluation=server, or privacy.validation-noise for noisy counts"
        require_uncovered_is_allowed(session, "evaluation=clients", mend)
    if session.run.evaluation != "clients":
        raise ConfigError("this run evaluates on the server: set evaluation=clients to ask clients")
    if not session.store.claim("evaluations", str(of), ANSWERS_PER_ROUND):
        raise ConfigError("this round was evaluated already")
    received, _ = _receive(session, message.content)
    held_out = session.held_out
    x, y = held_out.x.to(session.device), held_out.y.to(session.device)
    result = evaluate_model(session.procedure.module, received.params, received.buffers, x, y)
    if session.procedure.chain.private is not None:
        correct = noisy_correct(session, of, received, round(result.accuracy * result.examples))
        share = min(max(correct / result.examples, 0.0), 1.0)
        metrics = MetricRecord({"num-examples": result.examples, "accuracy": share})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)
    # Rounded: every further digit would only serve somebody who asks about single examples.
    loss, accuracy = round(result.loss, 3), round(result.accuracy, 3)
    metrics = MetricRecord({"num-examples": result.examples, "loss": loss, "accuracy": accuracy})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@app.query("hello")
@guarded
def hello(message: Message, context: Context) -> Message:
    """Which client this is, and what it consents to. A model or data that are missing here, or other classes than the
    server's, raise now: the server leaves such a client out and says why."""
    session = Session(context)
    node, asked = session.node, message.content.config_records.get("hello", ConfigRecord())
    classes = asked.get("classes")
    session.task.build()
    if isinstance(classes, list):
        require_same_classes(class_names(session.run.dataset, node.data), [str(name) for name in classes])
    record = ConfigRecord({"client": node.client, "audit": node.consent})
    return Message(RecordDict({"hello": record}), reply_to=message)


@app.query("audit")
@guarded
def audit(message: Message, context: Context) -> Message:
    """Scores of the server's reconstruction against the images this client really used, if its owner consents."""
    return Message(answer(Session(context), message.content), reply_to=message)
