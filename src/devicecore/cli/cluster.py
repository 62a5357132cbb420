"""A small cluster on this machine: nodes with real sockets and files, plugins in processes of their own.

Law: whatever happens in between, whoever leaves a `Cluster` leaves no process, no socket and no file of it behind.
"""

import json
import logging
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Self, TypedDict, TypeVar

from devicecore.adapters.file import CHECKPOINT_NAME, FileStore, JsonFileSink
from devicecore.adapters.grpc_unix import GrpcUnixTransport
from devicecore.domain.admission import Admitted, Verdict
from devicecore.domain.capacity import Insufficient, NodeStatus, insufficient, pod_request
from devicecore.domain.model import Container, Pod, ResourceName
from devicecore.manager import DeviceManager
from devicecore.ports.sink import NodeStatusSink
from devicecore.system.temporary import short_directory

T = TypeVar("T")

NodeJson = Mapping[str, Mapping[str, int | str]]
"""`capacity` and `allocatable` of a Node object."""

PATIENCE = 10.0  # seconds for something that takes one or two
_LAST_LINES = 20


class Cluster:
    """Nodes by name, and what runs on them. `native` is what each has that is no device plugin's."""

    def __init__(self, native: Mapping[str, NodeJson]) -> None:
        with undisturbed():
            self._directory = short_directory()
        self.root: Path = Path(self._directory.name)
        self.log: Path = self.root / "log"
        self._changed = threading.Condition()
        self.kubelets: tuple[ClusterNode, ...] = tuple(
            ClusterNode(name, self.root, node, self._ring) for name, node in native.items()
        )
        self.plugins: list[SimulatedPluginProcess] = []

    def __enter__(self) -> Self:
        self._handler = logging.FileHandler(self.log)
        logging.getLogger("devicecore").addHandler(self._handler)
        return self

    def __exit__(self, *_: object) -> None:
        with undisturbed(), ExitStack() as last_to_first:
            last_to_first.callback(self.clear)
            last_to_first.callback(self._handler.close)
            last_to_first.callback(logging.getLogger("devicecore").removeHandler, self._handler)
            last_to_first.callback(self.stop)

    def stop(self) -> None:
        """Stop every kubelet and every plugin. Files stay."""
        with ExitStack() as last_to_first:
            for plugin in self.plugins:
                last_to_first.callback(plugin.stop)
            for kubelet in self.kubelets:
                last_to_first.callback(kubelet.stop)

    def start_plugin(self, kubelet: "ClusterNode", resource: ResourceName) -> "SimulatedPluginProcess":
        """Start a simulated device plugin on a node."""
        with undisturbed():  # or there would be a process, and nobody who knows it
            plugin = SimulatedPluginProcess(kubelet.directory, resource, self.log, self._ring)
            self.plugins.append(plugin)
        return plugin

    def plugin(self, kubelet: "ClusterNode", resource: ResourceName) -> "SimulatedPluginProcess":
        """The plugin that was started last on a node for a resource."""
        return next(
            plugin
            for plugin in reversed(self.plugins)
            if (plugin.directory, plugin.resource) == (kubelet.directory, resource)
        )

    def clear(self) -> None:
        """Remove every file. Twice is no error."""
        self._directory.cleanup()

    def last_words(self) -> str:
        """The end of what kubelets and plugins have logged."""
        lines = self.log.read_text().splitlines(keepends=True) if self.log.exists() else []
        return "".join(lines[-_LAST_LINES:])

    def sockets(self) -> list[str]:
        """The sockets there are now."""
        return sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_socket())

    def wait_for(self, look: Callable[[], T], expected: T) -> T:
        """What `look` sees: as soon as it is `expected`, or else when there is nothing left to wait for."""

        def in_vain() -> bool:
            return any(plugin.failed for plugin in self.plugins)

        with self._changed:
            self._changed.wait_for(lambda: look() == expected or in_vain(), PATIENCE)
            return look()

    def _ring(self) -> None:
        with self._changed:
            self._changed.notify_all()


