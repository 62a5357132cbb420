"""What a driver reports on its health stream, and when.

Law: a watch that is closed leaves no call and no thread behind.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, Self

import grpc
from attrs import define, field, frozen

from devicecore.adapters.grpc_unix.dra import calls
from devicecore.domain.text import foreign_text
from devicecore_tools.conformance.dra.kubelet import DriverInstance

MAX_REPORTS = 10_000
"""How many reports are kept per watch."""


@frozen
class HealthReport:
    """A message from the stream.

    `at` is a `time.monotonic()` timestamp; `devices` are the message's entries for devices.
    """

    at: float
    devices: tuple[Any, ...]

    @property
    def keys(self) -> frozenset[tuple[str, str]]:
        """Each device's pool and name."""
        return frozenset((one.device.pool_name, one.device.device_name) for one in self.devices)


@define(eq=False)
class HealthWatch:
    """An open NodeWatchResources call, as a context manager.

    Attributes:
        opened_at: when the call was made, as a `time.monotonic()` timestamp.
        reports: the received reports.
        code: the status with which the driver ended the call, or an empty string while the call is open.
        details: the message of that status.
    """

    instance: DriverInstance
    opened_at: float = field(factory=time.monotonic)
    reports: list[HealthReport] = field(factory=list)
    code: str = ""
    details: str = ""
    _call: Any = None
    _thread: threading.Thread | None = None
    _changed: threading.Condition = field(factory=threading.Condition)
    _is_closing: bool = False

    def __enter__(self) -> Self:
        info = self.instance.info
        method = calls.health_method(info.supported_versions if info is not None else ())
        self._call = self.instance.connection.stream(method, method.request())
        self._thread = threading.Thread(target=self._read, name="conformance-health")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closing = True
        self._call.cancel()
        if self._thread is not None:
            self._thread.join()

    @property
    def is_served(self) -> bool:
        """Whether the driver has the health service, as far as known."""
        return self.code != "UNIMPLEMENTED"

    def wait(self, condition: Callable[[], object], timeout: float) -> bool:
        """Wait until the condition is met, the call has ended, or time is up. Return whether the condition is met."""
        with self._changed:
            self._changed.wait_for(lambda: condition() or self.code, timeout)
            return bool(condition())

    def _read(self) -> None:
        try:
            for message in self._call:
                with self._changed:
                    if len(self.reports) < MAX_REPORTS:
                        self.reports.append(HealthReport(time.monotonic(), tuple(message.devices)))
                    self._changed.notify_all()
            self._end("OK", "")
        except grpc.RpcError as error:
            self._end(error.code().name, foreign_text(error.details() or ""))

    def _end(self, code: str, details: str) -> None:
        with self._changed:
            if not self._is_closing:
                self.code, self.details = code, details
            self._changed.notify_all()
