"""Refused is what cannot be written into, whatever its permissions say; a lock has one holder. Nothing stays behind."""

import os
from pathlib import Path

import pytest

from prunella.core.errors import DefenseError
from prunella.core.folders import locked, unwritable


def test_a_place_that_takes_files_is_left_as_it_was(tmp_path: Path) -> None:
    assert unwritable(tmp_path / "not" / "yet") == unwritable(tmp_path) == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_a_file_system_that_takes_none_is_refused_though_its_permissions_allow_it(tmp_path: Path) -> None:
    assert unwritable(Path("/proc/nowhere/runs")) == "/proc may not be written to"
    (tmp_path / "file").touch()
    assert unwritable(tmp_path / "file" / "runs") == f"{tmp_path / 'file'} is a file"


@pytest.mark.skipif(getattr(os, "geteuid", lambda: 0)() == 0, reason="root may write anywhere")
def test_a_folder_without_the_permission_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert "may not be written to" in unwritable(tmp_path / "runs")


def test_one_process_at_a_time_holds_a_lock_and_an_error_inside_lets_go_of_it(tmp_path: Path) -> None:
    busy = DefenseError("somebody else is at it")
    with locked(tmp_path / "lock", busy):
        with pytest.raises(DefenseError, match="somebody else"), locked(tmp_path / "lock", busy):
            raise AssertionError("two hold it")
        assert (tmp_path / "lock").stat().st_mode & 0o077 == 0
    with pytest.raises(ValueError, match="inside"), locked(tmp_path / "lock", busy):
        raise ValueError("inside")
    with locked(tmp_path / "lock", busy):
        pass
