"""What every run together has let through of the examples a client holds: the accounts behind the ledger.

A server chooses what a run is called, and may call the same data by another dataset's name or cut it another way. So an
account belongs to the examples themselves: each is known by a digest of its pixels, and the account of a set of
examples holds the ledger of every run that trained on it. A new run starts from what all accounts hold that share at
least one example with its own: no example's losses are counted too low, and those of an example that was not in every
set are counted too high. Charges are added up, one round without an ε anywhere ends it everywhere, and the nats of
channels add.

Limits: an example that was changed in any pixel (another resolution, another decoder) is another example; the accounts
lie in the client's state directory, and whoever removes that forgets. One file an account,
``accounts/<digest>.safetensors``: the digests of its examples and the ledgers by run, written atomically.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from core.errors import DefenseError
from core.files import read_tree, write_tree
from privacy.ledger import Ledger, add, from_json, merge, to_json


def digests_of(x: Tensor) -> "np.ndarray[Any, np.dtype[np.uint64]]":
    """64 bits of BLAKE2b for every image of x [N, C, H, W], sorted, each once.

    >>> len(digests_of(torch.zeros(3, 1, 2, 2))), len(digests_of(torch.arange(3.0).reshape(3, 1, 1, 1)))
    (1, 3)
    """
    rows = x.detach().cpu().to(torch.float32).reshape(len(x), -1).numpy()
    each = [hashlib.blake2b(np.ascontiguousarray(row).tobytes(), digest_size=8).digest() for row in rows]
    return np.unique(np.frombuffer(b"".join(each), dtype=np.uint64))


class Accounts:
    """The accounts of one client, seen from the examples ``x`` [N, C, H, W] that the run called ``run`` trains on."""

    def __init__(self, home: Path, run: str, x: Tensor) -> None:
        self.home, self.run = home, run
        self.folder = home / "accounts"
        self.digests = digests_of(x)
        self.name = hashlib.sha256(self.digests.tobytes()).hexdigest()[:16]

    def elsewhere(self) -> Ledger:
        """What other runs, and this one on other examples that overlap, have let through of these examples."""
        total = Ledger()
        for name, known in self._known().items():
            for run, ledger in known.items():
                if (name, run) != (self.name, self.run):
                    total = add(total, ledger)
        return total

    def charged(self) -> Ledger:
        """Every charge of this run on these examples that was ever written down."""
        return merge(Ledger(), self._known().get(self.name, {}).get(self.run, Ledger()))

    def write(self, ledger: Ledger) -> None:
        """Put down the ledger of this run; what it was charged before stays."""
        known = self._known().get(self.name, {})
        known = known | {self.run: merge(ledger, known.get(self.run, Ledger()))}
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        text = json.dumps({run: to_json(one) for run, one in known.items()})
        digests = torch.from_numpy(self.digests.view(np.int64).copy())
        write_tree(self.folder / f"{self.name}.safetensors", {"digests": digests}, {"ledgers": text})

    def _known(self) -> dict[str, dict[str, Ledger]]:
        """Ledgers by account and run, of every account with an example in common. One that cannot be read stops the
        client, as lost ones do."""
        try:
            if not self.folder.exists() and any(self.home.glob("runs/*/spent.json")):
                raise FileNotFoundError(self.folder.name)
            found = {}
            for path in sorted(self.folder.glob("*.safetensors")):
                tree, metadata = read_tree(path)
                if len(np.intersect1d(tree["digests"].numpy().view(np.uint64), self.digests, assume_unique=True)):
                    ledgers = json.loads(metadata["ledgers"])
                    found[path.stem] = {run: from_json(value) for run, value in ledgers.items()}
            return found
        except Exception as error:
            raise DefenseError(
                f"this client's accounts cannot be read ({type(error).__name__}): restore them, or remove this "
                "client's state directory to begin again without them"
            ) from error
