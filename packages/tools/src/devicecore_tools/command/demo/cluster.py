"""A small cluster on this machine: nodes with real sockets and files, plugins in separate processes.

Law: a `Cluster` leaves no process, socket or file behind, unless its files are to be kept.
"""

import json
import logging
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self, TypedDict, TypeVar

from devicecore.adapters.file import CHECKPOINT_NAME, FileStore, JsonFileSink
from devicecore.adapters.grpc_unix import GrpcUnixTransport
from devicecore.adapters.grpc_unix.dra import GrpcDriverTransport
from devicecore.adapters.manifests.claim_source import ManifestClaims
from devicecore.domain.admission import Admitted, Verdict
from devicecore.domain.allocation import PoolSlice, slice_of
from devicecore.domain.capacity import pod_request
from devicecore.domain.dra.model import DriverName
from devicecore.domain.dra.slices import DevicePool, changes
from devicecore.domain.dra.state_file import FILE_NAME as CLAIMS_NAME
from devicecore.domain.model import Container, Pod, ResourceName, is_extended_resource
from devicecore.dra_manager import DraManager
from devicecore.manager import DeviceManager
from devicecore.plugins.simulated_driver import published
from devicecore.system.directories import make_directories
from devicecore_tools.testing.temporary import new_short_directory

T = TypeVar("T")

NodeJson = Mapping[str, Mapping[str, int | str]]
"""`capacity` and `allocatable` of a Node object."""

PATIENCE = 10.0  # the time limit in seconds for something that normally takes one or two seconds
_LOOK_INTERVAL = 0.02  # the polling interval in seconds
_LAST_LINES = 20
_DRIVER_DEVICES = 8


class Cluster:
    """Nodes by name, with the processes that run on them.

    Args:
        native: each node's capacity and allocatable, not including devices.
        keep: whether to leave the files behind.
        check_signals: called repeatedly while the cluster waits; raises an exception if the demo has to end.
    """

    def __init__(
        self, native: Mapping[str, NodeJson], *, keep: bool = False, check_signals: Callable[[], None] = lambda: None
    ) -> None:
        self._keep = keep
        self.check_signals = check_signals
        self.root: Path = new_short_directory()
        self.log: Path = self.root / "log"
        self.nodes: tuple[ClusterNode, ...] = tuple(ClusterNode(name, self.root, node) for name, node in native.items())
        self.processes: list[SimulatedProcess] = []
        self._plugins: dict[tuple[str, ResourceName], SimulatedProcess] = {}

    def __enter__(self) -> Self:
        self._handler = logging.FileHandler(self.log)
        logging.getLogger("devicecore").addHandler(self._handler)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with ExitStack() as last_to_first:
            if not self._keep or kind is not None:
                last_to_first.callback(self.clear)
            last_to_first.callback(self._handler.close)
            last_to_first.callback(logging.getLogger("devicecore").removeHandler, self._handler)
            last_to_first.callback(self.stop)

    def stop(self) -> None:
        """Stop every node, plugin and driver. Files stay."""
        with ExitStack() as last_to_first:
            for process in self.processes:
                last_to_first.callback(process.stop)
            for node in self.nodes:
                last_to_first.callback(node.stop)

    def start_plugin(self, node: "ClusterNode", resource: ResourceName) -> "SimulatedProcess":
        """Start a simulated device plugin on a node."""
        arguments = (
            *("plugin", "simulated", "--resource", resource),
            *("--prefix", resource, "--count", "10"),
            *("--variable", f"NVIDIA_VISIBLE_DEVICES/{resource}"),  # one variable per resource, named after NVIDIA's
        )
        self._plugins[node.name, resource] = plugin = self._start(arguments, "--socket-dir", node.directory)
        return plugin

    def start_driver(self, node: "ClusterNode", name: str) -> "SimulatedProcess":
        """Start a simulated DRA driver on a node."""
        options = ("registry", "plugin-dir", "cdi-dir", "manifests")
        places = [f"--{option}={node.directory / option}" for option in options]
        arguments = ("dra-driver", "simulated", "--name", name, "--node", node.name, "--count", str(_DRIVER_DEVICES))
        return self._start(arguments, *places)

    @staticmethod
    def driver_slices(node: "ClusterNode", name: str) -> list[PoolSlice]:
        """Return the ResourceSlices that this driver would publish on an API server."""
        devices = published([f"dev-{number}" for number in range(_DRIVER_DEVICES)])
        pool = DevicePool(DriverName(name), node.name, node.name, devices)
        return [slice_of(one) for one in changes(pool, "", ()).create]

    def _start(self, arguments: tuple[str, ...], *places: str | Path) -> "SimulatedProcess":
        self.processes.append(process := SimulatedProcess(arguments, places, self.log))
        return process

    def plugin(self, node: "ClusterNode", resource: ResourceName) -> "SimulatedProcess":
        """Return the plugin that was started last on a node for a resource."""
        return self._plugins[node.name, resource]

    def clear(self) -> None:
        """Remove every file. A second call does nothing."""
        if self.root.exists():
            shutil.rmtree(self.root)

    def last_log_lines(self) -> str:
        """Return the last lines of the logs of nodes, plugins and drivers."""
        lines = self.log.read_text().splitlines(keepends=True) if self.log.exists() else []
        return "".join(lines[-_LAST_LINES:])

    def sockets(self) -> list[str]:
        """Return the sockets that currently exist in the cluster's directory."""
        return sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_socket())

    def wait_for(self, look: Callable[[], T], expected: T) -> T:
        """Call `look` until it returns `expected`, a process fails, or the time is up. Return the last result."""
        end = time.monotonic() + PATIENCE
        while (seen := look()) != expected and time.monotonic() < end:
            self.check_signals()
            if any(process.failed for process in self.processes):
                break
            time.sleep(_LOOK_INTERVAL)
        return seen


