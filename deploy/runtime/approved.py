"""A SuperNode that runs bundles its owner has approved, by SHA-256 of their bytes, and no other.

Flower sends the bundle (FAB) of whoever submits a run to every SuperNode, which unpacks and imports it. With
``prunella supernode --approve`` the bundle is hashed first. One that is not approved is neither unpacked nor imported.
Flower keeps unpacked bundles in a directory that the server names, by eight digits of the hash; an approved one is
unpacked into a fresh directory for every message instead, so that what an earlier run left there is not what runs.

``flower.gate`` and all that it needs is imported before anything of the bundle: a bundle's own ``prunella`` would stand
in for it, and is refused. What the import of the bundle raises is told in one text, since it may have read data.

Errors: ``Unapproved``, which the server is told, and at the start ``UsageError``.
"""

import hashlib
import importlib
import io
import json
import logging
import os
import re
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prunella.core.installation import IMPORT_ROOT
from prunella.deploy.errors import UsageError

APPROVED = "PRUNELLA_APPROVED"  # in the environment of a SuperNode's tasks: hashes, and the node's configuration
OURS = ("flower.gate", "flower.loop", "flower.account", "privacy.accounting", "privacy.ledger.ledger")
LATE = ("dp_accounting", "dp_accounting.rdp")  # a second of importing, by the account of a site with a budget
FAILED = "the approved app cannot be loaded here: this client's own log says why"
logger = logging.getLogger(__name__)


class Unapproved(Exception):
    """The bundle is not one that may run here."""


def environment(hashes: Sequence[str], config: Mapping[str, Any]) -> dict[str, str]:
    """What a SuperNode's tasks are to know; neither the server nor an app of an earlier message can change it."""
    return {APPROVED: json.dumps({"hashes": list(hashes), "config": dict(config)})}


def read_approval(given: str) -> str:
    """The hash that ``--approve`` means: of a file, or itself. Raises ``UsageError``."""
    if re.fullmatch(r"[0-9a-fA-F]{64}", given):
        return given.lower()
    path = Path(given)
    if not path.is_file():
        raise UsageError(f"--approve {given} is no file: name what `flwr build` wrote, or its SHA-256 in hex")
    content = path.read_bytes()
    try:
        declared, names = _declared(content)
    except (zipfile.BadZipFile, KeyError, ValueError, AttributeError):
        raise UsageError(f"--approve {given} is no bundle of Flower's (FAB): make it with `flwr build`") from None
    if declared.startswith("prunella."):
        raise UsageError(f"{given} holds Prunella's own app, which needs no --approve: leave it out")
    if "prunella" in names:
        raise UsageError(f"{given} holds a prunella of its own, which is refused: leave it out of fab-include")
    return hashlib.sha256(content).hexdigest()


def _declared(content: bytes) -> tuple[str, set[str]]:
    """The ClientApp that a bundle declares, and the names at its top."""
    with zipfile.ZipFile(io.BytesIO(content)) as bundle:
        names = {name.partition("/")[0].partition(".")[0] for name in bundle.namelist()}
        bundle.getinfo(".info/CONTENT")
        project = tomllib.loads(bundle.read("pyproject.toml").decode())
    return str(project["tool"]["flwr"]["app"]["components"]["clientapp"]), names


def _approval() -> dict[str, Any] | None:
    text = os.environ.get(APPROVED)
    return json.loads(text) if text else None


def _import_ours(late: bool) -> None:
    """Prunella's own modules, from where they are installed, before the bundle's directory is on the path."""
    sys.path.insert(0, str(IMPORT_ROOT))
    try:
        for name in OURS:
            importlib.import_module(f"prunella.{name}")
    finally:
        sys.path.remove(str(IMPORT_ROOT))
    for name in LATE if late else ():
        importlib.import_module(name)


class Bundles:
    """Stands in for two functions of Flower's ``run_clientapp``: its installer, and then its loader's maker."""

    def __init__(self, install: Callable[..., Any], get_loader: Callable[..., Callable[..., Any]]) -> None:
        self._install, self._get_loader = install, get_loader
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._app = Path()

    def install(self, fab_file: bytes, *args: Any, **keywords: Any) -> Any:
        """Flower's ``install_from_fab``; an approved bundle goes into a directory of its own."""
        if (approval := _approval()) is None:
            return self._install(fab_file, *args, **keywords)
        found = hashlib.sha256(fab_file).hexdigest()
        if found not in approval["hashes"]:
            raise Unapproved(f"this site runs approved bundles only; it can approve this one: --approve {found}")
        if "prunella" in _declared(fab_file)[1]:
            raise Unapproved("this site runs its own prunella only: leave the bundle's out of fab-include")
        self._folder = tempfile.TemporaryDirectory(prefix="approved-")
        self._app = Path(self._install(fab_file, Path(self._folder.name), skip_prompt=True))
        return self._app

    def get_loader(self, *args: Any, **keywords: Any) -> Callable[..., Any]:
        """Flower's ``get_load_client_app_fn``; an approved app comes from that directory, behind the gate."""
        approval = _approval()
        return self._get_loader(*args, **keywords) if approval is None else lambda *_: self._load(approval["config"])

    def _load(self, config: Mapping[str, Any]) -> Callable[..., Any]:
        from flwr.clientapp.client_app import ClientApp, LoadClientAppError
        from flwr.supercore.object_ref import load_app

        if self._folder is None:
            raise Unapproved("no bundle was checked")
        _import_ours("epsilon-budget" in config)
        gate = sys.modules["prunella.flower.gate"].Gate
        try:
            project = tomllib.loads((self._app / "pyproject.toml").read_text())
            app = load_app(project["tool"]["flwr"]["app"]["components"]["clientapp"], LoadClientAppError, self._app)
        except Exception:
            logger.exception("the approved app cannot be loaded")
            app = None
        if not isinstance(app, ClientApp):
            raise Unapproved(FAILED)

        def handle(message: Any, context: Any) -> Any:
            try:
                return gate(app, config)(message, context)
            finally:
                self._folder.cleanup() if self._folder else None

        return handle
