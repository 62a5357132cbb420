"""How hints from several providers are merged under each policy and scope."""

from collections.abc import Sequence
from random import Random

from devicecore.domain.model import NumaNode
from devicecore.domain.topology import (
    MAX_ALLOWABLE_NUMA_NODES,
    NumaMask,
    Policy,
    PolicyOptions,
    Scope,
    Topology,
    TopologyHint,
    merge,
)
from tests.oracle.asking import AGREED, Json, Oracle, Verdict, differences


def case(random: Random) -> Json:
    """Return a topology policy and a scope, with hints from up to three providers for each container and the pod."""
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
    """Return no options, or a preference for closer NUMA nodes, with distances that often tie."""
    if random.random() < 0.5:
        return {}
    # A kubelet uses a NUMA node's number as an index into the row, so each row has a value for every number below 8.
    row = {node: [random.choice((10, 11, 20, 21, 32)) for _ in range(8)] for node in nodes}
    return {"closest": True, "distances": {str(node): distances for node, distances in row.items()}}


def topology_of(case: Json) -> Topology:
    """Return a case's topology."""
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


def options(random: Random) -> Json:
    """Return a machine and policy options, most of which are valid or nearly valid."""
    values = {
        "prefer-closest-numa-nodes": ("true", "false", "T", "0", "yes", "", "tRUE"),
        "max-allowable-numa-nodes": ("8", "9", "+16", "7", "-1", "64", "8.0", " 8", "x", "010", "0x10", "1_6"),
        "Prefer-Closest": ("true",),
    }
    names = random.sample(sorted(values), random.choice((0, 1, 1, 1, 2)))
    nodes = random.choice((1, 2, 4, 8, 9, 16, 17))
    return {
        "numa_nodes": {str(node): None if random.random() < 0.1 / nodes else [10] * nodes for node in range(nodes)},
        "policy": random.choice([one.value for one in Policy if one is not Policy.NONE]),
        "scope": random.choice(list(Scope)).value,
        "options": {name: random.choice(values[name]) for name in names},
    }


def judge_options(case: Json, oracle: Oracle) -> Verdict:
    """Compare whether a kubelet on this machine would start with these topology manager options."""
    rows = case["numa_nodes"]
    try:
        found = PolicyOptions.of(case["options"])
        most = found.max_allowable_numa_nodes or MAX_ALLOWABLE_NUMA_NODES
        Topology(map(int, rows), case["policy"], case["scope"], max_numa_nodes=most)
        ours = not (found.prefer_closest_numa_nodes and None in rows.values())
    except ValueError:
        ours = False
    lines = list(differences({"ok": ours}, oracle.ask("topology-options", case)))
    return Verdict(None, lines) if lines else AGREED
