"""A ClientApp that does harm on the real wire. ``tests.federation.test_hostile`` puts it into a copy of the app.

It is the honest ClientApp, and afterwards what ``MISCHIEF`` in its environment says of this client in this round:
``{"client:round": kind}``. A real attacker runs code of its own; to the server that makes no difference.
"""

import json
import os
import signal
import struct
import time
from collections.abc import Callable
from typing import Any

import torch
import zstandard
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import prunella.client.app
from prunella.client.session import Session
from prunella.core.trees import Mask, Tree, full_mask, map_trees
from prunella.wire.coding import ZSTD, prefixed
from prunella.wire.layout import MAGIC, PREFIX, VERSION
from prunella.wire.records import from_coded, pack, to_coded

SECRET = "patient-Ada-pixel-0.7312"  # what must never be read at the server
BOMB = 1 << 30  # bytes that a few kilobytes unfold to
SLEEP = 32.0  # seconds: more than three of the rounds in which it sleeps
HONEST = prunella.client.app.local_update


def bomb(params: Tree) -> bytes:
    """A blob whose header is right and whose one frame unfolds to a gigabyte."""
    rows = [[name, "f4", list(tensor.shape), "f"] for name, tensor in sorted(params.items())]
    writer = zstandard.ZstdCompressor().compressobj(size=BOMB)
    packed = b"".join(writer.compress(bytes(1 << 24)) for _ in range(BOMB >> 24)) + writer.flush()
    assert zstandard.get_frame_parameters(packed).content_size == BOMB and len(packed) < BOMB / 1000
    section = [bytes([ZSTD]), *prefixed([packed])]
    text = json.dumps(rows, separators=(",", ":")).encode()
    return PREFIX.pack(MAGIC, VERSION, 1, len(text)) + text + b"".join(prefixed(section))


def changed(content: RecordDict, params: Tree, mask: Mask, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """The client's own update, every tensor changed, coded as an honest one is."""
    tree, shared = from_coded(content.array_records["update"], params, mask)
    content["update"] = to_coded(map_trees(change, tree), shared, mask)


def strange(content: RecordDict, tree: Tree) -> None:
    content["update"] = to_coded(tree, full_mask(tree))


def harm(kind: str, content: RecordDict, params: Tree, mask: Mask, before: dict[str, Any]) -> None:
    """Change an honest reply into what ``kind`` says."""
    deeds: dict[str, Callable[[], object]] = {
        "shape": lambda: strange(content, map_trees(lambda t: t.unsqueeze(0), params)),
        "name": lambda: strange(content, {f"{SECRET}.{name}": tensor for name, tensor in params.items()}),
        "nan": lambda: changed(content, params, mask, lambda t: torch.full_like(t, float("nan"))),
        "huge": lambda: changed(content, params, mask, lambda t: t.sign() * 1e30),
        "bomb": lambda: content.update({"update": pack(bomb(params))}),
        "oversize": lambda: content.update({"update": pack(os.urandom(1 << 24))}),
        "wide-mask": lambda: strange(content, params),
        "forged-mask": lambda: content["provenance"].update({"mask": struct.pack("<q", 7)}),
        "replay": lambda: content.update(before),
        "claims": lambda: content.update({"ledger": ConfigRecord({SECRET: 1.0})}),
        "weight": lambda: content.update({"metrics": MetricRecord({"num-examples": 10**12})}),
        "sleep": lambda: time.sleep(SLEEP),
    }
    deeds[kind]()


def quoting(*_: object) -> None:
    raise ValueError(f"label 7, {SECRET}")


class Hostile(ClientApp):
    """The honest app with a hostile end."""

    def __call__(self, message: Message, context: Context) -> Message:
        if message.metadata.message_type != "train":
            return prunella.client.app.app(message, context)
        session = Session(context)
        round = int(str(message.content.config_records["config"]["round"]))
        kind = json.loads(os.environ["MISCHIEF"]).get(f"{session.node.client}:{round}", "")
        if kind == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        prunella.client.app.local_update = quoting if kind == "quote" else HONEST
        reply = prunella.client.app.app(message, context)
        before = dict(context.state.items())
        # What a replay next round will repeat. An honest client keeps nothing in this state.
        context.state.update({name: reply.content[name] for name in ("update", "provenance")})
        if kind:
            received, mask = prunella.client.app._receive(session, message.content)
            harm(kind, reply.content, received.params, mask, before)
        return reply


app = Hostile()
