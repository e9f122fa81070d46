"""A client that runs no code but its owner's, and takes part only where the run's bundle is that code, file by file.

Flower sends the app's bundle (FAB) from whoever submits a run to every SuperNode, which unpacks and imports it. That is
convenient, but the conditions that a client's owner sets (``client.policy``) would then be checked by somebody else's
code. ``prunella supernode`` with ``--require`` or ``--epsilon-budget`` therefore unpacks no bundle and runs what is
installed. It still checks the bundle, since two releases do not understand each other: every file in it must be
equal to the one installed here, and the ClientApp must be Prunella's. Dependencies are never installed at run time.

Errors: ``ForeignCode``, which the server is told; it names a file of the bundle.
"""

import io
import os
import tomllib
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from prunella.core.installation import IMPORT_ROOT, ROOMS

OWN_CODE = "PRUNELLA_OWN_CODE"  # in the environment of a SuperNode's tasks: 1, where this is asked for
CLIENT_APP = "prunella.client.app:app"
TEXTS = ("LICENSE", "README.md", ".info/CONTENT")  # never imported; Flower checks the last against the files itself
DECLARATION = "pyproject.toml"


class ForeignCode(Exception):
    """The bundle holds code that is not installed here."""


def check_bundle(content: bytes, roots: Sequence[Path] = (ROOMS, IMPORT_ROOT)) -> None:
    """Raise ``ForeignCode`` unless every file of the bundle is that of one of ``roots``."""
    with zipfile.ZipFile(io.BytesIO(content)) as bundle:
        for name in bundle.namelist():
            if name.endswith("/") or name in TEXTS:
                continue
            if name == DECLARATION:
                _check_declaration(bundle.read(name))
            elif not any(_same(bundle.read(name), root, PurePosixPath(name)) for root in roots):
                raise ForeignCode(
                    f"this client runs its own release only, and {name!r} of the run's bundle is not in it: submit "
                    "with the same release"
                )


def _same(content: bytes, root: Path, name: PurePosixPath) -> bool:
    """Whether a plain file of this name lies below ``root`` and has this content."""
    if name.is_absolute() or ".." in name.parts:
        return False
    path = root / name
    return path.is_file() and path.read_bytes() == content


def _check_declaration(content: bytes) -> None:
    """The one file that may differ, since it holds a run's settings: its ClientApp must be Prunella's."""
    app = tomllib.loads(content.decode()).get("tool", {}).get("flwr", {}).get("app", {})
    if app.get("components", {}).get("clientapp") != CLIENT_APP:
        raise ForeignCode(f"this client runs its own release only, and the run's ClientApp is not {CLIENT_APP}")


def _required() -> bool:
    return os.environ.get(OWN_CODE) == "1"


def checked(install: Callable[..., Any]) -> Callable[..., Any]:
    """Flower's ``install_from_fab``; with ``OWN_CODE`` it checks the bundle and unpacks nothing."""

    def check_first(fab_file: bytes, *args: Any, **keywords: Any) -> Any:
        if not _required():
            return install(fab_file, *args, **keywords)
        check_bundle(fab_file)
        return IMPORT_ROOT

    return check_first


def loading_own(get_loader: Callable[..., Callable[..., Any]]) -> Callable[..., Callable[..., Any]]:
    """Flower's ``get_load_client_app_fn``; with ``OWN_CODE`` it loads what is installed here.

    Flower loads from the directory that the *server* names by app, version and hash, whatever bundle came with it. It
    could name one that an earlier run left before this client had conditions.
    """

    def get(*args: Any, **keywords: Any) -> Callable[..., Any]:
        if not _required():
            return get_loader(*args, **keywords)
        from flwr.clientapp.client_app import LoadClientAppError
        from flwr.supercore.object_ref import load_app

        return lambda *_: load_app(CLIENT_APP, LoadClientAppError, IMPORT_ROOT)

    return get
