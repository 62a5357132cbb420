"""The driver under test, and everything that a check may do to it.

Laws: a check finds the driver registered, whatever the check before it did; if the driver cannot be brought back, the
check is skipped. A claim belongs to the check that made it, and is unprepared and deleted after it.
"""

import itertools
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from attrs import define, frozen

from devicecore.conformance.connection import CallFailedError
from devicecore.conformance.dra.allocator import (
    AllocationError,
    Allocator,
    UndecidableError,
    fits_counters,
    is_repelling,
    matches,
)
from devicecore.conformance.dra.environment import CLAIM_KINDS, DEVICE_CLASS, POD_UID, Environment
from devicecore.conformance.dra.kubelet import DriverInstance, DriverKubelet
from devicecore.conformance.dra.processes import end_all
from devicecore.conformance.dra.published import PublishedPool, Slice, SliceDevice, pools_of
from devicecore.conformance.dra.settings import DriverTestSettings
from devicecore.conformance.dra.steps import DevicesInUse, Steps, TwoParts
from devicecore.conformance.model import Failure, Skip, counted
from devicecore.domain.dra.model import ClaimKey, ClaimRef, ClaimUid
from devicecore.domain.text import foreign_text
from devicecore.system.sockets import socket_identity
from devicecore.testing.api_server import ApiError, Json, LocalApiServer
from devicecore.testing.process import PluginProcess, StillRunningError

T = TypeVar("T")

NAMESPACE = "default"
_POLL_INTERVAL = 0.02  # seconds
_MAX_EXITS = 3  # after which an unregistered driver is not started again within one wait
_EXIT_PAUSE = 0.3  # seconds from an exit to the next start
_SETTLING = 10.0  # seconds for a driver that was started to publish
_SETTLED = 1.0  # seconds without a request about slices
_COMES_BACK = 2.0  # seconds for a driver that is about to register
_DIAL = 5.0  # seconds to reach a service
_CLEAN_UP = 5.0  # seconds for the calls after a check
_LAST_GRACE = 2.0  # seconds from SIGTERM to SIGKILL at the end of the run


@define(eq=False)
class Claim:
    """A ResourceClaim that a check has made, with a Pod that uses it.

    Attributes:
        devices: the driver's devices that it is allocated to.
        shares: the shares in the allocation, of devices that may be allocated several times.
        was_sent: whether the driver was asked to prepare it.
    """

    namespace: str
    name: str
    uid: str
    devices: tuple[SliceDevice, ...]
    shares: tuple[str, ...] = ()
    was_sent: bool = False

    @property
    def ref(self) -> ClaimRef:
        """What a kubelet sends about it."""
        return ClaimRef(ClaimKey(self.namespace, self.name), ClaimUid(self.uid))


@frozen
class Return:
    """How the driver came back after an event.

    Attributes:
        seconds: until it was registered again; None if it was not.
        problem: why not; empty if it was.
        status: the exit status of the process that was ended; None if it was killed.
        ended_after: seconds until that process ended.
        left: sockets of that process that were there after its end.
        kept_slices: whether there were slices after its end.
    """

    seconds: float | None
    problem: str = ""
    status: int | None = None
    ended_after: float = 0.0
    left: tuple[str, ...] = ()
    kept_slices: bool = True


