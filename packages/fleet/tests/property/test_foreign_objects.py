"""A fleet changes only objects that it created, and pods bound to Nodes that it created."""

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import starmap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from devicecore_fleet.cluster.process import Process
from devicecore_fleet.cluster.words.nodes import ANNOTATION, LABEL
from devicecore_tools.testing.api_server import LocalApiServer
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.fleet.world import World

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
FOREIGN_MARKS = MARKS.filter(lambda mark: mark != "ours")
HOLDERS = st.sampled_from(["kubelet", "kubelet that is late", "nobody", "other fleet", "other fleet that is late"])
KINDS = (
    ("Node", None),
    ("Lease", "kube-node-lease"),
    ("Pod", "default"),
    ("ResourceClaim", "default"),
    ("ResourceSlice", None),
)


def some(examples: int) -> int:
    """Return the number of examples to try: half of `examples` in `make test`, ten times `examples` in `make laws`."""
    return 10 * examples if settings.get_current_profile_name() == "thorough" else examples // 2


MACHINE = "machine"  # a node that is in no fleet's file


def a_node(name: str, mark: str) -> Json:
    labels = {"role": "production", **({LABEL: "true"} if mark in ("label", "ours") else {})}
    annotations = dict([ANNOTATION]) if mark in ("annotation", "ours") else {}
    conditions = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
    status = {"capacity": {"cpu": "8"}, "allocatable": {"cpu": "8", "pods": "9"}, "conditions": conditions}
    metadata = {"name": name, "labels": labels, "annotations": annotations}
    return {"kind": "Node", "metadata": metadata, "spec": {"providerID": "cloud:///1"}, "status": status}


def a_lease(name: str, holder: str) -> Json:
    who, _, is_late = holder.partition(" that is ")
    identity = {"kubelet": name, "nobody": None, "other fleet": f"devicecore/{name}/elsewhere"}[who]
    time = datetime.now(UTC) - timedelta(seconds=300 if is_late else 1)
    spec = {
        "holderIdentity": identity,
        "leaseDurationSeconds": 40,
        "renewTime": f"{time:%Y-%m-%dT%H:%M:%S.%fZ}",
    }
    metadata = {"name": name, "namespace": "kube-node-lease"}
    return {"kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": metadata, "spec": spec}


def is_foreign(holder: str) -> bool:
    """Return whether a Lease must be left alone: a fleet takes over only Leases that a fleet no longer renews."""
    return holder != "other fleet that is late"


def a_pod(node: str, name: str = "", **status: Json) -> Json:
    containers = [{"name": "main", "image": "db", "resources": {"limits": {"example.com/gpu": "1"}}}]
    spec = {"nodeName": node, "containers": containers}
    return {"kind": "Pod", "metadata": {"name": name or f"pod-{node}"}, "spec": spec, "status": status}


def a_claim(node: str, name: str) -> Json:
    result = {"request": "nic", "driver": "nic.example.com", "pool": node, "device": "nic"}
    version = {"kind": "ResourceClaim", "apiVersion": "resource.k8s.io/v1"}
    spec = {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "nic"}}]}}
    return {
        **version,
        "metadata": {"name": name},
        "spec": spec,
        "status": {"allocation": {"devices": {"results": [result]}}},
    }


def pods_and_claims(node: str) -> list[Json]:
    """Return pods in each state, and the claim of one of them."""
    running = {"name": "main", "ready": True, "restartCount": 0, "image": "db", "imageID": "", "state": {"running": {}}}
    claiming = a_pod(node, f"claiming-{node}")
    claiming["spec"]["resourceClaims"] = [{"name": "nic", "resourceClaimName": f"claim-{node}"}]
    claiming["spec"]["containers"][0]["resources"] = {"claims": [{"name": "nic"}]}
    static = a_pod(node, f"static-{node}")
    static["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x"}
    kept = a_pod(node, f"kept-{node}")
    kept["metadata"]["finalizers"] = ["example.com/wait"]
    return [
        a_claim(node, f"claim-{node}"),
        claiming,
        static,
        kept,
        a_pod(node, f"running-{node}", phase="Running", containerStatuses=[running]),
        a_pod(node, f"over-{node}", phase="Succeeded"),
        a_pod(node),
    ]


