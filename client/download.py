"""The model as a client receives it: whole, or (ADGP) only the values in the last round's location set.

A change is applied to the weights of the round before, which are on this client's disk, and the digest of the result
must be what the server says. If it is not, the round is refused; the server then has no reply and sends the whole model
in the next round.
"""

from flwr.app import ArrayRecord, RecordDict

from prunella.client.state import ClientStore
from prunella.core.errors import DefenseError, WireError
from prunella.core.trees import Mask, Tree, intersect, to_device, where
from prunella.privacy.adgp import NAME, with_locations
from prunella.privacy.chain import Chain, ChainState
from prunella.strategies.round.locations import ASKED, CHANGE, DIGEST, RECORD, digest_of
from prunella.wire.records import from_coded, mask_from_coded, mask_to_coded


def receive_model(store: ClientStore, content: RecordDict, like: Tree) -> tuple[Tree, Mask]:
    """Weights and mask, on the CPU, in the order of ``like``."""
    if CHANGE not in content.array_records:
        return from_coded(content.array_records["model"], like, store.mask())
    kept, mask = store.model(), store.mask()
    if kept is None or mask is None:
        raise WireError("malformed", "only a change of the model came, and this client has no model to apply it to")
    params, locations = kept
    places = intersect(locations, mask)
    change, sent = from_coded(content.array_records[CHANGE], like, places)
    whole = where(sent, change, params)
    if digest_of(whole) != content.config_records["config"].get(DIGEST):
        raise WireError("malformed", "the changed model is not the one that the server has")
    return whole, {name: mask[name] for name in like}  # the order of a model that comes whole: draws depend on it


def receive_locations(chain: Chain, state: ChainState, content: RecordDict, mask: Mask) -> ChainState:
    """The chain's state with the location set of this round; a chain with ADGP does not go on without a valid one."""
    link = next((link for link in chain.links if link.name == NAME), None)
    if link is None:
        return state
    record = content.array_records.get(RECORD)
    if record is None:
        raise DefenseError("adgp: no location set came with the model")
    device = next(iter(state[NAME]["error"].values())).device
    found = {name: t.to(device) for name, t in mask_from_coded(record, mask, mask).items()}
    inside = {name: t.to(device) for name, t in mask.items()}
    return {**state, NAME: with_locations(state[NAME], found, inside, link.settings)}


def keep_model(store: ClientStore, chain: Chain, state: ChainState, params: Tree) -> None:
    """Keep the received weights and the round's location set, to which the next change applies: only with ADGP."""
    if NAME in chain.names:
        store.save_model(to_device(params, "cpu"), to_device(state[NAME]["locations"], "cpu"))


def proposal(chain: Chain, state: ChainState, content: RecordDict, mask: Mask) -> dict[str, ArrayRecord]:
    """The record of the set that this client was asked to name: only with ADGP, and only when asked."""
    if NAME not in chain.names or content.config_records["config"].get(ASKED) is not True:
        return {}
    return {RECORD: mask_to_coded(to_device(state[NAME]["proposal"], "cpu"), mask)}
