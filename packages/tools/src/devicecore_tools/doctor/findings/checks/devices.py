"""Checks of the devices that containers hold, and the device counts in the Node object.

Law: a holder whose pod is gone does not count. A device that is healthy in the checkpoint may have become unhealthy
since.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from devicecore.domain.model import Health
from devicecore.domain.text import counted
from devicecore.domain.topology import Policy
from devicecore_tools.doctor.account.facts import all_numa_nodes
from devicecore_tools.doctor.account.plugins import Absence, NumaNodes, WhyAbsent, wanted_resources
from devicecore_tools.doctor.account.precedence import (
    Holders,
    KubeletNow,
    Lists,
    OwnerState,
    Pods,
    believed_file,
    is_requested,
)
from devicecore_tools.doctor.findings.finding import Evidence, Found, as_told, described
from devicecore_tools.doctor.look.names import by_number, devices_of, name, names
from devicecore_tools.doctor.look.values import Look, NodeSeen, PodSeen, Source, grouped

MAX_NUMA_NODES = 8
"""The maximum number of NUMA nodes that a kubelet's topology manager accepts by default."""


def held_device_not_listed(holders: Holders, lists: Lists) -> Iterator[Found]:
    """Find containers that hold a device that its plugin does not list."""
    for resource, listed in lists.listed.items():
        missing = [device for device in holders.in_use.get(resource, ()) if device not in listed]
        if missing:
            them = by_number(missing, "it", "them")
            sentence = f"Containers hold {devices_of(missing, resource)}, but the plugin does not list {them}."
            evidence = (
                *_holders(holders, resource, missing),
                Evidence(Source.PLUGINS, f"{_sockets(lists, resource)}: {devices_of([*listed], resource)}"),
            )
            yield Found(sentence, evidence, resource, tuple(missing), pods=_pods(holders, resource, missing))


def held_device_unhealthy(
    pods: Pods, holders: Holders, lists: Lists, numa_nodes: NumaNodes, absent: Mapping[str, Absence]
) -> Iterator[Found]:
    """Find containers that hold an unhealthy device."""
    found = {**_held_and_sick(holders, lists, numa_nodes), **_all_sick(holders, lists, absent)}
    for resource, sick in found.items():
        if not sick:
            continue
        what = devices_of(sick, resource)
        if resource in lists.listed:
            sentence = f"Containers hold {what}, which the plugin reports as unhealthy."
            why = Evidence(Source.PLUGINS, f"{_sockets(lists, resource)}: Unhealthy")
        else:
            counts = (
                "did not count as healthy at its last write"
                if lists.allocatable is None
                else "does not count as healthy"
            )
            sentence = f"Containers hold {what}, which the kubelet {counts}."
            if not lists.healthy.get(resource):
                sentence += " The resource has no healthy device left, so no pod gets any."
            why = Evidence(lists.source, f"healthy: {devices_of(lists.healthy.get(resource, ()), resource)}")
        evidence = (*_holders(holders, resource, sick), why)
        yield Found(sentence, evidence, resource, tuple(sick), pods=_pods(holders, resource, sick))
    if lists.allocatable is not None:
        return
    for pod, container, resource, told in pods.told_unhealthy(of_claims=False):
        known = {*found.get(resource, ()), *lists.in_file.get(resource, ())}
        sick = [device for device in told if device not in known]
        if sick and resource not in lists.listed:
            yield as_told(pod, container, f"{devices_of(sick, resource)}, not healthy", resource, sick)


def _all_sick(holders: Holders, lists: Lists, absent: Mapping[str, Absence]) -> Mapping[str, list[str]]:
    """Return the held unhealthy devices of each resource that has only unhealthy devices."""
    return {
        resource: [one for one in devices if lists.health(resource, one, holders) == Health.UNHEALTHY.value]
        for resource, devices in holders.live.items()
        if not lists.healthy.get(resource) and resource not in lists.listed
        if resource in absent and absent[resource].why is WhyAbsent.SICK
    }


def _held_and_sick(holders: Holders, lists: Lists, numa_nodes: NumaNodes) -> Mapping[str, list[str]]:
    """Return the unhealthy devices of each resource that containers certainly hold."""
    found = {}
    for resource, devices in holders.live.items():
        listed, healthy = lists.listed.get(resource), lists.healthy.get(resource, ())
        if listed is not None:
            sick = [device for device in devices if listed.get(device) is Health.UNHEALTHY]
        elif not healthy:  # the plugin is gone or has not sent a list yet, which is another finding
            sick = []
        else:  # the kubelet's answer omits devices whose topology has no nodes, but the file lists them
            file, places = lists.in_file.get(resource), numa_nodes.get(resource, {})
            sick = [
                device
                for device in devices
                if device not in healthy and (places.get(device) or (file is not None and device not in file))
            ]
        if sick:
            found[resource] = sick
    return found


