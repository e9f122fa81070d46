"""``Defend``: the update defenses of this project as a Mod of anybody's ``ClientApp``.

    app = ClientApp(mods=[Defend()])

A ``train`` message and its answer pass through it. It keeps the model received, lets the app train, and takes the
update apart from the answer: after minus before, on floating parameters. The update passes the chain of defenses
(``privacy.chain``) and the app's answer leaves as *before plus the defended update*, so that the server needs nothing.
Where a defense withholds a coordinate, the server gets back what it sent. Which defenses: ``flower.site``. Those that
touch batches or gradients need ``flower.loop.protected`` inside ``train()``.

What leaves is an allow-list: the model's arrays, ``num-examples`` and the metrics listed (``metrics=`` here, or by the
node), as finite numbers (with three digits where a site has conditions), a config record that names the defenses, and,
where the server's pruning scheme asks and the site's conditions let it, squared gradients and a mask
(``flower.scheme``). Other records of the answer stay. An exception of the app becomes one constant text, since Flower
sends what it says to the server.

*Planted models.* Weights that have an imprint module's rows are refused before the app sees them
(``privacy.imprint``); what the rows do only ``flower.loop.protected`` can ask.

*Names.* An array that did not change passes as it is (a frozen weight), and so does batch norm's statistics, by name;
where a site has conditions those are refused (``client.policy``). Two names with equal values before and after (tied
weights) are defended once. An array of another type that changed is refused: no defense
works on it. float16 is defended in float32 and rounded back.

*State*, such as error feedback, lies on the client's disk, one folder for a run and type of message; the noise is drawn
under the site's own secret, by a digest of all that the answer depends on.

*Other mods.* Flower calls the first of a list first. Flower's clipping mods promise a norm to the server, which a
defense inside of them would not change: they come before ``Defend``, or the message is refused. ``LocalDpMod`` may
stand on either side. Secure aggregation's mods work on another kind of message and are refused.
"""

import copy
import json
import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from torch import Tensor

from prunella.client.policy import check_first_mask, check_model
from prunella.client.state import Memory
from prunella.core.errors import ConfigError, DefenseError, PrunellaError
from prunella.core.trees import Mask, Tree, apply_mask, map_trees, same_trees, subtract, to_device
from prunella.core.untrusted import plain_records
from prunella.flower import legacy
from prunella.flower.aligned import aligned_state, proposal, read_locations
from prunella.flower.answers import check_answer, check_floats, twins
from prunella.flower.arrays import EXAMPLES, MARK, as_record, close_answer, is_buffer, is_coded, marker, whole
from prunella.flower.handled import (
    HANDLED,
    Handled,
    alone,
    check_loop,
    loop_missing,
    needs_loop,
    rationed,
    resumed,
    wide,
)
from prunella.flower.notices import is_finite_number, tell_statistics, tell_withheld
from prunella.flower.received import fresh_weights, open_model, tells_mask
from prunella.flower.scheme import BASE, FIRST, IMPORTANCE, SchemeOrder, Settled
from prunella.flower.site import Site
from prunella.privacy.chain import flatten_state, release
from prunella.privacy.defense import Outgoing
from prunella.privacy.imprint import imprint_arrays
from prunella.privacy.ledger.ledger import UNBOUNDED, Tally, digest, spend, tallied
from prunella.strategies.round.local import importance_that_leaves
from prunella.wire.records import from_dense, mask_to_coded, to_coded

ROUND = "server-round"  # Flower's own strategies tell it in the config record
TRACKED = "tracked"
BEFORE = {"fixedclipping_mod", "adaptiveclipping_mod"}
NEVER = {"secagg_mod", "secaggplus_mod"}
FAILED = "the app could not handle this message; this client's own log says why"
logger = logging.getLogger(__name__)
plain_records()
Next = Callable[[Message, Context], Message]
GATED: ContextVar[bool] = ContextVar("gated", default=False)


class Defend:
    """A Mod. ``metrics`` are the names of numbers that may leave beside ``num-examples``; a node's own list wins.

    Raises nothing but ``PrunellaError``, whose text tells the server names and settings only.
    """

    def __init__(self, metrics: str | tuple[str, ...] = (), *called: Any) -> None:
        if called:  # by Flower, with a message, a context and the app
            raise ConfigError("Defend is called with parentheses: write ClientApp(mods=[Defend()])")
        self.metrics = (metrics,) if isinstance(metrics, str) else tuple(metrics)

    def __call__(self, message: Message, context: Context, call_next: Next) -> Message:
        if GATED.get():  # the site's own stands outside of the app (``flower.gate``)
            return call_next(message, context)
        with in_own_words():
            check_order(message, list(inner_mods(call_next)))
            return defended(message, context, call_next, Site(context, message.metadata.message_type), self.metrics)


