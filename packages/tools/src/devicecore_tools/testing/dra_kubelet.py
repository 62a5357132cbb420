"""A kubelet for testing DRA drivers: the real managers, controlled by the test, with a small API server.

Law: every wait has a timeout, and its error says what was expected and what the kubelet saw. A test needs no asyncio,
no cluster and no root privileges. Claims and devices share one kubelet, with one life cycle and one clock.

`DraKubelet` accepts drivers in any language over gRPC on unix sockets. `MemoryDraKubelet` accepts Python objects and is
faster. Both kubelets have the same methods.
"""

import os
import shutil
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from attrs import frozen

from devicecore.adapters.file import FileStore
from devicecore.adapters.memory import MemoryPods
from devicecore.adapters.memory_dra import MemoryDriverInstance, MemoryDriverTransport
from devicecore.domain.checks import checked, expected, tuple_of
from devicecore.domain.container_options import ContainerOptions, with_claims
from devicecore.domain.dra import state_file
from devicecore.domain.dra.answers import PREPARE, UNPREPARE
from devicecore.domain.dra.claims import ClaimInfo
from devicecore.domain.dra.drivers import SERVICES, DriverEvent, InstanceId
from devicecore.domain.dra.health import SECOND, DraHealth
from devicecore.domain.dra.model import ClaimKey, DriverName, PreparedDevice, ResourceClaim
from devicecore.domain.dra.slices import DevicePool, PublishedDevice, changes
from devicecore.domain.errors import DeviceCoreError
from devicecore.domain.model import Container, ContainerClaim, Pod, PodClaim, PodUid
from devicecore.domain.text import counted, foreign_text
from devicecore.dra_manager import DraManager
from devicecore.dra_manager.clock import steady_time_ns
from devicecore.ports.claims import ClaimSource
from devicecore.ports.dra_driver import DraDriver, check_driver
from devicecore.ports.drivers import DriverTransport
from devicecore.ports.store import CheckpointStore
from devicecore.system.arguments import checks_arguments
from devicecore.testing.faults import Script
from devicecore_tools.testing import dra_objects
from devicecore_tools.testing.api_server.server import LocalApiServer
from devicecore_tools.testing.controlled import ControlledKubelet, InMemory, InMemoryKubelet
from devicecore_tools.testing.dra_objects import DevicesTakenError, ServerClaims, ServerSlices
from devicecore_tools.testing.dra_recording import DriverCall, RecordingDriverTransport
from devicecore_tools.testing.kubelet import BaseKubelet, Kubelet, MemoryKubelet, RunningPod, Served
from devicecore_tools.testing.process import DRIVER_VARIABLES, POD_UID, PluginProcess, with_texts
from devicecore_tools.testing.waiting import DEFAULT_TIMEOUT

if TYPE_CHECKING:
    from devicecore.adapters.grpc_unix.dra import GrpcDriverTransport

__all__ = [
    "NODE",
    "BaseDraKubelet",
    "ClaimPod",
    "DevicesTakenError",
    "DraKubelet",
    "MemoryDraKubelet",
    "UnresolvedCdiNameError",
]

Event = TypeVar("Event", bound=DriverEvent)

NODE = "node-1"
"""The default name of the node."""

_SOCKETS = "device-plugins"  # the directory on the node in which device plugins register

_POLL_INTERVAL = 0.05  # seconds between a driver's checks of its sockets; kept short so that tests are fast


@frozen
class UnresolvedCdiNameError(DeviceCoreError):
    """A container runtime would not find a CDI name and would therefore not create the container."""

    name: str
    directory: str
    files: tuple[str, ...]

    def __str__(self) -> str:
        files = ", ".join(self.files) or "no file"
        name = foreign_text(self.name)
        return f"expected the CDI device {name} in a file in {self.directory}, got {files} without it"


