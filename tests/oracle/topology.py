"""Merging the hints of several providers under each policy and scope."""

from random import Random

from devicecore.domain.topology import NumaMask, Policy, Scope, Topology, TopologyHint, merge
from tests.oracle.asking import AGREED, Json, Oracle, Verdict, differences


def case(random: Random) -> Json:
    """Hints of up to three providers for each container and for the whole pod."""
    nodes = sorted(random.sample(range(8), random.choice((1, 2, 2, 3, 4, 5, 8))))
    containers = ["main", "helper"][: random.randint(1, 2)]
    return {
        "numa_nodes": nodes,
        "policy": random.choice(list(Policy)).value,
        "scope": random.choice(list(Scope)).value,
        "containers": containers,
        "providers": [
            {name: _hints(random, nodes) for name in (*containers, "")}
            for _ in range(random.choice((0, 1, 1, 2, 2, 3)))
        ],
    }


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
    topology = Topology(case["numa_nodes"], case["policy"], case["scope"])
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
