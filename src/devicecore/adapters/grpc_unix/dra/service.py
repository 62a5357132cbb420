"""The methods of a driver, answered by a `DraDriver`.

Law: every version of the API that the driver lists is answered by the same two methods of the driver.
"""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc
from google.protobuf.message import Message

from devicecore.adapters.grpc_unix import rpc
from devicecore.adapters.grpc_unix.dra import calls
from devicecore.adapters.grpc_unix.loop import LoopThread
from devicecore.adapters.grpc_unix.service import Context, Methods, Service
from devicecore.domain.dra.drivers import SERVICES
from devicecore.domain.dra.errors import DriverCallError
from devicecore.domain.dra.health import ReportedHealth
from devicecore.ports.dra_driver import DraDriver, prepared, unprepared
from devicecore.wire import dra_health_v1alpha1
from devicecore.wire.dra_conversion import from_prepared, from_report, from_unprepared, to_claims


class DriverService(Service):
    """The methods of one driver.

    `services` are those that the driver lists; the known ones are served. A health report is repeated after
    `report_period` seconds.
    """

    def __init__(self, driver: DraDriver, services: Sequence[str], loop: LoopThread, report_period: float) -> None:
        super().__init__(driver.name, loop)
        self._driver = driver
        self._services = services
        self._report_period = report_period
        self._report: tuple[ReportedHealth, ...] | None = None

    def methods(self) -> Methods:
        """Return the methods, for a server."""
        methods: dict[rpc.Method[Any, Any], rpc.Behaviour] = {}
        for service in self._services:
            if service in SERVICES:
                prepare, unprepare = calls.PREPARE_METHODS[service], calls.UNPREPARE_METHODS[service]
                methods[prepare] = self._unary(prepare, self._prepare)
                methods[unprepare] = self._unary(unprepare, self._unprepare)
            elif service in calls.HEALTH_METHODS:
                methods[calls.HEALTH_METHODS[service]] = self._watch
        return methods

    def report(self, devices: tuple[ReportedHealth, ...]) -> None:
        """Send a health report to every kubelet that watches, and to those that begin to."""
        self._report = devices
        self.changed()

    def status(self, error: BaseException) -> tuple[grpc.StatusCode, str]:
        """Return the code and the text of a `DriverCallError` as they are."""
        if isinstance(error, DriverCallError):
            return calls.CODES.get(error.code, grpc.StatusCode.UNKNOWN), error.message
        return super().status(error)

    async def _watch(
        self, _: object, context: Context
    ) -> AsyncIterator[dra_health_v1alpha1.NodeWatchResourcesResponse]:
        # A report counts for a limited time, so it is repeated.
        async for response in self.stream(context, self._last_report, self._report_period):
            yield response

    async def _last_report(self) -> dra_health_v1alpha1.NodeWatchResourcesResponse | None:
        return None if self._report is None else from_report(self._report, int(time.time()))

    def _unary(self, method: calls.Method, ask: Callable[[Any], Message]) -> rpc.Behaviour:
        # The messages of all versions are alike.
        return self.unary(lambda request: method.response.FromString(ask(request).SerializeToString()))

    def _prepare(self, request: Any) -> Message:  # noqa: ANN401 - a message of the service's version
        return from_prepared(prepared(self._driver, to_claims(request.claims)))

    def _unprepare(self, request: Any) -> Message:  # noqa: ANN401 - a message of the service's version
        return from_unprepared(unprepared(self._driver, to_claims(request.claims)))
