"""What every node was sent and holds, as the server knows it, and messages coded accordingly.

A node is sent dense arrays until it says that it reads coded ones, and again after an answer that was an error or could
not be read. Coded messages have the bits of the mask only where the node does not hold it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from prunella.core.errors import WireError
from prunella.core.trees import Mask, apply_mask, count, size
from prunella.flower.arrays import MARK, REST, WIRE, Shapes, close_record, whole
from prunella.flower.scheme import FRESH, SchemeOrder
from prunella.wire.encode import encode_mask, fingerprint
from prunella.wire.records import from_dense, record_bytes, to_dense


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
class Nodes:
    """``held``: by node with Defend, the fingerprint of the mask it holds; ``without``: nodes that answered without
    Defend; ``sent``: what the last message says, dense; ``shapes``: of the last dense message, by which coded ones are
    read; ``started``: nodes with Defend that know what the run starts from."""

    held: dict[int, bytes] = field(default_factory=dict)
    without: set[int] = field(default_factory=set)
    sent: dict[int, RecordDict] = field(default_factory=dict)
    shapes: dict[int, Shapes] = field(default_factory=dict)
    started: set[int] = field(default_factory=set)

    def close(
        self, messages: list[Message], mask_of: Callable[[int], Mask], order: SchemeOrder, first: ArrayRecord | None
    ) -> int:
        """Put every message under the mask of its node, code those of nodes that read coded ones, and tell those that
        may have Defend what the scheme asks. ``first`` is what the run starts from, where clients go back to it.
        Returns the bytes that are sent."""
        self.sent, sent_bytes = {}, 0
        came = [message.content for message in messages]  # alive until all are closed: they are told apart by id()
        made = dict[Any, Any]()  # once for all who are sent the same, by the identity of what came in

        def once(key: Any, make: Callable[[], Any]) -> Any:
            if key not in made:
                made[key] = make()
            return made[key]

        for message, plain in zip(messages, came, strict=True):
            node = message.metadata.dst_node_id
            mask, which = mask_of(node), (id(plain), id(mask_of(node)))
            shapes = once(id(plain), partial(shapes_of, plain))
            plain = self.sent[node] = once(which, partial(under, plain, mask))
            told = b""
            if node in self.held and self.shapes.get(node) == shapes:
                holds = self.held[node] == once(id(mask), partial(fingerprint, mask))
                content = once((*which, holds), partial(coded, plain, mask, holds))
            else:
                content, self.shapes[node] = plain, shapes
                thin = node not in self.without and count(mask) < size(mask)
                told = once((*which, "bits"), partial(bits, mask, shapes)) if thin else b""
            mark = {**({"mask": told} if told else {}), **(order.record() if order.scheme else {})}
            if mark and node not in self.without:
                content = RecordDict({**content, **self._beside(node, order, first), MARK: ConfigRecord(mark)})
            message.content = content
            sent_bytes += len(told) + sum(record_bytes(record) for record in content.array_records.values())
        return sent_bytes

    def _beside(self, node: int, order: SchemeOrder, first: ArrayRecord | None) -> dict[str, ArrayRecord]:
        """What the run starts from, for a node with Defend that came later."""
        if first is None or not order.scheme or node in self.started or not (order.starts or node in self.held):
            return {}
        self.started.add(node)
        return {} if order.starts else {FRESH: first}

    def forget(self, node: int) -> None:
        """Send a node everything again."""
        self.held.pop(node, None)
        self.started.discard(node)

    def note(self, node: int, mark: ConfigRecord | None) -> None:
        """What a valid answer says of its node."""
        if mark is not None and mark.get("wire") == WIRE:
            held = mark.get("mask")
            self.held[node] = held if isinstance(held, bytes) else b""
        else:
            self.without.add(node)
