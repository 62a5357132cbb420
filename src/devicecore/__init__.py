"""The kubelet's device manager as a library: which devices a node has, who holds them, and which to hand out next.

Pure values and functions in `domain`, what they need of the world in `ports`, implementations in `adapters`. Importing
this package loads no adapter, and neither gRPC nor protobuf.
"""

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
from devicecore.domain.node import Node
from devicecore.domain.topology import Policy, Scope, Topology
from devicecore.manager import DeviceManager
from devicecore.ports.plugin import DevicePlugin

__all__ = [
    "Admitted",
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
    "Insufficient",
    "Mount",
    "Node",
    "NodeStatus",
    "NotReady",
    "NumaNode",
    "PluginOptions",
    "Pod",
    "PodUid",
    "Policy",
    "Refused",
    "ResourceName",
    "Scope",
    "Topology",
    "Verdict",
    "insufficient",
    "resource_name",
]
