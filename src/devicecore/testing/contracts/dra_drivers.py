"""The contract of `DriverTransport`.

Law: the driver gets exactly the caller's request, and the caller gets either exactly the driver's response, or an error
that says whether the driver may have done the work.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from devicecore.domain.dra.answers import PREPARE, UNPREPARE, PrepareResult, UnprepareResult
from devicecore.domain.dra.drivers import (
    SERVICES,
    DriverConnected,
    DriverEvent,
    DriverRegistered,
    DriverRemoved,
    InstanceId,
)
from devicecore.domain.dra.errors import DraError, DriverAlreadyRegisteredError, DriverCallError
from devicecore.domain.dra.model import ClaimKey, ClaimRef, ClaimUid, DriverName, PreparedDevice
from devicecore.domain.errors import DeviceCoreError
from devicecore.ports.dra_driver import DraDriver
from devicecore.ports.drivers import DriverTransport
from devicecore.testing.contracts.expect import EVENT_TIMEOUT, Suite, expect, expect_error, expect_in

__all__ = ["DRIVER_TRANSPORT", "DriverConnection", "DriverTransportHarness", "MakeDriverTransport"]

GPU_DRIVER = DriverName("gpu.example.com")
NIC_DRIVER = DriverName("nic.example.com")
CLAIMS_ASKED = (
    ClaimRef(ClaimKey("default", "one"), ClaimUid("uid-1")),
    ClaimRef(ClaimKey("other", "two"), ClaimUid("uid-2")),
)
DEVICES_ANSWERED = (
    PreparedDevice("pool", "gpu-0", None, ("r", "s"), ("example.com/gpu=0", "example.com/gpu=all")),
    PreparedDevice("ä/b", "gpu-1", "5e9f3a52-0000-4000-8000-000000000000", None, None),
)


class DriverConnection(Protocol):
    """A driver that is registered with a transport."""

    def remove(self) -> None:
        """End the registration, as happens when the registration socket is removed."""


class DriverTransportHarness(Protocol):
    """A transport that is not started yet, and a way to register drivers with it."""

    @property
    def transport(self) -> DriverTransport:
        """The transport."""

    def register(self, driver: DraDriver, services: Sequence[str]) -> DriverConnection:
        """Register `driver` at a separate endpoint. This method returns once the transport has accepted the driver.

        Raises:
            DeviceCoreError: the transport refused the driver; the text of the error contains the reason that was sent
                to the driver.
        """


MakeDriverTransport = Callable[[], AbstractContextManager[DriverTransportHarness]]
"""Creates a transport without registered drivers."""

DRIVER_TRANSPORT: Suite[MakeDriverTransport] = Suite()
"""The checks for every transport."""


class AnsweringDriver(DraDriver):
    """A driver whose answers can be set, and that records the requests."""

    def __init__(self, name: DriverName = GPU_DRIVER) -> None:
        self.name = name
        self.asked: list[tuple[str, tuple[ClaimRef, ...]]] = []
        self.prepared: Mapping[ClaimUid, PrepareResult] = {}
        self.unprepared: Mapping[ClaimUid, UnprepareResult] = {}
        self.error: Exception | None = None

    def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, PrepareResult]:
        """Answer with `prepared`."""
        self._ask(PREPARE, claims)
        return self.prepared

    def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, UnprepareResult]:
        """Answer with `unprepared`."""
        self._ask(UNPREPARE, claims)
        return self.unprepared

    def _ask(self, method: str, claims: Sequence[ClaimRef]) -> None:
        self.asked.append((method, tuple(claims)))
        if self.error:
            raise self.error


class DriverEvents:
    """A listener that records events, and can refuse registrations."""

    def __init__(self) -> None:
        self.refusal: DeviceCoreError | None = None
        self._events: list[DriverEvent] = []
        self._changed = threading.Condition()

    def __call__(self, event: DriverEvent) -> None:
        """Record an event, or refuse a registration."""
        if self.refusal and isinstance(event, DriverRegistered):
            raise self.refusal
        with self._changed:
            self._events.append(event)
            self._changed.notify_all()

    def of(self, kind: type[DriverEvent]) -> list[InstanceId]:
        """Return the instances that events of this kind name."""
        with self._changed:
            return [event.instance for event in self._events if isinstance(event, kind)]

    def wait_for(self, kind: type[DriverEvent], count: int = 1) -> list[InstanceId]:
        """Return the instances that the first `count` events of this kind name.

        Raises AssertionError if the events do not arrive in time.
        """
        with self._changed:
            self._changed.wait_for(lambda: len(self.of(kind)) >= count, EVENT_TIMEOUT)
        expect(f"events {kind.__name__}, at least {count}", len(self.of(kind)) >= count, expected=True)
        return self.of(kind)[:count]


@contextmanager
def _started(make: MakeDriverTransport) -> Iterator[tuple[DriverTransportHarness, DriverEvents]]:
    """Start a transport with a listener, and stop the transport at the end."""
    with make() as harness:
        heard = DriverEvents()
        harness.transport.start(heard)
        try:
            yield harness, heard
        finally:
            harness.transport.stop()


@contextmanager
def _connected(
    make: MakeDriverTransport, services: Sequence[str] = SERVICES[:1]
) -> Iterator[tuple[DriverTransport, AnsweringDriver, InstanceId]]:
    """Start a transport, connect a driver, and stop the transport at the end."""
    with _started(make) as (harness, heard):
        driver = AnsweringDriver()
        harness.register(driver, services)
        (instance,) = heard.wait_for(DriverConnected)
        yield harness.transport, driver, instance


@DRIVER_TRANSPORT.check
def reports_a_driver_that_registers(make: MakeDriverTransport) -> None:
    """A driver is registered first, and then connected."""
    with _started(make) as (harness, heard):
        harness.register(AnsweringDriver(), SERVICES[:1])
        (instance,) = heard.wait_for(DriverConnected)
        expect("the instance that is connected", heard.of(DriverRegistered), [instance])
        expect("its driver and service", (instance.driver, instance.service), (GPU_DRIVER, SERVICES[0]))


@DRIVER_TRANSPORT.check
def uses_the_first_service_of_the_driver_that_is_known(make: MakeDriverTransport) -> None:
    """The first known service in the driver's list is used."""
    with _started(make) as (harness, heard):
        harness.register(AnsweringDriver(), ["v9.DRAPlugin", SERVICES[1], SERVICES[0]])
        (instance,) = heard.wait_for(DriverRegistered)
        expect("the service", instance.service, SERVICES[1])


