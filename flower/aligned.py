"""ADGP around somebody else's strategy and app: ``Prune`` holds the location sets, ``Defend`` works inside them.

    strategy = Prune(FedAvg(), "magnitude", rate=0.3, run_config=context.run_config)      # defenses = "adgp"

The sets are of the floating arrays but batch norm's statistics. What a message and an answer say of them stands in the
config record ``prunella``: ``locations``, the set of the round or the one that a client names; ``asked``, whether this
client is to name one; ``digest``, of the model where only values in the last round's set came (``Change``).

A mean of equal weights may differ from them in a last bit: what the strategy moved so little outside the set is put
back. Where something else moved outside of it (a client without ``Defend``, a server's momentum) the model is sent
whole. All checks are our own server's and client's (``strategies.round.locations``, ``privacy.adgp``).

Errors: ``ConfigError``, ``WireError``, ``DefenseError``.
"""

from collections.abc import Mapping
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from prunella.core.config import parse_section
from prunella.core.errors import ConfigError, DefenseError, WireError
from prunella.core.randomness import PrivateGenerator
from prunella.core.trees import Mask, Tree, intersect, where
from prunella.flower.answers import twins
from prunella.flower.arrays import MARK, REST, Shapes, close_record, is_buffer, open_record, whole
from prunella.flower.site import Site, asked_names, defense_settings
from prunella.privacy.adgp import NAME, AlignedPruning, drawn_set, with_locations
from prunella.privacy.chain import Chain, ChainState
from prunella.strategies import Scheme
from prunella.strategies.round.locations import LocationSets, digest_of
from prunella.strategies.round.roster import Member
from prunella.wire.encode import decode_mask, encode_mask
from prunella.wire.records import from_dense

LOCATIONS, ASKED, DIGEST = "locations", "asked", "digest"
MISSING = (
    "adgp: no set of coordinates came with the model: wrap the server's strategy as "
    "Prune(strategy, scheme, rate, run_config=context.run_config)"
)


def covered(tree: dict[str, Any]) -> dict[str, Any]:
    """Of a model's floating arrays, those that have location sets."""
    return {name: each for name, each in tree.items() if not is_buffer(name, tree)}


def require_untied(params: Tree) -> None:
    """Raise ``ConfigError`` for tied weights: each name has a set of its own, and a client moves both by one."""
    told = [name for name, t in params.items() if t.dim() > 1 and bool((t != t.flatten()[0]).any())]
    if tied := twins(told, params, params):
        later, first = next(iter(tied.items()))
        raise ConfigError(f"{NAME} takes no tied weights, and {later} is {first}: choose another defense, such as dgp")


class Aligned:
    """The server's half, for one run."""

    def __init__(self, settings: AlignedPruning, seed: int) -> None:
        self.sets = LocationSets(settings, seed)
        self._mask: Mask = {}
        self._params: Tree = {}
        self._coded = b""  # the set in force

    @classmethod
    def of(cls, run_config: Mapping[str, Any] | None, entry: Scheme, scheme: str, seed: int) -> "Aligned | None":
        """Where the run names ADGP. Raises ``ConfigError``."""
        if NAME not in asked_names(run_config or {}):
            return None
        if entry.client.plan is not None or entry.personal:
            raise ConfigError(f"{NAME} needs one mask for all clients: choose another scheme than {scheme}")
        return cls(parse_section(defense_settings(run_config or {}), NAME, AlignedPruning), seed)

    def begin(self, server_round: int, arrays: ArrayRecord, mask: Mask, nodes: list[int]) -> None:
        """Put a set in force for a round of this model. One of ``nodes`` names the next."""
        tree = from_dense(arrays)
        self._mask = covered(mask)
        self._params = {name: tree[name] for name in self._mask}
        require_untied(self._params)
        if nodes:
            self.sets.begin(server_round, self._mask, self._params, [Member(node, node) for node in sorted(nodes)])
            self._coded = encode_mask(self.sets.current or {}, self._mask)

    def told(self, node: int) -> dict[str, Any]:
        """What a node's message says of the round's set."""
        if self.sets.current is None:
            return {}
        return {LOCATIONS: self._coded, ASKED: True} if node == self.sets.asked else {LOCATIONS: self._coded}

    def digest(self) -> str:
        """Of the round's model."""
        return digest_of(self._params)

    def require_inside(self, plain: RecordDict, sent: RecordDict) -> None:
        """Raise ``WireError`` for an answer that moved a weight outside the set."""
        after, before = (from_dense(whole(content)[1]) for content in (plain, sent))
        for name, inside in (self.sets.current or {}).items():
            if bool(((after[name] != before[name].to(after[name].dtype)) & ~inside).any()):
                raise WireError("mask", "values outside the location set")

    def note(self, node: int, mark: ConfigRecord) -> None:
        """Take the set that a valid answer names, if it is one."""
        self.sets.note(mark.get(LOCATIONS), node, self._mask)

    def settled(self, arrays: ArrayRecord) -> Tree:
        """Of what the strategy made, the arrays that a rounding moved outside the set, as they were."""
        tree, found = from_dense(arrays), {}
        for name, inside in (self.sets.current or {}).items():
            new, old = tree[name], self._params[name].to(tree[name].dtype)
            rounded = ~inside & (new != old) & ((new - old).abs() <= _least(self._params[name]) * old.abs())
            if bool(rounded.any()):
                found[name] = torch.where(rounded, old, new)
        return found


