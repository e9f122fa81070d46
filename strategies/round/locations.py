"""The server's half of ADGP: whose location set is in force, and who may be sent only what changed inside it.

Every round one of the clients that were asked is chosen by seed and round to name its top-2k beside its reply; the set
is checked (``privacy.adgp.check_locations``, against every set of the run so far that is still remembered) and is in
force in the next round. Where there is no valid one (the first round, a lost reply, a refused set, a mask that moved
meanwhile) the server draws one at random, which depends on no client's data. A client that answered the round before
holds the weights of that round, and all that has changed since is inside that round's set: it is sent those values
alone, and a digest of the whole, so that a mistake stops it.
"""

from dataclasses import dataclass, field
from logging import WARNING

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.common.logger import log

from prunella.core.errors import PrunellaError
from prunella.core.randomness import rehearsal, stream
from prunella.core.trees import Mask, Tree, apply_mask, intersect, map_trees
from prunella.core.untrusted import clean
from prunella.privacy.adgp import AlignedPruning, check_locations, drawn_set
from prunella.privacy.ledger.ledger import digest
from prunella.strategies.round.personal import to_bytes, to_tensor
from prunella.strategies.round.replies import Expected
from prunella.strategies.round.roster import Member
from prunella.wire.encode import decode_mask, encode_mask
from prunella.wire.records import mask_to_coded, to_coded, unpack

PREFIX = "adgp/"
PROPOSAL = f"{PREFIX}proposal"
REMEMBERED = 20  # rounds back in which a set must not have been in force
ASKED, RECORD, CHANGE, DIGEST = "locations", "locations", "change", "model-digest"


@dataclass
class LocationSets:
    """State of one run. ``ready`` are the nodes that answered the last round; all they lack is inside ``places``."""

    settings: AlignedPruning
    seed: int
    current: Mask | None = None
    proposal: Mask | None = None
    asked: int | None = None
    held: Tree | None = None
    places: Mask | None = None
    ready: set[int] = field(default_factory=set)
    holders: set[int] = field(default_factory=set)
    past: list[Mask] = field(default_factory=list)
    refused: int = 0

    def begin(self, round: int, mask: Mask, params: Tree, chosen: list[Member]) -> None:
        """Put the set of ``round`` in force, and choose who names the next."""
        self.places, self.ready, self.holders = self._changed(mask, params), self.holders, set()
        proposal = self.proposal if self.proposal is not None and self._fits(self.proposal, mask) else None
        if proposal is None:
            proposal = drawn_set(mask, self.settings, rehearsal(self.seed, round=round, purpose="locations"))
        self.current, self.proposal, self.held = proposal, None, params
        self.past = [*self.past, proposal][-REMEMBERED:]
        pick = torch.randint(len(chosen), (), generator=stream(self.seed, round=round, purpose="locations-of"))
        self.asked = chosen[int(pick)].node

    def records(self, node: int, expected: Expected, knows: bool) -> tuple[dict[str, ArrayRecord], ConfigRecord]:
        """What a node is sent for a round's model, and what its settings gain; ``knows``: it holds the mask."""
        assert self.current is not None
        arrays = {RECORD: mask_to_coded(self.current, expected.mask)}
        told: dict[str, bool | str] = {ASKED: True} if node == self.asked else {}
        places = self.lacks(node, knows)
        if places is not None:
            arrays[CHANGE] = to_coded(apply_mask(expected.params, places), places, places)
            return arrays, ConfigRecord({**told, DIGEST: digest_of(expected.params)})
        arrays["model"] = to_coded(expected.params, expected.mask, expected.mask if knows else None)
        return arrays, ConfigRecord({**told})

    def lacks(self, node: int, knows: bool) -> Mask | None:
        """The places of all that a node lacks of the model, or None where it has to be sent it whole; ``knows``: it
        holds the mask."""
        return self.places if knows and node in self.ready else None

    def _changed(self, mask: Mask, params: Tree) -> Mask | None:
        if self.current is None or self.held is None:
            return None
        outside = map_trees(lambda new, old, inside: (new != old) & ~inside, params, self.held, self.current)
        inside = all(not bool(t.any()) for t in outside.values())
        return intersect(self.current, mask) if inside else None

    def _fits(self, locations: Mask, mask: Mask) -> bool:
        try:
            for before in self.past or [None]:  # type: ignore[list-item]
                check_locations(locations, mask, self.settings, before)
        except PrunellaError as error:
            self.refused += 1
            log(WARNING, "location set left out: %s", clean(str(error)))
            return False
        return True

    def note(self, coded: object, node: int, mask: Mask) -> bool:
        """Take the set, coded, that came beside the reply of the client that was asked; False when it is refused."""
        self.holders.add(node)
        if node != self.asked:
            return True
        try:
            found = decode_mask(coded, mask, mask) if isinstance(coded, bytes) else None
        except PrunellaError as error:
            log(WARNING, "location set left out: %s", clean(str(error)))
            found = None
        self.proposal = found if found is not None and self._fits(found, mask) else None
        return self.proposal is not None

    def tree(self) -> Tree:
        """The sets of the past, and the one for the next round, for a checkpoint; after a resume everybody is sent the
        weights whole."""
        named = {f"{PREFIX}{number}": mask for number, mask in enumerate(self.past)}
        if self.proposal is not None:
            named[PROPOSAL] = self.proposal
        return {name: to_tensor(encode_mask(mask)) for name, mask in named.items()}

    def load(self, saved: Tree, like: Mask) -> None:
        """The inverse of ``tree``."""
        found = {name: decode_mask(to_bytes(t), like) for name, t in saved.items() if name.startswith(PREFIX)}
        self.proposal = found.pop(PROPOSAL, None)
        self.past = [found[f"{PREFIX}{number}"] for number in range(len(found))]


def digest_of(params: Tree) -> str:
    return digest([params], "model")


def coded_set(reply: Message) -> bytes | None:
    """The set beside a reply of our own client, coded."""
    record = reply.content.array_records.get(RECORD)
    try:
        return unpack(record) if isinstance(record, ArrayRecord) else None
    except PrunellaError as error:
        log(WARNING, "location set left out: %s", clean(str(error)))
        return None
