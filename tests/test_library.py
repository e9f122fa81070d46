"""``import prunella`` is cheap, and its names are there, documented, and the ones its modules define."""

import subprocess
import sys
import tomllib

import pytest

import prunella
from tests.test_layout import ROOT


def test_importing_the_name_imports_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import prunella; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "prunella" in loaded and loaded <= sys.stdlib_module_names | {"prunella"}


@pytest.mark.parametrize("name", prunella.__all__)
def test_every_name_is_there_and_documented(name: str) -> None:
    found = getattr(prunella, name)
    assert isinstance(found, dict) or (found.__doc__ and not found.__doc__.startswith(f"{name}(")), "a dataclass's own"
    assert name in (prunella.__doc__ or "") and name in dir(prunella)


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        prunella.nothing  # noqa: B018


def test_the_version_is_the_project_s() -> None:
    assert prunella.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_somebody_else_s_packages_are_not_ours(tmp_path) -> None:
    """A user's folder has modules by the names of our packages."""
    for name in ("core", "tasks"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("MINE = True\n")
    for name in ("client.py", "server.py", "strategies.py", "benchmarks.py", "attacks.py", "deploy.py"):
        (tmp_path / name).write_text("MINE = True\n")
    code = (
        "import core, tasks, client, server, strategies, benchmarks, attacks, deploy\n"
        "import prunella.client.app, prunella.server.app, prunella.strategies\n"
        "assert all(m.MINE for m in (core, tasks, client, server, strategies, benchmarks, attacks, deploy))\n"
        "assert prunella.server.app.__file__ != server.__file__ and prunella.Task.__module__ == 'prunella.tasks.task'\n"
    )
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]
