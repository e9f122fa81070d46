"""Addresses, free ports on the loopback interface, and waiting until something listens on one.

Ports are drawn below the range the kernel hands to outgoing connections (32768 and up on Linux), so that no
connection that opens between our check and Flower's bind can take one.

>>> ports = free_ports(3)
>>> len(set(ports)), all(is_free(port) for port in ports)
(3, True)
"""

import random
import socket
import time
from dataclasses import dataclass

from prunella.core.hosts import is_loopback
from prunella.deploy.errors import UsageError

LOOPBACK = "127.0.0.1"
WILDCARDS = ("0.0.0.0", "::", "")
LOWEST, HIGHEST = 20000, 32767


class PortError(UsageError):
    """No port is free, or another process holds the one asked for."""


@dataclass(frozen=True)
class Address:
    """HOST:PORT; an IPv6 host in brackets.

    >>> Address.parse("superlink.example:9092"), Address.parse("[::1]:1").loopback
    (Address(host='superlink.example', port=9092), True)
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        host, _, port = text.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise UsageError(f"{text!r} is not HOST:PORT, for example superlink.example.org:9092")
        return cls(host.strip("[]"), int(port))

    @property
    def loopback(self) -> bool:
        return is_loopback(self.host)

    @property
    def near(self) -> "Address":
        """How a process on the same machine reaches it."""
        return Address(LOOPBACK if self.host in WILDCARDS else self.host, self.port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Whether a server could bind ``port`` of ``host``, of either family, now."""
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError:
        return False
    return True


def is_open(port: int, host: str = LOOPBACK) -> bool:
    """Whether something accepts connections on ``port``."""
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def free_ports(count: int) -> list[int]:
    """``count`` different free ports. Raises ``PortError``."""
    candidates = random.SystemRandom().sample(range(LOWEST, HIGHEST + 1), k=HIGHEST - LOWEST + 1)
    found: list[int] = []
    for port in candidates:
        if len(found) == count:
            break
        if is_free(port):
            found.append(port)
    if len(found) < count:
        raise PortError(f"{count} free ports are needed between {LOWEST} and {HIGHEST}: stop what holds them")
    return found


def wait_open(port: int, seconds: float, every: float = 0.02, host: str = LOOPBACK) -> bool:
    """Wait until something listens on ``port``; False if nothing did within ``seconds``."""
    end = time.monotonic() + seconds
    while not is_open(port, host):
        if time.monotonic() > end:
            return False
        time.sleep(every)
    return True