@contextmanager
def in_own_words() -> Iterator[None]:
    """The server is told what this project raises; of anything else, which may quote what is private, only its kind."""
    try:
        yield
    except PrunellaError:
        raise
    except Exception as error:
        logger.exception("a message could not be handled")
        raise PrunellaError(f"{type(error).__name__}: this client's own log has the details") from None


def defended(message: Message, context: Context, call_next: Next, site: Site, metrics: tuple[str, ...]) -> Message:
    """The answer to a message as it may leave. The app is called with ``context``, under the conditions of ``site``."""
    listed = site.metrics(metrics)
    category = message.metadata.message_type.partition(".")[0]
    handle = {"train": _train, "evaluate": _evaluate}.get(category, _query)
    older = legacy.is_legacy(message.content)
    if older:
        legacy.check_asked(category, listed)
    with alone(site):
        reply = handle(message, context, call_next, site, listed)
    if older and FIRST not in reply.content:
        reply.content = legacy.closed(reply.content, category)
    return reply


# ---- the mods between here and the app


def inner_mods(call_next: Next) -> Iterator[Any]:
    """The mods nearer to the app, as far as Flower's wrapping tells them."""
    current: Any = call_next
    while closure := getattr(current, "__closure__", None):
        held = dict(zip(current.__code__.co_freevars, (cell.cell_contents for cell in closure), strict=True))
        if "_mod" not in held:
            return
        yield held["_mod"]
        current = held["_ffn"]


def check_order(message: Message, inner: list[Any]) -> None:
    """Refuse ``inner`` mods that would undo what this one does, or whose own promise it would break."""
    names = {getattr(mod, "__name__", "") for mod in inner}
    if found := sorted(names & BEFORE):
        raise ConfigError(f"{found[0]} promises a norm that Defend would change: write mods=[{found[0]}, Defend()]")
    if names & NEVER or any(name.startswith("secagg") for name in message.content.config_records):
        raise ConfigError("Flower's secure aggregation sends no model that Defend could read: use one of the two")
    if any(isinstance(mod, Defend) for mod in inner):
        raise ConfigError("Defend stands twice among the mods: leave one out")


# ---- the message the app gets, and its answer


def _given(message: Message, name: str, tree: Tree) -> Message:
    """The message as the app is to see it. The one that came stays as it is: an in-process server still has it."""
    others = {n: r for n, r in message.content.items() if n not in message.content.array_records and n != MARK}
    given = copy.copy(message)
    given.content = RecordDict({name: as_record(tree, {}), **others})
    return given


def _answered(message: Message, context: Context, call_next: Next, site: Site) -> Message:
    """The app's answer. What it raises, or says of an error, may quote an example: the server is told one text."""
    work = HANDLED.get()
    with rationed(site):
        if work is not None:
            work.asked = True
        try:
            reply = call_next(message, context)
        except PrunellaError:
            raise
        except Exception:
            logger.exception("the app could not handle a message")
            raise PrunellaError(FAILED) from None
        if reply.has_error():
            logger.error("the app answered with an error: %s", reply.error.reason)
            raise PrunellaError(FAILED)
        if work is not None and work.guard is not None:
            work.guard.close()
    if legacy.is_legacy(message.content):
        reply.content = legacy.opened(reply.content, message.metadata.message_type.partition(".")[0])
    return reply


def told(site: Site, content: RecordDict, listed: frozenset[str]) -> dict[str, MetricRecord]:
    """The metric records with the numbers that may leave, under their own names. Under a site's conditions those listed
    have three digits, as our own client's scores: more would only help an attack on single examples."""
    tell_withheld(site, content, listed)
    allowed, exact = listed | {EXAMPLES}, not site.policy.conditions
    return {
        name: MetricRecord(
            {
                n: v if exact or n == EXAMPLES else type(v)(float(f"{v:.3g}"))
                for n, v in record.items()
                if n in allowed and is_finite_number(v)
            }
        )
        for name, record in list(content.metric_records.items())[:1]
    }


