"""A client's reply, and the checks it must pass before it touches the model.

A reply that is wrong in any way raises ``ReplyError`` with one word for a metric label; the strategy counts it, names
it and leaves it out. Every number in it is a client's own word. None is believed beyond its bound below, which is far
above what is ever true and far below where a sum of clients would overflow; within it, an example count is the weight
of the plain mean (``robust.py`` says what follows), and the rest is shown as what clients report.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from prunella.core.errors import ConfigError, DefenseError, PrunellaError, WireError
from prunella.core.trees import Mask, Tree, all_finite, count, full_mask, same_trees
from prunella.core.untrusted import clean, figure, whole
from prunella.strategies.round.local import LocalResult
from prunella.strategies.round.stats import RoundStats
from prunella.tasks.training import Evaluation
from prunella.wire.encode import REASONS as WIRE_REASONS
from prunella.wire.encode import Reference, Values
from prunella.wire.records import from_coded, mask_from_coded, mask_to_coded, record_bytes, sparse_from_coded, to_coded
from prunella.wire.sparse import SparseTree

RAISED = re.compile(r"<class '(?:\w+\.)*(\w+)'>:<['\"](.*)['\"]>", re.S)  # as Flower tells of an exception
REFUSALS = (ConfigError.__name__, DefenseError.__name__)
_FAILED = "own log"  # of every text that stands for a failure which may not be told (``client.app``, ``.charging``)
REASONS = (
    *WIRE_REASONS,
    "nan",
    "metrics",
    "stale",
    "locations",
    "unknown-client",
    "client-error",
    "unreachable",
    "timeout",
)
MAX_EXAMPLES = 10**9
MAX_SECONDS = 1e6
MAX_LOSS = 1e9  # nats: cross-entropy of a model that has diverged beyond any use
# Flower's codes for what the SuperLink answers in a client's place: the message or the reply expired; the node is gone.
UNANSWERED = {3: "timeout", 4: "timeout", 5: "unreachable"}
UNREADABLE = 1000  # ours, beyond Flower's codes: what came in place of a reply (``server.envelopes``)
MAX_CLAIMS = 2_000  # characters
LEDGER_BOUNDS = {
    "rounds": 1e9,
    "steps": 1e12,
    "channel_nats": 1e15,
    "epsilon": 1e12,
    "epsilon_next": 1e12,
    "epsilon_budget": 1e12,
    "delta": 1.0,
}


class ReplyError(PrunellaError):
    """A reply that is left out. ``reason`` is one of ``REASONS``; the message may quote the client and is cleaned.
    ``refused``: a site says that it will not, by its owner's conditions or for want of an ε, and nothing failed."""

    def __init__(self, reason: str, message: str, refused: bool = False) -> None:
        super().__init__(clean(message))
        self.reason, self.refused = reason, refused


@dataclass(frozen=True)
class Expected:
    """What a valid reply of this round looks like.

    ``allowed`` is None where clients keep the mask they were sent. Where a scheme lets them move it, the one they
    report lies inside ``allowed``, holds all of ``required`` and is no larger than the one they were sent. Under ADGP
    values may arrive only in ``locations``.
    """

    round: int
    params: Tree
    mask: Mask
    buffers: Tree
    allowed: Mask | None = None
    required: Mask = field(default_factory=dict)
    defenses: tuple[str, ...] = ()
    locations: Mask | None = None

    @cached_property
    def reference(self) -> Reference:
        """The mask, as what replies are coded against."""
        return Reference(self.mask)

    @cached_property
    def kept(self) -> int:
        """Coordinates the mask keeps."""
        return count(self.mask)

    @property
    def mark(self) -> bytes:
        """The mask's fingerprint."""
        return self.reference.mark


@dataclass(frozen=True)
class Contribution:
    """A checked reply: all the server learns from one client in one round. ``base`` is the mask it trained under.

    ``sparse`` is the update as it came: the shared coordinates and their values. At the coordinates of
    ``participation`` the client takes part in the mean; what it did not send there counts as zero.
    """

    node: int
    base: Mask
    sparse: SparseTree
    participation: Mask
    weight: int
    seconds: float | None
    bytes: int
    importance: Tree | None = None
    buffers: Tree = field(default_factory=dict)
    applied: tuple[str, ...] = ()
    ledger: dict[str, float | int | str] = field(default_factory=dict)

    @property
    def shared(self) -> Mask:
        """The coordinates the client sent."""
        return self.sparse.mask

    @cached_property
    def update(self) -> Tree:
        """The dense update, zero where nothing was shared; made when first asked for."""
        return self.sparse.dense()


