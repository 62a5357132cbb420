"""What real kubelets and devicecore nodes in a real cluster have in common: for example, plugins and drivers."""

import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from attrs import define, field
from devicecore_tools.conformance.faults import PLUGIN

from tests.real_cluster.control_plane import ControlPlane, say
from tests.real_cluster.plants import VARIABLE
from tests.real_cluster.programs import Program, wait_for

Json = Any

GPU = "acme.io/gpu"
"""The extended resource in the examples."""

_PLANTED = Path(__file__).with_name("planted.py")
DEVICECORE = (
    (sys.executable, "-P", str(_PLANTED)) if os.environ.get(VARIABLE) else (sys.executable, "-m", "devicecore_tools")
)
"""The command `devicecore`, with the injected fault that an environment variable names, if any."""
_START = 90.0  # seconds within which the Node must be ready
_SETTLED = 30.0  # seconds within which the Node shows a change


@define
class ClusterNode(ABC):
    """A node in a real cluster that runs from `start` to `stop`, or in a `with` statement.

    Attributes:
        plane: the control plane that the node registers with.
        name: the name of the Node.
    """

    plane: ControlPlane
    name: str = "worker-1"
    _last_to_first: ExitStack = field(factory=ExitStack, init=False)
    _parts: dict[str, Program] = field(factory=dict, init=False)

    @abstractmethod
    def begin(self) -> None:
        """Start the node's programs."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    @property
    def home(self) -> Path:
        """The directory that contains all of the node's files."""
        return self.plane.directory / self.name

    @property
    def directory(self) -> Path:
        """The kubelet's /var/lib/kubelet. Drivers register in its `plugins_registry`."""
        return self.home / "lib" / "kubelet"

    @property
    def device_plugins(self) -> Path:
        """The directory of device plugins, with the kubelet's socket and checkpoint."""
        return self.directory / "device-plugins"

    @property
    def kubelet(self) -> Program:
        """The process that acts as the node's kubelet."""
        return self._parts["kubelet"]

    def start(self) -> None:
        """Start the node, and wait until it is ready."""
        try:
            for directory in (self.directory, self.cdi):  # doctor refuses a missing --cdi-dir
                directory.mkdir(parents=True, exist_ok=True)
            self.begin()
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        say(f"{type(self).__name__} has registered the Node {self.name}")

    def stop(self) -> None:
        """Stop all of the node's programs. The Node object stays, as if the machine were off."""
        self._last_to_first.close()
        self._parts = {}

    def wait_until_ready(self, timeout: float = _START) -> Json:
        """Wait until the Node is ready, and return the Node."""

        def ready() -> Json:
            node = self.plane.admin.get("Node", self.name)
            return node if node and is_ready(node) else None

        return self.kubelet.wait_for(f"Node {self.name} to be ready", ready, timeout)

    @contextmanager
    def without_kubelet(self) -> Iterator[None]:
        """Stop the kubelet, and start it again at the end of the `with` statement."""
        self.kubelet.stop()
        yield
        self.kubelet.start()
        self.wait_until_ready()

    def run(self, pod: Json) -> Json:
        """Create a pod that the scheduler can assign only to this node, and return the pod once it is running."""
        self.plane.admin.create(on_node(pod, self.name))
        return self.plane.admin.wait_for_phase(pod["metadata"]["name"], "Running")

    def bind(self, pod: Json) -> None:
        """Create a pod that is already bound to the node, so that no scheduler handles it."""
        self.plane.admin.create({**pod, "spec": {**pod["spec"], "nodeName": self.name}})

    def plugin(self, resource: str = GPU, count: int = 4, *options: str, name: str = "") -> Program:
        """Start a simulated plugin, and wait until the Node has the plugin's healthy devices.

        `options` are passed to `devicecore plugin simulated`; `name` distinguishes additional plugins.
        """
        words = ["plugin", "simulated", f"--resource={resource}", f"--count={count}"]
        plugin = self.program(name or f"plugin-{resource.partition('/')[2]}", *self.command(*words), *options)
        self.wait_for_resource(resource, count if not any("unhealthy" in one for one in options) else None)
        return plugin

    def driver(self, name: str = "gpu.example.com", count: int = 4, *options: str) -> Program:
        """Start a simulated DRA driver, and wait until it has published its devices.

        `options` are passed to `devicecore dra-driver simulated`.
        """
        driver = self.program(f"driver-{name}", *self.driver_command(name, count), *options)
        self.wait_for_devices(name, count)
        return driver

    def driver_command(self, name: str, count: int, node: str = "", kubeconfig: Path | None = None) -> list[str]:
        """Return the command that runs a simulated DRA driver.

        By default, the driver publishes for this node and has permission to do so.
        """
        words = ["dra-driver", "simulated", f"--name={name}", f"--count={count}", f"--node={node or self.name}"]
        words += [f"--kubeconfig={kubeconfig or self.plane.kubeconfig()}"]
        words += [f"--registry={self.directory / 'plugins_registry'}", f"--plugin-dir={self.directory / 'plugins'}"]
        return self.command(*words, f"--cdi-dir={self.cdi}")

    def faulty_plugin(self, fault: str) -> Program:
        """Start a plugin that serves three devices of `example.com/chip` and has one fault."""
        return self.program(f"plugin-{fault}", *self.faulty_plugin_command(fault))

    def faulty_plugin_command(self, fault: str) -> list[str]:
        """Return the command that runs a plugin with one fault."""
        return [sys.executable, str(PLUGIN), str(self.device_plugins), fault]

    def wait_for_devices(self, driver: str, count: int) -> None:
        """Wait until the driver's ResourceSlices contain this many devices on the node."""

        def published() -> bool:
            slices = [one["spec"] for one in self.plane.admin.list("ResourceSlice") if one["spec"]["driver"] == driver]
            return sum(len(one.get("devices", ())) for one in slices if one.get("nodeName") == self.name) == count

        wait_for(f"{count} devices of {driver} in ResourceSlices", published)

    def wait_for_resource(self, resource: str, count: int | None) -> None:
        """Wait until the Node's allocatable contains a resource, with this count unless `count` is None."""

        def look(node: Json) -> bool:
            shown = node["status"].get("allocatable", {}).get(resource)
            return shown is not None and count in (None, int(shown))

        shown = "" if count is None else f"{count} "
        self.plane.admin.wait("Node", self.name, f"to have {shown}{resource}", look)

    def wait_for_node(self, expected: str, look: Callable[[Json], object]) -> Json:
        """Wait until the Node shows a change, so that every later reader sees the change, and return the Node."""
        return self.plane.admin.wait("Node", self.name, expected, look, timeout=_SETTLED)

    @property
    def cdi(self) -> Path:
        """The CDI directory that the drivers started by `driver` use."""
        return self.home / "cdi"

    @staticmethod
    def command(*words: str) -> list[str]:
        """Return the arguments that run a devicecore command."""
        return [*DEVICECORE, *words]

    def program(self, name: str, *command: str) -> Program:
        """Start a program in the background.

        The program ends with the node. A later program with the same name replaces it.
        """
        environment = {"DEVICE_PLUGIN_PATH": str(self.device_plugins)}
        program = Program(name, command, self.home, environment)
        self._last_to_first.callback(program.stop)
        program.start()
        return program

    def _run(self, name: str, *command: str) -> None:
        """Start a program that ends with the node."""
        self._parts[name] = part = Program(name, command, self.home)
        self._last_to_first.callback(part.stop)
        part.start()


