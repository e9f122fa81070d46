"""Atomic files and trees on disk. Nothing here unpickles."""

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file

from prunella.core.trees import Tree

MAPPED = sys.platform != "win32"  # a file that is mapped into memory may be replaced; Windows refuses
_ROUND = re.compile(r"round-(\d{8})\.safetensors")


def write_atomically(path: Path, write: Callable[[Path], object], mode: int = 0o600) -> None:
    """``write`` a temporary file beside ``path``, flush it to the disk, then rename it into place.

    A reader sees the old file or the new one; a full disk or a crash leaves the old one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        with temporary.open("rb+") as file:  # Windows flushes only what may be written to
            os.fsync(file.fileno())
        temporary.chmod(mode)
        temporary.replace(path)
        _settle(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _settle(folder: Path) -> None:
    """Flush a folder, so that a file's new name outlives a power cut; where a system cannot, it is left to it."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass  # not every file system flushes folders
    finally:
        os.close(handle)


def write_json(path: Path, value: Any, mode: int = 0o644) -> None:
    write_atomically(path, lambda p: p.write_text(json.dumps(value, indent=1, sort_keys=True)), mode)


def write_tree(path: Path, tree: Tree, metadata: dict[str, str] | None = None) -> None:
    """A tree as safetensors, owner-readable only. Names may contain any character but NUL; tensors may share memory."""
    memory: set[int] = set()
    separate: Tree = {}
    for name, tensor in tree.items():
        plain = tensor.detach().cpu().contiguous()
        address = plain.untyped_storage().data_ptr()
        separate[name] = plain.clone() if address in memory else plain  # safetensors refuses what shares memory
        memory.add(address)
    write_atomically(path, lambda p: save_file(separate, p, metadata=metadata))


def read_tree(path: Path) -> tuple[Tree, dict[str, str]]:
    """The tree and the metadata of a safetensors file."""
    with safe_open(path, framework="pt") as file:
        tree = {name: file.get_tensor(name) for name in file.keys()}
        return tree if MAPPED else {name: tensor.clone() for name, tensor in tree.items()}, dict(file.metadata() or {})


def round_file(folder: Path, round: int) -> Path:
    """Where a folder with a file for each round has this round's."""
    return folder / f"round-{round:08d}.safetensors"


def rounds_in(folder: Path) -> list[int]:
    """The rounds that have a file there, in order. ``OSError`` where the folder cannot be read: nothing that is not
    known is taken for nothing."""
    matches = (_ROUND.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(match.group(1)) for match in matches if match)
