"""Whether a host, as an address or a name, is this machine.

>>> is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0"), is_loopback("localhost.example.org")
(True, True, False, False)
"""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether ``host`` is a loopback address or ``localhost``. No name is looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
