"""The address of a node.

Law: nothing serves a kubelet's API at a node's address, so `kubectl logs` and `kubectl exec` are refused.
"""

import socket
from contextlib import suppress

_FAR = ((socket.AF_INET, "203.0.113.1"), (socket.AF_INET6, "2001:db8::1"))  # addresses reserved for documentation


def addresses_of(chosen: str | None) -> tuple[str, ...]:
    """Return the addresses of a node: the address that the user has chosen, or else this machine's address, if any."""
    address = chosen or own_address()
    return () if address is None else (address,)


def own_address() -> str | None:
    """Return the address of this machine on its default route, as a kubelet does, or None if there is no such route."""
    for family, far in _FAR:
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((far, 9))  # nothing is sent to connect a UDP socket
            return str(probe.getsockname()[0])
    return None
