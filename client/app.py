"""The ClientApp: receive, train under the defenses, reply; answer consented audits.

Message types: ``train`` (a round), ``train.initial`` (the run's first mask), ``train.select`` (how good candidates for
it are), ``train.keys``, ``train.letters``, ``train.vote`` and ``train.reveal`` (a masked sum: ``client.summing``),
``evaluate``, ``query.hello`` (who is this), ``query.audit`` (score a reconstruction), ``query.membership`` (can members
be told from outsiders). What leaves is built field by field from an allow-list: arrays of the update, an example count,
a time, the names of the defenses, the ledger line. An exception becomes an error reply whose text the server reads, so
nothing below formats a value of a tensor.
"""

import functools
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from prunella.client import summing
from prunella.client.audit import answer
from prunella.client.charging import (
    account,
    account_for_count,
    account_for_scores,
    caveats,
    charged,
    confirm,
    require_charged,
    require_coverable,
    require_uncovered_is_allowed,
    told,
)
from prunella.client.download import keep_model, proposal, receive_locations, receive_model
from prunella.client.membership import answer as answer_membership
from prunella.client.membership import keep
from prunella.client.planted import refuse_planted
from prunella.client.policy import check_first_mask, check_model, check_scores
from prunella.client.selection import read_pool, score
from prunella.client.self_attack import after_training, before_training
from prunella.client.session import ServerRequest, Session
from prunella.client.state import Memory, TrainedRound
from prunella.client.training import importance_names, plan_of, reply_of, to_cpu, watched
from prunella.client.widths import require_held, tell_small
from prunella.core.errors import ConfigError, PrunellaError
from prunella.core.memory import keep_freed_memory
from prunella.core.randomness import KEY_BYTES, PrivateGenerator
from prunella.core.trees import Mask, Tree, to_device
from prunella.core.untrusted import plain_records
from prunella.privacy.accounting import Charge
from prunella.privacy.chain import fits, flatten_state, present, start
from prunella.privacy.channel import ChannelSettings, few_images
from prunella.privacy.ledger.ledger import Tally, tallied
from prunella.privacy.ledger.noisy_count import noisy_count
from prunella.strategies import require_place
from prunella.strategies.round.local import LocalResult, Received, local_update
from prunella.strategies.secure_sum.letters import RECORD
from prunella.tasks.data import class_names, require_same_classes
from prunella.tasks.examples import Examples
from prunella.tasks.training import TOGETHER
from prunella.tasks.training import evaluate as evaluate_model
from prunella.wire.records import from_dense_as, mask_to_coded

app = ClientApp()
logger = logging.getLogger(__name__)
plain_records()
MAX_ROUND = 10**8 - 1  # eight digits in the names of files
EVALUATIONS = 10_000  # answers about the same examples, whatever the runs are called
SELECTIONS = 100  # questions about candidates, each of up to 64; a run asks two
LEAST_SCORED = 32  # images that a mean about candidates is over
SAME_ANSWER = 2  # the second for a server that resumed
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


def alone(handler: Callable[[RecordDict, Session], RecordDict]) -> Handler:
    """``handler`` of a message's content, one at a time for each client."""

    @functools.wraps(handler)
    def run(message: Message, context: Context) -> Message:
        session = Session(context)
        with session.store.alone():
            return Message(handler(message.content, session), reply_to=message)

    return guarded(run)


def _receive(session: Session, content: RecordDict) -> tuple[Received, Mask]:
    """The model of a message, on the device, and its mask on the CPU as the wire codec wants it. One whose update would
    tell single images apart is refused."""
    params_like, buffers_like = session.data.like
    check_model(session.node.policy, session.run.model, buffers_like)
    params, mask = receive_model(session.store, content, params_like)
    require_held(session, mask)
    buffers = from_dense_as(content.array_records.get("buffers", ArrayRecord()), buffers_like)
    refuse_planted_in(session, params, buffers)
    device = session.device
    return Received(to_device(params, device), to_device(mask, device), to_device(buffers, device)), mask


