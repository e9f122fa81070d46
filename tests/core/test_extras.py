"""Extras are pyproject.toml's, and every room imports with the packages of its own extras and no others."""

import re
import subprocess
import sys
import tomllib
from importlib import metadata

from prunella.core.extras import EXTRAS, extra_of, require
from tests.test_layout import MODULES, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ROOMS = {path.relative_to(ROOT).parts[0] for path in MODULES}
NEEDS = {("server",): {"server", "deploy"}, ("server", "vision", "benchmarks"): {"benchmarks"}}
NEEDS[()] = ROOMS - set.union(*NEEDS.values())  # the base install
CODE = """
import importlib, os, sys
import torch, scipy.optimize, flwr.app, flwr.clientapp, flwr.serverapp, pydantic, typer  # once, for all forks
class Absent:
    def __init__(self, packages):
        self.packages = packages
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
for absent, modules in CASES:
    if not (child := os.fork()):
        for name in [name for name in sys.modules if name.partition(".")[0] in absent]:
            del sys.modules[name]
        sys.meta_path.insert(0, Absent(absent))
        for module in modules:
            importlib.import_module(module)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"without {sorted(absent)}")
"""


def distributions(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=;! ]", requirement)[0].lower().replace("_", "-") for requirement in requirements}


def test_extras_are_those_of_the_project() -> None:
    of = metadata.packages_distributions()
    for extra, packages in EXTRAS.items():
        declared = distributions(PROJECT["optional-dependencies"][extra]) - {"prunella"}
        named = {name.lower().replace("_", "-") for package in packages for name in of[package]}
        if extra == "simulation":
            assert named == {"ray"} and declared == {"flwr"}  # which brings it
        else:
            assert named == declared - {"flwr"}, extra


def test_an_error_names_what_to_install() -> None:
    require("server")
    assert (extra_of("torchvision.ops"), extra_of("torch")) == ("vision", None)


def case(extras: tuple[str, ...]) -> tuple[set[str], list[str]]:
    """Packages that are not installed with these extras, and the modules that are to do without."""
    present = {package for extra in extras for package in EXTRAS[extra]}
    absent = {package for packages in EXTRAS.values() for package in packages} - present
    paths = [path for path in MODULES if path.relative_to(ROOT).parts[0] in NEEDS[extras]]
    modules = [".".join(("prunella", *path.relative_to(ROOT).with_suffix("").parts)) for path in paths]
    return absent, [name.removesuffix(".__init__") for name in modules]


def test_rooms_import_with_their_own_extras_only() -> None:
    code = f"CASES = {[case(extras) for extras in NEEDS]!r}\n{CODE}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]
