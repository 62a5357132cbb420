"""How much of everything: enough to see a fault in `make test`, all that was promised in `make storm`."""

import os

STORM = "STORM" in os.environ
PATIENCE = 300.0 if STORM else 60.0
"""Seconds until a test gives up on something that should come soon, on a machine that has much else to do."""


def scale(normal: int, storm: int) -> int:
    """`storm` in `make storm`, else `normal`."""
    return storm if STORM else normal
