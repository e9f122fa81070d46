"""What Flower says when a SuperNode is not let in, translated into what to do about it.

Flower 1.39 ends with process code 1 for all of these and tells them apart in its log: its own exit codes (305: no
connection, 303: a key without TLS), the SuperLink's error codes (2001: authentication is on and there was no key;
2004: the key is unknown, *or* its last connection still counts as alive, which the SuperLink does not tell apart), and
gRPC's words on TLS.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """A reason and its mend. One that is ``passing`` may be gone in a minute: a SuperNode tries again."""

    text: str
    passing: bool = False


# The first that matches is it: a failed handshake ends with exit code 305 as well. Every word of a key must be there.
REFUSALS: dict[tuple[str, ...], Refusal] = {
    ("CERTIFICATE_VERIFY_FAILED", "Hostname"): Refusal(
        "the SuperLink's certificate is for another address: make new ones with `prunella keys --host` and the address "
        "this SuperNode uses"
    ),
    ("CERTIFICATE_VERIFY_FAILED",): Refusal(
        "the SuperLink's certificate was not signed by this ca.crt: copy ca.crt from the directory the SuperLink runs "
        "with, and check that this is the SuperLink you meant"
    ),
    ("Peer name", "is not in peer certificate"): Refusal(
        "the SuperLink's certificate is for another address: make new ones with `prunella keys --host` and the address "
        "this SuperNode uses"
    ),
    ("WRONG_VERSION_NUMBER",): Refusal("the SuperLink speaks without TLS: start it with `prunella superlink --keys`"),
    ("Exit Code: 303",): Refusal("a key needs TLS: leave out --insecure"),
    ("[code: 2001]",): Refusal(
        "this SuperLink lets in registered keys only: start with --keys and --name, without --insecure"
    ),
    ("[code: 2004]",): Refusal(
        "the SuperLink does not know this key, or counts its last connection as alive for up to a minute: register it "
        "with `prunella register --keys` beside the SuperLink, and start one SuperNode a key",
        passing=True,
    ),
    ("address already in use",): Refusal("the port is taken: choose another with --port"),
    ("Exit Code: 305",): Refusal("the SuperLink refused the connection; the lines above say why"),
}


def find(log: str) -> Refusal | None:
    """The first reason found in a log, None when there is none.

    >>> find("Exit Code: 305 ... [code: 2004] Failed to activate SuperNode.").passing
    True
    >>> find("SuperNode ID: 12")
    """
    for words, refusal in REFUSALS.items():
        if all(word in log for word in words):
            return refusal
    return None