class DriverUnderTest:
    """The driver under test.

    Args:
        environment: its surroundings, entered.
        command: starts it; placeholders are replaced.
        settings: how it is tested.
        looks: the checks in two parts of this run.
    """

    def __init__(
        self,
        environment: Environment,
        command: Sequence[str],
        settings: DriverTestSettings,
        looks: tuple[TwoParts, ...] = (),
    ) -> None:
        self.environment = environment
        self.api: LocalApiServer = environment.api
        self.kubelet: DriverKubelet = DriverKubelet(environment.registry)
        self.settings = settings
        self.steps: Steps = Steps(self, looks)
        self.process: PluginProcess | None = None
        self.exits: list[str] = []
        """One sentence for each time that the process ended by itself."""
        self.returns: dict[str, Return] = {}
        """How the driver came back after the events of this run: killed, rebooted, corrupted, terminated."""
        self.was_seen: bool = False
        """Whether the driver has made a registration socket or a request."""
        self.started_at: float = 0.0
        """When the process was started last, in seconds of `time.monotonic`."""
        self.asked_before: int = 0
        """How many requests the API server had at that time."""
        self.planted: set[str] = set()
        """The names of slices that checks have made."""
        self.wiped_at: float = 0.0
        self.wrote_before_wipe: bool = False
        """Whether the process that is running has changed a slice less than a minute before the wipe."""
        self.republished_after: float | None = None
        self._command = tuple(command)
        self._deadline = time.monotonic() + settings.budget
        self._claims: list[Claim] = []
        self._all_claims: list[Claim] = []
        self._numbers = itertools.count(1)
        self._name = ""
        self._allocator: Allocator | None = None
        self._catalogue: tuple[PublishedPool, ...] = ()
        self._first_pools: float | None = None
        self._waited_for_pools = False
        self._is_lost = False
        self._was_silent = False
        self._last_output = ""
        self._finding = threading.RLock()
        self._prepares: bool | None = None
        self._unprepares: bool | None = None
        self._removes_cdi: bool | None = None
        self._refuses_used: bool | None = None

    # --- its process --------------------------------------------------------------------------------------------------

    @property
    def output(self) -> str:
        """The end of what the driver printed, with the end of its former process if it was started again."""
        return "\n".join(text for text in (self._last_output, self.process.last_output if self.process else "") if text)

    @property
    def has_instances(self) -> bool:
        """Whether two processes of it can run at once: its command or environment names `{pod_uid}`."""
        return any("{pod_uid}" in text for text in (*self._command, *self.settings.environment.values()))

    def spawn(self, pod_uid: str = POD_UID) -> PluginProcess:
        """Start a process of the driver. `run` ends it if the caller does not.

        Raises:
            CannotRunError: the program does not exist or may not be run.
        """
        command = [self.environment.expand(word, pod_uid) for word in self._command]
        return PluginProcess(command, self.environment.plugins, environment=self.environment.variables(pod_uid))

    def start(self) -> None:
        """Start the process, and end the former one."""
        self.kill()
        if self.process is not None:
            self._last_output = self.process.last_output
        self.started_at, self.asked_before = time.monotonic(), len(self.api.requests)
        self.process = self.spawn()

    def kill(self) -> None:
        """Kill all processes of the driver, so that they clean nothing up."""
        if self.process is not None:
            self.process.kill()
        self._end_all()
        self.kubelet.disconnect()

    def stop(self) -> None:
        """End everything: the driver first, then the kubelet."""
        try:
            if self.process is not None:
                self.process.terminate()
                with suppress(StillRunningError):
                    self.process.wait(_LAST_GRACE)
                self.kill()  # before `stop`, which waits until no daemon has the pipe of its output
                self.process.stop(grace=0.0)
        finally:
            self.kubelet.stop()

    def _end_all(self) -> None:
        end_all(self.environment.marker, with_adopted=self.settings.owns_children)

    def wait(self, look: Callable[[], T | None], timeout: float) -> T | None:
        """Wait until `look` returns something true and return that; None after `timeout` seconds.

        A process that ends by itself is started again, as Kubernetes does.

        Raises:
            Skip: no time is left for the run.
        """
        deadline = time.monotonic() + timeout
        exits = 0
        while True:
            if seen := look():
                return seen
            now = time.monotonic()
            if now >= deadline:
                return None
            if now >= self._deadline:
                self._skip_for_time()
            if self.process is not None and self.process.failure is not None:
                exits += 1
                self.exits.append(str(self.process.failure))
                if exits > _MAX_EXITS:
                    return None
                time.sleep(_EXIT_PAUSE)
                self.start()
            time.sleep(_POLL_INTERVAL)

    @property
    def has_exited(self) -> bool:
        """Whether the process has ended by itself and was not started again yet."""
        return self.process is not None and self.process.failure is not None

    @property
    def time_left(self) -> float:
        """Seconds until the end of the run."""
        return max(self._deadline - time.monotonic(), 0.0)

    def require_time(self) -> None:
        """Do nothing if there is time for another check.

        Raises:
            Skip: there is none.
        """
        if not self.time_left:
            self._skip_for_time()

    def _skip_for_time(self) -> None:
        reason = (
            f"the {self.settings.budget:g} seconds of the run are over; devicecore conformance --only makes it alone"
        )
        raise Skip(reason)

    # --- registration -------------------------------------------------------------------------------------------------

    def wait_for_first(self) -> DriverInstance | None:
        """Wait until a registration socket was found and the registration has succeeded or failed."""

        def look() -> DriverInstance | None:
            self.was_seen = self.was_seen or bool(self.kubelet.instances or self.api.requests)
            found = self.kubelet.instances
            return next((one for one in found if one.registered_at or (one.problem and one.stage != "dial")), None)

        if not self.kubelet.instances or look() is None:
            left = self.started_at + self.settings.starting - time.monotonic()
            self.wait(look, max(left, 0.0))
        return look() or next(iter(self.kubelet.instances), None)

    @property
    def first(self) -> DriverInstance:
        """The first registration socket, registered or refused.

        Raises:
            Skip: there is none.
        """
        first = self.wait_for_first()
        if first is None:
            reason = "the driver made no registration socket"
            raise Skip(reason)
        return first

    @property
    def instance(self) -> DriverInstance:
        """The instance that a kubelet calls. A driver that is not registered is started again once.

        Raises:
            Skip: there is none.
        """
        with self._finding:  # checks make calls at the same time
            self.wait_for_first()
            found = self.kubelet.newest
            if found is None and not self._is_lost:
                found = self._bring_back()
            if found is None:
                reason = f"the driver is not registered: {self.not_registered_because()}"
                raise Skip(reason)
            self._is_lost = False
            return found

    @property
    def reachable(self) -> DriverInstance:
        """The instance that a kubelet calls, whose service can be reached.

        Raises:
            Skip: there is none.
        """
        found = self.instance
        found.is_unreachable = not found.connection.dial(0.1 if found.is_unreachable else _DIAL)
        if found.is_unreachable:
            reason = f"the driver's service cannot be reached: {found.connection.why_not()}"
            raise Skip(reason)
        return found

    def not_registered_because(self) -> str:
        """Return why the driver is not registered."""
        present = [one for one in self.kubelet.instances if not one.is_gone]
        if present:
            return present[-1].problem or "the registration is under way"
        parts = [f"there is no socket in {self.environment.registry}", *self.exits[-1:]]
        return "; ".join(parts)

    def _bring_back(self) -> DriverInstance | None:
        """Start a lost driver as in a new container: without its former sockets."""
        self._is_lost = True
        if not any(one.registered_at for one in self.kubelet.history):
            return None  # another start would change nothing
        found = self.wait(lambda: self.kubelet.newest, min(_COMES_BACK, self.settings.returning))
        if found is None:
            self.kill()
            for instance in self.kubelet.history:
                for path in {instance.path, instance.endpoint}:
                    if socket_identity(path) is not None and self.environment.has(path):
                        Path(path).unlink(missing_ok=True)
            self.start()
            found = self.wait(lambda: self.kubelet.newest, self.settings.returning)
        self._is_lost = found is None
        return found

    @property
    def name(self) -> str:
        """The driver's name.

        Raises:
            Skip: it is not known.
        """
        if not self._name:
            info = self.first.info
            self._name = info.name if info is not None else ""
        if not self._name:
            reason = f"the driver is not registered: {self.not_registered_because()}"
            raise Skip(reason)
        return self._name

    @property
    def known_name(self) -> str:
        """The driver's name; empty if it is not known."""
        return self._name

    @property
    def device_count(self) -> int:
        """How many devices it has published."""
        return sum(len(pool.devices) for pool in self._catalogue)

    # --- events -------------------------------------------------------------------------------------------------------

    def wait_registered(self, since: float) -> Return:
        """Wait for an instance that was found after `since`, in seconds of `time.monotonic`."""

        def look() -> DriverInstance | None:
            return next((one for one in reversed(self.kubelet.registered) if one.found_at >= since), None)

        found = self.wait(look, self.settings.returning)
        if found is None:
            limit = counted(self.settings.returning, "second")
            return Return(None, f"it was not registered again within {limit}: {self.not_registered_because()}")
        return Return(found.registered_at - since)

    def restart(self, event: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Kill the driver, do something, start it, and note in `returns` how it came back."""
        _ = self.instance
        self.kill()
        meanwhile()
        began = time.monotonic()
        self.start()
        self.returns[event] = self.wait_registered(began)

    def restart_with_corrupt_files(self) -> None:
        """Kill the driver, damage its state files, and start it. If it does not come back, the files are restored."""
        before = self.environment.state_files()

        def damage() -> None:
            for path, data in before.items():
                path.write_bytes(data[: len(data) // 2])

        exits = len(self.exits)
        self.restart("corrupted", damage)
        if self.returns["corrupted"].problem or len(self.exits) > exits:
            self.kill()
            for path, data in before.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)

    def terminate(self) -> None:
        """End the driver with SIGTERM, look at what it left, start it, and note in `returns` how it came back."""
        instance, process = self.instance, self.process
        if process is None:
            return
        began = time.monotonic()
        process.terminate()
        with suppress(StillRunningError):
            process.wait(self.settings.grace)
        status, took = process.status, time.monotonic() - began
        left = tuple(path for path in {instance.path, instance.endpoint} if socket_identity(path) is not None)
        kept = bool(self.slices())
        began = time.monotonic()
        self.start()
        found = self.wait_registered(began)
        self.returns["terminated"] = Return(found.seconds, found.problem, status, took, tuple(sorted(left)), kept)

    def restart_kubelet(self) -> None:
        """Restart the kubelet: it forgets all drivers, and deletes the node's slices."""
        _ = self.instance
        self._settle()
        self._refresh()
        self.kubelet.stop()
        self.wiped_at = time.monotonic()
        self.wrote_before_wipe = self.slice_age < min(self.settings.settled, self.wiped_at - self.started_at + 1.0)
        self.wipe()
        began = time.monotonic()
        self.kubelet.start()
        self.returns["kubelet"] = self.wait_registered(began)

    def _settle(self) -> None:
        """Let a driver that was started just now publish, so that it is not taken for one that publishes again."""
        asked, since = -1, 0.0
        deadline = time.monotonic() + _SETTLING
        while time.monotonic() < deadline:
            made = [one for one in self.api.requests[self.asked_before :] if one.resource == "resourceslices"]
            if len(made) != asked:
                asked, since = len(made), time.monotonic()
            elif made and time.monotonic() - since > _SETTLED:
                return
            self.wait(lambda: None, 0.1)

    def plant(self, spec: Json) -> str:
        """Create a slice that is not the driver's own doing; return its name."""
        name = f"planted-{next(self._numbers)}"
        self.planted.add(name)
        self.api.create({"kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec})
        return name

    def wipe(self) -> None:
        """Delete the driver's slices, as a kubelet does."""
        for one in self.slices():
            with suppress(ApiError):  # the driver may have deleted it meanwhile
                self.api.delete("ResourceSlice", one["metadata"]["name"])

    def wait_republished(self) -> None:
        """Wait until the pools are complete again after a wipe."""
        left = self.wiped_at + self.settings.republishing - time.monotonic()
        if self.wait(self.is_complete, max(left, 0.0)):
            self.republished_after = time.monotonic() - self.wiped_at

    # --- what it has published ----------------------------------------------------------------------------------------

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
        """Wait once until all pools are complete; seconds from the start of the process, None if they are not."""
        if not self._waited_for_pools:
            self._waited_for_pools = True
            _ = self.instance
            left = self.started_at + self.settings.starting - time.monotonic()
            if self.wait(self.is_complete, max(left, 0.0)):
                self._first_pools = time.monotonic() - self.started_at
            self._refresh()
        return self._first_pools

    @property
    def catalogue(self) -> tuple[PublishedPool, ...]:
        """The pools as they were last complete.

        Raises:
            Skip: they never were.
        """
        self.wait_for_pools()
        self._refresh()
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

    @property
    def usable_devices(self) -> tuple[SliceDevice, ...]:
        """The published devices that the scheduler may allocate to the claims of the checks.

        Raises:
            Skip: there are none.
        """
        expressions = self._expressions()
        try:
            found = tuple(
                device
                for device in self.devices
                if not is_repelling(device, ())
                and not device.body.get("bindingConditions")
                and all(matches(text, self.name, device) for text in expressions)
            )
        except UndecidableError as error:
            raise Skip(str(error)) from None
        if not found:
            reason = "the scheduler would allocate none of the published devices: taints or the DeviceClass forbid it"
            raise Skip(reason)
        return found

    @property
    def allocatable_devices(self) -> tuple[SliceDevice, ...]:
        """Published devices that can all be allocated at the same time.

        Raises:
            Skip: there are none.
        """
        slices = [one for pool in self.catalogue for one in pool.slices]
        found: list[SliceDevice] = []
        for device in self.usable_devices:
            if not device.body.get("consumesCounters") or fits_counters([*found, device], slices):
                found.append(device)
        return tuple(found)

    def free_device(self, *, shared: bool | None = None, other_than: SliceDevice | None = None) -> SliceDevice:
        """Return a device that is in no claim, the one that was used least recently.

        Args:
            shared: whether it may be allocated several times; None if that does not matter.
            other_than: not this one.

        Raises:
            Skip: there is none.
        """
        taken = {device.key for claim in self._all_claims for device in claim.devices}
        taken |= {other_than.key} if other_than is not None else set()
        found = [
            device
            for device in self._prepare_allocation().oldest_first(self.allocatable_devices)
            if device.key not in taken and shared in (None, bool(device.body.get("allowMultipleAllocations")))
        ]
        if not found:
            kind = {True: " that may be allocated several times", False: " for one claim alone", None: ""}[shared]
            reason = f"there is no free device{kind}"
            raise (DevicesInUse(reason) if taken else Skip(reason))
        return found[0]

    def _expressions(self) -> list[str]:
        spec = self.class_of(self.device_class)["spec"]
        return [str((one.get("cel") or {}).get("expression")) for one in spec.get("selectors") or ()]

    def is_complete(self) -> bool:
        """Whether there are pools, and all of them are complete."""
        pools = self.pools()
        return bool(pools) and all(pool.is_complete for pool in pools)

    def _refresh(self) -> None:
        pools = self.pools()
        if pools and all(pool.is_complete for pool in pools):
            self._catalogue = pools

    # --- claims -------------------------------------------------------------------------------------------------------

    @contextmanager
    def owning(self, claims: list[Claim]) -> Iterator[None]:
        """Let the claims that are made in this context belong to this list, which `clean_up` empties."""
        before, self._claims = self._claims, claims
        try:
            yield
        finally:
            self._claims = before

    def claim(
        self,
        count: int | None = None,
        *,
        devices: Sequence[SliceDevice] | None = None,
        spec: Json | None = None,
        name: str = "",
    ) -> Claim:
        """Create a ResourceClaim that is allocated and reserved for a Pod.

        Args:
            count: how many devices; by default one, or what the claim of the user asks for.
            devices: exactly these devices instead.
            spec: the spec of the claim instead. Its DeviceClass may be left out.
            name: the name; by default a new one.

        Raises:
            Skip: the published devices do not allow it.
        """
        allocator, published = self._prepare_allocation(), self.devices
        if spec is None:
            spec = self._spec(count if devices is None else len(devices))
        slices = [one for pool in self.catalogue for one in pool.slices]
        taken = [device for claim in self._all_claims for device in claim.devices]
        try:
            allocation = allocator.allocate(spec, devices or published, slices, taken)
        except AllocationError as error:
            reason = f"no claim can be allocated: {error}"
            raise (DevicesInUse(reason) if taken else Skip(reason)) from None
        return self.create_claim(spec, allocation, name=name)

    def create_claim(self, spec: Json, allocation: Json | None, *, name: str = "") -> Claim:
        """Create a ResourceClaim with this status.allocation, or without any."""
        if self._prepares is None:
            self._learn()
        name = name or f"conformance-{next(self._numbers)}"
        body: Json = {"kind": "ResourceClaim", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}
        if allocation is not None:
            pod = self.api.create(self._pod(name))["metadata"]
            reserved = [{"resource": "pods", "name": pod["name"], "uid": pod["uid"]}]
            body["status"] = {"allocation": allocation, "reservedFor": reserved}
        created = self.api.create(body)
        results = (allocation or {}).get("devices", {}).get("results") or ()
        shares = tuple(one["shareID"] for one in results if "shareID" in one)
        claim = Claim(NAMESPACE, name, created["metadata"]["uid"], self._devices_of(allocation), shares)
        self._claims.append(claim)
        self._all_claims.append(claim)
        return claim

    def _pod(self, claim: str) -> Json:
        entry = {"name": "claim", "resourceClaimName": claim}
        container = {"name": "main", "image": "conformance", "resources": {"claims": [{"name": "claim"}]}}
        return {
            "kind": "Pod",
            "metadata": {"name": f"pod-{next(self._numbers)}", "namespace": NAMESPACE},
            "spec": {"nodeName": self.environment.node, "resourceClaims": [entry], "containers": [container]},
        }

    def allocation_of(self, device: SliceDevice) -> Json:
        """Return the status.allocation of a claim with the request r0 for one device, whether it is free or not.

        Raises:
            Skip: that needs CEL.
        """
        slices = [one for pool in self.catalogue for one in pool.slices]
        try:
            return self._prepare_allocation().allocate(self.request(1), [device], slices, ())
        except AllocationError as error:
            reason = f"no claim can be allocated: {error}"
            raise Skip(reason) from None

    def reallocate(self, claim: Claim, device: SliceDevice) -> None:
        """Allocate another device to a claim, as after its deallocation: it keeps its UID."""
        allocation = self.allocation_of(device)
        reserved = self.api.get("ResourceClaim", claim.name, claim.namespace)["status"]["reservedFor"]

        def deallocate(body: Json) -> None:
            body["status"].pop("reservedFor")
            body["status"].pop("allocation")

        def allocate(body: Json) -> None:
            body["status"] = {"allocation": allocation, "reservedFor": reserved}

        self.api.change("ResourceClaim", claim.name, deallocate, claim.namespace)
        self.api.change("ResourceClaim", claim.name, allocate, claim.namespace)
        claim.devices = (device,)

    def stranger(self, claim: Claim, uid: str | None = None) -> Claim:
        """Return a claim of the same name with another UID, which is not on the API server."""
        return Claim(claim.namespace, claim.name, str(uuid.uuid4()) if uid is None else uid, ())

    def forget(self, claim: Claim) -> None:
        """Delete a claim without unpreparing it, so that its devices can be allocated to other claims."""
        self.delete_object(claim)
        self._claims.remove(claim)
        self._all_claims.remove(claim)

    def label_namespace(self, label: str, value: str) -> None:
        """Label the namespace of the claims."""
        self.api.change(
            "Namespace", NAMESPACE, lambda body: body["metadata"].setdefault("labels", {}).update({label: value})
        )

    def delete_object(self, claim: Claim) -> None:
        """Delete the claim's object from the API server, if it is there."""
        with suppress(ApiError):
            if self.api.get("ResourceClaim", claim.name, claim.namespace)["metadata"]["uid"] == claim.uid:
                self.api.delete("ResourceClaim", claim.name, claim.namespace)

    def class_of(self, name: str) -> Json:
        """Return a DeviceClass.

        Raises:
            AllocationError: it does not exist.
        """
        try:
            return self.api.get("DeviceClass", name)
        except ApiError:
            message = f"there is no DeviceClass {foreign_text(name)}"
            raise AllocationError(message) from None

    @property
    def device_class(self) -> str:
        """The DeviceClass of the claims that the checks make."""
        self._prepare_allocation()
        requests = (self._own_spec() or {}).get("devices", {}).get("requests") or [{}]
        own = requests[0].get("exactly", requests[0]).get("deviceClassName")
        return self.settings.device_class or own or DEVICE_CLASS

    def _prepare_allocation(self) -> Allocator:
        if self._allocator is None:
            selector = {"cel": {"expression": f'device.driver == "{self.name}"'}}
            body = {"kind": "DeviceClass", "metadata": {"name": DEVICE_CLASS}, "spec": {"selectors": [selector]}}
            self.api.create(body)
            self._allocator = Allocator(self.name, self.class_of)
        return self._allocator

    def _own_spec(self) -> Json | None:
        """The spec of the user's claim."""
        own = next((one for one in self.settings.objects if one.get("kind") in CLAIM_KINDS), None)
        if own is None:
            return None
        return dict(own["spec"]["spec"] if own["kind"] == "ResourceClaimTemplate" else own["spec"])

    def _spec(self, count: int | None) -> Json:
        return (self._own_spec() if count is None else None) or self.request(count or 1)

    def request(self, *counts: int) -> Json:
        """Return the spec of a claim with requests `r0`, `r1`, and so on, for these numbers of devices.

        It has the configuration of the user's claim, for all requests.
        """
        requests = [
            {"name": f"r{number}", "exactly": {"deviceClassName": self.device_class, "count": count}}
            for number, count in enumerate(counts)
        ]
        entries = (self._own_spec() or {}).get("devices", {}).get("config") or ()
        config = [{"opaque": entry["opaque"]} for entry in entries if "opaque" in entry]
        return {"devices": {"requests": requests} | ({"config": config} if config else {})}

    def _devices_of(self, allocation: Json | None) -> tuple[SliceDevice, ...]:
        results = (allocation or {}).get("devices", {}).get("results") or ()
        known = {device.key: device for pool in self._catalogue for device in pool.devices}
        keys = [(one["pool"], one["device"]) for one in results if one["driver"] == self.name]
        return tuple(known[key] for key in keys if key in known)

    def clean_up(self) -> None:
        """Unprepare and delete the claims of the present check, whatever it did to them."""
        claims = list(self._claims)
        self._claims.clear()
        sent = [claim.ref for claim in claims if claim.was_sent]
        instance = self.kubelet.newest
        if sent and instance is not None:
            with suppress(CallFailedError):  # what it says of such calls is the subject of other checks
                instance.unprepare(sent, min(_CLEAN_UP, self._call_timeout()))
        for claim in claims:
            self.delete_object(claim)
            self._all_claims.remove(claim)

    # --- what is known of its habits ----------------------------------------------------------------------------------

    def require_preparing(self) -> None:
        """Do nothing if the driver prepares plain claims.

        Raises:
            Skip: it does not, which another check reports.
        """
        if self._prepares is None:
            self._learn()
        if not self._prepares:
            reason = "the driver prepares no claims"
            raise Skip(reason)

    def _learn(self) -> None:
        """Find out whether the driver prepares and unprepares a plain claim at all."""
        _ = self.reachable, self.allocatable_devices  # without which this cannot be found out
        self._prepares = self._unprepares = self._removes_cdi = True  # so that the claim below can be made
        with self.owning([]):
            before = self.environment.cdi_names()
            claim = self.claim(1)
            try:
                devices_in(self.prepare(claim), claim)
            except Failure:
                self._prepares = False
            try:
                require_unprepared(self.unprepare(claim), claim)
            except Failure as failure:
                is_served = not isinstance(failure, CallFailedError) or failure.code != "UNIMPLEMENTED"
                self._unprepares = is_served and not self._prepares
            self._removes_cdi = self.environment.cdi_names() <= before
            self.clean_up()

    @property
    def removes_cdi_devices(self) -> bool:
        """Whether the CDI devices of a claim are gone when it is unprepared; found out at the first use."""
        if self._removes_cdi is None:
            self._learn()
        return bool(self._removes_cdi)

    @property
    def refuses_devices_in_use(self) -> bool:
        """Whether a device is refused that another claim has; found out at the first use."""
        if self._refuses_used is None:
            with self.owning([]):
                device = self.free_device(shared=False)
                self.ready(devices=[device])
                second = self.create_claim(self.request(1), self.allocation_of(device))
                try:
                    self.prepared(second)
                except Failure:
                    self._refuses_used = True
                else:
                    self._refuses_used = False
                self.clean_up()
        return self._refuses_used

    # --- calls --------------------------------------------------------------------------------------------------------

    def prepare(self, *claims: Claim, timeout: float | None = None) -> Mapping[str, Any]:
        """Call NodePrepareResources once for these claims; the answers by UID, as messages.

        Raises:
            CallFailedError: the call failed as a whole.
        """
        for claim in claims:
            claim.was_sent = True
        refs = [claim.ref for claim in claims]
        return self._timed(lambda seconds: self.reachable.prepare(refs, seconds), timeout)

    def unprepare(self, *claims: Claim, timeout: float | None = None) -> Mapping[str, Any]:
        """Call NodeUnprepareResources once for these claims; the answers by UID, as messages.

        Raises:
            CallFailedError: the call failed as a whole.
        """
        refs = [claim.ref for claim in claims]
        return self._timed(lambda seconds: self.reachable.unprepare(refs, seconds), timeout)

    def prepared(self, claim: Claim) -> tuple[Any, ...]:
        """Prepare one claim; the devices in the answer, as messages.

        Raises:
            Failure: the driver did not prepare it.
            Skip: the driver prepares no claim at all, which another check reports.
        """
        try:
            return devices_in(self.prepare(claim), claim)
        except Failure as failure:
            if self._prepares:
                raise
            reason = f"the driver prepares no claims: {failure}"
            raise Skip(reason) from None

    def unprepared(self, claim: Claim) -> None:
        """Unprepare one claim.

        Raises:
            Failure: the driver did not unprepare it.
            Skip: the driver unprepares no claim at all, which another check reports.
        """
        try:
            require_unprepared(self.unprepare(claim), claim)
        except Failure as failure:
            if self._unprepares:
                raise
            reason = f"the driver unprepares no claims: {failure}"
            raise Skip(reason) from None

    def ready(self, *counts: int, **arguments: Any) -> Claim:  # noqa: ANN401 - the arguments of `claim`
        """Return a new claim that is prepared, for a check of something else.

        Raises:
            Skip: the driver did not prepare it, which other checks report.
        """
        claim = self.claim(*counts, **arguments)
        try:
            self.prepared(claim)
        except Failure as failure:
            reason = f"it needs a prepared claim: {failure}"
            raise Skip(reason) from None
        return claim

    def _call_timeout(self) -> float:
        return self.settings.call_again if self._was_silent else self.settings.call

    def _timed(self, call: Callable[[float], T], timeout: float | None) -> T:
        self.require_time()
        limit = min(self._call_timeout() if timeout is None else timeout, max(self.time_left, 1.0))
        try:
            return call(limit)
        except CallFailedError as error:
            if error.code == "DEADLINE_EXCEEDED" and timeout is None:
                self._was_silent = True
                message = f"there was no answer within {counted(round(limit), 'second')}"
                raise CallFailedError(error.method, error.code, message) from None
            raise


def devices_in(answer: Mapping[str, Any], claim: Claim) -> tuple[Any, ...]:
    """Return the devices that an answer to NodePrepareResources has for a claim.

    Raises:
        Failure: it has an error or nothing for the claim.
    """
    if claim.uid not in answer:
        message = f"NodePrepareResources left the claim out of its answer, which has {_keys(answer)}"
        raise Failure(message)
    if error := answer[claim.uid].error:
        message = f"NodePrepareResources failed for the claim: {foreign_text(error)}"
        raise Failure(message)
    return tuple(answer[claim.uid].devices)


def require_unprepared(answer: Mapping[str, Any], claim: Claim) -> None:
    """Check that an answer to NodeUnprepareResources has success for a claim.

    Raises:
        Failure: it has an error or nothing for the claim.
    """
    if claim.uid not in answer:
        message = f"NodeUnprepareResources left the claim out of its answer, which has {_keys(answer)}"
        raise Failure(message)
    if error := answer[claim.uid].error:
        message = f"NodeUnprepareResources failed for the claim: {foreign_text(error)}"
        raise Failure(message)


def _keys(answer: Mapping[str, Any]) -> str:
    return f"the keys {', '.join(sorted(map(foreign_text, answer)))}" if answer else "no entries"
