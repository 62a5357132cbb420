"""Every driver transport meets the contract, and broken ones are caught."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from attrs import evolve, field, frozen

from devicecore.adapters.grpc_unix import KubeletUnreachableError, watcher
from devicecore.adapters.grpc_unix.dra import GrpcDriverTransport, ServedDriver, serve_driver
from devicecore.adapters.memory_dra import MemoryDriverInstance, MemoryDriverTransport
from devicecore.domain.dra import drivers
from devicecore.domain.dra.answers import PrepareResult, UnprepareResult
from devicecore.domain.dra.drivers import DriverEvent, DriverRegistered, DriverRemoved, InstanceId
from devicecore.domain.dra.errors import DraError, DriverCallError
from devicecore.domain.dra.model import ClaimRef, ClaimUid
from devicecore.domain.errors import DeviceCoreError
from devicecore.ports.dra_driver import DraDriver
from devicecore.ports.drivers import DriverListener
from devicecore.testing.contracts import dra_drivers as contract
from devicecore.testing.contracts.dra_drivers import DRIVER_TRANSPORT, DriverTransportHarness, MakeDriverTransport

Check = Callable[[MakeDriverTransport], None]


@frozen
class InMemory:
    """Registers drivers that are objects in this process."""

    transport: MemoryDriverTransport = field(factory=MemoryDriverTransport)

    def register(self, driver: DraDriver, services: Sequence[str]) -> MemoryDriverInstance:
        return self.transport.register(driver, services=services)


def in_memory() -> AbstractContextManager[DriverTransportHarness]:
    return nullcontext(InMemory())


class RefusedError(DraError):
    """The kubelet has refused a driver."""


@frozen
class ServedConnection:
    """A driver behind a socket."""

    served: ServedDriver

    def remove(self) -> None:
        self.served.stop()


@frozen
class OverSockets:
    """Drivers register through the plugin watcher.

    Each driver has one socket for registration and another for services.
    """

    directory: Path
    transport: GrpcDriverTransport
    stack: ExitStack
    numbers: Iterator[int] = field(factory=count)

    def register(self, driver: DraDriver, services: Sequence[str]) -> ServedConnection:
        number = next(self.numbers)
        served = serve_driver(
            driver,
            self.directory / "registry",
            endpoint=self.directory / f"{number}.sock",
            socket_name=f"{number}-reg.sock",
            services=services,
        )
        self.stack.callback(served.stop)
        try:
            served.wait_registered(PATIENCE)
        except KubeletUnreachableError as error:
            raise RefusedError(error.cause) from error
        return ServedConnection(served)


PATIENCE = 30.0


@contextmanager
def over_sockets() -> Iterator[DriverTransportHarness]:
    with ExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).setattr(watcher, "INTERVAL", 0.02)  # tests should be fast
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="dc", dir="/tmp")))
        transport = GrpcDriverTransport(directory / "registry")
        stack.callback(transport.stop)
        yield OverSockets(directory, transport, stack)


@pytest.mark.parametrize("make", [in_memory, over_sockets])
@pytest.mark.parametrize("check", DRIVER_TRANSPORT)
def test_every_driver_transport_keeps_the_contract(check: Check, make: MakeDriverTransport) -> None:
    check(make)


class ForgetsToConnect(MemoryDriverTransport):
    def start(self, listener: DriverListener) -> None:
        super().start(lambda event: listener(event) if isinstance(event, DriverRegistered) else None)


class ChoosesTheNewest(MemoryDriverTransport):
    def register(self, driver: DraDriver, endpoint: str = "", services: Sequence[str] = ()) -> MemoryDriverInstance:
        return super().register(driver, endpoint, sorted(services))


class TakesAnyService(MemoryDriverTransport):
    def register(self, driver: DraDriver, endpoint: str = "", services: Sequence[str] = ()) -> MemoryDriverInstance:
        return super().register(driver, endpoint, drivers.SERVICES)


class IgnoresRefusals(MemoryDriverTransport):
    def start(self, listener: DriverListener) -> None:
        def ignore_refusals(event: DriverEvent) -> None:
            try:
                listener(event)
            except DeviceCoreError:
                return

        super().start(ignore_refusals)


class SortsClaims(MemoryDriverTransport):
    def prepare(self, instance: InstanceId, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, PrepareResult]:
        answer = super().prepare(instance, tuple(reversed(claims)))
        return {uid: result for uid, result in answer.items() if uid in {claim.uid for claim in claims}}


class KeepsShares(MemoryDriverTransport):
    def prepare(self, instance: InstanceId, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, PrepareResult]:
        return self._call(instance, "NodePrepareResources", lambda driver: dict(driver.prepare(claims)))


class ReportsErrorsAsUnanswered(MemoryDriverTransport):
    def prepare(self, instance: InstanceId, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, PrepareResult]:
        try:
            return super().prepare(instance, claims)
        except DriverCallError as error:
            raise evolve(error, unanswered=True) from error


class ForgetsCodes(MemoryDriverTransport):
    def prepare(self, instance: InstanceId, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, PrepareResult]:
        try:
            return super().prepare(instance, claims)
        except DriverCallError as error:
            raise evolve(error, code="Unknown") from error


class CallsTheFirst(MemoryDriverTransport):
    def unprepare(self, instance: InstanceId, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, UnprepareResult]:
        return super().unprepare(next(iter(self._instances), instance), claims)


class AnswersForLostInstances(MemoryDriverTransport):
    def prepare(self, instance: InstanceId, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, PrepareResult]:
        return {}


class ReportsRemovalsAtItsStop(MemoryDriverTransport):
    def stop(self) -> None:
        for instance in tuple(self._instances):
            self._notify(DriverRemoved(instance))
        super().stop()


BROKEN: dict[Check, type[MemoryDriverTransport]] = {
    contract.reports_a_driver_that_registers: ForgetsToConnect,
    contract.uses_the_first_service_of_the_driver_that_is_known: ChoosesTheNewest,
    contract.refuses_a_driver_without_a_known_service: TakesAnyService,
    contract.refuses_a_driver_that_the_listener_refuses: IgnoresRefusals,
    contract.asks_and_answers_word_for_word: SortsClaims,
    contract.has_no_share_ids_with_v1beta1: KeepsShares,
    contract.says_that_a_driver_failed: ReportsErrorsAsUnanswered,
    contract.keeps_the_code_of_a_drivers_error: ForgetsCodes,
    contract.tells_instances_apart: CallsTheFirst,
    contract.does_not_call_an_instance_that_is_gone: AnswersForLostInstances,
    contract.stops_once: ReportsRemovalsAtItsStop,
}


@pytest.mark.parametrize("check", DRIVER_TRANSPORT)
def test_each_check_catches_a_transport_that_breaks_its_sentence(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that cannot fail tests nothing."""
    monkeypatch.setattr(contract, "EVENT_TIMEOUT", 0.01)

    with pytest.raises(AssertionError):
        check(lambda: nullcontext(InMemory(BROKEN[check]())))
