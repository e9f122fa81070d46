"""Certificates that a real handshake accepts or refuses, keys that Flower itself reads, files nobody else can."""

import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from prunella.deploy.machines import keys
from prunella.deploy.machines.keys import KeyFileError, Keys


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    folder = tmp_path_factory.mktemp("made") / "keys"
    keys.make(folder, ["a", "b"], ["10.9.0.1", "superlink.example.org"])
    return Keys(folder)


def handshake(server: Keys, trust: Path, name: str) -> str:
    """Negotiate TLS over a socket pair as ``name``; the error, "" when it succeeds."""
    there = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    there.load_cert_chain(server.certificate, server.certificate_key)
    here = ssl.create_default_context(cafile=str(trust))
    here.verify_flags |= ssl.VERIFY_X509_STRICT
    one, other = socket.socketpair()
    one.settimeout(5)
    other.settimeout(5)

    def answer() -> None:
        try:
            there.wrap_socket(other, server_side=True).close()
        except OSError:
            other.close()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        here.wrap_socket(one, server_hostname=name).close()
    except ssl.SSLError as error:
        return str(error)
    finally:
        one.close()
        thread.join()
    return ""


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1", "10.9.0.1", "superlink.example.org"])
def test_tls_accepts_every_name_in_the_certificate(made: Keys, name: str) -> None:
    assert handshake(made, made.ca, name) == ""


def test_tls_refuses_another_name_and_another_authority(made: Keys, tmp_path: Path) -> None:
    assert "CERTIFICATE_VERIFY_FAILED" in handshake(made, made.ca, "10.9.0.2")
    keys.make(tmp_path / "other", [], [])
    assert "CERTIFICATE_VERIFY_FAILED" in handshake(made, tmp_path / "other" / "ca.crt", "localhost")


def test_flowers_own_loaders_accept_the_pairs(made: Keys) -> None:
    from flwr.cli.supernode.register import try_load_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes, uses_nist_ec_curve

    private = load_ssh_private_key(made.supernode("a").read_bytes(), None)
    assert uses_nist_ec_curve(private.public_key())
    assert try_load_public_key(made.supernode("a.pub")) == public_key_to_bytes(private.public_key())
    assert load_ssh_public_key(made.supernode("b.pub").read_bytes()) != private.public_key()


def test_only_the_owner_reads_what_is_private(made: Keys) -> None:
    def mode(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    assert mode(made.path) == mode(made.path / "supernodes") == 0o700
    private = [made.ca_key, made.certificate_key, made.supernode("a"), made.supernode("b")]
    assert [mode(path) for path in private] == [0o600] * 4
    assert made.public() == [made.supernode("a.pub"), made.supernode("b.pub")]


def test_nothing_is_overwritten_and_then_nothing_is_written(made: Keys) -> None:
    before = {path: path.read_bytes() for path in made.path.rglob("*") if path.is_file()}
    for names, hosts in ((["new", "a"], []), ([], []), (["new"], ["10.9.0.3"])):
        with pytest.raises(KeyFileError, match="is never overwritten"):
            keys.make(made.path, names, hosts)
    assert {path: path.read_bytes() for path in made.path.rglob("*") if path.is_file()} == before


def test_a_supernode_can_be_added_later(tmp_path: Path) -> None:
    first = keys.make(tmp_path / "keys", ["a"], [])
    assert len(first) == 6
    assert [path.name for path in keys.make(tmp_path / "keys", ["b"], [])] == ["b", "b.pub"]
    keys.check_superlink(Keys(tmp_path / "keys"))


@pytest.mark.parametrize("name", ["", "../a", "a/b", "-a", "a.pub", "a.crt", "ü"])
def test_a_name_is_a_file_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(KeyFileError, match="cannot name a SuperNode"):
        keys.make(tmp_path / "keys", [name], [])
    assert not (tmp_path / "keys").exists()


def test_what_cannot_be_a_host_or_a_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="neither a host name nor an IP"):
        keys.make(tmp_path / "keys", [], ["bücher.example"])
    (tmp_path / "file").write_text("")
    with pytest.raises(KeyFileError, match="choose another directory with --out"):
        keys.make(tmp_path / "file", [], [])


@pytest.mark.parametrize(
    "host",
    ["", "a b", "10.9.0.1:9092", "https://a.example", "[fd00::1", "[a]", "10.9.0.300", "10.9.0.1.", "a..b", "a..", ".",
     "9092", "19092", "a" * 64, f"{'a' * 64}.example"],
)  # fmt: skip
def test_a_host_that_no_certificate_could_be_checked_for_is_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(KeyFileError, match="neither a host name nor an IP"):
        keys.make(tmp_path / "keys", [], [host])
    assert not (tmp_path / "keys").exists()


@pytest.mark.parametrize(
    "host",
    ["superlink", "prunella_superlink_1", "a-1.example.org", "fd00::1", "[fd00::1]", "a.example.org.", "123456789012",
     "a" * 63],
)  # fmt: skip
def test_a_host_that_is_accepted_is_one_that_tls_finds(tmp_path: Path, host: str) -> None:
    keys.make(tmp_path / "keys", [], [host])
    name = host.strip("[]").removesuffix(".")
    assert keys.certified(Keys(tmp_path / "keys").certificate) == [name]
    assert handshake(Keys(tmp_path / "keys"), tmp_path / "keys" / "ca.crt", name) == ""


