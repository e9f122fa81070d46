"""What the server sends in a round, and what it may therefore expect back.

Every client is sent the model under everybody's mask, or under its own where ``personal`` has one; one that said that
it trains a sub-model gets what everybody's mask keeps of that. The bits of a mask
travel only to clients that do not hold it: a client holds the mask of its last valid reply. Under ADGP, ``locations``
decides which values of the model travel, and where values may arrive.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from flwr.app import ArrayRecord, ConfigRecord, Message, Metadata, RecordDict

from prunella.core.config import Run
from prunella.core.errors import PrunellaError
from prunella.core.trees import Mask, Tree, apply_mask, full_mask, intersect
from prunella.pruning.selection import density
from prunella.strategies.round.locations import LocationSets
from prunella.strategies.round.personal import PersonalMasks
from prunella.strategies.round.replies import Expected
from prunella.strategies.round.roster import Member
from prunella.strategies.round.stats import RoundStats
from prunella.wire.encode import decode_mask, encode_mask
from prunella.wire.records import record_bytes, to_coded, to_dense


class Downlink:
    """The messages of a run, one round at a time. ``allowed`` is the scheme's: how far a client may move a mask.
    ``sub_mask`` is what a client of a width holds of the model."""

    def __init__(
        self,
        run: Run,
        prunable: frozenset[str],
        allowed: Callable[[int, Mask], Mask | None],
        sub_mask: Callable[[float], Mask] | None = None,
    ) -> None:
        self.personal = PersonalMasks()
        self.locations: LocationSets | None = None
        self.asked: dict[int, Member] = {}
        self._run, self._prunable, self._allowed = run, prunable, allowed
        self._sub_mask = sub_mask if sub_mask is None else lru_cache(maxsize=8)(sub_mask)
        self._whole: Expected | None = None  # under everybody's mask
        self._own: dict[int, bytes | None] = {}  # the mask sent to a node, where it is the client's own
        self._held: dict[int, bytes] = {}  # the fingerprint of the mask a node holds
        self._sent: list[Metadata] = []

    def begin(self, server_round: int, params: Tree, mask: Mask, buffers: Tree) -> None:
        """Prepare a round with these weights under everybody's mask."""
        self._whole = self._expect(server_round, params, mask, buffers)

    def _expect(self, server_round: int, params: Tree, mask: Mask, buffers: Tree) -> Expected:
        required = {name: kept for name, kept in full_mask(mask).items() if name not in self._prunable}
        allowed, names = self._allowed(server_round, mask), self._run.defense_names
        return Expected(server_round, apply_mask(params, mask), mask, buffers, allowed, required, names)

    def train(self, chosen: list[Member], config: ConfigRecord, stats: RoundStats) -> list[Message]:
        """The messages that ask the chosen clients to train."""
        whole = self.expected()
        self.asked = {member.node: member for member in chosen}
        if self.locations is not None:
            self.locations.begin(whole.round, whole.mask, whole.params, chosen)
            self._whole = replace(whole, locations=self.locations.current)
        messages = self._messages(chosen, config, "train", stats)
        self._sent = [message.metadata for message in messages]
        return messages

    def evaluate(self, members: list[Member], config: ConfigRecord, stats: RoundStats) -> list[Message]:
        """The messages that ask clients to measure the model."""
        return self._messages(members, config, "evaluate", stats)

    def address(self, members: list[Member]) -> dict[int, bytes | None]:
        """From now on ``expected`` is of messages to these: by node its own mask, coded, where it has one."""
        self._own = {member.node: self.personal.coded(member.client) or self._narrow(member) for member in members}
        return self._own

    def require_narrow(self, width: float) -> None:
        """Raises ``PrunellaError`` where the server cannot tell what a client of this width holds of the model."""
        if self._sub_mask is not None:
            self._sub_mask(width)

    def _narrow(self, member: Member) -> bytes | None:
        """What a client of a width gets of everybody's mask, coded."""
        if member.width >= 1 or self._sub_mask is None:
            return None
        return encode_mask(intersect(self.expected().mask, self._sub_mask(member.width)))

    def _messages(self, members: list[Member], config: ConfigRecord, kind: str, stats: RoundStats) -> list[Message]:
        whole = self.expected()
        self.address(members)
        extra = {"buffers": to_dense(whole.buffers)} if whole.buffers else {}
        coded: dict[tuple[bytes, bool], ArrayRecord] = {}  # the same bytes for all who are sent the same
        messages = []
        for member in members:
            expected = self.expected(member.node)
            knows = self._held.get(member.node) == expected.mark
            if self.locations is not None and kind == "train":
                model, more = self.locations.records(member.node, expected, knows)
                told = ConfigRecord({**config, **more})
            else:
                if (expected.mark, knows) not in coded:
                    reference = expected.mask if knows else None
                    coded[expected.mark, knows] = to_coded(expected.params, expected.mask, reference)
                model, told = {"model": coded[expected.mark, knows]}, config
            arrays = {**model, **extra}
            stats.down += sum(record_bytes(record) for record in arrays.values())
            stats.sent += 1
            messages.append(Message(RecordDict({**arrays, "config": told}), dst_node_id=member.node, message_type=kind))
        return messages

    def expected(self, node: int | None = None) -> Expected:
        """What was sent this round to a node, or under everybody's mask, and so what a reply to it must look like."""
        if self._whole is None:
            raise PrunellaError("aggregate_train was called before configure_train")
        own = self._own.get(node) if node is not None else None
        if own is None:
            return self._whole
        whole = self._whole
        return self._expect(whole.round, whole.params, decode_mask(own, whole.params), whole.buffers)

    def node_of(self, reply: Message) -> int:
        """The node a reply is from. The SuperLink answers for a dead one; then the question tells who was asked."""
        source = reply.metadata.src_node_id
        if not reply.has_error() or source in self.asked:
            return source
        asked = {sent.message_id: sent.dst_node_id for sent in self._sent}
        return asked.get(reply.metadata.reply_to_message_id, source)

    def record_mask(self, node: int, mark: bytes | None) -> None:
        """The fingerprint of the mask that a node now holds; None where its reply was missing or wrong."""
        if mark is None:
            self._held.pop(node, None)
        else:
            self._held[node] = mark

    def density(self, mask: Mask) -> float:
        """Share of the prunable weights kept: by everybody's ``mask``, or the mean of the clients' own."""
        own = self.personal.densities(mask, self._prunable)
        return sum(own.values()) / len(own) if own else density(mask, self._prunable)

    def tree(self) -> Tree:
        """What a resumed run must find again, as tensors by name."""
        return self.personal.tree() | (self.locations.tree() if self.locations is not None else {})

    def load(self, saved: Tree, mask: Mask | None) -> None:
        """The inverse of ``tree``."""
        if self.locations is not None and mask is not None:
            self.locations.load(saved, mask)
            saved = {}
        self.personal.load(saved)
