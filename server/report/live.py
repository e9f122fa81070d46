"""The live page: the report of a running run, served beside ``/metrics`` for those without Grafana.

It is the page of ``server.report.build``, rendered again when it is requested and the run store has changed; an open
page asks for itself every ``EVERY`` milliseconds. Pictures, of controls and of clients that consented to pictures, are
shown on loopback only: a port that was opened for a monitoring system shows the figures and withholds every picture.

There is no login. On loopback, only requests that address this machine by a loopback name are answered, at any path.
Otherwise a web site open in a browser on this machine could point its own name here and read the page (DNS rebinding).
A port that was opened to others answers ``/metrics`` under every name, for a monitoring system has its own for it, and
shows the page under an address, a name of one word, or this machine's own name.
"""

import base64
import hashlib
from collections.abc import Callable, Iterable
from http import HTTPStatus
from logging import WARNING
from pathlib import Path
from threading import Lock
from typing import Any

from flwr.common.logger import log
from markupsafe import Markup

from prunella.core.hosts import hostname, is_known, is_loopback
from prunella.server.report.build import context, render
from prunella.server.report.page import SCRIPT
from prunella.server.store.schema import AUDIT_LINES, METRIC_LINES, RUN

EVERY = 3000  # milliseconds between two looks of an open page
Start = Callable[[str, list[tuple[str, str]]], object]
Application = Callable[[dict[str, Any], Start], Iterable[bytes]]

_SCRIPT = SCRIPT.replace("EVERY", str(EVERY))
_HASH = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
HEADERS = (
    ("Content-Type", "text/html; charset=utf-8"),
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    (
        "Content-Security-Policy",
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{_HASH}'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
)


class Live:
    """The page of the run in ``run_dir``; with ``pictures``, also the pictures that clients consented to."""

    def __init__(self, run_dir: Path, pictures: bool) -> None:
        self.run_dir, self.pictures = run_dir, pictures
        self._lock = Lock()
        self._seen: tuple[tuple[int, int], ...] | None = None
        self._page = b""

    def _state(self) -> tuple[tuple[int, int], ...]:
        paths = [self.run_dir / name for name in (RUN, METRIC_LINES, AUDIT_LINES)]
        return tuple((s.st_mtime_ns, s.st_size) for s in (path.stat() for path in paths if path.exists()))

    def page(self) -> bytes:
        """The page as it is now. It is rendered once per change, however many clients read it."""
        with self._lock:
            if (state := self._state()) != self._seen:
                shown = context(self.run_dir, live=True) | {"script": Markup(_SCRIPT)}
                if not self.pictures:
                    shown |= {"strips": [], "strips_left": 0, "withheld": bool(shown["strips"])}
                self._page, self._seen = render(shown).encode(), state
            return self._page


def application(metrics: Application, host: str, run_dir: Path | None) -> Application:
    """A WSGI application: metrics at ``/metrics`` and, with ``run_dir``, the live page at ``/``.

    ``host`` is the address that the server listens on. A request is refused before its path is looked at."""
    guarded = is_loopback(host)
    live = Live(run_dir, pictures=guarded) if run_dir else None

    def serve(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        asked = hostname(environ.get("HTTP_HOST", ""))
        if guarded and not is_loopback(asked):
            return _plain(start, HTTPStatus.FORBIDDEN)
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return _plain(start, HTTPStatus.METHOD_NOT_ALLOWED)
        if environ["PATH_INFO"] == "/metrics":
            return metrics(environ, start)
        if live is None or environ["PATH_INFO"] != "/":
            return _plain(start, HTTPStatus.NOT_FOUND)
        if not is_known(asked):
            return _plain(start, HTTPStatus.FORBIDDEN)
        try:
            page = live.page()
        except Exception as error:  # noqa: BLE001 - a failing page must not end a run, and its error must not show data
            log(WARNING, "the live page could not be made: %s", type(error).__name__)
            return _plain(start, HTTPStatus.INTERNAL_SERVER_ERROR)
        start("200 OK", [*HEADERS, ("Content-Length", str(len(page)))])
        return [page] if environ["REQUEST_METHOD"] == "GET" else []

    return serve


def _plain(start: Start, status: HTTPStatus) -> list[bytes]:
    start(f"{status.value} {status.phrase}", [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{status.phrase}\n".encode()]
