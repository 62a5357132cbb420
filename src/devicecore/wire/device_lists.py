"""Lists of devices, read several times faster than device by device.

Law: what is read here, protobuf would read just so; whatever is in any way unusual is left to it.

Plugins write a device's id first. What they write behind it, health and NUMA nodes, is the same for many devices, so
protobuf has to read it but once. And most of a list is what the plugin's last one said, so that is not read again.
"""

from collections.abc import Iterable
from itertools import chain
from typing import cast

from attrs import frozen
from google.protobuf.message import DecodeError

from devicecore.domain.device_list import DeviceList, DeviceState
from devicecore.domain.model import DeviceId
from devicecore.wire import deviceplugin
from devicecore.wire.conversion import to_device, to_devices

_FIRST = 0x0A  # the tag of field 1 with a length: of a device in a list, and of the id in a device
_LONGEST = 0x7F  # up to which a length is one byte
_HEAD = 4  # bytes: tag and length of a device, tag and length of its id
_PORTION = 64  # devices


@frozen
class _Portion:
    """Some devices one behind the other: as they stand in a message, and read."""

    data: bytes
    devices: DeviceList


class ListReader:
    """Reads the lists of one plugin.

    What a list has in common with the one before it, at its beginning and at its end, is taken from there: portion by
    portion, for where a device ends is only known to whoever has read all before it.
    """

    def __init__(self) -> None:
        self._portions: list[_Portion] = []
        self._last = DeviceList()

    def read(self, data: bytes) -> DeviceList:
        """Read the next ListAndWatchResponse, in its order.

        Raises:
            DecodeError: it is none.
            UnicodeDecodeError: likewise, from protobuf's pure Python implementation.
        """
        before, front, at, end = self._portions, 0, 0, len(data)
        back = len(before)
        while front < back and data.startswith(before[front].data, at):
            at += len(before[front].data)
            front += 1
        while front < back and data.endswith(before[back - 1].data, at, end):
            back -= 1
            end -= len(before[back].data)
        if before and front == back and at == end:
            return self._last
        try:
            portions = [*before[:front], *_portions(data[at:end]), *before[back:]]
        except (DecodeError, ValueError):
            self._portions = []
            return read_devices(data)
        if len(portions) > 4 + 2 * sum([len(portion.devices) for portion in portions]) // _PORTION:
            portions = _portions(data)  # these have become crumbs
        self._portions, self._last = portions, _joined(portions)
        return self._last


def read_devices(data: bytes) -> DeviceList:
    """Read a ListAndWatchResponse, in its order.

    Raises:
        DecodeError: it is none.
        UnicodeDecodeError: likewise, from protobuf's pure Python implementation.
    """
    return read_plain(data) or DeviceList.of(to_devices(deviceplugin.ListAndWatchResponse.FromString(data)))


def read_plain(data: bytes) -> DeviceList | None:
    """Read a list without anything unusual; None of any other."""
    try:
        return _joined(_portions(data))
    except (DecodeError, ValueError):
        return None


def _joined(portions: Iterable[_Portion]) -> DeviceList:
    lists = [portion.devices for portion in portions]
    return DeviceList(
        tuple(chain.from_iterable([devices.ids for devices in lists])),
        tuple(chain.from_iterable([devices.states for devices in lists])),
    )


def _portions(data: bytes) -> list[_Portion]:
    """Read a list without anything unusual.

    Raises:
        DecodeError: it is another.
        ValueError: likewise.
    """
    text = data.decode("latin-1")  # one letter for one byte; making a text of each id takes longer
    spans: dict[bytes, tuple[int, int]] = {}
    states: dict[bytes, DeviceState] = {}
    portions = []
    at = 0
    while at < len(data):
        begun = at
        ids: list[str] = []
        rests: list[bytes] = []
        while at < len(data) and len(ids) < _PORTION:
            head = data[at : at + _HEAD]
            span = spans.get(head) or spans.setdefault(head, _span(head))
            rest, end = at + span[0], at + span[1]
            ids.append(text[at + _HEAD : rest])
            rests.append(data[rest:end])
            at = end
        if at > len(data):
            raise ValueError
        states.update({rest: _state(rest) for rest in {*rests} - states.keys()})
        if not text.isascii():
            ids = [device.encode("latin-1").decode() for device in ids]
        devices = DeviceList(cast("tuple[DeviceId, ...]", tuple(ids)), tuple([states[rest] for rest in rests]))
        portions.append(_Portion(data[begun:at], devices))
    return portions


def _span(head: bytes) -> tuple[int, int]:
    """How far what begins with `head` goes: to the end of the id, and of the device.

    Raises:
        ValueError: it is no device, or a longer one.
    """
    if len(head) < _HEAD or not head[0] == head[2] == _FIRST or not head[3] + 2 <= head[1] <= _LONGEST:
        raise ValueError
    return _HEAD + head[3], 2 + head[1]


def _state(rest: bytes) -> DeviceState:
    """What a device says behind its id.

    Raises:
        ValueError: it says it otherwise than protobuf does, or another id.
    """
    message = deviceplugin.Device.FromString(rest)
    if message.ID or message.SerializeToString() != rest:
        raise ValueError
    device = to_device(message)
    return device.health, device.topology
