"""The cryptography of masked sums: key agreement, masks, sealed letters, shares of a secret, signatures.

X25519, HKDF-SHA256, AES-256 in counter mode, AES-256-GCM and Ed25519 from ``cryptography``; Shamir's sharing over
GF(2^128) from PyCryptodome, which Flower depends on and uses for the same.

Not from Flower (``flwr.common.secure_aggregation``, 1.39): its masks. ``pseudo_rand_gen`` folds a seed to 32 bits for
NumPy's Mersenne twister, so whoever tries 2^32 seeds removes them, and it never draws the largest number of its range,
so masked values are not uniform. Its key derivation says nothing of what a key is for, and one curve key serves one
purpose there, too.

Every key here is for one purpose, one round and one pair: ``context`` says which and goes into its derivation.
"""

import hashlib
import secrets
from collections.abc import Mapping

import numpy as np
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from prunella.core.errors import WireError
from prunella.strategies.secure_sum.fixed_point import FixedPoint, Words, unpack

KEY = 32  # bytes of every key and secret
BLOCK = 16  # bytes that PyCryptodome shares at a time
NONCE = 12
SHARE = 2 + KEY  # a number and a share of either block
PROBE = bytes(range(KEY))  # a private key that is no secret: whether a public one is one does not depend on it


def public_of(private: bytes) -> bytes:
    """The public key of an X25519 private key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def voice_of(private: bytes) -> bytes:
    """The public key of an Ed25519 private key."""
    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes, public: bytes, context: bytes) -> bytes:
    """The 256-bit key that two sides share for ``context``. Raises ``WireError`` for a public key that is none."""
    try:
        shared = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:  # of another length, or one of the points that make every agreement zero
        raise WireError("malformed", "a key of another client is none") from None
    return HKDF(hashes.SHA256(), KEY, salt=None, info=b"prunella secure sum v1|" + context).derive(shared)


def require_key(public: bytes) -> None:
    """Raises ``WireError`` for a public key of 32 bytes with which nobody can agree on anything."""
    agree(PROBE, public, b"probe")


def stretched(secret: bytes, context: bytes) -> bytes:
    """A 256-bit key for one use of a uniform secret."""
    return HKDF(hashes.SHA256(), KEY, salt=None, info=b"prunella secure sum v1|" + context).derive(secret)


def mask_words(key: bytes, count: int, form: FixedPoint) -> Words:
    """``count`` uniform words from AES-256 in counter mode. A key is used once."""
    stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(BLOCK))).encryptor()
    return unpack(stream.update(bytes(count * form.width)), form)


def seal(key: bytes, letter: bytes, about: bytes) -> bytes:
    """Encrypted and authenticated together with ``about``, which does not travel."""
    nonce = secrets.token_bytes(NONCE)
    return nonce + AESGCM(key).encrypt(nonce, letter, about)


def unseal(key: bytes, sealed: bytes, about: bytes) -> bytes:
    """The letter. Raises ``WireError`` unless it was sealed with this key about this."""
    try:
        return AESGCM(key).decrypt(sealed[:NONCE], sealed[NONCE:], about)
    except (InvalidTag, ValueError):
        raise WireError("malformed", "a letter of another client does not open") from None


def sign(private: bytes, message: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(private).sign(message)


def signed_by(voice: bytes, signature: bytes, message: bytes) -> bool:
    """Whether ``signature`` of ``message`` is by the key pair with the public key ``voice``."""
    try:
        Ed25519PublicKey.from_public_bytes(voice).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def mark(secret: bytes) -> bytes:
    """What a uniform secret of 256 bits is recognised by when its shares are joined."""
    return hashlib.sha256(b"prunella secure sum v1|mark|" + secret).digest()


def split(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """``count`` shares of a 32-byte secret, of which any ``threshold`` give it back and fewer say nothing of it."""
    blocks = [Shamir.split(threshold, count, secret[at : at + BLOCK], ssss=False) for at in range(0, KEY, BLOCK)]
    return [number.to_bytes(2, "big") + b"".join(parts) for number, *parts in _zipped(blocks)]


def _zipped(blocks: list[list[tuple[int, bytes]]]) -> list[tuple[int, *tuple[bytes, ...]]]:
    return [(column[0][0], *(part for _, part in column)) for column in zip(*blocks, strict=True)]


def join(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret, from at least ``threshold`` shares by their numbers. Raises ``WireError`` for what are no shares.

    Wrong shares give a wrong secret: the caller knows the right one by its public key or its ``mark``.
    """
    chosen = sorted(shares.items())[:threshold]
    whole = len(chosen) == threshold and all(
        len(share) == SHARE and int.from_bytes(share[:2], "big") == number for number, share in chosen
    )
    if not whole:
        raise WireError("malformed", "the shares of a key are not enough, or none")
    blocks = range(2, SHARE, BLOCK)
    columns = ([(number, share[at : at + BLOCK]) for number, share in chosen] for at in blocks)
    return b"".join(Shamir.combine(column, ssss=False) for column in columns)


def added(total: Words, more: Words, sign: int) -> None:
    """Add or subtract in place; words wrap at 2^64, and so do their low bytes at the modulus."""
    (np.add if sign > 0 else np.subtract)(total, more, out=total)
