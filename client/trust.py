"""With whom a client's updates may be added up: the owner's word in the node's configuration, not the server's.

``sum-least``  the fewest clients in a masked sum, 3 by default: in a sum of two each can read the other's update
``sum-with``   client numbers, as ``0, 1, 2``: no sum without all of these. Where each of them says so of the others,
               and knows the others' keys, they are in every sum together or in none, and whatever sums a server
               subtracts, of whatever rounds, what is left holds all of them or none (the batches of So et al.,
               "Securing Secure Aggregation", AAAI 2023)
``sum-key``    a file with this site's private key, as ``prunella keys`` makes them (EC, OpenSSH)
``sum-peers``  a file with the public keys of the sites that may be in a sum with this one: a client number and the key
               of that site a line, this site's own among them

With ``sum-key`` the keys of every round are signed, and with ``sum-peers`` those of others are checked: the server then
cannot invent clients, nor put itself between two. Without them it can, and a masked sum protects against a server that
follows the protocol only: what a client knows of the others would be the server's word.

Errors: ``ConfigError``, which names the setting and no file's content.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from prunella.core.errors import ConfigError, DefenseError
from prunella.strategies.secure_sum.participant import Signer
from prunella.strategies.secure_sum.party import Party

LEAST, HARDLY = 3, 2
_ALGORITHM = ec.ECDSA(hashes.SHA384())


@dataclass(frozen=True)
class Trust:
    """The conditions. ``peers`` is None where everybody the server names may be in a sum."""

    least: int = LEAST
    together: frozenset[int] = frozenset()
    signer: Signer | None = field(default=None, repr=False)
    peers: Mapping[int, ec.EllipticCurvePublicKey] | None = None

    def require(self, party: Party) -> None:
        """Raise ``ConfigError`` unless this client may be summed with these."""
        if len(party.clients) < self.least:
            raise ConfigError(
                f"this client's owner takes part in sums of {self.least} clients or more, and {len(party.clients)} "
                "are in this one (sum-least)"
            )
        if missing := sorted(self.together.difference(party.clients)):
            raise ConfigError(f"this client's owner takes part in no sum without client {missing[0]} (sum-with)")
        if self.peers is None:
            return
        for advert in party.adverts:
            key = self.peers.get(advert.client)
            if key is None or not verified(key, advert.signature, advert.signed(party.about)):
                raise ConfigError(
                    f"client {advert.client} did not sign its keys of this round with the one that this client's owner "
                    "knows it by: add its public key to sum-peers, and its own as sum-key at that site"
                )

    def require_left(self, survivors: frozenset[int]) -> None:
        """The owner's word holds for what is opened, too: raise ``DefenseError`` unless it does."""
        if len(survivors) < self.least:
            raise DefenseError("fewer clients are left in the sum than this client's owner asks for (sum-least)")
        if missing := sorted(self.together - survivors):
            raise DefenseError(f"client {missing[0]} is lost, and this one's owner opens no sum without it (sum-with)")


def verified(key: ec.EllipticCurvePublicKey, signature: bytes, message: bytes) -> bool:
    try:
        key.verify(signature, message, _ALGORITHM)
    except InvalidSignature:
        return False
    return True


def read_trust(config: Mapping[str, object]) -> Trust:
    """The conditions in a node's configuration. Raises ``ConfigError``."""
    least = config.get("sum-least", LEAST)
    if type(least) is not int or least < HARDLY:
        raise ConfigError(f"sum-least in the node configuration must be a whole number of at least {HARDLY}")
    together = _numbers(str(config.get("sum-with", "")))
    if ("sum-key" in config) != ("sum-peers" in config):
        raise ConfigError("sum-key and sum-peers in the node configuration need each other: give both or neither")
    if "sum-key" not in config:
        return Trust(least, together)
    return Trust(least, together, _signer(Path(str(config["sum-key"]))), _peers(Path(str(config["sum-peers"]))))


def _numbers(text: str) -> frozenset[int]:
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ConfigError("sum-with in the node configuration must be client numbers with commas between, as 0, 1, 2")
    return frozenset(map(int, parts))


def _signer(path: Path) -> Signer:
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigError("sum-key in the node configuration names no private key that can be read") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError("sum-key must be an EC key, as `prunella keys` makes them")
    private = key
    return lambda message: private.sign(message, _ALGORITHM)


def _peers(path: Path) -> dict[int, ec.EllipticCurvePublicKey]:
    try:
        lines = [line.split(maxsplit=1) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError):
        raise ConfigError("sum-peers in the node configuration names no file that can be read") from None
    peers: dict[int, ec.EllipticCurvePublicKey] = {}
    for parts in lines:
        try:
            number, key = int(parts[0]), serialization.load_ssh_public_key(parts[1].encode())
        except (ValueError, IndexError, UnsupportedAlgorithm):
            raise ConfigError("a line of sum-peers is not `CLIENT-NUMBER PUBLIC-KEY`") from None
        if not isinstance(key, ec.EllipticCurvePublicKey) or number in peers or key in peers.values():
            raise ConfigError("sum-peers must have one EC key for each client number, and no key twice")
        peers[number] = key
    return peers
