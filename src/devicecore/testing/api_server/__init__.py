"""A small, strict API server for tests: `LocalApiServer`, what it can be made to do wrong, and what it says.

It grew from the needs of this project's own tests. Drivers that use dynamic resource allocation, and adapters that
write to a Node, run against it without a cluster.
"""

from devicecore.testing.api_server.faults import (
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
from devicecore.testing.api_server.server import LocalApiServer
from devicecore.testing.api_server.status import ApiError, Json

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
]
