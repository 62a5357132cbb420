"""A fleet changes only what it has made, and pods that are bound to Nodes that it has made."""

import threading
from contextlib import ExitStack
from itertools import starmap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from devicecore_fleet.cluster.words.nodes import ANNOTATION, LABEL
from devicecore_fleet.fleet.assembly import FleetSettings, start
from devicecore_fleet.fleet.reading import parse_fleet
from devicecore_tools.testing.api_server import LocalApiServer
from hypothesis import example, given, settings
from hypothesis import strategies as st

Json = Any

NAMES = ("n-0", "n-1", "n-2")
FILE = """
nodes:
- name: n-{number}
  count: 3
  plugins: [{resource: example.com/gpu, devices: 1}]
  drivers: [{name: nic.example.com, devices: [{name: nic, count: 1}]}]
"""
MARKS = st.sampled_from(["none", "label", "annotation", "ours"])
HOLDERS = st.sampled_from(["kubelet", "other", "ours"])
KINDS = (("Node", None), ("Lease", "kube-node-lease"), ("Pod", "default"), ("ResourceSlice", None))


def a_node(name: str, mark: str) -> Json:
    labels = {"role": "production", **({LABEL: "true"} if mark in ("label", "ours") else {})}
    annotations = dict([ANNOTATION]) if mark in ("annotation", "ours") else {}
    conditions = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
    status = {"capacity": {"cpu": "8"}, "allocatable": {"cpu": "8", "pods": "9"}, "conditions": conditions}
    metadata = {"name": name, "labels": labels, "annotations": annotations}
    return {"kind": "Node", "metadata": metadata, "spec": {"providerID": "cloud:///1"}, "status": status}


def a_lease(name: str, holder: str) -> Json:
    holder = {"kubelet": name, "other": "somebody", "ours": f"devicecore/{name}"}[holder]
    metadata = {"name": name, "namespace": "kube-node-lease"}
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 40, "renewTime": "2026-11-26T10:00:00.000000Z"}
    return {"kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": metadata, "spec": spec}


def a_pod(node: str) -> Json:
    containers = [{"name": "main", "image": "db", "resources": {"limits": {"example.com/gpu": "1"}}}]
    return {"kind": "Pod", "metadata": {"name": f"pod-{node}"}, "spec": {"nodeName": node, "containers": containers}}


def a_slice(node: str) -> Json:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "nic.example.com", "nodeName": node, "pool": pool, "devices": [{"name": "real"}]}
    version = {"kind": "ResourceSlice", "apiVersion": "resource.k8s.io/v1"}
    return {**version, "metadata": {"name": f"real-{node}"}, "spec": spec}


def objects(server: LocalApiServer) -> dict[tuple[str, str], Json]:
    return {
        (kind, one["metadata"]["name"]): one
        for kind, namespace in KINDS
        for one in (server.objects(kind, namespace) if namespace else server.objects(kind))
    }


class Run:
    """A fleet of `NAMES` on a server with what was there before. The thread of the test is its loop."""

    def __init__(self, server: LocalApiServer, closing: ExitStack) -> None:
        self.server = server
        self.woken = threading.Event()
        kubeconfig = server.kubeconfig(Path(closing.enter_context(TemporaryDirectory())) / "kubeconfig")
        description = parse_fleet(FILE, "fleet.yaml")
        self.fleet = start(description, FleetSettings(kubeconfig), self.woken.set, closing)

    def refused(self) -> set[str]:
        return {view.name for view in self.fleet.views() if view.state == "refused"}

    def until(self, foreign: set[str]) -> None:
        """Run until the nodes of these names are refused, and the others have Leases."""
        for _ in range(1000):
            renewed = {one["metadata"]["name"] for one in self.server.objects("Lease", "kube-node-lease")}
            if self.refused() == foreign and renewed >= set(NAMES) - foreign:
                return
            self.turn()
        raise AssertionError((self.refused(), foreign))

    def turn(self) -> None:
        self.woken.clear()
        self.fleet.step()
        self.woken.wait(0.02)


