"""Faults of the API server, which a test chooses for some requests.

Law: a fault changes only the requests that the test names.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attrs import define, field, frozen


@frozen
class Request:
    """What a client asked.

    `verb` and `resource` are those of RBAC, such as `patch` and `nodes/status`. `at` is when the request was read, in
    seconds of `time.monotonic`.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(factory=dict)
    headers: Mapping[str, str] = field(factory=dict)
    body: Any = None
    verb: str = ""
    resource: str = ""
    at: float = field(factory=time.monotonic, eq=False)


@frozen
class Answer:
    """Answer the request with this. A body that is a string is sent as it is, anything else as JSON."""

    status: int
    body: Any = None
    headers: Mapping[str, str] = field(factory=dict)


@frozen
class Drop:
    """End the connection without an answer. With `after`, end it once the request was carried out."""

    after: bool = False


@frozen
class Hang:
    """Answer nothing until the server is stopped or `release` is called; then end the connection."""


@frozen
class Delay:
    """Carry the request out after this many seconds."""

    seconds: float


@frozen
class RunFirst:
    """Call `action`, and then carry the request out as usual."""

    action: Callable[[], object]


@frozen
class Chunks:
    """Answer with code 200 and this body, each part of which is sent as soon as the iterable yields it."""

    parts: Iterable[bytes]


Fault = Answer | Drop | Hang | Delay | RunFirst | Chunks


@define
class PlannedFault:
    """A fault for the next `times` requests with this verb and resource. An empty string stands for all of them.

    If `every` is 2, only every second one of these requests has the fault, and so on.
    """

    fault: Fault
    verb: str = ""
    resource: str = ""
    method: str = ""
    times: int | None = 1
    every: int = 1
    _fitted: int = field(default=0, init=False)

    def fits(self, request: Request) -> bool:
        """Whether the request is one that the fault is for."""
        return (
            self.verb in ("", request.verb)
            and self.resource in ("", request.resource)
            and self.method in ("", request.method)
        )

    def is_due(self) -> bool:
        """Count a request that fits. Return whether it has the fault."""
        self._fitted += 1
        if self._fitted % self.every:
            return False
        self.times = None if self.times is None else self.times - 1
        return True
