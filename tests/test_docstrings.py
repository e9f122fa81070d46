"""The examples in docstrings print what they say, in the modules as they are imported: ``prunella.<room>``."""

import doctest
import importlib
from pathlib import Path

import pytest

from tests.test_layout import MODULES, ROOT

WITH_EXAMPLES = [path for path in MODULES if ">>> " in path.read_text()]


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples(path: Path) -> None:
    parts = path.relative_to(ROOT).with_suffix("").parts
    module = importlib.import_module(".".join(("prunella", *(part for part in parts if part != "__init__"))))
    done = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL)
    assert done.attempted and not done.failed
