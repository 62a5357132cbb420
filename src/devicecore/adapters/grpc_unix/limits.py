"""How much a plugin may send, and how often.

Law: a plugin that breaks a limit gets one short sentence as its answer, which never repeats all that it sent.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial

from attrs import frozen

from devicecore.domain.checkpoint.go_text import json_text
from devicecore.domain.device_list import DeviceList
from devicecore.domain.errors import InvalidResourceNameError, PluginError
from devicecore.domain.json_size import MAX_OF_OWNER, near_limit, share_of_file
from devicecore.domain.model import MAX_DEVICE_ID_LENGTH, DeviceId, PluginId, ResourceName, resource_name
from devicecore.domain.text import counted, foreign_text
from devicecore.system.rate import TokenBucket

MAX_NAME = 320  # characters of a name that are repeated in an error or in the log; a resource has up to 317
MAX_ERROR = 2000  # characters: even escaped, they fit into the 8 KiB of headers that grpc takes
MAX_NUMA_NODES = 1024  # in one list; Linux has at most as many
MAX_DEVICE_ID = 4096  # characters; the API allows 63, and some plugins send more
MAX_PENDING = 16  # registrations at one socket that have not been answered by it

_NEARLY_FULL = 0.8  # of a message
_MANY_BUCKETS = 1000

logger: logging.Logger = logging.getLogger(__name__)


@frozen
class ConnectionLimits:
    """How long a socket may take to answer, in seconds, and how long a message from it may be, in bytes."""

    dial: float = 10.0
    message_bytes: int = 4 * 1024 * 1024


@frozen(kw_only=True)
class PluginLimits(ConnectionLimits):
    """How many seconds a device plugin may take for each call, and how many bytes it may send at once.

    A plugin whose list is longer than `message_bytes` is lost. An answer to Allocate has at most `allocate_bytes`,
    because it is stored in the checkpoint, which is written anew for each pod.
    """

    options: float = 30.0
    allocate: float = 30.0
    preferred_allocation: float = 30.0
    pre_start: float = 30.0
    allocate_bytes: int = 256 * 1024


def parsed_resource_name(text: str) -> ResourceName:
    """Parse a resource name. Raises InvalidResourceNameError, which has the name cut and escaped."""
    try:
        return resource_name(text)
    except InvalidResourceNameError:
        raise InvalidResourceNameError(foreign_text(text, MAX_NAME)) from None


@frozen
class TooManyRegistrationsError(PluginError):
    """A resource registers too often, so this call was not looked at. `retry_after` is in seconds."""

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
    """A plugin registers at a socket where too many registrations wait for an answer already."""

    socket: str
    limit: int
    _text = "{limit} registrations at {socket} are waiting for its answer: answer them, then register"


@frozen
class TooManyNumaNodesError(PluginError):
    """A plugin's list names more NUMA nodes than a machine can have."""

    resource: str
    numa_nodes: int

    def __str__(self) -> str:
        return f"a list of {self.resource} names {self.numa_nodes} NUMA nodes, expected at most {MAX_NUMA_NODES}"


@frozen
class DeviceIdTooLongError(PluginError):
    """A plugin's list has a device id of a length that would fill the checkpoint."""

    resource: str
    characters: int

    def __str__(self) -> str:
        return (
            f"a list of {self.resource} has a device id of {self.characters} characters, "
            f"expected at most {MAX_DEVICE_ID}"
        )


@frozen
class DeviceListTooLargeError(PluginError):
    """A plugin's list would take up too much of the checkpoint. `size` and `limit` are in bytes."""

    resource: str
    size: int
    limit: int
    _text = "a list of {resource} would have {size:,} bytes in the checkpoint, expected at most {limit:,}"


