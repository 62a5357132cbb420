"""The driver under test, and everything that a check may do to it.

Laws: a check finds the driver registered, whatever the check before it did; if the driver cannot be brought back, the
check is skipped. A claim belongs to the check that made it, and is unprepared and deleted after it.
"""

import itertools
import math
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from attrs import define, frozen

from devicecore.conformance.connection import CallFailedError
from devicecore.conformance.dra.allocator import AllocationError, Allocator
from devicecore.conformance.dra.environment import CLAIM_KINDS, DEVICE_CLASS, POD_UID, Environment
from devicecore.conformance.dra.kubelet import DriverInstance, DriverKubelet
from devicecore.conformance.dra.processes import end_all
from devicecore.conformance.dra.published import PublishedPool, Slice, SliceDevice, pools_of
from devicecore.conformance.dra.settings import DriverTestSettings
from devicecore.conformance.dra.steps import Steps, TwoParts
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
_COMES_BACK = 2.0  # seconds for a driver that is about to register
_DIAL = 5.0  # seconds to reach a service
_CLEAN_UP = 5.0  # seconds for the calls after a check


@define(eq=False)
class Claim:
    """A ResourceClaim that a check has made, with a Pod that uses it.

    Attributes:
        devices: the driver's devices that it is allocated to.
        was_sent: whether the driver was asked to prepare it.
    """

    namespace: str
    name: str
    uid: str
    devices: tuple[SliceDevice, ...]
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
        end_all(self.environment.marker)
        self.kubelet.disconnect()

    def stop(self) -> None:
        """End everything: the driver first, then the kubelet."""
        try:
            if self.process is not None:
                self.process.stop(grace=2.0)
            end_all(self.environment.marker)
        finally:
            self.kubelet.stop()

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
                    if socket_identity(path) is not None:
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
            reason = f"the driver's name is not known: {self.not_registered_because()}"
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
                path.write_bytes(data[: len(data) // 2] if len(data) > 1 else b"\0")

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
        self._refresh()
        self.kubelet.stop()
        self.wiped_at = time.monotonic()
        self.wipe()
        began = time.monotonic()
        self.kubelet.start()
        self.returns["kubelet"] = self.wait_registered(began)

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
        spec = spec if spec is not None else self._spec(count if devices is None else len(devices))
        slices = [one for pool in self.catalogue for one in pool.slices]
        taken = [device for claim in self._all_claims for device in claim.devices]
        try:
            allocation = allocator.allocate(spec, devices or published, slices, taken)
        except AllocationError as error:
            reason = f"no claim can be allocated: {error}"
            raise Skip(reason) from None
        return self.create_claim(spec, allocation, name=name)

    def create_claim(self, spec: Json, allocation: Json | None, *, name: str = "") -> Claim:
        """Create a ResourceClaim with this status.allocation, or without any."""
        name = name or f"conformance-{next(self._numbers)}"
        pod = f"pod-of-{next(self._numbers)}"
        body: Json = {"kind": "ResourceClaim", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}
        if allocation is not None:
            reserved = [{"resource": "pods", "name": pod, "uid": str(uuid.uuid4())}]
            body["status"] = {"allocation": allocation, "reservedFor": reserved}
        created = self.api.create(body)
        claim = Claim(NAMESPACE, name, created["metadata"]["uid"], self._devices_of(allocation))
        self._claims.append(claim)
        self._all_claims.append(claim)
        return claim

    def delete_object(self, claim: Claim) -> None:
        """Delete the claim's object from the API server, if it is there."""
        with suppress(ApiError):
            self.api.delete("ResourceClaim", claim.name, claim.namespace)

    def forget(self, claim: Claim) -> None:
        """Delete a claim that was unprepared, so that its devices can be allocated again."""
        self.delete_object(claim)
        self._claims.remove(claim)
        self._all_claims.remove(claim)

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
        return self.settings.device_class or DEVICE_CLASS

    def _prepare_allocation(self) -> Allocator:
        if self._allocator is None:
            selector = {"cel": {"expression": f'device.driver == "{self.name}"'}}
            body = {"kind": "DeviceClass", "metadata": {"name": DEVICE_CLASS}, "spec": {"selectors": [selector]}}
            self.api.create(body)
            self._allocator = Allocator(self.name, self.class_of)
        return self._allocator

    def _spec(self, count: int | None) -> Json:
        own = next((one for one in self.settings.objects if one.get("kind") in CLAIM_KINDS), None)
        if own is None:
            return self.request(count or 1)
        spec: Json = dict(own["spec"]["spec"] if own["kind"] == "ResourceClaimTemplate" else own["spec"])
        if count is None:
            return spec
        config = [{"opaque": entry["opaque"]} for entry in spec["devices"].get("config") or () if "opaque" in entry]
        made = self.request(count)
        return {"devices": made["devices"] | ({"config": config} if config else {})}

    def request(self, *counts: int) -> Json:
        """Return the spec of a claim with requests `r0`, `r1`, and so on, for these numbers of devices."""
        requests = [
            {"name": f"r{number}", "exactly": {"deviceClassName": self.device_class, "count": count}}
            for number, count in enumerate(counts)
        ]
        return {"devices": {"requests": requests}}

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
        """
        return devices_in(self.prepare(claim), claim)

    def unprepared(self, claim: Claim) -> None:
        """Unprepare one claim.

        Raises:
            Failure: the driver did not unprepare it.
        """
        answer = self.unprepare(claim)
        if claim.uid not in answer:
            message = f"NodeUnprepareResources left the claim out of its answer, which has {_keys(answer)}"
            raise Failure(message)
        if error := answer[claim.uid].error:
            message = f"NodeUnprepareResources failed for the claim: {foreign_text(error)}"
            raise Failure(message)

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


def _keys(answer: Mapping[str, Any]) -> str:
    return f"the keys {', '.join(sorted(map(foreign_text, answer)))}" if answer else "no entries"
