"""The ResourceClaims that checks create for a driver's devices.

Laws: a claim belongs to the check that created it, or to the event whose checks share it. If the user's claim requests
all devices, so does every claim, and one device represents all devices.
"""

import itertools
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from attrs import define, field

from devicecore.domain.dra.model import ClaimKey, ClaimRef, ClaimUid
from devicecore.domain.quantity import Quantity
from devicecore.domain.text import foreign_text
from devicecore_tools.conformance.dra.allocator import AllocationError, Allocator, UndecidableError, matches
from devicecore_tools.conformance.dra.environment import CLAIM_KINDS, DEVICE_CLASS, Environment
from devicecore_tools.conformance.dra.registration import DriverRegistration
from devicecore_tools.conformance.dra.settings import DriverTestSettings
from devicecore_tools.conformance.dra.slices import PublishedSlices
from devicecore_tools.conformance.model import (
    DevicesInUse,
    DoesNotApply,
    Skip,
    does_not_apply_if,
    skip_if,
    skipping,
    some,
)
from devicecore_tools.testing.api_server import ApiError, Json
from devicecore_tools.testing.dra_pools import Slice, SliceDevice

_PUBLISHING = 10.0  # seconds
_WARM_UP = 15.0  # seconds from a start for a driver to remove the taints of its devices
_TRIED = 64  # devices that are compared with each other
_MANY = 4  # devices: enough for one claim with two, and for other checks' claims

NAMESPACE = "default"
"""The namespace of claims, unless a check chooses another one."""

Shares = Mapping[tuple[str, str], str]
"""The ID of the allocated share of a device, by the device's key."""


@define(eq=False)
class Claim:
    """A ResourceClaim that a check has created, with a Pod that uses it.

    Attributes:
        devices: the driver's devices that are allocated to the claim.
        shares: the allocated shares of devices that may be allocated several times; for each device, the last one.
        was_sent: whether the driver was called to prepare the claim.
        is_prepared: whether the driver has prepared the claim, and has not unprepared it since.
        is_deleted: whether the claim's object was deleted, so that the driver may forget the claim.
        namespace: the namespace of the claim and its Pod.
    """

    name: str
    uid: str
    devices: tuple[SliceDevice, ...]
    shares: Shares = field(factory=dict)
    was_sent: bool = False
    is_prepared: bool = False
    is_deleted: bool = False
    namespace: str = NAMESPACE

    @property
    def ref(self) -> ClaimRef:
        """The reference to the claim, as a kubelet sends it."""
        return ClaimRef(ClaimKey(self.namespace, self.name), ClaimUid(self.uid))


