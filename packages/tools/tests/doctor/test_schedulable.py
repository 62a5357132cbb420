"""Why a Node whose kubelet is running accepts no pods, or does not accept a particular pod."""

from collections.abc import Iterable

import pytest
from attrs import evolve
from devicecore_tools.doctor.account.facts import Facts
from devicecore_tools.doctor.account.precedence import Pods
from devicecore_tools.doctor.account.schedulable import why_closed
from devicecore_tools.doctor.findings.report import check
from devicecore_tools.doctor.look.values import NodeSeen
from devicecore_tools.doctor.pod.explanation import concerning, explain
from devicecore_tools.doctor.reading.cluster_nodes import tolerations_of
from devicecore_tools.doctor.reading.objects import node_in
from tests.doctor.nodes import CLEAN, node_of, with_node, without

from devicecore.domain.documents import Value

MINE = {"key": "acme.io/mine", "value": "yes", "effect": "NoSchedule"}
DISK = {"type": "DiskPressure", "status": "True", "message": "kubelet has disk pressure"}
MEMORY = {"type": "MemoryPressure", "status": "True", "message": ""}
DRAINED = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}


def node(conditions: Iterable[object] = (), allocatable: object = None, **spec: object) -> NodeSeen:
    status = {"conditions": [*conditions], "allocatable": allocatable or {}}
    return node_in(Value({"kind": "Node", "metadata": {"name": "n1"}, "spec": spec, "status": status}, "node.json"))


def pod(*tolerations: object, **resources: object) -> Value:
    spec = {"tolerations": [*tolerations], "containers": [{"name": "main", "resources": resources}]}
    return Value({"kind": "Pod", "metadata": {"name": "p"}, "spec": spec}, "pod.json")


def critical(**fields: object) -> Value:
    spec = {"tolerations": [{"operator": "Exists"}], "containers": [{"name": "main"}], **fields}
    return Value({"kind": "Pod", "metadata": {"name": "p"}, "spec": spec}, "pod.json")


REFUSED = {
    "cordoned": (node(unschedulable=True), pod(), "the Node is cordoned"),
    "a taint of a user": (node(taints=[MINE]), pod(), "the Node has the taint acme.io/mine=yes:NoSchedule"),
    "a different value": (node(taints=[MINE]), pod({**MINE, "value": "no"}), "the Node has the taint acme.io/mine"),
    "a different effect": (node(taints=[MINE]), pod({**MINE, "effect": "NoExecute"}), "the Node has the taint"),
    "disk pressure": (node([DISK]), pod(), "the Node has DiskPressure (kubelet has disk pressure)"),
    "tolerated by all but the kubelet": (node([DISK]), pod({"operator": "Exists"}), "the Node has DiskPressure"),
    "memory pressure": (node([MEMORY]), pod(), "the Node has MemoryPressure: "),
    # The pod requests memory, but only the admission plugin PodTolerationRestriction would add a toleration to it.
    "memory is requested": (node([MEMORY]), pod(requests={"memory": "1Gi"}), "the Node has MemoryPressure: "),
    "out of service": (node(taints=[DRAINED]), pod(), "the Node has the taint node.kubernetes.io/out-of-service"),
}
TAKEN = {
    "tolerated": (node(taints=[MINE]), pod(MINE)),
    "all is tolerated": (node([MEMORY], unschedulable=True, taints=[MINE]), pod({"operator": "Exists"})),
    "a critical pod": (node([DISK]), critical(priorityClassName="system-node-critical")),
    "a priority": (node([DISK]), critical(priority=2_000_001_000)),
    "a taint that is only preferred": (node(taints=[{**MINE, "effect": "PreferNoSchedule"}]), pod()),
    "no pressure": (node([{**DISK, "status": "False"}]), pod()),
    "room for pods": (node(allocatable={"pods": "2"}), pod()),
}


def why(seen: NodeSeen, wanted: Value) -> str:
    closed = why_closed(seen, Pods.of(with_node(CLEAN, seen)), tolerations_of(wanted))
    return "" if closed is None else closed.why


@pytest.mark.parametrize("name", REFUSED)
def test_a_pod_that_does_not_tolerate_it_does_not_get_there(name: str) -> None:
    seen, wanted, reason = REFUSED[name]
    assert why(seen, wanted).lower().startswith(reason.lower())


@pytest.mark.parametrize("name", TAKEN)
def test_a_pod_that_tolerates_it_gets_there(name: str) -> None:
    assert why(*TAKEN[name]) == ""


def test_a_node_that_has_reached_its_pod_limit_accepts_no_more() -> None:
    """Pods on other nodes, and pods that have ended, do not count."""
    here = tuple(evolve(one, node="n1") for one in CLEAN.pods.value or ())
    others = (evolve(here[0], node="n2"), evolve(here[0], phase="Failed"))
    renamed = tuple(evolve(one, pod=evolve(one.pod, name=f"other-{n}")) for n, one in enumerate(others))
    count = sum(1 for one in here if not one.has_ended)
    for most, is_full in ((count, True), (count + 1, False)):
        seen = node(allocatable={"pods": str(most)})
        look = evolve(with_node(CLEAN, seen), pods=evolve(CLEAN.pods, value=(*here, *renamed)))
        closed = why_closed(seen, Pods.of(look), ())
        assert (closed is not None) is is_full


def test_a_pod_of_another_node_may_not_be_here_even_if_its_phase_is_unknown() -> None:
    first, *_ = CLEAN.pods.value or ()
    gone = evolve(first, node="elsewhere", phase="Unknown", pod=evolve(first.pod, name="gone"))
    look = evolve(CLEAN, pods=evolve(CLEAN.pods, value=(first, gone)))
    for known, count in ((look, 0), (without(look, "node", "pod_resources"), 1)):
        assert len(Pods.of(known).perhaps_here) == count


def test_the_scheduler_names_no_taint_and_the_node_does() -> None:
    said = "0/1 nodes are available: 1 node(s) had untolerated taint(s)."
    (plain,) = explain(said, None, Facts(CLEAN))
    assert plain.text == "0/1 nodes are available: 1 node(s) had untolerated taint(s)"
    (named,) = explain(said, None, Facts(with_node(CLEAN, evolve(node_of(CLEAN), taints=node(taints=[MINE]).taints))))
    assert named.because == f"{plain.because} Node {node_of(CLEAN).name} has acme.io/mine=yes:NoSchedule."
    cordoned = Facts(with_node(CLEAN, evolve(node_of(CLEAN), taints=node(unschedulable=True).taints)))
    assert [one.code for one in concerning(None, cordoned)] == ["node-closed"]


def test_a_taint_of_a_user_is_no_fault_of_the_node() -> None:
    """Kubernetes' own taints are findings, except the taint not-ready, because the condition Ready says more."""
    look = with_node(CLEAN, evolve(node_of(CLEAN), taints=node(taints=[MINE]).taints))
    assert check(Facts(look)) == ()
    ready = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
    assert check(Facts(with_node(CLEAN, evolve(node_of(CLEAN), taints=node(taints=[ready]).taints)))) == ()
    (found,) = check(Facts(with_node(CLEAN, evolve(node_of(CLEAN), taints=node(taints=[DRAINED]).taints))))
    assert (found.code, found.do.partition(":")[0]) == (
        "node-closed",
        "Find out who added the taint node.kubernetes.io/out-of-service=nodeshutdown",
    )