def build_reply(
    result: LocalResult, mask: Mask, importance_of: frozenset[str], values: Values = "float32"
) -> dict[str, ArrayRecord]:
    """The array records of a reply. ``importance_of`` names the tensors whose importance the server asked for.

    ``values`` rounds the update, and nothing else: no defense knows of it, and DGP does not feed the error back.
    """
    outgoing = result.outgoing
    records = {"update": to_coded(outgoing.update, outgoing.shared, mask, values)}
    if not same_trees(outgoing.participates, outgoing.shared):
        records["spoken"] = mask_to_coded(outgoing.participates, mask)
    if not same_trees(result.base, mask):
        records["base"] = mask_to_coded(result.base, mask)
    if importance_of:
        wanted = {name: result.importance[name] for name in sorted(importance_of)}
        records["importance"] = to_coded(wanted, {name: t != 0 for name, t in wanted.items()})
    if result.buffers:
        records["buffers"] = to_coded(result.buffers, full_mask(result.buffers))
    return records


def _check(condition: bool, reason: str, message: str) -> None:
    if not condition:
        raise ReplyError(reason, message)


def _inside(inner: Mask, outer: Mask) -> bool:
    return inner is outer or all(
        inner[n] is outer[n] or torch.equal(inner[n], outer[n]) or not bool((inner[n] & ~outer[n]).any()) for n in inner
    )


def _importance(content: RecordDict, expected: Expected, names: frozenset[str]) -> Tree | None:
    if not names:
        return None
    _check("importance" in content.array_records, "malformed", "the importance that was asked for is missing")
    return read_importance(content.array_records["importance"], {name: expected.params[name] for name in sorted(names)})


def read_importance(record: ArrayRecord, like: Tree) -> Tree:
    """Squared gradients of the arrays ``like``, or ``ReplyError``."""
    tree, _ = from_coded(record, like)
    _check(
        all_finite(tree) and all(bool((t >= 0).all()) for t in tree.values()), "nan", "importance is not finite and ≥ 0"
    )
    return tree


def _buffers(content: RecordDict, like: Tree) -> Tree:
    if not like:
        return {}
    _check("buffers" in content.array_records, "malformed", "the model's buffers are missing")
    tree, kept = from_coded(content.array_records["buffers"], like)
    _check(all(bool(mask.all()) for mask in kept.values()), "mask", "a buffer is not whole")
    _check(all_finite(tree), "nan", "a buffer is not finite")
    return tree


def _figure(value: object, most: float, message: str) -> float:
    found = figure(value, 0.0, most)
    if found is None:
        raise ReplyError("metrics", message)
    return found


def read_count(metrics: MetricRecord) -> int:
    """The example count, or ``ReplyError``."""
    count = whole(metrics.get("num-examples"), 1, MAX_EXAMPLES)
    if count is None:
        raise ReplyError("metrics", "num-examples is not a positive count")
    return count


def read_ledger(content: RecordDict) -> dict[str, float | int | str]:
    """The ledger line, field by field: numbers within ``LEDGER_BOUNDS``, and one text of bounded length."""
    line: dict[str, float | int | str] = {}
    for name, value in content.config_records.get("ledger", ConfigRecord()).items():
        if name == "claims" and isinstance(value, str) and len(value) <= MAX_CLAIMS:
            line[name] = clean(value, MAX_CLAIMS)
        else:
            line[name] = _figure(value, LEDGER_BOUNDS.get(name, -1.0), "the ledger line is not one")
    return line


def _numbers(content: RecordDict) -> tuple[int, float | None]:
    """The example count, and how long training took where the client tells it: under an ε it does not."""
    metrics = content.metric_records.get("metrics", MetricRecord())
    told = "train-seconds" in metrics
    seconds = _figure(metrics["train-seconds"], MAX_SECONDS, "train-seconds is not a time") if told else None
    return read_count(metrics), seconds


def _base(content: RecordDict, expected: Expected) -> Mask:
    """The mask the client reports, or the one it was sent."""
    if "base" not in content.array_records:
        return expected.mask
    return read_base(content.array_records["base"], expected)


