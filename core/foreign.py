"""Entries by name: those of a visible dict, and a user's own by import path, ``"package.module:NAME"``.

A user's own entry is imported, and so its code runs, where it is looked up: it must be installed there, or be in a
directory of ``PYTHONPATH``. Errors: ``ConfigError``.

>>> lookup("number", "one", {"one": 1}), lookup("number", "math:pi", {"one": 1})
(1, 3.141592653589793)
>>> lookup("number", "on", {"one": 1})
Traceback (most recent call last):
core.errors.ConfigError: unknown number 'on': did you mean 'one'? Valid: one, package.module:NAME
"""

import hashlib
import importlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from prunella.core.errors import ConfigError, unknown

FORM = "package.module:NAME"


def is_foreign(name: str) -> bool:
    """Whether a name is an import path; no name in a registry has a colon."""
    return ":" in name


def unlisted(kind: str, name: str, registry: Iterable[str]) -> ConfigError:
    """The error for a name that is neither in the registry nor an import path. No name in a registry has a dot.

    >>> print(unlisted("model", "mine.net", ["lenet"]))
    unknown model 'mine.net': your own is written package.module:NAME, with a colon before the name
    """
    if "." in name:
        return ConfigError(f"unknown {kind} {name!r}: your own is written {FORM}, with a colon before the name")
    return unknown(kind, name, [*registry, FORM])


def lookup(kind: str, name: str, registry: Mapping[str, Any]) -> Any:
    """The entry of that name in the registry, or the object at that import path."""
    if name in registry:
        return registry[name]
    if not is_foreign(name):
        raise unlisted(kind, name, registry)
    path, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(path)
    except (ImportError, TypeError, ValueError) as error:  # the last two: "", and a relative path
        # The name of a missing module may be told; any other text may hold a path of this machine.
        why = error if isinstance(error, ModuleNotFoundError) else type(error).__name__
        fix = "install its package on every machine, or have PYTHONPATH name its folder"
        raise ConfigError(f"{kind} {name!r} cannot be imported here ({why}): {fix}") from None
    except Exception as error:  # noqa: BLE001 - code of somebody's own, which may raise anything
        shows = f"python -c 'import {path}' shows where"
        raise ConfigError(f"{kind} {name!r} cannot be imported here ({type(error).__name__}): {shows}") from None
    if not hasattr(module, attribute):
        raise unknown(f"name in {path}", attribute, (each for each in vars(module) if not each.startswith("_")))
    return getattr(module, attribute)


def digest(name: str) -> str:
    """Of the file that holds a user's own entry; it changes when the file is edited."""
    lookup("module", name, {})
    file = importlib.import_module(name.partition(":")[0]).__file__
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""
