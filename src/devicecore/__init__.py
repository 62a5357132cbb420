"""The kubelet's device manager as a library: which devices a node has, who holds them, and which to allocate next.

Pure values and functions are in `domain`, the protocols of what they need in `ports`, implementations in `adapters`.
The names in `__all__` are public and stable. Importing this package loads next to nothing: each name is fetched when it
is first used, and none of them needs gRPC or protobuf.
"""

from importlib import import_module
from logging import NullHandler, getLogger
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from devicecore.domain.admission import Admitted, NotReady, Refused, Verdict
    from devicecore.domain.capacity import NodeStatus
    from devicecore.domain.container_options import (
        Conflict,
        ContainerAllocateResponse,
        ContainerOptions,
        DeviceSpec,
        Mount,
    )
    from devicecore.domain.device_set import DeviceSet
    from devicecore.domain.errors import (
        AdmissionError,
        CheckpointError,
        ContainerNotFoundError,
        DeviceCoreError,
        PluginError,
        SetUpError,
        SinkError,
        StoreError,
    )
    from devicecore.domain.ledger import Allocation
    from devicecore.domain.model import (
        Container,
        ContainerClaim,
        ContainerKey,
        Device,
        DeviceId,
        ExtendedClaim,
        Health,
        NumaNode,
        PluginOptions,
        Pod,
        PodClaim,
        PodUid,
        RequestMapping,
        ResourceName,
        resource_name,
    )
    from devicecore.domain.node_state import NodeState
    from devicecore.domain.notifications import Allocated, HealthChanged, Notification, Released
    from devicecore.domain.topology import Policy, Scope, Topology
    from devicecore.manager import DeviceManager, Restored
    from devicecore.ports.observer import Observer
    from devicecore.ports.plugin import DevicePlugin

__version__ = "0.1.0"

__all__ = [
    "AdmissionError",
    "Admitted",
    "Allocated",
    "Allocation",
    "CheckpointError",
    "Conflict",
    "Container",
    "ContainerAllocateResponse",
    "ContainerClaim",
    "ContainerKey",
    "ContainerNotFoundError",
    "ContainerOptions",
    "Device",
    "DeviceCoreError",
    "DeviceId",
    "DeviceManager",
    "DevicePlugin",
    "DeviceSet",
    "DeviceSpec",
    "ExtendedClaim",
    "Health",
    "HealthChanged",
    "Mount",
    "NodeState",
    "NodeStatus",
    "NotReady",
    "Notification",
    "NumaNode",
    "Observer",
    "PluginError",
    "PluginOptions",
    "Pod",
    "PodClaim",
    "PodUid",
    "Policy",
    "Refused",
    "Released",
    "RequestMapping",
    "ResourceName",
    "Restored",
    "Scope",
    "SetUpError",
    "SinkError",
    "StoreError",
    "Topology",
    "Verdict",
    "resource_name",
]

getLogger(__name__).addHandler(NullHandler())  # what is logged, and where to, the program decides

_HOMES = {
    "AdmissionError": "domain.errors",
    "Admitted": "domain.admission",
    "Allocated": "domain.notifications",
    "Allocation": "domain.ledger",
    "CheckpointError": "domain.errors",
    "Conflict": "domain.container_options",
    "Container": "domain.model",
    "ContainerAllocateResponse": "domain.container_options",
    "ContainerClaim": "domain.model",
    "ContainerKey": "domain.model",
    "ContainerNotFoundError": "domain.errors",
    "ContainerOptions": "domain.container_options",
    "Device": "domain.model",
    "DeviceCoreError": "domain.errors",
    "DeviceId": "domain.model",
    "DeviceManager": "manager",
    "DevicePlugin": "ports.plugin",
    "DeviceSet": "domain.device_set",
    "DeviceSpec": "domain.container_options",
    "ExtendedClaim": "domain.model",
    "Health": "domain.model",
    "HealthChanged": "domain.notifications",
    "Mount": "domain.container_options",
    "NodeState": "domain.node_state",
    "NodeStatus": "domain.capacity",
    "NotReady": "domain.admission",
    "Notification": "domain.notifications",
    "NumaNode": "domain.model",
    "Observer": "ports.observer",
    "PluginError": "domain.errors",
    "PluginOptions": "domain.model",
    "Pod": "domain.model",
    "PodClaim": "domain.model",
    "PodUid": "domain.model",
    "Policy": "domain.topology",
    "Refused": "domain.admission",
    "Released": "domain.notifications",
    "RequestMapping": "domain.model",
    "ResourceName": "domain.model",
    "Restored": "manager",
    "Scope": "domain.topology",
    "SetUpError": "domain.errors",
    "SinkError": "domain.errors",
    "StoreError": "domain.errors",
    "Topology": "domain.topology",
    "Verdict": "domain.admission",
    "resource_name": "domain.model",
}

if not TYPE_CHECKING:  # a type checker reads the imports above

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return [*__all__, *(name for name in globals() if name.startswith("__"))]
