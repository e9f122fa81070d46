"""The unit tests of what changed since ``main`` was left, uncommitted work included: what ``make quick`` runs.

A changed test is run itself. Of a changed module, its namesake, its docstring's examples and the tests that import it
are run; of any other file, the tests that name it. Two limits keep it quick, and the standard error names them where
they bite: of a file that more than ``MANY`` test files use (``core.errors``, say) the namesake alone is run, and where
the branch changed more than ``ALL`` test files' worth, only the tests of uncommitted work are.
"""

import ast
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ALWAYS = "tests/test_layout.py"
MANY, ALL = 10, 30


def git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.splitlines() if done.returncode == 0 else []


def branching_point() -> str:
    return (git("merge-base", "HEAD", "main") or git("merge-base", "HEAD", "origin/main") or ["HEAD"])[0]


def changed_files(since: str) -> list[str]:
    """Every file that changed, or came to be, and still exists."""
    names = {*git("diff", "--name-only", since), *git("ls-files", "--others", "--exclude-standard")}
    return sorted(name for name in names if (ROOT / name).is_file())


def module_name(name: str) -> str:
    """``prunella.core.trees`` of ``core/trees.py``, and ``tests.local_grid`` of ``tests/local_grid.py``."""
    parts = Path(name).with_suffix("").parts
    dotted = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return dotted if parts[0] in ("tests", "prunella") else f"prunella.{dotted}"


def imported(text: str) -> set[str]:
    """The modules that a test imports, and the names it takes from them, which may be modules."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def namesake(name: str) -> str:
    path = Path(name)
    return str(Path("tests") / path.parent / f"test_{path.parent.name if path.stem == '__init__' else path.stem}.py")


def affected_by(name: str, tests: dict[str, str], imports: dict[str, set[str]], notes: list[str]) -> list[str]:
    """The tests of one changed file, from the text and the imports of every test. ``notes`` says what is left out."""
    if name in tests:
        return [name]
    if not name.endswith(".py"):
        users = [test for test, text in tests.items() if Path(name).name in text]
        first: list[str] = []
    else:
        users = [test for test, modules in imports.items() if module_name(name) in modules]
        first = [namesake(name)] if namesake(name) in tests else []
        if not name.startswith("tests/") and ">>> " in (ROOT / name).read_text():
            first.append(f"tests/test_docstrings.py::test_examples[{name}]")
    if len(users) > MANY:
        notes.append(f"{name}: {len(users)} test files use it; 'make unit' runs them all")
        users = []
    return [*first, *users]


def chosen(changed: Iterable[str]) -> tuple[list[str], list[str]]:
    """The tests of the changed files, and notes about what was left out."""
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    tests = {path.relative_to(ROOT).as_posix(): path.read_text() for path in paths}
    imports = {name: imported(text) for name, text in tests.items()}
    notes: list[str] = []
    return sorted({ALWAYS}.union(*(affected_by(name, tests, imports, notes) for name in changed))), notes


def main() -> None:
    found, notes = chosen(changed_files(branching_point()))
    if (number := len(found)) > ALL:
        found, notes = chosen(changed_files("HEAD"))
        notes.append(f"{number} tests for the whole branch: only those of uncommitted work are run")
    print("\n".join(notes), file=sys.stderr)
    print("\n".join(found))


if __name__ == "__main__":
    main()
