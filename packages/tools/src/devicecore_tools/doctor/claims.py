"""Devices of ResourceClaims beside devices of plugins: which of them are the same hardware.

Laws: two devices count as one only if the sources show it: by a PCI address, by an identifier that only one device has,
or by one name and one vendor. If a source is missing that could show it, `missing` names the source.
"""

import re
from collections.abc import Iterator, Mapping

from attrs import frozen

from devicecore_tools.doctor.look import ClaimedDeviceSeen, Look, PreparedDeviceSeen, PublishedDeviceSeen, Source

_ADDRESS = re.compile(  # with colons as the system writes it, or with hyphens as in names of devices
    r"(?<![0-9a-z])(?:"
    r"(?:(?:[0-9a-f]{4})?([0-9a-f]{4}):)?([0-9a-f]{2}):([01][0-9a-f])\.([0-7])"
    r"|([0-9a-f]{4})-([0-9a-f]{2})-([01][0-9a-f])-([0-7])"
    r")(?![0-9a-z])"
)
_MIN_IDENTIFIER = 16  # characters; a shorter text, such as gpu-0, may name devices of two vendors
_REPLICA = "::"  # separates the number of a replica from an id, as plugins that share devices write it

Device = tuple[str, str, str]
"""Driver, pool and name."""


@frozen
class SameDevice:
    """A device of a claim that is also one of a plugin, and why that is known."""

    prepared: PreparedDeviceSeen
    sources: tuple[Source, ...]
    because: str


class ClaimedHardware:
    """The devices that claims hold in one look, found by the ids of plugins."""

    def __init__(self, look: Look) -> None:
        self._prepared = {_key(device): (device, sources) for device, sources in _prepared(look)}
        published = {(one.driver, one.pool, one.device): one for one in look.slices.value or ()}
        self.missing: str = _missing(look, published)
        """Why a device that is not found here may still belong to a claim; empty if it cannot."""
        self._by_address: dict[str, tuple[Device, str]] = {}
        self._by_identifier: dict[str, tuple[Device, str]] = {}
        self._by_name: dict[str, list[Device]] = {}
        self._found_by_name: dict[tuple[str, str], Device | None] = {}
        self._by_cdi: dict[str, Device] = {}
        for key, (device, _) in self._prepared.items():
            self._index(key, device, published.get(key))

    def find(self, resource: str, device: str, cdi_devices: tuple[str, ...] = ()) -> SameDevice | None:
        """The device of a claim that is the same as a plugin's; None if none is known.

        Args:
            resource: the plugin's resource.
            device: its id.
            cdi_devices: the CDI names that the plugin gave to the holder of this device alone.
        """
        if not self._prepared:
            return None
        id_ = device.partition(_REPLICA)[0]
        address = pci_address(id_)
        if address is not None and address in self._by_address:
            return self._same(*self._by_address[address])
        if id_ in self._by_identifier:
            return self._same(*self._by_identifier[id_])
        key = self._of_one_vendor(resource, id_.lower())
        if key is not None:
            return self._same(key, f"both are called {id_}, and resource and driver are of one vendor")
        for name in cdi_devices:
            if name in self._by_cdi:
                return self._same(self._by_cdi[name], f"both were given as the CDI device {name}")
        return None

    def _of_one_vendor(self, resource: str, name: str) -> Device | None:
        """The device of this name whose driver is of the resource's vendor; ids of replicas all have one name."""
        if (resource, name) not in self._found_by_name:
            named = self._by_name.get(name, ())
            found = next((key for key in named if _is_one_vendor(resource, key[0])), None)
            self._found_by_name[resource, name] = found
        return self._found_by_name[resource, name]

    def _same(self, key: Device, because: str) -> SameDevice:
        device, sources = self._prepared[key]
        return SameDevice(device, sources, because)

    def _index(self, key: Device, device: PreparedDeviceSeen, published: PublishedDeviceSeen | None) -> None:
        self._by_name.setdefault(device.device.lower(), []).append(key)
        for name in device.cdi_devices:
            self._by_cdi[name] = key
        if len(device.device) >= _MIN_IDENTIFIER:
            self._by_identifier[device.device] = key, f"both have the id {device.device}"
        address = pci_address(device.device)
        if address is not None:
            self._by_address[address] = key, f"both name the PCI address {address}"
        for name, value in (published.attributes if published else {}).items():
            address = pci_address(value)
            if address is not None:
                self._by_address[address] = key, f"both have the PCI address {address}"
            elif len(value) >= _MIN_IDENTIFIER:
                self._by_identifier[value] = key, f"the attribute {name} of the device is {value}"


def pci_address(text: str) -> str | None:
    """The PCI address in a text, as `dddd:bb:dd.f`; None if there is none, or more than one.

    >>> pci_address("00000000:3B:00.0"), pci_address("gpu-0000-3b-00-0"), pci_address("gpu-0")
    ('0000:3b:00.0', '0000:3b:00.0', None)
    """
    parts = (match.groups(default="") for match in _ADDRESS.finditer(text.lower()))
    found = {(p[0] or p[4] or "0000", p[1] or p[5], p[2] or p[6], p[3] or p[7]) for p in parts}
    if len(found) != 1:
        return None
    domain, bus, device, function = found.pop()
    return f"{domain}:{bus}:{device}.{function}"


def _prepared(look: Look) -> Iterator[tuple[PreparedDeviceSeen, tuple[Source, ...]]]:
    """The devices of claims, from the kubelet's file first."""
    seen: set[Device] = set()
    in_api = {(one.driver, one.pool, one.device): one for one in _claimed(look)}
    for one in look.claims.value.devices if look.claims.value else ():
        seen.add(_key(one))
        yield one, (Source.CLAIMS, *((Source.POD_RESOURCES,) if _key(one) in in_api else ()))
    for key, claimed in in_api.items():
        if key not in seen:
            claim = f"{claimed.namespace}/{claimed.claim}"
            yield PreparedDeviceSeen(claim, *key, claimed.cdi_devices), (Source.POD_RESOURCES,)


def _claimed(look: Look) -> tuple[ClaimedDeviceSeen, ...]:
    return look.pod_resources.value.claimed if look.pod_resources.value else ()


def _missing(look: Look, published: Mapping[Device, PublishedDeviceSeen]) -> str:
    claims = look.claims.value
    if claims is None:
        return f"the file of ResourceClaims was not read: {look.claims.problem}"
    if not claims.is_sound:
        return f"the file of ResourceClaims is not sound: {', '.join(look.claims.notes)}"
    devices = [*map(_key, claims.devices), *((one.driver, one.pool, one.device) for one in _claimed(look))]
    if all(device in published for device in devices):
        return ""
    if look.slices.value is None:
        return f"the ResourceSlices, which name PCI addresses, were not read: {look.slices.problem}"
    driver, pool, name = next(device for device in devices if device not in published)
    return f"no ResourceSlice has the device {driver}/{pool}/{name} of a claim"


def _key(device: PreparedDeviceSeen) -> Device:
    return device.driver, device.pool, device.device


def _is_one_vendor(resource: str, driver: str) -> bool:
    """Whether the domain of a resource and the name of a driver are of one vendor: example.com, gpu.example.com."""
    domain = resource.partition("/")[0]
    return f".{driver}".endswith(f".{domain}") or f".{domain}".endswith(f".{driver}")
