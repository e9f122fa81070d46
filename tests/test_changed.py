"""What ``make quick`` picks."""

from tests.changed import ALWAYS, MANY, affected_by, chosen, imported, module_name

TESTS = {
    "tests/core/test_trees.py": "from prunella.core.trees import Tree",
    "tests/attacks/test_attacks.py": "from prunella import attacks",
    "tests/wire/test_wire.py": "import prunella.core.trees\nfrom tests.local_grid import LocalGrid",
    "tests/test_threats.py": "PAGE = 'docs/threats.md'",
}


def of(name: str, tests: dict[str, str] = TESTS, notes: list[str] | None = None) -> list[str]:
    imports = {path: imported(text) for path, text in tests.items()}
    return affected_by(name, tests, imports, [] if notes is None else notes)


def test_a_module_has_its_namesake_its_examples_and_the_tests_that_import_it() -> None:
    examples = "tests/test_docstrings.py::test_examples[core/trees.py]"
    assert set(of("core/trees.py")) == {"tests/core/test_trees.py", examples, "tests/wire/test_wire.py"}
    assert set(of("attacks/__init__.py")) == {"tests/attacks/test_attacks.py"}


def test_a_test_has_itself_a_helper_those_that_import_it_and_a_page_those_that_name_it() -> None:
    assert of("tests/core/test_trees.py") == ["tests/core/test_trees.py"]
    assert of("tests/local_grid.py") == ["tests/wire/test_wire.py"]
    assert of("docs/threats.md") == ["tests/test_threats.py"] and of("docs/other.md") == []


def test_of_what_everybody_uses_the_namesake_alone_is_run_and_it_says_so() -> None:
    many = {f"tests/core/test_{number}.py": "import prunella.core.trees" for number in range(MANY)}
    notes: list[str] = []
    found = of("core/trees.py", TESTS | many, notes)
    assert found[0] == "tests/core/test_trees.py" and not set(found) & many.keys()
    assert f"core/trees.py: {MANY + 2} test files" in notes[0]


def test_the_layout_is_always_checked() -> None:
    assert chosen([]) == ([ALWAYS], [])
    assert set(chosen(["tests/test_changed.py"])[0]) == {ALWAYS, "tests/test_changed.py"}


def test_names_of_modules() -> None:
    names = {
        "core/trees.py": "prunella.core.trees",
        "attacks/__init__.py": "prunella.attacks",
        "prunella/__init__.py": "prunella",
        "tests/local_grid.py": "tests.local_grid",
    }
    assert {file: module_name(file) for file in names} == names