class RegistrationRate:
    """How often each resource may register: `burst` times at once, and then `per_second`.

    One resource's calls use up nothing of another's.
    """

    def __init__(self, per_second: float, burst: int, clock: Callable[[], float]) -> None:
        self._per_second = per_second
        self._burst = burst
        self._new_bucket = partial(TokenBucket, per_second, burst, clock)
        self._new_bucket()  # refuses now what would refuse every plugin later
        self._buckets: dict[ResourceName, TokenBucket] = {}
        self._many = _MANY_BUCKETS

    def take(self, resource: ResourceName) -> None:
        """Let `resource` register now. Raises TooManyRegistrationsError, which says when it may register."""
        if len(self._buckets) >= self._many:
            self._forget_full_buckets()
        if resource not in self._buckets:
            self._buckets[resource] = self._new_bucket()
        if wait := self._buckets[resource].take():
            raise TooManyRegistrationsError(resource, self._burst, self._per_second, wait)

    def _forget_full_buckets(self) -> None:
        """Keep a caller that makes up new names all the time from filling the memory with them."""
        self._buckets = {resource: bucket for resource, bucket in self._buckets.items() if not bucket.full}
        self._many = max(_MANY_BUCKETS, 2 * len(self._buckets))


class ListCheck:
    """Checks the lists of one plugin instance: refuses what is too large, and logs once what is unusual."""

    def __init__(self, plugin: PluginId, message_bytes: int) -> None:
        self._plugin = plugin
        self._socket = foreign_text(plugin.socket)
        self._limit = message_bytes
        self._last: DeviceList | None = None
        self._long_ids_logged = self._size_logged = False
        self._in_file = 0  # bytes

    def look(self, size: int, devices: DeviceList) -> None:
        """Look at the next list, which came in `size` bytes.

        Raises DeviceListTooLargeError, DeviceIdTooLongError or TooManyNumaNodesError.
        """
        if devices is self._last:
            return
        self._refuse_many_numa_nodes(devices)
        self._look_at_ids(devices.ids)
        self._look_at_share(size, devices.ids)
        if not self._size_logged:
            self._look_at_size(size, len(devices))
        self._last = devices

    def _refuse_many_numa_nodes(self, devices: DeviceList) -> None:
        topologies = {topology for _, topology in {*devices.states} if topology}
        numa_nodes = {numa_node for topology in topologies for numa_node in topology}
        if len(numa_nodes) > MAX_NUMA_NODES:
            raise TooManyNumaNodesError(self._plugin.resource, len(numa_nodes))

    def _look_at_ids(self, ids: Sequence[DeviceId]) -> None:
        long = [device for device in ids if len(device) > MAX_DEVICE_ID_LENGTH]
        if not long:
            return
        longest = max(map(len, long))
        if longest > MAX_DEVICE_ID:
            raise DeviceIdTooLongError(self._plugin.resource, longest)
        if not self._long_ids_logged:
            self._long_ids_logged = True
            logger.warning(
                "%s at %s has %s of more than %d characters, against the device plugin API, such as %s",
                self._plugin.resource,
                self._socket,
                counted(len(long), "device id"),
                MAX_DEVICE_ID_LENGTH,
                foreign_text(long[0], MAX_NAME),
            )

    def _look_at_share(self, size: int, ids: Sequence[DeviceId]) -> None:
        """Refuse a list of which too little of the checkpoint would be left to other plugins."""
        # In JSON, an escaped character has six bytes, so most lists need not be rendered for this.
        is_small = max(6 * size, 40 * len(ids)) < MAX_OF_OWNER // 2
        before, self._in_file = self._in_file, 0 if is_small else share_of_file(json_text(ids))
        if self._in_file > MAX_OF_OWNER:
            raise DeviceListTooLargeError(self._plugin.resource, self._in_file, MAX_OF_OWNER)
        if warning := near_limit(f"the list of {self._plugin.resource}", before, self._in_file, "the checkpoint"):
            logger.warning("%s", warning)

    def _look_at_size(self, size: int, devices: int) -> None:
        if size > _NEARLY_FULL * self._limit:
            self._size_logged = True
            logger.warning(
                "%s at %s lists %s in %d bytes, and a message may have %d: with more than about %d devices "
                "the plugin will be lost, unless max_message_bytes is raised",
                self._plugin.resource,
                self._socket,
                counted(devices, "device"),
                size,
                self._limit,
                devices * self._limit // size,
            )
