"""The methods of a driver, answered by a `DraDriver`.

Law: the driver is called in worker threads, and an exception that it raises is its answer to the kubelet.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeVar

import grpc
import grpc.aio

from devicecore.adapters.grpc_unix import rpc
from devicecore.adapters.grpc_unix.dra import calls
from devicecore.adapters.grpc_unix.limits import MAX_ERROR
from devicecore.adapters.grpc_unix.loop import LoopThread
from devicecore.domain.dra.drivers import SERVICES
from devicecore.domain.dra.errors import DriverCallError
from devicecore.domain.dra.health import ReportedHealth
from devicecore.domain.errors import DeviceCoreError
from devicecore.domain.text import foreign_text
from devicecore.ports.dra_driver import DraDriver
from devicecore.wire import dra_health_v1alpha1
from devicecore.wire.dra_conversion import from_prepared, from_report, from_unprepared, to_claims

Context = grpc.aio.ServicerContext[Any, Any]
Answer = TypeVar("Answer")

logger: logging.Logger = logging.getLogger(__name__)


class DriverService:
    """The methods of one driver. Apart from `methods`, only the event loop's thread uses it.

    `services` are those that the driver lists; the known ones are served. A health report is repeated after
    `report_period` seconds.
    """

    def __init__(self, driver: DraDriver, services: Sequence[str], loop: LoopThread, report_period: float) -> None:
        self._driver = driver
        self._services = services
        self._loop = loop
        self._report_period = report_period
        self._report: tuple[ReportedHealth, ...] | None = None
        self._streams: set[asyncio.Event] = set()
        self._ending = False

    def methods(self) -> Mapping[rpc.Method[Any, Any], rpc.Behaviour]:
        """The methods, for a server."""
        methods: dict[rpc.Method[Any, Any], rpc.Behaviour] = {}
        for service in SERVICES:
            if service in self._services:
                methods[calls.PREPARE_METHODS[service]] = self._unary(service, self._prepare)
                methods[calls.UNPREPARE_METHODS[service]] = self._unary(service, self._unprepare)
        for service, method in calls.HEALTH_METHODS.items():
            if service in self._services:
                methods[method] = self._watch
        return methods

    def report(self, devices: tuple[ReportedHealth, ...]) -> None:
        """Send a health report to every kubelet that watches, and to those that begin to."""
        self._report = devices
        self._wake()

    def end(self) -> None:
        """Let every stream end."""
        self._ending = True
        self._wake()

    def _wake(self) -> None:
        for stream in self._streams:
            stream.set()

    async def _watch(
        self, _: object, context: Context
    ) -> AsyncIterator[dra_health_v1alpha1.NodeWatchResourcesResponse]:
        wake = asyncio.Event()
        self._streams.add(wake)
        # Not `finally`, which runs only when an abandoned generator is garbage-collected.
        context.add_done_callback(lambda _: self._streams.discard(wake))  # type: ignore[arg-type]  # the stub wants a class for a callable
        while not self._ending:
            wake.clear()
            if self._report is not None:
                yield from_report(self._report, int(time.time()))
            try:
                async with asyncio.timeout(self._report_period):
                    await wake.wait()
            except TimeoutError:
                continue  # a report counts for a limited time, so it is repeated

    def _unary(self, service: str, answer: Callable[[str, Any], Answer]) -> rpc.Behaviour:
        async def behaviour(request: object, context: Context) -> Answer:
            try:
                return await self._loop.in_worker(answer, service, request)
            except DriverCallError as error:
                code = calls.CODES.get(error.code, grpc.StatusCode.UNKNOWN)
                await context.abort(code, foreign_text(error.message, MAX_ERROR))
            except (Exception, SystemExit) as error:  # an exit would end the loop, and everything else on it
                text = foreign_text(str(error) or type(error).__name__, MAX_ERROR)
                unexpected = not isinstance(error, DeviceCoreError)
                logger.warning("%s failed: %s", self._driver.name, text, exc_info=unexpected)
                await context.abort(grpc.StatusCode.UNKNOWN, text)

        return behaviour

    def _prepare(self, service: str, request: Any) -> object:  # noqa: ANN401 - a message of the service's version
        answer = from_prepared(self._driver.prepare(to_claims(request.claims)))
        return calls.PREPARE_METHODS[service].response.FromString(answer.SerializeToString())

    def _unprepare(self, service: str, request: Any) -> object:  # noqa: ANN401 - a message of the service's version
        answer = from_unprepared(self._driver.unprepare(to_claims(request.claims)))
        return calls.UNPREPARE_METHODS[service].response.FromString(answer.SerializeToString())