def refuse_planted_in(session: Session, params: Tree, buffers: Tree) -> None:
    """Refuse weights made to copy single images (``client.planted``), on the CPU, where its probes are."""
    task, draw = session.data.task, PrivateGenerator(secrets.token_bytes(KEY_BYTES))
    params, buffers = to_device(params, "cpu"), to_device(buffers, "cpu")
    refuse_planted(session.procedure.module, params, buffers, task.shape, task.classes, draw)


def _round_of(content: RecordDict, name: str = "config") -> int:
    """The round a message is about, from 1. Any other number would be one more name for the same question."""
    round = content.config_records[name]["round"]
    if type(round) is not int or not 1 <= round <= MAX_ROUND:
        raise ConfigError(f"rounds are numbered from 1 to {MAX_ROUND}")
    return round


def _remember(session: Session, round: int) -> Memory:
    memory = session.store.load(round)
    like = to_device(session.data.like[0], session.device)
    fitting = session.request("fit", 0).generator("fit")
    channels = any(isinstance(link.settings, ChannelSettings) for link in session.procedure.chain.links)
    if channels and not memory.state and (warning := few_images(session.data.examples.x)):
        logger.warning("%s", warning)
    chain, of = session.procedure.chain, session.data.shown
    images = session.data.examples.x if fits(chain, memory.state, of) else torch.empty(0)
    state = start(chain, images, like, memory.state, fitting, of)
    return Memory(state, memory.tally, {n: to_device(tree, session.device) for n, tree in memory.scheme.items()})


def _asked(session: Session, kind: str, round: int, received: Received, memory: Memory) -> ServerRequest:
    """The request: all that the answer depends on, but for what the session's own digests cover. What the server wants
    to be told of the answer (importances, ADGP's proposal) is no part of it: it all comes from the same draws."""
    remembered = flatten_state({**memory.state, "scheme": memory.scheme})
    return session.request(kind, round, [received.params, received.mask, received.buffers, remembered])


def _named(session: Session, request: ServerRequest) -> TrainedRound:
    return TrainedRound(request.digest, session.trained_under)


def _trained(
    session: Session, request: ServerRequest, price: Charge, received: Received, memory: Memory, round: int
) -> LocalResult:
    """What a round gives, and the files that it leaves; ``memory`` has counted the round. Raises where nothing may
    leave."""
    keep_freed_memory()  # every step's tensors are of the same sizes as the last one's
    plan = plan_of(session, round, received, memory.scheme)
    state = before_training(session, memory.state)
    batches, draws = session.batches(request), request.generator("defense")
    procedure = watched(session, request, received, session.procedure_of(round))
    result = local_update(procedure, received, batches, state, draws, plan)
    result = to_cpu(after_training(session, round, request, received, result))
    tell_small(session, result)
    require_charged(session, result.steps, session.run.local_steps)
    confirm(session, request, price, [result.outgoing.update, result.outgoing.shared])
    session.store.save(round, Memory(result.state, memory.tally, plan.keep), _named(session, request))
    session.store.save_mask(result.base)
    keep(session, round, received, result)
    keep_model(session.store, session.procedure.chain, result.state, received.params)
    return result


@app.train()
@alone
def train(content: RecordDict, session: Session) -> RecordDict:
    """One round. The charge is on the disk before any work, and the state before the reply exists: a crash may repeat
    work, never forget it."""
    round = _round_of(content)
    received, mask = _receive(session, content)
    memory = _remember(session, round)
    memory = replace(memory, state=receive_locations(session.procedure.chain, memory.state, content, mask))
    require_coverable(session, received.buffers)
    names = importance_names(session, content, round)
    request = _asked(session, "train", round, received, memory)
    pending = summing.begin(session, content, round, received, request.digest) if summing.summed(session) else None
    price, ledger = account(session, request, session.run.local_steps)
    tally = tallied(memory.tally, session.procedure.chain, session.run.local_steps, caveats(session))
    memory, begin = replace(memory, tally=tally), time.perf_counter()
    with charged(session, price):
        result = None
        try:
            result = _trained(session, request, price, received, memory, round)
        except Exception:
            if pending is None:
                raise
            # Which client of a sum failed is a word about its own update, by weights and settings of the server's.
            logger.exception("training for a masked sum failed: this client's part of the sum changes nothing")
            session.store.save(round, memory, _named(session, request))
        if pending is not None:
            reply = summing.masked_reply(session, request, round, pending, received, result, mask)
        else:
            assert result is not None
            reply = reply_of(session, round, result, mask, names, time.perf_counter() - begin)
            reply.update(proposal(session.procedure.chain, result.state, content, mask))
    reply["ledger"] = told(session, tally, ledger)
    return reply


