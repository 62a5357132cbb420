"""What a program needs for dynamic resource allocation: the DRA manager, and the types that drivers and adapters use.

Law: nothing is defined here, and a program that does not import this module does not load the DRA manager. The names in
`__all__` are public and stable. Pods come from `devicecore`, and errors are in `devicecore.domain.dra.errors`.
"""

from devicecore.domain.dra.answers import PrepareResult, UnprepareResult
from devicecore.domain.dra.claims import ClaimCache, ClaimInfo, ClaimPhase
from devicecore.domain.dra.devices import DynamicResource
from devicecore.domain.dra.drivers import (
    DriverConnected,
    DriverDisconnected,
    DriverEvent,
    DriverRegistered,
    DriverRegistry,
    DriverRemoved,
    HealthEnded,
    HealthReported,
    InstanceId,
)
from devicecore.domain.dra.health import (
    ClaimedDeviceHealth,
    ClaimHealth,
    ClaimHealthChanged,
    DraHealth,
    HealthCache,
    ReportedHealth,
)
from devicecore.domain.dra.model import (
    AllocatedDevice,
    ClaimKey,
    ClaimRef,
    ClaimUid,
    DriverConfig,
    DriverName,
    PreparedDevice,
    ResourceClaim,
)
from devicecore.domain.dra.objects import resource_claim_of
from devicecore.domain.dra.slices import DevicePool, PublishedDevice, Version
from devicecore.domain.dra.state_file import ClaimEntry, DecodedState, decode
from devicecore.dra_manager import DraManager, PreparedPod, RestoredClaims

__all__ = [
    "AllocatedDevice",
    "ClaimCache",
    "ClaimEntry",
    "ClaimHealth",
    "ClaimHealthChanged",
    "ClaimInfo",
    "ClaimKey",
    "ClaimPhase",
    "ClaimRef",
    "ClaimUid",
    "ClaimedDeviceHealth",
    "DecodedState",
    "DevicePool",
    "DraHealth",
    "DraManager",
    "DriverConfig",
    "DriverConnected",
    "DriverDisconnected",
    "DriverEvent",
    "DriverName",
    "DriverRegistered",
    "DriverRegistry",
    "DriverRemoved",
    "DynamicResource",
    "HealthCache",
    "HealthEnded",
    "HealthReported",
    "InstanceId",
    "PrepareResult",
    "PreparedDevice",
    "PreparedPod",
    "PublishedDevice",
    "ReportedHealth",
    "ResourceClaim",
    "RestoredClaims",
    "UnprepareResult",
    "Version",
    "decode",
    "resource_claim_of",
]