def _query(message: Message, context: Context, call_next: Next, site: Site, listed: frozenset[str]) -> Message:
    """Neither training nor evaluation: the numbers that may leave, and nothing else."""
    if listed:
        _spend_unbounded(site)
    reply = _answered(message, context, call_next, site)
    reply.content = RecordDict(dict(told(site, reply.content, listed)))
    return reply


def _evaluate(message: Message, context: Context, call_next: Next, site: Site, listed: frozenset[str]) -> Message:
    name, tree, mask = open_model(site, message.content)
    if listed:
        _spend_unbounded(site)
    reply = _answered(_given(message, name, tree), context, call_next, site)
    mark = marker((), mask if tells_mask(message.content) else None)
    reply.content = RecordDict({**told(site, reply.content, listed), MARK: mark})
    return reply


def _spend_unbounded(site: Site) -> None:
    """Note what leaves without an ε, before it does. Raises ``DefenseError`` where the site has a budget."""
    spend(site.accounts.ledger(), UNBOUNDED, site.privacy)
    site.accounts.charge(UNBOUNDED)


def refuse_imprint(received: Tree, site: Site) -> None:
    """Raise ``DefenseError`` for weights that would copy single examples. Only ``protected``, which has the model, can
    also ask what they do."""
    if found := imprint_arrays(received, site.generator(secrets.token_hex(16), "planted")):
        told = f"the model would copy single examples into its update (imprint in {', '.join(found)})"
        raise DefenseError(f"{told}; weight decay that has all but ended a layer looks the same: use less")


def _round(site: Site, content: RecordDict) -> int:
    """The round that the message names, or the one after the last that is remembered."""
    named = [record.get(ROUND) for record in content.config_records.values()]
    known = [number for number in named if isinstance(number, int) and 0 < number < 10**8]
    return known[0] if known else site.store.next_round()


def _worked(work: Handled, message: Message, context: Context, call_next: Next, listed: frozenset[str]) -> Message:
    """The app's answer to a message that it trains on. What leaves without an ε is noted also where it fails: that it
    did may tell something."""
    token = HANDLED.set(work)
    try:
        return _answered(message, context, call_next, work.site)
    finally:
        HANDLED.reset(token)
        if work.guard is not None:
            work.guard.release()
        if work.asked and (listed or work.order.validates or not (work.accounted or needs_loop(work.site.chain))):
            _spend_unbounded(work.site)


def _train(message: Message, context: Context, call_next: Next, site: Site, listed: frozenset[str]) -> Message:
    """One round. The state is on the disk before the answer exists."""
    name, received, mask = open_model(site, message.content)
    order = SchemeOrder.read(message.content.config_records.get(MARK))
    if order.scheme:
        site.check_scheme(order.scheme)
    if order.validates and site.chain.private is not None:
        raise DefenseError(f"{order.scheme} scores held-out examples, which no ε covers: choose another scheme")
    if order.first:
        return _first_mask(message, context, call_next, Handled(site, received, mask, (), {}, order), name)
    check_floats(received)
    refuse_imprint(received, site)
    round = _round(site, message.content)
    memory = site.store.load(round)
    kept = {name: tree for name, tree in memory.scheme.items() if name != TRACKED}
    work = Handled(site, received, mask, tuple(memory.scheme.get(TRACKED, {})), memory.state, order, kept=kept)
    work.locations = read_locations(site.chain, message.content, mask)
    work.fresh = fresh_weights(site, message.content, received, order)
    composed = work.begin()
    reply = _worked(work, _given(message, name, {**received, **composed}), context, call_next, listed)
    answer_name, record = whole(reply.content)
    after = from_dense(record)
    check_loop(work, after)
    question = json.dumps([site.kind, context.run_id, round, site.names])
    defended, shared, applied = _defended(work, after, question)
    tally = tallied(memory.tally, site.chain, work.steps)
    tracked = {n: torch.ones(1, dtype=torch.bool) for n in work.tracked}
    site.store.save(round, Memory(work.state, tally, {**work.kept, TRACKED: tracked}))
    if work.locations is not None:
        site.wire.save_model({n: received[n] for n in work.locations}, work.locations)
    if moved := not same_trees(work.mask, mask):
        site.wire.save_mask(work.mask)
    if is_coded(message.content):
        arrays = close_answer(answer_name, defended, received, work.mask, mask, shared)
    else:
        same = {n: record[n] for n in defended if defended[n] is after[n]}
        arrays = RecordDict({answer_name: as_record(defended, same)})
    mark = ConfigRecord(
        {
            **marker(applied, work.mask if moved or tells_mask(message.content) else None),
            **arrays.config_records.get(MARK, ConfigRecord()),
            **proposal(site.chain, work.state, message.content, mask, site.generator(question, "proposal")),
        }
    )
    beside = _for_the_scheme(work, mask, shared)
    reply.content = RecordDict({**arrays.array_records, **beside, **told(site, reply.content, listed), MARK: mark})
    return reply


