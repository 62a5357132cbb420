"""A comparison of what a node's sources say: which container holds which device, and what is wrong.

Law: everything here is a value or a pure function. Adapters read the sources; a `Look` holds what each of them said.
`check` finds what is wrong in one look, `still_wrong` keeps what a later look says again, and `report` puts the result
together. `state_of` gives the `NodeState` that the domain's functions decide with.
"""

from devicecore_tools.doctor.checks import CHECKS
from devicecore_tools.doctor.facts import Facts
from devicecore_tools.doctor.findings import Evidence, NodeCheck, NodeFinding
from devicecore_tools.doctor.look import (
    AllocatedClaimSeen,
    CdiSeen,
    CdiSpec,
    CheckpointSeen,
    ClaimedDeviceSeen,
    ClaimsSeen,
    EventSeen,
    HoldingSeen,
    Look,
    NodeSeen,
    PluginSeen,
    PodResourcesSeen,
    PodSeen,
    PreparedDeviceSeen,
    PublishedDeviceSeen,
    Reading,
    ReceiptSeen,
    SocketsSeen,
    Source,
    StateFileSeen,
)
from devicecore_tools.doctor.metrics import metrics_text
from devicecore_tools.doctor.precedence import KubeletNow, Owner, OwnerState
from devicecore_tools.doctor.report import DeviceRow, NodeReport, SourceLine, check, report, still_wrong
from devicecore_tools.doctor.state import state_of

__all__ = [
    "CHECKS",
    "AllocatedClaimSeen",
    "CdiSeen",
    "CdiSpec",
    "CheckpointSeen",
    "ClaimedDeviceSeen",
    "ClaimsSeen",
    "DeviceRow",
    "EventSeen",
    "Evidence",
    "Facts",
    "HoldingSeen",
    "KubeletNow",
    "Look",
    "NodeCheck",
    "NodeFinding",
    "NodeReport",
    "NodeSeen",
    "Owner",
    "OwnerState",
    "PluginSeen",
    "PodResourcesSeen",
    "PodSeen",
    "PreparedDeviceSeen",
    "PublishedDeviceSeen",
    "Reading",
    "ReceiptSeen",
    "SocketsSeen",
    "Source",
    "SourceLine",
    "StateFileSeen",
    "check",
    "metrics_text",
    "report",
    "state_of",
    "still_wrong",
]