def read_base(record: ArrayRecord, expected: Expected) -> Mask:
    """The mask that a client says it moved to, or ``ReplyError``."""
    _check(expected.allowed is not None, "mask", "the reply moves a mask that is fixed this round")
    base = mask_from_coded(record, expected.params, expected.reference)
    whole = all(bool((base[name] | ~kept).all()) for name, kept in expected.required.items())
    inside = expected.allowed is not None and _inside(base, expected.allowed)
    _check(
        whole and inside and count(base) <= count(expected.mask), "mask", "the reply's own mask is not an allowed one"
    )
    return base


def _decode(content: RecordDict, expected: Expected, names: frozenset[str]) -> tuple[SparseTree, Mask, Tree | None]:
    arrays = content.array_records
    _check("update" in arrays, "malformed", "the update is missing")
    update = sparse_from_coded(arrays["update"], expected.params, expected.reference)
    participation = update.mask
    if "spoken" in arrays:
        participation = mask_from_coded(arrays["spoken"], expected.params, expected.reference)
    return update, participation, _importance(content, expected, names)


def require_answer(reply: Message) -> None:
    """Refuse what is an error and no answer."""
    if reply.has_error():
        reason = {**UNANSWERED, UNREADABLE: "malformed"}.get(reply.error.code, "client-error")
        said = (reply.error.reason or "")[:4_000]
        raised = RAISED.search(said)
        refused = raised is not None and raised[1] in REFUSALS and _FAILED not in said
        words = RAISED.sub(r"\1: \2", said)
        named = "" if reply.error.code == UNREADABLE else f"Flower error {reply.error.code}: "
        raise ReplyError(reason, named + words, refused)


def leave_out(error: PrunellaError, stats: RoundStats) -> str:
    """Why an answer to a question before the first round counts for nothing; a failure, unless the site refused."""
    reason = error.reason if isinstance(error, ReplyError | WireError) else "malformed"
    if not (isinstance(error, ReplyError) and error.refused):
        stats.fail(reason, str(error))
    return reason


def require_round(provenance: ConfigRecord, expected: Expected) -> None:
    """Refuse a reply to another question: another round, another mask, other defenses."""
    _check(provenance.get("round") == expected.round, "stale", "the reply belongs to another round")
    _check(provenance.get("mask") == expected.mark, "stale", "the reply was trained on another mask")
    applied = provenance.get("applied") == list(expected.defenses)
    _check(applied, "metrics", "other defenses were applied than the run's")


def read_reply(reply: Message, expected: Expected, importance_of: frozenset[str] = frozenset()) -> Contribution:
    """The contribution in a reply, or ``ReplyError``."""
    require_answer(reply)
    content = reply.content
    provenance = content.config_records.get("provenance", ConfigRecord())
    require_round(provenance, expected)
    try:
        update, participation, importance = _decode(content, expected, importance_of)
        base = _base(content, expected)
        buffers = _buffers(content, expected.buffers)
    except WireError as error:
        raise ReplyError(error.reason, str(error)) from error
    _check(all_finite(update.values), "nan", "the update is not finite")
    inside = _inside(update.mask, participation) and _inside(participation, base)
    _check(inside, "mask", "the reply's mask is not inside the model's")
    inside = expected.locations is None or _inside(update.mask, expected.locations)
    _check(inside, "mask", "values outside the location set")
    examples, seconds = _numbers(content)
    return Contribution(
        node=reply.metadata.src_node_id,
        base=base,
        sparse=update,
        participation=participation,
        weight=examples,
        seconds=seconds,
        bytes=sum(record_bytes(record) for record in content.array_records.values()),
        importance=importance,
        buffers=buffers,
        applied=expected.defenses,
        ledger=read_ledger(content),
    )


def read_evaluation(reply: Message) -> Evaluation:
    """What a client measured on its held-out examples, or ``ReplyError``. The loss is NaN where it told none, as under
    an epsilon."""
    require_answer(reply)
    metrics = reply.content.metric_records.get("metrics", MetricRecord())
    examples = read_count(metrics)
    accuracy = _figure(metrics.get("accuracy"), 1.0, "the accuracy is not a share")
    told = "loss" in metrics
    loss = _figure(metrics["loss"], MAX_LOSS, "the loss is out of bounds") if told else math.nan
    return Evaluation(loss, accuracy, examples)


Listener = Callable[[Contribution], None]
