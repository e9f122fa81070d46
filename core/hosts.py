"""Whether a host, as an address or a name, is this machine, and whether a web site of somebody's can have its name.

>>> is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0"), is_loopback("localhost.example.org")
(True, True, False, False)
>>> is_known("192.0.2.1"), is_known("executor"), is_known("evil.example"), is_known("")
(True, True, False, False)
"""

import ipaddress
import socket
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """Whether ``host`` is a loopback address or ``localhost``. No name is looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_known(host: str) -> bool:
    """Whether ``host`` is an address, one word (a service of a network of containers), or this machine's own name. All
    other names may be a web site's that points here, to read with a visitor's browser (DNS rebinding)."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return bool(host) and ("." not in host or host.lower() == _own_name())
    return True


def hostname(header: str) -> str:
    """The host of a ``Host`` header, without its port; empty where it is none.

    >>> hostname("localhost:8000"), hostname("[::1]:80"), hostname("[")
    ('localhost', '::1', '')
    """
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:  # a bracket without its partner
        return ""


def _own_name() -> str:
    """As this machine has it: a name that a name server says it has may be anybody's."""
    return socket.gethostname().lower()
