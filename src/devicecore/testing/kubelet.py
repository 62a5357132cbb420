"""A kubelet to test device plugins with: the real device manager, in your hands.

Law: every wait ends, and if it ends in vain it says what was expected and what was seen. No asyncio, no cluster, no
root.

`Kubelet` takes plugins over gRPC on a unix socket, in any language; `MemoryKubelet` takes Python objects and is faster.
Both have the same methods.
"""

import itertools
import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from attrs import frozen

from devicecore.adapters.file import CHECKPOINT_NAME, FileStore
from devicecore.adapters.memory import MemorySink, MemoryStore, MemoryTransport
from devicecore.domain import container_options
from devicecore.domain.admission import Admitted, Verdict
from devicecore.domain.container_options import ContainerOptions, DeviceSpec, Mount
from devicecore.domain.errors import DeviceCoreError
from devicecore.domain.events import DevicesReported, Event, PluginRegistered, RegistrationRequested
from devicecore.domain.model import Container, Device, Health, PluginId, Pod, PodUid, ResourceName, resource_name
from devicecore.domain.node_state import NodeState
from devicecore.domain.topology import Topology
from devicecore.manager import DeviceManager
from devicecore.ports.plugin import DevicePlugin
from devicecore.ports.store import CheckpointStore
from devicecore.ports.transport import PluginTransport
from devicecore.system.temporary import short_directory
from devicecore.testing.process import PluginProcess
from devicecore.testing.recording import PluginCall, Recording, RecordingTransport

if TYPE_CHECKING:
    from devicecore.adapters.grpc_unix import GrpcUnixTransport

T = TypeVar("T")

PATIENCE = 10.0
"""Seconds until a wait is in vain, unless it says otherwise."""

_LOOK_INTERVAL = 0.05  # seconds between two looks of a plugin that we serve: tests are in a hurry
_LOG_LINES = 5


@frozen
class WaitedInVainError(DeviceCoreError, TimeoutError):
    """What a test waited for did not come about."""

    expected: str
    timeout: float
    seen: str

    def __str__(self) -> str:
        return f"waited {self.timeout:g} seconds for {self.expected}; what was seen: {self.seen}"


@frozen
class PodRefusedError(DeviceCoreError):
    """A pod that a test wanted to run was not admitted. `verdict` is `Refused` or `NotReady`."""

    pod: str
    verdict: Verdict

    def __str__(self) -> str:
        return f"pod {self.pod} was not admitted: {self.verdict}"


class Served(Protocol):
    """A plugin that this kubelet was told to serve."""

    def stop(self) -> None:
        """Stop it. Twice is no error."""


class RunningPod:
    """A pod that was admitted, and what its containers have. Without a name, the first app container is meant."""

    def __init__(self, kubelet: "BaseKubelet", pod: Pod) -> None:
        self.pod = pod
        self._kubelet = kubelet

    def devices(self, resource: str | None = None, container: str | None = None) -> tuple[str, ...]:
        """The ids of the devices it holds, of one resource or of all, in natural order within each."""
        key = self.pod.key(self._container(container))
        held = self._kubelet.node.ledger.of_container(key)
        return tuple(id_ for each in held if resource in (None, each.resource) for id_ in each.devices)

    def options(self, container: str | None = None) -> ContainerOptions:
        """What the plugins' answers make together; no plugin is asked again."""
        return self._kubelet.options(self.pod, self._container(container))

    @property
    def envs(self) -> Mapping[str, str]:
        """The environment variables of its first container."""
        return self.options().envs

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """The mounts of its first container."""
        return self.options().mounts

    @property
    def device_nodes(self) -> tuple[DeviceSpec, ...]:
        """The device nodes of its first container."""
        return self.options().devices

    @property
    def annotations(self) -> Mapping[str, str]:
        """The annotations of its first container."""
        return self.options().annotations

    @property
    def cdi_devices(self) -> tuple[str, ...]:
        """The CDI devices of its first container."""
        return self.options().cdi_devices

    def start(self, container: str | None = None) -> ContainerOptions | None:
        """Start a container, of which plugins that require it are told before; what the runtime is given.

        Raises:
            PluginError: a plugin does not let it start.
        """
        return self._kubelet.manager.container_options(self.pod, self._container(container).name)

    def delete(self) -> None:
        """End the pod: its devices are free."""
        self._kubelet.manager.evict([self.pod.uid])

    def _container(self, name: str | None) -> Container:
        return self.pod.containers[0] if name is None else self.pod.container(name)


