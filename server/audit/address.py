"""The Ray cluster that runs the audits of a run: its address, checked before anything is sent there.

The setting ``audit-cluster`` is ``ray://HOST:PORT``, the port of Ray's client server (10001 by default), or ``auto``:
what ``RAY_ADDRESS`` says in the environment of the ServerApp, so that the run's settings, which every client reads, do
not name the cluster. Jobs hold what clients sent. They leave this machine encrypted or not at all: any address but
loopback needs Ray's own TLS, which asks both sides for a certificate.

Errors: ``ConfigError`` with the fix; ``ConnectionError`` where nothing answers. Neither quotes the address, which is
nobody's business in a report.
"""

import os
import socket
from urllib.parse import urlsplit

from prunella.core.errors import ConfigError
from prunella.core.extras import require
from prunella.core.hosts import is_loopback

AUTO, SCHEME = "auto", "ray"
ANSWERING = 5.0  # seconds


def parts(address: str) -> tuple[str, int]:
    """
    >>> parts("ray://gpu.example:10001")
    ('gpu.example', 10001)
    """
    wrong = ConfigError("audit-cluster is not ray://HOST:PORT, for example ray://gpu.example.org:10001, or auto")
    try:
        found = urlsplit(address)
        host, port = found.hostname, found.port
    except ValueError:  # a port that is no number, or too large
        raise wrong from None
    if not host or not port or (found.scheme, found.username, found.path + found.query) != (SCHEME, None, ""):
        raise wrong
    return host, port


def cluster_address(setting: str) -> str:
    """The address that ``setting`` stands for on this machine, which may send jobs there."""
    require("simulation")
    address = os.environ.get("RAY_ADDRESS", "") if setting == AUTO else setting
    if not address:
        raise ConfigError("audit-cluster=auto: set RAY_ADDRESS=ray://HOST:10001 in the environment of the server")
    host, _ = parts(address)
    if not is_loopback(host) and os.environ.get("RAY_USE_TLS", "").lower() not in ("1", "true"):  # as Ray reads it
        raise ConfigError(
            "audit-cluster: clients' updates would leave this machine unencrypted: set RAY_USE_TLS=1 and Ray's "
            "certificates in the server's environment (docs/deployment.md), or use a tunnel that begins on loopback"
        )
    return address


def require_answer(address: str) -> None:
    """Raise ``ConnectionError`` unless something listens there. Ray itself would try for half a minute."""
    try:
        socket.create_connection(parts(address), timeout=ANSWERING).close()
    except OSError as error:
        raise ConnectionError(f"nothing answers at audit-cluster: {type(error).__name__}") from None


def check_cluster(setting: str, here: bool) -> None:
    """Raise ``ConfigError`` for what can be known to be wrong before a run: everything ``here``, on the machine that
    the server will run on; elsewhere the form."""
    if not here:
        if setting != AUTO:
            parts(setting)
        return
    try:
        require_answer(cluster_address(setting))
    except ConnectionError as error:
        raise ConfigError(f"{error}: start Ray there, or leave audit-cluster empty") from None
