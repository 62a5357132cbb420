"""The combined data of one `Look`: one value for each question that checks ask.

Law: a check declares the values that it needs as parameters, so its signature shows what it depends on.
"""

from collections.abc import Callable, Mapping
from functools import cache
from inspect import signature
from typing import TypeVar

from attrs import Factory, field, frozen

from devicecore.domain.model import NO_TOPOLOGY
from devicecore_tools.doctor.account.claims import ClaimedHardware
from devicecore_tools.doctor.account.dra import DraDevices
from devicecore_tools.doctor.account.plugins import Absence, PluginSockets, absences, hanging_plugins
from devicecore_tools.doctor.account.precedence import Holders, KubeletNow, Lists, Pods, kubelet_state, why_not_free
from devicecore_tools.doctor.look.values import Look, PluginSeen

Answer = TypeVar("Answer")


@cache
def _arguments(question: Callable[..., object]) -> tuple[str, ...]:
    return tuple(signature(question).parameters)


def _asked(question: Callable[..., Answer]) -> Answer:
    """Return a field that is computed from the fields above it."""
    answer: Answer = field(init=False, default=Factory(lambda self: self.ask(question), takes_self=True))
    return answer


def _numa_nodes(holders: Holders, lists: Lists) -> Mapping[str, Mapping[str, tuple[int, ...]]]:
    """Return the NUMA nodes of each resource's devices: from plugins, else the kubelet's answer, else allocations."""
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for allocation in holders.allocations:
        found.setdefault(allocation.resource, {}).update(allocation.devices)
    for resource, devices in (lists.allocatable or {}).items():
        found.setdefault(resource, {}).update(devices)
    for plugin, resources in lists.served_by:
        if len(resources) == 1 and plugin.devices:
            states = plugin.devices.by_id.states.items()
            listed = {str(device): tuple(map(int, topology or ())) for device, (_, topology) in states}
            found.setdefault(resources[0], {}).update(listed)
    for places in found.values():
        odd = {device for device, numa_nodes in places.items() if NO_TOPOLOGY in numa_nodes}
        places.update({device: tuple([one for one in places[device] if one != NO_TOPOLOGY]) for device in odd})
    return found


@frozen
class Facts:
    """A `Look` and the values computed from it. Each value is computed from the `Look` and the values above it.

    `not_free` says why no device of a resource is free.

    `absent` says why the kubelet has no healthy device of a resource. `hanging` contains the plugins that hang, by
    resource.
    """

    look: Look
    pods: Pods = _asked(Pods.of)
    kubelet: KubeletNow = _asked(kubelet_state)
    holders: Holders = _asked(Holders.of)
    lists: Lists = _asked(Lists.of)
    numa_nodes: Mapping[str, Mapping[str, tuple[int, ...]]] = _asked(_numa_nodes)
    sockets: PluginSockets = _asked(PluginSockets.of)
    absent: Mapping[str, Absence] = _asked(absences)
    claimed: ClaimedHardware = _asked(ClaimedHardware)
    dra: DraDevices = _asked(DraDevices.of)
    not_free: Mapping[str, str] = _asked(why_not_free)
    hanging: Mapping[str, PluginSeen] = _asked(hanging_plugins)

    def ask(self, question: Callable[..., Answer]) -> Answer:
        """Call a function with the values that its parameters name."""
        return question(**{name: getattr(self, name) for name in _arguments(question)})


def all_numa_nodes(look: Look, holders: Holders, lists: Lists) -> frozenset[int]:
    """Return every NUMA node that any source names."""
    named = {nodes for allocation in holders.allocations for nodes in allocation.devices.values()}
    named.update(*(devices.values() for devices in (lists.allocatable or {}).values()))
    found = {node for nodes in named for node in nodes}
    for plugin in look.plugins.value or ():
        found |= {int(node) for _, nodes in (plugin.devices.states if plugin.devices else ()) for node in nodes or ()}
    return frozenset(found - {NO_TOPOLOGY})
