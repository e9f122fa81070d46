"""Every promise of docs/threats.md names a test that there is; the README's promises lead there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "threats.md").read_text()
ROWS = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| wants")]
TESTS = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)))


def test_every_row_names_a_test_and_what_does_not_stop_them() -> None:
    assert len(ROWS) > 20
    assert not [row[0] for row in ROWS if len(row) != 4 or "::test_" not in row[2] or len(row[3]) < 10]


@pytest.mark.parametrize(("file", "name"), TESTS)
def test_it_is_there(file: str, name: str) -> None:
    tree = ast.parse((ROOT / "tests" / file).read_text())
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_program_of_the_page_is_one_and_has_its_test() -> None:
    named = set(re.findall(r"-m tests\.redteam\.(\w+)", PAGE))
    own = {path.stem for path in (ROOT / "tests" / "redteam").glob("*.py") if "def main" in path.read_text()}
    assert named == own
    tests = (ROOT / "tests" / "redteam" / "test_redteam.py").read_text()
    assert not [name for name in named if f"{name}.attack" not in tests]


def test_the_readme_leads_to_the_page() -> None:
    assert "docs/threats.md" in (ROOT / "README.md").read_text()
