"""Health checks of containers, quick and with the standard library alone: exit code 0 when healthy, else 1.

    python -m prunella.deploy.machines.health listens HOST:PORT   something accepts connections there
    python -m prunella.deploy.machines.health connected PORT     a process here is connected to that remote port

A SuperNode is healthy while it is connected to its SuperLink; that its process lives does not show this.

>>> peers("  sl  local_address rem_address   st\\n   0: 0100007F:1F90 0200000A:2384 01 0\\n   1: 00:1 0:2384 06 0\\n")
[9092]
"""

import sys
from pathlib import Path

from prunella.deploy.ports import is_open

TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
ESTABLISHED = "01"  # the kernel's TCP_ESTABLISHED


def peers(table: str) -> list[int]:
    """The remote ports of the established connections in a table of ``/proc/net``."""
    rows = [line.split() for line in table.splitlines()[1:]]
    return [int(row[2].rpartition(":")[2], 16) for row in rows if row[3] == ESTABLISHED]


def connected(port: int) -> bool:
    return any(port in peers(Path(table).read_text()) for table in TABLES if Path(table).exists())


def healthy(check: str, where: str) -> bool:
    """Raises ``ValueError`` when the check is unknown or ``where`` does not fit it."""
    host, _, port = where.rpartition(":")
    if check == "listens" and host:
        return is_open(int(port), host)
    if check == "connected" and not host:
        return connected(int(port))
    raise ValueError("write: listens HOST:PORT, or: connected PORT")


if __name__ == "__main__":
    sys.exit(not healthy(*sys.argv[1:3]))
