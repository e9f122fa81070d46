"""What is in a bundle is code that will run: one byte that is not ours is refused before it is unpacked."""

import io
import sys
import zipfile
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_files
from flwr.clientapp.utils import get_load_client_app_fn

from prunella.core.installation import IMPORT_ROOT as ROOT
from prunella.deploy.runtime.control_api import app_files
from prunella.deploy.runtime.own_code import OWN_CODE, ForeignCode, check_bundle, checked, loading_own

OURS = '[tool.flwr.app.components]\nclientapp = "prunella.client.app:app"\n'


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for name in ("client/app.py", "core/trees.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(f"# {name}\n")
    return tmp_path


def bundle(**files: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, text in {"pyproject.toml": OURS, ".info/CONTENT": "hashes", **files}.items():
            archive.writestr(name, text)
    return made.getvalue()


def test_our_own_files_pass_be_they_all_or_some(home: Path) -> None:
    check_bundle(bundle(**{"client/app.py": "# client/app.py\n", "core/trees.py": "# core/trees.py\n"}), (home,))
    check_bundle(bundle(**{"client/app.py": "# client/app.py\n", "README.md": "anything", "client/": ""}), (home,))


@pytest.mark.parametrize(
    "files",
    [
        {"client/app.py": "# client/app.py\n\n"},
        {"client/other.py": ""},
        {"sitecustomize.py": "print(1)"},
        {"core.py": "in front of the package"},
        {"../core/trees.py": "# core/trees.py\n"},
        {"client/../core/trees.py": "# core/trees.py\n"},
        {"client/README.md": "in a room"},
        {"pyproject.toml": OURS.replace("prunella.client.app", "client.evil")},
        {"pyproject.toml": ""},
    ],
    ids=["changed", "new", "site", "shadow", "above", "around", "text elsewhere", "another app", "no app"],
)
def test_anything_else_is_refused_by_name(home: Path, files: dict[str, str]) -> None:
    with pytest.raises(ForeignCode, match="its own release only"):
        check_bundle(bundle(**files), (home,))


def test_an_absolute_name_is_no_file_of_ours(home: Path) -> None:
    path = home / "client/app.py"
    with pytest.raises(ForeignCode):
        check_bundle(bundle(**{str(path): path.read_text()}), (home,))


def test_flower_s_installer_looks_only_where_it_is_asked_to(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[tuple[bytes, bool]] = []
    install = checked(lambda content, skip_prompt: taken.append((content, skip_prompt)))
    foreign = bundle(**{"client/app.py": "print('not ours')"})
    monkeypatch.delenv(OWN_CODE, raising=False)
    install(foreign, skip_prompt=True)
    assert taken == [(foreign, True)]
    monkeypatch.setenv(OWN_CODE, "1")
    with pytest.raises(ForeignCode):
        install(foreign, skip_prompt=True)
    content, _ = build_fab_from_files(app_files(ROOT, ROOT))
    assert install(content, skip_prompt=True) == ROOT and len(taken) == 1  # and what passes is not unpacked


def test_what_runs_is_the_installed_release_whatever_directory_the_server_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bundle that came may be ours and the directory named another: one that an earlier run has left there."""
    left = tmp_path / "apps" / "someone.else.1.0.0.01234567"
    left.mkdir(parents=True)
    (left / "pyproject.toml").write_text(
        (ROOT / "pyproject.toml").read_text().replace("prunella.client.app:app", "left_here:app")
    )
    (left / "left_here.py").write_text("from flwr.clientapp import ClientApp\napp = ClientApp()\n")
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])
    load = loading_own(get_load_client_app_fn)
    named = ("someone/else", "1.0.0", "0123456789")
    monkeypatch.delenv(OWN_CODE, raising=False)
    assert load("", None, True)(*named) is sys.modules.pop("left_here").app
    monkeypatch.setenv(OWN_CODE, "1")
    from prunella.client.app import app

    assert load("", None, True)(*named) is app and "left_here" not in sys.modules


def test_the_bundle_this_release_submits_passes_here() -> None:
    content, _ = build_fab_from_files(app_files(ROOT, ROOT))
    check_bundle(content)
