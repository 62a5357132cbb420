"""Why a resource has no devices, according to sockets, plugins' answers and the kubelet's lists.

Laws: `doctor`, `why` and `fits` all use this module's decision. A plugin counts as gone only if no live socket can
belong to it, or if a process has left its socket behind and the kubelet has lost the devices since the last report.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum

from attrs import frozen

from devicecore_tools.doctor.account.precedence import Holders, KubeletNow, Lists, OwnerState, Pods, is_requested
from devicecore_tools.doctor.look.names import name, names
from devicecore_tools.doctor.look.values import (
    LIST_HAS,
    NOBODY_LISTENS,
    PLUGINS_PREFIX,
    REGISTRY_PREFIX,
    Look,
    PluginSeen,
    SocketsSeen,
    Source,
)

NumaNodes = Mapping[str, Mapping[str, tuple[int, ...]]]


@frozen
class PluginSockets:
    """The sockets of device plugins.

    Attributes:
        is_known: whether the directory belongs to a kubelet and was read.
        dead: plugin sockets that no process listens on.
        unassigned: the sockets that may belong to a plugin that the kubelet does not use, or None if unknown.
    """

    is_known: bool
    dead: tuple[str, ...] = ()
    unassigned: tuple[str, ...] | None = None

    @classmethod
    def of(cls, look: Look, kubelet: KubeletNow, lists: Lists) -> "PluginSockets":
        """Return the sockets in a `Look`.

        Each resource for which the kubelet has devices needs one socket. If there are at most as many live sockets as
        such resources, no socket is left for another plugin.
        """
        sockets = look.sockets.value
        if sockets is None or not sockets.kubelet:
            return cls(is_known=False)
        silent = {plugin.socket for plugin in look.plugins.value or () if plugin.problem == NOBODY_LISTENS}
        plugins = [(name, sockets.served.get(PLUGINS_PREFIX + name)) for name in sockets.plugins]
        watched = [(name, sockets.served.get(REGISTRY_PREFIX + name)) for name in sockets.registry]
        dead = [name for name, served in (*plugins, *watched) if served is False or name in silent]
        answered = {plugin.socket for plugin, resources in lists.served_by if resources and plugin.devices is not None}
        living = [name for name, _ in plugins if name not in dead]
        left = [name for name in living if name not in answered]
        others = [name for name, _ in watched if name not in dead and name not in answered and not is_driver(name)]
        if kubelet is KubeletNow.ANSWERS and lists.allocatable is not None:
            needed = sum(1 for devices in lists.allocatable.values() if devices)
            if len(living) + len(others) <= needed:
                left, others = [], []
        return cls(is_known=True, dead=tuple(dead), unassigned=(*left, *others))

    @property
    def none_is_left(self) -> bool:
        """Whether each live socket belongs to a plugin that the kubelet uses, which leaves none for other plugins."""
        return self.is_known and self.unassigned == ()


def is_driver(socket: str) -> bool:
    """Return whether a socket is named like the registration socket of a CSI or DRA driver."""
    return socket.endswith("-reg.sock")


class WhyAbsent(Enum):
    """Why a kubelet has no healthy device of a resource."""

    NEVER = "no plugin for it has registered"
    AWAITED = "its plugin has not registered again since the kubelet started"
    GONE = "its plugin is gone"
    SICK = "its plugin reports all of its devices as unhealthy"
    EMPTY = "its plugin lists no devices"
    UNKNOWN = (
        "its plugin is gone, has not registered since the kubelet started, or reports all of its devices as unhealthy"
    )


_WARNINGS = {
    WhyAbsent.NEVER: "no plugin for {} has registered: the kubelet gives none of these devices to any pod",
    WhyAbsent.AWAITED: "the plugin for {} is missing: the kubelet has just started, and gives none of these "
    "devices to any pod until the plugin has registered again",
    WhyAbsent.GONE: "the plugin for {} is missing: the kubelet gives none of these devices to any pod until "
    "the plugin has registered",
    WhyAbsent.SICK: "the plugin for {} reports its devices as unhealthy: the kubelet gives none of them to any pod",
    WhyAbsent.EMPTY: (
        "the plugin for {} lists no devices: the kubelet gives none to any pod until the plugin lists some"
    ),
    WhyAbsent.UNKNOWN: "the kubelet has no healthy device of {} and gives none to any pod: {}",
}


@frozen
class Absence:
    """Why a resource has no devices, with the proof.

    Attributes:
        resource: the name of the resource.
        why: the kind of reason.
        because: the reason in words, as the end of a sentence.
        proof: the statement of each source that shows the absence, or nothing if only all sources together show it.
        devices: the devices that the kubelet had before, as far as they are known.
    """

    resource: str
    why: WhyAbsent
    because: str
    proof: tuple[tuple[Source, str], ...] = ()
    devices: tuple[str, ...] = ()

    @property
    def warning(self) -> str:
        """What the absence means for a pod that requests the resource."""
        return _WARNINGS[self.why].format(self.resource, self.because)


def absences(
    look: Look,
    kubelet: KubeletNow,
    pods: Pods,
    holders: Holders,
    lists: Lists,
    sockets: PluginSockets,
    numa_nodes: NumaNodes,
) -> Mapping[str, Absence]:
    """Return the resources for which the kubelet currently has no healthy device, and why."""
    node = look.node.value
    published = node.allocatable if node else {}
    wanted = wanted_resources(pods, holders)
    missing = []
    for resource in sorted({*lists.resources, *wanted, *(one for one, count in published.items() if not count)}):
        if lists.listed.get(resource) or (lists.allocatable or {}).get(resource) or is_of_others(look, lists, resource):
            continue
        if resource in lists.left_out and not sockets.none_is_left:
            continue  # the kubelet may have devices of this resource that are on no NUMA node
        is_gone = sockets.none_is_left and not look.plugins.value
        if lists.allocatable is not None or published.get(resource) == 0 or is_gone:
            missing.append(resource)
    reasons = _reasons(look, kubelet, lists, sockets, missing)
    found = {}
    for resource in missing:
        held = [numa_nodes.get(resource, {}).get(device, ()) for device in holders.in_use.get(resource, ())]
        proof = tuple(_without_devices(look, lists, sockets, held, resource))
        before = lists.registered.get(resource) or (*lists.devices.get(resource, ()),)
        because = _because(reasons[resource], look, kubelet, sockets, resource)
        found[resource] = Absence(resource, reasons[resource], because, proof, tuple(before))
    return found


def _reasons(
    look: Look, kubelet: KubeletNow, lists: Lists, sockets: PluginSockets, missing: list[str]
) -> Mapping[str, WhyAbsent]:
    """Return why each resource is missing.

    A kubelet writes each report from a plugin into its checkpoint. So a resource with healthy devices in the
    checkpoint, but none in the kubelet's answer, has lost its plugin. A registered resource needs a live socket, so if
    there is one for each of the other resources, their plugins are running.
    """
    if kubelet is KubeletNow.STARTING:
        return dict.fromkeys(missing, WhyAbsent.AWAITED)
    node, reasons = look.node.value, dict.fromkeys(missing, WhyAbsent.UNKNOWN)
    for resource in missing:
        if node is not None and resource not in node.capacity and resource not in lists.devices:
            reasons[resource] = WhyAbsent.NEVER
        elif sockets.none_is_left:
            reasons[resource] = WhyAbsent.GONE
    unknown = [one for one, why in reasons.items() if why is WhyAbsent.UNKNOWN]
    if node is None or lists.allocatable is None or kubelet is not KubeletNow.ANSWERS or sockets.unassigned is None:
        return reasons
    lost = [one for one in unknown if lists.registered.get(one) and node.allocatable.get(one) == 0]
    if len(sockets.dead) < len(lost):
        return reasons  # the checkpoint may be from another time
    reasons.update(dict.fromkeys(lost, WhyAbsent.GONE))
    rest = [one for one in unknown if one not in lost]
    if len(sockets.dead) <= len(lost) and len(sockets.unassigned) >= len(rest):
        empty = [one for one in look.plugins.value or () if not (one.problem or one.devices or one.resource)]
        for resource in rest:
            if lists.registered.get(resource) == ():
                is_empty = len(empty) >= len(rest) or not node.capacity.get(resource)
                reasons[resource] = WhyAbsent.EMPTY if is_empty else WhyAbsent.SICK
    return reasons


def _because(why: WhyAbsent, look: Look, kubelet: KubeletNow, sockets: PluginSockets, resource: str) -> str:
    node = look.node.value
    capacity = node.capacity.get(resource) if node else None
    if why is WhyAbsent.UNKNOWN and capacity and kubelet is KubeletNow.ANSWERS:
        return "its plugin is gone, or reports all of its devices as unhealthy"
    if why is WhyAbsent.UNKNOWN and capacity == 0:
        return "its plugin is gone, has not registered since the kubelet started, or lists no devices"
    if why is not WhyAbsent.GONE:
        return str(why.value)
    was_here = node is not None and capacity and node.allocatable.get(resource) == 0
    # a kubelet counts devices for five minutes after their plugin has ended
    if kubelet is KubeletNow.ANSWERS and was_here:
        since = "; it ended less than five minutes ago"
    else:  # a kubelet removes all sockets when it starts, even those of running plugins
        since = " or has not registered since the kubelet started"
    dead = f"no process listens at {names(sockets.dead)}" if sockets.dead else ""
    nowhere = "no process serves a socket for it in the kubelet's directories" if sockets.none_is_left else ""
    return f"{why.value}{since}: {'; '.join(filter(None, (nowhere, dead)))}"


def _without_devices(
    look: Look, lists: Lists, sockets: PluginSockets, held: Iterable[tuple[int, ...]], resource: str
) -> Iterator[tuple[Source, str]]:
    """Yield, by source, the evidence that there is no healthy device.

    The kubelet's answer omits devices on no NUMA node, so it is not always evidence.
    """
    node, in_file = look.node.value, lists.registered.get(resource)
    if lists.allocatable is not None:
        zero = node is not None and node.allocatable.get(resource) == 0
        if any(held) or sockets.none_is_left or in_file == () or zero:
            yield Source.POD_RESOURCES, f"lists no device of {name(resource)}"
    if node is not None and node.allocatable.get(resource) == 0:
        yield Source.NODE, f"status.allocatable: 0, status.capacity: {node.capacity.get(resource, 0):,}"
    if sockets.none_is_left:
        yield Source.SOCKETS, "no socket of its plugin"
    elif sockets.dead:
        yield Source.SOCKETS, f"no process listens at {names(sockets.dead)}"
    if in_file == ():
        yield Source.CHECKPOINT, "an empty list"


def silent_plugins(look: Look, lists: Lists) -> Iterator[tuple[PluginSeen, Source, tuple[str, ...]]]:
    """Yield each plugin that does not answer, the source that shows this, and the resources it may serve."""
    sockets = look.sockets.value or SocketsSeen()
    known = {plugin.socket for plugin in look.plugins.value or () if plugin.resource}
    asked = [
        (one, Source.PLUGINS)
        for one in look.plugins.value or ()
        if one.problem and (one.socket in known or not is_driver(one.socket))
    ]
    if look.plugins.value is None:
        asked += [
            (PluginSeen(socket, problem=problem), Source.SOCKETS)
            for path, problem in sockets.silent.items()
            if not is_driver(socket := path.partition("/")[2]) or path.startswith(PLUGINS_PREFIX)
        ]
    unserved = tuple(one for one in lists.registered if one not in lists.sockets_of)
    missing = tuple(one for one in unserved if not (lists.allocatable or {}).get(one))
    for plugin, source in asked:
        gone = plugin.problem == NOBODY_LISTENS
        if gone and not missing and not unserved and not plugin.resource:
            continue  # each resource has a different plugin, so this socket was left behind
        candidates = (missing if source is Source.PLUGINS else ()) or unserved
        resource = plugin.resource or sockets.named.get(REGISTRY_PREFIX + plugin.socket, ("", ""))[1]
        yield plugin, source, (resource,) if resource else candidates


def hanging_plugins(look: Look, lists: Lists) -> Mapping[str, PluginSeen]:
    """Return, by resource, the plugins that certainly do not answer although a process listens on their sockets."""
    return {
        candidates[0]: plugin
        for plugin, _, candidates in silent_plugins(look, lists)
        if plugin.problem != NOBODY_LISTENS and not plugin.problem.startswith(LIST_HAS) and len(candidates) == 1
    }


def is_of_others(look: Look, lists: Lists, resource: str) -> bool:
    """Return whether an administrator rather than a plugin added the resource to the Node."""
    published = look.node.value.allocatable.get(resource) if look.node.value else None
    return bool(published) and resource not in lists.devices and lists.allocatable is not None


def wanted_resources(pods: Pods, holders: Holders) -> Mapping[str, tuple[str, ...]]:
    """Return, by resource, the pods that have started here and hold or request devices."""
    found: dict[str, dict[str, None]] = {}
    for one in holders.allocations:
        if one.owner.state is OwnerState.LIVE and one.devices:
            found.setdefault(one.resource, {})[one.owner.identity] = None
    for pod in pods.here:
        for container in pod.pod.in_start_order:
            for resource, size in container.limits.items():
                if is_requested(pod, container.name, resource, size):
                    found.setdefault(resource, {})[pod.identity] = None
    return {resource: tuple(names) for resource, names in found.items()}
