"""The devices that a driver publishes, and what must change so that the driver's ResourceSlices show them.

Laws: once the changes are made, `changes` finds nothing more to do, unless slices of the highest possible generation
had to be deleted first. Slices of other drivers and other nodes are never changed. All slices with a pool's highest
generation show the desired devices, and a scheduler sees none of them until the pool has as many slices as it declares.
"""

import re
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from json import dumps
from typing import NoReturn

from attrs import evolve, field, frozen

from devicecore.domain.checks import tuple_of
from devicecore.domain.dra.errors import InvalidPoolError
from devicecore.domain.dra.model import DriverName
from devicecore.domain.errors import InvalidQuantityError
from devicecore.domain.names import MAX_SUBDOMAIN, is_dns_label, is_dns_subdomain, is_semantic_version
from devicecore.domain.quantity import Quantity
from devicecore.domain.text import foreign_text

MAX_DEVICES = 128
"""The maximum number of devices in one slice."""

MAX_DEVICES_WITH_FIELDS = 64
"""The maximum number of devices in one slice if a device of the pool has taints, lists or additional fields, or
consumes counters.
"""

MAX_COUNTER_SETS = 8
"""The maximum number of counter sets in one slice, which then contains no devices."""

MAX_GENERATION = 2**63 - 1

NUMA_NODE = "resource.kubernetes.io/numaNode"
"""The attribute for the NUMA node or nodes that a device is attached to (KEP-6072, Kubernetes 1.37)."""

_MAX_ATTRIBUTES = 32  # attributes and capacities together
_MAX_TEXT = 64  # bytes
_MAX_DRIVER, _MAX_DOMAIN = 63, 63
# how many characters of a node's name are used in a slice's name, which may have at most 253 characters
_NODE_PART = 160

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")


class Version(str):
    """The value of a version attribute, as semver.org defines versions: `Version("1.2.3")`."""

    __slots__ = ()


AttributeValue = bool | int | str | Version | tuple[bool, ...] | tuple[int, ...] | tuple[str, ...] | tuple[Version, ...]
"""A value, or several values of one type: an API list, which needs Kubernetes 1.37."""


@frozen
class PublishedDevice:
    """A device as a driver publishes it.

    Args:
        name: a DNS label, unique in its pool.
        attributes: values by name. Names without a domain belong to the driver; names from other domains have the form
            `domain/name`.
        capacity: quantities by name, such as `{"memory": "16Gi"}`.
        fields: more fields of the device, as parsed API JSON, such as `taints` and `consumesCounters`. These fields
            override the other arguments, and only the API server checks them.

    Raises:
        InvalidPoolError: an API server would refuse the device.
    """

    name: str
    attributes: Mapping[str, AttributeValue] = field(factory=dict)
    capacity: Mapping[str, str] = field(factory=dict)
    fields: Mapping[str, object] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        """Check the device."""
        if not is_dns_label(self.name):
            self.refuse(f"expected a name of 1 to 63 characters a-z, 0-9 and '-', got {foreign_text(self.name)!r}")
        if len(self.attributes) + len(self.capacity) > _MAX_ATTRIBUTES:
            self.refuse(f"expected at most {_MAX_ATTRIBUTES} attributes and capacities")
        for name in (*self.attributes, *self.capacity):
            domain, slash, last = name.rpartition("/")
            if not _IDENTIFIER.fullmatch(last) or (slash and not is_dns_subdomain(domain, _MAX_DOMAIN)):
                self.refuse(f"expected a name such as `name` or `domain/name`, got {foreign_text(name)!r}")
        for name, value in self.attributes.items():
            self._check_value(name, value)
        for name, amount in self.capacity.items():
            try:
                Quantity.parse(amount)
            except InvalidQuantityError as error:
                self.refuse(f"capacity {name}: {error}")

    def _check_value(self, name: str, value: AttributeValue) -> None:
        if isinstance(value, tuple):
            if not value or len({_type_of(one) for one in value}) > 1:
                self.refuse(f"attribute {name}: expected one value or several of one type, got {value!r}")
            for one in value:
                self._check_value(name, one)
        elif isinstance(value, str):
            if len(value.encode()) > _MAX_TEXT:
                self.refuse(f"attribute {name}: expected at most {_MAX_TEXT} bytes, got {len(value.encode())}")
            if isinstance(value, Version) and not is_semantic_version(value):
                self.refuse(f"attribute {name}: expected a version such as 1.2.3, got {foreign_text(value)!r}")
        elif not -MAX_GENERATION - 1 <= value <= MAX_GENERATION:
            self.refuse(f"attribute {name}: expected a 64-bit number, got {value}")

    @property
    def has_details(self) -> bool:
        """Whether the device reduces the number of devices per slice."""
        return bool(self.fields) or any(isinstance(value, tuple) for value in self.attributes.values())

    def refuse(self, problem: str) -> NoReturn:
        """Raise an InvalidPoolError that describes the problem with the device."""
        subject = f"device {foreign_text(self.name)}"
        raise InvalidPoolError(subject, problem)

    def as_json(self) -> dict[str, object]:
        """Return the device in the form that it has in a ResourceSlice."""
        device: dict[str, object] = {"name": self.name}
        if self.attributes:
            device["attributes"] = {
                name: {_type_of(value): list(value) if isinstance(value, tuple) else value}
                for name, value in sorted(self.attributes.items())
            }
        if self.capacity:
            device["capacity"] = {name: {"value": amount} for name, amount in sorted(self.capacity.items())}
        return {**device, **self.fields}


