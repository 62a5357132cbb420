"""The verdict on a pod.

Law: there are three answers, and none of them is an exception. A pod that is not admitted has changed nothing.
"""

from attrs import frozen

from devicecore.domain.device_set import DeviceSet
from devicecore.domain.errors import DeviceCoreError, TopologyAffinityError
from devicecore.domain.ledger import Allocation
from devicecore.domain.model import ResourceName


@frozen
class Admitted:
    """The pod has its devices, and they are in the checkpoint.

    `allocations` is all that the pod holds, with what it held before. `unhandled` names, by container, the extended
    resources it asks for that no device plugin here ever registered: somebody else must serve them, or nobody will.
    """

    allocations: tuple[Allocation, ...] = ()
    unhandled: tuple[tuple[str, ResourceName], ...] = ()

    def devices(self, container: str) -> dict[ResourceName, DeviceSet]:
        """What one container holds of each resource."""
        return {held.resource: held.devices for held in self.allocations if held.key.container == container}


@frozen
class Refused:
    """The pod cannot run here. `container` is the one that failed, None if the pod as a whole did."""

    error: DeviceCoreError
    container: str | None = None

    @property
    def reason(self) -> str:
        """The reason that a kubelet puts into the status of the pod, whose phase becomes `Failed` (kubelet.md 5.1)."""
        return "TopologyAffinityError" if isinstance(self.error, TopologyAffinityError) else "UnexpectedAdmissionError"

    @property
    def message(self) -> str:
        """The message beside the reason."""
        if isinstance(self.error, TopologyAffinityError):
            return str(self.error)
        return f"Allocate failed due to {self.error}, which is unexpected"

    def __str__(self) -> str:
        return str(self.error)


@frozen
class NotReady:
    """The pod cannot be judged yet: the plugin of `resource` has not come back since the restart. Try again later."""

    error: DeviceCoreError
    resource: ResourceName
    container: str | None = None

    def __str__(self) -> str:
        return str(self.error)


Verdict = Admitted | Refused | NotReady
"""What is answered to an admission."""
