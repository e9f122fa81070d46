"""Masks of single clients, on the server: coded as on the wire, one bit a weight, by client number.

Node ids change at every restart; the number a client stated does not, so a resumed run finds everybody's mask again.

>>> masks = PersonalMasks()
>>> masks.put(3, {"w": torch.tensor([True, False])})
>>> decode_mask(masks.coded(3), {"w": torch.zeros(2)})["w"].tolist(), masks.coded(4)
([True, False], None)
"""

import torch

from prunella.core.trees import Mask, Tree
from prunella.pruning.selection import density
from prunella.wire.encode import decode_mask, encode_mask


def to_tensor(data: bytes) -> torch.Tensor:
    """Bytes as a uint8 tensor [n], for a checkpoint."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def to_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.numpy().tobytes()


class PersonalMasks:
    """A client without an entry trains under everybody's mask."""

    def __init__(self) -> None:
        self._coded: dict[int, bytes] = {}

    def put(self, client: int, mask: Mask) -> None:
        self._coded[client] = encode_mask(mask)

    def put_coded(self, client: int, data: bytes) -> None:
        self._coded[client] = data

    def coded(self, client: int) -> bytes | None:
        return self._coded.get(client)

    def densities(self, like: Tree, prunable: frozenset[str]) -> dict[int, float]:
        """Share of the prunable weights each client's mask keeps."""
        return {client: density(decode_mask(data, like), prunable) for client, data in self._coded.items()}

    def tree(self) -> Tree:
        """All masks for a checkpoint; names are client numbers."""
        return {str(client): to_tensor(data) for client, data in self._coded.items()}

    def load(self, tree: Tree) -> None:
        """The inverse of ``tree``."""
        self._coded = {int(client): to_bytes(data) for client, data in tree.items()}
