"""Trees to Flower records and back, in one place.

A coded tree is a single ``Array`` of bytes with its own ``stype``: Flower stores every array as one content-addressed
object, so one blob costs one round trip where sixty named tensors cost a hundred. The global model inside the server
is a plain dense ``ArrayRecord``, as any Flower strategy expects.
"""

from collections.abc import Mapping
from typing import Any

import torch
from flwr.app import Array, ArrayRecord

from prunella.core.errors import WireError
from prunella.core.trees import Mask, Tree
from prunella.wire.encode import Reference, Values, decode, decode_mask, decode_sparse, encode, encode_mask
from prunella.wire.sparse import SparseTree

STYPE = "prunella.tree.v3"
KEY = "tree"


def pack(data: bytes) -> ArrayRecord:
    return ArrayRecord({KEY: Array("uint8", (len(data),), STYPE, data)})


def unpack(record: ArrayRecord) -> bytes:
    """The bytes of a coded tree. Raises ``WireError`` when the record holds something else."""
    stype = record[KEY].stype if list(record) == [KEY] else ""
    if stype != STYPE:
        older = stype.startswith("prunella.tree.")
        raise WireError("version" if older else "malformed", f"the record is not one {STYPE} array")
    return record[KEY].data


def to_coded(
    tree: Tree, mask: Mask, reference: Mask | Reference | None = None, values: Values = "float32"
) -> ArrayRecord:
    return pack(encode(tree, mask, reference, values))


def from_coded(record: ArrayRecord, like: Tree, reference: Mask | Reference | None = None) -> tuple[Tree, Mask]:
    return decode(unpack(record), like, reference)


def sparse_from_coded(record: ArrayRecord, like: Tree, reference: Mask | Reference | None = None) -> SparseTree:
    return decode_sparse(unpack(record), like, reference)


def mask_to_coded(mask: Mask, reference: Mask | Reference | None = None) -> ArrayRecord:
    return pack(encode_mask(mask, reference))


def mask_from_coded(record: ArrayRecord, like: Tree, reference: Mask | Reference | None = None) -> Mask:
    return decode_mask(unpack(record), like, reference)


def to_dense(tree: Tree) -> ArrayRecord:
    """A plain Flower record of the tree."""
    return ArrayRecord({name: Array.from_numpy_ndarray(t.detach().cpu().numpy()) for name, t in tree.items()})


def from_dense(record: ArrayRecord) -> Tree:
    """The tensors of a plain record. Raises ``WireError`` where one cannot be read."""
    try:
        return {name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()}
    except Exception as error:  # noqa: BLE001 - bytes of a stranger: whatever reading them raises, they are no tensors
        raise WireError("malformed", "the record holds an array that cannot be read") from error


def from_dense_as(record: ArrayRecord, like: Tree) -> Tree:
    """The same where the tensors must be the model's ``like``: by name, shape and dtype, and finite. In another shape a
    buffer could act on one example of a batch alone. Raises ``WireError``."""
    tree = from_dense(record)
    if tree.keys() != like.keys():
        raise WireError("name", "the names are not the model's: update both sides to one release")
    for name, tensor in tree.items():
        if tensor.shape != like[name].shape:
            raise WireError("shape", f"{name}: the shape is not the model's")
        if tensor.dtype != like[name].dtype:
            raise WireError("dtype", f"{name}: the dtype is not the model's {like[name].dtype}")
        if not bool(torch.isfinite(tensor).all()):
            raise WireError("value", f"{name}: a value is not finite")
    return tree


def record_bytes(record: ArrayRecord) -> int:
    """Bytes of the arrays in a record, as sent."""
    return sum(len(array.data) for array in record.values())


Nested = dict[str, Any]


def flatten(nested: Nested, prefix: str = "") -> dict[str, float]:
    """Numbers of a nested mapping under dotted names, as a metric record holds them; None and text are left out.

    >>> flatten({"psnr": {"mean": 12.0}, "images": 2, "note": None})
    {'psnr.mean': 12.0, 'images': 2.0}
    """
    flat: dict[str, float] = {}
    for name, value in nested.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{name}.")
        elif isinstance(value, int | float):
            flat[prefix + name] = float(value)
    return flat


def unflatten(flat: Mapping[str, float]) -> Nested:
    """
    >>> unflatten({"psnr.mean": 12.0, "images": 2.0})
    {'psnr': {'mean': 12.0}, 'images': 2.0}
    """
    nested: Nested = {}
    for name, value in flat.items():
        *path, last = name.split(".")
        place = nested
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return nested
