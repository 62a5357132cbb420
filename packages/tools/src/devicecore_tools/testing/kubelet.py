"""A kubelet for testing device plugins: the real device manager, controlled by the test.

Law: every wait has a timeout, and its error says what was expected and what the kubelet saw. A test needs no asyncio,
no cluster and no root privileges.

`Kubelet` accepts plugins in any language over gRPC on a unix socket. `MemoryKubelet` accepts Python objects and is
faster. Both kubelets have the same methods.
"""

import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from attrs import frozen

from devicecore.adapters.file import CHECKPOINT_NAME, FileStore
from devicecore.adapters.memory import MemoryConnection, MemorySink, MemoryTransport
from devicecore.domain.admission import Admitted, Verdict
from devicecore.domain.checks import checked, expected
from devicecore.domain.container_options import ContainerOptions, DeviceSpec, Mount
from devicecore.domain.errors import DeviceCoreError
from devicecore.domain.events import DevicesReported, Event, PluginRegistered, RegistrationRequested
from devicecore.domain.model import Container, Device, Health, PluginId, Pod, PodUid, ResourceName, resource_name
from devicecore.domain.node_state import NodeState
from devicecore.domain.text import counted
from devicecore.domain.topology import Topology
from devicecore.manager import DeviceManager
from devicecore.ports.plugin import DevicePlugin, check_plugin
from devicecore.ports.store import CheckpointStore
from devicecore.ports.transport import PluginTransport
from devicecore.system.arguments import checks_arguments
from devicecore_tools.testing.controlled import ControlledKubelet, InMemory, InMemoryKubelet
from devicecore_tools.testing.process import PluginProcess
from devicecore_tools.testing.recording import PLUGIN_METHODS, PluginCall, RecordingTransport
from devicecore_tools.testing.waiting import DEFAULT_TIMEOUT
from devicecore_tools.testing.waiting import WaitTimeoutError as WaitTimeoutError  # noqa: PLC0414  # users import it here

if TYPE_CHECKING:
    from devicecore.adapters.grpc_unix import GrpcUnixTransport
    from devicecore.adapters.grpc_unix.watcher import PluginHandler

_FIRST_LIST = 2.0  # seconds for a plugin's first list
_POLL_INTERVAL = 0.05  # seconds between a plugin's checks of kubelet.sock; kept short so that tests are fast


@frozen
class PodRefusedError(DeviceCoreError):
    """The kubelet did not admit a test's pod. `verdict` is `Refused` or `NotReady`."""

    pod: str
    verdict: Verdict
    _text = "pod {pod} was not admitted: {verdict}"


class Served(Protocol):
    """A plugin that the test serves to this kubelet."""

    def stop(self) -> None:
        """Stop serving the plugin. A second call does nothing."""


class RunningPod:
    """An admitted pod. Without a container name, methods use the first app container."""

    def __init__(self, kubelet: "BaseKubelet", pod: Pod) -> None:
        self.pod = pod
        self._kubelet = kubelet

    @checks_arguments()
    def devices(self, resource: str | None = None, container: str | None = None) -> tuple[str, ...]:
        """Return the ids of the devices that a container holds, for one resource or all.

        Each resource's ids are in natural order.

        Raises ValueError if the container does not request `resource`.
        """
        asks = self._container(container)
        if resource is not None and resource not in asks.limits:
            wanted = " or ".join(map(repr, asks.limits)) or "no resource, because the container requests none"
            raise ValueError(expected("devices: resource", wanted, resource))
        key = self.pod.key(asks)
        allocations = self._kubelet.state.ledger.of_container(key)
        return tuple(id_ for one in allocations if resource in (None, one.resource) for id_ in one.devices)

    def options(self, container: str | None = None) -> ContainerOptions:
        """Return the plugins' merged Allocate responses. No plugin is called again."""
        return self._kubelet.options(self.pod, self._container(container))

    @property
    def envs(self) -> Mapping[str, str]:
        """The first app container's environment variables."""
        return self.options().envs

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """The first app container's mounts."""
        return self.options().mounts

    @property
    def device_nodes(self) -> tuple[DeviceSpec, ...]:
        """The first app container's device nodes."""
        return self.options().devices

    @property
    def annotations(self) -> Mapping[str, str]:
        """The first app container's annotations."""
        return self.options().annotations

    @property
    def cdi_devices(self) -> tuple[str, ...]:
        """The first app container's CDI devices."""
        return self.options().cdi_devices

    def start(self, container: str | None = None) -> ContainerOptions | None:
        """Start a container: call PreStartContainer on plugins that require it, and return the container's options.

        Raises:
            PluginError: a plugin answered PreStartContainer with an error.
        """
        return self._kubelet.manager.start_container(self.pod, self._container(container).name)

    def delete(self) -> None:
        """Remove the pod, which frees its devices."""
        self._kubelet.manager.evict([self.pod.uid])

    def _container(self, name: str | None) -> Container:
        return self.pod.containers[0] if name is None else self.pod.container(name)


