"""Logs as Flower 1.39 really wrote them, and the fix each must name."""

import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from prunella.deploy.machines import keys
from prunella.deploy.machines.connection_errors import (
    ANOTHER_ADDRESS,
    ANOTHER_AUTHORITY,
    ANOTHER_TIME,
    NO_TLS,
    PROBLEMS,
    check_tls,
    diagnose,
)
from prunella.deploy.machines.keys import Keys
from prunella.deploy.ports import free_ports

FAILED = "ERROR: Exit Code: 305\nFailed to initialize the connection to the SuperLink.\n"
HANDSHAKE = (
    "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.9.0.1:9092: Tls handshake failed "
    "(TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:{}: Invalid certificate verification context: OK\n"
)


@pytest.mark.parametrize(
    "log, fix, temporary",
    [
        (FAILED + "[code: 2004] Failed to activate SuperNode.", "prunella register", True),
        (FAILED + "[code: 2001] SuperNode authentication is enabled.", "without --insecure", False),
        ("ERROR: Exit Code: 303\nInsecure connection is enabled", "leave out --insecure", False),
        (FAILED + HANDSHAKE.format("100000f7:SSL routines:OPENSSL_internal:WRONG_VERSION_NUMBER"), "--keys", False),
        (
            FAILED + HANDSHAKE.format("0A000086:SSL routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED"),
            "copy ca.crt",
            False,
        ),
        ("SystemExit: Port in server address 0.0.0.0:9092 is already in use.", "--fleet", False),
        ("error while attempting to bind on address ('127.0.0.1', 8000): address already in use", "--control", False),
        (FAILED + "something new", "the lines above", False),
    ],
)
def test_each_refusal_names_its_fix(log: str, fix: str, temporary: bool) -> None:
    found = diagnose(log)
    assert found and fix in found.text and found.temporary is temporary


def test_a_healthy_log_is_no_refusal() -> None:
    assert diagnose("INFO: Starting Flower SuperNode\nINFO: SuperNode ID: 305200120042001\nSent successfully") is None


def test_only_what_time_fixes_is_tried_again() -> None:
    assert [text for text, problem in PROBLEMS.items() if problem.temporary] == ["[code: 2004]"]


@contextmanager
def listening(host: str, context: ssl.SSLContext | None) -> Iterator[int]:
    """A server that accepts one connection; without a context it talks as a plain one would."""

    def serve() -> None:
        try:
            connection, _ = server.accept()
            connection.settimeout(5)
            with connection:
                if context:
                    context.wrap_socket(connection, server_side=True).close()
                else:
                    connection.recv(1024)
                    connection.sendall(b"\0\0\6\4\0\0\0\0\0\0\5\0\0@\0")  # SETTINGS, as gRPC greets
        except OSError:
            return

    with socket.create_server((host, 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


@pytest.fixture(params=[-2, 2], ids=["ended", "to come"])
def of_another_time(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Keys:
    """A SuperLink's keys with a certificate that is not valid today."""
    made = Keys(tmp_path / "keys")
    keys.make(made.path, [], [])
    for file in (made.certificate, made.certificate_key):
        file.unlink()
    # From nine days ago until two days ago, or from in two days until in nine.
    begin, end = sorted((request.param, 9 if request.param > 0 else -9))
    monkeypatch.setattr(keys, "SKEW", keys.datetime.timedelta(days=-begin))
    monkeypatch.setattr(keys, "SUPERLINK_DAYS", end)
    keys.make(made.path, [], [])
    return made


def test_a_certificate_of_another_time_is_not_called_another_authoritys(of_another_time: Keys) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(of_another_time.certificate, of_another_time.certificate_key)
    with listening("127.0.0.1", context) as port:
        assert check_tls("127.0.0.1", port, of_another_time.ca) is ANOTHER_TIME


def test_grpcs_own_words_for_it_are_known(of_another_time: Keys) -> None:
    files = of_another_time.certificate_key.read_bytes(), of_another_time.certificate.read_bytes()
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([files]))
    server.start()
    credentials = grpc.ssl_channel_credentials(of_another_time.ca.read_bytes())
    try:
        with grpc.secure_channel(f"127.0.0.1:{port}", credentials) as channel, pytest.raises(grpc.RpcError) as error:
            channel.unary_unary("/flwr.proto.Fleet/ActivateNode")(b"", timeout=10)
    finally:
        server.stop(None)
    assert diagnose(FAILED + str(error.value)) is ANOTHER_TIME


def test_a_handshake_tells_what_flower_does_not(tmp_path: Path) -> None:
    for name in ("own", "other"):
        keys.make(tmp_path / name, [], [])
    own, other = Keys(tmp_path / "own"), Keys(tmp_path / "other")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.certificate, own.certificate_key)
    for host, ca, expected in (
        ("127.0.0.1", own.ca, None),
        ("127.0.0.1", other.ca, ANOTHER_AUTHORITY),
        ("127.0.0.2", own.ca, ANOTHER_ADDRESS),
    ):
        with listening(host, context) as port:
            assert check_tls(host, port, ca) is expected
    with listening("127.0.0.1", None) as port:
        assert check_tls("127.0.0.1", port, own.ca) is NO_TLS
    assert check_tls("127.0.0.1", free_ports(1)[0], own.ca) is None, "one that is away is waited for"
