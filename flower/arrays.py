"""The arrays of a foreign app's messages: one record of named arrays, dense as Flower has it or coded as Prunella does.

A *coded* record holds the floating arrays under a mask (``wire.records``); arrays of other types lie beside it, dense.
Only a client with ``Defend`` is sent one, and only such a client's answers are coded (``flower.prune``). A coded answer
has the differences to what was sent, as our own client's has: a third shorter than the weights themselves. Where a
difference does not lead back to the weight by one addition, the weight is in a record beside it (``prunella-exact``),
so that what the client means arrives bit for bit.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from prunella.core.errors import WireError
from prunella.core.trees import Mask, Tree, add, intersect, map_trees, where
from prunella.core.untrusted import is_number
from prunella.wire.encode import fingerprint
from prunella.wire.records import STYPE, from_coded, from_dense, to_coded, to_dense

EXAMPLES = "num-examples"  # the metric by which Flower averages, if nothing else is said
MARK = "prunella"  # the config record by which server and client know each other
REST = "prunella-rest"  # arrays that are not coded
EXACT = "prunella-exact"  # weights of an answer that a difference would round
OWN = "prunella-"  # how the names of this project's array records begin
WIRE = 1
FLOATS = {"float16": torch.float16, "float32": torch.float32, "float64": torch.float64}
BUFFERS = ("running_mean", "running_var", "num_batches_tracked")  # what batch norm calls its statistics


def _kind(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def floats(tree: Tree) -> Tree:
    return {name: tensor for name, tensor in tree.items() if tensor.is_floating_point()}


def is_buffer(name: str, names: Container[str]) -> bool:
    """Whether an array of a model with ``names`` is one of batch norm's statistics, which come together."""
    prefix, dot, last = name.rpartition(".")
    return last in BUFFERS and all(f"{prefix}{dot}{each}" in names for each in BUFFERS[:2])


def fits(tree: Tree, sent: Tree) -> bool:
    """Whether an answer has the names and shapes of what was sent, and finite numbers of its kind: a liar's booleans or
    integers would make such of a mean, and one NaN would make all of it NaN. Averaging makes floats of integers (batch
    norm's counter, a table of positions), which clients answer as integers."""

    def kind(tensor: torch.Tensor) -> tuple[bool, bool]:
        return tensor.is_complex(), tensor.dtype == torch.bool

    def whole_numbers(tensor: torch.Tensor) -> bool:
        return not tensor.is_floating_point() or bool((tensor - tensor.round()).abs().max() < 1e-3)

    return tree.keys() == sent.keys() and all(
        t.shape == sent[n].shape
        and kind(t) == kind(sent[n])
        and bool(torch.isfinite(t).all())
        and (t.is_floating_point() or t.numel() == 0 or t.is_complex() or whole_numbers(sent[n]))
        for n, t in tree.items()
    )


def is_coded(content: RecordDict) -> bool:
    return any(array.stype == STYPE for array in whole(content)[1].values()) if content.array_records else False


def whole(content: RecordDict) -> tuple[str, ArrayRecord]:
    """The one record of the model, by name. Raises ``WireError``."""
    records = {name: record for name, record in content.array_records.items() if not name.startswith(OWN)}
    if len(records) != 1:
        raise WireError("malformed", f"the message has {len(records)} array records; one, of the model, is understood")
    (found,) = records.items()
    return found


def in_order(tree: Tree) -> Tree:
    """``tree``, whose arrays are in the order of their numbers if they are numbered: apps take those by their place,
    and a defense by their name. Raises ``WireError``."""
    if all(map(is_number, tree)) and list(tree) != [str(at) for at in range(len(tree))]:
        raise WireError("name", "the arrays of the message are not in the order of their numbers")
    return tree


@dataclass(frozen=True)
class Shapes:
    """Names, types and shapes of a model's arrays, in order: what a coded record is read by."""

    rows: tuple[tuple[str, str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, tree: Tree) -> "Shapes":
        return cls(tuple((name, _kind(t), tuple(t.shape)) for name, t in tree.items()))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _, _ in self.rows)

    def like(self) -> Tree:
        """Empty tensors of the floating ones."""
        return floats({n: torch.empty(shape, dtype=getattr(torch, kind)) for n, kind, shape in self.rows})


def close_record(tree: Tree, mask: Mask, reference: Mask | None = None) -> tuple[ArrayRecord, ArrayRecord]:
    """The arrays named in ``mask`` coded under it, and the others as they are."""
    inside = {name: tree[name] for name in mask}
    return to_coded(inside, mask, reference), to_dense({n: t for n, t in tree.items() if n not in mask})


