"""The folders that paths are made from are those of the code that runs."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from prunella.core.installation import BUNDLED, IMPORT_ROOT, ROOMS, digest_of_code


def test_the_rooms_and_the_name_are_where_they_are_said_to_be() -> None:
    assert (ROOMS / "core" / "installation.py").is_file() and (IMPORT_ROOT / "prunella" / "__init__.py").is_file()
    assert ROOMS == Path(__file__).resolve().parents[2]  # tests run in a checkout


def test_the_digest_of_the_code_is_the_same_elsewhere_and_another_after_any_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = digest_of_code()
    for package in BUNDLED:
        shutil.copytree(ROOMS / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr("prunella.core.installation.ROOMS", tmp_path)
    assert digest_of_code() == here
    (tmp_path / "core" / "trees.py").write_text("changed")
    changed = digest_of_code()
    (tmp_path / "core" / "trees.py").unlink()
    assert len({here, changed, digest_of_code()}) == 3


def test_the_bundled_packages_are_those_that_the_app_declares() -> None:
    app = tomllib.loads((ROOMS / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    named = {pattern.partition("/")[0] for pattern in app["fab-include"]}
    assert set(BUNDLED) == named - {"prunella"}


@pytest.mark.parametrize("command", [False, True])
def test_beside_a_clone_that_is_taken_for_the_package_the_fix_is_named_and_works(tmp_path: Path, command: bool) -> None:
    (tmp_path / "prunella").symlink_to(ROOMS)
    code = "import prunella.core.installation"
    if command:
        code = "from prunella.deploy.cli.main import app; app(['runs'])"

    def run(*places: Path) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
        asked = [sys.executable, "-c", code]
        return subprocess.run(asked, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)

    beside, fixed = run(tmp_path), run(tmp_path, tmp_path / "prunella")
    assert beside.returncode == 1 + command and fixed.returncode == 0, beside.stderr + fixed.stderr
    said = " ".join(beside.stderr.split())
    assert f"takes the folder {tmp_path / 'prunella'} for the package" in said
    assert ("Traceback" in said) is not command
