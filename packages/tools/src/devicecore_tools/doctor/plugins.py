"""Which plugins are missing: what their sockets, their answers and the kubelet's lists say together.

Law: a plugin is called gone only if no socket at which a process listens can be its.
"""

from collections.abc import Mapping
from enum import Enum

from attrs import frozen

from devicecore.domain.model import Health
from devicecore_tools.doctor.look import NOBODY_LISTENS, Look
from devicecore_tools.doctor.precedence import Holders, KubeletNow, Lists, OwnerState, Pods, is_requested

_DIRECTORY = "device-plugins/"
_REGISTRY = "plugins_registry/"


@frozen
class PluginSockets:
    """The sockets of device plugins.

    Attributes:
        is_known: whether the directory is that of a kubelet and was read.
        dead: the sockets of plugins at which nobody listens.
        unassigned: the sockets that may be those of a plugin which the kubelet does not use; None if not known.
    """

    is_known: bool
    dead: tuple[str, ...] = ()
    unassigned: tuple[str, ...] | None = None

    @classmethod
    def of(cls, look: Look, kubelet: KubeletNow, lists: Lists) -> "PluginSockets":
        """Return the sockets of a look.

        Each resource that the kubelet has devices of needs one socket. If there are no more living sockets than such
        resources, none is left for another plugin.
        """
        sockets = look.sockets.value
        if sockets is None or not sockets.kubelet:
            return cls(is_known=False)
        silent = {plugin.socket for plugin in look.plugins.value or () if plugin.problem == NOBODY_LISTENS}
        plugins = [(name, sockets.served.get(_DIRECTORY + name)) for name in sockets.plugins]
        watched = [(name, sockets.served.get(_REGISTRY + name)) for name in sockets.registry]
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
        """Whether each living socket belongs to a plugin that the kubelet uses, so that another plugin has none."""
        return self.is_known and self.unassigned == ()


def is_driver(socket: str) -> bool:
    """Return whether the name of a socket is that of a driver's registration, as helpers for CSI and DRA write it."""
    return socket.endswith("-reg.sock")


class WhyAbsent(Enum):
    """Why a kubelet has no healthy device of a resource."""

    GONE = "its plugin is gone"
    SICK = "its plugin reports them as unhealthy"
    UNKNOWN = "its plugin is gone, has not registered since the kubelet started, or reports all of them as unhealthy"


def absence(pods: Pods, sockets: PluginSockets, resource: str) -> WhyAbsent:
    """Return why the kubelet has no healthy device of a resource, as far as sockets and pods say."""
    if sockets.none_is_left:
        return WhyAbsent.GONE
    told = {health for pod in pods.here for _, health in pod.told_health(resource)}
    return WhyAbsent.SICK if told == {Health.UNHEALTHY.value} else WhyAbsent.UNKNOWN


def is_of_others(look: Look, lists: Lists, resource: str) -> bool:
    """Return whether the Node has a resource that no plugin has registered: an administrator has added it."""
    published = look.node.value.allocatable.get(resource) if look.node.value else None
    return bool(published) and resource not in lists.devices and lists.allocatable is not None


def wanted_resources(pods: Pods, holders: Holders) -> Mapping[str, tuple[str, ...]]:
    """Return the pods that have begun here and hold or request devices, by resource."""
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