@DRIVER_TRANSPORT.check
def refuses_a_driver_without_a_known_service(make: MakeDriverTransport) -> None:
    """A driver that lists no known service is refused, and causes no event."""
    with _started(make) as (harness, heard):
        for services in ([], ["v1", "v1.NodeService"]):
            refused = expect_error(
                f"a driver that lists {services}",
                DraError,
                lambda: harness.register(AnsweringDriver(), services),  # noqa: B023 - called at once
            )
            expect_in("the reason", str(refused), "invalid supported gRPC versions")
        expect("drivers that are registered", heard.of(DriverRegistered), [])


@DRIVER_TRANSPORT.check
def refuses_a_driver_that_the_listener_refuses(make: MakeDriverTransport) -> None:
    """If the listener raises an error on `DriverRegistered`, the driver gets the error's text."""
    with _started(make) as (harness, heard):
        heard.refusal = DriverAlreadyRegisteredError(GPU_DRIVER, "/run/dra.sock")
        refused = expect_error(
            "a driver that the listener refuses",
            DeviceCoreError,
            lambda: harness.register(AnsweringDriver(), SERVICES[:1]),
        )
        expect_in("the reason", str(refused), str(heard.refusal))
        expect("drivers that are connected", heard.of(DriverConnected), [])


@DRIVER_TRANSPORT.check
def asks_and_answers_word_for_word(make: MakeDriverTransport) -> None:
    """The driver is called for the claims in order; every field of its response is returned."""
    with _connected(make) as (transport, driver, instance):
        driver.prepared = {
            CLAIMS_ASKED[0].uid: PrepareResult(DEVICES_ANSWERED),
            CLAIMS_ASKED[1].uid: PrepareResult((), "über\nbusy"),
            ClaimUid("never asked for"): PrepareResult(),
        }
        driver.unprepared = {CLAIMS_ASKED[0].uid: UnprepareResult(), CLAIMS_ASKED[1].uid: UnprepareResult("busy")}
        expect("prepare", dict(transport.prepare(instance, CLAIMS_ASKED)), dict(driver.prepared))
        expect("unprepare", dict(transport.unprepare(instance, CLAIMS_ASKED)), dict(driver.unprepared))
        expect("what the driver was asked", driver.asked, [(PREPARE, CLAIMS_ASKED), (UNPREPARE, CLAIMS_ASKED)])


