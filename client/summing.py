"""A client's part in masked sums: which stage comes next, and what must never be answered twice.

The secrets of a sum are in one file of the state directory, readable by the owner only; it is written before the answer
that it belongs to leaves, replaced by the next sum, and removed once the shares are told. A stage is answered once and
in its order:

* Two answers of masked words under one set of masks would tell their difference, so a sum takes one, and the file says
  so before training starts.
* A round is opened for one set of survivors with the same words each, and so is an update, which the same question
  makes again whatever the run is called, and which goes to the same clients' sum or to none. A server that repeats one,
  resumed or lying, gets the sum that it has, bit for bit, or nothing: two sums that differ by a client, or in what one
  client put in, are that client's update. ``opened`` keeps what was voted.
* Who is in a sum, with which words, and which model all of it trained, is signed
  (``strategies.secure_sum.participant``).

In the place of an update leaves: masked words, what names them (it is keyed: only the same words to the same question
have the same name, so a server that repeats a question learns whether the answer changed), and which question they
answer. No example count (it is in the sum), no time of training, no buffer and no squared gradient.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from prunella.client.session import ServerRequest, Session
from prunella.core.config import parse_section
from prunella.core.errors import ConfigError, DefenseError
from prunella.core.files import write_json
from prunella.core.trees import Mask, apply_mask, map_trees, to_device, zeros_like
from prunella.privacy.ledger.ledger import digest
from prunella.strategies.round.local import LocalResult, Received
from prunella.strategies.secure_sum import participant
from prunella.strategies.secure_sum.exchange import about, model_of
from prunella.strategies.secure_sum.fixed_point import pack
from prunella.strategies.secure_sum.letters import (
    MASKED,
    RECORD,
    pack_masked,
    read_adverts,
    read_mapping,
    record_of,
    wrap,
    write_adverts,
    write_parts,
)
from prunella.strategies.secure_sum.participant import Secrets
from prunella.strategies.secure_sum.party import Advert, Party
from prunella.strategies.secure_sum.vector import NAME as SECURE_SUM
from prunella.strategies.secure_sum.vector import SecureSum, form_of, to_words
from prunella.wire.encode import fingerprint

FILE, OPENED = "sum.json", "opened"
ADVERTISED, SHARED, SENT, VOTED = "advertised", "shared", "sent", "voted"


@dataclass(frozen=True)
class Pending:
    """A sum that this client is in: the last stage it answered, and what the next ones need."""

    stage: str
    about: str
    own: Secrets
    party: Party | None = None
    letters: Mapping[int, bytes] | None = None
    model: str = ""
    request: str = ""  # the digest that names the update
    survivors: Mapping[int, bytes] = field(default_factory=dict)  # each with what names its words

    @property
    def whole(self) -> Party:
        assert self.party is not None  # of every stage but the first, which ``_after`` has checked
        return self.party


def summed(session: Session) -> bool:
    """Whether updates of this run leave under masks only."""
    return session.run.aggregation == SECURE_SUM


def _about(session: Session, round: int) -> str:
    return about(session.run, session.told, session.name, round)


# the file ------------------------------------------------------------------------------------------------------------
def _folder(session: Session) -> Path:
    """Not the run's own: a file there says that an account of the examples must exist (``client.accounts``)."""
    return session.store.home / "sums" / session.store.folder.name


def _path(session: Session) -> Path:
    return _folder(session) / FILE


def _opened(session: Session, about: str) -> Path:
    """Of a round, or of an update."""
    return session.store.home / "sums" / OPENED / f"{digest([], f'opened {about}')}.json"


def _hexed(parts: Mapping[int, bytes]) -> dict[str, str]:
    return {str(client): part.hex() for client, part in sorted(parts.items())}


def _unhexed(parts: Mapping[str, str]) -> dict[int, bytes]:
    return {int(client): bytes.fromhex(part) for client, part in parts.items()}


def clients_in(session: Session, round: int) -> int:
    """How many clients are in the sum of a round, which this one voted to open; 0 where it voted for none."""
    path = _opened(session, _about(session, round))
    return len(json.loads(path.read_text())["survivors"]) if path.exists() else 0


def _write(session: Session, pending: Pending) -> None:
    adverts = pending.party.adverts if pending.party is not None else ()
    value = {
        "stage": pending.stage,
        "about": pending.about,
        "own": {name: secret.hex() for name, secret in asdict(pending.own).items()},
        "adverts": [[a.client, *(part.hex() for part in astuple(a)[1:])] for a in adverts],
        "letters": _hexed(pending.letters or {}),
        "model": pending.model,
        "request": pending.request,
        "survivors": _hexed(pending.survivors),
    }
    write_json(_path(session), value, mode=0o600)


def _after(session: Session, stage: str, round: int) -> Pending:
    """The sum of this round, after ``stage`` was answered. Raises ``DefenseError`` for any other order."""
    known, value = _path(session), None
    if known.exists():
        value = json.loads(known.read_text())
    if value is not None and not isinstance(value["survivors"], dict):  # of an older release
        value = None
    if value is None or value["stage"] != stage or value["about"] != _about(session, round):
        raise DefenseError("this is not the next stage of the masked sum that this client is in: it is not answered")
    adverts = tuple(Advert(client, *map(bytes.fromhex, parts)) for client, *parts in value["adverts"])
    return Pending(
        stage=stage,
        about=value["about"],
        own=Secrets(**{name: bytes.fromhex(secret) for name, secret in value["own"].items()}),
        party=Party(value["about"], adverts) if adverts else None,
        letters=_unhexed(value["letters"]),
        model=value["model"],
        request=value["request"],
        survivors=_unhexed(value["survivors"]),
    )


