"""Which node has which client number: a registered key has the same node id for good, and so the same client number.

Flower 1.39 gives a registered public key one node id, which is the same however often its SuperNode starts, and takes
no request in the name of a node without its key's signature. The first node that states a number has it from then on,
in this run and in every other that shares the file: ``client-numbers.json``, beside what else the SuperLink's machine
keeps, number to node id. No other node is accepted as that client, whether it is online or not, and no node is two.

Which key *should* have a number is not known: the first that states it has it. ``free`` gives a number back, for
another key; so does deleting its line of the file, or the file.
"""

import json
from pathlib import Path

from filelock import FileLock

from prunella.core.errors import PrunellaError
from prunella.core.files import write_json


class Numbering:
    """Claims on client numbers, in ``file``; without one (no registered keys) there are none."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file

    def claim(self, client: int, node: int) -> str:
        """Give ``client`` to ``node`` if it is free or its own; else say why not. Raises ``PrunellaError`` if the file
        cannot be read."""
        if self._file is None:
            return ""
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _locked(self._file):
            owners = _read(self._file)
            if owners.get(client, node) != node:
                return f"client {client} is another node's by {self._file}"
            if other := [number for number, owner in owners.items() if owner == node and number != client]:
                return f"a node says it is client {client}, and is client {other[0]} by {self._file}"
            if client not in owners:
                _write(self._file, owners | {client: node})
        return ""

    def free(self, node: int) -> int | None:
        """Take the number of ``node`` from it, so that the next that states it has it; None where it has none. Raises
        ``PrunellaError``."""
        if self._file is None or not self._file.exists():
            return None
        with _locked(self._file):
            owners = _read(self._file)
            if mine := [number for number, owner in owners.items() if owner == node]:
                _write(self._file, {number: owner for number, owner in owners.items() if owner != node})
        return mine[0] if mine else None


def _locked(file: Path) -> FileLock:
    """Two runs at once read and write one after the other."""
    return FileLock(file.with_name(f".{file.name}.lock"), mode=0o600)


def _write(file: Path, owners: dict[int, int]) -> None:
    write_json(file, {str(number): owner for number, owner in sorted(owners.items())}, mode=0o600)


def _read(file: Path) -> dict[int, int]:
    if not file.exists():
        return {}
    try:
        found = json.loads(file.read_text())
        owners = {int(number): owner for number, owner in found.items()}
        if any(type(owner) is not int for owner in owners.values()) or len(set(owners.values())) < len(owners):
            raise ValueError("no node ids")
    except (AttributeError, ValueError):
        raise PrunellaError(f"{file} does not say which node is which client: restore it, or delete it") from None
    return owners