class ClusterNode:
    """One node: its device manager, and the files that outlive it.

    `pods` are those that run here, as the kubelet and the scheduler both know them.
    """

    def __init__(self, name: str, root: Path, native: NodeJson, ring: Callable[[], None]) -> None:
        self.name = name
        self.directory: Path = root / name
        self.checkpoint: Path = self.directory / CHECKPOINT_NAME
        self.pods: list[Pod] = []
        self._status = root / f"{name}.json"
        self._status.write_text(json.dumps(native))
        self._ring = ring
        self.manager: DeviceManager = self._new_manager()

    def _new_manager(self) -> DeviceManager:
        return DeviceManager(
            GrpcUnixTransport(self.directory),
            FileStore(self.checkpoint),
            _RingingSink(JsonFileSink(self._status), self._ring),
        )

    def start(self) -> None:
        """Start the device manager."""
        self.manager.start()

    def stop(self) -> None:
        """Stop it. Twice, or before the start, is no error."""
        self.manager.stop()

    def restart(self) -> None:
        """Begin again, as a new process would: with nothing but the files."""
        self.stop()
        self.manager = self._new_manager()
        self.start()

    def status(self) -> NodeJson:
        """What schedulers see of the node."""
        status: NodeJson = json.loads(self._status.read_bytes())
        return status

    def counts(self, resource: ResourceName) -> tuple[int | str | None, int | str | None]:
        """Capacity and allocatable of one resource; None where the node does not know it."""
        status = self.status()
        return status["capacity"].get(resource), status["allocatable"].get(resource)

    def lacks(self, pod: Pod) -> tuple[Insufficient, ...]:
        """What there is too little of here for one more pod."""
        allocatable = {
            ResourceName(name): int(count)
            for name, count in self.status()["allocatable"].items()
            if isinstance(count, int)
        }
        used = Counter[ResourceName]()
        for running in self.pods:
            used.update({ResourceName(name): count for name, count in pod_request(running).items()})
        return insufficient(pod, allocatable, used)

    def run(self, pod: Pod) -> Verdict:
        """Admit a pod, or admit again one that runs here already."""
        verdict = self.manager.admit(pod)
        if isinstance(verdict, Admitted) and pod not in self.pods:
            self.pods.append(pod)
        return verdict

    def containers(self) -> dict[str, "Given"]:
        """What each container has."""
        return {container.name: self._given(pod, container) for pod in self.pods for container in pod.containers}

    def _given(self, pod: Pod, container: Container) -> "Given":
        held = self.manager.state.ledger.of_container(pod.key(container))
        options = self.manager.options(pod, container.name)
        return {
            "devices": {one.resource: tuple(one.devices) for one in held},
            "environment": dict(options.envs) if options else {},
        }


class Given(TypedDict):
    """The devices of a container by resource, and its environment."""

    devices: dict[str, tuple[str, ...]]
    environment: dict[str, str]


class _RingingSink(NodeStatusSink):
    """Another sink, and a bell that rings after every publication."""

    def __init__(self, sink: NodeStatusSink, ring: Callable[[], None]) -> None:
        self._sink = sink
        self._ring = ring

    def publish(self, status: NodeStatus) -> None:
        self._sink.publish(status)
        self._ring()


class SimulatedPluginProcess:
    """`devicecore plugin simulated` in a process of its own. When it ends, it rings."""

    def __init__(self, directory: Path, resource: ResourceName, log: Path, ring: Callable[[], None]) -> None:
        self.directory = directory
        self.resource = resource
        self.arguments: tuple[str, ...] = (
            *("plugin", "simulated", "--resource", resource),
            *("--prefix", resource, "--count", "10"),
        )
        command = (sys.executable, "-m", "devicecore", *self.arguments, "--socket-dir", str(directory), "--commands")
        with log.open("a") as output:
            self._process = subprocess.Popen(  # noqa: S603 - we are our own
                command, stdin=subprocess.PIPE, stdout=output, stderr=output, text=True, bufsize=1
            )
        assert self._process.stdin is not None, "it is a pipe"  # noqa: S101 - for mypy
        self._commands = self._process.stdin
        self._to_end = False
        self._ring = ring
        self._watcher = threading.Thread(target=self._watch, name="devicecore-watcher", daemon=True)
        self._watcher.start()

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Its exit status; minus the signal's number if one killed it, None while it runs."""
        return self._process.poll()

    @property
    def failed(self) -> bool:
        """Whether it has ended, and nobody wanted it to."""
        return self.status is not None and not self._to_end

    def tell(self, command: str) -> None:
        """Give it a line to obey."""
        self._commands.write(f"{command}\n")

    def kill(self) -> None:
        """Kill it, so that it cannot say goodbye."""
        self._to_end = True
        self._process.kill()
        self._watcher.join()
        self._commands.close()

    def stop(self) -> None:
        """Ask it to end, and wait. Twice is no error."""
        self._to_end = True
        self._process.terminate()
        self._watcher.join(PATIENCE)
        if self.status is None:
            self.kill()
        self._commands.close()

    def _watch(self) -> None:
        self._process.wait()
        self._ring()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let SIGINT and SIGTERM wait for the end of what is begun in here."""
    came: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        came.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for late in came:
            signal.raise_signal(late)


def schedule(pod: Pod, kubelets: tuple[ClusterNode, ...]) -> ClusterNode | str:
    """The first node that has enough of everything for `pod`; else what kube-scheduler says of it."""
    lacking = {kubelet: kubelet.lacks(pod) for kubelet in kubelets}
    for kubelet, lacks in lacking.items():
        if not lacks:
            return kubelet
    reasons = Counter(str(lack) for lacks in lacking.values() for lack in lacks)
    counted = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
    return f"0/{len(kubelets)} nodes are available: {counted}."
