"""The consented half of an audit: score the server's reconstruction against what this client really used.

Consent is the node owner's, in the node's own configuration:

``deny``      (default) nothing
``scores``    one word of four: whether the worst image was rebuilt, left traces, is no nearer than another image is, or
              could not be judged (``attacks.score.level``)
``numbers``   the scores themselves, three digits each
``pictures``  the scores, and the audited originals beside their reconstructions

The true batch is drawn again from the round's request, so that no copy of private data lies anywhere.

A reconstruction is also held against other images of the same kind (``attacks.score.gallery``). Where the dataset has
test images that are anybody's, it is these, for word and numbers. Where all images of the kind are the client's own,
they decide the word only, and the numbers are scored without a gallery: numbers about images that were not even trained
on in this round would answer questions that nobody rationed, and the word is two bits whatever it is about.

A score answers a question about private data, whoever chose the reconstruction: with numbers, every answer is a linear
equation in the pixels of a picture that was trained on alone. So answers are rationed: for a round this client trained
in, under the settings it trained with, twice at most (the second for a server that resumed); ``AUDITS`` answers and
``NUMBERS`` sets of numbers about the same raw bytes in the client's life, whatever runs, rounds and decodings are
called. When the numbers are used up the word is what is left. So at most 2 ``AUDITS`` bits leave by words. An attack on
more images than were used is refused.

Of a masked sum the server rebuilds the images of all clients together. Each scores what is most like its own, and as
other people's images are paired with all that was rebuilt, too, a match by chance counts for nothing. Labels are not
scored: they are of all clients. What a client is sent to score may be another's images, so a server sends it only where
every client in the sum consents with ``pictures``.
"""

from dataclasses import replace

import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from prunella.client import summing
from prunella.client.session import ServerRequest, Session
from prunella.core.errors import ConfigError, DataError, WireError
from prunella.core.types import PrivateBatch, Reconstruction
from prunella.tasks.data import Examples, load_public
from prunella.tasks.task import Task, are_classes
from prunella.wire.records import flatten, from_dense, to_dense

AUDITS = 200
NUMBERS = 16
ANSWERS_PER_ROUND = 2
DIGITS = 3
MAX_PICTURES = 16


def _outcome(word: str, **records: ArrayRecord | MetricRecord) -> RecordDict:
    return RecordDict({"audit": ConfigRecord({"outcome": word}), **records})


def truth(session: Session, request: ServerRequest) -> PrivateBatch:
    """The images [N, C, H, W] and labels [N] of a round, as they were before any defense."""
    used = list(session.batches(request))
    return PrivateBatch(torch.cat([b.x for b in used]).cpu(), torch.cat([b.y for b in used]).cpu())


def _reconstruction(record: ArrayRecord, task: Task, limit: int) -> Reconstruction | None:
    """The server's images and labels, or None when they are not those of this task."""
    try:
        tree = from_dense(record)
    except WireError:
        return None
    x, y = tree.get("x"), tree.get("y")
    if x is None or x.dim() != 4 or tuple(x.shape[1:]) != task.shape or not 0 < len(x) <= limit:
        return None
    if not x.is_floating_point() or not bool(torch.isfinite(x).all()):
        return None
    if y is not None and (y.shape != (len(x),) or y.dtype != torch.int64 or not are_classes(y, task.classes)):
        return None
    return Reconstruction(x.clamp(0, 1), y, 0.0, 0)


def _public(session: Session) -> Examples | None:
    """Images of this task's kind that are no client's, or None."""
    try:
        found = load_public(session.run.dataset, session.node.data)
    except (DataError, ConfigError, OSError):  # a node may have its own part of the dataset only
        return None
    return found if found is not None and tuple(found.x.shape[1:]) == session.data.task.shape else None


def answer(session: Session, content: RecordDict, round: int) -> RecordDict:
    """The content of the reply to ``query.audit``."""
    consent = session.node.consent
    if consent == "deny":
        return _outcome("no-consent")
    trained = session.store.trained(round)
    if trained is None or trained.settings != session.trained_under:
        return _outcome("refused")
    anybodys = _public(session)  # before an answer is counted: it may fail
    if not session.accounts.claim("audits", trained.request, ANSWERS_PER_ROUND, AUDITS):
        return _outcome("refused")
    private = truth(session, session.trained(trained.request))
    summed = summing.summed(session)
    most = summing.clients_in(session, round) * session.run.local_steps * session.run.batch_size
    limit = most if summed else len(private.y)
    rebuilt = _reconstruction(content.array_records["reconstruction"], session.data.task, limit)
    if rebuilt is None:
        return _outcome("refused")
    rebuilt = replace(rebuilt, y=None) if summed else rebuilt
    from prunella.attacks.score.leakage import paired, score  # most messages are no audit, and each is a new process
    from prunella.attacks.score.level import level

    leakage = score(rebuilt, private, gallery=session.data.all if anybodys is None else anybodys)
    word = ConfigRecord({"outcome": "scored", "level": level({"scores": leakage.to_dict()})})
    reply = RecordDict({"audit": word})
    pictures = consent == "pictures"
    if pictures or (consent == "numbers" and session.accounts.claim("numbers", trained.request, NUMBERS, NUMBERS)):
        told = score(rebuilt, private) if anybodys is None else leakage
        scores = {name: float(f"{value:.{DIGITS}g}") for name, value in flatten(told.to_dict()).items()}
        reply["scores"] = MetricRecord({**scores})
    if pictures:
        errors = {(t, g): float((private.x[t] - rebuilt.x[g]).square().mean()) for t, g in leakage.assignment}
        best = sorted(errors, key=lambda pair: errors[pair])[:MAX_PICTURES]
        original, reconstruction = paired(private.x, rebuilt.x, tuple(best))
        reply["pictures"] = to_dense({"original": original, "reconstruction": reconstruction})
    return reply
