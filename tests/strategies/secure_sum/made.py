"""A party of clients that follow the protocol, for the tests of every part of it."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from prunella.strategies.secure_sum import participant
from prunella.strategies.secure_sum.fixed_point import FixedPoint, Integers, Words, encode, pack
from prunella.strategies.secure_sum.participant import COMMITMENT, Secrets
from prunella.strategies.secure_sum.party import Party
from prunella.strategies.secure_sum.summation import Summation

ABOUT, MODEL = "run|1", "model"


@dataclass
class Honest:
    """``count`` clients, numbered 3, 4, …, with keys and letters. ``missing`` advertised keys and sent no letters."""

    count: int
    missing: frozenset[int] = frozenset()
    words: int = 50
    own: dict[int, Secrets] = field(default_factory=dict)
    named: dict[int, bytes] | None = None  # what names a client's words, where it is not its number

    def __post_init__(self) -> None:
        made = {c: participant.fresh(ABOUT, c, None) for c in range(3, 3 + self.count)}
        self.own = {c: secrets for c, (secrets, _) in made.items()}
        self.party = Party(ABOUT, tuple(advert for _, advert in made.values()))
        self.peers = frozenset(made) - self.missing
        self.form = FixedPoint(16.0, 65536, self.count)
        sent = {c: participant.share(self.own[c], self.party, c) for c in self.peers}
        self.letters = {c: {sender: sent[sender][c] for sender in sent} for c in self.peers}
        draw = np.random.default_rng(self.count)
        self.inputs = {c: encode(draw.normal(size=self.words), c, self.form) for c in self.peers}

    def masked(self, client: int) -> Words:
        return participant.masked(self.own[client], self.party, client, self.peers, self.inputs[client], self.form)

    def votes(self, survivors: frozenset[int], model: str = MODEL) -> dict[int, bytes]:
        attested = self.attested(survivors, model)
        return {c: participant.vote(self.own[c], self.party, c, self.peers, attested, model) for c in survivors}

    def attested(self, clients: Iterable[int], model: str = MODEL) -> dict[int, bytes]:
        named = {c: (self.named or {}).get(c, bytes([c]) * COMMITMENT) for c in clients}
        return {c: participant.attest(self.own[c], self.party, model, named[c]) for c in named if c in self.own}

    def reveal(self, client: int, survivors: frozenset[int], votes: dict[int, bytes]) -> dict[int, bytes]:
        own, letters = self.own[client], self.letters[client]
        named = participant.committed(self.attested(survivors))
        return participant.reveal(own, self.party, client, letters, named, MODEL, votes)

    def summation(self, survivors: frozenset[int]) -> Summation:
        found = Summation(self.party, self.peers, self.words, self.form)
        for client in sorted(survivors):
            found.add(client, pack(self.masked(client), self.form))
        return found

    def total(self, survivors: frozenset[int], revealing: frozenset[int]) -> Integers:
        votes = self.votes(survivors)
        return self.summation(survivors).result({c: self.reveal(c, survivors, votes) for c in revealing})
