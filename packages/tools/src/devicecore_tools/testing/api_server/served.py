"""What connections and watches need from the API server that they belong to.

Law: connections and watches change the server only through the methods of its parts, and by appending to `bugs`.
"""

from typing import Protocol

from devicecore_tools.testing.api_server.faults import Fault, Request
from devicecore_tools.testing.api_server.kinds import Kinds
from devicecore_tools.testing.api_server.operations import Target
from devicecore_tools.testing.api_server.store import ObjectStore


class ServedApi(Protocol):
    """The part of `LocalApiServer` that a request needs. The methods are described in that class."""

    kinds: Kinds
    store: ObjectStore
    bugs: list[BaseException]
    watch_seconds: float
    bookmark_seconds: float
    serves_watch_list: bool
    watch_generation: int
    cuts_lines: bool
    is_stopping: bool

    def note(self, request: Request) -> None:
        """Record a request that is refused."""

    def next_fault(self, request: Request) -> Fault | None:
        """Record a request, and return the request's fault, or None to handle the request as usual."""

    def authorize(self, request: Request, target: Target | None) -> None:
        """Raise ApiError if the client is not allowed to make this request."""

    def authorize_change(self, request: Request, target: Target) -> None:
        """Raise ApiError if the client is not allowed to make this change to a claim's status."""

    def hang(self) -> None:
        """Wait until `release` is called or the server stops."""

    def wait(self, seconds: float) -> None:
        """Wait for this many seconds, or until `release` is called or the server stops."""
