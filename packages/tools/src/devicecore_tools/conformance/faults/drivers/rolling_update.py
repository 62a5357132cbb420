"""Drivers with concurrent instances that have one fault in how the instances work together.

Law: each driver fails the checks that it names, and no others except those in `breaks_too`.
"""

import fcntl
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from devicecore_tools.conformance.faults.good_driver import GoodDriver, Json, fails


class FileLock:
    """A lock shared by threads and processes. `on_entry` is called once the lock is held."""

    def __init__(self, path: Path, on_entry: Callable[[], None]) -> None:
        self.path = path
        self.on_entry = on_entry
        self.lock = threading.RLock()
        self.depth = 0
        self.file: Any = None

    def __enter__(self) -> None:
        self.lock.acquire()
        self.depth += 1
        if self.depth == 1:
            self.file = self.path.open("w")
            self.acquire()
            self.on_entry()

    def acquire(self) -> None:
        fcntl.flock(self.file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        self.depth -= 1
        if not self.depth:
            self.file.close()
        self.lock.release()


class RollingDriver(GoodDriver):
    """A good driver whose instances have their own sockets and share their state in a locked file."""

    environment: Json = {"POD_UID": "{pod_uid}"}

    def __init__(self) -> None:
        super().__init__()
        self.pod = os.environ["POD_UID"]
        self.registration = self.registration.with_name(f"{self.name}-{self.pod}-reg.sock")
        self.service = self.directory / f"dra-{self.pod}.sock"

    def run(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.lock = self.file_lock()  # type: ignore[assignment]  # it is used in the same way
        super().run()

    def file_lock(self) -> FileLock:
        return FileLock(self.directory / "lock", self.load)

    def load(self) -> None:
        self.claims = {}
        super().load()


@fails("runs-beside-a-newer-instance")
class RefusesASecond(RollingDriver):
    settings: Json = {"returning": 10.0}

    def serve(self) -> None:
        others = [path for path in self.registration.parent.glob("*.sock") if path != self.registration]
        if others:
            print(f"{others[0].name} exists, so another instance runs", flush=True)
            sys.exit(1)
        super().serve()


@fails("shares-its-claims-between-instances")
class OwnMemory(RollingDriver):
    breaks_too = {"ends-during-a-call": "A claim that only the other instance released stays in the file forever."}

    def file_lock(self) -> FileLock:
        return FileLock(self.directory / "lock", lambda: None)


class BusyLock(FileLock):
    """A lock that fails instead of waiting."""

    def acquire(self) -> None:
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.depth -= 1
            self.file.close()
            self.lock.release()
            raise
        time.sleep(0.02)


@fails("serializes-the-calls-of-two-instances")
class DoesNotWait(RollingDriver):
    def file_lock(self) -> FileLock:
        return BusyLock(self.directory / "lock", self.load)


@fails("leaves-a-newer-instance-alone-when-it-ends")
class RemovesAllSockets(RollingDriver):
    def leave(self) -> None:
        super().leave()
        for path in self.registration.parent.glob(f"{self.name}-*.sock"):
            path.unlink()


@fails("survives-the-crash-of-a-newer-instance")
class FollowsTheNewest(RollingDriver):
    """The driver prepares and unprepares nothing if the most recently started instance is dead."""

    @property
    def newest(self) -> Path:
        return self.directory / "newest"

    def serve(self) -> None:
        self.newest.write_text(str(os.getpid()))
        super().serve()

    def leave(self) -> None:
        super().leave()
        self.newest.unlink(missing_ok=True)

    def file_lock(self) -> FileLock:
        return FileLock(self.directory / "lock", self.check_newest)

    def check_newest(self) -> None:
        self.load()
        if self.newest.exists() and not Path("/proc", self.newest.read_text(), "exe").exists():
            message = "the newest instance does not answer"
            raise OSError(message)


@fails("does-not-fight-over-slices")
class OwnGeneration(RollingDriver):
    def slices(self) -> list[Json]:
        generation = 1 + int(self.pod[0], 16)
        return [spec | {"pool": spec["pool"] | {"generation": generation}} for spec in super().slices()]


@fails("survives-a-second-start")
class RemovesSocketsFirst(GoodDriver):
    """The driver checks for another process only after removing that process's sockets."""

    settings: Json = {"returning": 10.0}

    def served(self, path: Path, services: Json) -> grpc.Server:
        path.unlink(missing_ok=True)
        if path == self.service:
            self.registration.unlink(missing_ok=True)
            self.file = (self.directory / "lock").open("w")
            try:
                fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                print("another process runs", flush=True)
                sys.exit(1)
        return super().served(path, services)


@fails("keeps-cdi-devices-in-a-rolling-update")
class CleansUpAtItsEnd(RollingDriver):
    breaks_too = {
        "keeps-cdi-devices-after-sigterm": "The driver does the same after SIGTERM.",
    }

    def leave(self) -> None:
        for path in self.cdi.glob(f"{self.name}_*.json"):
            path.unlink(missing_ok=True)
        super().leave()