@define(eq=False)
class Claims:
    """The checks' claims, and the devices that can be allocated to them.

    Attributes:
        held: the keys of devices whose claims the driver did not unprepare; no other claim gets them.
        broken: the keys of devices that could not be prepared on their own although others could, which only one check
            reports.
        reserved: the keys of devices of a claim that one check keeps beside other checks.
    """

    environment: Environment
    registration: DriverRegistration
    slices: PublishedSlices
    settings: DriverTestSettings
    held: set[tuple[str, str]] = field(factory=set)
    broken: set[tuple[str, str]] = field(factory=set)
    reserved: set[tuple[str, str]] = field(factory=set)
    _own: list[Claim] = field(factory=list)  # the claims of the current check
    _all: list[Claim] = field(factory=list)
    _numbers: Iterator[int] = field(factory=lambda: itertools.count(1))
    _allocator: Allocator | None = None
    _usable: tuple[tuple[SliceDevice, ...], set[tuple[str, str]], list[str], tuple[SliceDevice, ...]] | None = None
    _was_usable: bool = False
    _first_start: float = 0.0  # when the first process whose devices were needed was started
    _selected: dict[tuple[str, str], tuple[SliceDevice, list[str], bool]] = field(factory=dict)

    # --- devices for claims -------------------------------------------------------------------------------------------

    @property
    def usable(self) -> tuple[SliceDevice, ...]:
        """The published devices that the scheduler may allocate to the checks' claims.

        Raises Skip if there are no such devices.
        """
        with suppress(Skip):  # a driver may taint its devices until it is ready
            start = self.slices.process.started_at
            self._first_start = self._first_start or start
            if self._was_usable or start == self._first_start:
                left = max(start + _WARM_UP - time.monotonic(), 0.0)
                self.slices.process.wait(lambda: not all(one.is_tainted for one in self.slices.devices), left)
        spec = self.class_of(self.device_class)["spec"]
        expressions = [str((one.get("cel") or {}).get("expression")) for one in spec.get("selectors") or ()]
        with skipping(UndecidableError):
            devices, unusable = self.slices.devices, self._unusable
            if self._usable is not None and self._usable[0] is devices and self._usable[1:3] == (unusable, expressions):
                return self._usable[3]  # cached: there may be 5,000 devices, and each claim needs this several times
            found = tuple(
                device
                for device in devices
                if device.key not in unusable
                and not device.is_tainted
                and not device.has_binding_conditions
                and self._is_selected(device, expressions)
            )
        if not found:
            reason = (
                "the driver has not unprepared any of the claims that hold its devices"
                if self.held
                else "claims get no published device, because of taints, binding conditions or the DeviceClass"
            )
            raise Skip(reason)
        self._was_usable = True
        found = found[:1] if self._takes_all else found
        self._usable = devices, unusable, expressions, found
        return found

    @property
    def _unusable(self) -> set[tuple[str, str]]:
        """The keys of published devices that claims do not get."""
        return self.held | self.broken | self.reserved

    def _is_selected(self, device: SliceDevice, expressions: list[str]) -> bool:
        """Return whether the DeviceClass selects a device.

        The result is kept, because there may be thousands of devices.
        """
        known = self._selected.get(device.key)
        if known is None or known[:2] != (device, expressions):
            selected = all(matches(text, self.registration.name, device) for text in expressions)
            known = self._selected[device.key] = device, expressions, selected
        return known[2]

    @property
    def allocatable(self) -> tuple[SliceDevice, ...]:
        """Published devices that can all be allocated at the same time. Raises Skip if there are no such devices."""
        if not any(device.consumes_counters for device in self.usable):
            return self.usable
        slices, request, allocator = self._published, self.request(1), self._prepare_allocation()
        occupied = [device for device in self.slices.devices if device.key in self._unusable]
        found: list[SliceDevice] = []
        for device in self.usable:
            try:
                if device.consumes_counters:
                    allocator.allocate(request, [device], slices, [*occupied, *found], is_trial=True)
            except UndecidableError:
                raise
            except AllocationError:
                continue
            found.append(device)
        return tuple(found)

    def free_device(self, *, shared: bool | None = None, other_than: SliceDevice | None = None) -> SliceDevice:
        """Return the least recently used device that is in no claim.

        Args:
            shared: whether the device may be allocated several times, or None if that does not matter.
            other_than: a device to leave out.

        Raises:
            Skip: there is no such device.
        """
        taken = {device.key for device in (*self._taken, *([other_than] if other_than else []))}
        found = [
            device
            for device in self._prepare_allocation().oldest_first(self.allocatable)
            if device.key not in taken and shared in (None, device.is_shared)
        ]
        fitting = next(filter(self._fits, found), None)
        if fitting is None:
            kind = {True: " that may be allocated several times", False: " for a single claim", None: ""}[shared]
            reason = f"there is no free device{kind}"
            raise (DevicesInUse if self._taken_by_others else DoesNotApply)(reason)
        return fitting

    def _fits(self, device: SliceDevice, *others: SliceDevice) -> bool:
        """Return whether the counters that a device consumes suffice for it, `others` and the checks' claims."""
        if not device.consumes_counters:
            return True
        taken = [*self._taken, *others]
        try:
            self._prepare_allocation().allocate(self.request(1), [device], self._published, taken, is_trial=True)
        except UndecidableError:
            raise
        except AllocationError:
            return False
        return True

    @property
    def rivals(self) -> tuple[SliceDevice, SliceDevice]:
        """Two free devices that cannot be allocated at the same time, because a counter does not suffice for both.

        Raises Skip if there are no such devices.
        """
        taken = {device.key for device in self._taken}
        free = [one for one in self.usable if one.consumes_counters and not one.is_shared and one.key not in taken]
        free = list(filter(self._fits, self._prepare_allocation().oldest_first(free)[:_TRIED]))
        for first in free:
            sets = {name for name, _ in first.value.counters}
            for second in free:
                is_other = second.key != first.key and second.pool == first.pool
                if is_other and sets & {name for name, _ in second.value.counters} and not self._fits(second, first):
                    return first, second
        raise (DevicesInUse if self._taken_by_others else DoesNotApply)("no free devices compete for counters")

    @property
    def free_devices(self) -> list[SliceDevice]:
        """The devices that are in no claim and can all be allocated at the same time."""
        taken = {device.key for device in self._taken}
        return [device for device in self.allocatable if device.key not in taken]

    def missing_device(self, pool: str) -> SliceDevice:
        """Return a device that is not published, with a different name for each call.

        A driver may record which claims have been refused, and then refuses another claim for the same device for a
        different reason.
        """
        return SliceDevice(pool, f"no-such-device-{next(self._numbers)}", {})

    def require_two(self) -> None:
        """Raise Skip unless two devices can be allocated at the same time."""
        does_not_apply_if(len(self.allocatable) < 2, "the check needs two devices")

    @property
    def several(self) -> int | None:
        """How many devices a representative claim gets: two, if at least two others remain.

        None means the default of `new`.
        """
        return self.several_of(_MANY)

    def several_of(self, number: int) -> int | None:
        """Return how many devices a representative claim gets: two if there are enough.

        None means the default of `new`.
        """
        return None if self._own_spec() is not None or len(self.allocatable) < number else 2

    # --- claims -------------------------------------------------------------------------------------------------------

    def require_published(self, claims: Sequence[Claim]) -> None:
        """Check that the driver still publishes the devices of these claims.

        Raises Skip if a device is missing: some drivers rename their devices at each start, and some devices come and
        go.
        """

        def gone() -> list[str]:
            _ = self.slices.catalogue
            known = self.slices.by_key
            return [str(device) for claim in claims for device in claim.devices if device.key not in known]

        if gone():  # some drivers publish an empty pool first, so wait for the full number of devices
            complete = self.slices.device_count
            self.slices.process.wait(lambda: not gone() or len(self.slices.by_key) >= complete, _PUBLISHING)
        skip_if(gone(), f"the driver no longer publishes these devices of the claim: {some(gone())}")

    @contextmanager
    def owning(self, claims: list[Claim]) -> Iterator[None]:
        """Add the claims that this block creates to `claims`, which `clean_up` empties."""
        before, self._own = self._own, claims
        try:
            yield
        finally:
            self._own = before

    def take(self) -> list[Claim]:
        """Return the claims of the current check and forget them."""
        taken = list(self._own)
        self._own.clear()
        return taken

    def new(
        self,
        count: int | None = None,
        *,
        devices: Sequence[SliceDevice] | None = None,
        shares: Shares | None = None,
        spec: Json | None = None,
        name: str = "",
        namespace: str = NAMESPACE,
    ) -> Claim:
        """Create a ResourceClaim that is allocated and reserved for a Pod.

        Args:
            count: how many devices; by default one, or what the user's claim requests.
            devices: if given, the claim gets exactly these devices.
            shares: the shares that the claim gets of shared devices, instead of new ones.
            spec: if given, the claim's spec. The spec need not name a DeviceClass.
            name: the name of the claim; by default a new one.
            namespace: an existing namespace.

        Raises:
            Skip: the published devices do not allow such a claim.
        """
        published = [device for device in self.slices.devices if device.key not in self._unusable]
        if spec is None:
            spec = self._spec(count if devices is None else len(devices))
        chosen = published if self._takes_all else devices or published
        allocation = _with_shares(self._allocate(spec, chosen, self._taken), shares)
        return self.create(spec, allocation, name=name, namespace=namespace)

    def part_of(self, device: SliceDevice, *, parts: int = 1) -> Claim:
        """Create a claim with a request for each of these parts of a device that may be allocated several times.

        Raises Skip as `new` does.
        """
        spec = self.request(*[1] * parts)
        for request in spec["devices"]["requests"]:
            capacity = request["exactly"].get("capacity") or _share_of([device.body.get("capacity") or {}])
            request["exactly"] |= {"capacity": capacity} if capacity else {}
        # One by one, because the allocator gives each device to a claim at most once.
        one = {"devices": {**spec["devices"], "requests": spec["devices"]["requests"][:1]}}
        allocations = [self._allocate(one, [device], self._taken) for _ in range(parts)]
        results = [found["devices"]["results"][0] | {"request": f"r{n}"} for n, found in enumerate(allocations)]
        return self.create(spec, {**allocations[0], "devices": {**allocations[0]["devices"], "results": results}})

    def create(self, spec: Json, allocation: Json | None, *, name: str = "", namespace: str = NAMESPACE) -> Claim:
        """Create a ResourceClaim with this status.allocation, or without any."""
        name = name or f"conformance-{next(self._numbers)}"
        body: Json = {"kind": "ResourceClaim", "metadata": {"name": name, "namespace": namespace}, "spec": spec}
        if allocation is not None:
            pod = self.slices.api.create(self._pod(name, namespace))["metadata"]
            reserved = [{"resource": "pods", "name": pod["name"], "uid": pod["uid"]}]
            body["status"] = {"allocation": allocation, "reservedFor": reserved}
        created = self.slices.api.create(body)
        shares = {(one["pool"], one["device"]): one["shareID"] for one in _results(allocation) if "shareID" in one}
        claim = Claim(name, created["metadata"]["uid"], self._devices_of(allocation), shares, namespace=namespace)
        self._own.append(claim)
        self._all.append(claim)
        return claim

    def on(self, *devices: SliceDevice, shares: Shares | None = None, name: str = "") -> Claim:
        """Create a ResourceClaim with a request for each of these devices, whether or not they are free.

        `shares` is as for `new`. Raises Skip as `new` does.
        """
        return self.create(self._request_each(devices), _with_shares(self.allocation_of(*devices), shares), name=name)

    def _request_each(self, devices: Sequence[SliceDevice]) -> Json:
        return self.request(*[1] * (1 if self._takes_all else len(devices)))

    def _pod(self, claim: str, namespace: str) -> Json:
        entry = {"name": "claim", "resourceClaimName": claim}
        container = {"name": "main", "image": "conformance", "resources": {"claims": [{"name": "claim"}]}}
        return {
            "kind": "Pod",
            "metadata": {"name": f"pod-{next(self._numbers)}", "namespace": namespace},
            "spec": {"nodeName": self.environment.node, "resourceClaims": [entry], "containers": [container]},
        }

    def allocation_of(self, *devices: SliceDevice) -> Json:
        """Return the status.allocation of a claim whose requests, from r0 on, get one of these devices each.

        The devices need not be free. Raises Skip as `new` does.
        """
        published = self.slices.devices if self._takes_all else ()
        return self._allocate(self._request_each(devices), published if devices[0] in published else devices, ())

    def _allocate(self, spec: Json, devices: Sequence[SliceDevice], taken: Sequence[SliceDevice]) -> Json:
        try:
            return self._prepare_allocation().allocate(spec, devices, self._published, taken)
        except UndecidableError as error:
            raise Skip(f"no claim can be allocated: {error}") from None
        except AllocationError as error:
            others = self._taken_by_others and taken
            raise (DevicesInUse if others else DoesNotApply)(f"no claim can be allocated: {error}") from None

    @property
    def _published(self) -> list[Slice]:
        """The slices in the catalog of published pools."""
        return [one for pool in self.slices.catalogue for one in pool.slices]

    @property
    def prepared(self) -> tuple[Claim, ...]:
        """The checks' claims that the driver has prepared."""
        return tuple(claim for claim in self._all if claim.is_prepared)

    @property
    def are_in_use(self) -> bool:
        """Whether the driver has prepared claims for devices that are not reserved."""
        return any(device.key not in self.reserved for claim in self.prepared for device in claim.devices)

    @property
    def _taken(self) -> list[SliceDevice]:
        """The devices that the checks' claims currently hold."""
        return [device for claim in self._all for device in claim.devices]

    @property
    def _taken_by_others(self) -> bool:
        """Whether other checks' claims hold devices that are not reserved.

        If they do, a lack of devices is not the driver's limit.
        """
        others = (device for claim in self._all if claim not in self._own for device in claim.devices)
        return any(device.key not in self.reserved for device in others)

    def stranger(self, claim: Claim, uid: str | None = None) -> Claim:
        """Return a claim with the same name but a different UID that is not on the API server."""
        return Claim(claim.name, str(uuid.uuid4()) if uid is None else uid, ())

    def forget(self, claim: Claim) -> None:
        """Delete a claim without unpreparing it, so that its devices can be allocated to other claims."""
        self.delete_object(claim)
        if claim in self._own:
            self._own.remove(claim)
        self._all.remove(claim)

    def delete_object(self, claim: Claim) -> None:
        """Delete the claim's object from the API server, if it exists."""
        claim.is_deleted = True
        with suppress(ApiError):
            if self.slices.api.get("ResourceClaim", claim.name, claim.namespace)["metadata"]["uid"] == claim.uid:
                self.slices.api.delete("ResourceClaim", claim.name, claim.namespace)

    def class_of(self, name: str) -> Json:
        """Return the DeviceClass with this name. Raises AllocationError if the class does not exist."""
        try:
            return self.slices.api.get("DeviceClass", name)
        except ApiError:
            raise AllocationError(f"there is no DeviceClass {foreign_text(name)}") from None

    @property
    def device_class(self) -> str:
        """The name of the DeviceClass in the claims that the checks create."""
        self._prepare_allocation()
        return self.settings.device_class or self._own_request().get("deviceClassName") or DEVICE_CLASS

    def _prepare_allocation(self) -> Allocator:
        if self._allocator is None:
            selector = {"cel": {"expression": f'device.driver == "{self.registration.name}"'}}
            body = {"kind": "DeviceClass", "metadata": {"name": DEVICE_CLASS}, "spec": {"selectors": [selector]}}
            self.slices.api.create(body)
            self._allocator = Allocator(self.registration.name, self.class_of)
        return self._allocator

    def _own_spec(self) -> Json | None:
        """Return the spec of the user's claim, or None if there is no such claim."""
        own = next((one for one in self.settings.objects if one.get("kind") in CLAIM_KINDS), None)
        if own is None:
            return None
        return dict(own["spec"]["spec"] if own["kind"] == "ResourceClaimTemplate" else own["spec"])

    def _own_request(self) -> Json:
        """Return the first request of the user's claim, or an empty one if there is none."""
        requests = (self._own_spec() or {}).get("devices", {}).get("requests") or [{}]
        return dict(requests[0].get("exactly", requests[0]))

    @property
    def _takes_all(self) -> bool:
        """Whether the user's claim requests all devices. Drivers whose devices only work together need such a claim."""
        return self._own_request().get("allocationMode") == "All"

    def _share_of_capacity(self) -> Json | None:
        """Return what `_share_of` returns for all devices if all of them can be shared, otherwise None."""
        shared = all(device.is_shared for device in self.usable)
        return _share_of([device.body.get("capacity") or {} for device in self.usable]) if shared else None

    def _spec(self, count: int | None) -> Json:
        return (self._own_spec() if count is None else None) or self.request(count or 1)

    def request(self, *counts: int) -> Json:
        """Return the spec of a claim with requests `r0`, `r1`, and so on, for these numbers of devices.

        The spec copies the configuration of the user's claim for all requests, and requests the same capacity.
        """
        exactly: Json = {"deviceClassName": self.device_class}
        if capacity := self._own_request().get("capacity") or self._share_of_capacity():
            exactly["capacity"] = capacity
        numbers: list[Json] = [{"allocationMode": "All"} if self._takes_all else {"count": count} for count in counts]
        requests = [{"name": f"r{index}", "exactly": {**exactly, **number}} for index, number in enumerate(numbers)]
        entries = (self._own_spec() or {}).get("devices", {}).get("config") or ()
        config = [{"opaque": entry["opaque"]} for entry in entries if "opaque" in entry]
        return {"devices": {"requests": requests} | ({"config": config} if config else {})}

    def _devices_of(self, allocation: Json | None) -> tuple[SliceDevice, ...]:
        _ = self.slices.catalogue
        known = self.slices.by_key
        keys = [(one["pool"], one["device"]) for one in _results(allocation) if one["driver"] == self.registration.name]
        return tuple(known[key] for key in keys if key in known)


def _results(allocation: Json | None) -> Sequence[Json]:
    return (allocation or {}).get("devices", {}).get("results") or ()


def _with_shares(allocation: Json, shares: Shares | None) -> Json:
    """Replace the IDs of the shares in an allocation with those in `shares`, and return the allocation."""
    for one in _results(allocation):
        if "shareID" in one:
            one["shareID"] = (shares or {}).get((one["pool"], one["device"]), one["shareID"])
    return allocation


def _share_of(capacities: Sequence[Json]) -> Json | None:
    """Return a request for an eighth of each capacity that all devices have, measured by the device with the least.

    Return None if there is no such capacity, or if one has a request policy.
    """
    names = set(capacities[0]).intersection(*capacities)
    if not names or any("requestPolicy" in one[name] for one in capacities for name in names):
        return None
    smallest = {
        name: min(Quantity.parse(str(one[name]["value"])).whole for one in capacities) for name in sorted(names)
    }
    return {"requests": {name: str(max(value // 8, 1)) for name, value in smallest.items()}}
