"""The membership question of a run's end: can a server tell which examples this client trained on?

Only the client knows the answer, so it plays the server against itself. In every audited round it keeps what the server
saw of it, on its own disk: the weights that came and the update that left. When asked it scores its own examples by
``attacks.membership``, and tells how well the scores part those that were trained on from those that were not.

The question names nothing: neither an example, nor a model, nor a round. Members and outsiders are this client's own,
so that no difference between its data and somebody else's passes for membership:

``UPDATES``   members took part in a kept round; outsiders in none of them. The client's secret chose which, at random
``MODEL``     members are all that is trained on; outsiders the fifth that the run holds out, if it does

(Public images are no outsiders: on scikit-learn's digits they fit the model better than a client's own, an AUC of 0.47,
which would hide membership there, and with other data feign it.)

Consent and rations are those of an audit (``client.audit``): nothing under ``deny``; one word of three under
``scores``; coarse numbers, without what belongs to any example, under ``numbers`` (``NUMBERS`` times) and ``pictures``;
``AUDITS`` answers in the client's life and two for a run. A server can still choose the weights it sends in an audited
round so that they mark one example; then the answer is about that one where the server knows members enough to bring a
figure to its threshold. Like all of an audit, this is outside the ε.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from flwr.app import ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from prunella.client.audit import ANSWERS_PER_ROUND, AUDITS, NUMBERS
from prunella.client.session import Session
from prunella.client.state import SeenRound, TrainedRound
from prunella.client.summing import summed
from prunella.core.trees import apply_mask, to_device
from prunella.strategies.round.local import LocalResult, Received
from prunella.strategies.round.telling import audited

MOST = 1024  # members, and outsiders, that are scored: one of so many outsiders is an FPR below 0.1 %


@dataclass(frozen=True)
class _Game:
    """Truth values [N] over all examples: who counts as a member and as an outsider, and what is scored."""

    members: Tensor
    outsiders: Tensor
    scores: frozenset[str]


def keep(session: Session, round: int, received: Received, result: LocalResult) -> None:
    """Keep what the server sees of an audited round, where this client may be asked about it. Of masked sums nothing:
    the server sees no update of this client, and an answer would be about one."""
    asked = session.node.consent != "deny" and session.run.membership and not summed(session)
    if not asked or not audited(session.run, session.scheme.client, session.scheme_settings, round):
        return
    update = apply_mask(result.outgoing.update, result.outgoing.shared)
    params, buffers = to_device(received.params, "cpu"), to_device(received.buffers, "cpu")
    session.store.save_seen(round, SeenRound(params, buffers, update))


def _kept(session: Session) -> Iterator[tuple[SeenRound, TrainedRound]]:
    """The rounds that were kept and trained under the settings of this run."""
    for round, seen in session.store.seen():
        trained = session.store.trained(round)
        if trained is not None and trained.settings == session.trained_under:
            yield seen, trained


def _games(session: Session, rounds: list[TrainedRound]) -> list[_Game]:
    from prunella.attacks.membership import MODEL, UPDATES

    trained = session.data.trained
    used = torch.zeros(len(trained), dtype=torch.bool)
    for each in rounds:
        used[trained.nonzero()[session.used(session.trained(each.request)), 0]] = True
    return [_Game(used, ~used, UPDATES), _Game(trained, ~trained, MODEL)]


def _some(chosen: Tensor, order: Tensor) -> Tensor:
    """The positions of ``MOST`` of the ``chosen`` at most, the first in ``order``."""
    return order[chosen[order]][:MOST]


def answer(session: Session) -> RecordDict:
    """The content of the reply to ``query.membership``."""
    if session.node.consent == "deny":
        return RecordDict({"audit": ConfigRecord({"outcome": "no-consent"})})
    kept = list(_kept(session)) if session.run.membership else []
    question = session.trained(kept[-1][1].request) if kept else None
    if question is None or not session.accounts.claim("membership", question.digest, ANSWERS_PER_ROUND, AUDITS):
        return RecordDict({"audit": ConfigRecord({"outcome": "refused"})})
    from prunella.attacks.membership import Seen, candidate_scores  # few messages ask, and each is a new process
    from prunella.attacks.score.membership import LEAST, Separation, compare, found, told

    order = question.generator("membership").permutation(len(session.data.all))
    rounds = [Seen(*(to_device(tree, session.device) for tree in (s.params, s.buffers, s.update))) for s, _ in kept]
    module, task, examples = session.procedure.module, session.data.task, session.data.all
    separations: dict[str, Separation] = {}
    for game in _games(session, [trained for _, trained in kept]):
        sides = [_some(side, order) for side in (game.members, game.outsiders)]
        if min(map(len, sides)) < LEAST:
            continue
        asked = examples.take(torch.cat(sides))
        scores = candidate_scores(module, task.classes, rounds, asked.x, asked.y)
        for name in sorted(game.scores & scores.keys()):
            separations[name] = compare(scores[name][: len(sides[0])], scores[name][len(sides[0]) :])
    word = "unresolved"
    if separations:
        word = "found" if found(separations.values(), session.run.audit_clients) else "not-found"
    reply = RecordDict({"audit": ConfigRecord({"outcome": "scored", "word": word})})
    consent = session.node.consent
    if consent == "pictures" or (
        consent == "numbers" and session.accounts.claim("membership-numbers", question.digest, NUMBERS, NUMBERS)
    ):
        numbers = {f"{name}.{key}": value for name, each in separations.items() for key, value in told(each).items()}
        reply["membership"] = MetricRecord({**numbers})
    return reply
