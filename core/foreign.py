"""Entries by name: those of a visible dict, and somebody's own by import path, ``"package.module:NAME"``.

Somebody's own is imported, and so its code runs, where it is looked up: it must be installed there, or stand in a
directory of ``PYTHONPATH``. Errors: ``ConfigError``.

>>> lookup("number", "one", {"one": 1}), lookup("number", "math:pi", {"one": 1})
(1, 3.141592653589793)
>>> lookup("number", "on", {"one": 1})
Traceback (most recent call last):
core.errors.ConfigError: unknown number 'on': did you mean 'one'? Valid: one
"""

import hashlib
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.errors import ConfigError, unknown


def is_foreign(name: str) -> bool:
    """Whether a name is an import path; no name in a registry has a colon."""
    return ":" in name


def lookup(kind: str, name: str, registry: Mapping[str, Any]) -> Any:
    """The entry of that name, or what stands under it in somebody's own module."""
    if name in registry:
        return registry[name]
    if not is_foreign(name):
        raise unknown(kind, name, registry)
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"{kind} {name!r} cannot be imported here: {error}") from None


def digest(name: str) -> str:
    """Of the file that somebody's own entry stands in: another one once it was edited."""
    lookup("module", name, {})
    file = importlib.import_module(name.partition(":")[0]).__file__
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""
