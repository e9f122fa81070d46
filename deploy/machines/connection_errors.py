"""What Flower logs when a SuperNode cannot connect, translated into what to do about it.

Flower 1.39 ends with process code 1 for all of these and tells them apart in its log: its own exit codes (305: no
connection, 303: a key without TLS), the SuperLink's error codes (2001: authentication is on and there was no key;
2004: the key is unknown, removed, *or* its last connection still counts as alive, which the SuperLink does not tell
apart), and gRPC's messages about TLS.
"""

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ConnectionProblem:
    """A reason and its fix. A ``temporary`` one may be gone in a minute: the SuperNode tries again."""

    text: str
    temporary: bool = False


ANOTHER_ADDRESS = ConnectionProblem(
    "the SuperLink's certificate is for other addresses than the one given here: use one of those, or make a new one "
    "with `prunella keys --host`"
)
ANOTHER_AUTHORITY = ConnectionProblem(
    "the SuperLink's certificate was not signed by this ca.crt: copy ca.crt from the directory the SuperLink runs "
    "with, and check that this is the SuperLink you meant"
)
ANOTHER_TIME = ConnectionProblem(
    "the SuperLink's certificate is not valid at the time that this machine's clock shows: set the clock, or, where it "
    "is right, renew the certificate on the SuperLink's machine (`prunella keys --host`) and start it again"
)
NO_TLS = ConnectionProblem("the SuperLink speaks without TLS: start it with `prunella superlink --keys`")

# The first that matches counts: a failed handshake ends with exit code 305 as well.
PROBLEMS: dict[str, ConnectionProblem] = {
    "certificate has expired": ANOTHER_TIME,
    "certificate is not yet valid": ANOTHER_TIME,
    "CERTIFICATE_VERIFY_FAILED": ANOTHER_AUTHORITY,
    "WRONG_VERSION_NUMBER": NO_TLS,
    "Exit Code: 303": ConnectionProblem("a key needs TLS: leave out --insecure"),
    "[code: 2001]": ConnectionProblem(
        "this SuperLink lets in registered keys only: start with --keys and --name, without --insecure"
    ),
    "[code: 2004]": ConnectionProblem(
        "the SuperLink does not know this key, was told to keep it out, or counts its last connection as alive for up "
        "to a minute: register it with `prunella register --keys` on the SuperLink's machine (a removed one needs a "
        "new key), and start one SuperNode per key",
        temporary=True,
    ),
    "already in use": ConnectionProblem(
        "the port is taken: stop what holds it, or choose another; of a SuperNode with --port, of a SuperLink with "
        "--fleet or --control"
    ),
    "Exit Code: 305": ConnectionProblem("the SuperLink refused the connection: the lines above say why"),
}
WRONG_TIME = (9, 10)  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED
WRONG_HOST = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH


def diagnose(log: str) -> ConnectionProblem | None:
    """The first reason found in a log, None when there is none.

    >>> diagnose("Exit Code: 305 ... [code: 2004] Failed to activate SuperNode.").temporary
    True
    >>> diagnose("SuperNode ID: 12")
    """
    return next((problem for text, problem in PROBLEMS.items() if text in log), None)


def check_tls(host: str, port: int, ca: Path, seconds: float = 5.0) -> ConnectionProblem | None:
    """Why a TLS handshake with the SuperLink fails; None when it succeeds, and when nothing answers yet.

    Flower tries again forever when the certificate is for another address, and its log does not say so.
    """
    context = ssl.create_default_context(cafile=str(ca))
    context.set_alpn_protocols(["h2"])
    try:
        with socket.create_connection((host, port), seconds) as plain:
            context.wrap_socket(plain, server_hostname=host).close()
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in WRONG_TIME:
            return ANOTHER_TIME
        return ANOTHER_ADDRESS if error.verify_code in WRONG_HOST else ANOTHER_AUTHORITY
    except ssl.SSLError as error:
        return NO_TLS if error.reason == "WRONG_VERSION_NUMBER" else None
    except OSError:
        return None
    return None
