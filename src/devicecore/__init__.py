"""The kubelet's device manager as a library: which devices a node has, who holds them, and which to allocate next.

`domain` contains pure values and functions, `ports` contains the protocols for what these need, and `adapters` contains
implementations. The names in `__all__` are public and stable. Importing this package loads next to nothing: each name
is loaded when it is first used, and none of them needs gRPC or protobuf.
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
        with_claims,
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
    from devicecore.domain.health import allocated_resources_status
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
    from devicecore.domain.objects import pod_of
    from devicecore.domain.topology import Policy, Scope, Topology
    from devicecore.manager import DeviceManager, Restored
    from devicecore.ports.observer import Observer
    from devicecore.ports.plugin import DevicePlugin
    from devicecore.runtime.saver_thread import SaverThread

__version__ = "0.2.0"

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
    "SaverThread",
    "Scope",
    "SetUpError",
    "SinkError",
    "StoreError",
    "Topology",
    "Verdict",
    "allocated_resources_status",
    "pod_of",
    "resource_name",
    "with_claims",
]

getLogger(__name__).addHandler(NullHandler())  # the importing program decides what is logged, and where

_HOMES = (
    *("domain.errors", "domain.model", "domain.objects", "domain.device_set", "domain.container_options"),
    *("domain.ledger", "domain.admission", "domain.capacity", "domain.health", "domain.notifications"),
    *("domain.node_state", "domain.topology", "ports.observer", "ports.plugin", "runtime.saver_thread"),
    "manager",
)
"""The modules that define the names, ordered so that modules that import little come first."""

_ELSEWHERE = {
    **dict.fromkeys(("MemorySink", "MemoryStore", "MemoryTransport", "MemoryPods"), "devicecore.adapters.memory"),
    **dict.fromkeys(("FileStore", "JsonFileSink"), "devicecore.adapters.file"),
    **dict.fromkeys(("GrpcUnixTransport", "run_plugin", "serve_plugin"), "devicecore.adapters.grpc_unix"),
    **dict.fromkeys(("SimulatedPlugin", "simulated_devices"), "devicecore.plugins.simulated"),
    "PollingPlugin": "devicecore.plugins.polling",
    "DirectoryPlugin": "devicecore.plugins.directory",
    "CdiDriver": "devicecore.plugins.cdi_driver",
    "serve_driver": "devicecore.adapters.grpc_unix.dra",
    "DraManager": "devicecore.dra",
    "resource_claim_of": "devicecore.dra",
}
"""Public names that users may try to import from this module, and the modules that define them."""

if not TYPE_CHECKING:  # a type checker reads the imports above

    def __getattr__(name: str) -> object:
        if name in __all__:
            for home in _HOMES:
                value = getattr(import_module(f"{__name__}.{home}"), name, None)
                if value is not None:
                    globals()[name] = value
                    return value
        if name in _ELSEWHERE:
            place = _ELSEWHERE[name]
            message = f"{name} is in {place}: from {place} import {name}"
            raise ImportError(message, name=__name__)  # an AttributeError would lose its text in `from ... import`
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)

    def __dir__() -> list[str]:
        return [*__all__, *(name for name in globals() if name.startswith("__"))]
