"""A device plugin in a process of its own, as bare as can be: what it says is serialized before anybody asks.

It obeys lines on stdin: `list N` sends the list with N devices and answers with the moment (monotonic nanoseconds).

It speaks HTTP/2 by hand (RFC 9113), as much of it as this takes. gRPC's server for Python needs 0.4 ms for a call, four
times what a kubelet and its plugin need together, and is not what is to be measured.
"""

import os
import select
import socket
import sys
import threading
import time
from collections.abc import Iterator

import grpc
from workload import ANSWER, RESOURCE, devices

from devicecore.wire import deviceplugin
from devicecore.wire.conversion import from_devices, from_response

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 4, 6, 8
END_STREAM = ACK = 1
END_HEADERS = 4
HEADER_TABLE_SIZE, INITIAL_WINDOW_SIZE = 1, 4
WINDOW = 65535  # bytes, until the other side says otherwise
MOST = 2**31 - 1  # bytes in a window
LONGEST = 16384  # bytes in a frame, likewise


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def header(name: bytes, value: bytes) -> bytes:
    """One header, to be remembered by nobody."""
    return bytes((0, len(name))) + name + bytes((len(value),)) + value


BEGIN = b"\x88" + header(b"content-type", b"application/grpc")  # :status 200
END = header(b"grpc-status", b"0")


def message(data: bytes) -> bytes:
    """A message of gRPC, not compressed."""
    return b"\0" + len(data).to_bytes(4, "big") + data


class Connection:
    """The one who calls."""

    def __init__(self, connected: socket.socket, answers: dict[bytes, bytes]) -> None:
        self.socket = connected
        self.answers = answers
        self.listening = 0  # the stream of ListAndWatch
        self._buffer = bytearray()
        self._called: dict[int, bytes] = {}
        self._window = WINDOW
        self._first_window = WINDOW
        self._windows: dict[int, int] = {}
        # Who calls is to remember no header, so that the method can be read where it stands, and may call for ever.
        connected.sendall(
            frame(SETTINGS, 0, 0, HEADER_TABLE_SIZE.to_bytes(2, "big") + bytes(4))
            + frame(WINDOW_UPDATE, 0, 0, (MOST - WINDOW).to_bytes(4, "big"))
        )

    def read(self) -> bool:
        """Read and answer what has arrived; whether there may be more."""
        received = self.socket.recv(1 << 16)
        self._buffer += received
        self._buffer = self._buffer.removeprefix(PREFACE)
        for kind, flags, stream, payload in self._frames():
            if kind == HEADERS:
                self._called[stream] = payload
            if kind in {HEADERS, DATA} and flags & END_STREAM:
                self._answer(stream, self._called.pop(stream))
            elif kind in {SETTINGS, PING} and not flags & ACK:
                self.socket.sendall(frame(kind, ACK, 0, payload if kind == PING else b""))
            if kind == SETTINGS:
                self._set(payload)
            elif kind == WINDOW_UPDATE and stream:
                self._windows[stream] = self._windows.get(stream, self._first_window) + int.from_bytes(payload, "big")
            elif kind == WINDOW_UPDATE:
                self._window += int.from_bytes(payload, "big")
        return bool(received)

    def tell(self, data: bytes) -> None:
        """Send the next list, as fast as it is taken."""
        rest = memoryview(data)
        while rest:
            window = min(self._window, self._windows.setdefault(self.listening, self._first_window), len(rest))
            if window <= 0:
                if not self.read():
                    return
                continue
            pieces = [rest[at : min(at + LONGEST, window)] for at in range(0, window, LONGEST)]
            self.socket.sendall(b"".join([frame(DATA, 0, self.listening, bytes(piece)) for piece in pieces]))
            self._window -= window
            self._windows[self.listening] -= window
            rest = rest[window:]

    def _frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        buffer = self._buffer
        while len(buffer) >= 9 and len(buffer) >= (end := 9 + int.from_bytes(buffer[:3], "big")):
            yield buffer[3], buffer[4], int.from_bytes(buffer[5:9], "big"), bytes(buffer[9:end])
            del buffer[:end]

    def _answer(self, stream: int, headers: bytes) -> None:
        if b"/ListAndWatch" in headers:
            self.listening = stream
            self.socket.sendall(frame(HEADERS, END_HEADERS, stream, BEGIN))
            return
        answer = next(answer for method, answer in self.answers.items() if method in headers)
        self._window -= len(answer)
        self.socket.sendall(
            frame(HEADERS, END_HEADERS, stream, BEGIN)
            + frame(DATA, 0, stream, answer)
            + frame(HEADERS, END_HEADERS | END_STREAM, stream, END)
        )

    def _set(self, payload: bytes) -> None:
        for at in range(0, len(payload), 6):
            if int.from_bytes(payload[at : at + 2], "big") == INITIAL_WINDOW_SIZE:
                value = int.from_bytes(payload[at + 2 : at + 6], "big")
                self._windows = {stream: left + value - self._first_window for stream, left in self._windows.items()}
                self._first_window = value


def register(directory: str) -> None:
    """Tell the kubelet."""
    options = [("grpc.default_authority", "localhost")]
    request = deviceplugin.RegisterRequest(version="v1beta1", endpoint="bench.sock", resource_name=RESOURCE)
    with grpc.insecure_channel(f"unix:{directory}/kubelet.sock", options=options) as channel:
        channel.unary_unary(
            "/v1beta1.Registration/Register",
            deviceplugin.RegisterRequest.SerializeToString,
            deviceplugin.Empty.FromString,
        )(request)


def main(directory: str, count: int) -> None:
    """Serve, register, and obey until stdin ends."""
    lists = {n: message(from_devices(devices(n)).SerializeToString()) for n in (count, count - 1)}
    allocated = deviceplugin.AllocateResponse(container_responses=[from_response(ANSWER)]).SerializeToString()
    answers = {b"/GetDevicePluginOptions": message(b""), b"/Allocate": message(allocated)}
    server = socket.socket(socket.AF_UNIX)
    server.bind(f"{directory}/bench.sock")
    server.listen()
    threading.Thread(target=register, args=[directory]).start()
    kubelet = Connection(server.accept()[0], answers)
    while not kubelet.listening:
        kubelet.read()
    others: dict[socket.socket, Connection] = {}  # of who calls without a kubelet
    while True:
        ready, _, _ = select.select([kubelet.socket, sys.stdin, server, *others], [], [])
        if kubelet.socket in ready and not kubelet.read():
            break
        if server in ready:
            connected = server.accept()[0]
            others[connected] = Connection(connected, answers)
        for connected in [one for one in ready if one in others]:
            if not others[connected].read():
                del others[connected]
        if sys.stdin in ready:
            order = sys.stdin.readline().split()
            if not order:
                break
            moment = time.monotonic_ns()
            kubelet.tell(lists[int(order[1])])
            print(moment, flush=True)
    os._exit(0)  # the benchmark has all it needs and waits for this exit


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
