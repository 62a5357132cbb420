"""What the kubelets for tests of device plugins and of DRA drivers have in common: a test starts, stops and ends them.

Law: after `close`, no thread, process or file of the kubelet is left.
"""

import itertools
import os
import time
from abc import abstractmethod
from contextlib import ExitStack
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar

from devicecore.ports.context import ClosesAtExit
from devicecore.ports.store import CheckpointStore
from devicecore.system.temporary import short_directory
from devicecore.testing.process import PluginProcess
from devicecore.testing.waiting import Waiting


class _Manager(Protocol):
    def start(self) -> object: ...

    def stop(self) -> object: ...

    def tick(self) -> object: ...


Manager = TypeVar("Manager", bound=_Manager)


class ControlledKubelet(Waiting, ClosesAtExit, Generic[Manager]):
    """A kubelet that a test starts, stops and moves forward in time. Each restart makes a new `manager`."""

    manager: Manager

    def __init__(self, timeout: float) -> None:
        super().__init__(timeout)
        self._passed = 0.0
        self._numbers = itertools.count(1)
        self._cleanup = ExitStack()  # ends plugins and drivers, before the kubelet stops
        self._files = ExitStack()  # removes the directory, after the kubelet has stopped
        self._running = False

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def start(self) -> None:
        """Start the kubelet. A second call does nothing.

        Raises:
            SetUpError: the directory of sockets cannot be used.
        """
        self._begin_log()
        self.manager.start()
        self._running = True

    def stop(self) -> None:
        """Stop the kubelet: close its sockets and connections. Plugins and drivers keep running."""
        self._running = False
        self.manager.stop()
        self._end_log()

    def close(self) -> None:
        """Stop the kubelet and the plugins or drivers that it has started, and remove its files.

        A second call does nothing.
        """
        with ExitStack() as last_to_first:
            last_to_first.push(self._files.pop_all())
            last_to_first.callback(self.stop)
            last_to_first.push(self._cleanup.pop_all())

    def advance(self, seconds: float) -> None:
        """Move the kubelet's clock forward, and do what is due then."""
        self._passed += seconds
        self.manager.tick()
        self._wake()

    def _now(self) -> float:
        return time.monotonic() + self._passed

    def _directory(self, given: str | os.PathLike[str] | None) -> Path:
        """Return the directory of the caller, or a new one with a short path, which `close` removes."""
        return Path(self._files.enter_context(short_directory()) if given is None else given)

    def _watch(self, process: PluginProcess) -> PluginProcess:
        """Let waits raise an error if the process ends by itself, and `close` stop it."""
        self._processes.append(process)
        self._cleanup.callback(process.stop)
        return process

    @property
    @abstractmethod
    def _store(self) -> CheckpointStore: ...

    @abstractmethod
    def _forget(self) -> None: ...

    @abstractmethod
    def _where(self) -> str: ...
