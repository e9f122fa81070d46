"""``flwr app publish`` would accept a copy of this repository without its tests: Flower's own checks, on the files that
git tracks, offline. docs/deployment.md says how to make the copy."""

import importlib
import shutil
import subprocess
from pathlib import Path

import pytest

from prunella.core.installation import IMPORT_ROOT as ROOT


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """What a new clone holds, but for the tests: Flower takes a thousand files."""
    listed = subprocess.run(["git", "ls-files", "-z", "--", ".", ":!tests"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode or not listed.stdout:
        pytest.skip("not a git checkout")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (tmp_path / "prunella" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, tmp_path / "prunella" / name)
    return tmp_path / "prunella"


def check(app: Path) -> list[str]:
    """All that Flower checks before it uploads; the warnings about metadata."""
    from flwr.cli.config_utils import load_and_validate

    publish = importlib.import_module("flwr.cli.app_cmd.publish")
    config, warnings = load_and_validate(app / "pyproject.toml", check_module=False)
    publish._validate_app_name(app.name, "Flower App directory name")
    publish._validate_app_name(config["project"]["name"], "name")
    publish._validate_description(config["project"].get("description", ""))
    publish._validate_files(publish._collect_file_paths(app))
    return list(warnings)


def test_flowers_checks_pass_without_a_warning(app: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(app) == []
    assert "Validation passed" in capsys.readouterr().out
    for name in ("README.md", "LICENSE", "pyproject.toml", "server/app.py", "client/app.py"):
        assert (app / name).is_file()


def test_a_repository_without_them_does_not_pass(app: Path) -> None:
    text = (app / "pyproject.toml").read_text()
    (app / "pyproject.toml").write_text(text.replace('publisher = "prunella"\n', ""))
    with pytest.raises(ValueError, match="publisher"):
        check(app)
    (app / "pyproject.toml").write_text(text.replace('license = "Apache-2.0"\n', ""))
    assert any("license" in warning for warning in check(app))