@DRIVER_TRANSPORT.check
def has_no_share_ids_with_v1beta1(make: MakeDriverTransport) -> None:
    """Over `v1beta1`, devices keep their names, but have no share ids."""
    with _connected(make, SERVICES[1:]) as (transport, driver, instance):
        driver.prepared = {CLAIMS_ASKED[0].uid: PrepareResult(DEVICES_ANSWERED)}
        devices = transport.prepare(instance, CLAIMS_ASKED[:1])[CLAIMS_ASKED[0].uid].devices
        expect("share ids", [device.share_id for device in devices], [None, None])
        expect("names", [device.name for device in devices], [device.name for device in DEVICES_ANSWERED])


@DRIVER_TRANSPORT.check
def says_that_a_driver_failed(make: MakeDriverTransport) -> None:
    """An exception in a driver becomes a `DriverCallError` with the same text, which counts as an answer."""
    with _connected(make) as (transport, driver, instance):
        driver.error = ValueError("out of order")
        for method, call in ((PREPARE, transport.prepare), (UNPREPARE, transport.unprepare)):
            failed = expect_error(method, DriverCallError, lambda: call(instance, CLAIMS_ASKED))  # noqa: B023 - called at once
            expect("method", failed.method, method)
            expect_in("the message", failed.message, "out of order")
            expect("unanswered", failed.unanswered, expected=False)


@DRIVER_TRANSPORT.check
def keeps_the_code_of_a_drivers_error(make: MakeDriverTransport) -> None:
    """If a driver raises a `DriverCallError`, the caller gets that error's code and text."""
    with _connected(make) as (transport, driver, instance):
        driver.error = DriverCallError(PREPARE, "ResourceExhausted", "all in use")
        failed = expect_error(PREPARE, DriverCallError, lambda: transport.prepare(instance, CLAIMS_ASKED))
        expect("code and message", (failed.code, failed.message), ("ResourceExhausted", "all in use"))


@DRIVER_TRANSPORT.check
def tells_instances_apart(make: MakeDriverTransport) -> None:
    """Two instances of a driver are distinct: the later one has the larger generation, and each gets its own calls."""
    with _started(make) as (harness, heard):
        drivers = [AnsweringDriver(), AnsweringDriver()]
        for driver in drivers:
            driver.unprepared = {CLAIMS_ASKED[0].uid: UnprepareResult()}
            harness.register(driver, SERVICES[:1])
        old, new = heard.wait_for(DriverConnected, 2)
        expect("whether the later instance has the larger generation", new.generation > old.generation, expected=True)
        harness.transport.unprepare(new, CLAIMS_ASKED[:1])
        expect("the numbers of calls to the two drivers", [len(driver.asked) for driver in drivers], [0, 1])


@DRIVER_TRANSPORT.check
def does_not_call_an_instance_that_is_gone(make: MakeDriverTransport) -> None:
    """When a registration ends, `DriverRemoved` is delivered, and calls to the instance fail from then on."""
    with _started(make) as (harness, heard):
        driver = AnsweringDriver()
        connection = harness.register(driver, SERVICES[:1])
        (instance,) = heard.wait_for(DriverConnected)
        connection.remove()
        expect("the instance that is removed", heard.wait_for(DriverRemoved), [instance])
        expect_error("a call", DriverCallError, lambda: harness.transport.prepare(instance, CLAIMS_ASKED))
        expect("what the driver was asked", driver.asked, [])


@DRIVER_TRANSPORT.check
def stops_once(make: MakeDriverTransport) -> None:
    """Stopping twice, or before the start, is not an error, and no event comes after a stop."""
    with make() as harness:
        heard = DriverEvents()
        harness.transport.stop()
        harness.transport.start(heard)
        harness.register(AnsweringDriver(), SERVICES[:1])
        heard.wait_for(DriverConnected)
        harness.transport.stop()
        harness.transport.stop()
        expect("instances that are removed", heard.of(DriverRemoved), [])