class BaseKubelet(ControlledKubelet[DeviceManager, Event, PluginCall]):
    """The common base of `Kubelet` and `MemoryKubelet`.

    `timeout` is in seconds, for every wait without a timeout of its own. `manager` is the `DeviceManager`; each restart
    creates a new manager. A test kubelet for DRA drivers contains such a kubelet so that its pods can also get plugin
    devices.
    """

    _methods = PLUGIN_METHODS

    @checks_arguments("timeout")
    def __init__(self, *, topology: Topology | None = None, timeout: float = DEFAULT_TIMEOUT) -> None:
        super().__init__(timeout)
        self.sink: MemorySink = MemorySink()
        self._topology = topology or Topology()
        self.manager: DeviceManager = self._new_manager(wipe=True)

    # --- start and stop -----------------------------------------------------------------------------------------------

    @checks_arguments()
    def restart(self, *, checkpoint: bool = True, wipe: bool = True) -> None:
        """Stop the kubelet if it is running, and start a new one, as after a restart of the process.

        Args:
            checkpoint: whether to keep the checkpoint. Without the checkpoint, the new kubelet does not know which pod
                has which device.
            wipe: whether to delete the plugins' sockets, as kubelets do. If the sockets are kept, a plugin notices a
                restart only from the new kubelet.sock and the end of its stream.
        """
        if self._running:
            self._wait_for_lists()
        self.stop()
        self.renew(checkpoint=checkpoint, wipe=wipe)
        self.start()

    def renew(self, *, checkpoint: bool = True, wipe: bool = True) -> None:
        """Create the new kubelet for `restart`, which starts it later."""
        if not checkpoint:
            self._forget()
        self.manager = self._new_manager(wipe=wipe)

    @abstractmethod
    def serve(self, plugin: DevicePlugin) -> Served:
        """Serve a plugin written in Python to this kubelet, until the plugin is stopped or the kubelet is closed."""

    @abstractmethod
    def drop_stream(self, resource: str) -> None:
        """Disconnect the plugins of `resource`, as if their streams had ended. The plugins must register again."""

    @abstractmethod
    def _open_transport(self, *, wipe: bool) -> PluginTransport: ...

    # --- time ---------------------------------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Move the kubelet's clock forward. A resource is removed 300 seconds after its last plugin disconnected."""
        super().advance(seconds)

    # --- pods ---------------------------------------------------------------------------------------------------------

    def admit(self, what: Pod | Mapping[str, int]) -> RunningPod:
        """Admit a pod.

        Args:
            what: a `Pod`, or the limits of a pod with one container, such as `{"example.com/gpu": 2}`.

        Raises:
            PodRefusedError: the kubelet refused the pod; the error contains the reason.
            TypeError: `what` is neither a pod nor a mapping.
        """
        __tracebackhide__ = True
        pod = what if isinstance(what, Pod) else self._new_pod(what)
        verdict = self.manager.admit(pod)
        if not isinstance(verdict, Admitted):
            raise PodRefusedError(pod.name or pod.uid, verdict)
        return RunningPod(self, pod)

    @checks_arguments()
    def options(self, pod: Pod, container: Container) -> ContainerOptions:
        """Return the plugins' merged responses for a container, as the kubelet has recorded them."""
        return self.manager.options(pod, container.name) or ContainerOptions()

    # --- looking ------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> NodeState:
        """The kubelet's current state, as a value."""
        return self.manager.state

    def lists(self, resource: str) -> tuple[tuple[Device, ...], ...]:
        """Return every device list that plugins have sent for a resource since the kubelet was created.

        Like the following methods, raises InvalidResourceNameError if kubelets do not accept that resource name.
        """
        name = resource_name(resource)
        reports = [event for event in self.events if isinstance(event, DevicesReported)]
        return tuple(tuple(event.devices) for event in reports if event.plugin.resource == name)

    def registrations(self, resource: str) -> int:
        """Return the number of successful registrations of plugins for `resource` since the kubelet was created."""
        name = resource_name(resource)
        registered = [event for event in self.events if isinstance(event, PluginRegistered)]
        return sum(event.plugin.resource == name for event in registered)

    def plugin(self, resource: str) -> PluginId | None:
        """Return the plugin that currently serves a resource, or None."""
        known = self.state.inventory.resources.get(resource_name(resource))
        return known.plugins[-1].id if known and known.plugins else None

    def devices(self, resource: str) -> tuple[Device, ...]:
        """Return the devices in the plugin's last list. The list is kept after the plugin has disconnected."""
        report = self.state.inventory.current_report(resource_name(resource))
        return tuple(report.devices.values()) if report else ()

    def counts(self, resource: str) -> tuple[int, int]:
        """Return a resource's capacity and allocatable on the Node object, or zeros if the resource is not listed."""
        name = resource_name(resource)
        return self.sink.capacity.get(name, 0), self.sink.allocatable.get(name, 0)

    # --- waiting ------------------------------------------------------------------------------------------------------

    def wait_for_resource(self, resource: str, *, timeout: float | None = None) -> tuple[Device, ...]:
        """Wait until a plugin serves `resource` and has sent a list, and return the devices that it lists.

        Raises:
            InvalidResourceNameError: kubelets do not accept that resource name.
            WaitTimeoutError: no plugin served the resource and sent a list before the timeout.
            ExitedEarlyError: a plugin process exited in the meantime.
        """
        __tracebackhide__ = True
        name = resource_name(resource)

        def served() -> bool:
            known = self.state.inventory.resources.get(name)
            return known is not None and any(plugin.report is not None for plugin in known.plugins)

        self.wait_until(f"a plugin for {resource} with a list of devices", served, timeout=timeout)
        return self.devices(resource)

    def wait_for_registration(self, resource: str, number: int, *, timeout: float | None = None) -> None:
        """Wait until plugins for `resource` have registered at least `number` times since the kubelet was created.

        Raises:
            WaitTimeoutError: there were fewer registrations before the timeout.
            ExitedEarlyError: a plugin process exited in the meantime.
        """
        __tracebackhide__ = True
        checked(number, int, "wait_for_registration: number")
        self.wait_until(
            f"registration number {number} for {resource}",
            lambda: self.registrations(resource) >= number,
            timeout=timeout,
        )

    def wait_until_gone(self, resource: str, *, timeout: float | None = None) -> None:
        """Wait until no plugin serves `resource`.

        Raises:
            WaitTimeoutError: a plugin still served the resource when the timeout expired.
        """
        __tracebackhide__ = True
        self.wait_until(
            f"no plugin for {resource}", lambda: self.plugin(resource) is None, timeout=timeout, allow_exits=True
        )

    def wait_for_device(
        self, resource: str, device: str, health: Health = Health.HEALTHY, *, timeout: float | None = None
    ) -> Device:
        """Wait until a connected plugin reports this health for `device`, and return the device.

        Raises:
            WaitTimeoutError: the plugin did not report this health before the timeout.
            ExitedEarlyError: a plugin process exited in the meantime.
        """
        __tracebackhide__ = True
        checked(health, Health, "wait_for_device: health")

        def found() -> Device | None:
            if self.plugin(resource) is None:
                return None
            listed = (each for each in self.devices(resource) if each.id == device and each.health is health)
            return next(listed, None)

        return self.wait_until(f"device {device} of {resource} with health {health.value}", found, timeout=timeout)

    def wait_for_counts(
        self, resource: str, capacity: int, allocatable: int | None = None, *, timeout: float | None = None
    ) -> None:
        """Wait until the Node object shows this capacity and allocatable. Allocatable defaults to the capacity.

        Raises:
            WaitTimeoutError: the Node object did not show this before the timeout.
            ExitedEarlyError: a plugin process exited in the meantime.
        """
        __tracebackhide__ = True
        checked(capacity, int, "wait_for_counts: capacity")
        if allocatable is not None:
            checked(allocatable, int, "wait_for_counts: allocatable")
        expected = (capacity, capacity if allocatable is None else allocatable)
        self.wait_until(
            f"{resource} with capacity {expected[0]} and allocatable {expected[1]}",
            lambda: self.counts(resource) == expected,
            timeout=timeout,
        )

    def _wait_for_lists(self) -> None:
        """Wait briefly for each plugin's list, because a plugin notices only the end of an open stream."""

        def listed() -> bool:
            known = self.state.inventory.resources.values()
            return all(plugin.report is not None for one in known for plugin in one.plugins)

        with suppress(WaitTimeoutError):
            self.wait_until("a list from each plugin", listed, timeout=_FIRST_LIST, allow_exits=True)

    def describe(self) -> str:
        """Describe the kubelet's current view: resources, devices, registrations, and the last warnings."""
        parts = [self._about(name) for name in sorted(self.state.inventory.resources)]
        if not parts:
            successes = sum(isinstance(event, PluginRegistered) for event in self.events)
            count = sum(isinstance(event, RegistrationRequested) for event in self.events) - successes
            calls = f"no plugin has called Register{' again' if successes else ''}"
            if count > 0:
                calls = f"{counted(count, 'call')} to Register without success"
            parts.append(f"no resource is registered; {calls}; {self._where()}")
        if not self._running:
            parts.append("the kubelet is stopped")
        return "; ".join([*parts, *self._last_output()])

    def _new_manager(self, *, wipe: bool) -> DeviceManager:
        transport = RecordingTransport(self._open_transport(wipe=wipe), self.record, self._wake)
        return DeviceManager(transport, self._store, self.sink, topology=self._topology, clock=self._now)

    def _new_pod(self, limits: Mapping[str, int]) -> Pod:
        given: object = limits
        if not isinstance(given, Mapping):
            raise TypeError(expected("admit", 'a Pod, or a mapping such as {"example.com/gpu": 1}', given))
        name = f"pod-{next(self._numbers)}"
        return Pod(PodUid(name), name=name, containers=(Container("main", dict(limits)),))

    def _about(self, resource: ResourceName) -> str:
        capacity, allocatable = self.counts(resource)
        listed = self.devices(resource)
        healthy = [device.id for device in listed if device.health is Health.HEALTHY]
        unhealthy = [device.id for device in listed if device.health is not Health.HEALTHY]
        phase = self.state.inventory.resources[resource].phase
        return (
            f"{resource} has capacity {capacity}, allocatable {allocatable}, {phase.value}, "
            f"healthy: {_some(healthy)}, unhealthy: {_some(unhealthy)}"
        )


