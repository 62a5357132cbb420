"""How a driver is tested.

Law: where Kubernetes has a limit, that limit is the default, except where a run must be shorter.
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
        registry: where the driver creates its registration socket; by default a new directory.
        plugins: where the driver keeps its state and its service socket; by default a new directory.
        cdi: where the driver writes CDI files; by default a new directory.
        data: a directory below `plugins` that exists whenever the driver starts, such as `my-driver`; empty for none.
        environment: additional environment variables for the driver. Placeholders are replaced in the values.
        objects: objects for the API server, such as a DeviceClass. The first ResourceClaim or ResourceClaimTemplate
            among the objects is not created: its spec is used for every claim that the checks create. A Node with the
            name `node` is merged into the run's own Node.
        device_class: the class in the claims that the checks create; by default one that selects all of the driver's
            devices.
        starting: how long after its start the driver may take to register, and to complete its first pools.
        returning: how long the driver may take to register again after a restart.
        call: how long NodePrepareResources and NodeUnprepareResources may take. A kubelet waits 45 seconds.
        call_again: how long these calls may take once one of them has timed out.
        republishing: how long the driver may take to complete its pools after the slices were deleted.
        race: the time after a slice is written during which Kubernetes' publishing helper may miss that the slice was
            deleted. Slices are deleted only after that time, which extends the run.
        grace: how long the driver may take to exit after SIGTERM. Kubernetes gives a pod 30 seconds by default.
        quiet: how long the driver is observed without being called.
        outage: how long the API server is unavailable in the checks of an outage. Drivers that look for obsolete claims
            often do so every ten seconds.
        provoke_devices: a shell command that adds or removes devices. Placeholders are replaced.
        undo_devices: a shell command that undoes the change made by `provoke_devices`.
        kills: how many times the driver is killed during a prepare call.
        seed: determines the UIDs of all objects; by default the UIDs differ for each run, because a driver whose
            directory is not new may remember the UIDs from an earlier run.
        owns_children: whether all processes that become children of this one belong to the driver, because this program
            starts no others. If so, daemons that have dropped the driver's environment are killed, too.
        excuses_load: whether a check that failed for lack of time on a busy machine counts as undecided.
        budget: how long the whole run may take. Checks for which no time is left are skipped. A driver that hangs
            prolongs the run by at most a few seconds, because its calls are then canceled and its processes killed.
        elapsed: how much of the budget was already used when the run started.
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
    outage: float = 10.5
    provoke_devices: str = ""
    undo_devices: str = ""
    kills: int = 2
    seed: int | None = None
    owns_children: bool = False
    excuses_load: bool = False
    budget: float = 150.0
    elapsed: float = 0.0


FULL: DriverTestSettings = DriverTestSettings(republishing=120.0, quiet=30.0, outage=30.0, kills=10, budget=290.0)
"""The settings for a full run."""