class BaseKubelet(ABC):
    """What both kubelets have. `timeout` is for waits that do not say how long.

    `manager` is the real thing, to be used for whatever this class has no method for; each restart makes a new one.
    """

    def __init__(self, *, topology: Topology | None = None, timeout: float = PATIENCE) -> None:
        self.timeout = timeout
        self.sink = MemorySink()
        self.record = Recording()
        self._topology = topology or Topology()
        self._passed = 0.0
        self._numbers = itertools.count(1)
        self._changed = threading.Condition()
        self._processes: list[PluginProcess] = []
        self._log = _LastWarnings()
        self._at_the_end = ExitStack()
        self._running = False
        self.manager = self._new_manager(wipe=True)

    # --- its life -----------------------------------------------------------------------------------------------------

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
        """Start, as a kubelet does. Twice is no error.

        Raises:
            SetUpError: its socket directory cannot be used.
        """
        logging.getLogger("devicecore").addHandler(self._log)
        self.manager.start()
        self._running = True

    def stop(self) -> None:
        """Be away: no socket, no streams. Plugins go on. `start` or `restart` brings it back."""
        self._running = False
        self.manager.stop()
        logging.getLogger("devicecore").removeHandler(self._log)

    def restart(self, *, checkpoint: bool = True, wipe: bool = True) -> None:
        """Begin anew, as a new process would, stopped or not.

        Without its `checkpoint` it has forgotten who has which device. With `wipe`, as kubelets do, it deletes the
        plugins' sockets; without, all that a plugin can notice is a new kubelet.sock and the end of its stream.
        """
        self.stop()
        if not checkpoint:
            self._forget()
        self.manager = self._new_manager(wipe=wipe)
        self.start()

    def close(self) -> None:
        """Stop it, stop every plugin that it runs or serves, and remove its files. Twice is no error."""
        with ExitStack() as last_to_first:
            last_to_first.callback(self.stop)
            last_to_first.push(self._at_the_end.pop_all())

    @abstractmethod
    def serve(self, plugin: DevicePlugin) -> Served:
        """Serve a plugin written in Python to this kubelet, until it is stopped or the kubelet closed."""

    @abstractmethod
    def drop_stream(self, resource: str) -> None:
        """Let go of the plugins of `resource`, as if their streams had ended. They have to register again."""

    @abstractmethod
    def _open_transport(self, *, wipe: bool) -> PluginTransport: ...

    @property
    @abstractmethod
    def _store(self) -> CheckpointStore: ...

    @abstractmethod
    def _forget(self) -> None: ...

    @abstractmethod
    def _where(self) -> str: ...

    # --- time ---------------------------------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Turn time forward, and let the kubelet notice: 301 seconds after its plugin, a resource has gone."""
        self._passed += seconds
        self.manager.capacity()
        self._ring()

    # --- pods ---------------------------------------------------------------------------------------------------------

    def admit(self, what: Pod | Mapping[str, int]) -> RunningPod:
        """Admit a pod: a real one, or one with a single container and these limits, `{"example.com/gpu": 2}`.

        Raises:
            PodRefusedError: it cannot run here; the error tells why.
        """
        pod = what if isinstance(what, Pod) else self._new_pod(what)
        verdict = self.manager.admit(pod)
        if not isinstance(verdict, Admitted):
            raise PodRefusedError(pod.name or pod.uid, verdict)
        return RunningPod(self, pod)

    def options(self, pod: Pod, container: Container) -> ContainerOptions:
        """What the plugins' answers for a container make together, as the kubelet keeps them."""
        held = self.node.ledger.of_container(pod.key(container))
        return container_options.merge({each.resource: self._transport.read(each.receipt) for each in held})

    # --- what is seen -------------------------------------------------------------------------------------------------

    @property
    def node(self) -> NodeState:
        """All that the kubelet knows now, as a value."""
        return self.manager.state

    @property
    def events(self) -> tuple[Event, ...]:
        """Everything that plugins did, since the beginning: registered, reported devices, went."""
        return tuple(self.record.events)

    @property
    def calls(self) -> tuple[PluginCall, ...]:
        """Every Allocate, GetPreferredAllocation and PreStartContainer, since the beginning, with its answer."""
        return tuple(self.record.calls)

    def calls_of(self, method: str) -> tuple[PluginCall, ...]:
        """The calls of one method, such as `Allocate`."""
        return tuple(call for call in self.calls if call.method == method)

    def lists(self, resource: str) -> tuple[tuple[Device, ...], ...]:
        """Every list of devices that was sent for a resource, since the beginning."""
        reports = [event for event in self.events if isinstance(event, DevicesReported)]
        return tuple(tuple(event.devices) for event in reports if event.plugin.resource == resource)

    def registrations(self, resource: str) -> int:
        """How often a plugin of `resource` has registered with success, since the beginning."""
        registered = [event for event in self.events if isinstance(event, PluginRegistered)]
        return sum(event.plugin.resource == resource for event in registered)

    def plugin(self, resource: str) -> PluginId | None:
        """The plugin that serves a resource now; None if nobody does."""
        known = self.node.inventory.resources.get(ResourceName(resource))
        return known.plugins[-1].id if known and known.plugins else None

    def devices(self, resource: str) -> tuple[Device, ...]:
        """The devices that the plugin listed last; those of one that has gone are as it left them."""
        report = self.node.inventory.current_report(ResourceName(resource))
        return tuple(report.devices.values()) if report else ()

    def counts(self, resource: str) -> tuple[int, int]:
        """Capacity and allocatable of a resource, as the Node object shows them; 0 if it is not known."""
        return self.sink.capacity.get(resource, 0), self.sink.allocatable.get(resource, 0)

    # --- waiting ------------------------------------------------------------------------------------------------------

    def wait_for_resource(self, resource: str, *, timeout: float | None = None) -> tuple[Device, ...]:
        """Wait until a plugin serves `resource` and has sent its first list; the list.

        Raises:
            InvalidResourceNameError: no kubelet takes a resource of that name.
            WaitedInVainError: it has not in time.
            ExitedEarlyError: a plugin process has ended meanwhile.
        """
        name = resource_name(resource)

        def served() -> bool:
            known = self.node.inventory.resources.get(name)
            return known is not None and any(plugin.report is not None for plugin in known.plugins)

        self.wait_until(f"a plugin that serves {resource} and lists its devices", served, timeout=timeout)
        return self.devices(resource)

    def wait_for_registration(self, resource: str, number: int, *, timeout: float | None = None) -> None:
        """Wait until plugins of `resource` have registered `number` times, since the beginning.

        Raises:
            WaitedInVainError: they have not in time.
            ExitedEarlyError: a plugin process has ended meanwhile.
        """
        self.wait_until(
            f"registration number {number} of {resource}",
            lambda: self.registrations(resource) >= number,
            timeout=timeout,
        )

    def wait_until_gone(self, resource: str, *, timeout: float | None = None) -> None:
        """Wait until nobody serves `resource`.

        Raises:
            WaitedInVainError: somebody still does.
        """
        self.wait_until(
            f"the plugin of {resource} to go", lambda: self.plugin(resource) is None, timeout=timeout, doomed=False
        )

    def wait_for_device(
        self, resource: str, device: str, health: Health = Health.HEALTHY, *, timeout: float | None = None
    ) -> Device:
        """Wait until `device` is listed, by a plugin that is there, with this health; the device.

        Raises:
            WaitedInVainError: it is not in time.
            ExitedEarlyError: a plugin process has ended meanwhile.
        """

        def found() -> Device | None:
            if self.plugin(resource) is None:
                return None
            listed = (each for each in self.devices(resource) if each.id == device and each.health is health)
            return next(listed, None)

        return self.wait_until(f"device {device} of {resource} to be {health.value}", found, timeout=timeout)

    def wait_for_counts(
        self, resource: str, capacity: int, allocatable: int | None = None, *, timeout: float | None = None
    ) -> None:
        """Wait until the node shows so many devices, and so many healthy ones (by default all of them).

        Raises:
            WaitedInVainError: it does not in time.
            ExitedEarlyError: a plugin process has ended meanwhile.
        """
        expected = (capacity, capacity if allocatable is None else allocatable)
        self.wait_until(
            f"{resource} to have capacity {expected[0]} and allocatable {expected[1]}",
            lambda: self.counts(resource) == expected,
            timeout=timeout,
        )

    def wait_until(
        self, expected: str, look: Callable[[], T | None], *, timeout: float | None = None, doomed: bool = True
    ) -> T:
        """Wait until `look` sees something that is true, and give that. It looks whenever something has happened.

        Args:
            expected: what is waited for, for the error: "a second list".
            look: sees it, or not.
            timeout: in seconds.
            doomed: whether there is no point in waiting on when a plugin process has ended by itself.

        Raises:
            WaitedInVainError: it did not come about in time.
            ExitedEarlyError: a plugin process has ended meanwhile.
        """
        limit = self.timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        while True:
            with self._changed:
                seen = look()
                if seen:
                    return seen
                if doomed:
                    for process in self._processes:
                        if failure := process.failure:
                            raise failure
                left = deadline - time.monotonic()
                if left <= 0:
                    raise WaitedInVainError(expected, limit, self.describe())
                self._changed.wait(left)

    def describe(self) -> str:
        """What is seen now, in a few sentences: resources, devices, who registered, what was logged."""
        parts = [self._about(name) for name in sorted(self.node.inventory.resources)]
        if not parts:
            asked = sum(isinstance(event, RegistrationRequested) for event in self.events)
            came = f"{asked} calls of Register, none of them with success" if asked else "nobody has called Register"
            parts.append(f"no resource is known, {came}, {self._where()}")
        if not self._running:
            parts.append("the kubelet is stopped")
        if warnings := self._log.lines():
            parts.append("last warnings: " + " | ".join(warnings))
        parts += [
            f"last output of the plugin {process.pid}: {process.last_output or 'nothing'}"
            for process in self._processes
            if process.status is None or process.failure
        ]
        return "; ".join(parts)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _new_manager(self, *, wipe: bool) -> DeviceManager:
        self._transport = RecordingTransport(self._open_transport(wipe=wipe), self.record, self._ring)
        return DeviceManager(self._transport, self._store, self.sink, topology=self._topology, clock=self._now)

    def _now(self) -> float:
        return time.monotonic() + self._passed

    def _ring(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _new_pod(self, limits: Mapping[str, int]) -> Pod:
        name = f"pod-{next(self._numbers)}"
        return Pod(PodUid(name), name, containers=(Container("main", dict(limits)),))

    def _about(self, resource: ResourceName) -> str:
        capacity, allocatable = self.counts(resource)
        listed = self.devices(resource)
        healthy = [device.id for device in listed if device.health is Health.HEALTHY]
        unhealthy = [device.id for device in listed if device.health is not Health.HEALTHY]
        phase = self.node.inventory.resources[resource].phase
        return (
            f"{resource} has capacity {capacity}, allocatable {allocatable}, {phase.value}, "
            f"healthy: {_some(healthy)}, unhealthy: {_some(unhealthy)}"
        )


class Kubelet(BaseKubelet):
    """A kubelet on a unix socket, `directory / "kubelet.sock"`, for plugins in any language.

    It finds those that do not register too, but wait for a kubelet's plugin watcher below `registry`.

    Args:
        directory: its socket directory; by default a new one with a short name, removed at the end.
        topology: the machine's NUMA nodes and the policy for them.
        timeout: seconds, for waits that do not say how long.

    Raises:
        SetUpError: at the start, if the directory cannot be used.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        topology: Topology | None = None,
        timeout: float = PATIENCE,
    ) -> None:
        self._temporary = None if directory is not None else short_directory()
        self.directory = Path(self._temporary.name if directory is None else directory)  # type: ignore[union-attr]  # then there is one
        self._grpc: GrpcUnixTransport | None = None
        super().__init__(topology=topology, timeout=timeout)

    def close(self) -> None:
        """Stop it, stop every plugin that it runs or serves, and remove its files. Twice is no error."""
        try:
            super().close()
        finally:
            if self._temporary is not None:
                self._temporary.cleanup()

    @property
    def socket(self) -> Path:
        """Where plugins register."""
        return self.directory / "kubelet.sock"

    @property
    def registry(self) -> Path:
        """Where plugins wait to be found, as in a node's `plugins_registry`; it looks there every second."""
        return self.directory / "plugins_registry"

    @property
    def checkpoint(self) -> Path:
        """The file in which it keeps who has which device."""
        return self.directory / CHECKPOINT_NAME

    def serve(self, plugin: DevicePlugin) -> Served:
        """Serve a plugin written in Python, from this process, and keep it registered."""
        from devicecore.adapters.grpc_unix import serve_plugin

        served = serve_plugin(plugin, self.directory, poll_interval=_LOOK_INTERVAL)
        self._at_the_end.callback(served.stop)
        return served

    def run_plugin(
        self,
        *command: str | os.PathLike[str],
        environment: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> PluginProcess:
        """Run a plugin as a process of its own, until it is stopped or the kubelet closed.

        In the command `{dir}` stands for the socket directory and `{socket}` for the kubelet's socket; `registry` is
        `{dir}/plugins_registry`. When it ends by itself, waits do not wait any longer: they raise `ExitedEarlyError`.

        Raises:
            CannotRunError: there is no such program, or it may not be run.
        """
        process = PluginProcess(command, self.directory, environment=environment, cwd=cwd, changed=self._ring)
        self._processes.append(process)
        self._at_the_end.callback(process.stop)
        return process

    def drop_stream(self, resource: str) -> None:
        """Cut the connections to the plugins of `resource`, while kubelet.sock stays."""
        known = self.node.inventory.resources.get(resource_name(resource))
        for plugin in known.plugins if known else ():
            if self._grpc is not None:
                self._grpc.disconnect(plugin.id)

    def remove_socket(self) -> None:
        """Delete kubelet.sock and nothing else: streams go on. `restart` makes a new one."""
        self.socket.unlink(missing_ok=True)

    def recreate_socket(self) -> None:
        """Remove kubelet.sock and make a new one, leaving the plugins' sockets where they are. Streams end."""
        self.remove_socket()
        self.restart(wipe=False)

    def plugin_sockets(self) -> tuple[str, ...]:
        """The names of all sockets in the directory but the kubelet's."""
        names = (entry.name for entry in self.directory.iterdir() if entry.is_socket())
        return tuple(sorted(name for name in names if name != self.socket.name))

    def _open_transport(self, *, wipe: bool) -> PluginTransport:
        from devicecore.adapters.grpc_unix import GrpcUnixTransport

        self._grpc = GrpcUnixTransport(self.directory, wipe=wipe, plugins_registry=self.registry)
        return self._grpc

    @property
    def _store(self) -> CheckpointStore:
        return FileStore(self.checkpoint)

    def _forget(self) -> None:
        self.checkpoint.unlink(missing_ok=True)

    def _where(self) -> str:
        sockets = ", ".join(self.plugin_sockets()) or "none"
        return f"the kubelet's socket is {self.socket}, sockets of plugins beside it: {sockets}"


class MemoryKubelet(BaseKubelet):
    """A kubelet for plugins that are objects of this process: no sockets, no threads, no files."""

    def __init__(self, *, topology: Topology | None = None, timeout: float = PATIENCE) -> None:
        self._blob = MemoryStore()
        self._served: list[_InMemory] = []
        super().__init__(topology=topology, timeout=timeout)

    def serve(self, plugin: DevicePlugin) -> Served:
        """Register a plugin, now and whenever the kubelet has restarted or dropped it."""
        served = _InMemory(plugin, self)
        self._served.append(served)
        if self._running:
            served.register()
        return served

    def start(self) -> None:
        """Start; the plugins that are served register."""
        super().start()
        for served in self._served:
            served.register()

    def drop_stream(self, resource: str) -> None:
        """Let go of the plugins of `resource`; they register again at once."""
        name = resource_name(resource)
        for served in self._served:
            if served.plugin.resource == name:
                served.drop()

    def connect(self, plugin: DevicePlugin) -> Callable[[], None]:
        """Register a plugin once; returns how to end that."""
        return self._memory.connect(plugin).disconnect

    def _open_transport(self, *, wipe: bool) -> PluginTransport:  # noqa: ARG002 - there is nothing to wipe
        self._memory = MemoryTransport()
        return self._memory

    @property
    def _store(self) -> CheckpointStore:
        return self._blob

    def _forget(self) -> None:
        self._blob.blob = None

    def _where(self) -> str:
        return "the kubelet is one in memory"


class _InMemory:
    """A plugin that registers whenever it should."""

    def __init__(self, plugin: DevicePlugin, kubelet: MemoryKubelet) -> None:
        self.plugin = plugin
        self._kubelet = kubelet
        self._disconnect: Callable[[], None] = lambda: None
        self._stopped = False

    def register(self) -> None:
        if not self._stopped:
            self._disconnect()
            self._disconnect = self._kubelet.connect(self.plugin)

    def drop(self) -> None:
        self._disconnect()
        self.register()

    def stop(self) -> None:
        self._stopped = True
        self._disconnect()


class _LastWarnings(logging.Handler):
    """Keeps what the library has warned of lately."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._kept: deque[str] = deque(maxlen=_LOG_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        self._kept.append(record.getMessage())

    def lines(self) -> tuple[str, ...]:
        return tuple(self._kept)


def _some(ids: Sequence[str]) -> str:
    shown = 8
    more = f" and {len(ids) - shown} more" if len(ids) > shown else ""
    return (", ".join(ids[:shown]) or "none") + more
