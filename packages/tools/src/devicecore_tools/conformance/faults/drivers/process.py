"""Drivers with one fault in how their process behaves.

Law: each driver fails the checks that it names, and no others except those in `breaks_too`.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import grpc

from devicecore_tools.conformance.faults.good_driver import GoodDriver, Json, Message, fails


@fails("ends-on-sigterm")
class StaysAfterSigterm(GoodDriver):
    settings: Json = {"grace": 2.0}
    breaks_too = {"ends-during-a-call": "A driver that never exits does not exit during a call either."}

    def serve(self) -> None:
        super().serve()
        signal.signal(signal.SIGTERM, lambda *_: print("not now", flush=True))


@fails("ends-during-a-call")
class WaitsForCalls(GoodDriver):
    settings: Json = {"grace": 10.0}
    calls = 0

    def prepare(self, request: Message, context: grpc.ServicerContext) -> Message:
        self.calls += 1
        try:
            return super().prepare(request, context)
        finally:
            self.calls -= 1

    def leave(self) -> None:
        while self.calls:
            time.sleep(0.05)
        super().leave()


@fails("uses-little-processor-time")
class BusyWait(GoodDriver):
    """The driver has several busy processes, because a single one gets little time on a busy machine."""

    def serve(self) -> None:
        super().serve()
        self.busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]

    def leave(self) -> None:
        for process in self.busy:
            process.kill()
        super().leave()


@fails("closes-its-files", "grows-with-no-claim")
class OpensAFileEachTime(GoodDriver):
    must_not_fail = ("prepares-many-claims",)
    files: list[Any]

    def prepare(self, request: Message, context: grpc.ServicerContext) -> Message:
        self.files = [*getattr(self, "files", []), Path("/dev/null").open()]  # noqa: SIM115 - this is the fault
        return super().prepare(request, context)


class Proxy(GoodDriver):
    """A driver whose service is behind a proxy on its socket."""

    def served(self, path: Path, services: Json) -> grpc.Server:
        if path != self.service:
            return super().served(path, services)
        server = super().served(path.with_name("inner.sock"), services)
        path.unlink(missing_ok=True)
        listener = socket.create_server(str(path), family=socket.AF_UNIX, backlog=200)
        threading.Thread(target=self.accept, args=(listener, str(path.with_name("inner.sock"))), daemon=True).start()
        return server

    def accept(self, listener: socket.socket, inner: str) -> None:
        while True:
            client, _ = listener.accept()
            threading.Thread(target=self.connect, args=(client, inner), daemon=True).start()

    def connect(self, client: socket.socket, inner: str) -> None:
        start = client.recv(4096)
        self.look_at(start)
        server = socket.socket(socket.AF_UNIX)
        server.connect(inner)
        server.sendall(start)
        threading.Thread(target=self.copy, args=(server, client), daemon=True).start()
        self.copy(client, server)

    def copy(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            target.close()

    def look_at(self, start: bytes) -> None:
        """Inspect a client's first bytes."""


@fails("survives-other-clients")
class PanicsAtGarbage(Proxy):
    def look_at(self, start: bytes) -> None:
        if start and not start.startswith(b"PRI"):
            print("panic: not HTTP/2", flush=True)
            os._exit(2)


@fails("serves-new-connections")
class FiftyConnections(Proxy):
    left = 50
    settings: Json = {"returning": 10.0}

    def look_at(self, start: bytes) -> None:
        self.left -= start.startswith(b"PRI")
        while self.left < 0:
            time.sleep(1)


@fails("goes-on-after-a-pause")
class Watchdog(GoodDriver):
    def serve(self) -> None:
        super().serve()
        threading.Thread(target=self.watch_clock, daemon=True).start()

    def watch_clock(self) -> None:
        last = time.monotonic()
        while True:
            time.sleep(0.05)
            if time.monotonic() - last > 2.5:
                print("the clock has jumped", flush=True)
                os._exit(4)
            last = time.monotonic()


@fails("stays-while-the-api-server-is-away")
class NeedsTheApiServer(GoodDriver):
    failures = 0

    def publish_and_watch(self) -> None:
        try:
            super().publish_and_watch()
        except OSError:
            self.failures += 1
            if self.failures > 3:
                os._exit(1)
            raise
        self.failures = 0


@fails("waits-between-connections-to-the-api-server")
class NoBackoff(GoodDriver):
    def publish_for_ever(self) -> None:
        while not self.over.is_set():
            try:
                self.publish_and_watch()
            except (OSError, ValueError):
                time.sleep(0.001)
