"""The client's half of a masked sum, as pure functions: Bonawitz et al. (CCS 2017), Figure 4, consistency included.

1. ``fresh``: new keys, advertised through the server.
2. ``share``: to every client a letter that only it can open, with a share of this client's secret for its own mask and
   one of its key for masks with others.
3. ``masked``: words + own mask ± a mask for every client whose letters arrived. Each is uniform, and their sum is too
   while one of them is unknown to the server. ``attest``: a signature on the model that was trained, beside them, and
   on a commitment to the words: a sum of the same clients in which one put something else is another sum.
4. ``vote``: a signature on who survived, with which commitments, if each of the survivors signed the same model. (A
   threshold would not do: of four clients, three that were sent zeros agree with each other, and the sum is the fourth
   one's update.)
5. ``reveal``: after a threshold of such votes, for every client *either* the share of its own mask, where its words
   arrived, *or* the share of its key, where they did not. Never both.

The functions keep no state: ``client.summing`` sees to it that each is called once for a party, in this order.

Errors: ``WireError`` where the server or another client sent what the protocol has no place for.
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from prunella.core.errors import DefenseError, WireError
from prunella.strategies.secure_sum.fixed_point import FixedPoint, Words, reduced
from prunella.strategies.secure_sum.party import Advert, Party
from prunella.strategies.secure_sum.primitives import (
    KEY,
    SHARE,
    added,
    agree,
    mark,
    mask_words,
    public_of,
    seal,
    sign,
    signed_by,
    split,
    stretched,
    unseal,
    voice_of,
)

COMMITMENT = 32  # bytes, before the signature
Signer = Callable[[bytes], bytes]
Letters = Mapping[int, bytes]  # by client: what it sealed for this one


@dataclass(frozen=True)
class Secrets:
    """A client's private half of an ``Advert``; ``own`` is the secret of its own mask."""

    letters: bytes
    masks: bytes
    voice: bytes
    own: bytes


def fresh(about: str, client: int, signer: Signer | None) -> tuple[Secrets, Advert]:
    """New keys for one sum, never used again. ``signer`` signs with the key that the client's owner registered."""
    own = Secrets(*(secrets.token_bytes(KEY) for _ in range(4)))
    advert = Advert(client, public_of(own.letters), public_of(own.masks), voice_of(own.voice), mark(own.own))
    return own, advert if signer is None else replace(advert, signature=signer(advert.signed(about)))


def require_own(party: Party, own: Secrets, client: int) -> None:
    """Refuse a party that does not hold this client with the keys it has just advertised."""
    advert = party.of(client)
    keys = (advert.letters, advert.masks, advert.voice, advert.mark)
    if keys != (public_of(own.letters), public_of(own.masks), voice_of(own.voice), mark(own.own)):
        raise WireError("stale", "the sum has other keys of this client than it has just advertised")


def share(own: Secrets, party: Party, client: int) -> dict[int, bytes]:
    """By client, this one included, the sealed letter with its share of both secrets."""
    require_own(party, own, client)
    count = len(party.clients)
    both = zip(split(own.own, party.threshold, count), split(own.masks, party.threshold, count), strict=True)
    return {to: _seal(own, party, client, to, b"".join(pair)) for to, pair in zip(party.clients, both, strict=True)}


def _seal(own: Secrets, party: Party, client: int, to: int, letter: bytes) -> bytes:
    about = party.context("letter", client, to)
    return seal(agree(own.letters, party.of(to).letters, about), letter, about)


def _open(own: Secrets, party: Party, client: int, sender: int, sealed: bytes) -> tuple[bytes, bytes]:
    """The shares of ``sender``: of its own mask's secret, and of its key."""
    about = party.context("letter", sender, client)
    try:
        letter = unseal(agree(own.letters, party.of(sender).letters, about), sealed, about)
    except WireError:
        letter = b""
    if len(letter) != 2 * SHARE:
        raise WireError("malformed", f"the letter of client {sender} to client {client} is none")
    return letter[:SHARE], letter[SHARE:]