@define
class OurNode(ClusterNode):
    """`devicecore kubelet` as a node of the cluster, with the node's own credentials.

    Attributes:
        options: additional options for the command.
    """

    options: tuple[str, ...] = ()

    def begin(self) -> None:
        """Start the command."""
        words = [f"--root={self.directory}", f"--kubeconfig={self.plane.node_kubeconfig(self.name)}"]
        words += [f"--node-name={self.name}", "--register-node", "--no-default-taint", *self.options]
        self._run("kubelet", *DEVICECORE, "kubelet", *words)


@define
class FleetNode(ClusterNode):
    """The only node of a fleet, whose file also defines a plugin and a driver.

    Attributes:
        capacity: the size of the node, and other fields for the node in the fleet's file.
        devices: the number of devices of the plugin and of the driver.
    """

    capacity: Mapping[str, Json] = field(factory=dict)
    devices: int = 4

    def begin(self) -> None:
        """Start the fleet."""
        driver = {"name": "gpu.example.com", "devices": [{"name": "dev-{number}", "count": self.devices}]}
        plugin = {"resource": GPU, "devices": self.devices}
        node = {"name": self.name, **self.capacity, "plugins": [plugin], "drivers": [driver]}
        file = self.home / "fleet.yaml"
        file.write_text(json.dumps({"nodes": [node]}), encoding="utf-8")
        self._run(
            "kubelet", *DEVICECORE, "fleet", "run", str(file), f"--kubeconfig={self.plane.kubeconfig()}", "--no-taint"
        )

    def plugin(self, resource: str = GPU, count: int = 4, *_options: str, name: str = "") -> Program:
        """Wait until the Node has the devices of the fleet's plugin."""
        self.wait_for_resource(resource, count)
        return self.kubelet

    def driver(self, name: str = "gpu.example.com", count: int = 4, *_options: str) -> Program:
        """Wait until the devices of the fleet's driver are published."""
        self.wait_for_devices(name, count)
        return self.kubelet


def on_node(pod: Json, node: str) -> Json:
    """Return a copy of the pod that the scheduler can assign only to this node."""
    return {**pod, "spec": {**pod["spec"], "nodeSelector": {"kubernetes.io/hostname": node}}}


def is_ready(node: Json) -> bool:
    """Return whether the condition Ready of a Node is true."""
    return any(
        one["type"] == "Ready" and one["status"] == "True" for one in (node.get("status") or {}).get("conditions") or []
    )