def open_record(content: RecordDict, shapes: Shapes, reference: Mask | None = None) -> tuple[Tree, Mask]:
    """All arrays of a coded message in the order of ``shapes``, zero outside the mask, and the mask. Raises
    ``WireError`` for names that are missing, unknown or there twice, and for another shape or type."""
    _, record = whole(content)
    rest = from_dense(content.array_records.get(REST, ArrayRecord()))
    like = {name: tensor for name, tensor in shapes.like().items() if name not in rest}
    known = reference if reference is not None and reference.keys() == like.keys() else None
    coded, mask = from_coded(record, like, known)
    found = {**rest, **coded}
    if found.keys() != set(shapes.names):
        raise WireError("name", "the arrays of the message are not those of the model")
    if any(tuple(found[name].shape) != shape for name, _, shape in shapes.rows):
        raise WireError("shape", "the arrays of the message do not have the shapes of the model's")
    return {name: found[name] for name in shapes.names}, mask


def changed(after: Tree, before: Tree, base: Mask) -> Mask:
    """Where an answer differs from what was sent, bit for bit, inside the base mask."""
    return intersect(map_trees(_differs, after, before), base)


def _differs(after: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = kinds[after.element_size()]
    return after.contiguous().view(bits) != before.contiguous().view(bits)


def close_answer(name: str, after: Tree, before: Tree, base: Mask, sent: Mask, shared: Mask) -> RecordDict:
    """The answer ``after`` to ``before``, which was sent under ``sent`` and trained under ``base``: its array records,
    coded where they can be. They have what differs, and all that the defenses shared: to say which of it is zero would
    cost more than the zeros.

    Servers' optimisers make float64 of a model whose clients answer in float32. An answer is coded in its own types,
    which travel in the record ``MARK``.
    """
    names = [n for n in base if n in after and after[n].is_floating_point()]
    if not names:
        return RecordDict({name: to_dense(after)})
    same = {n: before[n].to(after[n].dtype) for n in names}
    inside, held = ({n: mask[n] for n in names} for mask in (base, sent))
    moved = changed({n: after[n] for n in names}, same, inside)
    moved = {n: places | shared[n] if n in shared else places for n, places in moved.items()}
    change = {n: after[n] - same[n] for n in names}
    odd = intersect(map_trees(_differs, add(same, change), {n: after[n] for n in names}), moved)
    coded, rest = close_record({**after, **change}, moved, held)
    exact = {EXACT: to_coded({n: after[n] for n in odd}, odd)} if any(bool(m.any()) for m in odd.values()) else {}
    cast = [f"{_kind(after[n])} {n}" for n in names if after[n].dtype != before[n].dtype]
    said = {MARK: ConfigRecord({"cast": cast})} if cast else {}
    return RecordDict({name: coded, **({REST: rest} if rest else {}), **exact, **said})


def open_answer(content: RecordDict, before: Tree, base: Mask) -> Tree:
    """The inverse of ``close_answer`` for a coded answer, at the server. Raises ``WireError``."""
    beside, before = content.array_records.get(REST, ArrayRecord()), dict(before)
    cast = content.config_records.get(MARK, ConfigRecord()).get("cast", [])
    for kind, _, name in (str(each).partition(" ") for each in cast) if isinstance(cast, list) else ():
        if kind not in FLOATS or name not in before:
            raise WireError("dtype", "the answer names an array or a type that there is not")
        before[name] = before[name].to(FLOATS[kind])
    sent, mask = open_record(content, Shapes.of(before), {n: kept for n, kept in base.items() if n not in beside})
    start = {n: before[n] for n in mask}
    inside = where(mask, add(start, {n: sent[n] for n in mask}), start)
    if EXACT in content.array_records:
        exact, odd = from_coded(content.array_records[EXACT], start)
        inside = where(odd, exact, inside)
    return {name: inside.get(name, sent[name]) for name in sent}


def as_record(tree: Tree, kept: Mapping[str, Array]) -> ArrayRecord:
    """A dense record; an array of ``kept`` is taken as it came."""
    made = to_dense({name: tensor for name, tensor in tree.items() if name not in kept})
    return ArrayRecord({name: kept[name] if name in kept else made[name] for name in tree})


def marker(applied: tuple[str, ...], mask: Mask | None) -> ConfigRecord:
    """What an answer says of the client: that it reads coded records, which defenses it applied, which mask it has.
    Nothing empty: Flower's ``message_size_mod`` cannot count it."""
    told: dict[str, Any] = {"wire": WIRE, "applied": list(applied), "mask": fingerprint(mask) if mask else b""}
    return ConfigRecord({name: value for name, value in told.items() if value})