def _begun(session: Session, memory: Memory, steps: int) -> Tally:
    """The tally of what was done before the first round, saved."""
    tally = tallied(Tally(), session.procedure.chain, steps, caveats(session))
    session.store.save(0, Memory(memory.state, tally))
    return tally


@app.train("initial")
@alone
def initial(content: RecordDict, session: Session) -> RecordDict:
    """The run's first mask, of this client's making, and its ledger line, in which it counts as steps."""
    check_first_mask(session.node.policy)
    if session.scheme.client.first_mask is None:
        raise ConfigError(f"no client makes the first mask with strategy={session.run.strategy}: choose prunefl")
    received, _ = _receive(session, content)
    memory = _remember(session, 1)
    first = session.scheme.client.first_mask(session.run, session.scheme_settings, session.data.task)
    require_coverable(session, received.buffers)
    request = _asked(session, "initial", 0, received, memory)
    price, ledger = account(session, request, first.steps)
    with charged(session, price):
        batches, draws = session.batches(request, first.steps), request.generator("defense")
        procedure = watched(session, request, received, session.procedure)
        mask = first.make(procedure, received, batches, memory.state, draws)
        confirm(session, request, price, [mask])
        tally = _begun(session, memory, first.steps)
        return RecordDict({"mask": mask_to_coded(to_device(mask, "cpu")), "ledger": told(session, tally, ledger)})


@app.train("select")
@alone
def select(content: RecordDict, session: Session) -> RecordDict:
    """How good candidates for the run's first mask are on some of this client's batches: batch norm's statistics under
    each, or the loss. No bound covers either, so under an epsilon or a condition of the owner's nothing leaves."""
    check_scores(session.node.policy)
    if session.scheme.client.scores is None:
        raise ConfigError(f"no client scores candidates with strategy={session.run.strategy}: choose fedtiny")
    require_uncovered_is_allowed(session, f"strategy={session.run.strategy}", "the run goes on without its scores")
    received, _ = _receive(session, content)
    pool = read_pool(content, received)
    for one in pool.candidates:
        refuse_planted_in(session, one.params, one.buffers)
    request = session.request(f"select {pool.asked}", 0, pool.trees())
    if not session.accounts.claim("selections", request.digest, SAME_ANSWER, SELECTIONS):
        raise ConfigError(f"this client has scored candidates {SELECTIONS} times, or these before: it answers no more")
    memory, steps = _remember(session, 1), session.scheme.client.scores(session.scheme_settings)
    if min(steps * session.run.batch_size, len(session.data.examples)) < LEAST_SCORED:
        raise ConfigError(f"scores are of {LEAST_SCORED} images or more: set more selection-batches, or a larger batch")
    account_for_scores(session)
    with charged(session):
        batches, draws = session.batches(request, steps), request.generator("defense")
        shown = [Examples(present(session.procedure.chain, b.x, memory.state, draws), b.y) for b in batches]
        answer = score(pool, session.procedure.module, shown)
        tally = _begun(session, memory, steps * pool.times)
    metrics = MetricRecord({"num-examples": len(session.data.examples.y), **answer.losses})
    return RecordDict({**answer.records, "metrics": metrics, "ledger": told(session, tally, session.accounts.ledger())})


@app.train("keys")
@alone
def sum_keys(content: RecordDict, session: Session) -> RecordDict:
    """A masked sum begins: this client's keys for one round."""
    return summing.keys(session, _round_of(content, RECORD))


@app.train("letters")
@alone
def sum_letters(content: RecordDict, session: Session) -> RecordDict:
    """Shares of this client's secrets, sealed for each other client."""
    return summing.letters(session, content, _round_of(content, RECORD))


