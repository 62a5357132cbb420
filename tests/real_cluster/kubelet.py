"""A real kubelet on this machine, with a container runtime that runs nothing (`peers/cri`).

Law: nothing of the machine changes, because the kubelet has a mount namespace of its own. There /var/lib is a directory
of the run, and the kernel's settings that a kubelet writes are files of the run. Outside of it, the kubelet's directory
is `RealKubelet.directory`.
"""

import json
import os
import shlex
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from attrs import define, field

from tests.real_cluster.control_plane import ControlPlane, say
from tests.real_cluster.programs import Program, RealClusterError, free_port

Json = Any

_SETTINGS = (
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
)
_START = 90.0  # seconds until the Node is ready


@define
class RealKubelet:
    """A kubelet, from `start` to `stop` or in a `with` statement. Its Node has the name `name`.

    `kubelet` and `runtime` are processes that can each be stopped, killed, paused and started again.

    Attributes:
        plane: the control plane that the kubelet registers with.
        name: of the Node.
        config: fields of KubeletConfiguration that replace ours.
        arguments: further arguments of the kubelet.
    """

    plane: ControlPlane
    name: str = "worker-1"
    config: Mapping[str, Json] = field(factory=dict)
    arguments: tuple[str, ...] = ()
    _last_to_first: ExitStack = field(factory=ExitStack, init=False)
    _parts: dict[str, Program] = field(factory=dict, init=False)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    @property
    def _home(self) -> Path:
        return self.plane.directory / self.name

    @property
    def directory(self) -> Path:
        """What is /var/lib/kubelet for the kubelet. Drivers register in `plugins_registry` of it."""
        return self._home / "lib" / "kubelet"

    @property
    def device_plugins(self) -> Path:
        """The directory of device plugins, of the kubelet's socket and of its checkpoint."""
        return self.directory / "device-plugins"

    @property
    def kubelet(self) -> Program:
        """The process of the kubelet. Its `pid` has the mount namespace of the kubelet."""
        return self._parts["kubelet"]

    @property
    def runtime(self) -> Program:
        """The process of the container runtime."""
        return self._parts["cri"]

    def start(self) -> None:
        """Start the runtime and the kubelet, and wait until the Node is ready."""
        self.plane.programs.check(["cri", "kubelet"])
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the kubelet and the runtime. The Node stays, as that of a machine that is off."""
        self._last_to_first.close()
        self._parts = {}

    def wait_until_ready(self, timeout: float = _START) -> Json:
        """Wait until the Node is ready, and return it."""

        def ready() -> Json:
            node = self.plane.admin.get("Node", self.name)
            return node if node and is_ready(node) else None

        return self.kubelet.wait_for(f"Node {self.name} to be ready", ready, timeout)

    def containers(self) -> list[Json]:
        """Return what `peers/cri` has recorded: what containers were given, and when they began and ended."""
        file = self._home / "cri" / "containers.jsonl"
        return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []

    def container(self, pod: str, container: str = "main") -> Json:
        """Return what the last instance of a container was given."""
        found = [one for one in self.containers() if (one["event"], one["pod"]) == ("created", pod)]
        found = [one for one in found if one["container"] == container]
        if not found:
            raise RealClusterError(f"the runtime has created no container {container} of the pod {pod}")
        return found[-1]

    def break_runtime(self, what: str, text: str) -> None:
        """Make the runtime fail: `runtime-not-ready`, `network-not-ready` or `refuse/METHOD`, with a message."""
        file = self._home / "cri" / what
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def mend_runtime(self, what: str) -> None:
        """Undo `break_runtime`."""
        (self._home / "cri" / what).unlink(missing_ok=True)

    def end_container(self, pod: str, code: int = 0, container: str = "main", namespace: str = "default") -> None:
        """End a container with an exit code."""
        self.break_runtime(f"exit/{namespace}_{pod}_{container}", str(code))

    def _start(self) -> None:
        home = self._home
        self.directory.mkdir(parents=True, exist_ok=True)
        socket = home / "cri.sock"
        runtime = [self.plane.programs.path("cri"), f"--socket={socket}", f"--state={home / 'cri'}"]
        config = home / "kubelet.json"
        config.write_text(json.dumps(self._config(socket), indent=1), encoding="utf-8")
        words = [
            self.plane.programs.path("kubelet"),
            f"--config={config}",
            f"--kubeconfig={self.plane.node_kubeconfig(self.name)}",
            f"--hostname-override={self.name}",
            f"--root-dir={self.directory}",
            f"--cert-dir={home / 'pki'}",
            *self.arguments,
        ]
        own = "" if os.geteuid() == 0 else "--map-root-user"
        mounts = {home / "lib": Path("/var/lib"), **self._settings()}
        script = " && ".join(
            [*(shlex.join(["mount", "--bind", str(ours), str(its)]) for ours, its in mounts.items()), "exec "]
        ) + shlex.join(words)
        kubelet = ["unshare", "--mount", *own.split(), "sh", "-c", script]
        for name, command in (("cri", runtime), ("kubelet", kubelet)):
            self._parts[name] = part = Program(name, command, home)
            self._last_to_first.callback(part.stop)
            part.start()
        self.wait_until_ready()
        say(f"a real kubelet has registered the Node {self.name}")

    def _settings(self) -> dict[Path, Path]:
        """Copy the kernel's settings that a kubelet writes. Return each copy with its original."""
        copies = {self._home / "sys" / one.replace("/", "_"): Path("/proc/sys") / one for one in _SETTINGS}
        for ours, its in copies.items():
            ours.parent.mkdir(exist_ok=True)
            ours.write_bytes(its.read_bytes())
        return copies

    def _config(self, socket: Path) -> Json:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "127.0.0.1",
            "port": free_port(),
            "healthzPort": 0,
            "authentication": {"x509": {"clientCAFile": str(self.plane.authority.certificate)}},
            "containerRuntimeEndpoint": f"unix://{socket}",
            "podLogsDir": str(self._home / "logs"),
            "volumePluginDir": str(self._home / "volume-plugins"),
            # The machine of a test may allow none of these, and has no use for them.
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            "evictionHard": {},
            "makeIPTablesUtilChains": False,
            "featureGates": {"KubeletInUserNamespace": True},  # /dev/kmsg may be out of reach
            **self.config,
        }


def is_ready(node: Json) -> bool:
    """Whether the condition Ready of a Node is true."""
    return any(
        one["type"] == "Ready" and one["status"] == "True" for one in (node.get("status") or {}).get("conditions") or []
    )
