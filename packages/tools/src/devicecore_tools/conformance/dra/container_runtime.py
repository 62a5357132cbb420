"""A stand-in for the container runtime, because many drivers are also runtime plugins and exit if there is no runtime.

The stand-in speaks the Node Resource Interface (NRI): ttRPC over a connection that multiplexes two connections. A
driver finds its end of the connection through the environment variable NRI_PLUGIN_SOCKET, which the Go library for NRI
plugins reads.

Law: the runtime has no pods and no containers, so its only calls to a plugin are Configure and Synchronize.
"""

import socket
import struct
import threading
from contextlib import closing, suppress
from typing import Self

from google.protobuf.message import DecodeError

from devicecore_tools.testing.wire import nri, ttrpc

VARIABLE = "NRI_PLUGIN_SOCKET"
"""The environment variable that contains the number of the connection's file descriptor."""

_MUX = struct.Struct(">II")  # the number of the connection, and the length of what follows
_HEADER = struct.Struct(">IIBB")  # the header of a ttRPC message: length of the data, call, type, flags
_REQUEST, _RESPONSE = 1, 2
_CONNECTIONS = (1, 2)  # the plugin serves the first connection, and the runtime serves the second
_CONFIGURE, _SYNCHRONIZE = 1, 3  # the runtime's calls have odd numbers
_MAX_MESSAGE = 4 << 20
_REGISTRATION_TIMEOUT, _REQUEST_TIMEOUT = 5000, 2000  # milliseconds, as in containerd


class RuntimeConnection:
    """A connection between the runtime and one process of a driver.

    Attributes:
        peer: the driver's end, which the driver's process inherits; `serve` closes it in this process.
    """

    def __init__(self) -> None:
        self._socket, peer = socket.socketpair()
        self.peer: socket.socket = peer
        self._thread = threading.Thread(target=self._serve, name="container-runtime", daemon=True)
        self._service = ""

    def serve(self) -> Self:
        """Answer the driver in a thread until it closes its end. Call this after the process has started."""
        self.peer.close()
        self._thread.start()
        return self

    def close(self) -> None:
        """Close the connection."""
        self.peer.close()
        with suppress(OSError):  # the driver has closed the connection
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        received = {connection: bytearray() for connection in _CONNECTIONS}
        with suppress(OSError, EOFError, DecodeError), closing(self._socket.makefile("rb")) as file:
            while True:
                connection, size = _MUX.unpack(_exactly(file.read(_MUX.size), _MUX.size))
                if connection not in _CONNECTIONS or size > _MAX_MESSAGE + _HEADER.size:
                    break
                received[connection] += _exactly(file.read(size), size)
                self._take_messages(connection, received[connection])
        with suppress(OSError):  # the driver has closed the connection
            self._socket.shutdown(socket.SHUT_RDWR)

    def _take_messages(self, connection: int, received: bytearray) -> None:
        while len(received) >= _HEADER.size:
            size, call, kind, _ = _HEADER.unpack_from(received)
            end = _HEADER.size + size
            if size > _MAX_MESSAGE:
                raise EOFError  # otherwise, the driver could keep sending with nobody reading
            if len(received) < end:
                return
            body = bytes(received[_HEADER.size : end])
            del received[:end]
            if kind == _REQUEST:
                self._answer(connection, call, ttrpc.Request.FromString(body))
            elif kind == _RESPONSE and call == _CONFIGURE:
                self._call(connection, _SYNCHRONIZE, "Synchronize", nri.SynchronizeRequest().SerializeToString())

    def _answer(self, connection: int, call: int, request: ttrpc.Request) -> None:
        self._send(connection, call, _RESPONSE, ttrpc.Response().SerializeToString())
        if request.method == "RegisterPlugin":
            self._service = f"{request.service.rpartition('.')[0]}.Plugin"
            body = nri.ConfigureRequest(
                runtime_name="devicecore",
                runtime_version="v1",
                registration_timeout=_REGISTRATION_TIMEOUT,
                request_timeout=_REQUEST_TIMEOUT,
            )
            self._call(sum(_CONNECTIONS) - connection, _CONFIGURE, "Configure", body.SerializeToString())

    def _call(self, connection: int, call: int, method: str, payload: bytes) -> None:
        timeout = _REQUEST_TIMEOUT * 1_000_000
        request = ttrpc.Request(service=self._service, method=method, payload=payload, timeout_nano=timeout)
        self._send(connection, call, _REQUEST, request.SerializeToString())

    def _send(self, connection: int, call: int, kind: int, body: bytes) -> None:
        message = _HEADER.pack(len(body), call, kind, 0) + body
        self._socket.sendall(_MUX.pack(connection, len(message)) + message)


def _exactly(data: bytes, size: int) -> bytes:
    """Return the data, or raise EOFError if it is shorter than `size` because the connection was closed."""
    if len(data) < size:
        raise EOFError
    return data
