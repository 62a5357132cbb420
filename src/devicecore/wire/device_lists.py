"""Lists of devices, read several times faster than device by device.

Law: what is read here, protobuf would read just so; whatever is in any way unusual is left to it.

Plugins write a device's id first. What they write behind it, health and NUMA nodes, is the same for many devices, so
protobuf has to read it but once.
"""

from google.protobuf.message import DecodeError

from devicecore.domain.device_list import DeviceList, DeviceState
from devicecore.domain.model import DeviceId
from devicecore.wire import deviceplugin
from devicecore.wire.conversion import to_device, to_devices

_FIRST = 0x0A  # the tag of field 1 with a length: of a device in a list, and of the id in a device
_LONGEST = 0x7F  # up to which a length is one byte
_HEAD = 4  # bytes: tag and length of a device, tag and length of its id


def read_devices(data: bytes) -> DeviceList:
    """Read a ListAndWatchResponse, in its order.

    Raises:
        DecodeError: it is none.
        UnicodeDecodeError: likewise, from protobuf's pure Python implementation.
    """
    return read_plain(data) or DeviceList.of(to_devices(deviceplugin.ListAndWatchResponse.FromString(data)))


def read_plain(data: bytes) -> DeviceList | None:
    """Read a list without anything unusual; None of any other."""
    ids: list[bytes] = []
    rests: list[bytes] = []
    spans: dict[bytes, tuple[int, int]] = {}
    at = 0
    while at < len(data):
        head = data[at : at + _HEAD]
        span = spans.get(head)
        if span is None:
            if len(head) < _HEAD or not head[0] == head[2] == _FIRST or not head[3] + 2 <= head[1] <= _LONGEST:
                return None
            span = spans[head] = _HEAD + head[3], 2 + head[1]
        rest, end = span
        ids.append(data[at + _HEAD : at + rest])
        rests.append(data[at + rest : at + end])
        at += end
    if at != len(data):
        return None
    try:
        states = {rest: _state(rest) for rest in set(rests)}
        texts = tuple(map(DeviceId, map(bytes.decode, ids)))
    except (DecodeError, ValueError):
        return None
    return DeviceList(texts, tuple([states[rest] for rest in rests]))


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
