"""The model of a message as a client with ``Defend`` has it: from the message, and what earlier ones left on its disk.

What later messages are read by lies in ``site.wire``: the shapes of the model, the last mask, and for a scheme whose
clients go back to them the weights that the run started from.

Errors: ``WireError``.
"""

import json

from flwr.app import ConfigRecord, RecordDict

from prunella.core.errors import WireError
from prunella.core.files import read_tree, write_json, write_tree
from prunella.core.trees import Mask, Tree, all_finite, apply_mask, full_mask
from prunella.flower.aligned import DIGEST, changed_model
from prunella.flower.arrays import MARK, Shapes, floats, in_order, is_buffer, is_coded, open_record, whole
from prunella.flower.scheme import FRESH, SchemeOrder
from prunella.flower.site import Site
from prunella.wire.encode import decode_mask
from prunella.wire.records import from_dense


def open_model(site: Site, content: RecordDict) -> tuple[str, Tree, Mask]:
    """The model of a message, by the name of its record, and the mask it was sent under: all of it if dense."""
    name, record = whole(content)
    site.accounts.key()  # before any state: an account that is missing beside state stops the client
    path = site.wire.folder / "shapes.json"
    if not is_coded(content):
        tree = in_order(from_dense(record))
        shapes = Shapes.of(tree)
        write_json(path, shapes.rows, mode=0o600)
        mask = full_mask(shapes.like())
        if coded := _mask_beside(content):
            mask = decode_mask(coded, shapes.like())
            tree |= apply_mask({n: tree[n] for n in mask}, mask)  # nothing but the server's word says that it is so
            site.wire.save_mask(mask)
        return name, tree, mask
    rows = json.loads(path.read_text()) if path.exists() else []
    shapes = Shapes(tuple((n, kind, tuple(shape)) for n, kind, shape in rows))
    if DIGEST in content.config_records.get(MARK, ConfigRecord()):
        tree, mask = changed_model(site, content, shapes)
    else:
        tree, mask = open_record(content, shapes, site.wire.mask())
    site.wire.save_mask(mask)
    return name, in_order(tree), mask


def _mask_beside(content: RecordDict) -> bytes:
    """The mask that came with a dense message, coded, or nothing."""
    sent = content.config_records.get(MARK, ConfigRecord()).get("mask")
    return sent if isinstance(sent, bytes) else b""


def tells_mask(content: RecordDict) -> bool:
    """Whether the message told the mask that it was sent under."""
    return is_coded(content) or bool(_mask_beside(content))


def fresh_weights(site: Site, content: RecordDict, received: Tree, order: SchemeOrder) -> Tree | None:
    """The weights that the run started from, once the server has told them."""
    path, record = site.wire.folder / "fresh.safetensors", content.array_records.get(FRESH)
    if order.scheme and (order.starts or record is not None):
        told = floats(received if record is None else from_dense(record))
        wanted = {n: t for n, t in floats(received).items() if not is_buffer(n, received)}
        if any(n not in told or told[n].shape != tensor.shape for n, tensor in wanted.items()) or not all_finite(told):
            raise WireError("shape", "the weights that the run starts from are not those of this model")
        write_tree(path, {n: told[n] for n in wanted})
    return read_tree(path)[0] if path.exists() else None
