"""Certificates and keys of a federation across machines, made with the ``cryptography`` package.

    DIR/ca.crt, ca.key                      the federation's own authority; ca.key stays where it was made
    DIR/superlink.crt, superlink.key        TLS of the SuperLink, for localhost, 127.0.0.1, ::1 and the hosts given
    DIR/supernodes/NAME, NAME.pub           a key pair per SuperNode, which signs its requests with NAME (OpenSSH)

A SuperNode's machine gets ``ca.crt`` and its own ``supernodes/NAME``, nothing else. TLS proves the SuperLink to the
SuperNodes; the signature proves a SuperNode to the SuperLink (Flower tolerates 300 s of difference between clocks).
Directories are 0700, private files 0600, from the moment they exist; nothing is ever overwritten.
"""

import datetime
import ipaddress
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from prunella.deploy.errors import UsageError, why

ALWAYS = ("localhost", "127.0.0.1", "::1")
CA_DAYS, SUPERLINK_DAYS = 3650, 825  # 825 days is the most that common TLS stacks accept of a server
SKEW = datetime.timedelta(hours=1)  # a machine whose clock is slow must not refuse a new certificate
PUBLIC = (".crt", ".pub")
SOON = datetime.timedelta(days=30)  # before the end of a certificate: time to renew it at leisure
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
# Not a port, a URL or an address with a typing error: TLS compares names letter by letter, and would match none. Digits
# that are too many for a port may be a container's name.
HOST = re.compile(rf"(?:\*\.)?(?:{LABEL}\.)*(?!\d+$){LABEL}|\d{{6,63}}")


class KeyFileError(UsageError):
    """A key or certificate that is missing, invalid, or would be overwritten."""


@dataclass(frozen=True)
class Keys:
    """The paths in a directory of keys."""

    path: Path

    @property
    def ca(self) -> Path:
        return self.path / "ca.crt"

    @property
    def ca_key(self) -> Path:
        return self.path / "ca.key"

    @property
    def certificate(self) -> Path:
        return self.path / "superlink.crt"

    @property
    def certificate_key(self) -> Path:
        return self.path / "superlink.key"

    def supernode(self, name: str) -> Path:
        return self.path / "supernodes" / name

    def public(self) -> list[Path]:
        """The public keys of all SuperNodes, by name."""
        return sorted((self.path / "supernodes").glob("*.pub"))


def general_name(host: str) -> x509.GeneralName:
    """What a certificate says of a host: an IPv6 address has no brackets there, and a name no dot at its end.

    >>> general_name("10.0.0.1"), general_name("superlink.example.org")
    (<IPAddress(value=10.0.0.1)>, <DNSName(value='superlink.example.org')>)
    """
    try:
        return x509.IPAddress(ipaddress.ip_address(host[1:-1] if host[:1] + host[-1:] == "[]" else host))
    except ValueError:
        host = host.removesuffix(".")
    if not HOST.fullmatch(host):
        raise KeyFileError(f"{host!r} is neither a host name nor an IP address: write one with --host, without a port")
    return x509.DNSName(host)


