"""The members of a run: Flower's node ids, and for each the stable client number and audit consent that it stated.

Node ids change at every start of an unauthenticated SuperNode. Order of aggregation, sampling and resume need a name
that does not, so every new node is asked once (``query.hello``). Its answer is not verified. A number that a node has
is refused to any other: for good with registered keys (``numbering``), else for as long as that node is online, since a
restarted SuperNode is a new node.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from logging import INFO, WARNING
from typing import Literal

import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from prunella.core.errors import PrunellaError
from prunella.core.randomness import stream
from prunella.core.untrusted import clean, figure, whole
from prunella.strategies.round.numbering import Numbering
from prunella.strategies.round.replies import RAISED, UNREADABLE

Consent = Literal["deny", "scores", "numbers", "pictures"]
CONSENTS: tuple[Consent, ...] = ("deny", "scores", "numbers", "pictures")
HELLO = "query.hello"
HELLO_SECONDS = 20.0  # a round waits for the answer of a node that is new
HELLO_AT_ONCE = 64  # nodes asked at a time; the next are asked as these answer
HELLO_LATE = 48  # of them, those that may have been silent for ``HELLO_SECONDS``
HELLO_LIFE = 120.0  # a first question stays open; every further one twice as long
MAX_DOUBLINGS = 5
POLL_SECONDS = 0.2
REFUSED_SECONDS = 60.0
WAITING = 15.0  # seconds between two lines of a log that say who is waited for
MIN_WIDTH = 0.01
MAX_CLIENT = 2**31 - 1  # the highest client number
APP_RAISED = 2  # Flower: the ClientApp raised an exception


@dataclass(frozen=True, order=True)
class Member:
    """One client. ``client`` comes from the node's own configuration and orders the clients of a run."""

    client: int
    node: int
    consent: Consent = "deny"
    width: float = 1.0  # of the sub-model that it trains (``pruning.widths``)


def read_hello(reply: Message, node: int) -> Member:
    """The member behind the reply of ``node`` to ``query.hello``; what is missing or invalid becomes no consent, and
    the whole width."""
    record = reply.content.config_records.get("hello", ConfigRecord())
    number, consent = whole(record.get("client"), 0, MAX_CLIENT), record.get("audit")
    width = figure(record.get("width", 1.0), MIN_WIDTH, 1.0)
    known = consent if consent in CONSENTS else "deny"
    return Member(node if number is None else number, node, known, 1.0 if width is None else width)