def _first_mask(message: Message, context: Context, call_next: Next, work: Handled, name: str) -> Message:
    """The run's first mask, of this client's making, and nothing else."""
    site = work.site
    check_first_mask(site.policy)
    check_model(site.policy, "this app's", [each for each in work.received if is_buffer(each, work.received)])
    if site.store.next_round() > 1:  # what a later round remembers would be lost
        raise DefenseError("the first mask is asked for, and this client has trained in this run already")
    try:
        _worked(work, _given(message, name, work.received), context, call_next, frozenset())
    except Settled:
        pass
    if work.guard is None:
        raise loop_missing(work.order.scheme)
    work.local.require_moved(work.order.scheme)
    site.store.save(0, Memory({}, tallied(Tally(), site.chain, work.steps)))
    return Message(RecordDict({FIRST: mask_to_coded(work.mask)}), reply_to=message)


def _for_the_scheme(work: Handled, mask: Mask, shared: Mask) -> dict[str, ArrayRecord]:
    """What leaves beside the arrays: the mask where it moved, and squared gradients where they were asked for."""
    records = {} if same_trees(work.mask, mask) else {BASE: mask_to_coded(work.mask, mask)}
    if work.order.importance:
        found = to_device(work.local.mean(), "cpu")
        squares = {name: found[name] for name in work.local.names & found.keys() & shared.keys()}
        inside, base = ({name: tree[name] for name in squares} for tree in (shared, work.mask))
        kept = importance_that_leaves(work.site.chain, squares, inside, base)
        # Where an owner's defense covers no gradient all are zero: the server leaves them out of its mean.
        known = kept.keys() if work.site.policy.covers_gradients else frozenset[str]()
        told = {n: kept[n] if n in known else torch.zeros_like(work.received[n]) for n in sorted(work.order.names)}
        told = {name: tensor.float() for name, tensor in told.items()}
        records[IMPORTANCE] = to_coded(told, {name: tensor != 0 for name, tensor in told.items()})
    return records


# ---- the update


def _defended(work: Handled, after: Tree, question: str) -> tuple[Tree, Mask, tuple[str, ...]]:
    """The answer as it may leave, where it is shared, and the defenses applied; ``work`` has the state to keep."""
    site, before = work.site, work.received
    # Those that have a state first: of tied weights, the same name is defended in every round.
    names = sorted(check_answer(site, after, before), key=lambda name: name not in work.tracked)
    tell_statistics(site, after, before)
    tied = twins(names, before, after, work.parameters)
    moved = {n for n in names if n in work.tracked or not torch.equal(wide(after[n]), wide(before[n]))}
    work.tracked = tuple(name for name in names if name in moved and name not in tied)
    start_of = {name: wide(before[name]).to(wide(after[name]).dtype) for name in work.tracked}
    base = {name: work.mask.get(name, torch.ones_like(after[name], dtype=torch.bool)) for name in work.tracked}
    local = apply_mask({name: wide(after[name]) for name in work.tracked}, base)
    update = apply_mask(subtract(local, start_of), base)
    state = aligned_state(site.chain, resumed(site.chain, local, work.state), work.locations, base)
    asked = digest([start_of, local, flatten_state(state)], question)
    out, work.state, applied = release(
        site.chain, Outgoing(update, base, base, local), state, site.generator(asked, "update")
    )
    sent = map_trees(_arrived, out.update, update, local, start_of)
    first = {name: sent[name].to(after[name].dtype) for name in work.tracked}
    result = {name: first.get(tied.get(name, name), after[name]) for name in after}
    kept = {name: after[name] if _same(after[name], tensor) else tensor for name, tensor in result.items()}
    return kept, out.shared, applied


def _same(a: Tensor, b: Tensor) -> bool:
    return a is b or torch.equal(a, b)


def _arrived(sent: Tensor, update: Tensor, local: Tensor, before: Tensor) -> Tensor:
    """Before plus what is sent; the weight itself where all of its update is, which spares it a rounding."""
    return torch.where(sent == update, local, before + sent)
