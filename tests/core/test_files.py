import os
import stat
from pathlib import Path

import pytest
import torch

from prunella.core import files
from prunella.core.files import read_tree, round_file, rounds_in, write_atomically, write_json, write_tree


def test_tree_round_trips_with_metadata_and_is_private(tmp_path: Path) -> None:
    tree = {"a.w": torch.randn(3, 2).t(), "m": torch.tensor([True, False]), "s": torch.tensor(1.5)}
    write_tree(tmp_path / "x" / "state.safetensors", tree, {"round": "3"})
    read, metadata = read_tree(tmp_path / "x" / "state.safetensors")
    assert metadata == {"round": "3"}
    assert all(torch.equal(read[n], tree[n]) for n in tree)
    assert stat.S_IMODE((tmp_path / "x" / "state.safetensors").stat().st_mode) == 0o600


def test_tensors_that_share_memory_are_written_both(tmp_path: Path) -> None:
    whole = torch.arange(6.0)
    tree = {"a": whole, "same": whole, "part": whole[2:4], "empty": whole[:0]}
    write_tree(tmp_path / "state.safetensors", tree)
    read, _ = read_tree(tmp_path / "state.safetensors")
    assert all(torch.equal(read[n], tree[n]) for n in tree)


def test_files_may_be_flushed_and_replaced_where_windows_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flush(handle: int) -> None:
        may_be_written = os.readlink(f"/proc/self/fd/{handle}").startswith(str(tmp_path)) and os.pwrite(handle, b"", 0)
        assert may_be_written == 0

    path = tmp_path / "state.safetensors"
    monkeypatch.setattr(files, "_settle", lambda folder: None)
    monkeypatch.setattr(files, "MAPPED", False)
    monkeypatch.setattr(os, "fsync", flush)
    write_tree(path, {"x": torch.ones(3)})
    tree, _ = read_tree(path)
    assert str(path) not in Path("/proc/self/maps").read_text() and tree["x"].tolist() == [1, 1, 1]


def test_content_is_on_the_disk_before_it_has_its_name_and_then_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.json"
    write_json(path, "old")
    flushed: list[tuple[int, int, str]] = []

    def flush(handle: int) -> None:
        about = os.fstat(handle)
        flushed.append((about.st_ino, stat.S_IFMT(about.st_mode), path.read_text()))

    monkeypatch.setattr(os, "fsync", flush)
    write_json(path, "new")
    file, folder = path.stat().st_ino, tmp_path.stat().st_ino
    assert flushed == [(file, stat.S_IFREG, '"old"'), (folder, stat.S_IFDIR, '"new"')]


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_json(path, {"round": 1})

    def fail(temporary: Path) -> None:
        temporary.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_atomically(path, fail)
    assert path.read_text() == '{\n "round": 1\n}'
    assert list(tmp_path.iterdir()) == [path]


def test_the_rounds_of_a_folder_that_cannot_be_read_are_not_none(tmp_path: Path) -> None:
    for number in (3, 12):
        write_tree(round_file(tmp_path, number), {"x": torch.zeros(1)})
    (tmp_path / "round-3.safetensors").touch()
    assert rounds_in(tmp_path) == [3, 12]
    with pytest.raises(OSError):
        rounds_in(tmp_path / "gone")
