"""How a driver is tested.

Law: the defaults are those of a kubelet, except where a run has to be short.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen


@frozen(kw_only=True)
class DriverTestSettings:
    """How a driver is tested. Times are in seconds.

    Args:
        node: the name of the Node object.
        registry: where the driver makes its registration socket; by default a new directory.
        plugins: where the driver keeps its state and its service socket; by default a new directory.
        cdi: where the driver writes CDI files; by default a new directory.
        data: a directory below `plugins` that exists whenever the driver starts, such as `my-driver`; empty for none.
        environment: additional environment variables of the driver. Placeholders are replaced in the values.
        objects: objects for the API server, such as a DeviceClass. The first ResourceClaim or ResourceClaimTemplate
            among them is not an object: its spec is that of every claim that the checks make. What a Node of the name
            `node` has is added to the run's own.
        device_class: the class in the claims that the checks make; by default one that selects all of the driver's
            devices.
        starting: for the first registration, and for the first complete pool.
        returning: for registering again after a restart.
        call: for NodePrepareResources and NodeUnprepareResources. A kubelet waits 45 seconds.
        call_again: for these calls, once one of them has not been answered in time.
        republishing: for complete pools after the slices were deleted.
        race: after a write of a slice, for which Kubernetes' helper for publishing may not notice that the slice was
            deleted. Slices are deleted only after that, which gives the run more time.
        grace: for ending after SIGTERM. A pod has 30 seconds.
        quiet: how long the driver is left alone, to see what it does then.
        provoke_devices: a shell command after which devices come or go. Placeholders are replaced.
        undo_devices: a shell command that undoes it.
        kills: how often the driver is killed during a prepare.
        seed: decides the UIDs of all objects; by default each run has others, because a driver whose directory is not
            new may know those of a former run.
        owns_children: whether all processes that become children of this one belong to the driver, because the program
            starts no others. Then daemons that have dropped the driver's environment are ended, too.
        excuses_load: whether a check is not decided if it has failed for a lack of time while the machine is busy.
        budget: for the whole run. Checks for which no time is left are skipped. A driver that hangs makes the run at
            most some seconds longer, because then its calls are cancelled and its processes are killed.
    """

    node: str = "conformance-node"
    registry: Path | None = None
    plugins: Path | None = None
    cdi: Path | None = None
    data: str = ""
    environment: Mapping[str, str] = {}
    objects: Sequence[Mapping[str, Any]] = ()
    device_class: str = ""
    starting: float = 30.0
    returning: float = 30.0
    call: float = 45.0
    call_again: float = 5.0
    republishing: float = 37.0
    race: float = 32.0
    grace: float = 30.0
    quiet: float = 5.0
    provoke_devices: str = ""
    undo_devices: str = ""
    kills: int = 2
    seed: int | None = None
    owns_children: bool = False
    excuses_load: bool = False
    budget: float = 75.0


FULL: DriverTestSettings = DriverTestSettings(republishing=120.0, quiet=30.0, kills=10, budget=290.0)
"""The settings of a full run."""
