"""Which recorded rounds are of one client, for attacks that use all of them (``every-round``).

A run keeps each view in a directory of its own, ``round-000005-client-0``; the recorder of another app
(``flower.record``) writes a file for each round and node, and the node into it. A trace that says neither is of nobody
that is known, and has no other rounds. Files that are no traces are passed over. Errors: ``UsageError``.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from prunella.attacks.trace import recorded_about
from prunella.core.errors import AttackError
from prunella.core.untrusted import MAX_COUNT
from prunella.deploy.errors import UsageError

VIEW = "view.safetensors"
_OF_RUN = re.compile(r"round-(\d+)-(client-\d+)")


def round_and_client(file: Path) -> tuple[int, str] | None:
    """The round of a trace and whose it is; None where it does not say."""
    if file.name == VIEW:
        told = _OF_RUN.fullmatch(file.absolute().parent.name)
        return None if told is None else (int(told[1]), told[2])
    try:
        about = recorded_about(file)
    except AttackError:
        return None
    round, node = about.get("round"), about.get("node")
    if type(round) is not int or not 0 <= round <= MAX_COUNT or not isinstance(node, str):
        return None
    return round, f"node {node}"


def rounds_in(folder: Path) -> Iterator[tuple[int, str, Path]]:
    """Round, client and file of every trace that a folder of traces holds."""
    for file in sorted([*folder.glob("*.safetensors"), *folder.glob(f"*/{VIEW}")]):
        found = round_and_client(file)
        if found is not None:
            yield *found, file


def last_round(folder: Path) -> Path | None:
    """The last trace in a folder with those of one client; None where it holds none."""
    found = sorted(rounds_in(folder))
    last = {client: file for _, client, file in found}
    if len(last) > 1:
        shown = ", ".join(str(file.parent if file.name == VIEW else file) for file in list(last.values())[:3])
        raise UsageError(f"{folder} has traces of {len(last)} clients: name the last of one of them, such as {shown}")
    return found[-1][2] if found else None


def earlier_rounds(file: Path) -> list[Path]:
    """The traces of earlier rounds of the same client that lie beside ``file``, oldest first."""
    own = round_and_client(file)
    if own is None:
        return []
    folder = file.absolute().parent.parent if file.name == VIEW else file.absolute().parent
    return [path for round, client, path in sorted(rounds_in(folder)) if client == own[1] and round < own[0]]


def check_one_client(file: Path, earlier: list[Path]) -> None:
    """Raise ``UsageError`` where an earlier trace says that it is of another client."""
    own = round_and_client(file)
    for each in earlier:
        other = round_and_client(each)
        if own is not None and other is not None and other[1] != own[1]:
            raise UsageError(f"{each} is of {other[1]}, and the trace under attack of {own[1]}")