def _builder(subject: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def make_ca() -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """A new authority that may sign servers and no further authority."""
    key = ec.generate_private_key(ec.SECP384R1())
    builder = _builder("Prunella federation CA", _name("Prunella federation CA"), key.public_key(), CA_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return key, builder.add_extension(_usage(authority=True), critical=True).sign(key, hashes.SHA384())


def make_certificate(
    hosts: Iterable[str], ca_key: ec.EllipticCurvePrivateKey, ca: x509.Certificate
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """A server key and its certificate for ``hosts`` and this machine itself."""
    key = ec.generate_private_key(ec.SECP384R1())
    names = list(dict.fromkeys(map(general_name, (*ALWAYS, *hosts))))
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    builder = (
        _builder("Prunella SuperLink", ca.subject, key.public_key(), SUPERLINK_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(authority, critical=False)
    )
    return key, builder.sign(ca_key, hashes.SHA384())


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)


def certificates(hosts: Sequence[str]) -> dict[str, bytes]:
    """New files of a federation by their names in its directory."""
    ca_key, ca = make_ca()
    authority = {"ca.key": _pem(ca_key), "ca.crt": ca.public_bytes(serialization.Encoding.PEM)}
    return authority | signed(hosts, ca_key, ca)


def signed(hosts: Sequence[str], ca_key: ec.EllipticCurvePrivateKey, ca: x509.Certificate) -> dict[str, bytes]:
    """A SuperLink's new key and certificate by the files' names."""
    key, certificate = make_certificate(hosts, ca_key, ca)
    return {"superlink.key": _pem(key), "superlink.crt": certificate.public_bytes(serialization.Encoding.PEM)}


def renewed(keys: Keys, hosts: Sequence[str]) -> dict[str, bytes]:
    """A SuperLink's new files by the authority that is there, which every site trusts already. Raises
    ``KeyFileError``."""
    if keys.certificate.exists():
        raise KeyFileError(
            f"{keys.certificate} exists already and is never overwritten: move it and superlink.key away to have new "
            "ones by the same ca.key, or use another --out"
        )
    if not keys.ca_key.exists():
        raise KeyFileError(f"{keys.ca_key} is missing: put it back for this, or make another authority with --out")
    try:
        ca = x509.load_pem_x509_certificate(keys.ca.read_bytes())
        ca_key = serialization.load_pem_private_key(keys.ca_key.read_bytes(), None)
        if not isinstance(ca_key, ec.EllipticCurvePrivateKey) or ca.public_key() != ca_key.public_key():
            raise ValueError("two authorities")
    except (OSError, ValueError):
        raise KeyFileError(
            f"{keys.ca_key} is not the key of {keys.ca}: take both from one directory, or use another --out"
        ) from None
    return signed(hosts, ca_key, ca)


def key_pair(name: str) -> dict[str, bytes]:
    """A SuperNode's new key pair by the files' names."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return {f"supernodes/{name}": private, f"supernodes/{name}.pub": public + b"\n"}


def certified(certificate: Path) -> list[str]:
    """The hosts other than this machine's own names that a SuperLink's certificate is for.

    Raises ``KeyFileError`` where it is no certificate.
    """
    try:
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound):
        raise KeyFileError(
            f"{certificate} cannot be read as a SuperLink's certificate: make new keys with --out"
        ) from None
    return [str(name.value) for name in names if str(name.value) not in ALWAYS]


def write_new(path: Path, content: bytes) -> None:
    """Write a file that must not exist yet: 0644 for what is public, 0600 for all else."""
    mode = 0o644 if path.suffix in PUBLIC else 0o600
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
    except FileExistsError:
        raise _exists(path) from None


def _exists(path: Path) -> KeyFileError:
    return KeyFileError(f"{path} exists already and is never overwritten: move it away, or use another --out")


def private_directory(path: Path) -> None:
    """Make a directory that only its owner may enter. In a checkout, git ignores a new one: `git add .`
    would publish it."""
    new = not path.exists()
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    if new:
        (path / ".gitignore").write_text("*\n")


def make(out: Path, names: Sequence[str], hosts: Sequence[str]) -> list[Path]:
    """Write all the files asked for, or none if one exists already; their paths. Raises ``KeyFileError``.

    In a directory that has certificates already, SuperNodes are added to them, unless ``hosts`` asks for new ones. In
    one whose SuperLink's files were moved away, its authority signs new ones.
    """
    for name in names:
        if not NAME.fullmatch(name) or Path(name).suffix in PUBLIC:
            raise KeyFileError(f"{name!r} cannot name a SuperNode: use letters, digits, '.', '_', '-'")
    keys = Keys(out)
    if keys.certificate.exists() and names and not hosts:
        files: dict[str, bytes] = {}
    else:
        files = renewed(keys, hosts) if keys.ca.exists() else certificates(hosts)
    for name in dict.fromkeys(names):
        files |= key_pair(name)
    for name in files:
        if (out / name).exists():
            raise _exists(out / name)
    try:
        for directory in (out, out / "supernodes"):
            private_directory(directory)
        for name, content in files.items():
            write_new(out / name, content)
    except OSError as error:
        raise KeyFileError(f"cannot write to {out} ({why(error)}): choose another directory with --out") from None
    return [out / name for name in files]


def present(*paths: Path) -> None:
    """Refuse to start when a file is missing or cannot be read."""
    for path in paths:
        if not os.access(path, os.R_OK) or not path.is_file():
            found = "cannot be read by this user" if path.exists() else "is missing"
            how = "make it with `prunella keys`, copy it from where that wrote it, or name it with --keys"
            raise KeyFileError(f"{path} {found}: {how}")


def check_superlink(keys: Keys) -> None:
    """Refuse a certificate that this directory's authority did not sign, for another key, or not valid today."""
    present(keys.ca, keys.certificate, keys.certificate_key)
    try:
        ca = x509.load_pem_x509_certificate(keys.ca.read_bytes())
        certificate = x509.load_pem_x509_certificate(keys.certificate.read_bytes())
        key = serialization.load_pem_private_key(keys.certificate_key.read_bytes(), None)
    except ValueError:
        raise KeyFileError(f"{keys.path} has a file that is no certificate or key: make new ones with --out") from None
    try:
        certificate.verify_directly_issued_by(ca)
    except (InvalidSignature, ValueError, TypeError):
        raise KeyFileError(
            f"{keys.certificate} was not signed by {keys.ca}: take both from the same directory"
        ) from None
    if certificate.public_key() != key.public_key():
        raise KeyFileError(f"{keys.certificate_key} is not the key of {keys.certificate}: take both from one directory")
    for path, found in ((keys.ca, ca), (keys.certificate, certificate)):
        if not found.not_valid_before_utc <= _now() <= found.not_valid_after_utc:
            raise KeyFileError(f"{path} is not valid today: set the clock, or {_another(keys, path)}")


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _another(keys: Keys, path: Path) -> str:
    """How to replace a certificate that ends."""
    if path == keys.ca:
        return "make new keys with --out and hand out its ca.crt"
    return f"move it and superlink.key away and run `prunella keys --out {keys.path} --host …` for new ones"


def ending(keys: Keys) -> list[str]:
    """A line for each certificate of a SuperLink that ends soon: from then on nobody connects any more."""
    lines = []
    for path in (keys.ca, keys.certificate):
        end = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
        if end - _now() < SOON:
            lines.append(f"{path} ends on {end:%Y-%m-%d}: before that, {_another(keys, path)}")
    return lines