class ClaimPod:
    """A pod with claims that are reserved for it. Without a container name, methods use the first container.

    `admitted` is the same pod with the devices that plugins serve. `admitted` is None before `prepare`, and for a pod
    without limits.
    """

    def __init__(self, kubelet: "BaseDraKubelet", pod: Pod, claims: tuple[ClaimKey, ...]) -> None:
        self.pod = pod
        self.admitted: RunningPod | None = None
        self._kubelet = kubelet
        self._claims = claims

    def options(self, container: str | None = None) -> ContainerOptions:
        """Return what a container gets: the plugins' Allocate responses and its claims' CDI names."""
        own = self.admitted.options(container) if self.admitted is not None else None
        return with_claims(own, self.cdi_devices(container))

    def cdi_devices(self, container: str | None = None) -> tuple[str, ...]:
        """Return the CDI names that the container runtime gets for a container. No driver is called."""
        return self._kubelet.manager.claim_devices(self.pod, container or self.pod.containers[0].name)

    @property
    def devices(self) -> tuple[PreparedDevice, ...]:
        """The devices of all claims of the pod, as returned by their drivers."""
        claims = (self._kubelet.manager.claims.claims[key] for key in self._claims)
        return tuple(device for claim in claims for listed in claim.drivers.values() for device in listed or ())

    def prepare(self) -> None:
        """Prepare the claims, as a kubelet does before each new sandbox.

        Drivers are called the first time, and again after each kubelet restart.

        A pod with limits is admitted first; after a kubelet restart, its devices stay the same.

        Raises:
            PodRefusedError: the kubelet refused the pod because of its limits.
            PrepareError: a claim could not be prepared.
        """
        __tracebackhide__ = True
        if self.pod.containers[0].limits:
            self.admitted = self._kubelet.devices.admit(self.pod)
        self._kubelet.manager.prepare(self.pod)

    def delete(self) -> None:
        """End the pod: unprepare its claims if no other pod uses them. If this fails, call `delete` again.

        Raises:
            UnprepareError: a driver failed to release a claim.
        """
        self._kubelet.manager.unprepare(self.pod.uid)
        if self.admitted is not None:
            self.admitted.delete()
        self.forget()

    def forget(self) -> None:
        """End the pod without unpreparing its claims, as if it ended while the kubelet was down.

        `advance(60)` unprepares the claims later.
        """
        self._kubelet.pods.active.discard(self.pod.uid)
        for key in self._claims:
            dra_objects.release(self._kubelet.api_server, key, self.pod.uid)


