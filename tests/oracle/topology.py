"""Merging the hints of several providers under each policy and scope."""

from collections.abc import Sequence
from random import Random

from devicecore.domain.model import NumaNode
from devicecore.domain.topology import NumaMask, Policy, Scope, Topology, TopologyHint, merge
from tests.oracle.asking import AGREED, Json, Oracle, Verdict, differences


def case(random: Random) -> Json:
    """Hints of up to three providers for each container and for the whole pod."""
    nodes = sorted(random.sample(range(8), random.choice((1, 2, 2, 3, 4, 5, 8))))
    containers = ["main", "helper"][: random.randint(1, 2)]
    return {
        **policy_options(random, nodes),
        "numa_nodes": nodes,
        "policy": random.choice(list(Policy)).value,
        "scope": random.choice(list(Scope)).value,
        "containers": containers,
        "providers": [
            {name: _hints(random, nodes) for name in (*containers, "")}
            for _ in range(random.choice((0, 1, 1, 2, 2, 3)))
        ],
    }


def policy_options(random: Random, nodes: Sequence[int]) -> Json:
    """Whether closer NUMA nodes are preferred, and the distances between them, of few values so that many tie."""
    if random.random() < 0.5:
        return {}
    # A kubelet takes the number of a NUMA node for its place in the row, so a row has a place for each number below 8.
    row = {node: [random.choice((10, 11, 20, 21, 32)) for _ in range(8)] for node in nodes}
    return {"closest": True, "distances": {str(node): distances for node, distances in row.items()}}


def topology_of(case: Json) -> Topology:
    """Return the topology of a case."""
    nodes, rows = case["numa_nodes"], case.get("distances", {})
    distances = [[rows[str(here)][there] for there in nodes] for here in nodes] if case.get("closest") else ()
    policy, scope = case.get("policy", Policy.NONE), case.get("scope", Scope.POD)
    return Topology(map(NumaNode, nodes), policy, scope, distances=distances)


def _hints(random: Random, nodes: list[int]) -> Json:
    return {
        name: random.choice((None, [], *([[_hint(random, nodes) for _ in range(random.randint(1, 6))]] * 6)))
        for name in random.sample(("gpu", "nic", "cpu"), random.choice((0, 1, 1, 2, 3)))
    }


def _hint(random: Random, nodes: list[int]) -> Json:
    mask = sorted(random.sample(nodes, random.randint(1, len(nodes))))
    return [random.choice((mask, mask, mask, mask, mask, mask, None)), random.choice((True, True, False))]


def judge(case: Json, oracle: Oracle) -> Verdict:
    """Compare the merged hints, and whether the pod is admitted."""
    answer = oracle.ask("topology", case)
    topology = topology_of(case)
    merged, admitted = {}, True
    for name in (*case["containers"], ""):
        hint, admits = merge(topology, [_given(provider[name]) for provider in case["providers"]])
        merged[name] = {"hint": [None if hint.mask is None else list(hint.mask), hint.preferred], "admit": admits}
        if (name == "") == (topology.scope is Scope.POD):
            admitted &= admits
    theirs = {"merged": answer["merged"], "admit": answer["admit"]}
    ours = {"merged": {} if topology.policy is Policy.NONE else merged, "admit": admitted}
    lines = list(differences(ours, theirs))
    return Verdict(None, lines) if lines else AGREED


def _given(hints: Json) -> dict[str, list[TopologyHint] | None]:
    return {
        resource: None
        if listed is None
        else [TopologyHint(None if mask is None else NumaMask.of(mask), preferred) for mask, preferred in listed]
        for resource, listed in hints.items()
    }
