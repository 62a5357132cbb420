"""A DRA driver with simulated devices, for tests.

Law: a claim gets exactly the devices of its allocation.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from devicecore.domain.dra.model import AllocatedDevice, ResourceClaim
from devicecore.domain.dra.slices import NUMA_NODE, AttributeValue, PublishedDevice
from devicecore.domain.text import foreign_text
from devicecore.plugins.cdi_driver import CDI_DIRECTORY, CdiDriver, NotPreparedError
from devicecore.ports.claims import ClaimSource
from devicecore.system.arguments import checks_arguments

__all__ = ["SimulatedDriver"]

PARAMETERS = {"apiVersion": "simulated.devicecore/v1", "kind": "DeviceConfig"}
"""The API version and kind of this driver's parameters.

The parameters may contain `env`: the variables that containers get with a device.
"""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")


class SimulatedDriver(CdiDriver):
    """A `DraDriver` that gives containers an environment variable for each device.

    Args:
        name: the driver's name.
        pool: the pool of the driver's devices, usually the node's name.
        devices: the names of the driver's devices.
        claims: the source of ResourceClaims.
        state_directory: where claims are recorded. This directory must survive a reboot.
        cdi_directory: where CDI files are written.

    Raises:
        CdiKindError: the driver's name cannot be the vendor in a CDI name, for example because the name starts with a
            digit.
    """

    @checks_arguments()
    def __init__(
        self,
        name: str,
        pool: str,
        devices: Iterable[str],
        claims: ClaimSource,
        *,
        state_directory: str | os.PathLike[str],
        cdi_directory: str | os.PathLike[str] = CDI_DIRECTORY,
    ) -> None:
        super().__init__(name, claims, state_directory, cdi_directory)
        self.pool: str = pool
        self.devices: tuple[str, ...] = tuple(devices)

    def edits(self, claim: ResourceClaim, device: AllocatedDevice) -> Mapping[str, object]:
        """Return the device's variable, and the variables in the claim's parameters.

        Raises:
            NotPreparedError: the driver has no such device, or cannot use the parameters.
        """
        if device.pool != self.pool or device.device not in self.devices:
            there = foreign_text(f"{device.pool}/{device.device}")
            other = "" if device.pool == self.pool else f"; its pool is {self.pool}"
            raise NotPreparedError(claim.key.name, f"{self.name} has no device {there}{other}")
        variables = {_variable(device.device): f"{self.pool}/{device.device}"}
        for parameters in claim.config_of(device):
            variables |= _variables_of(claim, parameters)
        return {"env": [f"{name}={value}" for name, value in variables.items()]}


def parts_of(device: str, parts: int) -> tuple[str, ...]:
    """Return the names of a device's parts, which a scheduler can allocate separately."""
    return tuple(f"{device}-part-{number}" for number in range(parts))


def published(
    devices: Sequence[str], numa_nodes: Sequence[int | tuple[int, ...]] = (), parts: int = 0
) -> tuple[PublishedDevice, ...]:
    """Return the devices as ResourceSlices list them, each device followed by its parts.

    Args:
        devices: the names of the devices.
        numa_nodes: the NUMA nodes to which the devices are attached in turn. An element may consist of several nodes,
            for a device that is attached to all of them.
        parts: how many parts each device can be divided into, as with NVIDIA's MIG. A device and its parts consume the
            same counters, so a scheduler allocates either the device or its parts.
    """

    def rows(number: int, name: str) -> Iterator[PublishedDevice]:
        numa_node = {NUMA_NODE: numa_nodes[number % len(numa_nodes)]} if numa_nodes else {}
        common: dict[str, AttributeValue] = {"index": number, "model": "simulated", **numa_node}
        if not parts:
            yield PublishedDevice(name, common)
            return
        yield PublishedDevice(name, {**common, "type": "device"}, fields=_consumes(name, parts))
        for part in parts_of(name, parts):
            yield PublishedDevice(part, {**common, "type": "part"}, fields=_consumes(name, 1))

    return tuple(row for number, name in enumerate(devices) for row in rows(number, name))


def counters(devices: Sequence[str], parts: int) -> tuple[Mapping[str, object], ...]:
    """Return the counter sets that devices share with their parts, one set for each device."""
    return tuple(
        {"name": f"{name}-counters", "counters": {"parts": {"value": str(parts)}}} for name in devices if parts
    )


def _consumes(device: str, parts: int) -> Mapping[str, object]:
    return {"consumesCounters": [{"counterSet": f"{device}-counters", "counters": {"parts": {"value": str(parts)}}}]}


def _variables_of(claim: ResourceClaim, parameters: object) -> dict[str, str]:
    expected = f"expected parameters {PARAMETERS}, optionally with `env`"
    if not isinstance(parameters, Mapping):
        raise NotPreparedError(claim.key.name, f"{expected}, got {type(parameters).__name__}")
    rest = dict(parameters)
    head = {name: rest.pop(name, None) for name in PARAMETERS}
    variables = rest.pop("env", {})
    if head != PARAMETERS or rest:
        # Their values may be secrets, and the error goes into an event.
        kind = foreign_text(str({name: value for name, value in head.items() if value is not None}))
        unknown = foreign_text(", ".join(map(str, rest)) or "nothing")
        raise NotPreparedError(claim.key.name, f"{expected}, got {kind} and {unknown}")
    if not isinstance(variables, Mapping):
        raise NotPreparedError(claim.key.name, f"env: expected an object, got {type(variables).__name__}")
    for name, value in variables.items():
        if not _VARIABLE.fullmatch(name) or not isinstance(value, str) or not value.isprintable():
            shown = foreign_text(str(name))
            raise NotPreparedError(claim.key.name, f"env: expected a name and a printable string for {shown}")
    return dict(variables)


def _variable(device: str) -> str:
    return "SIMULATED_DEVICE_" + re.sub(r"[^A-Za-z0-9]", "_", device).upper()
