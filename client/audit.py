"""The consented half of an audit: score the server's reconstruction against what this client really used.

Consent is the node owner's, in the node's own configuration: ``deny`` (default) answers nothing, ``scores`` returns
numbers, ``pictures`` also returns the audited originals beside their reconstructions. The true batch is drawn again
from the round's stream, so that no copy of private data lies anywhere.

A score answers a question about private data, so it is rationed: the images of a round this client took part in, twice
at most (the second for a server that resumed) whatever the run is called, ``AUDITS`` answers in the client's life, and
three digits each. An attack on more images than were used is refused.
"""

import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from client.session import Session
from client.state import ANSWERS_PER_ROUND
from core.records import flatten, from_dense, to_dense
from core.types import PrivateBatch, Reconstruction
from privacy.ledger import digest

AUDITS = 200
DIGITS = 3
MAX_PICTURES = 16


def _outcome(word: str, **records: ArrayRecord | MetricRecord) -> RecordDict:
    return RecordDict({"audit": ConfigRecord({"outcome": word}), **records})


def truth(session: Session, round: int) -> PrivateBatch:
    """The images [N, C, H, W] and labels [N] of a round, as they were before any defense."""
    used = list(session.batches(round))
    return PrivateBatch(torch.cat([b.x for b in used]).cpu(), torch.cat([b.y for b in used]).cpu())


def _reconstruction(record: ArrayRecord, shape: tuple[int, int, int], limit: int) -> Reconstruction | None:
    """The server's images, or None when they are not images of this task."""
    tree = from_dense(record)
    x, y = tree.get("x"), tree.get("y")
    if x is None or x.dim() != 4 or tuple(x.shape[1:]) != shape or not 0 < len(x) <= limit:
        return None
    if not x.is_floating_point() or not bool(torch.isfinite(x).all()) or (y is not None and y.shape != (len(x),)):
        return None
    return Reconstruction(x.clamp(0, 1), y, 0.0, 0)


def answer(session: Session, content: RecordDict) -> RecordDict:
    """The content of the reply to ``query.audit``."""
    if session.node.consent == "deny":
        return _outcome("no-consent")
    round = int(str(content.config_records["audit"]["round"]))
    if not session.store.took_part(round):
        return _outcome("refused")
    private = truth(session, round)
    if not session.store.claim("audits", digest([{"x": private.x}], ""), ANSWERS_PER_ROUND, AUDITS):
        return _outcome("refused")
    rebuilt = _reconstruction(content.array_records["reconstruction"], session.task.shape, len(private.y))
    if rebuilt is None:
        return _outcome("refused")
    from attacks.leakage import paired, score  # most messages are no audit, and each is a new process

    leakage = score(rebuilt, private)
    scores = {name: float(f"{value:.{DIGITS}g}") for name, value in flatten(leakage.to_dict()).items()}
    reply = _outcome("scored", scores=MetricRecord({**scores}))
    if session.node.consent == "pictures":
        original, reconstruction = paired(private.x, rebuilt.x, leakage.assignment[:MAX_PICTURES])
        reply["pictures"] = to_dense({"original": original, "reconstruction": reconstruction})
    return reply
