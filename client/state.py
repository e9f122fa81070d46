"""What a client remembers of a run between messages, on its own disk: defense state, a tally, the last mask.

Flower's ``Context.state`` lives in memory, is lost when large and on every restart. Files here are written atomically,
readable by the owner only, one per round. State of round r is read by later rounds only, so a server that resumes from
an older checkpoint meets the state that belonged to it. What all runs have let through is in ``client.accounts``.
"""

import dataclasses
import json
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from prunella.client.accounts import APPS
from prunella.core.errors import DefenseError
from prunella.core.files import read_tree, round_file, rounds_in, write_json, write_tree
from prunella.core.folders import locked
from prunella.core.trees import Mask, Tree
from prunella.privacy.chain import ChainState, flatten_state, unflatten_state
from prunella.privacy.ledger.ledger import Tally

KEPT_ROUNDS = 3
AUDITABLE_ROUNDS = 100
SCHEME = "scheme"  # beside the names of defenses
LOCK_SECONDS = 600.0
KEPT_SEEN = 3  # audited rounds that a membership question is answered about
_SEEN = "seen-{:08d}.safetensors"


@dataclass(frozen=True)
class Memory:
    """Defense state, the run's tally and what the scheme's client half keeps, after some round."""

    state: ChainState
    tally: Tally
    scheme: dict[str, Tree] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainedRound:
    """What an audit must know of a round this client trained in: the digests of its request, and of its settings
    and examples."""

    request: str
    settings: str


@dataclass(frozen=True)
class SeenRound:
    """What the server saw of this client in a round: the weights and buffers it sent, the update it received."""

    params: Tree
    buffers: Tree
    update: Tree


class ClientStore:
    """The files of one client in one run."""

    def __init__(self, directory: Path, run: str) -> None:
        self.home = directory
        # The server names the run: what it says may choose among folders here, never a place outside.
        self.folder = directory / "runs" / (re.sub(r"[^A-Za-z0-9_-]", "_", run) or "run")
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.home.chmod(0o700)

    def alone(self) -> AbstractContextManager[None]:
        """While no other process handles a message in this directory, or in that of approved apps inside it: two at
        once would charge as if they were one.

        Raises ``DefenseError`` after ``LOCK_SECONDS``.
        """
        whole = self.home.parent if self.home.name == APPS else self.home
        busy = DefenseError("another message to this client is still being handled: try again later")
        return locked(whole / "lock", busy, LOCK_SECONDS)

    def next_round(self) -> int:
        """One more than the last round that is remembered."""
        return max(rounds_in(self.folder), default=0) + 1

    def load(self, round: int) -> Memory:
        """The memory as it was before ``round``. A file that cannot be read stops the client: forgetting what was
        withheld is not a safe default."""
        earlier = [r for r in rounds_in(self.folder) if r < round]
        if not earlier:
            return Memory({}, Tally())
        try:
            flat, metadata = read_tree(round_file(self.folder, earlier[-1]))
            state = unflatten_state(flat)
            scheme = state.pop(SCHEME, {})
            tally = json.loads(metadata["tally"])
            return Memory(state, Tally(**{**tally, "claims": tuple(tally["claims"])}), scheme)
        except Exception as error:
            raise DefenseError(
                f"this client's state before round {round} cannot be read ({type(error).__name__}): restore it, or "
                "remove this client's state directory to begin again without it"
            ) from error

    def save(self, round: int, memory: Memory, trained: TrainedRound | None = None) -> None:
        """Write the state after ``round`` and drop what no resume can ask for any more."""
        flat = flatten_state({**memory.state, SCHEME: memory.scheme})
        write_tree(round_file(self.folder, round), flat, {"tally": json.dumps(dataclasses.asdict(memory.tally))})
        rounds = rounds_in(self.folder)
        stale = [r for r in rounds if r > round] + [r for r in rounds if r <= round][:-KEPT_ROUNDS]
        for old in stale:
            round_file(self.folder, old).unlink(missing_ok=True)
        for old in [r for r in self._seen() if r > round]:
            (self.folder / _SEEN.format(old)).unlink()
        if trained is not None:
            rounds_trained = self._trained() | {round: trained}
            kept = sorted(rounds_trained)[-AUDITABLE_ROUNDS:]
            write_json(self._trained_path, {r: dataclasses.asdict(rounds_trained[r]) for r in kept}, mode=0o600)

    @property
    def _trained_path(self) -> Path:
        return self.folder / "rounds.json"

    def _trained(self) -> dict[int, TrainedRound]:
        if not self._trained_path.exists():
            return {}
        return {int(r): TrainedRound(**value) for r, value in json.loads(self._trained_path.read_text()).items()}

    def trained(self, round: int) -> TrainedRound | None:
        """What is known of a round this client trained in, as far back as audits may ask; else None."""
        return self._trained().get(round)

    def save_seen(self, round: int, seen: SeenRound) -> None:
        """Keep an audited round, and forget all but the last ``KEPT_SEEN``."""
        write_tree(self.folder / _SEEN.format(round), flatten_state({"seen": vars(seen)}))
        for old in self._seen()[:-KEPT_SEEN]:
            (self.folder / _SEEN.format(old)).unlink()

    def seen(self) -> Iterator[tuple[int, SeenRound]]:
        """The audited rounds that were kept, oldest first."""
        for round in self._seen():
            tree = unflatten_state(read_tree(self.folder / _SEEN.format(round))[0])["seen"]
            yield round, SeenRound(**{"buffers": {}, **tree})

    def _seen(self) -> list[int]:
        return sorted(int(path.stem.removeprefix("seen-")) for path in self.folder.glob("seen-*.safetensors"))

    def mask(self) -> Mask | None:
        """The mask that the last round ended under, the client's own where it moved it, or None."""
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
