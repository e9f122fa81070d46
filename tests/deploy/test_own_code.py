"""What is in a bundle is code that will run: one byte that is not ours is refused before it is unpacked."""

import io
import zipfile
from pathlib import Path

import pytest

from deploy.control import app_files
from deploy.own_code import OWN_CODE, ForeignCode, check_bundle, checked
from deploy.processes import ROOT

OURS = '[tool.flwr.app.components]\nclientapp = "client.app:app"\n'


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
    check_bundle(bundle(**{"client/app.py": "# client/app.py\n", "core/trees.py": "# core/trees.py\n"}), home)
    check_bundle(bundle(**{"client/app.py": "# client/app.py\n", "README.md": "anything", "client/": ""}), home)


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
        {"pyproject.toml": OURS.replace("client.app", "client.evil")},
        {"pyproject.toml": ""},
    ],
    ids=["changed", "new", "site", "shadow", "above", "around", "text elsewhere", "another app", "no app"],
)
def test_anything_else_is_refused_by_name(home: Path, files: dict[str, str]) -> None:
    with pytest.raises(ForeignCode, match="its own release only"):
        check_bundle(bundle(**files), home)


def test_an_absolute_name_is_no_file_of_ours(home: Path) -> None:
    path = home / "client/app.py"
    with pytest.raises(ForeignCode):
        check_bundle(bundle(**{str(path): path.read_text()}), home)


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
    assert len(taken) == 1


def test_the_bundle_this_release_submits_passes_here() -> None:
    from flwr.cli.build import build_fab_from_files

    content, _ = build_fab_from_files(app_files(ROOT, ROOT))
    check_bundle(content)
