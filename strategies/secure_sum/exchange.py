"""The server's stages of a masked sum over Flower's ``Grid``: before the round's model is sent, and after.

A client that does not answer a stage, or answers with what is none, is left out of what follows and counted as a
failure; it may be asked again in the next round. Where fewer than the threshold are left the round does not count.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from logging import WARNING
from typing import TypeVar

import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from prunella.core.config import PLACES, Raw, Run, parse_section
from prunella.core.errors import PrunellaError, WireError
from prunella.core.randomness import stream
from prunella.core.trees import Mask, Tree
from prunella.core.untrusted import clean
from prunella.privacy.ledger.ledger import digest
from prunella.strategies.round.roster import Member
from prunella.strategies.round.stats import RoundStats
from prunella.strategies.secure_sum.letters import (
    KEYS,
    LETTERS,
    RECORD,
    REVEAL,
    VOTE,
    read_adverts,
    read_bytes,
    read_mapping,
    record_of,
    wrap,
    write_adverts,
    write_parts,
)
from prunella.strategies.secure_sum.party import FEWEST, MOST, Advert, Party
from prunella.strategies.secure_sum.primitives import SHARE
from prunella.strategies.secure_sum.summation import Revealed
from prunella.strategies.secure_sum.vector import NAME, SecureSum, most_clients

T = TypeVar("T")


def about(run: Run, raw: Raw, name: str, round: int) -> str:
    """What keys are made for: a run, its settings and a round of it. Clients that are told other settings than the
    rest, say a learning rate at which their updates are zero, are in no sum with them."""
    sections = {key: value for key, value in raw.items() if "." in key}
    settings = json.dumps([run.model_dump(exclude=PLACES), sections], sort_keys=True)
    return f"{name}|{round}|{digest([], settings)}"


def model_of(params: Tree, mask: Mask, buffers: Tree) -> str:
    """Names the model that all clients of a sum train."""
    return digest([params, mask, buffers], "the model of a masked sum")


class Exchange:
    """The masked sum of one round at a time. ``party`` is None where too few clients came for one."""

    def __init__(self, run: Run, raw: Raw) -> None:
        self.run, self.raw = run, raw
        self.settings = parse_section(raw, NAME, SecureSum)
        self.party: Party | None = None
        self.letters: dict[int, dict[int, bytes]] = {}  # by sender, by receiver
        self._round, self._members = 0, dict[int, Member]()
        self._crowded = False  # whether the log says so
        self._grid: Grid | None = None
        self._stats = RoundStats()

    @property
    def peers(self) -> frozenset[int]:
        """The clients whose letters came and are handed on."""
        return frozenset(self.letters)

    def gather(self, grid: Grid, round: int, chosen: Sequence[Member], stats: RoundStats) -> list[Member]:
        """Keys and letters of the ``chosen``, of as many as a sum takes; returns who is asked to train, nobody where
        they are too few."""
        self._grid, self._round, self._stats = grid, round, stats
        self.party, self.letters = None, {}
        self._members = {member.client: member for member in self._drawn(chosen)}
        adverts = self._apart(self._ask(KEYS, {client: ConfigRecord({}) for client in self._members}, self._advert))
        if not self._enough(len(adverts), FEWEST, "keys"):
            return []
        self.party = Party(
            about(self.run, self.raw, self.run.name(0), round), tuple(adverts[client] for client in sorted(adverts))
        )
        told = write_adverts(self.party.adverts)
        self.letters = self._ask(LETTERS, dict.fromkeys(adverts, told), self._letters)
        if not self._enough(len(self.letters), self.party.threshold, "letters"):
            self.party, self.letters = None, {}
        return [self._members[client] for client in sorted(self.letters)]

    def _drawn(self, chosen: Sequence[Member]) -> list[Member]:
        """As many of the ``chosen`` as a sum takes, by seed and round, so that no client is left out of every round."""
        most = most_clients(self.settings)
        if len(chosen) <= most:
            return list(chosen)
        if not self._crowded:
            fix = "" if most == MOST else ": for more, lower secure-sum.range or secure-sum.examples"
            log(WARNING, "a masked sum takes %d clients, and %d are chosen: every round draws %d of them anew%s",
                most, len(chosen), most, fix)  # fmt: skip
        self._crowded = True
        order = torch.randperm(len(chosen), generator=stream(self.run.seed, round=self._round, purpose="sum"))
        return [chosen[at] for at in sorted(order[:most].tolist())]

    def enclose(self, messages: Sequence[Message], clients: Mapping[int, Member]) -> None:
        """Put into every message that asks to train the letters to its client. ``clients`` are by node."""
        for message in messages:
            to = clients[message.metadata.dst_node_id].client
            letters = {sender: self.letters[sender][to] for sender in self.letters}
            message.content[RECORD] = write_parts(letters)

    def open(self, attested: Mapping[int, bytes]) -> Revealed:
        """Votes, then shares, of the survivors. ``attested`` are their statements on what they trained."""
        ballot = write_parts(attested)
        votes = self._ask(VOTE, dict.fromkeys(sorted(attested), ballot), lambda _, record: read_bytes(record, "vote"))
        told = write_parts(votes)
        return self._ask(REVEAL, dict.fromkeys(sorted(votes), told), self._shares)

    def _enough(self, found: int, least: int, what: str) -> bool:
        if found < max(least, self.run.min_clients):
            log(WARNING, "round %d: %d clients sent %s, too few for a masked sum", self._round, found, what)
            return False
        return True

    def _ask(
        self, kind: str, asked: Mapping[int, ConfigRecord], read: Callable[[int, ConfigRecord], T]
    ) -> dict[int, T]:
        """One stage: a message to each client, and by client what ``read`` made of its answer."""
        assert self._grid is not None
        node_of = {client: self._members[client].node for client in asked}
        client_of = {node: client for client, node in node_of.items()}
        messages = [
            Message(self._content(record), dst_node_id=node_of[client], message_type=kind)
            for client, record in asked.items()
        ]
        found: dict[int, T] = {}
        reasons: dict[int, str] = {}
        for reply in self._grid.send_and_receive(messages, timeout=self.settings.stage_seconds):
            client = client_of.get(reply.metadata.src_node_id)
            if client is None:
                continue
            try:
                if reply.has_error():
                    raise WireError("client-error", reply.error.reason or f"Flower error {reply.error.code}")
                found[client] = read(client, record_of(reply.content))
            except PrunellaError as error:
                reasons[client] = error.reason if isinstance(error, WireError) else "malformed"
                log(WARNING, "round %d: client %d left out of %s: %s", self._round, client, kind, clean(str(error)))
        for client in asked.keys() - found.keys():
            self._stats.fail(reasons.get(client, "timeout"))
        return found

    def _content(self, record: ConfigRecord) -> RecordDict:
        return wrap(ConfigRecord({**record, "round": self._round}))

    def _advert(self, client: int, record: ConfigRecord) -> Advert:
        adverts = read_adverts(record)
        if [advert.client for advert in adverts] != [client]:
            raise WireError("malformed", "the keys are not this client's")
        return adverts[0]

    def _apart(self, adverts: Mapping[int, Advert]) -> dict[int, Advert]:
        """Without the clients that sent a key which another one sent, too: they are in league, or one is the other's
        copy, and nobody else's round ends for it."""
        often = Counter(key for advert in adverts.values() for key in advert.public)
        found = {client: each for client, each in adverts.items() if all(often[key] == 1 for key in each.public)}
        for client in sorted(adverts.keys() - found.keys()):
            self._stats.fail("malformed")
            log(
                WARNING,
                "round %d: client %d left out of %s: another client sent a key of it",
                self._round,
                client,
                KEYS,
            )
        return found

    def _letters(self, client: int, record: ConfigRecord) -> dict[int, bytes]:
        letters = read_mapping(record)
        assert self.party is not None
        if letters.keys() != set(self.party.clients):
            raise WireError("malformed", "the letters are not one to every client")
        return letters

    def _shares(self, client: int, record: ConfigRecord) -> dict[int, bytes]:
        shares = read_mapping(record)
        if shares.keys() != self.peers or any(len(share) != SHARE for share in shares.values()):
            raise WireError("malformed", "the shares are not one about every client")
        return shares
