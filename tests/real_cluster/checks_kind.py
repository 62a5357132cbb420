"""The manifests of `deploy/kind` on a real control plane and a real kubelet.

The kubelet runs no containers (`peers/cri`), so each container of a DaemonSet is a process on the node, with the
arguments in the manifest, the rights of its ServiceAccount, and the directories of its volumes.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.real_cluster.control_plane import ControlPlane
from tests.real_cluster.kubelet import RealKubelet
from tests.real_cluster.node import DEVICECORE
from tests.real_cluster.programs import Program

Json = Any
MANIFESTS = Path("deploy/kind")
NODE = "kind-worker"
COMMANDS = {"devicecore-plugin": ("plugin", "simulated"), "devicecore-driver": ("dra-driver", "simulated")}
"""The command of each image, without `devicecore`; `test_ci.py` reads the image's entry point from the Dockerfile."""


def documents(name: str) -> list[Json]:
    return [one for one in yaml.safe_load_all((MANIFESTS / name).read_text("utf-8")) if one]


class Deployed:
    """A node on which the containers of DaemonSets run as processes."""

    def __init__(self, plane: ControlPlane, node: RealKubelet, last: ExitStack) -> None:
        self.plane, self.node, self._last = plane, node, last
        self.health = node.home / "unhealthy"
        self.health.mkdir()

    def apply(self) -> None:
        """Create the objects that the kustomization lists, and run the containers."""
        (kustomization,) = documents("kustomization.yaml")
        for name in kustomization["resources"]:
            for one in documents(name):
                self.plane.admin.create(one)
                if one["kind"] == "DaemonSet":
                    self._run(one)

    def _run(self, daemon_set: Json) -> None:
        spec = daemon_set["spec"]["template"]["spec"]
        volumes = {one["name"]: self._directory(one) for one in spec["volumes"]}
        for container in spec["containers"]:
            mounts = {one["mountPath"]: volumes[one["name"]] for one in container["volumeMounts"]}
            words = [self._expanded(word, mounts) for word in container["args"]]
            if account := spec.get("serviceAccountName"):
                user = f"system:serviceaccount:devicecore:{account}"
                groups = ("system:serviceaccounts", "system:serviceaccounts:devicecore", "system:authenticated")
                words += [
                    f"--kubeconfig={self.plane.kubeconfig(user, groups)}",
                    f"--registry={mounts['/var/lib/kubelet/plugins_registry']}",
                    f"--plugin-dir={mounts['/var/lib/kubelet/plugins']}",
                    f"--cdi-dir={mounts['/var/run/cdi']}",
                ]
            else:
                words.append(f"--socket-dir={mounts['/var/lib/kubelet/device-plugins']}")
            program = Program(container["name"], [*DEVICECORE, *COMMANDS[container["image"]], *words], self.node.home)
            self._last.callback(program.stop)
            program.start()

    def _directory(self, volume: Json) -> Path:
        if "configMap" in volume:
            return self.health
        path = volume["hostPath"]["path"]
        return (
            self.node.cdi
            if path == "/var/run/cdi"
            else self.node.directory / Path(path).relative_to("/var/lib/kubelet")
        )

    @staticmethod
    def _expanded(word: str, mounts: dict[str, Path]) -> str:
        values = {"NODE_NAME": NODE, "POD_UID": "uid"}
        word = re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], word)
        option, _, value = word.partition("=")
        place = next((mount for mount in mounts if value.startswith(f"{mount}/")), None)
        return f"{option}={mounts[place]}{value.removeprefix(place)}" if place else word


@pytest.fixture
def deployed(plane: ControlPlane) -> Iterator[Deployed]:
    with ExitStack() as last:
        node = last.enter_context(RealKubelet(plane, NODE))
        last.callback(plane.admin.delete, "Node", NODE)
        found = Deployed(plane, node, last)
        found.apply()
        yield found


def test_the_manifests_give_any_cluster_gpus_parts_and_health(deployed: Deployed) -> None:
    node, admin = deployed.node, deployed.plane.admin
    node.wait_for_resource("nvidia.com/gpu", 8)
    node.wait_for_resource("nvidia.com/mig-1g.10gb", 7)
    node.wait_for_devices("gpu.example.com", 4 * (1 + 7))
    for one in documents("try.yaml"):
        admin.create(one)
    for pod in ("two-gpus", "one-part"):
        admin.wait_for_phase(pod, "Running")
    gpus = node.container("two-gpus")["env"]["NVIDIA_VISIBLE_DEVICES"].split(",")
    assert len({*gpus}) == len(gpus) == 2, gpus
    assert {*gpus} < {f"gpu-{number}" for number in range(8)}, gpus  # a kubelet picks any free devices
    assert node.container("one-part")["cdiDevices"]
    (claim,) = [one for one in admin.list("ResourceClaim") if one["metadata"]["name"].startswith("one-part")]
    (device,) = claim["status"]["allocation"]["devices"]["results"]
    assert device["device"] == "dev-0-part-0"
    # When the ConfigMap changes, a kubelet would write this node's key as a file.
    (deployed.health / NODE).write_text("gpu-7 dev-0 # broken\n")
    node.wait_for_resource("nvidia.com/gpu", 7)
    (deployed.health / NODE).unlink()
    node.wait_for_resource("nvidia.com/gpu", 8)
    for pod in ("two-gpus", "one-part"):
        admin.delete("Pod", pod, grace=0)
