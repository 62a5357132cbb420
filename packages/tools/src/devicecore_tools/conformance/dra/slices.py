"""The devices that a driver has published.

Law: the catalog contains only complete pools, because a scheduler allocates no device from incomplete ones.
"""

import itertools
import math
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from attrs import define, field

from devicecore_tools.conformance.dra.environment import OTHER_NODE
from devicecore_tools.conformance.dra.process import DriverProcess
from devicecore_tools.conformance.dra.registration import DriverRegistration
from devicecore_tools.conformance.dra.settings import DriverTestSettings
from devicecore_tools.conformance.model import skip_if
from devicecore_tools.testing.api_server import ApiError, Json, LocalApiServer, Request
from devicecore_tools.testing.dra_pools import PublishedPool, Slice, SliceDevice, pools_of

_AFTER_LATE = 10.0  # seconds for complete pools, for a driver that was late before
_BACK = 2.0  # seconds for the return of devices, once a wait for them has failed
_SETTLED = 0.3  # seconds without a request for slices, after a start
_SETTLING = 3.0  # the maximum number of seconds to wait for such a pause in requests
_WRITES = ("create", "update", "patch", "delete", "deletecollection")


@define(eq=False)
class PublishedSlices:
    """The driver's ResourceSlices.

    Attributes:
        planted: the names of slices that checks have created.
        wiped: the UIDs of the driver's slices that checks have deleted.
        was_late: whether the driver did not complete its pools in time at the last wait.
        device_count: the largest number of devices that were published at once.
        lost: the devices that a running process removed from a complete pool.
        by_key: the devices of the catalog by pool and name.
        expects_changes: whether the user's command or a check changes the devices from now on.
    """

    api: LocalApiServer
    process: DriverProcess
    registration: DriverRegistration
    settings: DriverTestSettings
    planted: set[str] = field(factory=set)
    wiped: set[str] = field(factory=set)
    was_late: bool = False
    device_count: int = 0
    lost: dict[str, None] = field(factory=dict)
    expects_changes: bool = False
    by_key: Mapping[tuple[str, str], SliceDevice] = field(factory=dict)
    _catalogue: tuple[PublishedPool, ...] = ()
    _devices: tuple[SliceDevice, ...] = ()  # the devices in the catalog
    _first_pools: float | None = None
    _waited: bool = False
    _waited_after: float = 0.0  # the start of the process for which devices were last awaited
    _settled_after: float = 0.0  # the start of the process that has had time to publish
    _looked_at: int = 0  # a resource version, as cache key; a driver may have a thousand devices
    _followed: int = 0  # the resource version up to which the slices were followed
    _of_process: int = 0
    _present: dict[str, Slice] = field(factory=dict)
    _held: dict[str, set[str]] = field(factory=dict)  # devices of each pool, in the current process
    _numbers: Iterator[int] = field(factory=lambda: itertools.count(1))

    def now(self) -> list[Slice]:
        """Return the driver's current slices, without those that a check has created."""
        mine: list[Slice] = [
            one
            for one in self.api.objects("ResourceSlice")
            if one["metadata"]["name"] not in self.planted and one["spec"].get("nodeName") != OTHER_NODE
        ]
        return [one for one in mine if one["spec"].get("driver") == self.registration.name] or mine

    def writes(self, since: int = 0) -> list[Request]:
        """Return the driver's requests to write slices, after the first `since` requests.

        Writes to slices that a check has created are left out.
        """
        return [
            one
            for one in self.api.requests[since:]
            if one.resource == "resourceslices" and one.verb in _WRITES and Path(one.path).name not in self.planted
        ]

    @property
    def last_write(self) -> float:
        """When the running process last wrote a slice, as a `time.monotonic()` timestamp.

        The result is minus infinity if the process has not written any slice, or does not watch slices.
        """
        mine = self._requests()
        writes = [one.at for one in mine if one.verb in {"create", "update", "patch"}]
        return max(writes) if writes and any(one.verb == "watch" for one in mine) else -math.inf

    def watches(self) -> int:
        """Return how many times the running process has started to watch slices."""
        return sum(one.verb == "watch" for one in self._requests())

    def _requests(self) -> list[Request]:
        """Return the running process's requests for slices."""
        since = self.process.asked_before
        return [one for one in self.api.requests[since:] if one.resource == "resourceslices"]

    def settle(self, seconds: float, timeout: float) -> None:
        """Wait until a started process has sent a request for slices, and then has sent none for this many seconds.

        The wait lasts at most `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while (now := time.monotonic()) < deadline:
            requests = self._requests()
            if requests and now - requests[-1].at > seconds:
                return
            self.process.pause(min(seconds / 5, 0.1))

    def pools(self) -> tuple[PublishedPool, ...]:
        """Return the driver's current pools."""
        return pools_of(self.now())

    def wait_for_pools(self) -> float | None:
        """Wait until all pools are complete. Only the first call waits.

        Return the seconds since the start of the process, or None if the wait failed.

        Some drivers first publish a pool without devices, so this method also waits for devices.
        """
        if not self._waited:
            self._waited = True
            _ = self.registration.instance
            end = self.process.started_at + self.settings.starting
            if self.process.wait(self.is_complete, max(end - time.monotonic(), 0.0)):
                self._first_pools = time.monotonic() - self.process.started_at
                if self.process.wait(self.has_devices, max(end - time.monotonic(), 0.0)):
                    self.registration.warm_up = time.monotonic() - self.registration.instance.registered_at
                    self.process.allow_for(self.registration.warm_up)
            self.refresh()
        return self._first_pools

    @property
    def catalogue(self) -> tuple[PublishedPool, ...]:
        """The pools when they were last complete. After a start, the process gets time to publish its own pools.

        Raises Skip if the pools were never complete.
        """
        self.wait_for_pools()
        if self._settled_after != self.process.started_at:
            self._settled_after = self.process.started_at
            self.settle(_SETTLED, _SETTLING)
        self.refresh()
        skip_if(not self._catalogue, "the driver has published no complete pool")
        return self._catalogue

    @property
    def devices(self) -> tuple[SliceDevice, ...]:
        """The published devices. If there are none yet, this property waits, longest right after a start of the driver.

        Raises Skip if no devices are published in time.
        """
        _ = self.catalogue
        if not self._devices:
            is_first = self._waited_after != self.process.started_at
            self._waited_after = self.process.started_at
            if self.device_count:
                self.process.wait(self.has_devices, self.settings.returning if is_first else _BACK)
            _ = self.catalogue
        skip_if(not self._devices, "the driver has published no devices")
        return self._devices

    def has_devices(self) -> bool:
        """Return whether all pools are complete and at least one of them contains a device."""
        return self.is_complete() and any(pool.devices for pool in self.pools())

    def is_complete(self) -> bool:
        """Return whether there are pools and all of them are complete."""
        return bool(self._complete_pools())

    def wait_complete(self) -> bool:
        """Wait until all pools are complete, and return whether they are.

        If the driver was late at the previous wait, which a check reports, the driver gets less time.
        """
        limit = min(self.settings.republishing, _AFTER_LATE) if self.was_late else self.settings.republishing
        is_complete = bool(self.process.wait(self.is_complete, limit))
        self.was_late = not is_complete
        return is_complete

    def _complete_pools(self) -> tuple[PublishedPool, ...]:
        """Return the driver's current pools if all of them are complete, otherwise none."""
        pools = self.pools()
        return pools if all(pool.is_complete for pool in pools) else ()

    def refresh(self) -> None:
        """Update the catalog if all pools are complete."""
        version = self.api.store.version
        if version == self._looked_at:
            return
        # Most writes are to claims. Reading the slices of 5,000 devices after each write took two seconds per claim.
        if (self.follow() or not self._catalogue) and (pools := self._complete_pools()):
            self._catalogue = pools
            self._devices = tuple(device for pool in pools for device in pool.devices)
            self.by_key = {device.key: device for device in self._devices}
            self.device_count = max(self.device_count, len(self._devices))
        self._looked_at = version

    def follow(self) -> bool:
        """Return whether slices were written since the last call.

        Record devices that a running process removed from a complete pool, unless changes are expected.

        A pool that lacks a slice, such as one that is being republished, has no devices, but has not lost any.
        """
        try:
            events, version = self.api.store.events_after(self._followed, self.api.kinds.named("ResourceSlice"))
        except ApiError:  # there were too many events in between
            events, version, self._catalogue = [], self.api.store.version, ()
        self._followed = version
        starts = self.process.versions
        for event in events:
            if self._of_process != (process := bisect_left(starts, event.version)):
                self._of_process, self._held = process, {}
            one = event.after or event.before or {}
            name = one["metadata"]["name"]
            is_other = name in self.planted or one["spec"].get("nodeName") == OTHER_NODE
            if is_other or one["spec"].get("driver") != self.registration.known_name:
                continue
            self._present.pop(name, None)
            if event.after is not None:
                self._present[name] = event.after
            of = one["spec"].get("pool", {}).get("name")
            for pool in pools_of([each for each in self._present.values() if each["spec"]["pool"]["name"] == of]):
                if pool.is_complete:
                    now = {device.name for device in pool.devices}
                    gone = self._held.get(pool.name, set()) - now
                    if not self.expects_changes:
                        self.lost |= {f"{pool.name}/{device}": None for device in sorted(gone)}
                    self._held[pool.name] = now
        return bool(events)

    def plant(self, spec: Json) -> str:
        """Create a slice on behalf of the driver. Return the slice's name."""
        name = f"planted-{next(self._numbers)}"
        self.planted.add(name)
        self.api.create({"kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec})
        return name

    def wipe(self) -> None:
        """Delete the driver's slices, as a kubelet does."""
        for one in self.now():
            self.wiped.add(one["metadata"]["uid"])
            with suppress(ApiError):  # the driver may have deleted the slice in the meantime
                self.api.delete("ResourceSlice", one["metadata"]["name"])