def _require_as_before(session: Session, now: Mapping[str, Any], *names: str) -> None:
    """Refuse where one of these names stands for something else than ``now`` already; note it for ever."""
    paths = [_opened(session, name) for name in names]
    if any(path.exists() and json.loads(path.read_text()) != now for path in paths):
        raise DefenseError(
            "this update was in a sum before, of other clients, of another model, or into which a client put "
            "something else: two sums that differ by a client are its update, so this client opens no second one"
        )
    for path in paths:
        write_json(path, dict(now), mode=0o600)


# the stages ----------------------------------------------------------------------------------------------------------
def keys(session: Session, round: int) -> RecordDict:
    """Fresh keys; what was left of an earlier sum is forgotten."""
    _require_summed(session)
    own, advert = participant.fresh(_about(session, round), session.node.client, session.node.trust.signer)
    _write(session, Pending(ADVERTISED, _about(session, round), own))
    return wrap(write_adverts((advert,)))


def letters(session: Session, content: RecordDict, round: int) -> RecordDict:
    """A sealed letter to every client of the sum, if its owner lets this one be summed with them."""
    _require_summed(session)
    pending = _after(session, ADVERTISED, round)
    party = Party(pending.about, read_adverts(record_of(content)))
    form_of(settings_of(session), len(party.clients))  # which raises where their sum does not fit its words
    session.node.trust.require(party)
    sealed = participant.share(pending.own, party, session.node.client)
    _write(session, replace(pending, stage=SHARED, party=party))
    return wrap(write_parts(sealed))


def begin(session: Session, content: RecordDict, round: int, received: Received, request: str) -> Pending:
    """Before training: the letters open, and this sum takes no other update from now on, nor this update another."""
    pending = _after(session, SHARED, round)
    came = read_mapping(record_of(content))
    participant.require_letters(pending.own, pending.whole, session.node.client, came)
    _require_as_before(session, {"clients": list(pending.whole.clients)}, f"the clients of {request}")
    model = model_of(received.params, received.mask, received.buffers)
    now = replace(pending, stage=SENT, letters=came, model=model, request=request)
    _write(session, now)
    return now


def masked_reply(
    session: Session,
    request: ServerRequest,
    round: int,
    pending: Pending,
    received: Received,
    result: LocalResult | None,
    mask: Mask,
) -> RecordDict:
    """All that leaves in the place of an update. Without a result it is an update that changes nothing."""
    form = form_of(settings_of(session), len(pending.whole.clients))
    before = to_device(received.buffers, "cpu")
    update, buffers = zeros_like(to_device(received.params, "cpu")), before
    if result is not None:
        update, buffers = apply_mask(result.outgoing.update, result.outgoing.shared), result.buffers
    change = map_trees(lambda new, old: new.double() - old.double(), buffers, before)
    words = to_words(update, mask, change, len(session.data.examples.y), form)
    client, peers = session.node.client, frozenset(pending.letters or {})
    hidden = participant.masked(pending.own, pending.whole, client, peers, words, form)
    applied = list(session.procedure.chain.names)
    told = ConfigRecord({"round": round, "mask": fingerprint(mask), "applied": applied})
    named = request.commitment(words.tobytes())
    signed = ConfigRecord({"model": participant.attest(pending.own, pending.whole, pending.model, named)})
    return RecordDict({MASKED: pack_masked(pack(hidden, form)), "provenance": told, RECORD: signed})


def settings_of(session: Session) -> SecureSum:
    """The run's."""
    return parse_section(session.raw, SECURE_SUM, SecureSum)


def vote(session: Session, content: RecordDict, round: int) -> RecordDict:
    """A signature on who survived, what names their words, and which model all of them trained."""
    pending = _after(session, SENT, round)
    attested = read_mapping(record_of(content))
    session.node.trust.require_left(frozenset(attested))
    client, peers = session.node.client, frozenset(pending.letters or {})
    signature = participant.vote(pending.own, pending.whole, client, peers, attested, pending.model)
    survivors = participant.committed(attested)
    now = {"survivors": _hexed(survivors), "model": pending.model}
    _require_as_before(session, now, pending.about, pending.request)
    _write(session, replace(pending, stage=VOTED, survivors=survivors))
    return wrap(ConfigRecord({"vote": signature}))


def reveal(session: Session, content: RecordDict, round: int) -> RecordDict:
    """One share about every client, once a threshold has signed what this one has; then the secrets are gone."""
    pending = _after(session, VOTED, round)
    votes = read_mapping(record_of(content))
    _path(session).unlink()
    shares = participant.reveal(
        pending.own, pending.whole, session.node.client, pending.letters or {}, pending.survivors, pending.model, votes
    )
    return wrap(write_parts(shares))


def _require_summed(session: Session) -> None:
    if not summed(session):
        raise ConfigError(f"this run sends updates one by one: set aggregation={SECURE_SUM} for masked sums")
