"""A real kubelet on this machine, with a container runtime that runs nothing (`peers/cri`).

Law: the machine does not change, because the kubelet has a separate mount namespace. In this namespace, a directory and
files that belong to the run replace /var/lib and the kernel settings that a kubelet writes. Outside the namespace, the
kubelet's directory is `RealKubelet.directory`.
"""

import json
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import define, field
from devicecore_tools.numa import MACHINE_FILE

from tests.real_cluster.node import ClusterNode
from tests.real_cluster.programs import Program, RealClusterError, free_port
from tools.make_peers import DESCRIBED

Json = Any

_SETTINGS = (
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
)


@define
class RealKubelet(ClusterNode):
    """A node with a real kubelet. `kubelet` and `runtime` can each be stopped, killed, paused and started again.

    The kubelet's mount namespace is that of the process `kubelet.pid`.

    Attributes:
        config: fields of KubeletConfiguration that replace the default ones.
        arguments: additional arguments for the kubelet.
        machine: CPUs and memory, in cAdvisor's format, that the kubelet believes its machine has.
    """

    config: Mapping[str, Json] = field(factory=dict)
    arguments: tuple[str, ...] = ()
    machine: Json = None

    @property
    def runtime(self) -> Program:
        """The container runtime's process."""
        return self._parts["cri"]

    def containers(self) -> list[Json]:
        """Return the records from `peers/cri`: the settings of each container, and when it started and ended."""
        file = self.home / "cri" / "containers.jsonl"
        return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []

    def container(self, pod: str, container: str = "main") -> Json:
        """Return the settings that the last instance of a container got."""
        found = [one for one in self.containers() if (one["event"], one["pod"]) == ("created", pod)]
        found = [one for one in found if one["container"] == container]
        if not found:
            raise RealClusterError(f"the runtime has created no container {container} of the pod {pod}")
        return found[-1]

    def break_runtime(self, what: str, text: str) -> None:
        """Make the runtime fail with a message. `what`: `runtime-not-ready`, `network-not-ready` or `refuse/METHOD`."""
        file = self.home / "cri" / what
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def end_container(self, pod: str, code: int = 0, container: str = "main", namespace: str = "default") -> None:
        """Make the runtime end a container with an exit code."""
        self.break_runtime(f"exit/{namespace}_{pod}_{container}", str(code))

    def begin(self) -> None:
        """Start the runtime and the kubelet."""
        self.plane.programs.check(["cri", self._program])
        home = self.home
        socket = home / "cri.sock"
        runtime = [self.plane.programs.path("cri"), f"--socket={socket}", f"--state={home / 'cri'}"]
        config = home / "kubelet.json"
        config.write_text(json.dumps(self._config(socket), indent=1), encoding="utf-8")
        named = home / "kubelet"  # `doctor` recognizes a kubelet process by its name
        named.unlink(missing_ok=True)
        named.symlink_to(self.plane.programs.path(self._program))
        words = [
            *self._machine(),
            str(named),
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
        self._run("cri", *runtime)
        self._run("kubelet", "unshare", "--mount", *own.split(), "sh", "-c", script)

    @property
    def _program(self) -> str:
        return "kubelet" if self.machine is None else DESCRIBED

    def _machine(self) -> list[str]:
        """Write the machine description, if any, and return the words that pass it to the kubelet."""
        if self.machine is None:
            return []
        file = self.directory / MACHINE_FILE  # where `fits` finds the machine of a kubelet that runs elsewhere
        file.write_text(json.dumps(self.machine), encoding="utf-8")
        return ["env", f"DESCRIBED_MACHINE={file}"]

    def _settings(self) -> dict[Path, Path]:
        """Copy the kernel settings that a kubelet writes, and return the original of each copy."""
        copies = {self.home / "sys" / one.replace("/", "_"): Path("/proc/sys") / one for one in _SETTINGS}
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
            "podLogsDir": str(self.home / "logs"),
            "volumePluginDir": str(self.home / "volume-plugins"),
            "clusterDNS": ["10.96.0.10"],  # nothing listens there, and nothing connects to it
            "nodeStatusUpdateFrequency": "1s",  # instead of 10s, so that tests wait less
            "syncFrequency": "10m",  # instead of 1m: at each sync, a kubelet reads pods' resources from missing cgroups
            "runtimeRequestTimeout": "1h",  # instead of 2m, after which a kubelet gives up on a slow container start
            "registryPullQPS": 0,  # otherwise, pods that arrive together wait for their images in random order
            "eventRecordQPS": 0,
            # The test machine may forbid the following features, and does not need them.
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            "evictionHard": {},
            "makeIPTablesUtilChains": False,
            "featureGates": {"KubeletInUserNamespace": True},  # /dev/kmsg may be inaccessible
            **self.config,
        }
