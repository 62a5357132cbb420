"""Checks of the devices that containers hold, and of what the Node object says about them.

Law: a holder whose pod is known to be gone does not count.
"""

from collections.abc import Iterator

from devicecore.domain.model import Health
from devicecore_tools.doctor.facts import Facts
from devicecore_tools.doctor.findings import Evidence, Found, devices_of, name
from devicecore_tools.doctor.look import Source

MAX_NUMA_NODES = 8
"""The most NUMA nodes that a kubelet's topology manager accepts by default."""


def held_device_not_listed(facts: Facts) -> Iterator[Found]:
    """A container holds a device that its plugin does not list."""
    for resource, listed in facts.listed.items():
        missing = [device for device in facts.in_use.get(resource, ()) if device not in listed]
        if missing:
            sentence = (
                f"Containers hold {devices_of(missing, resource)}, but the plugin does not list {_them(missing)}."
            )
            evidence = (
                *_holders(facts, resource, missing),
                Evidence(Source.PLUGINS, f"{_sockets(facts, resource)}: {devices_of([*listed], resource)}"),
            )
            yield Found(sentence, evidence, resource, tuple(missing))


def held_device_unhealthy(facts: Facts) -> Iterator[Found]:
    """A container holds a device that is not healthy."""
    for resource, devices in facts.in_use.items():
        listed, healthy = facts.listed.get(resource), facts.healthy.get(resource, frozenset())
        if listed is not None:
            sick = [device for device in devices if listed.get(device) is Health.UNHEALTHY]
        elif healthy:  # if no device is, the plugin has gone or not listed yet, which is another finding
            sick = [device for device in devices if device not in healthy and _would_be_listed(facts, resource, device)]
        else:
            sick = []
        if sick:
            what = devices_of(sick, resource)
            if listed is not None:
                sentence = f"Containers hold {what}, which the plugin reports as unhealthy."
                why = Evidence(Source.PLUGINS, f"{_sockets(facts, resource)}: Unhealthy")
            else:
                sentence = f"Containers hold {what}, which the kubelet does not count as healthy."
                source = Source.CHECKPOINT if facts.registered.get(resource) else Source.POD_RESOURCES
                why = Evidence(source, f"healthy: {devices_of(healthy, resource)}")
            yield Found(sentence, (*_holders(facts, resource, sick), why), resource, tuple(sick))


def _would_be_listed(facts: Facts, resource: str, device: str) -> bool:
    """Whether a healthy device would be named: the API leaves out those whose topology has no nodes."""
    in_file = resource in facts.registered or resource not in facts.allocatable
    return in_file or bool(facts.numa_nodes.get((resource, device)))


def more_allocated_than_allocatable(facts: Facts) -> Iterator[Found]:
    """Containers hold more devices than are allocatable.

    The kubelet's answer alone is not enough: it leaves out devices whose topology has no nodes.
    """
    node = facts.look.node.value
    for resource, devices in facts.in_use.items():
        allocatable, source, what = None, Source.CHECKPOINT, "healthy devices"
        if resource in facts.listed or resource in facts.registered:
            allocatable = len(facts.healthy[resource]) or None
            source = Source.PLUGINS if resource in facts.listed else Source.CHECKPOINT
        if node is not None and resource in node.allocatable:
            allocatable, source, what = node.allocatable[resource], Source.NODE, "status.allocatable"
        if allocatable is not None and len(devices) > allocatable:
            sentence = f"Containers hold {devices_of([*devices], resource)}, but only {allocatable:,} are allocatable."
            evidence = (*_holders(facts, resource, [*devices]), Evidence(source, f"{what}: {allocatable:,}"))
            yield Found(sentence, evidence, resource, (*devices,))


def node_status_differs(facts: Facts) -> Iterator[Found]:
    """The Node object counts other devices than the kubelet has registered."""
    node = facts.look.node.value
    if node is None:
        return
    for resource in sorted({*facts.registered, *facts.allocatable}):
        counts = {}
        if resource in facts.registered:
            counts[Source.CHECKPOINT] = len(facts.registered[resource])
        if facts.api is not None and facts.api.allocatable is not None:  # of a plugin that has gone it lists none
            counts[Source.POD_RESOURCES] = len(facts.allocatable.get(resource, ()))
        published, capacity = node.allocatable.get(resource, 0), node.capacity.get(resource, 0)
        evidence = (
            Evidence(Source.NODE, f"status.allocatable: {published:,}, status.capacity: {capacity:,}"),
            *(Evidence(source, f"{count:,} healthy") for source, count in counts.items()),
        )
        said = " and ".join(f"{count:,} in the {source.value}" for source, count in counts.items())
        # The kubelet's answer leaves out devices whose topology has no nodes, so alone it is only a lower bound.
        is_certain = resource in facts.registered or published < len(facts.allocatable.get(resource, ()))
        if published not in counts.values() and is_certain:
            sentence = f"The Node has {published:,} allocatable {name(resource)}, but {said} are healthy."
        elif capacity < min(counts.values()):
            sentence = f"The Node has a capacity of {capacity:,} {name(resource)}, but {said} are healthy."
        elif (total := len(facts.listed.get(resource, ()))) > capacity:
            sentence = f"The Node has a capacity of {capacity:,} {name(resource)}, but the plugin lists {total:,}."
            evidence = (*evidence, Evidence(Source.PLUGINS, f"{_sockets(facts, resource)}: {total:,} listed"))
        else:
            continue
        yield Found(sentence, evidence, resource)


def many_numa_nodes(facts: Facts) -> Iterator[Found]:
    """Devices name more NUMA nodes than the topology manager accepts."""
    found = sorted(facts.all_numa_nodes)
    if len(found) > MAX_NUMA_NODES:
        named = ", ".join(map(str, found[:20])) + (", ..." if len(found) > 20 else "")  # noqa: PLR2004 - fits into a line
        source = Source.CHECKPOINT if facts.data else Source.POD_RESOURCES if facts.api else Source.PLUGINS
        sentence = (
            f"The devices of this node are on {len(found):,} NUMA nodes; the topology manager accepts {MAX_NUMA_NODES}."
        )
        yield Found(sentence, (Evidence(source, f"NUMA nodes {named}"),))


def _holders(facts: Facts, resource: str, devices: list[str]) -> tuple[Evidence, ...]:
    """Who holds the first of `devices`."""
    owner = facts.holders[resource, devices[0]][0]
    pod = f"{owner.namespace}/{owner.name}" if owner.name else owner.uid
    others = f", and the holders of {len(devices) - 1:,} more" if len(devices) > 1 else ""
    return (
        Evidence(owner.sources[0], f"{name(devices[0])}: container {name(owner.container)} of pod {name(pod)}{others}"),
    )


def _sockets(facts: Facts, resource: str) -> str:
    return ", ".join(map(name, facts.sockets_of.get(resource, ())))


def _them(devices: list[str]) -> str:
    return "it" if len(devices) == 1 else "them"