def unhealthy_device(
    look: Look, pods: Pods, holders: Holders, lists: Lists, not_free: Mapping[str, str]
) -> Iterator[Found]:
    """Find unhealthy devices that no container holds."""
    node = look.node.value
    if node is not None and pods.is_complete and look.pod_resources.value is None and look.plugins.value is None:
        yield from _counted_unhealthy(node, pods, holders, lists)
    for resource in lists.resources:
        if "" in not_free or resource in not_free:
            continue  # a container may hold the device
        if resource in lists.listed:
            held = holders.in_use.get(resource, ())
            sick = [
                device
                for device, state in lists.listed[resource].items()
                if state is Health.UNHEALTHY and device not in held
                # if the kubelet has the device, the lists differ, which is another finding
                if device not in (lists.allocatable or {}).get(resource, ())
            ]
            if sick:
                them = by_number(sick, "it", "them")
                sentence = (
                    f"The plugin reports {devices_of(sick, resource)} as unhealthy. No container holds {them}, and the "
                    f"kubelet gives {them} to no pod."
                )
                told = Evidence(Source.PLUGINS, f"{_sockets(lists, resource)}: Unhealthy")
                yield Found(sentence, (told,), resource, tuple(sick))
        elif node is not None and lists.healthy.get(resource):
            capacity, allocatable = node.capacity.get(resource, 0), node.allocatable.get(resource, 0)
            held = holders.in_use.get(resource, frozenset())
            count = capacity - allocatable - len(held - lists.healthy[resource])
            # a smaller number means that the kubelet has not written the Node yet
            is_of_now = allocatable >= len(lists.healthy[resource])
            if count > 0 and allocatable and is_of_now:
                sentence = (
                    f"{counted(count, 'device')} of {name(resource)} {'is' if count == 1 else 'are'} not healthy. No "
                    f"container holds {'it' if count == 1 else 'them'}, and the kubelet gives "
                    f"{'it' if count == 1 else 'them'} to no pod. Only the plugin knows the id; use --plugins to "
                    "query it."
                )
                text = f"status.capacity: {capacity:,}, status.allocatable: {allocatable:,}"
                healthy = f"healthy: {devices_of(lists.healthy[resource], resource)}"
                evidence = (Evidence(Source.NODE, text), Evidence(Source.POD_RESOURCES, healthy))
                yield Found(sentence, evidence, resource)


def _counted_unhealthy(node: NodeSeen, pods: Pods, holders: Holders, lists: Lists) -> Iterator[Found]:
    """Yield devices that the Node counts as unhealthy, if the statuses of its pods name all held devices."""
    sick = Counter[str]()
    for _, _, resource, told in pods.told_unhealthy(of_claims=False):
        sick[resource] += len(told)
    for resource, allocatable in node.allocatable.items():
        count = node.capacity.get(resource, 0) - allocatable - sick[resource]
        if len(lists.in_file.get(resource, ())) > allocatable:
            continue  # one of the sources is older than the other
        if any(owner.pod is None for owners in holders.by_device.get(resource, {}).values() for owner in owners):
            continue  # a pod that is missing from the list of pods may hold the device
        if allocatable and count > 0 and all(_names_all(pod, resource) for pod in (*pods.here, *pods.perhaps_here)):
            are = "is" if count == 1 else "are"
            sentence = (
                f"{counted(count, 'device')} of {name(resource)} {are} not healthy, and according to the "
                f"statuses of all pods, no pod on the Node holds {'it' if count == 1 else 'them'}."
            )
            text = f"status.capacity: {node.capacity[resource]:,}, status.allocatable: {allocatable:,}"
            yield Found(sentence, (Evidence(Source.NODE, text),), resource)


def _names_all(pod: PodSeen, resource: str) -> bool:
    """Return whether a pod's status names all requested devices of a resource."""
    return all(
        len(pod.statuses.get((one.name, resource), ())) == one.limits[resource]
        for one in pod.pod.in_start_order
        if resource in one.limits and is_requested(pod, one.name, resource, one.limits[resource])
    )