def _type_of(value: AttributeValue) -> str:
    if isinstance(value, tuple):
        return f"{_type_of(value[0])}s"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int"
    return "version" if isinstance(value, Version) else "string"


def _devices(devices: Iterable[PublishedDevice]) -> tuple[PublishedDevice, ...]:
    return tuple_of(devices, PublishedDevice, "DevicePool.devices")


@frozen
class DevicePool:
    """The devices of one driver on one node.

    Args:
        driver: the driver's name.
        node: the node's name.
        name: the pool's name. The name distinguishes the pools of a driver, so it is usually the node's name.
        devices: the devices, in the order in which schedulers should prefer them.
        counters: the counter sets that devices share, as parsed API JSON. The counter sets are published in separate
            slices.

    Raises:
        InvalidPoolError: an API server would refuse the pool.
    """

    driver: DriverName
    node: str
    name: str
    devices: tuple[PublishedDevice, ...] = field(converter=_devices)
    counters: tuple[Mapping[str, object], ...] = ()

    def __attrs_post_init__(self) -> None:
        """Check the names."""
        checks = (
            ("driver", self.driver, _MAX_DRIVER, (self.driver,)),
            ("node", self.node, MAX_SUBDOMAIN, (self.node,)),
            ("pool", self.name, MAX_SUBDOMAIN, self.name.split("/")),
        )
        for what, name, limit, parts in checks:
            if len(name) > limit or not all(map(is_dns_subdomain, parts)):
                problem = f"expected a DNS name of at most {limit} characters in lower case, got {foreign_text(name)!r}"
                raise InvalidPoolError(what, problem)
        seen: set[str] = set()
        for device in self.devices:
            if device.name in seen:
                device.refuse("expected each name once in a pool, got this one twice")
            seen.add(device.name)

    def slices(self) -> dict[str, list[dict[str, object]]]:
        """Return the counter sets or the devices of each slice, by slice name.

        If there are no devices, one empty slice is published, because otherwise an absent driver and a node without
        devices would look the same.
        """
        limit = MAX_DEVICES_WITH_FIELDS if any(device.has_details for device in self.devices) else MAX_DEVICES
        counters = _parts([dict(one) for one in self.counters], MAX_COUNTER_SETS)
        parts = [*counters, *(_parts([device.as_json() for device in self.devices], limit) or [[]])]
        # The slice's number comes first, because schedulers take slices in the order of their names.
        identity = zlib.crc32(f"{self.driver}\0{self.node}\0{self.name}".encode())
        place = f"{self.driver}-{self.node[:_NODE_PART].rstrip('.-')}-{identity:08x}"
        return {f"{number:05x}-{place}": part for number, part in enumerate(parts)}


def _parts(rows: list[dict[str, object]], limit: int) -> list[list[dict[str, object]]]:
    return [rows[first : first + limit] for first in range(0, len(rows), limit)]


@frozen
class StoredSlice:
    """A ResourceSlice as stored by the API server.

    `metadata` is kept in full; `devices` contains the slice's devices or counters.
    """

    name: str
    uid: str
    version: str
    driver: str
    node: str
    pool: str
    generation: int
    count: int
    metadata: Mapping[str, object] = field(factory=dict, repr=False)
    devices: Sequence[object] = field(factory=list, repr=False)


@frozen
class SliceChanges:
    """What to write: the objects to create, the objects that replace stored slices, and the slices to delete."""

    generation: int
    create: tuple[Mapping[str, object], ...] = ()
    update: tuple[Mapping[str, object], ...] = ()
    delete: tuple[StoredSlice, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.create or self.update or self.delete)


