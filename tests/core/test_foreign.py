"""An import path is looked up where no registry has the name, and what cannot be imported is one line."""

import sys
from pathlib import Path

import pytest

from prunella.core.errors import ConfigError
from prunella.core.foreign import digest, lookup


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of somebody's own, ``foreign_mine``."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "foreign_mine", raising=False)
    file = tmp_path / "foreign_mine.py"
    file.write_text("NAME = 'mine'\n")
    (tmp_path / "foreign_broken.py").write_text("from foreign_mine import PATIENTS\n")
    (tmp_path / "foreign_unfinished.py").write_text("NAME = (\n")
    (tmp_path / "foreign_raising.py").write_text("raise RuntimeError('/home/somebody/patients')\n")
    return file


def test_a_registry_comes_first_and_nothing_is_imported_for_its_names(mine: Path) -> None:
    assert lookup("word", "foreign_mine:NAME", {"foreign_mine:NAME": "ours"}) == "ours"
    assert lookup("word", "foreign_mine:NAME", {}) == "mine"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nam", "unknown word 'nam': did you mean 'name'"),
        ("nothing", "Valid: name, package.module:NAME"),
        ("nowhere:NAME", "cannot be imported here (No module named 'nowhere'): install its package"),
        ("foreign_mine:NAM", "unknown name in foreign_mine 'NAM': did you mean 'NAME'? Valid: NAME"),
        (":NAME", "cannot be imported here"),
        (".mine:NAME", "cannot be imported here"),
        ("foreign_broken:NAME", "cannot be imported here (ImportError): install its package"),
        (
            "foreign_unfinished:NAME",
            "cannot be imported here (SyntaxError): python -c 'import foreign_unfinished' shows",
        ),
        (
            "foreign_raising:NAME",
            "cannot be imported here (RuntimeError): python -c 'import foreign_raising' shows where",
        ),
        ("foreign_mine:", "unknown name in foreign_mine ''"),
    ],
)
def test_what_is_not_there_is_one_line(mine: Path, name: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        lookup("word", name, {"name": 1})
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert "/home" not in str(caught.value)  # a client's error reaches the server


def test_an_edited_file_has_another_digest(mine: Path) -> None:
    before = digest("foreign_mine:NAME")
    assert before == digest("foreign_mine:NAME")
    mine.write_text("NAME = 'other'\n")
    assert digest("foreign_mine:NAME") != before


@pytest.mark.parametrize("name", ["mine.net", "mine.net.build"])
def test_an_import_path_without_its_colon_is_told_how_it_is_written(name: str) -> None:
    """mine.net is nearer to lenet than to nothing, and no misspelt entry of a list has a dot."""
    with pytest.raises(ConfigError, match=r"your own is written package.module:NAME, with a colon"):
        lookup("model", name, {"lenet": 1})