@given(
    nodes=st.dictionaries(st.sampled_from(NAMES), MARKS, max_size=3),
    leases=st.dictionaries(st.sampled_from(NAMES), HOLDERS, max_size=3),
    is_deleting=st.booleans(),
)
@example(nodes={"n-0": "none"}, leases={"n-0": "kubelet"}, is_deleting=True)  # a machine
@example(nodes={}, leases={"n-1": "kubelet"}, is_deleting=False)  # a machine whose Node was deleted
@example(nodes={"n-2": "ours"}, leases={"n-2": "kubelet"}, is_deleting=True)  # a kubelet has taken a Node of ours
@settings(max_examples=10)
def test_a_fleet_changes_only_what_it_has_made(
    *, nodes: dict[str, str], leases: dict[str, str], is_deleting: bool
) -> None:
    """Law: whatever is on the server, what a fleet has not made is as it was, and the rest of the fleet runs."""
    with LocalApiServer() as server, ExitStack() as closing:
        for body in (*starmap(a_node, nodes.items()), *starmap(a_lease, leases.items())):
            server.create(body)
        for name in NAMES:
            server.create(a_pod(name))
            server.create(a_slice(name))
            if is_deleting:
                server.delete("Pod", f"pod-{name}")
        foreign = {name for name, mark in nodes.items() if mark != "ours"}
        foreign |= {name for name, holder in leases.items() if holder != "ours"}
        before = objects(server)
        Run(server, closing).until(foreign)
        after = objects(server)
    theirs = [(kind, name) for kind, name in {*before, *after} if kind == "ResourceSlice" or name[-3:] in foreign]
    theirs = [key for key in theirs if key in before or key[0] != "ResourceSlice"]
    assert [key for key in theirs if before.get(key) != after.get(key)] == []


@given(marks=st.dictionaries(st.sampled_from(NAMES), MARKS.filter(lambda mark: mark != "ours"), min_size=1))
@settings(max_examples=5)
def test_a_node_that_a_machine_takes_over_meanwhile_is_left_alone(marks: dict[str, str]) -> None:
    """Law: a Node that was deleted and that somebody else made anew is not changed, and neither are its pods."""
    with LocalApiServer() as server, ExitStack() as closing:
        run = Run(server, closing)
        run.until(set())
        for name, mark in marks.items():
            server.delete("Node", name)
            server.create(a_node(name, mark))
            run.fleet.connections[name].tick()
        run.until(set(marks))
        for name in marks:
            server.create(a_pod(name))
        before = objects(server)
        for name in NAMES:
            run.fleet.connections[name].tick()
        for _ in range(10):
            run.turn()
        after = objects(server)
        theirs = [(kind, name) for name in marks for kind, name in (("Node", name), ("Pod", f"pod-{name}"))]
        assert [key for key in theirs if before[key] != after[key]] == []


@given(names=st.permutations(NAMES))
@settings(max_examples=3)
def test_the_pods_of_a_node_that_was_just_replaced_are_left_alone(names: list[str]) -> None:
    """Law: until its Node is known to be ours, a fleet sends nothing of its pods, however soon they are bound."""
    with LocalApiServer() as server, ExitStack() as closing:
        run = Run(server, closing)
        run.until(set())
        for name in names:
            server.delete("Node", name)
            server.create(a_node(name, "none"))
            server.create(a_pod(name))
        before = objects(server)
        for turn in range(1000):
            if run.refused() == set(NAMES):
                break
            if turn % 50 == 49:  # what was read between the two Nodes is looked for again at a tick
                for name in NAMES:
                    run.fleet.connections[name].tick()
            run.turn()
        assert run.refused() == set(NAMES)
        for _ in range(10):
            run.turn()
        after = objects(server)
        assert [name for name in NAMES if before["Pod", f"pod-{name}"] != after["Pod", f"pod-{name}"]] == []