def a_slice(node: str) -> Json:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "nic.example.com", "nodeName": node, "pool": pool, "devices": [{"name": "real"}]}
    version = {"kind": "ResourceSlice", "apiVersion": "resource.k8s.io/v1"}
    return {**version, "metadata": {"name": f"real-{node}"}, "spec": spec}


def put(server: LocalApiServer, body: Json) -> None:
    """Create an object with its status."""

    def with_status(one: Json) -> None:
        one.setdefault("status", {}).update(body.get("status") or {})

    server.create(body)
    if body.get("status"):
        server.change(body["kind"], body["metadata"]["name"], with_status)


def objects(server: LocalApiServer) -> dict[tuple[str, str], Json]:
    return {
        (kind, one["metadata"]["name"]): one
        for kind, namespace in KINDS
        for one in (server.objects(kind, namespace) if namespace else server.objects(kind))
    }


@contextmanager
def a_fleet(server: LocalApiServer) -> Iterator[World]:
    """Run a fleet of `NAMES` on a server with existing objects."""
    with TemporaryDirectory() as directory, closing(World(server, Path(directory))) as world:
        world.start(file=FILE)
        yield world


def refused(world: World) -> set[str]:
    return {view.name for view in world.fleet.views() if view.state == "refused"}


def run_until_decided(world: World, foreign: set[str], but_for: Mapping[str, str] = {}) -> None:
    """Run until the nodes with these names are refused or wait for a Lease, and the others have Leases."""
    waiting = {name for name, holder in but_for.items() if holder == "other fleet" and name != MACHINE}

    def is_decided() -> bool:
        held = {one["metadata"]["name"]: one["spec"] for one in world.server.objects("Lease", "kube-node-lease")}
        ours = {name for name, spec in held.items() if str(spec.get("holderIdentity")).endswith(Process().identity)}
        return refused(world) >= foreign - waiting and ours >= set(NAMES) - foreign

    world.until(is_decided, but=lambda: str((refused(world), foreign)))


def run_for_a_while(world: World) -> None:
    """Run for as long as a fleet would need to send something."""
    end = time.monotonic() + 0.2
    world.until(lambda: time.monotonic() >= end)


@given(
    nodes=st.dictionaries(st.sampled_from((*NAMES, MACHINE)), MARKS, max_size=4),
    leases=st.dictionaries(st.sampled_from((*NAMES, MACHINE)), HOLDERS, max_size=4),
    is_deleting=st.booleans(),
)
@example(nodes={"n-0": "none"}, leases={"n-0": "kubelet"}, is_deleting=True)  # a machine
@example(nodes={}, leases={"n-1": "kubelet that is late"}, is_deleting=False)  # a machine whose Node was deleted
@example(nodes={"n-2": "ours"}, leases={"n-2": "kubelet"}, is_deleting=True)  # a kubelet has taken over our Node
@example(nodes={"n-1": "ours"}, leases={"n-1": "other fleet"}, is_deleting=True)  # another fleet with our names
@settings(max_examples=some(10))
def test_a_fleet_changes_only_what_it_has_made(
    *, nodes: dict[str, str], leases: dict[str, str], is_deleting: bool
) -> None:
    """Law: objects that a fleet did not create stay unchanged, of whatever kind, and the rest of the fleet runs."""
    with LocalApiServer() as server:
        for body in (*starmap(a_node, nodes.items()), *starmap(a_lease, leases.items())):
            server.create(body)
        for name in (*NAMES, MACHINE):
            server.create(a_slice(name))
            for body in pods_and_claims(name):
                put(server, body)
                if is_deleting and body["kind"] == "Pod":
                    server.delete("Pod", body["metadata"]["name"])
        foreign = {name for name, mark in nodes.items() if mark != "ours"} | {MACHINE}
        foreign |= {name for name, holder in leases.items() if is_foreign(holder)}
        before = objects(server)
        with a_fleet(server) as world:
            run_until_decided(world, foreign - {MACHINE}, but_for=leases)
            after = objects(server)
    # Claims belong to whoever created them, and existing slices to other drivers.
    theirs = [
        (kind, name) for kind, name in before if kind in ("ResourceSlice", "ResourceClaim") or is_of(foreign, name)
    ]
    new = [
        (kind, name) for kind, name in after if (kind, name) not in before and kind != "Node" and is_of(foreign, name)
    ]
    assert [key for key in (*theirs, *new) if before.get(key) != after.get(key)] == []


def is_of(nodes: set[str], name: str) -> bool:
    """Return whether an object is one of these nodes or is on one of them."""
    return any(name.endswith(node) for node in nodes)


