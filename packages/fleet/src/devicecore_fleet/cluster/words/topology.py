"""A NodeResourceTopology, which tells schedulers which devices, CPUs and memory belong to which NUMA node.

Law: the object is a function of the managers' states. A device on several NUMA nodes counts on each of them, and a
device without NUMA nodes counts on none.
"""

from collections.abc import Iterator, Sequence

from devicecore_tools.numa import NO_ZONES, Zones

from devicecore.domain.model import NumaNode
from devicecore.domain.node_state import NodeState
from devicecore.domain.quantity import Quantity
from devicecore.domain.topology import Topology
from devicecore_fleet.cluster.words.patches import Json

LOCAL, REMOTE = 10, 20
"""The cost of memory on the same NUMA node and on a different one, as in the firmware of most machines."""


def topology_object(
    node: str, state: NodeState, topology: Topology, uid: str | None = None, pinned: Zones = NO_ZONES
) -> Json:
    """Return the NodeResourceTopology of a node.

    Args:
        node: the name of the node.
        state: the state of the device manager.
        topology: the NUMA nodes of the machine, and how the topology manager uses them.
        uid: the UID of the Node, if the Node is to own the object, or None.
        pinned: the CPUs and the memory of each NUMA node, if CPUs and memory are pinned.
    """
    policy = {"topologyManagerPolicy": topology.policy.value, "topologyManagerScope": topology.scope.value}
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}
    zones = [
        {
            "name": f"node-{here}",
            "type": "Node",
            "costs": [
                {"name": f"node-{there}", "value": cost}
                for there, cost in zip(topology.numa_nodes, _costs(topology, place, pinned), strict=True)
            ],
            "resources": [one for _, one in sorted([*_resources(state, here), *_pinned(here, pinned)])],
        }
        for place, here in enumerate(topology.numa_nodes)
    ]
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": node, **({"ownerReferences": [owner]} if uid is not None else {})},
        "attributes": [{"name": name, "value": value} for name, value in policy.items()],
        "zones": zones,
    }


def _costs(topology: Topology, place: int, pinned: Zones) -> Sequence[int]:
    """Return one NUMA node's costs of accessing each node's memory: the distances if known, or else defaults."""
    here = topology.numa_nodes[place]
    known = pinned[here].distances if here in pinned else ()
    if len(known) == len(topology.numa_nodes):
        return known
    others = [REMOTE] * len(topology.numa_nodes)
    return topology.distances[place] if topology.distances else [*others[:place], LOCAL, *others[place + 1 :]]


def _pinned(numa_node: NumaNode, pinned: Zones) -> Iterator[tuple[str, Json]]:
    if numa_node in pinned:
        for name, sizes in pinned[numa_node].sizes.items():
            quantities = (str(Quantity.of(size, binary=name != "cpu")) for size in sizes)
            yield name, {"name": name, **dict(zip(("capacity", "allocatable", "available"), quantities, strict=True))}


def _resources(state: NodeState, numa_node: NumaNode) -> Iterator[tuple[str, Json]]:
    for name, resource in sorted(state.inventory.resources.items()):
        listed = resource.report.by_numa_node.get(numa_node) if resource.report else None
        if resource.report is None or listed is None:
            continue
        healthy = listed & resource.report.healthy
        sizes = {"capacity": listed, "allocatable": healthy, "available": healthy - state.ledger.in_use(name)}
        yield name, {"name": name, **{part: str(Quantity.of(len(ids), binary=False)) for part, ids in sizes.items()}}
