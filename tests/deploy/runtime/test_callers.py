"""Who may call a server on this machine: real sockets and a real server; the kernel says whose a connection is."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from prunella.deploy.ports import LOOPBACK, free_ports, wait_open
from prunella.deploy.runtime import callers

LINUX = pytest.mark.skipif(not callers.TABLES[0].exists(), reason="the kernel has no table of connections")
ROOT = pytest.mark.skipif(getattr(os, "getuid", lambda: None)() != 0, reason="only root can be somebody else")


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"started"})


@pytest.fixture(params=[H11Protocol, HttpToolsProtocol])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    """Of a server that answers this user, and no web page."""
    (free,) = free_ports(1)
    wrapped, protocol = callers.without_browsers(app), callers.of_one_user(request.param)
    server = uvicorn.Server(
        uvicorn.Config(wrapped, host=LOOPBACK, port=free, http=protocol, lifespan="off", log_level="error")
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    assert wait_open(free, 20)
    yield free
    server.should_exit = True
    thread.join(20)


def ask(port: int, **headers: str) -> int:
    return httpx.post(f"http://{LOOPBACK}:{port}/v1/control/start-run", headers=headers).status_code


@pytest.mark.parametrize("host", ["127.0.0.1:1", "localhost", "[::1]:1", "control:8000", socket.gethostname()])
def test_whoever_means_this_machine_is_answered(port: int, host: str) -> None:
    assert ask(port, Host=host) == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.x.example"])
def test_a_site_that_points_its_name_here_is_not(port: int, host: str) -> None:
    assert ask(port, Host=host) == 403


@pytest.mark.parametrize("origin", ["https://evil.example", "null", f"http://{LOOPBACK}:1"])
def test_nothing_that_a_page_sends_is_answered_whatever_it_calls_itself(port: int, origin: str) -> None:
    assert ask(port, Origin=origin) == 403


def test_from_other_machines_any_name_will_do() -> None:
    scope = {"client": ("192.0.2.7", 5), "headers": [(b"host", b"superlink.example.org")]}
    assert not callers.refused(scope) and callers.refused({**scope, "client": ("127.0.0.1", 5)})
    assert callers.refused({**scope, "headers": [(b"origin", b"https://evil.example")]})
    behind_a_proxy = {**scope, "client": ("127.0.0.1", 5), "path": "/v1/fleet/pull-messages"}  # which SuperNodes sign
    assert not callers.refused(behind_a_proxy)
    assert not callers.refused({**scope, "client": ("127.0.0.1", 5), "scheme": "https"})


@LINUX
@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, LOOPBACK), (socket.AF_INET6, "::1")])
def test_the_kernel_says_whose_a_connection_is(family: int, host: str) -> None:
    server = socket.create_server((host, 0), family=family)
    client = socket.create_connection(server.getsockname()[:2])
    made, _ = server.accept()
    ends = made.getpeername()[:2], made.getsockname()[:2]
    assert callers.owner(ends) == os.getuid() and callers.is_own(ends)
    assert callers.owner((ends[0], (host, ends[1][1] ^ 1))) is None, "another server's connection"
    client.close()  # what has no process any more reads as root's
    assert callers.owner(ends) is None and not callers.is_own(ends)
    made.close()
    server.close()


@LINUX
def test_a_connection_from_an_address_of_the_newer_kind_is_found() -> None:
    server = socket.create_server((LOOPBACK, 0))
    client = socket.socket(socket.AF_INET6)
    client.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    client.connect((f"::ffff:{LOOPBACK}", server.getsockname()[1]))
    made, _ = server.accept()
    assert callers.owner((made.getpeername(), made.getsockname())) == os.getuid()
    for each in (client, made, server):
        each.close()


ASK = """
import encodings.idna, os, sys, urllib.request
os.setuid(int(sys.argv[2]))
print(urllib.request.urlopen(sys.argv[1], timeout=20).status)
"""


def asked_by(user: int, port: int) -> str:
    """What a process of ``user`` gets, and the error if nothing."""
    command = [sys.executable, "-c", ASK, f"http://{LOOPBACK}:{port}/", str(user)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


@LINUX
@ROOT
def test_another_user_of_the_machine_is_not_answered(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked_by(0, port) == "200\n"
    said = asked_by(65534, port).splitlines()[-1]
    assert "Connection" in said or "RemoteDisconnected" in said
    monkeypatch.setattr(callers.os, "getuid", lambda: 65534)  # a server of that user's own
    assert asked_by(65534, port) == asked_by(0, port) == "200\n"


@LINUX
def test_a_grpc_server_answers_its_own_user(monkeypatch: pytest.MonkeyPatch) -> None:
    assert callers.kernel_tells()
    whose, asked = [os.getuid()], list[Any]()
    monkeypatch.setattr(callers, "owner", lambda ends: asked.append(ends) or whose[0])
    (port,) = free_ports(1)
    from concurrent.futures import ThreadPoolExecutor

    server = grpc.server(ThreadPoolExecutor(2), interceptors=[callers.interceptor(port)])
    handler = grpc.unary_unary_rpc_method_handler(lambda request, context: request + b"!")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("toy", {"Say": handler}),))
    assert server.add_insecure_port(f"{LOOPBACK}:{port}") == port
    server.start()
    try:
        with grpc.insecure_channel(f"{LOOPBACK}:{port}") as channel:
            say = channel.unary_unary("/toy/Say")
            assert say(b"a") == b"a!" == say(b"a") and len(asked) == 1, "asked once for a connection"
            monkeypatch.setattr(callers.time, "monotonic", lambda at=time.monotonic: at() + 60)
            whose[0] = 4321
            with pytest.raises(grpc.RpcError) as refused:
                say(b"a")
            assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED
            (caller, own) = asked[-1]
            assert own == (LOOPBACK, port) and caller[0] == LOOPBACK
    finally:
        server.stop(None)


@pytest.fixture
def asked_anew() -> Iterator[None]:
    callers.kernel_tells.cache_clear()
    yield
    callers.kernel_tells.cache_clear()


def test_where_the_kernel_has_no_table_anybody_may(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asked_anew: None
) -> None:
    monkeypatch.setattr(callers, "TABLES", (tmp_path / "none", tmp_path / "none"))
    assert not callers.kernel_tells() and callers.is_own(((LOOPBACK, 1), (LOOPBACK, 2)))


@LINUX
def test_a_connection_of_a_process_that_is_not_this_user_s_is_dropped(
    port: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert ask(port, Host=LOOPBACK) == 200
    for whose, warned in ((os.getuid() + 1, True), (None, False)):  # nobody: it has left already
        caplog.clear()
        monkeypatch.setattr(callers, "owner", lambda ends, whose=whose: whose)
        with pytest.raises(httpx.TransportError):
            ask(port, Host=LOOPBACK)
        assert ("another user" in caplog.text) is warned
