"""What the test kubelets for device plugins and DRA drivers have in common: a test starts, stops and closes them.

Law: after `close`, no thread, process or file of the kubelet is left.
"""

import itertools
import logging
import os
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Generic, Protocol, Self, TypeVar

from devicecore.adapters.memory import MemoryStore
from devicecore.domain.checks import check_seconds, expected
from devicecore.ports.context import Runs
from devicecore.ports.store import CheckpointStore
from devicecore_tools.testing.process import PluginProcess
from devicecore_tools.testing.recording import Recording
from devicecore_tools.testing.temporary import short_directory
from devicecore_tools.testing.waiting import Waiting


class _Manager(Protocol):
    def start(self) -> object: ...

    def stop(self) -> object: ...

    def tick(self) -> object: ...


class _Call(Protocol):
    @property
    def method(self) -> str: ...


Manager = TypeVar("Manager", bound=_Manager)
Event = TypeVar("Event")
Call = TypeVar("Call", bound=_Call)
Connection = TypeVar("Connection")


class ControlledKubelet(Waiting, Runs, Generic[Manager, Event, Call]):
    """A kubelet that a test starts, stops and moves forward in time. Each restart creates a new `manager`."""

    manager: Manager
    _methods: ClassVar[Sequence[str]]

    def __init__(self, timeout: float) -> None:
        super().__init__(timeout)
        self.record: Recording[Event, Call] = Recording()
        self._passed = 0.0
        self._numbers = itertools.count(1)
        self._cleanup = ExitStack()  # ends plugins and drivers before the kubelet stops
        self._files = ExitStack()  # removes the directory after the kubelet has stopped
        self._running = False

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the kubelet. A second call does nothing.

        Raises:
            SetUpError: the socket directory cannot be used.
        """
        logging.getLogger("devicecore").addHandler(self._log)
        self.manager.start()
        self._running = True

    def stop(self) -> None:
        """Stop the kubelet: close its sockets and connections. Plugins and drivers keep running."""
        self._running = False
        self.manager.stop()
        logging.getLogger("devicecore").removeHandler(self._log)

    def close(self) -> None:
        """Stop the kubelet and the plugins or drivers that it started, and remove its files.

        A second call does nothing.
        """
        with ExitStack() as last_to_first:
            last_to_first.push(self._files.pop_all())
            last_to_first.callback(self.stop)
            last_to_first.push(self._cleanup.pop_all())

    def advance(self, seconds: float) -> None:
        """Move the kubelet's clock forward, and do what is then due.

        Raises TypeError or ValueError unless `seconds` is a number of at least 0.
        """
        check_seconds("advance", seconds)
        self._passed += seconds
        self.manager.tick()
        self._wake()

    @property
    def events(self) -> tuple[Event, ...]:
        """Every event of a plugin or driver since the kubelet was created."""
        return tuple(self.record.events)

    @property
    def calls(self) -> tuple[Call, ...]:
        """Every recorded call to a plugin or driver since the kubelet was created."""
        return tuple(self.record.calls)

    def calls_of(self, method: str) -> tuple[Call, ...]:
        """Return the calls of one method, such as `Allocate` or `NodePrepareResources`.

        Raises ValueError if calls of such a method are never recorded.
        """
        if method not in self._methods:
            raise ValueError(expected("calls_of: method", " or ".join(map(repr, self._methods)), method))
        return tuple(call for call in self.calls if call.method == method)

    def _now(self) -> float:
        return time.monotonic() + self._passed

    def _directory(self, given: str | os.PathLike[str] | None) -> Path:
        """Return the caller's directory, or create one with a short path, which `close` removes."""
        return Path(self._files.enter_context(short_directory()) if given is None else given)

    def _watch(self, process: PluginProcess) -> PluginProcess:
        """Start a process. If the process exits before `close` stops it, waits raise an error."""
        self._cleanup.enter_context(process)
        self._processes.append(process)
        return process

    @property
    @abstractmethod
    def _store(self) -> CheckpointStore: ...

    @abstractmethod
    def _forget(self) -> None: ...

    @abstractmethod
    def _where(self) -> str: ...


class InMemory(Generic[Connection]):
    """A plugin or driver in this process for a test kubelet. `connect` registers it, and `end` disconnects it."""

    def __init__(self, name: str, connect: Callable[[], Connection], end: Callable[[Connection], object]) -> None:
        self.name = name
        self.connection: Connection | None = None
        self._connect = connect
        self._end = end
        self._stopped = False

    def register(self) -> None:
        """Register the plugin or driver, and disconnect the earlier connection if there is one."""
        if not self._stopped:
            self._disconnect()
            self.connection = self._connect()

    def stop(self) -> None:
        """Disconnect the plugin or driver for good."""
        self._stopped = True
        self._disconnect()

    def _disconnect(self) -> None:
        if self.connection is not None:
            self._end(self.connection)


class InMemoryKubelet(ControlledKubelet[Manager, Event, Call], Generic[Manager, Event, Call, Connection]):
    """A kubelet whose plugins or drivers are objects in this process, without sockets, threads or files."""

    def start(self) -> None:
        """Start the kubelet, and make its plugins or drivers register."""
        super().start()
        for served in self._served:
            served.register()

    def _serve(self, served: InMemory[Connection]) -> InMemory[Connection]:
        """Register a plugin or driver now, and again at each start."""
        self._served.append(served)
        if self._running:
            served.register()
        return served

    @cached_property
    def _served(self) -> list[InMemory[Connection]]:
        return []

    @cached_property
    def _store(self) -> MemoryStore:
        return MemoryStore()

    def _forget(self) -> None:
        self._store.blob = None

    def _where(self) -> str:
        return "the kubelet runs in memory"
