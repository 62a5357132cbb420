"""Finds out which devices of ResourceClaims and which devices of plugins are the same hardware.

Laws: two devices count as one only if the sources show that they are the same: by a PCI address, by a unique
identifier, by a CDI device, by the same name and vendor, or because plugin and driver list the same names. If a source
that could show this is missing, `perhaps` names it. A driver says nothing about other vendors' devices.
"""

import re
from collections.abc import Iterator, Mapping

from attrs import frozen

from devicecore_tools.doctor.account.precedence import Holders, Lists, believed_file
from devicecore_tools.doctor.look.values import Device, Look, PreparedDeviceSeen, PublishedDeviceSeen, Source, grouped

_ADDRESS = re.compile(  # addresses have colons in sysfs, and may have hyphens in device names
    r"(?<![0-9a-z])(?:"
    r"(?:(?:[0-9a-f]{4})?([0-9a-f]{4}):)?([0-9a-f]{2}):([01][0-9a-f])\.([0-7])"
    r"|([0-9a-f]{4})-([0-9a-f]{2})-([01][0-9a-f])-([0-7])"
    r")(?![0-9a-z])"
)
_MIN_IDENTIFIER = 16  # minimum length: a shorter string, such as gpu-0, may name devices of two vendors
_REPLICA = "::"  # separates a device id from the replica number in plugins that share devices


@frozen
class SameDevice:
    """A claim's device that is also a plugin's device, and the proof."""

    prepared: PreparedDeviceSeen
    sources: tuple[Source, ...]
    because: str


class ClaimedHardware:
    """The devices that claims hold according to one `Look`, indexed by plugins' device ids."""

    def __init__(self, look: Look, holders: Holders, lists: Lists) -> None:
        self._prepared = {device.key: (device, sources) for device, sources in _prepared(look)}
        published = {one.key: one for one in look.slices.value or ()}
        self.missing: str = _missing(look)
        """Why any device may belong to a claim, or an empty string if the claims' devices are known."""
        self._unpublished = [key for key in self._prepared if key not in published]
        self._no_slices = (
            f", because the slices were not read: {look.slices.problem}" if look.slices.value is None else ""
        )
        self._by_address: dict[str, tuple[Device, str]] = {}
        self._by_identifier: dict[str, tuple[Device, str]] = {}
        self._by_name = grouped((name.lower(), (driver, pool, name)) for driver, pool, name in self._prepared)
        self._found_by_name: dict[tuple[str, str], SameDevice | str] = {}
        self._by_cdi: dict[str, Device] = {}
        self._lists = lists
        self._names: dict[str, set[str]] = {}
        if self._prepared:
            for driver, _, name in published:
                self._names.setdefault(driver, set()).add(name.lower())
            self._cdi_of = _cdi_names(look, holders)
        for key, (device, _) in self._prepared.items():
            self._index(key, device, published.get(key))

    def __bool__(self) -> bool:
        return bool(self._prepared)

    def find(self, resource: str, device: str) -> SameDevice | None:
        """Return the claim's device that is the same hardware as a plugin's device, or None if none is known."""
        found = self._find(resource, device) if self else None
        return found if isinstance(found, SameDevice) else None

    def perhaps(self, resource: str, device: str) -> str:
        """Return why a plugin's device may belong to a claim although `find` found no match, or an empty string."""
        if self.missing or not self:
            return self.missing
        found = self._find(resource, device)
        if isinstance(found, str) and found:
            return found
        has_address = pci_address(device) is not None
        for driver, pool, name in self._unpublished:
            if _is_one_vendor(resource, driver) or (has_address and pci_address(name) is None):
                return self._unpublished_as((driver, pool, name))
        return ""

    @property
    def unidentified(self) -> str:
        """Why the hardware of a claim's device is unknown, or an empty string if it is known for all devices."""
        return self._unpublished_as(self._unpublished[0]) if self._unpublished else ""

    def _unpublished_as(self, key: Device) -> str:
        return f"no ResourceSlice lists the device {'/'.join(key)} of a claim{self._no_slices}"

    def _find(self, resource: str, device: str) -> SameDevice | str:
        """Return the claim's device that certainly is this device, or why a claim may hold this device, or ""."""
        id_ = device.partition(_REPLICA)[0]
        address = pci_address(id_)
        if address is not None and address in self._by_address:
            return self._same(*self._by_address[address])
        if id_ in self._by_identifier:
            return self._same(*self._by_identifier[id_])
        key = resource, id_.lower()
        if key not in self._found_by_name:
            self._found_by_name[key] = self._of_one_name(resource, id_)
        found = self._found_by_name[key]
        if isinstance(found, SameDevice):
            return found
        for name in self._cdi_of.get((resource, device), ()):
            if name in self._by_cdi:
                return self._same(self._by_cdi[name], f"the plugin and the driver both use the CDI device {name}")
        return found

    def _of_one_name(self, resource: str, id_: str) -> SameDevice | str:
        """Return the device with this name whose driver has the same vendor, or lists the same names as the plugin.

        If there is none, return why a claim may hold this device, or "".
        """
        perhaps = ""
        ids = {one.partition(_REPLICA)[0].lower() for one in self._lists.devices.get(resource, ())}
        is_telling = len(ids) > 1 and not any(one.isdecimal() for one in ids)
        for key in self._by_name.get(id_.lower(), ()):
            driver = key[0]
            if _is_one_vendor(resource, driver):
                return self._same(
                    key,
                    f"the plugin and the driver both call the device {id_}, and the resource and the driver have the "
                    "same vendor",
                )
            names = self._names.get(driver, set())
            if is_telling and ids == names:
                because = f"the plugin and the driver both call the device {id_}, and list the same {len(ids):,} names"
                return self._same(key, because)
            if ids <= names or names <= ids:  # one of the two lists may be older than the other
                perhaps = f"a ResourceClaim has a device of {driver} that is also called {id_}"
        return perhaps

    def _same(self, key: Device, because: str) -> SameDevice:
        device, sources = self._prepared[key]
        return SameDevice(device, sources, because)

    def _index(self, key: Device, device: PreparedDeviceSeen, published: PublishedDeviceSeen | None) -> None:
        for name in device.cdi_devices:
            self._by_cdi[name] = key
        if len(device.device) >= _MIN_IDENTIFIER:
            self._by_identifier[device.device] = key, f"the plugin and the driver both list the id {device.device}"
        address = pci_address(device.device)
        if address is not None:
            self._by_address[address] = key, f"the plugin and the driver both name the PCI address {address}"
        for name, value in (published.attributes if published else {}).items():
            address = pci_address(value)
            if address is not None:
                self._by_address[address] = key, f"the plugin and the driver both name the PCI address {address}"
            elif len(value) >= _MIN_IDENTIFIER:
                self._by_identifier[value] = key, f"the attribute {name} of the device is {value}"


