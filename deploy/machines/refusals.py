"""What Flower says when a SuperNode is not let in, translated into what to do about it.

Flower 1.39 ends with process code 1 for all of these and tells them apart in its log: its own exit codes (305: no
connection, 303: a key without TLS), the SuperLink's error codes (2001: authentication is on and there was no key;
2004: the key is unknown, *or* its last connection still counts as alive, which the SuperLink does not tell apart), and
gRPC's words on TLS.
"""

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Refusal:
    """A reason and its mend. One that is ``passing`` may be gone in a minute: a SuperNode tries again."""

    text: str
    passing: bool = False


ANOTHER_ADDRESS = Refusal(
    "the SuperLink's certificate is for other addresses than the one given here: use one of those, or make a new one "
    "with `prunella keys --host`"
)
ANOTHER_AUTHORITY = Refusal(
    "the SuperLink's certificate was not signed by this ca.crt: copy ca.crt from the directory the SuperLink runs "
    "with, and check that this is the SuperLink you meant"
)
NO_TLS = Refusal("the SuperLink speaks without TLS: start it with `prunella superlink --keys`")

# The first that matches is it: a failed handshake ends with exit code 305 as well.
REFUSALS: dict[str, Refusal] = {
    "CERTIFICATE_VERIFY_FAILED": ANOTHER_AUTHORITY,
    "WRONG_VERSION_NUMBER": NO_TLS,
    "Exit Code: 303": Refusal("a key needs TLS: leave out --insecure"),
    "[code: 2001]": Refusal(
        "this SuperLink lets in registered keys only: start with --keys and --name, without --insecure"
    ),
    "[code: 2004]": Refusal(
        "the SuperLink does not know this key, or counts its last connection as alive for up to a minute: register it "
        "with `prunella register --keys` beside the SuperLink, and start one SuperNode a key",
        passing=True,
    ),
    "address already in use": Refusal("the port is taken: choose another with --port"),
    "Exit Code: 305": Refusal("the SuperLink refused the connection; the lines above say why"),
}
WRONG_HOST = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH


def find(log: str) -> Refusal | None:
    """The first reason found in a log, None when there is none.

    >>> find("Exit Code: 305 ... [code: 2004] Failed to activate SuperNode.").passing
    True
    >>> find("SuperNode ID: 12")
    """
    return next((refusal for words, refusal in REFUSALS.items() if words in log), None)


def greet(host: str, port: int, ca: Path, seconds: float = 5.0) -> Refusal | None:
    """Why a TLS handshake with the SuperLink fails; None when it succeeds, and when nobody answers yet.

    Flower tries again for ever when the certificate is for another address, and its log does not say so.
    """
    context = ssl.create_default_context(cafile=str(ca))
    context.set_alpn_protocols(["h2"])
    try:
        with socket.create_connection((host, port), seconds) as plain:
            context.wrap_socket(plain, server_hostname=host).close()
    except ssl.SSLCertVerificationError as error:
        return ANOTHER_ADDRESS if error.verify_code in WRONG_HOST else ANOTHER_AUTHORITY
    except ssl.SSLError as error:
        return NO_TLS if error.reason == "WRONG_VERSION_NUMBER" else None
    except OSError:
        return None
    return None
