"""A driver's published pools and devices, as a scheduler sees them.

Law: only a pool's highest-generation slices count, and a pool offers its devices only if all of these slices
    exist.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from attrs import frozen

from devicecore.domain.allocation import slice_of
from devicecore.domain.allocation.model import PoolDevice
from devicecore.domain.allocation.search import REPELLING_EFFECTS
from devicecore.domain.errors import DocumentError

Slice = Mapping[str, Any]
"""A ResourceSlice as stored by the API server."""


@frozen
class SliceDevice:
    """A published device. `body` is the device's entry in the slice."""

    pool: str
    name: str
    body: Mapping[str, Any]

    @property
    def key(self) -> tuple[str, str]:
        """Pool and name, which together are unique for a driver."""
        return self.pool, self.name

    @cached_property
    def value(self) -> PoolDevice:
        """The device as a scheduler reads it, with `driver` as the name of its driver.

        Raises DocumentError if the device is unreadable.
        """
        pool = {"name": self.pool, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "driver", "allNodes": True, "pool": pool, "devices": [{**self.body, "name": self.name}]}
        return slice_of({"metadata": {"name": self.pool}, "spec": spec}).devices[0]

    @property
    def consumes_counters(self) -> bool:
        """Whether the device shares counters with other devices, so it can be unavailable while no claim holds it."""
        try:
            return bool(self.value.counters)
        except DocumentError:
            return False

    @property
    def is_shared(self) -> bool:
        """Whether the device may be allocated several times."""
        return bool(self.body.get("allowMultipleAllocations"))

    @property
    def has_binding_conditions(self) -> bool:
        """Whether a pod whose claim gets the device starts only when conditions in the claim's status are true."""
        return bool(self.body.get("bindingConditions"))

    @property
    def is_tainted(self) -> bool:
        """Whether the device has a taint that a claim must tolerate to get the device."""
        return any(taint.get("effect") in REPELLING_EFFECTS for taint in self.body.get("taints") or ())

    def __str__(self) -> str:
        return f"{self.pool}/{self.name}"


@frozen
class PublishedPool:
    """One pool's highest-generation slices."""

    name: str
    generation: int
    slices: tuple[Slice, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """The distinct resourceSliceCount values in the highest-generation slices."""
        return tuple(sorted({int(one["spec"]["pool"]["resourceSliceCount"]) for one in self.slices}))

    @property
    def devices(self) -> tuple[SliceDevice, ...]:
        """The highest-generation devices, ordered by slice name."""
        return tuple(
            SliceDevice(self.name, str(body.get("name")), body)
            for one in self.slices
            for body in one["spec"].get("devices") or ()
        )

    @property
    def is_complete(self) -> bool:
        """Whether all of the pool's slices exist. A scheduler allocates no device from an incomplete pool."""
        return self.counts == (len(self.slices),)

    @property
    def repeated_names(self) -> tuple[str, ...]:
        """The device names that occur more than once.

        A scheduler allocates no device from a pool with duplicate names.
        """
        count = Counter(device.name for device in self.devices)
        return tuple(name for name, number in sorted(count.items()) if number > 1)


def bodies_in(pools: Iterable[PublishedPool]) -> Mapping[tuple[str, str], Mapping[str, Any]]:
    """Return the entries of the pools' devices in their slices, by pool and name."""
    return {device.key: device.body for pool in pools for device in pool.devices}


def pools_of(slices: Iterable[Slice]) -> tuple[PublishedPool, ...]:
    """Return the pools of a driver's slices, by name."""
    by_name: dict[str, list[Slice]] = {}
    for one in sorted(slices, key=lambda one: str(one["metadata"]["name"])):
        by_name.setdefault(str(one["spec"]["pool"]["name"]), []).append(one)
    return tuple(_pool(name, found) for name, found in sorted(by_name.items()))


def _pool(name: str, slices: list[Slice]) -> PublishedPool:
    def generation(one: Slice) -> int:
        return int(one["spec"]["pool"].get("generation") or 0)

    highest = max(map(generation, slices))
    newest = tuple(one for one in slices if generation(one) == highest)
    return PublishedPool(name, highest, newest)
