"""Every port of dynamic resource allocation, implemented within one process.

Law: these adapters fulfill the same contracts as the real adapters. The store is `MemoryStore`, as for device plugins.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import TypeVar

from attrs import define, evolve, field

from devicecore.domain.checks import checked
from devicecore.domain.dra.answers import PREPARE, UNPREPARE, PrepareResult, UnprepareResult
from devicecore.domain.dra.drivers import (
    DriverConnected,
    DriverDisconnected,
    DriverEvent,
    DriverRegistered,
    DriverRemoved,
    HealthEnded,
    HealthReported,
    InstanceId,
    choose_service,
)
from devicecore.domain.dra.errors import ClaimSourceError, DraStoppedError, DriverCallError
from devicecore.domain.dra.health import ReportedHealth
from devicecore.domain.dra.model import ClaimKey, ClaimRef, ClaimUid, DriverName, ResourceClaim
from devicecore.domain.errors import TransportInUseError
from devicecore.ports.dra_driver import DraDriver, check_driver, prepared, unprepared
from devicecore.ports.drivers import DriverListener
from devicecore.system.arguments import checks_arguments, checks_fields

Answer = TypeVar("Answer")

_V1 = "v1.DRAPlugin"


class MemoryDriverTransport:
    """A `DriverTransport` to drivers that are objects in this process.

    Calls run in the caller's thread, so a driver's method that does not return is not interrupted: this adapter cannot
    keep the port's promise to return in finite time. A driver simulates silence by raising a `DriverCallError` with
    `unanswered`.
    """

    def __init__(self) -> None:
        self._listener: DriverListener | None = None
        self._instances: dict[InstanceId, MemoryDriverInstance] = {}
        self._generations = count(1)

    def start(self, listener: DriverListener) -> None:
        """Begin to accept registrations, which `register` makes. A second start does nothing.

        Raises:
            TransportInUseError: another manager has started this transport and not stopped it.
        """
        if self._listener not in (None, listener):
            raise TransportInUseError(type(self).__name__)
        self._listener = listener

    def stop(self) -> None:
        """Disconnect every driver."""
        self._listener = None
        self._instances.clear()

    @checks_arguments()
    def register(
        self, driver: DraDriver, endpoint: str = "", services: Sequence[str] = (_V1,)
    ) -> "MemoryDriverInstance":
        """Register a driver as if it served at `endpoint` (by default a unique one), and connect to it.

        Raises:
            TypeError: `driver` is not a driver.
            DraStoppedError: the transport is not started.
            UnsupportedServicesError: the driver offers no known service.
            DeviceCoreError: the listener refuses the driver.
        """
        check_driver(driver, "register")
        if self._listener is None:
            raise DraStoppedError
        generation = next(self._generations)
        endpoint = endpoint or f"memory-{generation}.sock"
        service = choose_service(driver.name, endpoint, services)
        id_ = InstanceId(driver.name, endpoint, service, generation)
        self._listener(DriverRegistered(id_))
        self._instances[id_] = instance = MemoryDriverInstance(id_, driver, self)
        instance.connect()
        return instance

    def prepare(self, instance: InstanceId, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, PrepareResult]:
        """Ask a driver to prepare claims."""
        answer = self._call(instance, PREPARE, lambda driver: prepared(driver, tuple(claims)))
        if instance.service == _V1:
            return answer
        return {  # `v1beta1` has no share ids
            uid: evolve(result, devices=tuple(evolve(device, share_id=None) for device in result.devices))
            for uid, result in answer.items()
        }

    def unprepare(self, instance: InstanceId, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, UnprepareResult]:
        """Ask a driver to release claims."""
        return self._call(instance, UNPREPARE, lambda driver: unprepared(driver, tuple(claims)))

    def _call(self, id_: InstanceId, method: str, call: Callable[[DraDriver], Answer]) -> Answer:
        instance = self._instances.get(id_)
        if instance is None:
            raise DriverCallError(method, "Canceled", "grpc: the client connection is closing", unanswered=True)
        if not instance.is_connected:
            cause = f"dial unix {id_.endpoint}: connect: no such file or directory"
            message = f'connection error: desc = "transport: Error while dialing: {cause}"'
            raise DriverCallError(method, "Unavailable", message)  # nothing was sent, so the driver has done nothing
        try:
            return call(instance.driver)
        except DriverCallError:
            raise
        except Exception as error:  # whatever the driver raises counts as its answer
            raise DriverCallError(method, "Unknown", str(error)) from error

    def _notify(self, event: DriverEvent) -> None:
        if self._listener and event.instance in self._instances:
            self._listener(event)

    def _remove(self, id_: InstanceId) -> None:
        self._notify(DriverRemoved(id_))
        self._instances.pop(id_, None)


class MemoryDriverInstance:
    """One registered instance, created by `MemoryDriverTransport.register`."""

    def __init__(self, id_: InstanceId, driver: DraDriver, transport: MemoryDriverTransport) -> None:
        self.id = id_
        self.driver = driver
        self.is_connected: bool = False
        self._transport = transport
        self._in_turn = threading.RLock()

    def connect(self) -> None:
        """Begin the connection."""
        self._change(DriverConnected(self.id), connected=True)

    def disconnect(self) -> None:
        """End the connection, as when a driver is killed and its registration socket stays."""
        self._change(DriverDisconnected(self.id), connected=False)

    def remove(self) -> None:
        """End the registration, as when the driver's registration socket is removed. A second call does nothing."""
        with self._in_turn:
            self._transport._remove(self.id)  # noqa: SLF001  # the two are one adapter

    @checks_arguments()
    def report(self, *devices: ReportedHealth) -> None:
        """Report the health of devices."""
        with self._in_turn:
            self._transport._notify(HealthReported(self.id, devices))  # noqa: SLF001  # as above

    def end_health(self) -> None:
        """End the stream of health reports."""
        with self._in_turn:
            self._transport._notify(HealthEnded(self.id))  # noqa: SLF001  # as above

    def _change(self, event: DriverEvent, *, connected: bool) -> None:
        with self._in_turn:
            if self.is_connected is not connected:
                self.is_connected = connected
                self._transport._notify(event)  # noqa: SLF001  # as above