def more_allocated_than_allocatable(
    look: Look, holders: Holders, lists: Lists, numa_nodes: NumaNodes
) -> Iterator[Found]:
    """Find resources of which containers hold more devices than the Node has, or than are allocatable."""
    node = look.node.value
    sick = _held_and_sick(holders, lists, numa_nodes)
    for resource, devices in holders.live.items():
        if lists.allocatable is not None and not lists.allocatable.get(resource):
            continue  # the plugin is gone, which is a separate finding, and the Node does not show it yet
        allocatable = node.allocatable.get(resource, 0) if node else 0
        capacity = node.capacity.get(resource, 0) if node else 0
        if 0 < capacity < len(devices):
            sentence = f"Containers hold {devices_of([*devices], resource)}, and the Node has only {capacity:,}."
            text = Evidence(Source.NODE, f"status.capacity: {capacity:,}")
            yield Found(sentence, (*_holders(holders, resource, [*devices]), text), resource, (*devices,))
            continue
        healthy = len(devices) - len(sick.get(resource, ()))
        if 0 < allocatable < healthy:
            sentence = f"Containers hold {devices_of([*devices], resource)}, but only {allocatable:,} are allocatable."
            text = Evidence(Source.NODE, f"status.allocatable: {allocatable:,}")
            yield Found(sentence, (*_holders(holders, resource, [*devices]), text), resource, (*devices,))


def node_status_differs(look: Look, kubelet: KubeletNow, pods: Pods, holders: Holders, lists: Lists) -> Iterator[Found]:
    """Find resources whose counts in the Node object differ from the kubelet's or the plugin's."""
    node = look.node.value
    if node is None or lists.allocatable is None or kubelet is not KubeletNow.ANSWERS:
        return
    wanted = wanted_resources(pods, holders)
    for resource in sorted({*lists.registered, *lists.allocatable}):
        count, total = len(lists.allocatable.get(resource, ())), len(lists.listed.get(resource, ()))
        published, capacity = node.allocatable.get(resource, 0), node.capacity.get(resource, 0)
        if (not count and resource in wanted) or resource in lists.differing:
            continue  # a plugin that is gone, and two plugins for one resource, are separate findings
        evidence: tuple[Evidence, ...] = (
            Evidence(Source.NODE, f"status.allocatable: {published:,}, status.capacity: {capacity:,}"),
            Evidence(Source.POD_RESOURCES, f"{count:,} healthy"),
        )
        # The kubelet's answer omits devices whose topology has no nodes, so it gives only a lower bound, unless it
        # includes every device in the checkpoint.
        in_file = lists.in_file.get(resource)
        is_all = in_file is not None and lists.allocatable.get(resource, {}).keys() >= in_file
        if published < count or (published > count and is_all):
            sentence = (
                f"The Node has {published:,} allocatable {name(resource)}, but the kubelet has {count:,} healthy."
            )
        elif capacity < count:
            sentence = (
                f"The Node has a capacity of {capacity:,} {name(resource)}, but the kubelet has {count:,} healthy."
            )
        elif total > capacity:
            sentence = f"The Node has a capacity of {capacity:,} {name(resource)}, but the plugin lists {total:,}."
            evidence = (*evidence, Evidence(Source.PLUGINS, f"{_sockets(lists, resource)}: {total:,} listed"))
        else:
            continue
        yield Found(sentence, evidence, resource)


def many_numa_nodes(look: Look, holders: Holders, lists: Lists) -> Iterator[Found]:
    """Find out whether the machine or its devices have more NUMA nodes than the topology manager accepts."""
    machine = look.machine
    if machine is not None and machine.policy == Policy.NONE.value:
        return  # with this policy, a kubelet requests no hints, and starts on any machine
    if machine is not None and machine.policy and len(machine.numa_nodes) > machine.max_numa_nodes:
        sentence = (
            f"This machine has {len(machine.numa_nodes):,} NUMA nodes. The kubelet, whose topology manager policy is "
            f"{machine.policy}, accepts at most {machine.max_numa_nodes:,}, so it does not start."
        )
        yield Found(sentence, ())
        return
    found = sorted(all_numa_nodes(look, holders, lists))
    if len(found) > MAX_NUMA_NODES:
        named = ", ".join(map(str, found[:20])) + (", ..." if len(found) > 20 else "")
        api = Source.POD_RESOURCES if look.pod_resources.value else Source.PLUGINS
        source = Source.CHECKPOINT if believed_file(look) else api
        sentence = (
            f"The devices of this node are on {len(found):,} NUMA nodes; the topology manager accepts at most "
            f"{MAX_NUMA_NODES}."
        )
        yield Found(sentence, (Evidence(source, f"NUMA nodes {named}"),))


_ALIGNING = frozenset({"single-numa-node", "restricted"})  # policies that make a kubelet refuse pods


