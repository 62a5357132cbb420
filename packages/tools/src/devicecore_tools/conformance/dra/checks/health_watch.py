"""What a driver reports on its health stream, and when.

Law: a watch that is closed leaves no call and no thread behind.
"""

import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

import grpc
from attrs import define, field, frozen

from devicecore.adapters.grpc_unix.dra import calls
from devicecore.domain.text import foreign_text
from devicecore_tools.conformance.dra.kubelet import DriverInstance

_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # RFC 9113, 3.4
_DATA, _HEADERS, _SETTINGS, _END_STREAM, _END_HEADERS = 0, 1, 4, 1, 4  # RFC 9113, 6
_LARGEST_FRAME = 16 * 1024  # bytes

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


def cut_off(instance: DriverInstance, timeout: float) -> None:
    """Open a NodeWatchResources call, and close the connection without canceling the call, as a killed kubelet does.

    Before that, wait at most `timeout` seconds for a report or for the end of the call. gRPC's client would cancel the
    call first, so this function writes HTTP/2 itself.
    """
    method = calls.health_method(instance.info.supported_versions if instance.info is not None else ())
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method.path,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    block = b"".join(b"\0" + _literal(name) + _literal(value) for name, value in headers.items())  # RFC 7541, 6.2.2
    request = _frame(_HEADERS, _END_HEADERS, 1, block) + _frame(_DATA, _END_STREAM, 1, bytes(5))  # an empty message
    with suppress(OSError), socket.socket(socket.AF_UNIX) as client:  # the driver may be slow, or may close it first
        client.settimeout(timeout)
        client.connect(instance.endpoint)
        client.sendall(_HTTP2 + _frame(_SETTINGS, 0, 0, b"") + request)
        with client.makefile("rb") as answer:
            while head := answer.read(9):
                length, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
                answer.read(min(length, _LARGEST_FRAME))
                if kind == _DATA or (kind == _HEADERS and flags & _END_STREAM):
                    return


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def _literal(text: str) -> bytes:
    """Return a string of fewer than 127 bytes as HPACK writes it without Huffman coding."""
    return bytes([len(text)]) + text.encode()


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
