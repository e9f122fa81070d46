"""Checkpoints: after every round, all that is needed to resume, written atomically. The last two are kept.

One safetensors file per round holds the global weights, buffers, mask and the state of the pruning scheme. Its metadata
holds the round, the settings, the cumulative counters, the clients' ledgers, and a checksum (CRC-32) over everything:
safetensors itself detects a truncated file, but not a flipped bit. Randomness has no state to save: every stream is
derived from seed and round.

What clients have spent cannot wait for the end of a round: a question is charged where it arrives, whatever becomes of
this server. So ``ledgers.json`` beside them is written before a question is sent and when its answers are in, and holds
for a checkpoint of any round.
"""

import json
import zlib
from dataclasses import dataclass, field
from logging import WARNING
from pathlib import Path
from typing import Any

import torch
from flwr.common.logger import log

from prunella.core.config import PLACES, Raw, kebab
from prunella.core.errors import ConfigError, PrunellaError
from prunella.core.files import read_tree, round_file, rounds_in, write_json, write_tree
from prunella.core.trees import Mask, Tree

KEPT = 2
LEDGERS = "ledgers.json"
SPENT = frozenset({"epsilon", "epsilon_next", "channel_nats"})  # of a ledger line, where there is anything to lose
Ledgers = dict[str, dict[str, float | int | str]]  # by client
MAY_CHANGE = {*map(kebab, PLACES), "expected-clients"}


@dataclass(frozen=True)
class Checkpoint:
    """The server after ``round``. ``counters`` are the cumulative metrics, ``scheme`` is the strategy's state."""

    round: int
    tree: Tree
    mask: Mask
    settings: dict[str, Any]
    counters: dict[str, float] = field(default_factory=dict)
    ledgers: Ledgers = field(default_factory=dict)
    scheme: Tree = field(default_factory=dict)


def _checksum(notes: str, tree: Tree) -> str:
    value = zlib.crc32(notes.encode())
    for name in sorted(tree):
        value = zlib.crc32(name.encode(), value)
        flat = tree[name].detach().cpu().contiguous().reshape(-1)
        value = zlib.crc32(flat.view(torch.uint8).numpy().data, value)
    return f"{value:08x}"


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Write the checkpoint, then delete all but the last ``KEPT``: on a full disk the older ones survive."""
    parts = {"model": checkpoint.tree, "mask": checkpoint.mask, "scheme": checkpoint.scheme}
    tree = {f"{kind}/{name}": tensor for kind, part in parts.items() for name, tensor in part.items()}
    notes = {
        "round": checkpoint.round,
        "settings": checkpoint.settings,
        "counters": checkpoint.counters,
        "ledgers": checkpoint.ledgers,
    }
    text = json.dumps(notes)
    write_tree(round_file(folder, checkpoint.round), tree, {"checkpoint": text, "checksum": _checksum(text, tree)})
    for old in [r for r in rounds_in(folder) if r <= checkpoint.round][:-KEPT]:
        round_file(folder, old).unlink(missing_ok=True)


def save_ledgers(folder: Path, ledgers: Ledgers) -> None:
    """Write what clients have spent up to now, the questions under way among it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / LEDGERS, ledgers, mode=0o600)


def load_ledgers(folder: Path) -> Ledgers:
    """What ``save_ledgers`` wrote last. Raises ``PrunellaError`` where it cannot be read, and where it is gone and a
    checkpoint says that anything was spent: that knows nothing of what was asked since."""
    path = folder / LEDGERS
    if not path.exists():
        held = saved.ledgers if (saved := load(folder)) is not None else {}
        if any(SPENT & line.keys() for line in held.values()):
            raise PrunellaError(f"{path}, what clients have spent, is missing: restore it, or start a new run")
        return held
    try:
        return {client: dict(line) for client, line in json.loads(path.read_text()).items()}
    except (OSError, ValueError, AttributeError, TypeError):
        raise PrunellaError(f"{path}, what clients have spent, cannot be read: restore it") from None


def _read(path: Path) -> Checkpoint:
    flat, metadata = read_tree(path)
    if metadata["checksum"] != _checksum(metadata["checkpoint"], flat):
        raise PrunellaError("the checksum does not match")
    notes = json.loads(metadata["checkpoint"])
    parts: dict[str, Tree] = {"model": {}, "mask": {}, "scheme": {}}
    for name, tensor in flat.items():
        kind, _, parameter = name.partition("/")
        parts[kind][parameter] = tensor
    figures = notes["settings"], notes["counters"], notes["ledgers"]
    return Checkpoint(notes["round"], parts["model"], parts["mask"], *figures, parts["scheme"])


def load(folder: Path) -> Checkpoint | None:
    """The newest readable checkpoint, None if there is none. Raises ``PrunellaError`` if all are damaged."""
    rounds = rounds_in(folder) if folder.is_dir() else []
    for round in reversed(rounds):
        try:
            return _read(round_file(folder, round))
        except Exception as error:  # noqa: BLE001 - any damage to a file means the one before it
            log(
                WARNING,
                "checkpoint %s is damaged (%s), trying the one before",
                round_file(folder, round),
                type(error).__name__,
            )
    if rounds:
        raise PrunellaError(f"no checkpoint in {folder} can be read: start a new run")
    return None


def require_same_settings(checkpoint: Checkpoint, raw: Raw) -> None:
    """Raise ``ConfigError`` naming the settings that differ from those the run started with."""
    names = (checkpoint.settings.keys() | raw.keys()) - MAY_CHANGE
    changed = [name for name in sorted(names) if checkpoint.settings.get(name) != raw.get(name)]
    if changed:
        raise ConfigError(
            f"a resumed run keeps its settings, but {', '.join(changed)} changed: start a new run instead"
        )
