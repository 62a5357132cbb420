"""Reads lists of devices, several times faster than device by device.

Law: a list is read as protobuf would read it. A list with anything unusual in it is read by protobuf.

Plugins write the id of a device first. The rest of a device (its health and NUMA nodes) is the same for many devices,
so protobuf has to read it only once. Usually, most of a list is the same as in the plugin's previous list, and this
part is not read again.
"""

import math
from collections.abc import Iterable
from itertools import chain
from typing import cast

from attrs import frozen
from google.protobuf.message import DecodeError

from devicecore.domain.device_list import DeviceList, DeviceState
from devicecore.domain.model import DeviceId
from devicecore.wire import deviceplugin
from devicecore.wire.conversion import to_device, to_devices

_FIRST = 0x0A  # the tag of field 1 with a length, for a device in a list and for the id in a device
_MAX_SHORT = 0x7F  # the greatest length that fits into one byte
_HEAD = 4  # the number of bytes before an id: tag and length of the device, tag and length of the id
_PORTION = 64  # devices


@frozen
class _Portion:
    """Consecutive devices: their bytes in a message, and the devices themselves."""

    data: bytes
    devices: DeviceList


class ListReader:
    """Reads the lists of one plugin.

    Blocks of devices that a list has in common with the previous list, at its start and at its end, are not read again.
    Whole blocks are compared, because the end of a device is known only once everything before it has been read.
    """

    def __init__(self) -> None:
        self._portions: list[_Portion] = []
        self._last = DeviceList()

    def read(self, data: bytes) -> DeviceList:
        """Read the plugin's next ListAndWatchResponse. Raises the errors that `read_devices` raises."""
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
            portions = _portions(data)  # many short portions would make the next comparison slow
        self._portions, self._last = portions, _joined(portions)
        return self._last


def count_devices(data: bytes, most: float = math.inf) -> int:
    """Return the number of devices in a ListAndWatchResponse, without creating a value for each device.

    Counting stops at `most`, and at anything that protobuf would refuse or that is not a device.
    """
    found = at = 0
    while at < len(data) and data[at] == _FIRST and found < most:
        at += 1
        length = shift = 0
        while at < len(data) and data[at] > _MAX_SHORT and shift < 28:
            length |= (data[at] & _MAX_SHORT) << shift
            shift += 7
            at += 1
        if at == len(data):
            break
        at += 1 + (length | data[at] << shift)
        found += 1
    return found


def read_devices(data: bytes) -> DeviceList:
    """Read a ListAndWatchResponse.

    For other bytes, raises DecodeError or, in protobuf's pure Python implementation, UnicodeDecodeError.
    """
    return read_plain(data) or DeviceList.of(to_devices(deviceplugin.ListAndWatchResponse.FromString(data)))


def read_plain(data: bytes) -> DeviceList | None:
    """Read a list that contains nothing unusual. Return None for any other list."""
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
    """Read a list that contains nothing unusual. Raises DecodeError or ValueError for any other list."""
    text = data.decode("latin-1")  # one character for each byte, because decoding each id separately takes longer
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
    """Return the numbers of bytes from the start of `head` to the end of the device's id, and to the end of the device.

    Raises ValueError if `head` does not start a device, or if the device is too long to be read in this way.
    """
    if len(head) < _HEAD or not head[0] == head[2] == _FIRST or not head[3] + 2 <= head[1] <= _MAX_SHORT:
        raise ValueError
    return _HEAD + head[3], 2 + head[1]


def _state(rest: bytes) -> DeviceState:
    """Read the fields of a device after its id. Raises ValueError if protobuf would write these fields differently."""
    message = deviceplugin.Device.FromString(rest)
    if message.ID or message.SerializeToString() != rest:
        raise ValueError
    device = to_device(message)
    return device.health, device.topology
