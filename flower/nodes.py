"""What every node was sent and holds, as the server knows it, and messages coded accordingly.

A node is sent dense arrays until it says that it reads coded ones, and again after an answer that was an error or could
not be read. Coded messages have the bits of the mask only where the node does not hold it. What stands between here and
a node's Defend may bear neither codes nor a record beside the app's (Flower's clipping mods): after an error the node
is sent what Flower alone would send, and that is how it stays once it has failed twice in turn by anything else. Where
clients cannot do without being told (ADGP, a scheme that asks them), they are told.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from prunella.core.errors import WireError
from prunella.core.trees import Mask, apply_mask, count, size
from prunella.flower.aligned import DIGEST, Aligned, change
from prunella.flower.arrays import MARK, REST, WIRE, Shapes, close_record, whole
from prunella.flower.scheme import FRESH, SchemeOrder
from prunella.wire.encode import encode_mask, fingerprint
from prunella.wire.records import from_dense, record_bytes, to_dense

TWICE = 2  # one failure may have any reason


def masked(arrays: ArrayRecord, mask: Mask) -> ArrayRecord:
    """The arrays under the mask; the record itself where nothing is pruned. Raises ``WireError``."""
    if count(mask) == size(mask):
        return arrays
    thin = [name for name in arrays if name in mask and not bool(mask[name].all())]
    whole_ones = from_dense(ArrayRecord({name: arrays[name] for name in thin}))
    if odd := [name for name in thin if whole_ones[name].shape != mask[name].shape]:
        raise WireError("shape", f"{odd[0]} does not have the shape of the model's")
    pruned = to_dense(apply_mask(whole_ones, {name: mask[name] for name in thin}))
    return ArrayRecord({name: pruned.get(name, array) for name, array in arrays.items()})


def under(content: RecordDict, mask: Mask) -> RecordDict:
    """A message's content with its arrays under the mask."""
    name, record = whole(content)
    return RecordDict({n: masked(record, mask) if n == name else r for n, r in content.items()})


def coded(content: RecordDict, mask: Mask, holds: bool) -> RecordDict:
    """A message's content, coded under the mask, for a node that holds it or not."""
    name, record = whole(content)
    tree = from_dense(record)
    kept, rest = close_record(tree, {n: mask[n] for n in tree if n in mask}, mask if holds else None)
    others = {n: r for n, r in content.items() if n != name}
    return RecordDict({name: kept, **({REST: rest} if rest else {}), **others})


def shapes_of(content: RecordDict) -> Shapes:
    return Shapes.of(from_dense(whole(content)[1]))


def bits(mask: Mask, shapes: Shapes) -> bytes:
    """The mask over all floating arrays of a message: averaging makes one of batch norm's counter."""
    return encode_mask({n: mask.get(n, torch.ones_like(t, dtype=torch.bool)) for n, t in shapes.like().items()})


@dataclass
class KnownNodes:
    """``held``: by node with Defend, the fingerprint of the mask it holds; ``without``: nodes that answered without
    Defend; ``sent``: what the last message says, dense; ``shapes``: of the last dense message, by which coded ones are
    read; ``started``: nodes with Defend that know what the run starts from; ``ours``: nodes whose last message had
    anything of this project's; ``failed``: how many of those in turn a node did not answer well; ``bare``: nodes that
    are sent what Flower would send."""

    held: dict[int, bytes] = field(default_factory=dict)
    without: set[int] = field(default_factory=set)
    sent: dict[int, RecordDict] = field(default_factory=dict)
    shapes: dict[int, Shapes] = field(default_factory=dict)
    started: set[int] = field(default_factory=set)
    ours: set[int] = field(default_factory=set)
    failed: Counter[int] = field(default_factory=Counter)
    bare: set[int] = field(default_factory=set)
    needed: bool = False  # what is said beside the model

    def close(
        self,
        messages: list[Message],
        mask_of: Callable[[int], Mask],
        order: SchemeOrder,
        first: ArrayRecord | None,
        aligned: Aligned | None = None,
    ) -> int:
        """Put every message under the mask of its node, code those of nodes that read coded ones, and tell those that
        may have Defend what the scheme asks. ``first`` is what the run starts from, where clients go back to it,
        ``aligned`` has ADGP's set of the round. Returns the bytes that are sent."""
        self.sent, sent_bytes, self.needed = {}, 0, aligned is not None or bool(order.scheme)
        came = [message.content for message in messages]  # alive until all are closed: they are told apart by id()
        made = dict[Any, Any]()  # once for all who are sent the same

        def once(make: Callable[..., Any], *given: Any) -> Any:
            key = (make, *(each if isinstance(each, bool) else id(each) for each in given))
            if key not in made:
                made[key] = make(*given)
            return made[key]

        for message, content in zip(messages, came, strict=True):
            node = message.metadata.dst_node_id
            mask = mask_of(node)
            plain = self.sent[node] = once(under, content, mask)
            message.content, mark = self._closed(node, plain, mask, aligned, once)
            mark |= order.record() if order.scheme else {}
            told = bool(mark) and node not in self.without and (self.needed or node not in self.bare)
            if told:
                beside = self._beside(node, order, first)
                message.content = RecordDict({**message.content, **beside, MARK: ConfigRecord(mark)})
                sent_bytes += sum(len(value) for value in mark.values() if isinstance(value, bytes))
            (self.ours.add if told or message.content is not plain else self.ours.discard)(node)
            sent_bytes += sum(record_bytes(record) for record in message.content.array_records.values())
        return sent_bytes

    def _closed(
        self, node: int, plain: RecordDict, mask: Mask, aligned: Aligned | None, once: Callable[..., Any]
    ) -> tuple[RecordDict, dict[str, Any]]:
        """A node's content as it travels, and what is said beside it."""
        mark, shapes = {} if aligned is None else aligned.told(node), once(shapes_of, plain)
        if node not in self.held or self.shapes.get(node) != shapes:
            self.shapes[node] = shapes
            return plain, {**mark, "mask": once(bits, mask, shapes)} if count(mask) < size(mask) else mark
        holds = self.held[node] == once(fingerprint, mask)
        places = None if aligned is None else aligned.sets.lacks(node, holds)
        if aligned is None or places is None:
            return once(coded, plain, mask, holds), mark
        return once(change, plain, places), {**mark, DIGEST: once(aligned.digest)}

    def _beside(self, node: int, order: SchemeOrder, first: ArrayRecord | None) -> dict[str, ArrayRecord]:
        """What the run starts from, for a node with Defend that came later."""
        if first is None or not order.scheme or node in self.started or not (order.starts or node in self.held):
            return {}
        self.started.add(node)
        return {} if order.starts else {FRESH: first}

    def forget(self, node: int) -> None:
        """Send a node everything again, and next what Flower would."""
        if node in self.ours and not self.needed:
            self.failed[node] += 1
            self.bare.add(node)
        self.held.pop(node, None)
        self.started.discard(node)

    def note(self, node: int, mark: ConfigRecord | None) -> None:
        """What a valid answer says of its node."""
        if node in self.bare and self.failed[node] >= TWICE and not self.needed:
            return
        self.bare.discard(node)
        if node in self.ours:
            self.failed.pop(node, None)
        if mark is not None and mark.get("wire") == WIRE:
            held = mark.get("mask")
            self.held[node] = held if isinstance(held, bytes) else b""
        else:
            self.without.add(node)