class Kubelet(BaseKubelet):
    """A kubelet on a unix socket, `directory / "kubelet.sock"`, for plugins in any language.

    The kubelet also finds plugins under `registry` that do not call Register but wait for the kubelet's plugin watcher.

    Args:
        directory: the socket directory; by default a new one with a short path, which `close` removes.
        topology: the machine's NUMA nodes and the topology policy.
        timeout: seconds, for waits without their own timeout.
        registry: the directory of the plugin watcher; by default `plugins_registry` in the socket directory.
        handlers: returns the handlers for plugins of other types found in `registry`.

    Raises:
        SetUpError: from `start`, if the directory cannot be used.
    """

    @checks_arguments("timeout")
    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        topology: Topology | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        registry: str | os.PathLike[str] | None = None,
        handlers: "Callable[[], Sequence[PluginHandler]]" = tuple,
    ) -> None:
        self._given_directory = directory
        self._given_registry = None if registry is None else Path(registry)
        self._handlers = handlers
        self._grpc: GrpcUnixTransport | None = None
        super().__init__(topology=topology, timeout=timeout)

    @cached_property
    def directory(self) -> Path:
        """The socket directory."""
        return self._directory(self._given_directory)

    @property
    def socket(self) -> Path:
        """The socket at which plugins register."""
        return self.directory / "kubelet.sock"

    @property
    def registry(self) -> Path:
        """The plugin watcher's directory, like `plugins_registry` on a node.

        The kubelet checks this directory every second.
        """
        return self._given_registry or self.directory / "plugins_registry"

    @property
    def checkpoint(self) -> Path:
        """The checkpoint: the file that records which pod has which device."""
        return self.directory / CHECKPOINT_NAME

    def serve(self, plugin: DevicePlugin) -> Served:
        """Serve a plugin written in Python from this process, and keep it registered."""
        from devicecore.adapters.grpc_unix import serve_plugin

        served = serve_plugin(plugin, self.directory, poll_interval=_POLL_INTERVAL)
        self._cleanup.callback(served.stop)
        return served

    @checks_arguments("command", "environment", "cwd")
    def run_plugin(
        self,
        *command: str | os.PathLike[str],
        environment: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> PluginProcess:
        """Run a plugin as a separate process, until it is stopped or the kubelet is closed.

        In the command, `{dir}` is replaced by the socket directory and `{socket}` by the kubelet's socket. The plugin
        watcher's directory is `{dir}/plugins_registry`. If the process exits on its own, waits raise
        `ExitedEarlyError`.

        Raises:
            CannotRunError: the program does not exist or is not executable.
        """
        return self._watch(PluginProcess(command, self.directory, environment=environment, cwd=cwd, changed=self._wake))

    def drop_stream(self, resource: str) -> None:
        """Close the connections to the plugins for `resource`. kubelet.sock is kept."""
        self._wait_for_lists()
        known = self.state.inventory.resources.get(resource_name(resource))
        if known:
            for plugin in known.plugins:
                if self._grpc is not None:
                    self._grpc.disconnect(plugin.id)

    def remove_socket(self) -> None:
        """Delete kubelet.sock and nothing else. Streams stay open. `restart` creates a new socket."""
        self.socket.unlink(missing_ok=True)

    def recreate_socket(self) -> None:
        """Delete kubelet.sock and create a new one. Streams end, but the plugins' sockets are kept."""
        self.remove_socket()
        self.restart(wipe=False)

    def plugin_sockets(self) -> tuple[str, ...]:
        """Return the names of all sockets in the directory except the kubelet's."""
        names = (entry.name for entry in self.directory.iterdir() if entry.is_socket())
        return tuple(sorted(name for name in names if name != self.socket.name))

    def _open_transport(self, *, wipe: bool) -> PluginTransport:
        from devicecore.adapters.grpc_unix import GrpcUnixTransport

        self._grpc = GrpcUnixTransport(
            self.directory, wipe=wipe, plugins_registry=self.registry, handlers=self._handlers()
        )
        return self._grpc

    @property
    def _store(self) -> CheckpointStore:
        return FileStore(self.checkpoint)

    def _forget(self) -> None:
        self.checkpoint.unlink(missing_ok=True)

    def _where(self) -> str:
        if not self.directory.exists():
            return f"the kubelet is closed, and its directory {self.directory} is gone: create a new Kubelet"
        sockets = ", ".join(self.plugin_sockets()) or "none"
        return f"the kubelet's socket is {self.socket}; plugin sockets next to it: {sockets}"


class MemoryKubelet(InMemoryKubelet[DeviceManager, Event, PluginCall, MemoryConnection], BaseKubelet):
    """A kubelet for plugins that are objects in this process, without sockets, threads or files."""

    def serve(self, plugin: DevicePlugin) -> Served:
        """Register a plugin now, and again after each restart or disconnection."""
        check_plugin(plugin, "serve")
        # Each start creates a new transport, so the transport is looked up when the plugin registers.
        return self._serve(InMemory(plugin.resource, lambda: self._memory.connect(plugin), MemoryConnection.disconnect))

    def drop_stream(self, resource: str) -> None:
        """Disconnect the plugins of `resource`. The plugins register again at once."""
        name = resource_name(resource)
        for served in self._served:
            if served.name == name:
                served.register()

    def connect(self, plugin: DevicePlugin) -> Callable[[], None]:
        """Register a plugin once, and return a function that disconnects the plugin."""
        return self._memory.connect(plugin).disconnect

    def _open_transport(self, *, wipe: bool) -> PluginTransport:  # noqa: ARG002 - there are no sockets to delete
        self._memory = MemoryTransport()
        return self._memory


def _some(ids: Sequence[str]) -> str:
    shown = 8
    more = f" and {len(ids) - shown} more" if len(ids) > shown else ""
    return (", ".join(ids[:shown]) or "none") + more
