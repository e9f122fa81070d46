import socket

import pytest

from prunella.deploy import ports
from prunella.deploy.errors import UsageError
from prunella.deploy.ports import HIGHEST, LOWEST, Address, PortError, free_ports, is_free, is_open, wait_open


def test_free_ports_are_free_distinct_and_below_the_ephemeral_range() -> None:
    found = free_ports(20)
    assert len(set(found)) == 20
    assert all(LOWEST <= port <= HIGHEST and is_free(port) for port in found)


def test_a_held_port_is_neither_free_nor_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    held, spare = free_ports(2)
    monkeypatch.setattr(ports, "LOWEST", min(held, spare))
    monkeypatch.setattr(ports, "HIGHEST", min(held, spare))
    with socket.create_server(("127.0.0.1", min(held, spare))):
        assert not is_free(min(held, spare))
        with pytest.raises(PortError, match="stop what holds them"):
            free_ports(1)
    assert free_ports(1) == [min(held, spare)]


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 on this machine")
def test_a_port_of_ipv6_is_another() -> None:
    [port] = free_ports(1)
    assert is_free(port, "::1")
    with socket.create_server(("::1", port), family=socket.AF_INET6):
        assert is_free(port) and not is_free(port, "::1")


def test_a_host_that_is_not_here_has_no_free_port() -> None:
    [port] = free_ports(1)
    assert not is_free(port, "192.0.2.1") and not is_free(port, "no.such.host.invalid")


def test_open_means_somebody_listens() -> None:
    [port] = free_ports(1)
    assert not is_open(port) and not wait_open(port, 0.05)
    with socket.create_server(("127.0.0.1", port)):
        assert is_open(port) and wait_open(port, 5)


def test_waiting_looks_at_the_host_it_was_told() -> None:
    [port] = free_ports(1)
    with socket.create_server(("127.0.0.2", port)):
        assert wait_open(port, 5, host="127.0.0.2") and not wait_open(port, 0.05)


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:x", "host:0", "host:70000"])
def test_an_address_is_host_and_port(text: str) -> None:
    with pytest.raises(UsageError, match="is not HOST:PORT"):
        Address.parse(text)


@pytest.mark.parametrize(
    "text, loopback, near",
    [
        ("127.0.0.1:1", True, "127.0.0.1:1"),
        ("localhost:1", True, "localhost:1"),
        ("[::1]:1", True, "[::1]:1"),
        ("0.0.0.0:1", False, "127.0.0.1:1"),
        ("[::]:1", False, "127.0.0.1:1"),
        ("10.0.0.1:1", False, "10.0.0.1:1"),
        ("localhost.example.org:1", False, "localhost.example.org:1"),
    ],
)
def test_what_counts_as_this_machine(text: str, loopback: bool, near: str) -> None:
    address = Address.parse(text)
    assert (address.loopback, str(address.near), str(address)) == (loopback, near, text)
