import socket

import pytest

from prunella.deploy import ports
from prunella.deploy.ports import HIGHEST, LOWEST, PortError, free_ports, is_free, is_open, wait_open


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


def test_open_means_somebody_listens() -> None:
    [port] = free_ports(1)
    assert not is_open(port) and not wait_open(port, 0.05)
    with socket.create_server(("127.0.0.1", port)):
        assert is_open(port) and wait_open(port, 5)


def test_waiting_looks_at_the_host_it_was_told() -> None:
    [port] = free_ports(1)
    with socket.create_server(("127.0.0.2", port)):
        assert wait_open(port, 5, host="127.0.0.2") and not wait_open(port, 0.05)
