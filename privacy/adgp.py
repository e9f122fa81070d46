"""ADGP, Aligned Dual Gradient Pruning (DGP, "Reducing download communication cost"): every client sends inside one set.

A chosen client names the locations of its top-2k coordinates, the set I. Every client drops its own top-k1, then sends
the ``keep`` (k) largest coordinates that lie in I; after aggregation only the values in I have changed, so only those
need to be downloaded (``strategies.round.locations``, ``client.download``). Error feedback as in DGP:
P = update + e, e <- P - g.

Departures. (1) The set of a round is that of the chosen client's update one round earlier, which it names beside its
reply (``proposal``), so that nobody trains twice; the paper's user names it in the same iteration. (2) Shares are of
each tensor's n coordinates inside its mask: k1 rounded up as in DGP, k and 2k rounded up too, so that every layer
trains. (3) The paper relies on an honest user ("when this user becomes malicious, the entire system will fail"). Here
server and clients check a set (``check_locations``): names, shapes and types, inside the mask, of the size each layer
must have (so neither all zeros nor everything), and not one that was in force before, exactly or all but ``repeated``.
They cannot check which coordinates a dishonest client names, as long as the number is right: error feedback keeps what
the set shuts out, and another client names the next round's set.

It hides less than DGP may seem to. The set tells everybody where the chosen client's largest coordinates were, its
top-k1 included, one round late; and a mask-aware attack compares on what arrived. A heuristic, no ε.

State: error, locations (all True before the first set), proposal. Errors: ``ConfigError``, ``DefenseError``.

>>> settings = AlignedPruning(top=0.1, keep=0.2)
>>> values, full = torch.tensor([9.0, -8.0, 5.0, 0.5, -3.0]), torch.ones(5, dtype=torch.bool)
>>> location_set({"w": values}, {"w": full}, settings)["w"].tolist()
[True, True, False, False, False]
>>> aligned_mask(values, full, torch.tensor([True, False, True, True, False]), settings).tolist()
[False, False, True, False, False]
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from prunella.core.config import Rate, Share
from prunella.core.errors import ConfigError, DefenseError
from prunella.core.randomness import PrivateGenerator
from prunella.core.ranking import keep_among, part_of
from prunella.core.trees import Mask, Tree, full_mask, intersect, map_trees, zeros_like
from prunella.privacy.defense import Equal, Outgoing, Smaller, State, UpdateDefense, ignore_gradient, keep_received
from prunella.privacy.top_k import kept_inside, owed, sent_now, top_mask

NAME = "adgp"


@dataclass(frozen=True)
class AlignedPruning:
    """DGP with one set of coordinates for all clients, so that the download is pruned as well.

    The paper's k1 = 5 %, and k = 20 % of its Table 3. Neither share is stronger one way: a larger ``top`` sends other
    coordinates, and a smaller set names the largest ones more closely.
    """

    top: Equal[Rate] = 0.05  #: share of each layer's largest coordinates that never leave (k1)
    keep: Equal[Share] = 0.2  #: share of each layer that is sent (k), at most 0.5: the common set holds twice as much
    feedback: Equal[bool] = True  #: what is not sent waits and is added to the next update
    #: share of a set at which it counts as one that was in force before, and is refused
    repeated: Smaller[Share] = 0.99

    def __post_init__(self) -> None:
        if not (0 <= self.top < self.keep <= 0.5):
            raise ConfigError("adgp needs top < keep, and keep at most 0.5, since the set holds twice as much")


def set_size(inside: int, settings: AlignedPruning) -> int:
    """How many of ``inside`` coordinates of a layer the set holds.

    >>> set_size(100, AlignedPruning()), set_size(1, AlignedPruning()), set_size(0, AlignedPruning())
    (40, 1, 0)
    """
    return part_of(2 * settings.keep, inside, up=True)


def location_set(values: Tree, inside: Mask, settings: AlignedPruning) -> Mask:
    """The top-2k of every layer inside its mask."""
    return map_trees(lambda t, m: top_mask(t, m, 2 * settings.keep), values, inside)


def drawn_set(inside: Mask, settings: AlignedPruning, generator: PrivateGenerator) -> Mask:
    """A random set of the right size, for a round without a valid one."""
    scores = map_trees(lambda m: generator.uniform(*m.shape), inside)
    return location_set(scores, inside, settings)


def overlap(a: Mask, b: Mask) -> float:
    """Shared coordinates over those of the smaller set."""
    both = sum(int((a[name] & b[name]).sum()) for name in a)
    least = min(sum(int(t.sum()) for t in tree.values()) for tree in (a, b))
    return both / least if least else 1.0


def check_locations(locations: Mask, inside: Mask, settings: AlignedPruning, before: Mask | None) -> None:
    """Raise ``DefenseError`` unless ``locations`` is a set as ADGP makes it, and not ``before`` again."""
    if locations.keys() != inside.keys():
        raise DefenseError("adgp: the location set has other tensors than the model")
    for name, kept in inside.items():
        here = locations[name]
        if here.dtype != torch.bool or here.shape != kept.shape:
            raise DefenseError(f"adgp: the location set of {name} has the wrong type or shape")
        if bool((here & ~kept).any()):
            raise DefenseError(f"adgp: the location set of {name} reaches outside the mask")
        want, got = set_size(int(kept.sum()), settings), int(here.sum())
        if got != want:
            raise DefenseError(f"adgp: the location set of {name} holds {got} coordinates, not {want}")
    whole = all(torch.equal(locations[name], inside[name]) for name in inside)
    if before is not None and not whole and overlap(locations, before) >= settings.repeated:
        raise DefenseError("adgp: the location set of an earlier round came again")


def aligned_mask(values: Tensor, inside: Tensor, locations: Tensor, settings: AlignedPruning) -> Tensor:
    """True where one layer is sent: the k largest in the set once the own top-k1 is dropped."""
    return kept_inside(lambda m, at: keep_among(m, at, *_counts(m.numel(), settings)), values, inside, locations)


def _counts(total: int, settings: AlignedPruning) -> tuple[int, int]:
    """k1 and k in coordinates."""
    return part_of(settings.top, total, up=True), part_of(settings.keep, total, up=True)


def with_locations(state: State, locations: Mask, inside: Mask, settings: AlignedPruning) -> State:
    """The state with the set of this round, checked against the one that was in force before."""
    before = state["locations"]
    first = all(bool(t.all()) for t in before.values())
    check_locations(locations, inside, settings, None if first else before)
    return {**state, "locations": locations}


def _init(like: Tree) -> State:
    everything = full_mask(like)
    return {"error": zeros_like(like), "locations": everything, "proposal": everything}


def adgp(settings: AlignedPruning) -> UpdateDefense:
    def apply(outgoing: Outgoing, state: State, generator: PrivateGenerator) -> tuple[Outgoing, State]:
        whole = owed(outgoing, state)
        proposal = location_set(whole, outgoing.shared, settings)
        places = intersect(state["locations"], outgoing.shared)
        shared = map_trees(lambda t, m, p: aligned_mask(t, m, p, settings), whole, outgoing.shared, places)
        sent, error = sent_now(outgoing, whole, shared, settings.feedback)
        return sent, {"error": error, "locations": state["locations"], "proposal": proposal}

    return UpdateDefense(_init, keep_received, ignore_gradient, apply)
