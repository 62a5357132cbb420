"""A plugin's list of devices, column by column.

Law: a device list is equal to the tuple of its devices. A `Device` is created when a caller reads it, because
plugins repeatedly send lists of 50,000 devices, most of which are only compared with the previous list.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import overload

from attrs import frozen

from devicecore.domain.checks import received
from devicecore.domain.model import Device, DeviceId, Health, NumaNode
from devicecore.domain.text import counted, foreign_text

DeviceState = tuple[Health, tuple[NumaNode, ...] | None]
"""The fields of a `Device` other than its id: health and topology."""


@frozen(eq=False, repr=False)
class DeviceList(Sequence[Device]):
    """An immutable sequence of devices."""

    ids: tuple[DeviceId, ...] = ()
    states: tuple[DeviceState, ...] = ()

    @classmethod
    def of(cls, devices: Iterable[Device]) -> "DeviceList":
        """Return the list of `devices`. Raises TypeError if an item is not a `Device`."""
        if isinstance(devices, DeviceList):
            return devices
        listed = tuple(devices)
        try:
            ids = tuple([device.id for device in listed])
            return cls(ids, tuple([(device.health, device.topology) for device in listed]))
        except AttributeError:
            given: tuple[object, ...] = listed
            other = next(device for device in given if not isinstance(device, Device))
            message = f"devices: expected Device, got {foreign_text(repr(other), 100)}"
            raise TypeError(message) from None

    @property
    def by_id(self) -> "DevicesById":
        """The devices by id. If an id is listed twice, the last device with this id is used."""
        return DevicesById(dict(zip(self.ids, self.states, strict=True)))

    def ids_of(self, wanted: Health) -> list[DeviceId]:
        """Return the ids of the devices whose health is `wanted`."""
        return [device for device, (health, _) in zip(self.ids, self.states, strict=True) if health is wanted]

    @overload
    def __getitem__(self, place: int) -> Device: ...
    @overload
    def __getitem__(self, place: slice) -> "DeviceList": ...
    def __getitem__(self, place: int | slice) -> "Device | DeviceList":
        if isinstance(place, slice):
            return DeviceList(self.ids[place], self.states[place])
        return received(Device, self.ids[place], *self.states[place])

    def __iter__(self) -> Iterator[Device]:
        return (received(Device, device, *state) for device, state in zip(self.ids, self.states, strict=True))

    def __len__(self) -> int:
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, DeviceList):
            return self.ids == other.ids and self.states == other.states
        return tuple(self) == other

    def __hash__(self) -> int:
        return hash(tuple(self))  # the hash of a tuple, because a device list may be equal to one

    def __repr__(self) -> str:
        return f"<DeviceList: {counted(len(self), 'device')}>"


@frozen(eq=False, repr=False)
class DevicesById(Mapping[DeviceId, Device]):
    """Devices by id, in the order in which each id first appeared."""

    states: Mapping[DeviceId, DeviceState]

    def __getitem__(self, device: DeviceId) -> Device:
        return received(Device, device, *self.states[device])

    def numa_nodes(self, device: DeviceId) -> tuple[NumaNode, ...]:
        """Return the NUMA nodes of a device, or none if it has no topology or is not listed."""
        state = self.states.get(device)
        return state[1] or () if state else ()

    def __contains__(self, device: object) -> bool:
        return device in self.states

    def __iter__(self) -> Iterator[DeviceId]:
        return iter(self.states)

    def __len__(self) -> int:
        return len(self.states)

    def __repr__(self) -> str:
        return f"<DevicesById: {counted(len(self), 'device')}>"
