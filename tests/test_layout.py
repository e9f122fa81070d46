"""The tree is the architecture: imports point down, every module has its test."""

import ast
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.elsewhere import FUNCTIONS

ROOT = Path(__file__).parents[1]
LEVELS = [
    {"core"},
    {"wire", "tasks", "pruning", "privacy"},
    {"attacks", "strategies"},
    {"client", "server"},
    {"flower", "library"},
    {"deploy"},
    {"benchmarks"},
]
ROOMS = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
# Modules of which the same holds as of others: one test asks it of all of them.
TESTED_BY = {
    "attacks/engine/shadow.py": "tests/attacks/test_inverter.py",
    "attacks/dlg.py": "tests/attacks/test_attacks.py",
    "attacks/idlg.py": "tests/attacks/test_attacks.py",
    "attacks/ig.py": "tests/attacks/test_attacks.py",
    "strategies/grasp.py": "tests/strategies/test_snip.py",
}
MODULES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))


def imports(path: Path) -> set[str]:
    """What a module imports of ours, lazily or not, without ``prunella.``."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= (
                {f"{node.module}.{alias.name}" for alias in node.names} if node.module == "prunella" else {node.module}
            )
    return {name.removeprefix("prunella.") for name in found if name.startswith("prunella.")}


# Inside deploy/, from the ground; "" stands for the modules at its top.
DEPLOY = ["", "console", "runtime", "local", "machines", "tools", "cli"]


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    here = room_of(path)
    for name in imports(path):
        there = name.split(".")[0]
        if there != here:
            assert ROOMS[there] < ROOMS[here], f"{here} imports {name}"


@pytest.mark.parametrize("path", [p for p in MODULES if p.is_relative_to(ROOT / "deploy")], ids=lambda p: p.stem)
def test_imports_inside_deploy_point_down(path: Path) -> None:
    here = path.relative_to(ROOT / "deploy").parent.name
    for name in (name for name in imports(path) if name.startswith("deploy.")):
        first = name.split(".")[1]
        there = first if first in DEPLOY else ""
        if there != here:
            assert DEPLOY.index(there) < DEPLOY.index(here), f"{path} imports {name}"
    if here == "machines":
        assert not [name for name in imports(path) if name.startswith("deploy.local")], "what both need lies below both"


def test_the_engine_of_the_claims_knows_no_paper() -> None:
    below = {"engine": ("papers", "speed", "scenarios", "reproduce"), "speed": ("papers", "scenarios", "reproduce")}
    below |= {"papers": ("scenarios", "registry", "reproduce"), "scenarios": ("registry", "reproduce")}
    for path in (p for p in MODULES if room_of(p) == "benchmarks"):
        above = tuple(f"benchmarks.{name}" for name in below.get(path.parent.name, ()))
        assert not [name for name in imports(path) if name.startswith(above)], path


def test_attacks_never_see_a_client_or_a_data_loader() -> None:
    forbidden = ("client", "tasks.data", "tasks.datasets", "tasks.partition")
    for path in (p for p in MODULES if room_of(p) == "attacks"):
        assert not [name for name in imports(path) if name.startswith(forbidden)], path


def test_every_module_has_its_namesake_or_the_test_that_is_named() -> None:
    for path in MODULES:
        name = path.relative_to(ROOT)
        namesake = ROOT / "tests" / name.parent / f"test_{name.name}"
        if test := TESTED_BY.get(name.as_posix()):
            assert not namesake.exists(), f"{name} has a namesake: take it off TESTED_BY"
            assert f'"{name.stem}"' in (ROOT / test).read_text(), f"{test} does not name {name.stem}"
        else:
            assert name.name == "__init__.py" or namesake.exists(), name
    assert TESTED_BY.keys() <= {path.relative_to(ROOT).as_posix() for path in MODULES}


def test_modules_and_functions_stay_small() -> None:
    for path in MODULES:
        text = path.read_text()
        assert text.count("\n") <= 400, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                assert (node.end_lineno or 0) - node.lineno < 60, f"{path}:{node.lineno} {node.name}"


def test_no_two_classes_share_a_name() -> None:
    names = [
        node.name
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    assert not {name for name in names if names.count(name) > 1}


def test_every_module_says_what_it_is() -> None:
    assert not [path for path in MODULES if not ast.get_docstring(ast.parse(path.read_text()))]


def test_packages_are_all_that_is_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {".".join(("prunella", *p.parent.relative_to(ROOT).parts)) for p in MODULES if p.name == "__init__.py"}
    setup = project["tool"]["setuptools"]
    assert set(setup["packages"]) == packages | {"prunella"}
    assert setup["package-dir"] == {f"prunella.{room}": room for room in ROOMS}
    folders = {p.parent for p in MODULES}
    assert not [str(folder) for folder in folders if not (folder / "__init__.py").exists()]


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("*.py")), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_tests_can_be_collected_without_posix(path: Path) -> None:
    """What only POSIX systems have is asked for in functions, or with ``getattr``."""
    missing = {f"{module.__name__}.{name}" for module, names in FUNCTIONS.items() for name in names}
    found, todo = set(), list(ast.parse(path.read_text()).body)
    while todo:
        match todo.pop():
            case ast.FunctionDef() | ast.AsyncFunctionDef() as function:
                todo += [*function.decorator_list, *function.args.defaults]
            case ast.Attribute() as used:
                found.add(ast.unparse(used))
                todo.append(used.value)
            case ast.Lambda():
                pass
            case other:
                todo += ast.iter_child_nodes(other)
    assert not found & missing


def test_nothing_names_a_path_of_one_machine() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    # Spelled apart, so that this file does not find itself.
    words = ["/wo" + "rk/", "/ro" + "ot/", "pypi" + ".org", "files.python" + "hosted"]
    for name in tracked:
        path = ROOT / name
        if path.is_file() and path.suffix in {".py", ".md", ".toml", ".sh", ".yml", ".yaml", "", ".jinja"}:
            text = path.read_text(errors="ignore")
            assert not [word for word in words if word in text], name