class BaseDraKubelet(ControlledKubelet[DraManager, DriverEvent, DriverCall]):
    """The common base of `DraKubelet` and `MemoryDraKubelet`.

    Attributes:
        timeout: in seconds, for every wait without a timeout of its own.
        api_server: holds the claims and the ResourceSlices.
        node: the node's name.
        manager: the `DraManager`. Each restart creates a new manager.
        script: faults in calls to drivers; the calls are named `NodePrepareResources` and `NodeUnprepareResources`.
        claims: where the kubelet reads ResourceClaims; a driver in Python may also read them there.
        pods: the active pods.
        devices: the same kubelet for device plugins, with the methods of `Kubelet`.
    """

    _methods = (PREPARE, UNPREPARE)

    @checks_arguments("timeout")
    def __init__(
        self, *, api_server: LocalApiServer | None = None, node: str = NODE, timeout: float = DEFAULT_TIMEOUT
    ) -> None:
        super().__init__(timeout)
        self.api_server: LocalApiServer = api_server or LocalApiServer()
        self.node: str = node
        self.script: Script = Script()
        self.claims: ClaimSource = ServerClaims(self.api_server)
        self.pods: MemoryPods = MemoryPods()
        self.manager: DraManager = self._new_manager()
        self.devices: BaseKubelet = self._new_devices()

    # --- start and stop -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the kubelet.

        The kubelet creates its Node object if there is none, and deletes all of its node's ResourceSlices.

        Raises:
            SetUpError: the socket directory cannot be used.
        """
        if not any(one["metadata"]["name"] == self.node for one in self.api_server.objects("Node")):
            self.api_server.create({"kind": "Node", "metadata": {"name": self.node}})
        super().start()
        self.devices.start()  # this also starts the plugin watcher, which finds the drivers, too
        self.manager.wipe_slices()

    def stop(self) -> None:
        """Stop the kubelet: close its sockets and connections. Plugins and drivers keep running."""
        self.devices.stop()
        super().stop()

    def close(self) -> None:
        """Stop the kubelet and the plugins and drivers that it started, and remove its files.

        A second call does nothing.
        """
        try:
            self.devices.close()
        finally:
            super().close()

    @checks_arguments()
    def restart(self, *, state: bool = True) -> None:
        """Stop the kubelet if it is running, and start a new one, as after a restart of the process.

        Args:
            state: whether to keep the checkpoints of claims and of devices. Without them, the new kubelet does not know
                which claims are prepared or which pod has which device.
        """
        self.stop()
        if not state:
            self._forget()
        self.manager = self._new_manager()
        self.devices.renew(checkpoint=state)
        self.start()

    @abstractmethod
    def serve(self, driver: DraDriver, *, instance: str = "", services: Sequence[str] = SERVICES) -> Served:
        """Serve a driver written in Python to this kubelet, until it is stopped or the kubelet is closed.

        Args:
            driver: the driver to serve.
            instance: a name that distinguishes this instance from another instance of the driver running at the same
                time.
            services: the services that the driver offers, preferred service first.
        """

    @abstractmethod
    def drop_connection(self, driver: str) -> None:
        """Close the connections to a driver. The driver stays registered, and is reconnected immediately."""

    @abstractmethod
    def _open_transport(self) -> DriverTransport: ...

    @abstractmethod
    def _new_devices(self) -> BaseKubelet: ...

    # --- time ---------------------------------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Move the kubelet's clocks forward, and do what is then due.

        A kubelet deletes a driver's ResourceSlices once the driver has been disconnected for 30 seconds, releases the
        claims of vanished pods every 60 seconds, and discards a health report after 30 seconds.
        """
        self.devices.advance(seconds)
        super().advance(seconds)

    # --- devices and claims -------------------------------------------------------------------------------------------

    @checks_arguments()
    def publish(self, driver: str, *devices: str | PublishedDevice, pool: str | None = None) -> None:
        """Publish devices on behalf of a driver that does not publish them itself.

        Args:
            driver: the driver's name.
            devices: devices, or their names.
            pool: the pool's name; by default the node's.

        Raises:
            TypeError: a device is neither a name nor a PublishedDevice, for example a list of devices.
        """
        given: tuple[object, ...] = devices
        for one in given:
            if not isinstance(one, str | PublishedDevice):
                what = "publish: pass the devices as separate arguments, as in publish(driver, 'p-0', 'p-1')"
                raise TypeError(expected(what, "a name or a PublishedDevice", one))
        wanted = DevicePool(
            DriverName(driver),
            self.node,
            pool or self.node,
            [PublishedDevice(one) if isinstance(one, str) else one for one in devices],
        )
        uid = self.api_server.get("Node", self.node)["metadata"]["uid"]
        ServerSlices(self.api_server, self.node).delete(wanted.driver)
        for body in changes(wanted, uid, ()).create:
            self.api_server.create(dict(body))

    @checks_arguments()
    def published(self, driver: str) -> tuple[str, ...]:
        """Return the names of the devices that a scheduler sees, in slice order."""
        return tuple(one.name for one in dra_objects.published(self.api_server, self.node, driver))

    @checks_arguments("count")
    def claim(
        self,
        driver: str,
        count: int = 1,
        *,
        devices: Sequence[str] | None = None,
        parameters: object = None,
        name: str | None = None,
    ) -> ResourceClaim:
        """Create a ResourceClaim as a scheduler leaves it, with published devices that no other claim holds.

        Args:
            driver: the driver's name.
            count: the number of devices.
            devices: specific devices, instead of a count. The claim tolerates the devices' taints; with a count,
                tainted devices are not chosen.
            parameters: opaque parameters for the driver.
            name: the claim's name; by default a new one.

        Raises:
            DevicesTakenError: the driver has not published the devices, other claims hold them, or they are tainted.
        """
        __tracebackhide__ = True
        chosen = dra_objects.choose(self.api_server, self.node, driver, count, devices)
        name = name or f"claim-{next(self._numbers)}"
        tolerates = devices is not None
        return dra_objects.create_claim(self.api_server, name, driver, chosen, parameters, tolerates=tolerates)

    @checks_arguments()
    def delete_claim(self, claim: ResourceClaim) -> None:
        """Delete a ResourceClaim, as its owner does. Its devices stay prepared."""
        key = checked(claim, ResourceClaim, "delete_claim: a claim as returned by claim()").key
        self.api_server.delete("ResourceClaim", key.name, key.namespace)

    # --- pods ---------------------------------------------------------------------------------------------------------

    @checks_arguments("claims")
    def prepare(self, *claims: ResourceClaim, limits: Mapping[str, int] = {}) -> ClaimPod:
        """Start a pod that uses these claims: reserve the claims for the pod, and prepare them.

        Args:
            claims: the pod's claims.
            limits: the plugin devices that the pod also requests, such as `{"example.com/nic": 1}`.

        Raises:
            PodRefusedError: the kubelet refused the pod because of its limits.
            PrepareError: a claim could not be prepared; the error contains the kubelet's message.
        """
        __tracebackhide__ = True
        pod = self.pod(*claims, limits=limits)
        pod.prepare()
        return pod

    @checks_arguments("claims")
    def pod(self, *claims: ResourceClaim, limits: Mapping[str, int] = {}) -> ClaimPod:
        """Return a pod that uses these claims, which are reserved for it. Nothing is prepared or admitted yet."""
        tuple_of(claims, ResourceClaim, "claims of a pod, as returned by claim()")
        name = f"pod-{next(self._numbers)}"
        entries = tuple(PodClaim(claim.key.name, claim.key.name) for claim in claims)
        container = Container("main", dict(limits), claims=[ContainerClaim(entry.name) for entry in entries])
        pod = Pod(PodUid(f"uid-of-{name}"), name=name, claims=entries, containers=(container,))
        self.pods.active.add(pod.uid)
        for claim in claims:
            dra_objects.reserve(self.api_server, claim.key, name, pod.uid)
        return ClaimPod(self, pod, tuple(claim.key for claim in claims))

    # --- looking ------------------------------------------------------------------------------------------------------

    @checks_arguments()
    def events_of(self, kind: type[Event]) -> tuple[Event, ...]:
        """Return the events of one type, such as `DriverConnected`."""
        return tuple(event for event in self.record.events if isinstance(event, kind))

    @checks_arguments()
    def instances(self, driver: str) -> tuple[InstanceId, ...]:
        """Return the registered instances of a driver, oldest first."""
        return self.manager.drivers.instances.get(DriverName(driver), ())

    @checks_arguments()
    def connected(self, driver: str) -> tuple[InstanceId, ...]:
        """Return the connected instances of a driver, oldest first. A kubelet calls the newest instance."""
        return tuple(one for one in self.instances(driver) if one in self.manager.drivers.connected)

    @checks_arguments()
    def claim_info(self, claim: ResourceClaim) -> ClaimInfo | None:
        """Return the kubelet's record of a claim, with pods and the drivers' devices, or None if there is no record."""
        return self.manager.claims.claims.get(claim.key)

    @checks_arguments()
    def health(self, driver: str, device: str, pool: str | None = None) -> DraHealth:
        """Return the health of a device, as the kubelet currently sees it."""
        now = self._wall_clock()
        return self.manager.health.health(DriverName(driver), pool or self.node, device, now)[0]

    # --- waiting ------------------------------------------------------------------------------------------------------

    @checks_arguments("timeout")
    def wait_for_driver(self, driver: str, instances: int = 1, *, timeout: float | None = None) -> InstanceId:
        """Wait until a driver has at least this many connected instances, and return the newest instance.

        Raises:
            WaitTimeoutError: there were not enough instances before the timeout.
            ExitedEarlyError: a driver process exited in the meantime.
        """
        __tracebackhide__ = True
        checked(instances, int, "wait_for_driver: instances")
        expected = f"{counted(instances, 'connected instance')} of {driver}"
        self.wait_until(expected, lambda: len(self.connected(driver)) >= instances, timeout=timeout)
        return self.connected(driver)[-1]

    @checks_arguments("timeout")
    def wait_until_gone(self, driver: str, instances: int = 0, *, timeout: float | None = None) -> None:
        """Wait until a driver has at most `instances` registered instances.

        Raises:
            WaitTimeoutError: there were still more instances when the timeout expired.
        """
        __tracebackhide__ = True
        checked(instances, int, "wait_until_gone: instances")
        expected = f"at most {counted(instances, 'registered instance')} of {driver}" if instances else f"no {driver}"
        self.wait_until(expected, lambda: len(self.instances(driver)) <= instances, timeout=timeout, allow_exits=True)

    @checks_arguments("timeout")
    def wait_for_devices(self, driver: str, count: int = 1, *, timeout: float | None = None) -> tuple[str, ...]:
        """Wait until a driver has published at least this many devices, and return the names of its devices.

        Raises:
            WaitTimeoutError: there were not enough devices before the timeout.
            ExitedEarlyError: a driver process exited in the meantime.
        """
        __tracebackhide__ = True
        checked(count, int, "wait_for_devices: count")
        expected = f"ResourceSlices of {driver} with {counted(count, 'device')}"
        self.wait_until(expected, lambda: len(self.published(driver)) >= count, timeout=timeout)
        return self.published(driver)

    @checks_arguments("timeout")
    def wait_for_health(
        self, driver: str, device: str, health: DraHealth, *, pool: str | None = None, timeout: float | None = None
    ) -> None:
        """Wait until the kubelet sees a device in this health state.

        Raises:
            WaitTimeoutError: the kubelet did not see this before the timeout.
            ExitedEarlyError: a driver process exited in the meantime.
        """
        __tracebackhide__ = True
        checked(health, DraHealth, "wait_for_health: health")
        expected = f"device {device} of {driver} with health {health.value}"
        self.wait_until(expected, lambda: self.health(driver, device, pool) is health, timeout=timeout)

    def describe(self) -> str:
        """Describe the kubelet's current view: drivers, what they have published, claims, and the last warnings."""
        slices = {one.driver for one in dra_objects.stored_slices(self.api_server, self.node)}
        names = sorted({*map(str, self.manager.drivers.instances), *slices})
        parts = [self._about(name) for name in names]
        parts.append(f"{counted(len(self.manager.claims.claims), 'claim')} recorded")
        if not self.manager.drivers.instances:
            parts.append(f"no driver is registered; {self._where()}")
        if not self._running:
            parts.append("the kubelet is stopped")
        return "; ".join([*parts, *self._last_output()])

    def _about(self, driver: str) -> str:
        name = foreign_text(driver)
        registered, connected = len(self.instances(driver)), len(self.connected(driver))
        devices = counted(len(self.published(driver)), "published device")
        return f"{name} has {counted(registered, 'instance')}, {connected} of them connected, and {devices}"

    # --- creating it --------------------------------------------------------------------------------------------------

    def _new_manager(self) -> DraManager:
        transport = RecordingDriverTransport(self._open_transport(), self.record, self.script, self._wake)
        return DraManager(
            transport,
            self.claims,
            self._store,
            pods=self.pods,
            slices=ServerSlices(self.api_server, self.node),
            clock=self._now,
            wall_clock=self._wall_clock,
        )

    def _wall_clock(self) -> int:
        return steady_time_ns() + int(self._passed * SECOND)


