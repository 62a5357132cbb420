"""A small cluster on this machine: nodes with real sockets and files, plugins in processes of their own.

Law: after a `Cluster`, no process, no socket and no file of it is left, unless its files are to be kept.
"""

import json
import logging
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self, TypedDict, TypeVar

from devicecore.adapters.file import CHECKPOINT_NAME, FileStore, JsonFileSink
from devicecore.adapters.grpc_unix import GrpcUnixTransport
from devicecore.domain.admission import Admitted, Verdict
from devicecore.domain.capacity import Insufficient, NodeStatus, insufficient, pod_request
from devicecore.domain.model import Container, Pod, ResourceName
from devicecore.manager import DeviceManager
from devicecore.ports.sink import NodeStatusSink
from devicecore.system.temporary import new_short_directory

T = TypeVar("T")

NodeJson = Mapping[str, Mapping[str, int | str]]
"""`capacity` and `allocatable` of a Node object."""

PATIENCE = 10.0  # seconds for something that takes one or two
_LAST_LINES = 20


class Cluster:
    """Nodes by name, and what runs on them.

    Args:
        native: capacity and allocatable of each node besides devices.
        keep: whether to leave the files behind.
    """

    def __init__(self, native: Mapping[str, NodeJson], *, keep: bool = False) -> None:
        self._keep = keep
        with delayed_signals():
            self.root: Path = new_short_directory()
        self.log: Path = self.root / "log"
        self._changed = threading.Condition()
        self.kubelets: tuple[ClusterNode, ...] = tuple(
            ClusterNode(name, self.root, node, self._notify) for name, node in native.items()
        )
        self.plugins: list[SimulatedPluginProcess] = []

    def __enter__(self) -> Self:
        self._handler = logging.FileHandler(self.log)
        logging.getLogger("devicecore").addHandler(self._handler)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with delayed_signals(), ExitStack() as last_to_first:
            if not self._keep or kind is not None:
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
        with delayed_signals():  # else a process could start that is not in the list
            plugin = SimulatedPluginProcess(kubelet.directory, resource, self.log, self._notify)
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
        """Remove every file. A second call does nothing."""
        if self.root.exists():
            shutil.rmtree(self.root)

    def last_log_lines(self) -> str:
        """The last lines that kubelets and plugins have logged."""
        lines = self.log.read_text().splitlines(keepends=True) if self.log.exists() else []
        return "".join(lines[-_LAST_LINES:])

    def sockets(self) -> list[str]:
        """The sockets there are now."""
        return sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_socket())

    def wait_for(self, look: Callable[[], T], expected: T) -> T:
        """Call `look` until it returns `expected`, a plugin has failed, or the time is over; its last result."""

        def has_failed() -> bool:
            return any(plugin.failed for plugin in self.plugins)

        with self._changed:
            self._changed.wait_for(lambda: look() == expected or has_failed(), PATIENCE)
            return look()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()


class ClusterNode:
    """One node: its device manager, and the files that outlive it.

    `pods` are those that run here, as the kubelet and the scheduler both know them.
    """

    def __init__(self, name: str, root: Path, native: NodeJson, notify: Callable[[], None]) -> None:
        self.name = name
        self.directory: Path = root / name
        self.checkpoint: Path = self.directory / CHECKPOINT_NAME
        self.pods: list[Pod] = []
        self._status = root / f"{name}.json"
        self._status.write_text(json.dumps(native))
        self._notify = notify
        self.manager: DeviceManager = self._new_manager()

    def _new_manager(self) -> DeviceManager:
        return DeviceManager(
            GrpcUnixTransport(self.directory),
            FileStore(self.checkpoint),
            _NotifyingSink(JsonFileSink(self._status), self._notify),
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
    """What a container has: its devices by resource, and its environment."""

    devices: dict[str, tuple[str, ...]]
    environment: dict[str, str]


class _NotifyingSink(NodeStatusSink):
    """Publishes to another sink, and then calls `notify`."""

    def __init__(self, sink: NodeStatusSink, notify: Callable[[], None]) -> None:
        self._sink = sink
        self._notify = notify

    def publish(self, status: NodeStatus) -> None:
        self._sink.publish(status)
        self._notify()


class SimulatedPluginProcess:
    """`devicecore plugin simulated` in a process of its own. When it ends, it calls `notify`."""

    def __init__(self, directory: Path, resource: ResourceName, log: Path, notify: Callable[[], None]) -> None:
        self.directory = directory
        self.resource = resource
        self.arguments: tuple[str, ...] = (
            *("plugin", "simulated", "--resource", resource),
            *("--prefix", resource, "--count", "10"),
            *("--variable", f"NVIDIA_VISIBLE_DEVICES/{resource}"),  # as the original plugin of both
        )
        command = (sys.executable, "-m", "devicecore", *self.arguments, "--socket-dir", str(directory), "--commands")
        with log.open("a") as output:
            self._process = subprocess.Popen(  # noqa: S603 - we are our own
                command, stdin=subprocess.PIPE, stdout=output, stderr=output, text=True, bufsize=1
            )
        assert self._process.stdin is not None, "it is a pipe"  # noqa: S101 - for mypy
        self._commands = self._process.stdin
        self._to_end = False
        self._notify = notify
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
        """Whether it has ended unexpectedly."""
        return self.status is not None and not self._to_end

    def obey(self, command: str) -> None:
        """Write a command to its standard input."""
        self._commands.write(f"{command}\n")

    def kill(self) -> None:
        """Kill it with SIGKILL: it cannot remove its socket."""
        self._to_end = True
        self._process.kill()
        self._watcher.join()
        self._commands.close()

    def stop(self) -> None:
        """Ask it to end, and wait. A second call does nothing."""
        self._to_end = True
        self._process.terminate()
        self._watcher.join(PATIENCE)
        if self.status is None:
            self.kill()
        self._commands.close()

    def _watch(self) -> None:
        self._process.wait()
        self._notify()


@contextmanager
def delayed_signals() -> Iterator[None]:
    """Delay SIGINT and SIGTERM to the end of the block."""
    late_signals: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        late_signals.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for late in late_signals:
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