def require_letters(own: Secrets, party: Party, client: int, letters: Letters) -> None:
    """Refuse to go on unless a threshold of clients, this one among them, has sent letters that open."""
    if client not in letters or len(letters) < party.threshold:
        raise WireError("malformed", f"letters of {len(letters)} clients came, and {party.threshold} must be there")
    for sender, sealed in letters.items():
        _open(own, party, client, sender, sealed)


def masked(own: Secrets, party: Party, client: int, peers: frozenset[int], words: Words, form: FixedPoint) -> Words:
    """``words`` under this client's own mask and one for each of ``peers``, whose letters came. Uniform to whoever
    lacks one of them."""
    total = words.copy()
    added(total, own_mask(own.own, party, client, len(words), form), +1)
    for peer in sorted(peers - {client}):
        added(total, pair_mask(own.masks, party, client, peer, len(words), form), sign_of(client, peer))
    return reduced(total, form)


def sign_of(client: int, peer: int) -> int:
    """One of a pair adds their mask, the other subtracts it."""
    return 1 if client < peer else -1


def own_mask(secret: bytes, party: Party, client: int, count: int, form: FixedPoint) -> Words:
    """The mask that only this client knows."""
    return mask_words(stretched(secret, party.context("own", client, client)), count, form)


def pair_mask(private: bytes, party: Party, client: int, peer: int, count: int, form: FixedPoint) -> Words:
    """The mask that ``client``, whose key is ``private``, shares with ``peer``; the same for both."""
    context = party.context("pair", min(client, peer), max(client, peer))
    return mask_words(agree(private, party.of(peer).masks, context), count, form)


def attest(own: Secrets, party: Party, model: str, commitment: bytes) -> bytes:
    """A ``commitment`` to the words under the masks, and a signature on it and on the model that was trained. Neither
    is in Bonawitz et al."""
    return commitment + sign(own.voice, party.trained(model, commitment))


def attested_by(party: Party, client: int, statement: bytes, model: str) -> bool:
    """Whether a client says that it trained this model."""
    commitment, signature = statement[:COMMITMENT], statement[COMMITMENT:]
    return signed_by(party.of(client).voice, signature, party.trained(model, commitment))


def committed(attested: Mapping[int, bytes]) -> dict[int, bytes]:
    """By client, the commitment in its statement."""
    return {client: statement[:COMMITMENT] for client, statement in attested.items()}


def vote(
    own: Secrets, party: Party, client: int, peers: frozenset[int], attested: Mapping[int, bytes], model: str
) -> bytes:
    """A signature on the survivors, who are those in ``attested``, what names their words, and the model. Raises
    ``DefenseError`` where too few are left for a sum, and where one of them trained another model than this client."""
    survivors = frozenset(attested)
    if client not in survivors or not survivors <= peers:
        raise WireError("malformed", "survivors that sent no letters, or not this client")
    if len(survivors) < party.threshold:
        raise DefenseError(f"{len(survivors)} clients are left in the sum, and {party.threshold} must be")
    if not all(attested_by(party, who, statement, model) for who, statement in attested.items()):
        raise DefenseError("not every client of this sum trained the same model: it is not opened")
    return sign(own.voice, party.ballot(committed(attested), model))


def reveal(
    own: Secrets,
    party: Party,
    client: int,
    letters: Letters,
    survivors: Mapping[int, bytes],
    model: str,
    votes: Mapping[int, bytes],
) -> dict[int, bytes]:
    """By client, one share: of its own mask's secret where it survived, else of its key. ``survivors`` are those that
    this client voted for, each with its commitment.

    Raises ``DefenseError`` unless a threshold of the survivors signed this ballot."""
    ballot = party.ballot(survivors, model)
    valid = [who for who, vote in votes.items() if who in survivors and signed_by(party.of(who).voice, vote, ballot)]
    if len(valid) < party.threshold:
        raise DefenseError(
            f"{len(valid)} clients saw the same survivors, words and model as this one, and {party.threshold} must: "
            "nothing is revealed"
        )
    opened = {sender: _open(own, party, client, sender, sealed) for sender, sealed in letters.items()}
    return {sender: shares[0] if sender in survivors else shares[1] for sender, shares in opened.items()}
