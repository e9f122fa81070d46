"""What a client remembers between messages, on its own disk: defense state, ledger, the last mask, a secret.

Flower's ``Context.state`` lives in memory, is lost when large and on every restart. Files here are written atomically,
readable by the owner only, one per round. State of round r is read by later rounds only, so a server that resumes from
an older checkpoint meets the state that belonged to it.
"""

import json
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from core.errors import DefenseError
from core.files import read_tree, write_atomically, write_json, write_tree
from core.trees import Mask, Tree
from privacy.chain import ChainState, flatten_state, unflatten_state
from privacy.ledger import Ledger, from_json, merge, to_json

KEPT_ROUNDS = 3
AUDITABLE_ROUNDS = 100
ANSWERS_PER_ROUND = 2  # the second for a server that resumed
SCHEME = "scheme"  # beside the names of defenses
_NAME = re.compile(r"round-(\d{8})\.safetensors")


@dataclass(frozen=True)
class Memory:
    """Defense state, ledger and what the scheme's client half keeps, after some round."""

    state: ChainState
    ledger: Ledger
    scheme: dict[str, Tree] = field(default_factory=dict)


class ClientStore:
    """The files of one client in one run. ``secret`` is shared by all runs of the client."""

    def __init__(self, directory: Path, run: str) -> None:
        self.home = directory
        # The server names the run: what it says may choose among folders here, never a place outside.
        self.folder = directory / "runs" / (re.sub(r"[^A-Za-z0-9_-]", "_", run) or "run")
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.home.chmod(0o700)

    def secret(self) -> int:
        """A 63-bit seed only this client knows; made from the operating system's randomness once."""
        path = self.home / "secret"
        if not path.exists():
            write_atomically(path, lambda p: p.write_text(str(secrets.randbits(63))))
        return int(path.read_text())

    def _rounds(self) -> list[int]:
        matches = (_NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted(int(match.group(1)) for match in matches if match)

    def _path(self, round: int) -> Path:
        return self.folder / f"round-{round:08d}.safetensors"

    def spent(self) -> Ledger:
        """Everything this client was ever charged in this run, whichever round a server goes back to."""
        path = self.folder / "spent.json"
        if path.exists():
            return from_json(json.loads(path.read_text()))
        if self._rounds():
            raise FileNotFoundError(path.name)
        return Ledger()

    def load(self, round: int) -> Memory:
        """What was known before ``round``. A file that cannot be read stops the client: forgetting what was spent, or
        what was withheld, is not a safe default."""
        earlier = [r for r in self._rounds() if r < round]
        try:
            spent = self.spent()
            if not earlier:
                return Memory({}, merge(Ledger(), spent))
            flat, metadata = read_tree(self._path(earlier[-1]))
            state = unflatten_state(flat)
            scheme = state.pop(SCHEME, {})
            return Memory(state, merge(from_json(json.loads(metadata["ledger"])), spent), scheme)
        except Exception as error:
            raise DefenseError(
                f"this client's state before round {round} cannot be read ({type(error).__name__}): restore it, or "
                "remove this client's state directory to begin again without it"
            ) from error

    def save(self, round: int, memory: Memory) -> None:
        """Write the state after ``round`` and drop what no resume can ask for any more. What was spent goes first."""
        write_json(self.folder / "spent.json", to_json(merge(memory.ledger, self.spent())), mode=0o600)
        flat = flatten_state({**memory.state, SCHEME: memory.scheme})
        write_tree(self._path(round), flat, {"ledger": json.dumps(to_json(memory.ledger))})
        rounds = self._rounds()
        stale = [r for r in rounds if r > round] + [r for r in rounds if r <= round][:-KEPT_ROUNDS]
        for old in stale:
            self._path(old).unlink(missing_ok=True)
        took_part = sorted({*self._took_part(), round})[-AUDITABLE_ROUNDS:]
        write_json(self.folder / "rounds.json", took_part, mode=0o600)

    def mask(self) -> Mask | None:
        """The mask last received, or None."""
        path = self.folder / "mask.safetensors"
        return read_tree(path)[0] if path.exists() else None

    def save_mask(self, mask: Mask) -> None:
        write_tree(self.folder / "mask.safetensors", mask)

    def model(self) -> tuple[Tree, Mask] | None:
        """The weights received in the last round and its location set (ADGP), or None."""
        path = self.folder / "model.safetensors"
        if not path.exists():
            return None
        state = unflatten_state({f"model/{name}": tensor for name, tensor in read_tree(path)[0].items()})["model"]
        return state["params"], state["locations"]

    def save_model(self, params: Tree, locations: Mask) -> None:
        flat = flatten_state({"model": {"params": params, "locations": locations}})
        write_tree(self.folder / "model.safetensors", {n.removeprefix("model/"): t for n, t in flat.items()})

    def _took_part(self) -> list[int]:
        path = self.folder / "rounds.json"
        return list(json.loads(path.read_text())) if path.exists() else []

    def took_part(self, round: int) -> bool:
        """Whether this client trained in ``round`` of this run, as far back as audits may ask."""
        return round in self._took_part()

    def claim(self, kind: str, question: str, limit: int, total: int = 0) -> bool:
        """True, and counted, when ``question`` was answered fewer than ``limit`` times, and all of its kind fewer than
        ``total`` times (0: no limit). Counted for this client, whatever a server calls its runs."""
        path = self.home / f"{kind}.json"
        answered = dict(json.loads(path.read_text())) if path.exists() else {}
        key = question if total else f"{self.folder.name}/{question}"
        if answered.get(key, 0) >= limit or (total and sum(answered.values()) >= total):
            return False
        write_json(path, answered | {key: answered.get(key, 0) + 1}, mode=0o600)
        return True
