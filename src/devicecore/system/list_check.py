"""Limits for the device list of a plugin, no matter how the list arrives.

Law: a list that passes leaves space in the checkpoint for other plugins' lists.
"""

import logging
from collections.abc import Sequence
from typing import NoReturn

from attrs import frozen

from devicecore.domain.device_list import DeviceList
from devicecore.domain.errors import PluginError
from devicecore.domain.go_text import json_text
from devicecore.domain.json_size import MAX_OF_OWNER, near_limit, share_of_file
from devicecore.domain.model import MAX_DEVICE_ID_LENGTH, DeviceId, PluginId
from devicecore.domain.text import counted, foreign_text

MAX_NUMA_NODES = 1024
"""The maximum number of NUMA nodes in one list. Linux does not support more."""

MAX_DEVICES = 250_000
"""The maximum number of devices in one list.

A list of 4 MB, which is a kubelet's limit, contains fewer healthy devices than this if their ids have at least six
characters.
"""

MAX_DEVICE_ID = 4096
"""The maximum length of a device id. The API allows 63 characters, but some plugins send more."""

_NEARLY_FULL = 0.8  # the fraction of a message's limit above which a warning is logged
_SHOWN = 320  # the maximum number of characters of an id in a warning

_log = logging.getLogger(__name__)


@frozen
class DeviceListError(PluginError):
    """A plugin's list is too large, contains an id that is too long, or would fill the checkpoint."""

    resource: str
    problem: str
    _text = "a list from {resource} {problem}"


class ListCheck:
    """Checks the lists of one plugin instance: refuses lists that are too large, and logs once what is unusual.

    A list may come in a message of at most `message_bytes` bytes. None means that lists do not come in messages.
    """

    def __init__(self, plugin: PluginId, message_bytes: int | None) -> None:
        self._plugin = plugin
        self._socket = foreign_text(plugin.socket)
        self._limit = message_bytes
        self._last: DeviceList | None = None
        self._long_ids_logged = self._size_logged = False
        self._in_file = 0  # bytes

    def look(self, size: int, devices: DeviceList) -> None:
        """Check the next list. `size` is the length of the list's message, or of all its ids if there is no message.

        Raises DeviceListError if the list is refused.
        """
        if devices is self._last:
            return
        self._refuse_many_numa_nodes(devices)
        self._look_at_ids(devices.ids)
        self._look_at_share(size, devices.ids)
        if not self._size_logged and self._limit is not None:
            self._look_at_size(size, len(devices), self._limit)
        self._last = devices

    def _refuse(self, problem: str) -> NoReturn:
        raise DeviceListError(self._plugin.resource, problem)

    def _refuse_many_numa_nodes(self, devices: DeviceList) -> None:
        topologies = {topology for _, topology in {*devices.states} if topology}
        numa_nodes = {numa_node for topology in topologies for numa_node in topology}
        if len(numa_nodes) > MAX_NUMA_NODES:
            self._refuse(f"names {len(numa_nodes)} NUMA nodes, expected at most {MAX_NUMA_NODES}")

    def _look_at_ids(self, ids: Sequence[DeviceId]) -> None:
        long = [device for device in ids if len(device) > MAX_DEVICE_ID_LENGTH]
        if not long:
            return
        longest = max(map(len, long))
        if longest > MAX_DEVICE_ID:
            self._refuse(f"has a device id of {longest} characters, expected at most {MAX_DEVICE_ID}")
        if not self._long_ids_logged:
            self._long_ids_logged = True
            what = f"{counted(len(long), 'device id')} of more than {MAX_DEVICE_ID_LENGTH} characters"
            self._warn(f"has {what}, contrary to the device plugin API, such as {foreign_text(long[0], _SHOWN)}")

    def _look_at_share(self, size: int, ids: Sequence[DeviceId]) -> None:
        """Refuse a list that would leave other plugins too little space in the checkpoint."""
        # In JSON, a character takes up at most six bytes, so most lists can be accepted without being rendered. An id
        # also takes up the comma after it, and those inside it.
        separators = share_of_file("".join(ids).encode(errors="replace")) + 40 * len(ids)
        is_small = max(6 * size, separators) < MAX_OF_OWNER // 2
        before, self._in_file = self._in_file, 0 if is_small else share_of_file(json_text(ids))
        if self._in_file > MAX_OF_OWNER:
            self._refuse(f"would take up {self._in_file:,} bytes in the checkpoint, expected at most {MAX_OF_OWNER:,}")
        if warning := near_limit(f"the list from {self._plugin.resource}", before, self._in_file, "the checkpoint"):
            _log.warning("%s", warning)

    def _look_at_size(self, size: int, devices: int, limit: int) -> None:
        if size > _NEARLY_FULL * limit:
            self._size_logged = True
            lists = f"lists {counted(devices, 'device')} in {size} bytes, and a message may be up to {limit} bytes long"
            self._warn(
                f"{lists}: with more than about {devices * limit // size} devices the plugin will be disconnected "
                "unless message_bytes is raised"
            )

    def _warn(self, problem: str) -> None:
        _log.warning("%s at %s %s", self._plugin.resource, self._socket, problem)
