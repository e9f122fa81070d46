"""A thin link between two network namespaces of this machine: bits a second, a delay, losses, and cuts.

Two TUN devices, one in each namespace, and a thread that carries IP packets from one to the other. In each direction a
packet waits until the line is free, takes its size over ``rate`` to be sent, and arrives ``delay`` later, unless it is
lost (independently, with probability ``loss``), finds a queue of ``QUEUE`` bytes before it, or the link is cut. So TCP
meets what it would meet on such a line: slow start, retransmissions, queueing. It needs root, ``/dev/net/tun`` and
iproute2, and not the kernel's own emulator (netem), which is not everywhere. Not emulated: losses in bursts, jitter,
packets that overtake others, and a rate that others share. Python carries up to about 20 Mbit/s.
"""

import ctypes
import fcntl
import heapq
import os
import random
import select
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

CENTRE, SITE = "10.198.7.1", "10.198.7.2"  # inside the namespaces only
QUEUE = 64_000  # bytes that wait before the line; the next packet is dropped
MTU = 1500
_CLONE_NEWNET, _TUNSETIFF, _TUN_WITHOUT_HEADER = 0x40000000, 0x400454CA, 0x0001 | 0x1000


@dataclass(frozen=True)
class Line:
    """``rate`` in bits a second, ``delay`` of one direction in seconds, ``loss`` as the share of packets."""

    rate: float = 1e6
    delay: float = 0.1
    loss: float = 0.0


class Direction:
    """When the packets of one direction arrive.

    >>> way = Direction(Line(rate=8000.0, delay=0.5), random.Random(0))
    >>> way.arrival(10.0, 1000), way.arrival(10.25, 500), way.arrival(20.0, 1000)
    (11.5, 12.0, 21.5)
    """

    def __init__(self, line: Line, draws: random.Random) -> None:
        self.carried = 0  # bytes that arrive
        self._line, self._draws, self._free = line, draws, 0.0

    def arrival(self, now: float, size: int) -> float | None:
        """When a packet of ``size`` bytes that comes now arrives, or None: it does not."""
        line = self._line
        waiting = max(self._free - now, 0.0) * line.rate / 8
        if waiting + size > QUEUE:
            return None
        self._free = max(now, self._free) + size * 8 / line.rate
        if self._draws.random() < line.loss:
            return None
        self.carried += size
        return self._free + line.delay


class ThinLink:
    """``centre`` and ``site`` are names of namespaces; ``cut`` is set while nothing passes."""

    def __init__(self, line: Line, seed: int = 0) -> None:
        name = f"thin-{os.getpid()}"
        self.centre, self.site = f"{name}-centre", f"{name}-site"
        self.cut = threading.Event()
        draws = random.Random(seed)
        self.down, self.up = Direction(line, draws), Direction(line, draws)  # from and to the centre
        self._ended = threading.Event()
        self._devices: list[int] = []

    def open(self) -> None:
        """Raises ``OSError`` where namespaces or TUN devices are not permitted."""
        for name, address in ((self.centre, CENTRE), (self.site, SITE)):
            _ip("netns", "add", name)
            self._devices.append(_tun(name))
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", "thin")
            for device in ("lo", "thin"):
                _ip("-n", name, "link", "set", device, "up")
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        if len(self._devices) == 2:
            self._thread.join()
        for device in self._devices:
            os.close(device)
        for name in (self.centre, self.site):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def _carry(self) -> None:
        centre, site = self._devices
        ways = {centre: (site, self.down), site: (centre, self.up)}
        flying: list[tuple[float, int, int, bytes]] = []  # arrival, number, device, packet
        number = 0
        while not self._ended.is_set():
            wait = min(max(flying[0][0] - time.monotonic(), 0.0), 0.1) if flying else 0.1
            for device in select.select(self._devices, [], [], wait)[0]:
                packet, (to, way) = os.read(device, 2 * MTU), ways[device]
                arrives = None if self.cut.is_set() else way.arrival(time.monotonic(), len(packet))
                if arrives is not None:
                    number += 1
                    heapq.heappush(flying, (arrives, number, to, packet))
            while flying and flying[0][0] <= time.monotonic():
                _, _, to, packet = heapq.heappop(flying)
                if not self.cut.is_set():
                    with suppress(OSError):  # a device that is full drops a packet, as any other does
                        os.write(to, packet)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def _tun(namespace: str) -> int:
    """A TUN device called ``thin`` inside a namespace; its packets can be read and written from any other."""
    enter = ctypes.CDLL(None, use_errno=True).setns
    with open("/proc/thread-self/ns/net") as own, Path("/run/netns", namespace).open() as other:
        if enter(other.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        try:
            device = os.open("/dev/net/tun", os.O_RDWR)
            fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", b"thin", _TUN_WITHOUT_HEADER))
            return device
        finally:
            enter(own.fileno(), _CLONE_NEWNET)


def missing() -> str:
    """What a thin link lacks here, in words; "" if nothing that is known before it is tried."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        return "needs root and iproute2, to make network namespaces"
    return "" if Path("/dev/net/tun").exists() else "needs /dev/net/tun, to carry packets between network namespaces"


@contextmanager
def thin_link(line: Line, seed: int = 0) -> Iterator[ThinLink]:
    """An open link, which is removed whatever happens. Raises ``OSError``."""
    if why := missing():
        raise OSError(why)
    link = ThinLink(line, seed)
    with ExitStack() as stack:
        stack.callback(link.close)
        link.open()
        yield link
