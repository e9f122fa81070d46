"""What the emulated line does to packets, and that real ones cross it, are lost and are cut."""

import random
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from prunella.benchmarks.speed.thin_link import CENTRE, MTU, QUEUE, Direction, Line, ThinLink, missing, thin_link

SERVER = """
import hashlib, socket
server = socket.create_server(("{address}", 5000))
server.settimeout(60)
print("ready", flush=True)
peer, _ = server.accept()
data = b"".join(iter(lambda: peer.recv(65536), b""))
peer.sendall(hashlib.sha256(data).digest())
"""
CLIENT = """
import hashlib, random, socket
data = random.Random(0).randbytes(60_000)
peer = socket.create_connection(("{address}", 5000), timeout=60)
peer.sendall(data)
peer.shutdown(socket.SHUT_WR)
print(peer.recv(32) == hashlib.sha256(data).digest())
"""
KNOCK = 'import socket; socket.create_connection(("{address}", 5000), timeout=1.5)'


def test_packets_queue_one_after_the_other_and_arrive_after_the_delay() -> None:
    way = Direction(Line(rate=8000.0, delay=0.25), random.Random(0))
    assert [way.arrival(0.0, 1000), way.arrival(0.5, 1000), way.arrival(9.0, 500)] == [1.25, 2.25, 9.75]
    assert way.carried == 2500


def test_a_full_queue_drops_the_newest_and_takes_more_once_it_has_room() -> None:
    way = Direction(Line(rate=8 * MTU, delay=0.0), random.Random(0))  # a packet a second
    taken = [way.arrival(0.0, MTU) for _ in range(100)]
    held = QUEUE // MTU
    assert None not in taken[:held] and set(taken[held:]) == {None}
    assert way.arrival(0.1, MTU) is None and way.arrival(1.5, MTU) == held + 1


@pytest.mark.parametrize("loss", [0.0, 0.03, 1.0])
def test_packets_are_lost_at_the_rate_that_was_asked_for(loss: float) -> None:
    way = Direction(Line(rate=1e9, loss=loss), random.Random(1))
    lost = sum(way.arrival(float(number), MTU) is None for number in range(20_000))
    assert abs(lost - 20_000 * loss) <= 4.5 * (20_000 * loss * (1 - loss)) ** 0.5


@pytest.fixture
def lossy() -> Iterator[ThinLink]:
    if why := missing():
        pytest.skip(why)
    try:
        with thin_link(Line(rate=2e7, delay=0.005, loss=0.05)) as link:
            yield link
    except OSError as error:
        pytest.skip(f"a thin link is not permitted here: {error}")


def inside(namespace: str, code: str) -> subprocess.Popen[str]:
    command = ["ip", "netns", "exec", namespace, sys.executable, "-c", code.format(address=CENTRE)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def test_what_tcp_sends_arrives_whole_over_a_lossy_link_and_nothing_over_a_cut_one(lossy: ThinLink) -> None:
    server = inside(lossy.centre, SERVER)
    try:
        assert server.stdout is not None and server.stdout.readline() == "ready\n"
        lossy.cut.set()
        before = lossy.up.carried
        assert inside(lossy.site, KNOCK).wait(60) != 0 and lossy.up.carried == before
        lossy.cut.clear()
        assert inside(lossy.site, CLIENT).communicate(timeout=120)[0] == "True\n"
        assert lossy.up.carried > 60_000
    finally:
        server.kill()
        server.wait()


def test_the_namespaces_are_gone_afterwards_and_ours_was_never_left() -> None:
    if why := missing():
        pytest.skip(why)
    link = ThinLink(Line())
    try:
        link.open()
        assert "thin" not in [name for _, name in socket.if_nameindex()] and link.site in namespaces()
    except OSError as error:
        pytest.skip(f"a thin link is not permitted here: {error}")
    finally:
        link.close()
    assert link.site not in namespaces() and link.centre not in namespaces()


def namespaces() -> str:
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout


def test_where_namespaces_are_missing_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(OSError, match="needs root"), thin_link(Line()):
        raise AssertionError("unreachable")
