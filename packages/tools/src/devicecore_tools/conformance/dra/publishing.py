"""A driver and what it has published.

Law: the catalogue has only complete pools, because a scheduler takes no device from others.
"""

import itertools
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime

from devicecore_tools.conformance.dra.environment import Environment
from devicecore_tools.conformance.dra.running import RunningDriver
from devicecore_tools.conformance.dra.settings import DriverTestSettings
from devicecore_tools.conformance.model import Skip
from devicecore_tools.testing.api_server import ApiError, Json
from devicecore_tools.testing.dra_pools import PublishedPool, Slice, SliceDevice, pools_of


class PublishingDriver(RunningDriver):
    """A running driver, with its ResourceSlices. The arguments are those of `RunningDriver`."""

    def __init__(self, environment: Environment, command: Sequence[str], settings: DriverTestSettings) -> None:
        super().__init__(environment, command, settings)
        self.planted: set[str] = set()
        """The names of slices that checks have made."""
        self.device_count: int = 0
        """How many devices it had published when it had most."""
        self._catalogue: tuple[PublishedPool, ...] = ()
        self._first_pools: float | None = None
        self._waited_for_pools = False
        self._planted_count = itertools.count(1)

    def slices(self) -> list[Slice]:
        """Return the driver's slices as they are now, without those that a check has planted."""
        mine: list[Slice] = [
            one for one in self.api.objects("ResourceSlice") if one["metadata"]["name"] not in self.planted
        ]
        return [one for one in mine if one["spec"].get("driver") == self.name] or mine

    @property
    def slice_age(self) -> float:
        """Seconds since the newest slice was created or changed; infinite if there is none."""
        now = datetime.now(UTC)
        stamps = [
            str(stamp)
            for one in self.slices()
            for stamp in (
                one["metadata"].get("creationTimestamp"),
                *(entry.get("time") for entry in one["metadata"].get("managedFields") or ()),
            )
            if stamp
        ]
        return min(((now - datetime.fromisoformat(stamp)).total_seconds() for stamp in stamps), default=math.inf)

    def pools(self) -> tuple[PublishedPool, ...]:
        """Return the driver's pools as they are now."""
        return pools_of(self.slices())

    def wait_for_pools(self) -> float | None:
        """Wait once until all pools are complete; seconds from the start of the process, None if they are not.

        Some drivers first publish a pool without devices, so devices are waited for, too.
        """
        if not self._waited_for_pools:
            self._waited_for_pools = True
            _ = self.instance
            end = self.started_at + self.settings.starting
            if self.wait(self.is_complete, max(end - time.monotonic(), 0.0)):
                self._first_pools = time.monotonic() - self.started_at
                if self.wait(self.has_devices, max(end - time.monotonic(), 0.0)):
                    self.warm_up: float = time.monotonic() - self.instance.registered_at
                    self.lengthen(self.warm_up)
            self.refresh()
        return self._first_pools

    @property
    def catalogue(self) -> tuple[PublishedPool, ...]:
        """The pools as they were last complete.

        Raises:
            Skip: they never were.
        """
        self.wait_for_pools()
        self.refresh()
        if not self._catalogue:
            reason = "the driver has published no complete pool"
            raise Skip(reason)
        return self._catalogue

    @property
    def devices(self) -> tuple[SliceDevice, ...]:
        """The published devices.

        Raises:
            Skip: there are none.
        """
        found = tuple(device for pool in self.catalogue for device in pool.devices)
        if not found:
            reason = "the driver has published no devices"
            raise Skip(reason)
        return found

    def has_devices(self) -> bool:
        """Whether all pools are complete, and there is a device in them."""
        return self.is_complete() and any(pool.devices for pool in self.pools())

    def is_complete(self) -> bool:
        """Whether there are pools, and all of them are complete."""
        return bool(self.complete_pools())

    def complete_pools(self) -> tuple[PublishedPool, ...]:
        """Return the driver's pools as they are now if all of them are complete; otherwise none."""
        pools = self.pools()
        return pools if all(pool.is_complete for pool in pools) else ()

    def refresh(self) -> None:
        """Note the pools in the catalogue, if all of them are complete."""
        if pools := self.complete_pools():
            self._catalogue = pools
            self.device_count = max(self.device_count, sum(len(pool.devices) for pool in pools))

    def plant(self, spec: Json) -> str:
        """Create a slice that is not the driver's own doing; return its name."""
        name = f"planted-{next(self._planted_count)}"
        self.planted.add(name)
        self.api.create({"kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec})
        return name

    def wipe(self) -> None:
        """Delete the driver's slices, as a kubelet does."""
        for one in self.slices():
            with suppress(ApiError):  # the driver may have deleted it meanwhile
                self.api.delete("ResourceSlice", one["metadata"]["name"])
