"""A client's reply, and the checks it must pass before it touches the model.

A reply that is wrong in any way raises ``ReplyError`` with one word for a metric label; the strategy counts it, names
it and leaves it out.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from core.errors import PrunellaError, WireError
from core.kept import Kept
from core.records import from_coded, kept_from_coded, mask_from_coded, mask_to_coded, record_bytes, to_coded
from core.trees import Mask, Tree, all_finite, count, full_mask
from core.wire import REASONS as WIRE_REASONS
from core.wire import Reference, Values
from strategies.local import LocalResult
from tasks.training import Evaluation

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
# Flower's codes for what the SuperLink answers in a client's place: the message or the reply expired; the node is gone.
UNANSWERED = {3: "timeout", 4: "timeout", 5: "unreachable"}
MAX_CLAIMS = 2_000  # characters
LEDGER_NUMBERS = ("rounds", "steps", "channel_nats", "epsilon", "epsilon_next", "epsilon_budget", "delta")


class ReplyError(PrunellaError):
    """A reply that is left out. ``reason`` is one of ``REASONS``."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


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

    ``kept`` is the update as it came: the shared coordinates and their values.
    """

    node: int
    base: Mask
    kept: Kept
    spoken: Mask
    weight: int
    seconds: float
    bytes: int
    importance: Tree | None = None
    buffers: Tree = field(default_factory=dict)
    applied: tuple[str, ...] = ()
    ledger: dict[str, float | int | str] = field(default_factory=dict)

    @property
    def shared(self) -> Mask:
        """The coordinates the client sent."""
        return self.kept.mask

    @cached_property
    def update(self) -> Tree:
        """The dense update, zero where nothing was shared; made when first asked for."""
        return self.kept.dense()


def same_mask(a: Mask, b: Mask) -> bool:
    return a is b or all(a[name] is b[name] or torch.equal(a[name], b[name]) for name in a)


def build_reply(
    result: LocalResult, mask: Mask, importance_of: frozenset[str], values: Values = "float32"
) -> dict[str, ArrayRecord]:
    """The array records of a reply. ``importance_of`` names the tensors whose importance the server asked for.

    ``values`` rounds the update, and nothing else: no defense knows of it, and DGP does not feed the error back.
    """
    outgoing = result.outgoing
    records = {"update": to_coded(outgoing.update, outgoing.shared, mask, values)}
    if not same_mask(outgoing.spoken, outgoing.shared):
        records["spoken"] = mask_to_coded(outgoing.spoken, mask)
    if not same_mask(result.base, mask):
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
    tree, _ = from_coded(content.array_records["importance"], {name: expected.params[name] for name in sorted(names)})
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


def _ledger(content: RecordDict) -> dict[str, float | int | str]:
    """The ledger line, field by field: finite numbers that are not negative, and one text of bounded length."""
    line = dict(content.config_records.get("ledger", ConfigRecord()))
    for name, value in line.items():
        number = isinstance(value, int | float) and math.isfinite(value) and value >= 0
        text = name == "claims" and isinstance(value, str) and len(value) <= MAX_CLAIMS
        _check(text or (name in LEDGER_NUMBERS and number), "metrics", "the ledger line is not one")
    return line  # type: ignore[return-value]


def _numbers(content: RecordDict) -> tuple[int, float]:
    metrics = content.metric_records.get("metrics", MetricRecord())
    examples, seconds = metrics.get("num-examples"), metrics.get("train-seconds", 0.0)
    _check(
        isinstance(examples, int) and 0 < examples <= MAX_EXAMPLES, "metrics", "num-examples is not a positive count"
    )
    _check(isinstance(seconds, float | int) and 0 <= seconds < 1e9, "metrics", "train-seconds is not a time")
    return int(examples), float(seconds)  # type: ignore[arg-type]


def _base(content: RecordDict, expected: Expected) -> Mask:
    """The mask the client reports, or the one it was sent."""
    if "base" not in content.array_records:
        return expected.mask
    _check(expected.allowed is not None, "mask", "the reply moves a mask that is fixed this round")
    base = mask_from_coded(content.array_records["base"], expected.params, expected.reference)
    whole = all(bool((base[name] | ~kept).all()) for name, kept in expected.required.items())
    inside = expected.allowed is not None and _inside(base, expected.allowed)
    _check(
        whole and inside and count(base) <= count(expected.mask), "mask", "the reply's own mask is not an allowed one"
    )
    return base


def _decode(content: RecordDict, expected: Expected, names: frozenset[str]) -> tuple[Kept, Mask, Tree | None]:
    arrays = content.array_records
    _check("update" in arrays, "malformed", "the update is missing")
    kept = kept_from_coded(arrays["update"], expected.params, expected.reference)
    spoken = mask_from_coded(arrays["spoken"], expected.params, expected.reference) if "spoken" in arrays else kept.mask
    return kept, spoken, _importance(content, expected, names)


def read_reply(reply: Message, expected: Expected, importance_of: frozenset[str] = frozenset()) -> Contribution:
    """The contribution in a reply, or ``ReplyError``."""
    if reply.has_error():
        reason = UNANSWERED.get(reply.error.code, "client-error")
        raise ReplyError(reason, f"Flower error {reply.error.code}: {reply.error.reason}")
    content = reply.content
    provenance = content.config_records.get("provenance", ConfigRecord())
    _check(provenance.get("round") == expected.round, "stale", "the reply belongs to another round")
    _check(provenance.get("mask") == expected.mark, "stale", "the reply was trained on another mask")
    try:
        kept, spoken, importance = _decode(content, expected, importance_of)
        base = _base(content, expected)
        buffers = _buffers(content, expected.buffers)
    except WireError as error:
        raise ReplyError(error.reason, str(error)) from error
    _check(all_finite(kept.values), "nan", "the update is not finite")
    _check(_inside(kept.mask, spoken) and _inside(spoken, base), "mask", "the reply's mask is not inside the model's")
    inside = expected.locations is None or _inside(kept.mask, expected.locations)
    _check(inside, "mask", "values outside the location set")
    _check(
        provenance.get("applied") == list(expected.defenses), "metrics", "other defenses were applied than the run's"
    )
    examples, seconds = _numbers(content)
    return Contribution(
        node=reply.metadata.src_node_id,
        base=base,
        kept=kept,
        spoken=spoken,
        weight=examples,
        seconds=seconds,
        bytes=sum(record_bytes(record) for record in content.array_records.values()),
        importance=importance,
        buffers=buffers,
        applied=expected.defenses,
        ledger=_ledger(content),
    )


def read_evaluation(reply: Message) -> Evaluation:
    """What a client measured on its held-out examples, or ``ReplyError``. The loss is NaN where it told none, as under
    an epsilon."""
    if reply.has_error():
        reason = UNANSWERED.get(reply.error.code, "client-error")
        raise ReplyError(reason, f"Flower error {reply.error.code}: {reply.error.reason}")
    metrics = reply.content.metric_records.get("metrics", MetricRecord())
    accuracy, examples = (metrics.get(name) for name in ("accuracy", "num-examples"))
    loss = metrics.get("loss", 0.0)
    _check(isinstance(examples, int) and 0 < examples <= MAX_EXAMPLES, "metrics", "num-examples is not a count")
    _check(isinstance(loss, int | float) and 0 <= loss < math.inf, "metrics", "the loss is not a finite number")
    _check(isinstance(accuracy, int | float) and 0 <= accuracy <= 1, "metrics", "the accuracy is not a share")
    return Evaluation(float(str(metrics.get("loss", math.nan))), float(str(accuracy)), int(str(examples)))


Listener = Callable[[Contribution], None]
