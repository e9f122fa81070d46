"""Signing a statement and its documents with Ed25519, and checking both without a network.

    attestation.json         {"statement", "documents": {name: sha256}, "signature"}: what is signed, and by whom
    attestation.html, .pdf   the statement to read and to print
    attack_results.json      every audit for other tools

The signature is of statement and documents together, in one canonical form. A key in the file itself proves nothing:
whoever changes the text can sign it again. So a check needs the public key from elsewhere, as the federation gave it
out.
"""

import base64
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from prunella.core.errors import ConfigError, PrunellaError
from prunella.server.attest.statement import FORMAT, canonical, digest_of, digests_of

STATEMENT = "attestation.json"
LARGEST = 64 * 2**20
ALGORITHM, PARTS = "Ed25519", {"algorithm", "public_key", "fingerprint", "value"}


class NotVerified(PrunellaError):
    """What was read is not what was signed, or not by whom it should be."""


def new_key(path: Path) -> Ed25519PrivateKey:
    """A new key in ``path``, readable by its owner only, and its public half beside it (``.pub``). Never overwrites."""
    if there := [each for each in (path, path.with_suffix(".pub")) if each.exists()]:
        raise ConfigError(f"{there[0]} exists, and a new key would not fit it: choose another path, or move it away")
    key = Ed25519PrivateKey.generate()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    for target, content, mode in ((path, key.private_bytes(*plain), 0o600), (path.with_suffix(".pub"), public, 0o644)):
        with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
    return key


def private_key(path: Path) -> Ed25519PrivateKey:
    """Raises ``ConfigError`` for a file that has none, or that others may read."""
    if path.stat().st_mode & 0o077:
        raise ConfigError(f"{path} can be read by others, so that it proves nothing: chmod 600, or make a new one")
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{path} is no Ed25519 key in PEM: let `prunella attest` make one with --key")
    return key


def public_key(path: Path) -> Ed25519PublicKey:
    """Raises ``ConfigError`` for a file that has none."""
    try:
        key = serialization.load_pem_public_key(path.read_bytes())
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}: name the .pub file that the federation gave out") from None
    except (OSError, ValueError):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"{path} is no Ed25519 public key in PEM: take the .pub file that the federation gave out")
    return key


def _raw(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)


def fingerprint(key: Ed25519PublicKey) -> str:
    """As OpenSSH writes those of its keys: a digest of 256 bits."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(_raw(key)).digest()).decode().rstrip("=")


def signed(statement: Mapping[str, Any], documents: Mapping[str, str], key: Ed25519PrivateKey) -> dict[str, Any]:
    """The content of ``attestation.json``."""
    body = {"statement": dict(statement), "documents": dict(documents)}
    signature = {
        "algorithm": ALGORITHM,
        "public_key": base64.b64encode(_raw(key.public_key())).decode(),
        "fingerprint": fingerprint(key.public_key()),
        "value": base64.b64encode(key.sign(canonical(body))).decode(),
    }
    return {**body, "signature": signature}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A name that stands twice would be read in one way here and in another elsewhere."""
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a name stands twice")
    return dict(pairs)


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > LARGEST:
            raise ValueError("too large")
        found = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_once)
    except FileNotFoundError:
        raise NotVerified(f"there is no {path.name} beside it: a document alone carries no signature") from None
    except (OSError, ValueError, RecursionError):
        raise NotVerified(f"{path.name} cannot be read as an attestation") from None
    if not isinstance(found, dict) or found.keys() != {"statement", "documents", "signature"}:
        raise NotVerified(f"{path.name} has other parts than statement, documents and signature")
    return found


def _check_signature(found: Mapping[str, Any], key: Ed25519PublicKey) -> None:
    body = {name: found[name] for name in ("statement", "documents")}
    try:
        given = base64.b64decode(found["signature"]["public_key"], validate=True)
        value = base64.b64decode(found["signature"]["value"], validate=True)
        key.verify(value, canonical(body))
    except (InvalidSignature, KeyError, TypeError, ValueError):
        raise NotVerified(
            "the signature is not that of this key over this text: it was changed, or signed by another"
        ) from None
    if given != _raw(key) or found["signature"].get("fingerprint") != fingerprint(key):
        raise NotVerified("the key named in the file is not the one that signed it")
    if found["signature"].keys() != PARTS or found["signature"]["algorithm"] != ALGORITHM:
        raise NotVerified("its signature has other parts than were signed for: words were added to it")


def verify(path: Path, key: Ed25519PublicKey, run: Path | None = None) -> list[str]:
    """What was checked, as sentences. ``path`` is ``attestation.json`` or a document beside it; ``run`` is the folder
    of the run, whose files are compared with their digests. Raises ``NotVerified``."""
    home = path if path.is_dir() else path.parent
    found = _read(home / STATEMENT)
    _check_signature(found, key)
    statement, documents = found["statement"], found["documents"]
    if not isinstance(statement, dict) or statement.get("format") != FORMAT or not isinstance(documents, dict):
        raise NotVerified(f"it is signed, but not an attestation of the format {FORMAT}")
    if not path.is_dir() and path.name not in (STATEMENT, *documents):
        raise NotVerified(f"{path.name} is none of the documents that were signed")
    for name, digest in documents.items():
        if not (home / name).is_file() or Path(name).name != name:
            raise NotVerified(f"{name} was signed and is not there")
        if digest_of(home / name) != digest:
            raise NotVerified(f"{name} is not what was signed")
    like = {each.name for each in home.iterdir() if each.name.casefold().startswith("attestation.")}
    beside = sorted(like - {STATEMENT, *documents})
    if beside:
        raise NotVerified(f"{beside[0]} lies beside it and was not signed")
    said = [f"signed by {fingerprint(key)}: run {statement['run']}, made {statement['made']}"]
    said.append(f"{', '.join((STATEMENT, *documents))} are what was signed")
    return said + ([_of_run(statement, run)] if run is not None else [])


def _of_run(statement: Mapping[str, Any], run: Path) -> str:
    wanted = {name: digest for name, digest in statement["digests"].items() if name not in ("settings", "code")}
    now = digests_of(run)
    for name in sorted(wanted.keys() | now.keys()):
        if now.get(name) != wanted.get(name):
            raise NotVerified(f"{name} of the run is not what was attested")
    return f"{', '.join(wanted)} of the run are what was attested"
