"""Who takes part in one masked sum: the clients' public keys of this round, and the threshold.

The threshold is a rule and no setting: t = ⌊2n/3⌋ + 1. Every honest client reveals for each other one *either* a share
of its own mask *or* a share of its key. A server that tells some that a client is there and others that it left needs
t shares of both kinds; with c colluding clients it gets at most (n - c) + 2c of them, and 2t > n + c for every
c < n/3 + 2/3. A smaller t would give in to it (Bonawitz et al., CCS 2017, Section 6.2).

>>> [threshold(n) for n in (2, 3, 4, 5, 8, 10)]
[2, 3, 3, 4, 6, 7]
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from prunella.core.errors import WireError
from prunella.strategies.secure_sum.primitives import KEY, require_key

FEWEST, MOST = 2, 200  # every pair of clients agrees on a mask: the work of a client grows with their number
MAX_SIGNATURE = 200  # bytes; of an EC P-384 key at most 104


def threshold(count: int) -> int:
    """How many of ``count`` clients must stay to the end."""
    return 2 * count // 3 + 1


@dataclass(frozen=True)
class Advert:
    """A client's keys of one round: for letters, for masks, for its vote; ``mark`` is of its own mask's secret.

    Raises ``WireError`` for keys that are none: whoever went on with them would fail for them, and not their owner.

    ``signature`` is by the key that its owner registered, over ``signed``; empty where it has none.
    """

    client: int
    letters: bytes
    masks: bytes
    voice: bytes
    mark: bytes
    signature: bytes = b""

    def __post_init__(self) -> None:
        if any(len(key) != KEY for key in (*self.public, self.mark)) or len(self.signature) > MAX_SIGNATURE:
            raise WireError("malformed", "a client's keys are not keys")
        if len(set(self.public)) < len(self.public):
            raise WireError("malformed", "a client's keys for different purposes are one")
        for key in (self.letters, self.masks):
            require_key(key)

    @property
    def public(self) -> tuple[bytes, ...]:
        """The keys that no two clients of a sum share."""
        return self.letters, self.masks, self.voice

    def signed(self, about: str) -> bytes:
        """What the owner's key signs: the keys, whose they are, and the run and round that they are for."""
        parts = [about, self.client, self.letters.hex(), self.masks.hex(), self.voice.hex(), self.mark.hex()]
        return b"prunella secure sum v1|advert|" + json.dumps(parts).encode()


@dataclass(frozen=True)
class Party:
    """The clients of one masked sum, ordered by number. ``about`` names the run and the round."""

    about: str
    adverts: tuple[Advert, ...]

    def __post_init__(self) -> None:
        clients = [advert.client for advert in self.adverts]
        if not FEWEST <= len(clients) <= MOST:
            raise WireError("malformed", f"a masked sum has {FEWEST} to {MOST} clients, not {len(clients)}")
        keys = {key for advert in self.adverts for key in advert.public}
        if clients != sorted(set(clients)) or len(keys) != 3 * len(clients):
            raise WireError("malformed", "two clients of a masked sum have one number or one key")

    @cached_property
    def digest(self) -> bytes:
        """Names this sum and no other: its clients, their fresh keys, the run and the round."""
        parts = [advert.signed(self.about).hex() for advert in self.adverts]
        return hashlib.sha256(json.dumps([self.about, parts]).encode()).digest()

    @property
    def threshold(self) -> int:
        return threshold(len(self.adverts))

    @cached_property
    def clients(self) -> tuple[int, ...]:
        return tuple(advert.client for advert in self.adverts)

    def of(self, client: int) -> Advert:
        """The keys of a client. Raises ``WireError``."""
        found = next((advert for advert in self.adverts if advert.client == client), None)
        if found is None:
            raise WireError("malformed", "a client that is not in this sum")
        return found

    def number(self, client: int) -> int:
        """The number of a client's shares, from 1."""
        return self.clients.index(client) + 1

    def context(self, purpose: str, sender: int, receiver: int) -> bytes:
        """What a key or a letter is for: this sum, a purpose, and who to whom."""
        return self.digest + f"|{purpose}|{sender}|{receiver}".encode()

    def trained(self, model: str, commitment: bytes) -> bytes:
        """What a client signs beside its masked words: the model that they are an update of, and what names them."""
        return self.digest + json.dumps(["trained", model, commitment.hex()]).encode()

    def ballot(self, committed: Mapping[int, bytes], model: str) -> bytes:
        """What clients sign before a mask is removed: whose updates arrived, what names each of them, and which model
        all of them trained."""
        words = [[client, committed[client].hex()] for client in sorted(committed)]
        return self.digest + json.dumps(["survivors", words, model]).encode()