class Roster:
    """The members of a run, refreshed before every round.

    ``spent`` are client numbers that are asked nothing more; ``refusals`` is, by node, why it does not take part in
    this run; ``classes`` are the names that the clients' classes must have, if any; ``learning_rate`` is
    what they must train at, since two releases may recommend different ones; ``numbering`` says which node has which
    client number; ``require`` raises ``PrunellaError`` for a member that has no place in this run; ``impostors`` is, by
    node, why its answer or its client number was not accepted.

    A question stays open however late its answer comes: where many clients start on one machine, the last answers after
    minutes, and if it were asked again every time the server stopped waiting, it would always be late. Not all are
    asked at once: a machine with two hundred SuperNodes answers one a second, and Flower's simulation engine looks
    through all open messages for every client, over and over. Nodes that never answer hold the others up, but do not
    stop them: sixteen more are asked every ``HELLO_SECONDS``.
    """

    def __init__(self) -> None:
        self.members: dict[int, Member] = {}
        self.refusals: dict[int, str] = {}
        self.impostors: dict[int, str] = {}
        self.numbering = Numbering()
        self.require: Callable[[Member], None] = lambda member: None
        self.spent: frozenset[int] = frozenset()
        self.classes: tuple[str, ...] = ()
        self.learning_rate: float | None = None
        self._open: dict[str, tuple[int, float]] = {}  # question -> node, given up at
        self._asked: dict[str, float] = {}  # question -> when
        self._unanswered: dict[int, tuple[int, float]] = {}  # node -> times asked, not again before

    def refresh(self, grid: Grid, timeout: float = HELLO_SECONDS) -> list[Member]:
        """Members online now, ordered by client number. New nodes are asked who they are and given ``timeout`` seconds;
        a node that answers later is a member from the next call on."""
        online = list(grid.get_node_ids())
        end = time.monotonic() + timeout
        asked: dict[str, int] = {}
        while True:
            new = self._ask(grid, [node for node in online if node not in asked.values()])
            asked |= new
            self._collect(grid, online)
            if time.monotonic() > end or not (new or asked.keys() & self._open.keys()):
                break
            time.sleep(0.0 if new else POLL_SECONDS)
        there = (self.members[node] for node in online if node in self.members)
        return sorted(member for member in there if member.client not in self.spent)

    def _ask(self, grid: Grid, online: list[int]) -> dict[str, int]:
        """Send a question to the nodes that have none open and are not put off, so many at once; returns their nodes by
        question."""
        now = time.monotonic()
        self._asked = {id: since for id, since in self._asked.items() if id in self._open}
        late = sum(now - since > HELLO_SECONDS for since in self._asked.values())
        pending = len(self._asked) - late + min(late, HELLO_LATE)
        waiting = {node for node, _ in self._open.values()} | self.members.keys()
        fresh = [node for node in online if node not in waiting and self._unanswered.get(node, (0, now))[1] <= now]
        fresh = fresh[: max(HELLO_AT_ONCE - pending, 0)]
        lives = [HELLO_LIFE * 2.0 ** min(self._unanswered.get(node, (0, 0.0))[0], MAX_DOUBLINGS) for node in fresh]
        questions = [self._hello(node, life) for node, life in zip(fresh, lives, strict=True)]
        ids = grid.push_messages(questions) if questions else ()
        sent = {id: (node, now + life) for id, node, life in zip(ids, fresh, lives, strict=True) if id is not None}
        self._open |= sent
        self._asked |= dict.fromkeys(sent, now)
        return {id: node for id, (node, *_) in sent.items()}

    def _hello(self, node: int, life: float) -> Message:
        record = ConfigRecord({"classes": list(self.classes)} if self.classes else {})
        if self.learning_rate is not None:
            record["learning-rate"] = self.learning_rate
        return Message(RecordDict({"hello": record}), dst_node_id=node, message_type=HELLO, ttl=life)

    def _collect(self, grid: Grid, online: list[int]) -> None:
        """Take the answers that are there; a node without a valid one is asked again later."""
        if not self._open:
            return
        for reply in grid.pull_messages(list(self._open)):
            node, _ = self._open.pop(reply.metadata.reply_to_message_id, (None, 0.0))
            if node is None:
                continue
            if not reply.has_error():
                self._admit(read_hello(reply, node), online)
            elif reply.error.code == APP_RAISED:
                self._refused(node, reply.error.reason or "")
            elif reply.error.code == UNREADABLE:
                self._left_out(node, reply.error.reason or "")
            if node not in self.members:
                self._put_off(node, pause=True)
        for id in [id for id, (_, end) in self._open.items() if end <= time.monotonic()]:
            self._put_off(self._open.pop(id)[0], pause=False)

    def find(self, client: int | None) -> Member | None:
        """The member with this number, of those seen so far."""
        return next((member for member in self.members.values() if member.client == client), None)

    def _admit(self, member: Member, online: list[int]) -> None:
        """A client number belongs to the first node that states it: while it is online, or for good with keys. What a
        client says of itself must have a place in this run, whether or not its own release looked: one that does not
        would end the run when it is sent its first model."""
        try:
            self.require(member)
        except PrunellaError as error:
            self._refused(member.node, str(error))
            return
        holders = [m.node for m in self.members.values() if m.client == member.client]
        taken = f"client {member.client} is another node's" if set(holders) & set(online) else ""
        if why := taken or self.numbering.claim(member.client, member.node):
            self._left_out(member.node, why)
            return
        for node in holders:
            del self.members[node]
        self.members[member.node] = member
        for told in (self.refusals, self.impostors):
            told.pop(member.node, None)

    def _put_off(self, node: int, pause: bool) -> None:
        """Ask a node without a valid answer again later; ``pause``: it did answer, so wait longer each time."""
        times = self._unanswered.get(node, (0, 0.0))[0] + 1
        seconds = min(HELLO_SECONDS * (2 ** (times - 1) - 1), 3600.0) if pause else 0.0
        self._unanswered[node] = (times, time.monotonic() + seconds)

    def wait_for(
        self,
        grid: Grid,
        count: int,
        timeout: float,
        tell: Callable[[int, int], object] = lambda *_: None,
        least: int = 0,
    ) -> list[Member]:
        """At least ``count`` members, or ``least`` (0: ``count``) if all others refuse this run. Raises
        ``PrunellaError`` saying how many came. ``tell`` is called with every new number of members and refusals."""
        begin = changed = time.monotonic()
        seen, said_no, said_at = 0, 0, begin
        while len(members := self.refresh(grid)) < count:
            now = time.monotonic()
            no = self.refusing(grid)
            if (len(members), len(no)) != (seen, said_no):
                changed = now if len(members) != seen else changed
                seen, said_no = len(members), len(no)
                tell(seen, said_no)
            if least and len(members) >= least and len(members) + len(no) >= count:
                break
            if now > said_at + WAITING:
                said_at = now
                log(INFO, "waiting for clients: %d of %d are there, up to %.0f s more",
                    len(members), count, max(0.0, begin + timeout - now))  # fmt: skip
            said = self.refused()
            # A client that refuses this run will not change its mind, but others may be on the way.
            if now > begin + timeout or (self.refusals and now > changed + REFUSED_SECONDS):
                raise PrunellaError(
                    f"{len(members)} of {count} clients came within {now - begin:.0f} s: start more SuperNodes, "
                    "or wait for fewer (--supernodes, min-clients)" + (f". {said}" if said else "")
                )
            time.sleep(0.2)
        return members

    def refusing(self, grid: Grid) -> set[int]:
        """The nodes online that said no to this run."""
        return self.refusals.keys() & set(grid.get_node_ids())

    def refused(self) -> str:
        """Which nodes are online and not in this run, and why: those that refused it, and those whose answer cannot be
        read or whose client number is another's; "" if there are none."""
        parts = []
        for told, what in ((self.refusals, "said no to this run"), (self.impostors, "left out")):
            if told:
                parts.append(f"{len(told)} {what}: {'; '.join(sorted(set(told.values())))}")
        return ". ".join(parts)

    def _left_out(self, node: int, why: str) -> None:
        """Note why a node's answer makes it no member."""
        text = clean(why)
        if self.impostors.get(node) != text:
            log(WARNING, "node %d is left out: %s", node, text)
        self.impostors[node] = text

    def _refused(self, node: int, reason: str) -> None:
        """Note why a node does not take part."""
        words = RAISED.fullmatch(reason)
        text = clean(words[2] if words else reason)
        if self.refusals.get(node) != text:
            log(WARNING, "node %d does not take part: %s", node, text)
        self.refusals[node] = text


def selected(members: int, fraction: float, minimum: int) -> int:
    """How many of ``members`` a round asks.

    >>> selected(50, 0.1, 2), selected(3, 0.1, 2), selected(1, 1.0, 2)
    (5, 2, 1)
    """
    return min(members, max(minimum, round_half_up(fraction * members)))


def sample(members: Iterable[Member], count: int, seed: int, round: int) -> list[Member]:
    """So many of the members, drawn by seed and round, in client order."""
    ordered = sorted(members)
    picks = torch.randperm(len(ordered), generator=stream(seed, round=round, purpose="sample"))[:count]
    return [ordered[i] for i in sorted(picks.tolist())]


def round_half_up(value: float) -> int:
    """
    >>> round_half_up(2.5), round_half_up(0.4)
    (3, 0)
    """
    return int(value + 0.5)