def listed_twice(lists: Lists) -> Iterator[Found]:
    """Find plugins that list an id twice."""
    for plugin, resources in lists.served_by:
        ids = plugin.devices.ids if plugin.devices else ()
        if len(ids) == len({*ids}):
            continue
        twice = tuple(str(one) for one, count in Counter(ids).items() if count > 1)
        resource = resources[0] if len(resources) == 1 else ""
        sick = {str(one.id) for one in plugin.devices or () if one.health is Health.UNHEALTHY} & {*twice}
        both = (
            " If an id is listed both as healthy and as unhealthy, the kubelet counts it as both and gives it to pods."
        )
        sentence = f"The plugin at {name(plugin.socket)} lists {names(twice)} more than once.{both if sick else ''}"
        evidence = (Evidence(Source.PLUGINS, f"{name(plugin.socket)}: {len(ids):,} devices, {len({*ids}):,} ids"),)
        yield Found(sentence, evidence, resource, twice)


def numa_node_missing(look: Look, numa_nodes: NumaNodes, absent: Mapping[str, Absence]) -> Iterator[Found]:
    """Find devices on a NUMA node that the machine does not have, if the kubelet aligns devices."""
    machine = look.machine
    # With other policies, a kubelet allocates the device regardless of the NUMA nodes that its plugin reports.
    if machine is None or machine.policy not in _ALIGNING or not machine.numa_nodes:
        return
    has = machine.numa_nodes
    for resource, devices in numa_nodes.items():
        odd = {device: nodes for device, nodes in devices.items() if not {*nodes} <= {*has}}
        if odd and resource not in absent:
            missing = sorted({node for nodes in odd.values() for node in nodes} - {*has})
            sentence = (
                f"{devices_of([*odd], resource)} {by_number(odd, 'is', 'are')} on NUMA node "
                f"{', '.join(map(str, missing[:8]))}, and this machine has only {', '.join(map(str, has[:8]))}."
            )
            first, nodes = next(iter(odd.items()))
            source = Source.POD_RESOURCES if look.pod_resources.value is not None else Source.CHECKPOINT
            evidence = (Evidence(source, f"{name(first)} is on NUMA node {', '.join(map(str, nodes[:8]))}"),)
            yield Found(sentence, evidence, resource, tuple(odd))


def node_lacks_resource(look: Look, pods: Pods, holders: Holders, absent: Mapping[str, Absence]) -> Iterator[Found]:
    """Find resources that running pods hold or request, but that the Node does not have at all."""
    node = look.node.value
    if node is None or not node.name:
        return
    for resource, holding in wanted_resources(pods, holders).items():
        if not look.is_of_server and resource not in holders.in_use:
            continue  # a kubelet admits a pod with a resource that it does not know, and allocates nothing
        if resource not in node.capacity and resource not in node.allocatable and resource not in absent:
            hold = by_number(holding, "holds or requests", "hold or request")
            sentence = (
                f"The Node has no {name(resource)}, and {counted(len(holding), 'pod')} here {hold} it "
                f"({names(holding)}): the Node's status was reset, or the plugin has not registered since the "
                "Node was created."
            )
            evidence = (Evidence(Source.NODE, "neither status.capacity nor status.allocatable names the resource"),)
            yield Found(sentence, evidence, resource, pods=holding)


def same_ids(lists: Lists) -> Iterator[Found]:
    """Find resources from one vendor with the same ids, because a kubelet may allocate one device for each of them."""
    by_ids = grouped(
        ((resource.partition("/")[0], frozenset(devices)), resource)
        for resource, devices in lists.devices.items()
        if devices and not all(map(str.isdecimal, devices))
    )
    for (_, listed), resources in by_ids.items():
        if len(resources) > 1:
            ids = sorted(listed)
            sentence = (
                f"{names(resources)} have the same {counted(len(ids), 'id')} ({names(ids)}): if these are the "
                "same devices, the kubelet may give one device to two pods, because it does not compare resources."
            )
            evidence = Evidence(lists.source, f"{names(resources)}: {names(ids)}")
            yield Found(sentence, (evidence,), resources[0], tuple(ids))


def _holders(holders: Holders, resource: str, devices: list[str]) -> tuple[Evidence, ...]:
    """Describe the holder of the first of `devices`."""
    owner = holders.by_device[resource][devices[0]][0]
    others = f", and the holders of {len(devices) - 1:,} more" if len(devices) > 1 else ""
    text = f"{name(devices[0])}: {described(owner)}{others}"
    return (Evidence(owner.sources[0], text),)


def _pods(holders: Holders, resource: str, devices: list[str]) -> tuple[str, ...]:
    """Return the pods that hold any of `devices`."""
    owners = (owner for device in devices for owner in holders.by_device[resource][device])
    return tuple(dict.fromkeys(owner.identity for owner in owners if owner.state is not OwnerState.STALE))


def _sockets(lists: Lists, resource: str) -> str:
    return ", ".join(map(name, lists.sockets_of.get(resource, ())))
