"""The address of a node.

Law: nobody serves there what a kubelet serves, so `kubectl logs` and `kubectl exec` are refused.
"""

import socket
from contextlib import suppress

_FAR = ((socket.AF_INET, "203.0.113.1"), (socket.AF_INET6, "2001:db8::1"))  # addresses of documentation


def addresses_of(chosen: str | None) -> tuple[str, ...]:
    """Return the addresses of a node: the one that its user has chosen, or that of this machine, if it has one."""
    address = chosen or own_address()
    return () if address is None else (address,)


def own_address() -> str | None:
    """Return the address of this machine on its default route, which a kubelet takes, too. Return None without one."""
    for family, far in _FAR:
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((far, 9))  # of UDP, so nothing is sent
            return str(probe.getsockname()[0])
    return None
