"""The kubelet's device manager as a library: which devices a node has, who holds them, and which to hand out next.

Pure values and functions in `domain`, what they need of the world in `ports`, implementations in `adapters`. Importing
this package loads next to nothing: each name below is fetched when it is first used, and none of them needs gRPC or
protobuf.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from devicecore.domain.admission import Admitted, NotReady, Refused, Verdict
    from devicecore.domain.capacity import Insufficient, NodeStatus, insufficient
    from devicecore.domain.container_options import ContainerAllocateResponse, ContainerOptions, DeviceSpec, Mount
    from devicecore.domain.errors import DeviceCoreError
    from devicecore.domain.model import (
        Container,
        ContainerKey,
        Device,
        DeviceId,
        Health,
        NumaNode,
        PluginOptions,
        Pod,
        PodUid,
        ResourceName,
        resource_name,
    )
    from devicecore.domain.node_state import NodeState
    from devicecore.domain.notifications import Allocated, HealthChanged, Notification, Released
    from devicecore.domain.topology import Policy, Scope, Topology
    from devicecore.manager import DeviceManager
    from devicecore.ports.observer import Observer
    from devicecore.ports.plugin import DevicePlugin

__all__ = [
    "Admitted",
    "Allocated",
    "Container",
    "ContainerAllocateResponse",
    "ContainerKey",
    "ContainerOptions",
    "Device",
    "DeviceCoreError",
    "DeviceId",
    "DeviceManager",
    "DevicePlugin",
    "DeviceSpec",
    "Health",
    "HealthChanged",
    "Insufficient",
    "Mount",
    "NodeState",
    "NodeStatus",
    "NotReady",
    "Notification",
    "NumaNode",
    "Observer",
    "PluginOptions",
    "Pod",
    "PodUid",
    "Policy",
    "Refused",
    "Released",
    "ResourceName",
    "Scope",
    "Topology",
    "Verdict",
    "insufficient",
    "resource_name",
]

_HOMES = {
    "Admitted": "domain.admission",
    "Allocated": "domain.notifications",
    "ContainerAllocateResponse": "domain.container_options",
    "ContainerOptions": "domain.container_options",
    "DeviceCoreError": "domain.errors",
    "DeviceManager": "manager",
    "DevicePlugin": "ports.plugin",
    "DeviceSpec": "domain.container_options",
    "HealthChanged": "domain.notifications",
    "Insufficient": "domain.capacity",
    "Mount": "domain.container_options",
    "Notification": "domain.notifications",
    "NodeState": "domain.node_state",
    "NodeStatus": "domain.capacity",
    "NotReady": "domain.admission",
    "Observer": "ports.observer",
    "Policy": "domain.topology",
    "Refused": "domain.admission",
    "Released": "domain.notifications",
    "Scope": "domain.topology",
    "Topology": "domain.topology",
    "Verdict": "domain.admission",
    "insufficient": "domain.capacity",
}

if not TYPE_CHECKING:  # what a type checker sees is above

    def __getattr__(name: str) -> object:
        if name not in __all__:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        value = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'domain.model')}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return [*__all__, *(name for name in globals() if name.startswith("__"))]
