"""The test files that ``make newest`` runs: of those that it is given, the ones that touch Flower.

A test touches Flower if it names it, or imports a module of ours that does: its Python packages or its commands; or if
it is a federation that is marked ``newest``. What does none of it is the same under every release of Flower, and ``make
unit`` has run it; so is whether a model may lie on another device, which is between it and PyTorch.
"""

import re
import sys
from collections.abc import Iterable

from tests.changed import ROOT, imported, module_name

DEVICES = "test_another_device.py"
FLOWER = re.compile(r"\bflwr\b|mark\.newest|\bflower[-_](release|super|server|client)")


def modules_of_flower() -> set[str]:
    """``prunella.wire.records``, which imports ``flwr``, and all others that do or name it."""
    ours = (path for path in ROOT.glob("*/**/*.py") if not path.relative_to(ROOT).parts[0].startswith("."))
    return {module_name(str(path.relative_to(ROOT))) for path in ours if FLOWER.search(path.read_text())}


def touching(places: Iterable[str]) -> list[str]:
    """The test files at these places, which are files or folders, that touch Flower."""
    modules = modules_of_flower()
    found = [(ROOT / place).rglob("test_*.py") if (ROOT / place).is_dir() else [ROOT / place] for place in places]
    files = sorted({file for some in found for file in some if file.name != DEVICES})
    texts = {file.relative_to(ROOT).as_posix(): file.read_text() for file in files}
    return [name for name, text in texts.items() if FLOWER.search(text) or imported(text) & modules]


if __name__ == "__main__":
    print("\n".join(touching(sys.argv[1:])))