def _least(tensor: Tensor) -> float:
    """How far a sum of a few products moves a number, as a share of it."""
    return 8 * float(torch.finfo(tensor.dtype).eps)


def change(content: RecordDict, places: Mask) -> RecordDict:
    """A message's content with the values in these places only, for a node that holds all others."""
    name, record = whole(content)
    kept, rest = close_record(from_dense(record), places, places)
    others = {n: r for n, r in content.items() if n != name}
    return RecordDict({name: kept, **({REST: rest} if rest else {}), **others})


# ---- the client's half


def changed_model(site: Site, content: RecordDict, shapes: Shapes) -> tuple[Tree, Mask]:
    """The model and mask of a message that has a change only. Raises ``WireError``."""
    kept, mask = site.wire.model(), site.wire.mask()
    if kept is None or mask is None:
        raise WireError("malformed", "only a change of the model came, and this client has no model to apply it to")
    params, locations = kept
    places = intersect(locations, {name: mask[name] for name in locations})
    tree, sent = open_record(content, shapes, places)
    tree |= where(sent, {name: tree[name] for name in sent}, {name: params[name] for name in sent})
    if digest_of({name: tree[name] for name in params}) != content.config_records[MARK].get(DIGEST):
        raise WireError("malformed", "the changed model is not the one that the server has")
    return tree, mask


def read_locations(chain: Chain, content: RecordDict, mask: Mask) -> Mask | None:
    """The set of the round, where the chain has ADGP, which does not go on without one."""
    if NAME not in chain.names:
        return None
    coded = content.config_records.get(MARK, ConfigRecord()).get(LOCATIONS)
    if not isinstance(coded, bytes):
        raise DefenseError(MISSING)
    inside = covered(mask)
    return decode_mask(coded, inside, inside)


def aligned_state(chain: Chain, state: ChainState, locations: Mask | None, base: Mask) -> ChainState:
    """The chain's state with the set of this round, for the weights that ``base`` names."""
    if locations is None:
        return state
    (settings,) = (link.settings for link in chain.links if link.name == NAME)
    own = {name: locations[name] for name in base}
    return {**state, NAME: with_locations(state[NAME], own, base, settings)}


def proposal(
    chain: Chain, state: ChainState, content: RecordDict, mask: Mask, draws: PrivateGenerator
) -> dict[str, bytes]:
    """The set that this client was asked to name; of arrays that do not move a drawn one, which says nothing."""
    mark = content.config_records.get(MARK, ConfigRecord())
    if NAME not in chain.names or mark.get(ASKED) is not True:
        return {}
    inside, own = covered(mask), state[NAME]["proposal"]
    (settings,) = (link.settings for link in chain.links if link.name == NAME)
    still = drawn_set({name: kept for name, kept in inside.items() if name not in own}, settings, draws)
    every = {**still, **own}
    return {LOCATIONS: encode_mask({name: every[name] for name in inside}, inside)}
