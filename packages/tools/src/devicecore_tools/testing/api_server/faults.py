"""API server faults that a test chooses for some requests.

Law: a fault changes only the requests that the test names.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attrs import define, field, frozen

from devicecore.system.arguments import checks_fields


@frozen
class Request:
    """A client's request.

    `verb` and `resource` use RBAC's terms, such as `patch` and `nodes/status`. `at` is the time the request was read,
    as a `time.monotonic()` timestamp.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(factory=dict)
    headers: Mapping[str, str] = field(factory=dict)
    body: Any = None
    verb: str = ""
    resource: str = ""
    at: float = field(factory=time.monotonic, eq=False)


@checks_fields
@frozen
class Answer:
    """Answer the request with this value. A string is sent unchanged as the body, anything else as JSON."""

    status: int
    body: Any = None
    headers: Mapping[str, str] = field(factory=dict)


@checks_fields
@frozen
class Drop:
    """Close the connection without an answer. With `after`, close the connection once the request has been executed."""

    after: bool = False


@frozen
class Hang:
    """Send no answer. Close the connection when the server is stopped or `release` is called."""


@checks_fields
@frozen
class Delay:
    """Execute the request after this many seconds."""

    seconds: float


@checks_fields
@frozen
class RunFirst:
    """Call `action`, then execute the request as usual."""

    action: Callable[[], object]


@checks_fields
@frozen
class Chunks:
    """Answer with code 200 and this body. Each part is sent as soon as the iterable yields it."""

    parts: Iterable[bytes]


Fault = Answer | Drop | Hang | Delay | RunFirst | Chunks


@define
class PlannedFault:
    """A fault that affects the next `times` requests with this verb, resource and HTTP method.

    If `times` is None, the fault affects all of them. An empty string matches any value. If `every` is 2, only every
    second matching request gets the fault, and so on.
    """

    fault: Fault
    verb: str = ""
    resource: str = ""
    method: str = ""
    times: int | None = 1
    every: int = 1
    _fitted: int = field(default=0, init=False)

    def fits(self, request: Request) -> bool:
        """Return whether the fault applies to this request."""
        return (
            self.verb in ("", request.verb)
            and self.resource in ("", request.resource)
            and self.method in ("", request.method)
        )

    def is_due(self) -> bool:
        """Count a matching request, and return whether the request gets the fault."""
        self._fitted += 1
        if self._fitted % self.every:
            return False
        self.times = None if self.times is None else self.times - 1
        return True
