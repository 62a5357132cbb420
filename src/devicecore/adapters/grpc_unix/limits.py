"""What a plugin may say, how much of it and how often.

Law: whatever breaks a limit is answered in one short sentence, which never repeats all of it.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial

from attrs import frozen

from devicecore.domain.device_list import DeviceList
from devicecore.domain.errors import InvalidResourceNameError, PluginError
from devicecore.domain.model import MAX_DEVICE_ID_LENGTH, DeviceId, PluginId, ResourceName, resource_name
from devicecore.system.rate import TokenBucket

LONGEST_VERSION = 63  # characters; the only version there is has 7
LONGEST_RESOURCE_NAME = 253 + len("/") + 63  # characters, see `resource_name`

_SHOWN = 60  # characters
_LONGEST_ERROR = 2000  # characters: an answer of them, escaped, is within the 8 KiB of headers that grpc takes
_NEARLY_FULL = 0.8  # of a message
_MANY_BUCKETS = 1000

logger = logging.getLogger(__name__)


@frozen
class Limits:
    """How long a plugin may take, in seconds, and how much it may say at once."""

    dial: float
    options: float
    allocate: float
    preferred_allocation: float
    pre_start: float
    message_bytes: int


def shown(text: str, longest: int, kept: int = _SHOWN) -> str:
    """Spell what a stranger sent for an error or a log: on one line, and cut where it is longer than it may be."""
    if len(text) > longest:
        text = f"{text[:kept]}... ({len(text)} characters, {longest} are allowed)"
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def said(error: str) -> str:
    """Spell what went wrong with a plugin, as above: its own words may be in it."""
    return shown(error, _LONGEST_ERROR, kept=_LONGEST_ERROR // 2)


def parsed_resource_name(text: str) -> ResourceName:
    """Parse a resource name; what is none is not repeated at length.

    Raises:
        InvalidResourceNameError: it is none, and is as it can be `shown`.
    """
    try:
        return resource_name(text)
    except InvalidResourceNameError:
        raise InvalidResourceNameError(shown(text, LONGEST_RESOURCE_NAME)) from None


@frozen
class TooManyRegistrationsError(PluginError):
    """A resource registers so often that this call was not looked at. `retry_after` is in seconds."""

    resource: str
    burst: int
    per_second: float
    retry_after: float

    def __str__(self) -> str:
        return (
            f"{self.resource} registers too often, more than {self.burst} times at once and {self.per_second:g} times "
            f"a second: try again in {self.retry_after:.2g} seconds"
        )


class RegistrationRate:
    """How often each resource may register: `burst` times at once, and then `per_second`.

    No resource's storm is another one's problem.
    """

    def __init__(self, per_second: float, burst: int, clock: Callable[[], float]) -> None:
        self._per_second = per_second
        self._burst = burst
        self._new_bucket = partial(TokenBucket, per_second, burst, clock)
        self._new_bucket()  # refuses now what would refuse every plugin later
        self._buckets: dict[ResourceName, TokenBucket] = {}
        self._many = _MANY_BUCKETS

    def take(self, resource: ResourceName) -> None:
        """Let `resource` register now.

        Raises:
            TooManyRegistrationsError: not now; it says when.
        """
        if len(self._buckets) >= self._many:
            self._forget_full_buckets()
        if resource not in self._buckets:
            self._buckets[resource] = self._new_bucket()
        if wait := self._buckets[resource].take():
            raise TooManyRegistrationsError(resource, self._burst, self._per_second, wait)

    def _forget_full_buckets(self) -> None:
        """Whoever makes up new names all the time must not fill our memory with them."""
        self._buckets = {resource: bucket for resource, bucket in self._buckets.items() if not bucket.full}
        self._many = max(_MANY_BUCKETS, 2 * len(self._buckets))


class ListCheck:
    """Looks at the lists of one plugin instance, and reports what is odd about them in the log, once."""

    def __init__(self, plugin: PluginId, message_bytes: int) -> None:
        self._plugin = plugin
        self._socket = shown(plugin.socket, len(plugin.socket))
        self._limit = message_bytes
        self._long_ids_told = self._size_told = False

    def look(self, size: int, devices: DeviceList) -> None:
        """Look at the next list, which came in `size` bytes."""
        if not self._long_ids_told:
            self._look_at_ids(devices.ids)
        if not self._size_told:
            self._look_at_size(size, len(devices))

    def _look_at_ids(self, ids: Sequence[DeviceId]) -> None:
        long = [device for device in ids if len(device) > MAX_DEVICE_ID_LENGTH]
        if long:
            self._long_ids_told = True
            logger.warning(
                "%s at %s has %d device ids of more than %d characters, against the device plugin API, such as %s",
                self._plugin.resource,
                self._socket,
                len(long),
                MAX_DEVICE_ID_LENGTH,
                shown(long[0], MAX_DEVICE_ID_LENGTH),
            )

    def _look_at_size(self, size: int, devices: int) -> None:
        if size > _NEARLY_FULL * self._limit:
            self._size_told = True
            logger.warning(
                "%s at %s lists %d devices in %d bytes, and a message may have %d: with more than about %d devices "
                "the plugin will be lost, unless max_message_bytes is raised",
                self._plugin.resource,
                self._socket,
                devices,
                size,
                self._limit,
                devices * self._limit // size,
            )
