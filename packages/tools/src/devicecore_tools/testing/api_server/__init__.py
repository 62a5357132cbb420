"""A small, strict API server for tests: `LocalApiServer`, the faults that a test can inject, and its errors.

Drivers that use dynamic resource allocation, and adapters that write to a Node, run against it without a cluster.
"""

from devicecore_tools.testing.api_server.faults import (
    Answer,
    Chunks,
    Delay,
    Drop,
    Fault,
    Hang,
    PlannedFault,
    Request,
    RunFirst,
)
from devicecore_tools.testing.api_server.server import LocalApiServer
from devicecore_tools.testing.api_server.status import ApiError, Json, UnknownKindError

__all__ = [
    "Answer",
    "ApiError",
    "Chunks",
    "Delay",
    "Drop",
    "Fault",
    "Hang",
    "Json",
    "LocalApiServer",
    "PlannedFault",
    "Request",
    "RunFirst",
    "UnknownKindError",
]