class DraKubelet(BaseDraKubelet):
    """A kubelet with a directory in which drivers in any language can register, and an API server for the drivers.

    Args:
        directory: the parent of `registry`, `plugins` and `cdi`; by default a new one with a short path, which `close`
            removes.
        api_server: a running API server; by default a new one, which `close` stops.
        node: the node's name.
        timeout: seconds, for waits without their own timeout.

    Raises:
        SetUpError: from `start`, if the directory cannot be used.
    """

    @checks_arguments("timeout")
    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        api_server: LocalApiServer | None = None,
        node: str = NODE,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        self._given_directory = directory
        self._own_server = api_server is None
        self._grpc: GrpcDriverTransport | None = None
        super().__init__(api_server=api_server, node=node, timeout=timeout)

    def start(self) -> None:
        """Create the directories, and start the kubelet and, if it owns one, its API server."""
        for directory in (self.registry, self.plugins, self.cdi, self.directory / _SOCKETS):
            directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        if self._own_server:
            self.api_server.start()
        self.api_server.kubeconfig(self.kubeconfig)
        super().start()

    def close(self) -> None:
        """Stop the kubelet, its drivers and its API server, and remove its files. A second call does nothing."""
        try:
            super().close()
        finally:
            if self._own_server:
                self.api_server.stop()

    @cached_property
    def directory(self) -> Path:
        """The parent of `registry`, `plugins` and `cdi`."""
        return self._directory(self._given_directory)

    @property
    def registry(self) -> Path:
        """The directory in which drivers register, like `plugins_registry` on a node."""
        return self.directory / "plugins_registry"

    @property
    def plugins(self) -> Path:
        """The directory for the sockets and state of drivers, like `plugins` on a node. A reboot does not empty it."""
        return self.directory / "plugins"

    @property
    def cdi(self) -> Path:
        """The directory for CDI files, like `/var/run/cdi` on a node. A reboot empties this directory."""
        return self.directory / "cdi"

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig for the API server."""
        return self.directory / "kubeconfig"

    @property
    def state_file(self) -> Path:
        """The claim checkpoint, as a kubelet writes it."""
        return self.directory / state_file.FILE_NAME

    @checks_arguments()
    def serve(self, driver: DraDriver, *, instance: str = "", services: Sequence[str] = SERVICES) -> Served:
        """Serve a driver written in Python from this process."""
        from devicecore.adapters.grpc_unix.dra import serve_driver

        own = self.plugins / driver.name
        own.mkdir(mode=0o750, exist_ok=True)
        suffix = f"-{instance}" if instance else ""
        served = serve_driver(
            driver,
            self.registry,
            endpoint=own / f"dra{suffix}.sock",
            socket_name=f"{driver.name}{suffix}-reg.sock",
            services=services,
            poll_interval=_POLL_INTERVAL,
        )
        self._cleanup.callback(served.stop)
        return served

    def run_driver(
        self,
        *command: str | os.PathLike[str],
        pod_uid: str = POD_UID,
        environment: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> PluginProcess:
        """Run a driver as a separate process, until it is stopped or the kubelet is closed.

        In the command and in `environment`, these placeholders are replaced: `{registry}`, `{plugins}`, `{cdi}`,
        `{kubeconfig}`, `{node}` and `{pod_uid}`. In the command, `{dir}` is replaced by the parent of all directories.
        The process has the variables `KUBECONFIG`, `NODE_NAME`, `CDI_ROOT`, `KUBELET_REGISTRAR_DIRECTORY_PATH` and
        `KUBELET_PLUGINS_DIRECTORY_PATH`. If the process exits on its own, waits raise `ExitedEarlyError`.

        Args:
            command: the program and its arguments.
            pod_uid: the UID of the pod in which the driver supposedly runs; use a different UID for a rolling update.
            environment: additional environment variables.
            cwd: the working directory of the process.

        Raises:
            CannotRunError: the program does not exist or is not executable.
        """
        places = {
            "{registry}": str(self.registry),
            "{plugins}": str(self.plugins),
            "{cdi}": str(self.cdi),
            "{kubeconfig}": str(self.kubeconfig),
            "{node}": self.node,
            "{pod_uid}": pod_uid,
        }
        variables = {**DRIVER_VARIABLES, **(environment or {})}
        return self._watch(
            PluginProcess(
                command,
                self.directory,
                placeholders=places,
                environment={name: with_texts(text, places) for name, text in variables.items()},
                cwd=cwd,
                changed=self._wake,
            )
        )

    def reboot(self) -> None:
        """Reboot the node: kill all drivers started with `run_driver`, empty the CDI directory, and start the kubelet.

        The kubelet's and the drivers' files stay, and so do their sockets, although no process serves them. Afterwards,
        run the drivers again.
        """
        self.stop()
        for process in self._processes:
            process.kill()
        shutil.rmtree(self.cdi)
        self.restart()

    def cdi_edits(self, name: str) -> Mapping[str, object]:
        """Return the `containerEdits` that a container gets for a CDI name, from the files in `cdi`.

        Raises:
            UnresolvedCdiNameError: no file in `cdi` defines the device.
            DocumentError: a file in `cdi` is neither JSON nor YAML.
        """
        # imported here, because only this method needs a YAML library
        from devicecore.system.documents import read_documents

        files = sorted(path for path in self.cdi.iterdir() if path.suffix in {".json", ".yaml"})
        for path in files:
            for document in read_documents(path.read_text(encoding="utf-8"), path.name):
                for device in document["devices"].sequence():
                    if f"{document['kind'].text()}={device['name'].text()}" == name:
                        edits: Mapping[str, object] = device.mapping()["containerEdits"].data  # type: ignore[assignment]  # it is a mapping
                        return edits
        raise UnresolvedCdiNameError(name, str(self.cdi), tuple(path.name for path in files))

    @checks_arguments()
    def drop_connection(self, driver: str) -> None:
        """Close the connections to a driver. The driver stays registered, and is reconnected immediately."""
        for instance in self.instances(driver):
            if self._grpc is not None:
                self._grpc.disconnect(instance)

    def _open_transport(self) -> DriverTransport:
        from devicecore.adapters.grpc_unix.dra import GrpcDriverTransport

        self._grpc = GrpcDriverTransport()
        return self._grpc

    def _new_devices(self) -> Kubelet:
        return Kubelet(
            self.directory / _SOCKETS,
            timeout=self.timeout,
            registry=self.registry,
            handlers=lambda: () if self._grpc is None else (self._grpc.handler,),
        )

    @property
    def _store(self) -> CheckpointStore:
        return FileStore(self.state_file)

    def _forget(self) -> None:
        self.state_file.unlink(missing_ok=True)

    def _where(self) -> str:
        entries = (path for path in self.registry.rglob("*") if path.is_socket())
        sockets = ", ".join(sorted(path.name for path in entries)) or "none"
        return f"drivers register in {self.registry}; sockets there: {sockets}"


class MemoryDraKubelet(InMemoryKubelet[DraManager, DriverEvent, DriverCall, MemoryDriverInstance], BaseDraKubelet):
    """A kubelet for drivers that are objects in this process, without sockets, threads or files.

    The kubelet's API server is just a store and does not listen.
    """

    @checks_arguments()
    def serve(self, driver: DraDriver, *, instance: str = "", services: Sequence[str] = SERVICES) -> Served:
        """Register a driver now, and again after each restart."""
        check_driver(driver, "serve")
        register = partial(self.register, driver, f"{driver.name}-{instance}.sock", tuple(services))
        return self._serve(InMemory(driver.name, register, MemoryDriverInstance.remove))

    @checks_arguments()
    def drop_connection(self, driver: str) -> None:
        """Disconnect a driver, and connect it again at once."""
        for served in self._served:
            if served.name == driver and served.connection is not None:
                served.connection.disconnect()
                served.connection.connect()

    def register(self, driver: DraDriver, endpoint: str, services: Sequence[str]) -> MemoryDriverInstance:
        """Register a driver once."""
        return self._memory.register(driver, endpoint, services)

    def _open_transport(self) -> DriverTransport:
        self._memory = MemoryDriverTransport()
        return self._memory

    def _new_devices(self) -> MemoryKubelet:
        return MemoryKubelet(timeout=self.timeout)