class ClusterNode:
    """One node: its device manager, its DRA manager, and their persistent files.

    `pods` contains the pods on this node, which both the kubelet and the scheduler know.
    """

    def __init__(self, name: str, root: Path, native: NodeJson) -> None:
        self.name = name
        self.directory: Path = root / name
        self.checkpoint: Path = self.directory / CHECKPOINT_NAME
        self.manifests: Path = self.directory / "manifests"
        self.cdi: Path = self.directory / "cdi-dir"
        self.pods: list[Pod] = []
        self._status = root / f"{name}.json"
        self._status.write_text(json.dumps(native))
        self._make_managers()

    def _make_managers(self) -> None:
        self.manager: DeviceManager = DeviceManager(
            GrpcUnixTransport(self.directory), FileStore(self.checkpoint), JsonFileSink(self._status)
        )
        self.claims: DraManager = DraManager(
            GrpcDriverTransport(self.directory / "registry"),
            ManifestClaims(self.manifests),
            FileStore(self.directory / CLAIMS_NAME),
        )

    def start(self) -> None:
        """Start both managers."""
        make_directories(self.manifests)
        self.manager.start()
        self.claims.start()

    def stop(self) -> None:
        """Stop both managers. Stopping twice, or before the start, is not an error."""
        with ExitStack() as last_to_first:
            last_to_first.callback(self.manager.stop)
            last_to_first.callback(self.claims.stop)

    def restart(self) -> None:
        """Restart the node as a new process would, from its files alone."""
        self.stop()
        self._make_managers()
        self.start()

    def status(self) -> NodeJson:
        """Return what schedulers see of the node."""
        status: NodeJson = json.loads(self._status.read_bytes())
        return status

    def counts(self, resource: ResourceName) -> tuple[int | str | None, int | str | None]:
        """Return capacity and allocatable of one resource; both are None if the node does not know the resource."""
        status = self.status()
        return status["capacity"].get(resource), status["allocatable"].get(resource)

    def lacks(self, pod: Pod) -> list[str]:
        """Return the resources of which the node has too little left for `pod`."""
        allocatable = {name: count for name, count in self.status()["allocatable"].items() if isinstance(count, int)}
        used = Counter[str]()
        for running in self.pods:
            used.update(pod_request(running))
        return lacking(pod, allocatable, used)

    def run(self, pod: Pod) -> Verdict:
        """Admit a pod, or readmit a pod that already runs on this node."""
        verdict = self.manager.admit(pod)
        if isinstance(verdict, Admitted) and pod not in self.pods:
            self.pods.append(pod)
        return verdict

    def containers(self) -> dict[str, "Given"]:
        """Return the devices and the environment of each container, by container name."""
        return {container.name: self._given(pod, container) for pod in self.pods for container in pod.containers}

    def _given(self, pod: Pod, container: Container) -> "Given":
        held = self.manager.state.ledger.of_container(pod.key(container))
        options = self.manager.options(pod, container.name)
        return {
            "devices": {one.resource: tuple(one.devices) for one in held},
            "environment": dict(options.envs) if options else {},
        }


class Given(TypedDict):
    """What a container was given: its devices by resource, and its environment variables."""

    devices: dict[str, tuple[str, ...]]
    environment: dict[str, str]


class SimulatedProcess:
    """A `devicecore` command in a separate process: a simulated plugin or driver.

    When the command is shown, the options in `places` are left out.
    """

    def __init__(self, arguments: tuple[str, ...], places: Sequence[str | Path], log: Path) -> None:
        self.arguments = arguments
        command = (sys.executable, "-m", "devicecore_tools", *arguments, *map(str, places), "--commands")
        with log.open("a") as output:
            self._process = subprocess.Popen(  # noqa: S603 - it is our own command
                command, stdin=subprocess.PIPE, stdout=output, stderr=output, text=True, bufsize=1
            )
        assert self._process.stdin is not None, "it is a pipe"  # noqa: S101 - for mypy
        self._commands = self._process.stdin
        self._to_end = False

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status, or None while the process is running.

        If a signal killed the process, the status is the negative of the signal's number.
        """
        return self._process.poll()

    @property
    def failed(self) -> bool:
        """Whether the process has ended unexpectedly."""
        return self.status is not None and not self._to_end

    def obey(self, command: str) -> None:
        """Write a command to the standard input of the process."""
        self._commands.write(f"{command}\n")

    def kill(self) -> None:
        """Kill the process with SIGKILL, so that it cannot remove its socket."""
        self._to_end = True
        self._process.kill()
        self._process.wait()
        self._commands.close()

    def stop(self) -> None:
        """Ask the process to end, and wait until it has. A second call does nothing."""
        self._to_end = True
        self._process.terminate()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
        self._commands.close()


def lacking(pod: Pod, allocatable: Mapping[str, int], used: Mapping[str, int]) -> list[str]:
    """Return the extended resources of which `pod` needs more at its peak than are free."""
    return [
        name
        for name, count in sorted(pod_request(pod).items())
        if is_extended_resource(name) and count > max(0, allocatable.get(name, 0) - used.get(name, 0))
    ]


def schedule(pod: Pod, nodes: tuple[ClusterNode, ...]) -> ClusterNode | str:
    """Return the first node that has enough of everything for `pod`, or else kube-scheduler's message about the pod."""
    lacks = {node: node.lacks(pod) for node in nodes}
    if fitting := [node for node in nodes if not lacks[node]]:
        return fitting[0]
    reasons = Counter(name for names in lacks.values() for name in names)
    counted = ", ".join(sorted(f"{count} Insufficient {name}" for name, count in reasons.items()))
    return f"0/{len(nodes)} nodes are available: {counted}."
