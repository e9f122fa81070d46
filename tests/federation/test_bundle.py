"""The app from its built bundle, in an interpreter that has the dependencies but not this project."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from prunella.server.store.read import read_run

pytestmark = [pytest.mark.federation, pytest.mark.timeout(960)]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that sees the installed packages; ``.pth`` files are not read from there, so no editable install."""
    home = tmp_path_factory.mktemp("stranger")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    python = home / "bin" / "python"
    ask = [str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]
    site = Path(subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip())
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return python


def run(python: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # PYTHONPATH is for the launcher alone: it takes this directory off the path before it forks anything.
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [
        str(python),
        "-c",
        "from prunella.deploy.cli import start; start()",
        "run",
        "--supernodes",
        "2",
        *arguments,
    ]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=900)


def test_the_stranger_does_not_have_the_project(stranger: Path, tmp_path: Path) -> None:
    code = "from importlib.util import find_spec; print([bool(find_spec(n)) for n in ('torch', 'flwr', 'prunella')])"
    done = subprocess.run([str(stranger), "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "[True, True, False]\n"


def test_the_bundle_holds_everything_a_run_with_audits_needs(stranger: Path, tmp_path: Path) -> None:
    done = run(
        stranger, tmp_path, "-c", "rounds=2", "-c", "audit-every=2", "-c", "attack=sgi", "-c", "sgi.iterations=40"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run_dir = tmp_path / "runs" / "latest"
    assert read_run(run_dir)["status"] == "completed"
    assert (run_dir / "report.html").exists() and (run_dir / "audits.jsonl").read_text().count("\n") == 11


def test_a_file_missing_from_the_bundle_is_found(stranger: Path, tmp_path: Path) -> None:
    app = tmp_path / "prunella-app"
    shutil.copytree(
        ROOT, app, ignore=shutil.ignore_patterns(".*", "runs", "tests", "docs", "__pycache__", "*.egg-info")
    )
    text = (app / "pyproject.toml").read_text()
    (app / "pyproject.toml").write_text(text.replace('"pruning/**/*.py",', ""))
    done = run(stranger, tmp_path, "--app", str(app), "-c", "rounds=1")
    assert done.returncode == 1
    assert "No module named 'prunella.pruning'" in done.stdout + done.stderr