@app.train("vote")
@alone
def sum_vote(content: RecordDict, session: Session) -> RecordDict:
    """Whose updates came, and which model they are of, signed."""
    return summing.vote(session, content, _round_of(content, RECORD))


@app.train("reveal")
@alone
def sum_reveal(content: RecordDict, session: Session) -> RecordDict:
    """What opens the sum, and nothing else."""
    return summing.reveal(session, content, _round_of(content, RECORD))


@app.evaluate()
@alone
def evaluate(content: RecordDict, session: Session) -> RecordDict:
    """Loss and accuracy of the global model on the fifth of this client's examples it never trains on. Under an epsilon
    only the accuracy, of a noisy count."""
    of = _round_of(content)
    if not session.privacy.validation_noise:
        fix = "set evaluation=server, or privacy.validation-noise for noisy counts"
        require_uncovered_is_allowed(session, "evaluation=clients", fix)
    if session.run.evaluation != "clients":
        raise ConfigError("this run evaluates on the server: set evaluation=clients to ask clients")
    received, _ = _receive(session, content)
    require_coverable(session, received.buffers)
    question = session.request("evaluate", of, [received.params, received.mask, received.buffers])
    if not session.accounts.claim("evaluations", question.digest, SAME_ANSWER, EVALUATIONS):
        raise ConfigError(f"this client has answered {EVALUATIONS} evaluations, or this one before: it answers no more")
    private = session.procedure.chain.private is not None
    scale = account_for_count(session, question) if private else account_for_scores(session)
    with charged(session):
        held_out = session.data.held_out
        x, y = held_out.x.to(session.device), held_out.y.to(session.device)
        together = 1 if private else TOGETHER  # of a model that mixes a batch, one example would move many answers
        result = evaluate_model(session.procedure.module, received.params, received.buffers, x, y, together)
        if private:
            count = noisy_count(round(result.accuracy * result.examples), scale, question.generator("count"))
            session.accounts.confirm(question.digest, str(count))
            share = min(max(count / result.examples, 0.0), 1.0)
            metrics = MetricRecord({"num-examples": result.examples, "accuracy": share})
            spent = told(session, session.store.load(of + 1).tally, session.accounts.ledger())
            return RecordDict({"metrics": metrics, "ledger": spent})
    # Rounded: further digits would only help an attack on single examples.
    loss, accuracy = round(result.loss, 3), round(result.accuracy, 3)
    return RecordDict({"metrics": MetricRecord({"num-examples": result.examples, "loss": loss, "accuracy": accuracy})})


@app.query("hello")
@guarded
def hello(message: Message, context: Context) -> Message:
    """Which client this is, and what it consents to. A model or data that are missing here, or other classes than the
    server's, raise now: the server leaves such a client out and says why."""
    session = Session(context)
    node, asked = session.node, message.content.config_records.get("hello", ConfigRecord())
    classes = asked.get("classes")
    check_model(node.policy, session.run.model, session.data.like[1])
    require_place(session.run, node.width)
    if isinstance(classes, list):
        require_same_classes(class_names(session.run.dataset, node.data), [str(name) for name in classes])
    own, rate = session.run.learning_rate, asked.get("learning-rate", session.run.learning_rate)
    if rate != own:
        raise ConfigError(
            f"this client's release trains at learning-rate {own:g} where the server's says {rate!r}: name a number, "
            f"as in -c learning-rate={own:g}"
        )
    record = ConfigRecord({"client": node.client, "audit": node.consent})
    session.data.all.check()
    if session.data.held is not None:
        record["width"] = node.width
    return Message(RecordDict({"hello": record}), reply_to=message)


@app.query("audit")
@alone
def audit(content: RecordDict, session: Session) -> RecordDict:
    """How good the server's reconstruction is beside the images this client really used, if its owner consents."""
    return answer(session, content, _round_of(content, "audit"))


@app.query("membership")
@alone
def membership(content: RecordDict, session: Session) -> RecordDict:
    """Whether this client's examples can be told from others of its own, if its owner consents."""
    return answer_membership(session)
