import torch

from prunella.strategies.round.personal import PersonalMasks, to_bytes, to_tensor
from prunella.wire.encode import decode_mask

LIKE = {"w": torch.zeros(4, 5), "b": torch.zeros(3)}


def mask(seed: int):
    return {"w": torch.rand(4, 5, generator=torch.Generator().manual_seed(seed)) < 0.5, "b": torch.ones(3).bool()}


def test_masks_come_back_from_a_checkpoint_by_client_number() -> None:
    masks = PersonalMasks()
    for client in (0, 7, 12):
        masks.put(client, mask(client))
    again = PersonalMasks()
    again.load(masks.tree())
    for client in (0, 7, 12):
        got = decode_mask(again.coded(client), LIKE)
        assert all(torch.equal(got[n], mask(client)[n]) for n in LIKE)
    assert again.coded(1) is None


def test_densities_are_of_the_prunable_weights() -> None:
    masks = PersonalMasks()
    masks.put(1, {"w": torch.arange(20).reshape(4, 5) < 5, "b": torch.ones(3).bool()})
    masks.put(1, {"w": torch.arange(20).reshape(4, 5) < 10, "b": torch.ones(3).bool()})
    assert masks.densities(LIKE, frozenset({"w"})) == {1: 0.5}


def test_bytes_survive_the_way_through_a_tensor() -> None:
    assert to_bytes(to_tensor(bytes(range(256)))) == bytes(range(256))