def changes(
    pool: DevicePool,
    node_uid: str,
    stored: Iterable[StoredSlice],
    *,
    least_generation: int = 1,
    returned: Mapping[str, str] = {},
) -> SliceChanges:
    """Return what must be written so that the stored slices show `pool` and nothing else from this driver on this node.

    Args:
        pool: the desired pool.
        node_uid: the UID of the Node object, which owns the slices.
        stored: the slices on the API server.
        least_generation: the lowest generation that may be used.
        returned: maps devices that were sent to the server to what it returned for them, both in the form that
            `canonical` writes. A server may add defaults, and drops unknown fields.
    """
    own = [one for one in stored if (one.driver, one.node) == (pool.driver, pool.node)]
    in_pool = [one for one in own if one.pool == pool.name]
    generation = max([least_generation, *(one.generation for one in in_pool)])
    wanted = _WantedSlices(pool, node_uid, pool.slices(), generation)
    if any(one.generation == generation and not wanted.is_shown_by(one, returned) for one in in_pool):
        if generation >= MAX_GENERATION:  # there is no higher generation, so these slices have to be deleted first
            return SliceChanges(generation, delete=tuple(one for one in in_pool if one.generation == generation))
        wanted = evolve(wanted, generation=generation + 1)
    stored_by_name = {one.name: one for one in in_pool}
    wrong = {name for name, one in stored_by_name.items() if not wanted.has(one, returned)}
    return SliceChanges(
        wanted.generation,
        create=tuple(wanted.body(name) for name in wanted.devices if name not in stored_by_name),
        update=tuple(wanted.body(name, stored_by_name[name]) for name in wanted.devices if name in wrong),
        delete=tuple(one for one in own if one.name not in wanted.devices or one.pool != pool.name),
    )


@frozen
class _WantedSlices:
    """The slices that show a pool: each slice's devices by slice name, and the generation of the slices."""

    pool: DevicePool
    node_uid: str
    devices: Mapping[str, Sequence[Mapping[str, object]]]
    generation: int

    @property
    def owner(self) -> dict[str, object]:
        return {"apiVersion": "v1", "kind": "Node", "name": self.pool.node, "uid": self.node_uid, "controller": True}

    def is_shown_by(self, one: StoredSlice, returned: Mapping[str, str]) -> bool:
        """Return whether a slice shows the desired devices, either as they were sent or as the server returned them."""
        if one.name not in self.devices or one.count != len(self.devices):
            return False
        sent, kept = canonical(self.devices[one.name]), canonical(one.devices)
        return kept in (sent, returned.get(sent))

    def has(self, one: StoredSlice, returned: Mapping[str, str]) -> bool:
        """Return whether a slice has this generation, these devices, and the Node as its owner."""
        owners = one.metadata.get("ownerReferences")
        return one.generation == self.generation and owners == [self.owner] and self.is_shown_by(one, returned)

    def _field(self, name: str) -> str:
        """Return the field for a slice's content: counter sets (recognized by their `counters`) or devices."""
        return "sharedCounters" if any("counters" in row for row in self.devices[name]) else "devices"

    def body(self, name: str, stored: StoredSlice | None = None) -> Mapping[str, object]:
        """Return a slice in the form in which it is sent, with the metadata of the stored slice."""
        pool = {"name": self.pool.name, "generation": self.generation, "resourceSliceCount": len(self.devices)}
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {**(stored.metadata if stored else {}), "name": name, "ownerReferences": [self.owner]},
            "spec": {
                "driver": self.pool.driver,
                "nodeName": self.pool.node,
                "pool": pool,
                self._field(name): self.devices[name],
            },
        }


def canonical(devices: Collection[object]) -> str:
    """Return devices as one string. Objects that differ only in empty fields have the same string.

    The times at which taints were added are ignored, because the server writes them.
    """
    return dumps(_without_empty(list(devices)), sort_keys=True)


def _without_empty(value: object) -> object:
    if isinstance(value, Mapping):
        # The server writes a string `timeAdded` into each taint; an attribute called `timeAdded` is an object.
        added = "timeAdded" if isinstance(value.get("timeAdded"), str) else None
        shortened = {key: _without_empty(item) for key, item in value.items() if key != added}
        return {key: item for key, item in shortened.items() if item is not None and item not in ({}, [])}
    if isinstance(value, list):
        return [_without_empty(item) for item in value]
    return value
