"""The rules of the API that `allocation_judge` applies.

Law: each rule names a field and, except for `POSSIBLE`, quotes a comment in `k8s.io/api/resource/v1`.
"""

from enum import Enum

from attrs import frozen


class Rule(Enum):
    """A sentence from the API: the field and the wording."""

    GENERATION = (
        "ResourceSlice",
        "A consumer must only use ResourceSlices with the highest generation number and ignore all others.",
    )
    COMPLETE = (
        "ResourcePool.resourceSliceCount",
        "Consumers can use this to check whether they have seen all ResourceSlices belonging to the same pool.",
    )
    DEVICE_NAME = ("Device.name", "Name is unique identifier among all devices managed by the driver in the pool.")
    COUNTER_SETS = (
        "ResourceSliceSpec.sharedCounters",
        "The names of the counter sets must be unique in the ResourcePool.",
    )
    COUNTER_REFERENCE = ("Device.consumesCounters", "ConsumesCounters defines a list of references to sharedCounters")
    NODE = ("ResourceSliceSpec.nodeName", "NodeName identifies the node which provides the resources in this pool.")
    COUNTERS = (
        "CounterSet",
        (
            "When a device is allocated, the portion of counters it uses will no longer be available for use by other"
            " devices."
        ),
    )
    EXISTS = (
        "DeviceRequestAllocationResult.device",
        "Device references one device instance via its name in the driver's resource pool.",
    )
    ONCE = (
        "Device.allowMultipleAllocations",
        "If AllowMultipleAllocations is set to true, the device can be allocated more than once",
    )
    DISTINCT_DEVICES = ("DeviceClaim.requests", "Requests represent individual requests for distinct devices")
    SELECTORS = ("selectors", "All selectors must be satisfied for a device to be considered.")
    TAINTS = (
        "tolerations",
        "Tolerations for NoSchedule are required to allocate a device which has a taint with that effect.",
    )
    CAPACITY_FILTER = (
        "CapacityRequirements.requests",
        "individual device resource requests for distinct resources, all of which must be provided by the device",
    )
    POLICY = (
        "DeviceCapacity.requestPolicy",
        (
            "If the requested amount exceeds all valid values, the request violates the policy, and this device cannot"
            " be allocated."
        ),
    )
    CONSUMED = (
        "DeviceRequestAllocationResult.consumedCapacity",
        "The total consumed capacity for each device must not exceed the DeviceCapacity's Value.",
    )
    COUNT = ("count", "The exact number is provided in the count field.")
    ALL = ("allocationMode", "All: This request is for all of the matching devices in a pool.")
    REQUESTS = (
        "DeviceClaim.requests",
        "Requests represent individual requests for distinct devices which must all be satisfied.",
    )
    FIRST_AVAILABLE = (
        "DeviceRequest.firstAvailable",
        "FirstAvailable contains subrequests, of which exactly one will be selected by the scheduler.",
    )
    ORDER = (
        "DeviceRequest.firstAvailable",
        "the scheduler will only check the second one if it determines that the first one can not be used",
    )
    MATCH = (
        "DeviceConstraint.matchAttribute",
        (
            "MatchAttribute requires that all devices in question have this attribute and that its type and value are"
            " the same across those devices."
        ),
    )
    DISTINCT = (
        "DeviceConstraint.distinctAttribute",
        (
            "DistinctAttribute requires that all devices in question have this attribute and that its type and value"
            " are unique across those devices."
        ),
    )
    MOST = ("AllocationResultsMaxSize", "the maximum number of entries in allocation.devices.results")
    ADMIN = ("adminAccess", "AdminAccess indicates that this device was allocated for administrative access.")
    COPIES = (
        "DeviceRequestAllocationResult",
        "A copy of all tolerations specified in the request at the time when the device got allocated.",
    )
    SHARE = (
        "DeviceRequestAllocationResult.shareID",
        "ShareID uniquely identifies an individual allocation share of the device",
    )
    WHERE = (
        "AllocationResult.nodeSelector",
        "NodeSelector defines where the allocated resources are available. If unset, they are available everywhere.",
    )
    BINDS = (
        "Device.bindsToNode",
        (
            "If set to true, the scheduler will set the ResourceClaim.Status.Allocation.NodeSelector to match the node"
            " where the allocation was made."
        ),
    )
    CONFIG = (
        "DeviceAllocationResult.config",
        "This field is a combination of all the claim and class configuration parameters.",
    )
    POSSIBLE = ("ResourceClaimStatus.allocation", "there is an allocation that breaks no rule")


@frozen
class Breach:
    """A rule that an answer breaks, and where the answer breaks the rule."""

    rule: Rule
    where: str

    def __str__(self) -> str:
        field_name, words = self.rule.value
        return f'{self.where}: {field_name}: "{words}"'