@checks_fields
@define
class MemoryClaims:
    """A `ClaimSource` that is a dictionary."""

    claims: dict[ClaimKey, ResourceClaim] = field(factory=dict)

    def get(self, key: ClaimKey) -> ResourceClaim:
        """Return the claim."""
        claim = self.claims.get(key)
        if claim is None:
            cause = f'resourceclaims.resource.k8s.io "{key.name}" not found'
            raise ClaimSourceError(cause)
        return claim

    def put(self, *claims: ResourceClaim) -> None:
        """Create or replace claims. Raises TypeError if an argument is something else, such as a parsed manifest."""
        for claim in claims:
            checked(claim, ResourceClaim, "MemoryClaims.put: resource_claim_of reads a manifest")
        self.claims.update((claim.key, claim) for claim in claims)


@checks_fields
@define
class MemorySlices:
    """The `ResourceSlices` of a node: the names of slices by driver."""

    slices: dict[DriverName, set[str]] = field(factory=dict)

    def publish(self, driver: DriverName, names: Iterable[str]) -> None:
        """Create slices, as a driver does."""
        self.slices.setdefault(driver, set()).update(names)

    def delete(self, driver: DriverName | None) -> None:
        """Delete the slices of one driver, or of all drivers."""
        if driver is None:
            self.slices.clear()
        else:
            self.slices.pop(driver, None)


@define
class MemoryDraMetrics:
    """`DraMetrics` as a list with each operation's name, its duration in seconds, and whether it failed."""

    operations: list[tuple[str, float, bool]] = field(factory=list)

    def dra_operation(self, operation: str, seconds: float, *, failed: bool) -> None:
        """Record an operation."""
        self.operations.append((operation, seconds, failed))