def pci_address(text: str) -> str | None:
    """Return the PCI address in a string, as `dddd:bb:dd.f`, or None if there is not exactly one.

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
    """Yield the devices of claims, from the kubelet's file if possible."""
    watched = {(one.claim, device) for one in look.allocations.value or () for device in one.only_watched}
    seen: set[Device] = set()
    in_api = {one.key: one for one in look.claimed}
    if look.claims.value:
        for one in look.claims.value.devices:
            if (one.claim, one.key) in watched:
                continue  # a claim with admin access leaves the device available
            seen.add(one.key)
            yield one, (Source.CLAIMS, *((Source.POD_RESOURCES,) if one.key in in_api else ()))
    for key, claimed in in_api.items():
        claim = f"{claimed.namespace}/{claimed.claim}"
        if key not in seen and (claim, key) not in watched:
            yield PreparedDeviceSeen(claim, *key, claimed.cdi_devices), (Source.POD_RESOURCES,)


def _missing(look: Look) -> str:
    claims = look.claims.value
    if claims is None:
        return f"the kubelet's claims file (dra_manager_state) was not read: {look.claims.problem}"
    return f"the kubelet's claims file (dra_manager_state) is damaged: {claims.problem}" if claims.problem else ""


def _cdi_names(look: Look, holders: Holders) -> Mapping[tuple[str, str], tuple[str, ...]]:
    """Return the CDI names that plugins returned for single devices, by resource and device."""
    file = believed_file(look)
    receipts = {(one.key, one.resource): one.cdi_devices for one in file.receipts} if file else {}
    return {
        (str(one.resource), str(device)): receipts[one.key, one.resource]
        for one in holders.entries.values()
        if (one.key, one.resource) in receipts and len(one.numa_nodes) == 1
        for device in one.numa_nodes
    }


def _is_one_vendor(resource: str, driver: str) -> bool:
    """Return whether a resource and a driver belong to the same vendor, as example.com/gpu and gpu.example.com do."""
    domain = resource.partition("/")[0]
    return f".{driver}".endswith(f".{domain}") or f".{domain}".endswith(f".{driver}")
