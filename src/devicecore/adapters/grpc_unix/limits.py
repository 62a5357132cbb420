"""Limits on how much a plugin may send, and how often.

Law: the error for a plugin that exceeds a limit is short, and never repeats everything that the plugin sent.
"""

from collections.abc import Callable
from functools import partial

from attrs import frozen

from devicecore.domain.errors import InvalidResourceNameError, PluginError
from devicecore.domain.model import ResourceName, resource_name
from devicecore.domain.text import foreign_text
from devicecore.system.arguments import checks_fields
from devicecore.system.rate import TokenBucket

MAX_NAME = 320  # how many characters of a name are repeated in an error or in the log; a resource name has at most 317
MAX_ERROR = 2000  # characters: even escaped, they fit into the 8 KiB of headers that grpc accepts
MAX_PENDING = 16  # the maximum number of unanswered registrations at one socket

_MANY_BUCKETS = 1000


@checks_fields
@frozen(kw_only=True)
class ConnectionLimits:
    """How long a socket may take to answer, in seconds, and how long a message from the socket may be, in bytes."""

    dial: float = 10.0
    message_bytes: int = 4 * 1024 * 1024


@checks_fields
@frozen(kw_only=True)
class PluginLimits(ConnectionLimits):
    """How long a device plugin may take for each call, in seconds, how much it may send, and how often it may register.

    A plugin whose list is longer than `message_bytes` is disconnected. An answer to Allocate may be at most
    `allocate_bytes` bytes long, because it is stored in the checkpoint, which is rewritten for each pod. A resource may
    register `registration_burst` times at once, and then `registrations_per_second` times a second. If this rate is
    None, registrations are not limited.
    """

    options: float = 30.0
    allocate: float = 30.0
    preferred_allocation: float = 30.0
    pre_start: float = 30.0
    allocate_bytes: int = 256 * 1024
    registrations_per_second: float | None = 50.0
    registration_burst: int = 200


def parsed_resource_name(text: str) -> ResourceName:
    """Parse a resource name. Raises InvalidResourceNameError, which contains the name, truncated and escaped."""
    try:
        return resource_name(text)
    except InvalidResourceNameError:
        raise InvalidResourceNameError(foreign_text(text, MAX_NAME)) from None


@frozen
class TooManyRegistrationsError(PluginError):
    """A resource registers too often, so this call was refused. `retry_after` is in seconds."""

    resource: str
    burst: int
    per_second: float
    retry_after: float
    _text = (
        "{resource} registers too often, more than {burst} times at once and {per_second:g} times "
        "a second: try again in {retry_after:.2g} s"
    )


@frozen
class UnansweredRegistrationsError(PluginError):
    """A plugin registers with a socket from which too many registrations are already waiting for an answer."""

    socket: str
    limit: int
    _text = "{limit} registrations at {socket} are waiting for the plugin to answer: answer them, then register"


class RegistrationRate:
    """How often each resource may register: `burst` times at once, and then `per_second` times a second.

    Calls for one resource do not count against the limit of another resource.
    """

    def __init__(self, per_second: float, burst: int, clock: Callable[[], float]) -> None:
        self._per_second = per_second
        self._burst = burst
        self._new_bucket = partial(TokenBucket, per_second, burst, clock)
        self._new_bucket()  # fail now rather than refuse every plugin later
        self._buckets: dict[ResourceName, TokenBucket] = {}
        self._many = _MANY_BUCKETS

    def take(self, resource: ResourceName) -> None:
        """Allow `resource` to register now, or raise TooManyRegistrationsError, which says when to try again."""
        if len(self._buckets) >= self._many:
            self._forget_full_buckets()
        if resource not in self._buckets:
            self._buckets[resource] = self._new_bucket()
        if wait := self._buckets[resource].take():
            raise TooManyRegistrationsError(resource, self._burst, self._per_second, wait)

    def _forget_full_buckets(self) -> None:
        """Prevent a caller that keeps inventing names from filling up the memory."""
        self._buckets = {resource: bucket for resource, bucket in self._buckets.items() if not bucket.full}
        self._many = max(_MANY_BUCKETS, 2 * len(self._buckets))
