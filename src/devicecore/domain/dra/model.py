"""The values of dynamic resource allocation.

Law: everything from outside is parsed once, by `objects` or an adapter. A claim is identified by its namespace and
name, and by a UID that no other claim ever has.
"""

from typing import NamedTuple, NewType

from attrs import field, frozen

from devicecore.domain.checks import is_several

DriverName = NewType("DriverName", str)
"""The name of a DRA driver, such as `gpu.example.com`."""

ClaimUid = NewType("ClaimUid", str)
"""A ResourceClaim's UID, which no other claim ever has."""


class ClaimKey(NamedTuple):
    """Identifies a claim in the way that pods do, by namespace and name.

    The key is a plain tuple, because thousands of keys are looked up at every save.
    """

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@frozen
class ClaimRef:
    """A claim as the manager names it to drivers."""

    key: ClaimKey
    uid: ClaimUid


@frozen
class PreparedDevice:
    """A device as its driver returned it, unchanged (kubelet-dra.md 4.7).

    `requests` contains the claim's requests that the device serves, without subrequests; if it is empty, the device
    serves all. `cdi_ids` are fully qualified CDI names. `requests` or `cdi_ids` is None if the driver sent none,
    because the state file then contains null rather than an empty list. `share_id` distinguishes the shares of one
    device.
    """

    pool: str
    name: str
    share_id: str | None = None
    requests: tuple[str, ...] | None = field(default=None, validator=is_several)
    cdi_ids: tuple[str, ...] | None = field(default=None, validator=is_several)

    def serves(self, request: str) -> bool:
        """Return whether the device serves `request`. An empty request means the whole claim."""
        return not request or not self.requests or request in self.requests


# --- the parts of API objects that matter here ------------------------------------------------------------------------


@frozen
class AllocatedDevice:
    """One result of a claim's allocation (API: `status.allocation.devices.results[]`).

    With `admin_access`, the device is only inspected, and may belong to other claims at the same time. `skips` are the
    calls to the driver that the device does not need (`skipNodeOperations`, Kubernetes 1.37).
    """

    driver: DriverName
    pool: str
    device: str
    request: str = ""
    share_id: str | None = None
    admin_access: bool = False
    skips: frozenset[str] = field(default=frozenset(), validator=is_several)


@frozen
class DriverConfig:
    """Parameters for a driver (API: `status.allocation.devices.config[]`).

    Without `requests`, the parameters apply to all requests.

    `parameters` is JSON that only the driver understands.
    """

    driver: DriverName
    requests: tuple[str, ...] = field(default=(), validator=is_several)
    parameters: object = None


@frozen
class ResourceClaim:
    """The parts of a ResourceClaim that the DRA manager and drivers use.

    `owner` is the UID of the claim's controller, or empty; `allocation` is None before the scheduler has allocated the
    claim; `reserved_for` contains UIDs of pods. Only drivers use `config`.
    """

    key: ClaimKey
    uid: ClaimUid
    owner: str = ""
    allocation: tuple[AllocatedDevice, ...] | None = None
    reserved_for: frozenset[str] = field(default=frozenset(), validator=is_several)
    config: tuple[DriverConfig, ...] = field(default=(), hash=False)

    def config_of(self, device: AllocatedDevice) -> tuple[object, ...]:
        """Return the claim's parameters for an allocated device. Later parameters take precedence."""
        names = (device.request, device.request.partition("/")[0])
        return tuple(
            entry.parameters
            for entry in self.config
            if entry.driver == device.driver and (not entry.requests or any(name in names for name in entry.requests))
        )

    @property
    def ref(self) -> ClaimRef:
        """The claim as the manager names it to drivers."""
        return ClaimRef(self.key, self.uid)
