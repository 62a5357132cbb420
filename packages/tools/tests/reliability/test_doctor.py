"""`doctor` alongside a working kubelet: pods appear and disappear, the kubelet is killed, and all reports are true."""

import json
import threading
import time
from pathlib import Path
from random import Random
from typing import Self

import pytest
from devicecore_tools.command.doctor import report_on
from devicecore_tools.doctor.reading.node import NodeSources
from tests.e2e.world import PATIENCE, KubeletWorld

from devicecore.adapters.file import CHECKPOINT_NAME
from devicecore.domain.checkpoint import decode
from tests.reliability.scale import scale

GPU = "example.com/gpu"
SECONDS = scale(8, 240)


class BusyNode(KubeletWorld):
    """A kubelet, a plugin, and pods that one thread creates and deletes as a cluster would."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.listed = directory / "list.json"
        self.pods: dict[str, object] = {}
        self.count = 0
        self.chance = Random(1)  # noqa: S311 - it is to be repeated, not to be secret

    def __enter__(self) -> Self:
        self.list_pods()
        self.start()
        self.plugin(GPU, 8, "--numa-nodes", "0,1")
        self.kubelet.wait_for(lambda state: GPU in state["resources"])
        return self

    def list_pods(self) -> None:
        """Replace the file that contains the API server's list of pods."""
        new = self.listed.with_suffix(".new")
        new.write_text(json.dumps({"kind": "PodList", "items": list(self.pods.values())}))
        new.rename(self.listed)

    def act(self) -> None:
        """Kill the kubelet, or end or start a pod."""
        if self.chance.random() < 0.15:
            self.kill_kubelet()
            self.start().wait_for(lambda state: len(state["pods"]) == len(self.pods))
        elif self.pods and self.chance.random() < 0.5:
            self.end_a_pod(self.chance.choice(sorted(self.pods)))
        elif len(self.pods) < 4:
            self.begin_a_pod()

    def begin_a_pod(self) -> None:
        self.count += 1
        name = f"pod-{self.count}"
        limits = {"limits": {GPU: self.chance.randint(1, 2)}}
        containers = [{"name": "main", "resources": limits}]
        init = [{"name": "load", "resources": limits}] if self.chance.random() < 0.5 else []
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "uid": f"uid-{name}"},
            "spec": {"initContainers": init, "containers": containers},
        }
        self.pods[name] = {**pod, "status": {"phase": "Running"}}
        self.list_pods()
        self.put(name, pod)
        self.kubelet.wait_for(lambda state: any(one["name"] == name for one in state["pods"]))

    def end_a_pod(self, name: str) -> None:
        """End a pod. As in a cluster, the API server lists the pod until the kubelet has released its devices."""
        self.remove(name)
        deadline = time.monotonic() + PATIENCE
        while f"uid-{name}" in self.holders():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        del self.pods[name]
        self.list_pods()

    def holders(self) -> set[str]:
        data = decode((self.root / "device-plugins" / CHECKPOINT_NAME).read_bytes()).verified()
        return {entry.pod_uid for entry in data.entries or ()}


@pytest.mark.slow
def test_nothing_false_is_reported_alongside_a_busy_kubelet_that_is_killed(directory: Path) -> None:
    ended = threading.Event()
    problems: list[str] = []
    reports = 0

    def read(node: BusyNode) -> None:
        nonlocal reports
        root, pods, status = str(node.root), str(node.listed), str(node.root / "node.json")
        sources = NodeSources(root=root, pods=pods, node=status, plugins=True, cdi_directories=(str(directory),))
        while not ended.is_set():
            report = report_on(sources, None, ended.wait)
            if report is not None:
                reports += 1
                problems.extend(finding.sentence for finding in report.findings)

    with BusyNode(directory) as node:
        reader = threading.Thread(target=read, args=[node])
        reader.start()
        try:
            end = time.monotonic() + SECONDS
            while time.monotonic() < end and not problems:
                node.act()
        finally:
            ended.set()
            reader.join()
    assert problems == []
    assert reports > 0
