"""The verdict on a pod.

Law: there are three verdicts, and no verdict is an exception. Only `Admitted` is true. A pod that is not admitted has
changed nothing.
"""

from typing import TYPE_CHECKING, Literal, NoReturn

from attrs import frozen

from devicecore.domain.device_set import DeviceSet
from devicecore.domain.errors import AdmissionError, DeviceCoreError
from devicecore.domain.ledger import Allocation
from devicecore.domain.model import Pod, ResourceName
from devicecore.domain.text import counted, foreign_text


@frozen(repr=False)
class Admitted:
    """The pod has its devices, and they are in the checkpoint.

    `allocations` is everything the pod holds, including what it held before. `unhandled` lists, per container, the
    requested resources that no device plugin here ever registered: the device manager ignores them, as a kubelet does.
    `repr` shows `unhandled`, because misspelled names end up there.
    """

    pod: Pod
    allocations: tuple[Allocation, ...] = ()
    unhandled: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> Literal[True]:
        return True

    def devices(self, container: str) -> dict[ResourceName, DeviceSet]:
        """Return the devices of each resource that one container of the pod holds, if any.

        Raises:
            ContainerNotFoundError: the pod has no such container. ContainerNotFoundError is also a KeyError.
        """
        key = self.pod.key(self.pod.container(container))
        return {allocation.resource: allocation.devices for allocation in self.allocations if allocation.key == key}

    def __repr__(self) -> str:
        devices = sum(len(allocation.numa_nodes) for allocation in self.allocations)
        unhandled = ", ".join(f"{resource} of {container}" for container, resource in self.unhandled)
        without = f", unhandled: {foreign_text(unhandled, 300)}" if unhandled else ""
        return f"<Admitted: pod {foreign_text(self.pod.uid, 100)} with {counted(devices, 'device')}{without}>"


@frozen
class Refused:
    """The pod cannot run here. `container` is the container that failed, or None if the whole pod failed."""

    error: DeviceCoreError
    container: str | None = None

    def __bool__(self) -> Literal[False]:
        return False

    @property
    def reason(self) -> str:
        """The reason that a kubelet sets in the status of the pod, whose phase becomes `Failed` (kubelet.md 5.1)."""
        return self.error.reason if isinstance(self.error, AdmissionError) else AdmissionError.reason

    @property
    def message(self) -> str:
        """The message to go with the reason: the error alone if the reason says what is wrong (`GetPodAdmitResult`)."""
        if self.reason != AdmissionError.reason:
            return str(self.error)
        return f"Allocate failed due to {self.error}, which is unexpected"

    def __str__(self) -> str:
        return str(self.error)

    if not TYPE_CHECKING:  # hidden from type checkers, so that they report the mistake

        @property
        def devices(self) -> NoReturn:
            """Raise an AttributeError that names the reason for the verdict."""
            message = f"the pod was refused, so it has no devices: {self.error}"
            raise AttributeError(message)


@frozen
class NotReady:
    """The pod cannot be judged yet: the plugin for `resource` has not sent its list of devices. Try again later."""

    error: DeviceCoreError
    resource: ResourceName
    container: str | None = None

    def __bool__(self) -> Literal[False]:
        return False

    def __str__(self) -> str:
        return str(self.error)

    if not TYPE_CHECKING:  # as above

        @property
        def devices(self) -> NoReturn:
            """Raise an AttributeError that names the reason for the verdict."""
            message = f"the pod has no devices yet: {self.error}"
            raise AttributeError(message)


Verdict = Admitted | Refused | NotReady
"""The answer to an admission. `if verdict:` asks whether the pod was admitted."""