ACTIONS = st.one_of(
    st.tuples(st.just("replace"), st.sampled_from(NAMES), FOREIGN_MARKS),
    st.tuples(st.just("lease"), st.sampled_from(NAMES), HOLDERS.filter(is_foreign)),
    st.tuples(st.sampled_from(["pod", "partition", "heal", "down", "up", "tick"]), st.sampled_from(NAMES), st.just("")),
)


@given(actions=st.lists(ACTIONS, max_size=8))
@example(
    [("partition", "n-0", ""), ("replace", "n-0", "none"), ("pod", "n-0", ""), ("heal", "n-0", ""), ("tick", "n-0", "")]
)
@example([("down", "n-1", ""), ("replace", "n-1", "label"), ("up", "n-1", ""), ("pod", "n-1", ""), ("tick", "n-1", "")])
@example(
    [("replace", "n-2", "annotation"), ("pod", "n-2", ""), ("down", "n-2", ""), ("up", "n-2", ""), ("pod", "n-2", "")]
)
@settings(max_examples=some(10))
def test_a_fleet_that_runs_changes_nothing_of_what_others_take_over(actions: list[tuple[str, str, str]]) -> None:
    """Law: a Node or Lease that someone else recreates stays unchanged, and so do the pods bound to it then."""
    theirs: dict[tuple[str, str], Json] = {}
    with LocalApiServer() as server, a_fleet(server) as world:
        run_until_decided(world, set())
        for number, (action, name, what) in enumerate(actions):
            if action == "replace":
                server.delete("Node", name)
                theirs["Node", name] = server.create(a_node(name, what))
            elif action == "lease":
                if ("Lease", name) in objects(server):
                    server.delete("Lease", name, "kube-node-lease")
                theirs["Lease", name] = server.create(a_lease(name, what))
            elif action == "pod":
                pod = server.create(a_pod(name, f"pod-{number}"))
                if ("Node", name) in theirs:
                    theirs["Pod", f"pod-{number}"] = pod
            elif action == "tick":
                world.fleet.connections[name].tick()
            else:
                world.fleet.command_now(name, (action,))
            world.turn()
        for name in NAMES:
            world.fleet.connections[name].tick()
        run_for_a_while(world)
        after = objects(server)
    assert [key for key, one in theirs.items() if after.get(key) != one] == []


@given(marks=st.dictionaries(st.sampled_from(NAMES), FOREIGN_MARKS, min_size=1))
@settings(max_examples=some(5))
def test_a_node_that_a_machine_takes_over_meanwhile_is_left_alone(marks: dict[str, str]) -> None:
    """Law: a Node that was deleted and that someone else recreated is not changed, and neither are its pods."""
    with LocalApiServer() as server, a_fleet(server) as world:
        run_until_decided(world, set())
        for name, mark in marks.items():
            server.delete("Node", name)
            server.create(a_node(name, mark))
            world.fleet.connections[name].tick()
        run_until_decided(world, set(marks))
        for name in marks:
            server.create(a_pod(name))
        before = objects(server)
        for name in NAMES:
            world.fleet.connections[name].tick()
        run_for_a_while(world)
        after = objects(server)
        theirs = [(kind, name) for name in marks for kind, name in (("Node", name), ("Pod", f"pod-{name}"))]
        assert [key for key in theirs if before[key] != after[key]] == []


@given(names=st.permutations(NAMES))
@settings(max_examples=some(3))
def test_the_pods_of_a_node_that_was_just_replaced_are_left_alone(names: list[str]) -> None:
    """Law: until a Node is known to be ours, a fleet sends nothing about its pods, however soon they are bound."""
    with LocalApiServer() as server, a_fleet(server) as world:
        run_until_decided(world, set())
        for name in names:
            server.delete("Node", name)
            server.create(a_node(name, "none"))
            server.create(a_pod(name))
        before = objects(server)
        for turn in range(1000):
            if refused(world) == set(NAMES):
                break
            if turn % 50 == 49:  # anything read between the two Nodes is read again at a tick
                for name in NAMES:
                    world.fleet.connections[name].tick()
            world.turn()
        assert refused(world) == set(NAMES)
        run_for_a_while(world)
        after = objects(server)
        assert [name for name in NAMES if before["Pod", f"pod-{name}"] != after["Pod", f"pod-{name}"]] == []
