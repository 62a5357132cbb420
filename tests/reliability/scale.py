"""The scale of tests: small in `make test`, and as large in `make storm` as docs/maintain/promises.md promises."""

import os

STORM = "STORM" in os.environ
PATIENCE = 300.0 if STORM else 60.0
"""Seconds after which a test stops waiting for an event; enough for a loaded machine."""


def scale(normal: int, storm: int) -> int:
    """Return `storm` in `make storm`, else `normal`."""
    return storm if STORM else normal