def test_a_host_is_in_the_certificate_once(tmp_path: Path) -> None:
    keys.make(tmp_path / "keys", [], ["[::1]", "localhost.", "a.example", "a.example."])
    found = x509.load_pem_x509_certificate(Keys(tmp_path / "keys").certificate.read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == [*keys.ALWAYS, "a.example"]


def test_a_renewed_certificate_needs_nothing_new_of_the_sites(tmp_path: Path) -> None:
    made = Keys(tmp_path / "keys")
    keys.make(made.path, ["a"], ["10.9.0.1"])
    at_a_site, a = made.ca.read_bytes(), made.supernode("a").read_bytes()
    with pytest.raises(KeyFileError, match="move it and superlink.key away"):
        keys.make(made.path, [], ["10.9.0.2"])
    for file in (made.certificate, made.certificate_key):
        file.rename(tmp_path / file.name)
    assert [path.name for path in keys.make(made.path, [], ["10.9.0.2"])] == ["superlink.key", "superlink.crt"]
    keys.check_superlink(made)
    assert (made.ca.read_bytes(), made.supernode("a").read_bytes()) == (at_a_site, a)
    assert handshake(made, made.ca, "10.9.0.2") == "" and "VERIFY_FAILED" in handshake(made, made.ca, "10.9.0.1")


def test_without_its_own_authoritys_key_nothing_is_renewed(tmp_path: Path) -> None:
    made, other = Keys(tmp_path / "keys"), Keys(tmp_path / "other")
    for each in (made, other):
        keys.make(each.path, [], [])
    for file in (made.certificate, made.certificate_key, made.ca_key):
        file.unlink()
    with pytest.raises(KeyFileError, match=r"ca\.key is missing: put it back"):
        keys.make(made.path, [], ["10.9.0.2"])
    made.ca_key.write_bytes(other.ca_key.read_bytes())
    with pytest.raises(KeyFileError, match=r"ca\.key is not the key of"):
        keys.make(made.path, [], ["10.9.0.2"])
    assert not made.certificate.exists()


def test_a_certificate_that_ends_soon_is_announced_with_what_replaces_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys.make(tmp_path / "long", [], [])
    assert keys.ending(Keys(tmp_path / "long")) == []
    monkeypatch.setattr(keys, "SUPERLINK_DAYS", 29)
    keys.make(tmp_path / "short", [], [])
    keys.check_superlink(Keys(tmp_path / "short"))
    (line,) = keys.ending(Keys(tmp_path / "short"))
    assert "superlink.crt ends on" in line and "prunella keys --out" in line


def test_the_superlinks_files_must_belong_together(made: Keys, tmp_path: Path) -> None:
    keys.check_superlink(made)
    keys.make(tmp_path / "other", [], [])
    mixed = Keys(tmp_path / "other")
    mixed.ca.unlink()
    with pytest.raises(KeyFileError, match=r"ca\.crt is missing"):
        keys.check_superlink(mixed)
    mixed.ca.write_bytes(made.ca.read_bytes())
    with pytest.raises(KeyFileError, match="was not signed by"):
        keys.check_superlink(mixed)
    mixed.certificate.write_bytes(made.certificate.read_bytes())
    with pytest.raises(KeyFileError, match="is not the key of"):
        keys.check_superlink(mixed)
    mixed.certificate.write_text("nonsense")
    with pytest.raises(KeyFileError, match="no certificate or key"):
        keys.check_superlink(mixed)


def test_an_old_certificate_is_not_valid_today(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "SUPERLINK_DAYS", 0)
    monkeypatch.setattr(keys, "SKEW", keys.datetime.timedelta(days=2))
    keys.make(tmp_path / "keys", [], [])
    certificate = x509.load_pem_x509_certificate((tmp_path / "keys" / "superlink.crt").read_bytes())
    assert certificate.not_valid_before_utc < certificate.not_valid_after_utc
    with pytest.raises(KeyFileError, match=r"superlink\.crt is not valid today: .* move it and superlink\.key away"):
        keys.check_superlink(Keys(tmp_path / "keys"))


def test_nobody_starts_with_an_authority_that_no_site_accepts_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "CA_DAYS", 0)
    keys.make(tmp_path / "keys", [], [])
    assert "expired" in handshake(Keys(tmp_path / "keys"), tmp_path / "keys" / "ca.crt", "localhost")
    with pytest.raises(KeyFileError, match=r"ca\.crt is not valid today: .* hand out its ca\.crt"):
        keys.check_superlink(Keys(tmp_path / "keys"))


def test_a_new_directory_of_keys_is_left_out_of_version_control_and_an_old_one_stays_as_it_is(tmp_path: Path) -> None:
    keys.make(tmp_path / "keys", ["a"], [])
    assert (tmp_path / "keys" / ".gitignore").read_text() == "*\n"
    (tmp_path / "mine").mkdir()
    keys.make(tmp_path / "mine", ["a"], [])
    assert not (tmp_path / "mine" / ".gitignore").exists(), "it would hide what else is there"
