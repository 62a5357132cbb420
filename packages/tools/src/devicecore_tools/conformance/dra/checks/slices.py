"""ResourceSlices: whether a scheduler finds the driver's devices, at the start and after the slices were deleted.

Law: only the driver's own slices are judged, the way an API server and a scheduler judge them.
"""

import re
import threading
import time
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from devicecore.domain.errors import DocumentError
from devicecore.domain.text import counted
from devicecore_tools.conformance.dra.allocator import counter_sets
from devicecore_tools.conformance.dra.checks.events import (
    KILL,
    KUBELET_RESTART,
    LATE_API_SERVER,
    QUIET,
    REBOOT,
    TERM,
    settle,
    wait_republished,
    wipe,
)
from devicecore_tools.conformance.dra.checks.registration import is_valid_name
from devicecore_tools.conformance.dra.driver import DriverUnderTest
from devicecore_tools.conformance.dra.environment import OTHER_NODE
from devicecore_tools.conformance.dra.kubelet import DriverKubelet
from devicecore_tools.conformance.dra.steps import Parts, across, at_start, at_the_end, check
from devicecore_tools.conformance.model import (
    Failure,
    Severity,
    Skip,
    TookTooLong,
    Undecided,
    does_not_apply_if,
    require,
    skip_if,
    skipping,
    some,
)
from devicecore_tools.testing.api_server import Answer, ApiError, Json, RunFirst
from devicecore_tools.testing.api_server.shapes import wrong_types
from devicecore_tools.testing.api_server.slice_rules import slice_causes
from devicecore_tools.testing.api_server.versions import as_kept, version_of
from devicecore_tools.testing.dra_pools import PublishedPool, Slice, bodies_in

MUST, SHOULD, INFO = Severity.MUST, Severity.SHOULD, Severity.INFO

_Key = tuple[str, str]  # the pool and the name of a device
_PCI_BUS_ID = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_PCIE_ROOT = re.compile(r"pci[0-9a-f]{4}:[0-9a-f]{2}")
_FORMS = {"resource.kubernetes.io/pciBusID": _PCI_BUS_ID, "resource.kubernetes.io/pcieRoot": _PCIE_ROOT}
_NUMA = re.compile(r"numa_?(node)?(_?id)?", re.IGNORECASE)
_LEFTOVER = "leftover-of-an-older-driver"
_AT_A_START = 45.0  # seconds for what a publisher does at its start, or when it checks again after half a minute
_LONGER = 1.4  # a multiple of the time in which a deletion may go unnoticed
RACE = (
    "Kubernetes' publishing helper does not notice a deletion of slices within half a minute after it has updated "
    "them, because it assumes that what it wrote still exists"
)
_REGISTERS = 5.0  # seconds to register before the first request for slices is answered
_SETTLED = 0.5  # seconds within which a process that has published makes its next write
_SECOND_START = 5.0  # a start on another node may take this many times as long as the first start
_CONFLICT = ApiError(
    409,
    "Conflict",
    "Operation cannot be fulfilled: the object has been modified; please apply your changes to the latest version and "
    "try again",
)
_FAILURE = ApiError(500, "InternalError", "Internal error occurred: etcdserver: leader changed")


def attributes(driver: DriverUnderTest) -> Iterator[tuple[str, str, Any]]:
    """Yield the device, name and value of each published attribute, and of each item if the value is a list."""
    for device in driver.slices.devices:
        for name, attribute in (device.body.get("attributes") or {}).items():
            value = next(iter(attribute.values()), None) if isinstance(attribute, dict) else attribute
            for one in value if isinstance(value, list) else [value]:
                yield str(device), name, one


# --- at the first start -----------------------------------------------------------------------------------------------


@at_start(
    MUST,
    expected="a first slice within the time allowed for startup",
    clause="The scheduler allocates only devices that are in ResourceSlices. (kubernetes.io, Dynamic Resource "
    "Allocation)",
    found=("NVIDIA/k8s-dra-driver-gpu#1009",),
)
def publishes_slices_in_time(driver: DriverUnderTest) -> str:
    """After startup, the driver's slices must appear on the API server."""
    _ = driver.registration.name
    left = driver.process.started_at + driver.settings.starting - time.monotonic()
    found = driver.process.wait(driver.slices.now, max(left, 0.0))
    seconds = counted(round(time.monotonic() - driver.process.started_at), "second")
    asked = _asked(driver)
    require(found, f"there is no slice from {driver.registration.name} after {seconds}; {asked}", late=True)
    return f"the first slice was published within {seconds} of the start"


def _name(sent: dict[str, Any]) -> str:
    metadata = sent.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return str(name or "a new slice")


def _asked(driver: DriverUnderTest) -> str:
    requests = driver.api.requests
    if not requests:
        return "the driver made no request to the API server"
    for one in requests:
        match one.path.split("/"):
            case [_, "apis", group, version, _, *_] if version not in driver.api.versions.get(group, (version,)):
                served = ", ".join(driver.api.versions[group])
                return f"the driver asked for {group}/{version}; the API server serves {served}"
            case _:
                pass
    return "the driver's last requests were " + some([f"{one.method} {one.path}" for one in requests[-3:]])


@at_start(
    MUST,
    expected="each pool has resourceSliceCount slices of the highest generation",
    clause="resourceSliceCount is the total number of ResourceSlices in the pool at this generation number. Consumers "
    "can use this to check whether they have seen all ResourceSlices. (ResourceSlice, API reference) A scheduler "
    "allocates no device from an incomplete pool.",
)
def completes_its_pools(driver: DriverUnderTest) -> str:
    """The slices of each pool are counted until all pools are complete."""
    _ = published(driver)
    took = driver.slices.wait_for_pools()
    incomplete = [_incomplete(pool) for pool in driver.slices.pools() if not pool.is_complete]
    require(took is not None, some(incomplete), late=True)
    pools, devices = driver.slices.catalogue, sum(len(pool.devices) for pool in driver.slices.catalogue)
    return f"{counted(len(pools), 'pool')} with {counted(devices, 'device')}"


def _incomplete(pool: PublishedPool) -> str:
    """Return why a pool is not complete."""
    return (
        f"pool {pool.name} has {counted(len(pool.slices), 'slice')} of generation {pool.generation}, and "
        f"resourceSliceCount is {' or '.join(map(str, pool.counts))}"
    )


def published(driver: DriverUnderTest) -> list[Slice]:
    """Return the driver's slices. Raises Skip if the driver published none in time."""
    if not driver.slices.now():
        driver.slices.wait_for_pools()
    found = driver.slices.now()
    skip_if(not found, "the driver has published no slices")
    return found


@at_start(
    MUST,
    expected="a device that a scheduler may allocate to a claim without tolerations, and enough of every counter for "
    "each device that consumes it",
    clause=(
        "A scheduler allocates no device with a taint to a claim that does not tolerate it, no device that the "
        "DeviceClass does not select, and no device that consumes more of a counter than there is. (ResourceSlice, "
        "API reference, devices.taints and consumesCounters; KEP-5055; KEP-4815)"
    ),
)
def publishes_devices_for_claims(driver: DriverUnderTest) -> str:
    """The published devices are filtered for those that a check's claim can get."""
    with suppress(Skip):
        _ = driver.claims.usable  # the driver may taint its devices until it is ready
    devices = driver.slices.devices
    tainted = [str(device) for device in devices if device.is_tainted]
    require(
        len(tainted) < len(devices),
        f"every one of {counted(len(devices), 'device')} has a taint that repels claims: {some(tainted)}",
    )
    with skipping(DocumentError):  # reported by another check
        amounts = dict(counter_sets(one for pool in driver.slices.catalogue for one in pool.slices))
        consumed = [(one, f"{one.pool}/{of}", used) for one in devices for of, used in one.value.counters]
    impossible = [
        f"{device} consumes {used[name]} of the counter {name} in {of}"
        for device, of, used in consumed
        for name in sorted(used)
        if name not in amounts.get(of, {}) or used[name] > amounts[of][name]
    ]
    require(not impossible, f"some counters are too small: {some(impossible)}")
    return f"{counted(len(driver.claims.usable), 'device')} of {len(devices)}"


@at_start(
    MUST,
    expected="spec.driver of every slice is the name from GetInfo",
    clause=(
        "A claim's allocation contains the slice's spec.driver, and the kubelet looks for a plugin that is "
        "registered under this name. (kubelet, DRA manager)"
    ),
)
def publishes_under_its_registered_name(driver: DriverUnderTest) -> str:
    """The driver's name in the slices is compared with its registered name."""
    found = published(driver)
    if not is_valid_name(driver.registration.name):
        raise Skip("the driver's registered name is not valid in a slice")
    others = sorted({str(one["spec"].get("driver")) for one in found} - {driver.registration.name})
    require(
        not others, f"the driver is registered as {driver.registration.name}, but publishes slices as {some(others)}"
    )
    return f"both names are {driver.registration.name}"


@at_start(
    MUST,
    expected="each name appears once in a pool",
    clause="Device.name: Name is unique identifier among all devices managed by the driver in the pool. "
    "(ResourceSlice, API reference)",
)
def names_each_device_once(driver: DriverUnderTest) -> str:
    """The device names in each pool are compared across its slices."""
    require_unique_names(driver.slices.catalogue)
    return "each name appears once"


def require_unique_names(pools: Iterable[PublishedPool], known: Container[str] = ()) -> None:
    """Check that device names are unique in each pool, except the names in `known`, which another check reports."""
    require(not (problem := _repetition(pools, known)), problem)


def _repetition(pools: Iterable[PublishedPool], known: Container[str]) -> str:
    """Describe the names that several devices in a pool share, or return an empty string if there are none."""
    twice = [f"{pool.name}/{name}" for pool in pools for name in pool.repeated_names if name not in known]
    return f"several devices have the name {some(twice)}" if twice else ""


@at_start(
    MUST,
    expected="no slice is refused",
    clause="The API server refuses a ResourceSlice that breaks the limits of its fields. (ResourceSlice, API "
    "reference)",
)
def publishes_valid_slices(driver: DriverUnderTest) -> str:
    """The slices that the driver has sent are validated the way an API server does."""
    if not driver.slices.writes():  # slices that an API server refuses are judged, too
        _ = published(driver)
    return require_valid(driver, 0)


def require_valid(driver: DriverUnderTest, since: int) -> str:
    """Check that an API server would accept the slices that the driver sent after the first `since` requests."""
    sent = [
        as_kept(one.body, "resourceslices", version_of(one))
        for one in driver.slices.writes(since)
        if one.method in {"POST", "PUT"} and isinstance(one.body, dict)
    ]
    does_not_apply_if(not sent, "the driver has sent no slices as JSON")
    problems = [
        f"{_name(body)}: {cause}"
        for body in sent
        for cause in list(wrong_types("ResourceSlice", body)) or slice_causes(body, None)
    ]
    require(not problems, some(problems))
    return f"{counted(len(sent), 'slice')} sent, all valid"


@at_start(
    MUST,
    expected="spec.nodeName of the node's slices is the name of the Node",
    clause="spec.nodeName identifies the node which provides the resources in this pool. (ResourceSlice, API "
    "reference) The kubelet deletes slices by this field.",
)
def names_its_node(driver: DriverUnderTest) -> str:
    """Each slice's nodeName is read."""
    names = {str(one["spec"]["nodeName"]) for one in published(driver) if "nodeName" in one["spec"]}
    does_not_apply_if(not names, "the driver's slices do not belong to a single node")
    other = sorted(names - {driver.environment.node})
    require(not other, f"spec.nodeName is {some(other)}, expected {driver.environment.node}")
    return f"spec.nodeName is {driver.environment.node}"


@at_start(
    SHOULD,
    core=True,
    expected="an owner reference to the Node, with the Node's UID",
    clause=(
        "A slice whose owner is the Node is deleted together with the Node. Otherwise, the devices of a deleted node "
        "remain allocatable. (kubeletplugin and resourceslice helpers, which set the owner)"
    ),
)
def is_owned_by_its_node(driver: DriverUnderTest) -> str:
    """The owners of the slices are read."""
    found = published(driver)
    uid = driver.api.get("Node", driver.environment.node)["metadata"]["uid"]
    without = [
        str(one["metadata"]["name"])
        for one in found
        if "nodeName" in one["spec"]
        and not any(
            (owner.get("kind"), owner.get("uid")) == ("Node", uid)
            for owner in one["metadata"].get("ownerReferences") or ()
        )
    ]
    require(not without, f"the Node is not an owner of {some(without)}")
    return "the Node is the owner"


@at_start(
    SHOULD,
    core=True,
    expected="the driver's attributes and capacities do not have the driver's name as domain",
    clause="Attributes defined by the vendor must be listed without the driver name as domain prefix in their name, so "
    "that names are unique. (KEP-4381; ResourceSlice, API reference, devices.attributes)",
)
def names_attributes_without_its_domain(driver: DriverUnderTest) -> str:
    """The names of attributes and capacities of each device are read."""
    names = {
        name
        for device in driver.slices.devices
        for field in ("attributes", "capacity")
        for name in device.body.get(field) or {}
    }
    own = sorted(name for name in names if name.startswith(f"{driver.registration.name}/"))
    require(not own, f"{some(own)} should be {own[0].partition('/')[2] if own else ''}")
    return counted(len(names), "name")


@at_start(
    SHOULD,
    core=True,
    expected="non-negative integers, and no such attribute if the NUMA node is unknown",
    clause=(
        "NUMA node attributes are compared by matchAttribute: two devices with the value -1 for `unknown` would count "
        "as being on the same NUMA node. (KEP-6072)"
    ),
)
def numbers_numa_nodes_from_zero(driver: DriverUnderTest) -> str:
    """The attributes that are named after NUMA nodes are read."""
    found = [one for one in attributes(driver) if _NUMA.fullmatch(one[1].rpartition("/")[2])]
    does_not_apply_if(not found, "no device has an attribute that is named after NUMA nodes")
    odd = [
        f"{device} has {name} = {value!r}"
        for device, name, value in found
        if not isinstance(value, int) or isinstance(value, bool) or value < 0
    ]
    require(not odd, some(odd))
    return f"{counted(len(found), 'attribute')} of NUMA nodes"


@at_start(
    SHOULD,
    core=True,
    expected="dddd:bb:dd.f for pciBusID and pcidddd:bb for pcieRoot",
    clause=(
        "The standard attributes resource.kubernetes.io/pciBusID and pcieRoot have a fixed form, because they are used "
        "to compare devices from different drivers. (k8s.io/dynamic-resource-allocation, deviceattribute)"
    ),
)
def spells_standard_attributes_as_others_do(driver: DriverUnderTest) -> str:
    """The standard attributes of PCI devices are read."""
    found = [one for one in attributes(driver) if one[1] in _FORMS]
    does_not_apply_if(not found, "no device has such an attribute")
    odd = [
        f"{device} has {name} = {value!r}" for device, name, value in found if not _FORMS[name].fullmatch(str(value))
    ]
    require(not odd, some(odd))
    return f"{counted(len(found), 'standard attribute')} in the right form"


@at_the_end(
    MUST,
    expected="a pool with devices keeps all of them while the process runs",
    clause=(
        "A scheduler believes whatever the slices say: it does not schedule pods while there are no devices, and "
        "nobody can see why. (kubernetes.io, Dynamic Resource Allocation)"
    ),
)
def keeps_its_devices(driver: DriverUnderTest) -> str:
    """The pools after each of the driver's writes are compared, except after the --provoke-devices command."""
    _ = driver.slices.devices
    driver.slices.follow()
    lost = list(driver.slices.lost)
    require(not lost, f"a running process has published a pool without {some(lost)}")
    return f"no device has disappeared in {counted(len(driver.slices.writes()), 'write')}"


# --- across restarts --------------------------------------------------------------------------------------------------


@across(
    REBOOT,
    MUST,
    expected="complete pools, with each device once, and no device in more pools than before",
    clause=(
        "A driver finds the slices that its previous process published. If it adds other slices, the pool has more "
        "slices than resourceSliceCount, or duplicate devices, and a scheduler allocates no device from it. If it "
        "abandons a pool, a scheduler allocates devices from it that the driver does not know. (ResourceSlice, API "
        "reference, spec.pool)"
    ),
)
def completes_its_pools_after_a_restart(driver: DriverUnderTest) -> Parts:
    """The driver is restarted while its slices exist, and the slices of each pool are counted."""
    before = {name for pool in driver.slices.catalogue for name in pool.repeated_names}
    number = Counter(device.name for pool in driver.slices.catalogue for device in pool.devices)
    yield
    _ = driver.registration.instance
    settle(driver)

    def problems() -> list[str]:
        pools = driver.slices.pools()
        found = [*(_incomplete(pool) for pool in pools if not pool.is_complete), _repetition(pools, before)]
        more = Counter(device.name for pool in pools for device in pool.devices) - number
        again = [f"{name} is in {counted(number[name] + 1, 'pool')}" for name in sorted(more) if number[name]]
        return [*filter(None, found), *([] if any(found) else again)]

    driver.process.wait(lambda: not problems(), min(driver.settings.republishing, _AT_A_START))
    require(not problems(), some(problems()), late=True)
    return f"{counted(len(driver.slices.pools()), 'pool')}, all complete"


@across(
    REBOOT,
    MUST,
    expected="each device keeps the attributes that distinguish it from all others",
    clause="A claim is allocated a device by its name, and stays allocated across restarts of the driver. "
    "(ResourceClaim, API reference, status.allocation) If names are swapped, the claim gets another claim's device.",
)
def keeps_the_names_of_its_devices(driver: DriverUnderTest) -> Parts:
    """The driver is restarted, and the attributes that distinguish devices are compared by device name."""
    before = _identities(driver)
    does_not_apply_if(not before, "no attribute has a different value for each device")
    bodies = bodies_in(driver.slices.pools())
    yield
    _ = driver.registration.instance
    settle(driver)
    after = _identities(driver)
    owners = {identity: device for device, identities in before.items() for identity in identities}
    moved = [
        f"{device} now has the {name.rpartition('/')[2]} {value} of {owners[name, value]}"
        for device, identities in after.items()
        for name, value in sorted(identities)
        if device in before and owners.get((name, value), device) in after.keys() - {device}
    ]
    require(not moved, some(moved))
    lost = bare(bodies, bodies_in(driver.slices.pools()))
    require(not lost, some(lost))
    return f"{counted(len(before), 'device')} as before"


def bare(before: Mapping[_Key, Mapping[str, Any]], now: Mapping[_Key, Mapping[str, Any]]) -> list[str]:
    """Return the devices that have lost all of their attributes or all of their capacity, with what they lost."""
    return [
        f"{pool}/{name} no longer has any {what}"
        for (pool, name), body in sorted(now.items())
        for what in ("attributes", "capacity")
        if before.get((pool, name), {}).get(what) and not body.get(what)
    ]


@across(
    KILL,
    SHOULD,
    core=True,
    expected="the pools of the previous process have slices all the time",
    clause="The scheduler allocates the devices that are in ResourceSlices. (kubernetes.io, Dynamic Resource "
    "Allocation) If a driver deletes its slices when it starts, pods stay pending during each of its updates.",
)
def keeps_its_slices_at_a_restart(driver: DriverUnderTest) -> Parts:
    """The driver is killed and restarted, and its slices are watched."""
    _ = driver.slices.catalogue
    present = {one["metadata"]["name"]: one["spec"]["pool"]["name"] for one in driver.slices.now()}
    version, emptied = driver.api.store.version, set[str]()
    yield
    number = 0
    for name, slice_, is_wiped in _changes(driver, version):
        number += 1
        pool = present.pop(name, "")
        if slice_ is not None:
            present[name] = slice_["spec"]["pool"]["name"]
        elif pool not in present.values() and not is_wiped:
            emptied.add(pool)
    gone = sorted(emptied & {pool.name for pool in driver.slices.pools()})
    require(not gone, f"the driver deleted all slices of the pool {some(gone)}, and created them again")
    return f"the pools had slices all the time, with {counted(number, 'change')}"


@across(
    KILL,
    MUST,
    expected="no device gets a taint with the effect NoExecute",
    clause="NoExecute: Evict any already-running pods that do not tolerate the device taint. (ResourceSlice, API "
    "reference; KEP-5055) If a driver adds such a taint when it starts, each of its updates ends all pods with its "
    "devices.",
)
def evicts_no_pods_at_a_restart(driver: DriverUnderTest) -> Parts:
    """The driver is killed and restarted, and the taints in its slices are watched."""
    before = {device.name for pool in driver.slices.catalogue for device in pool.devices if not _evicts(device.body)}
    version = driver.api.store.version
    yield
    evicted = {
        device["name"]
        for _, slice_, _ in _changes(driver, version)
        if slice_ is not None
        for device in slice_["spec"].get("devices") or ()
        if _evicts(device)
    }
    names = sorted(evicted & before)
    require(not names, f"after the restart, {some(names)} had a taint with the effect NoExecute")
    return f"{counted(len(before), 'device')} without such a taint"


def _evicts(device: Mapping[str, Any]) -> bool:
    return any(taint.get("effect") == "NoExecute" for taint in device.get("taints") or ())


def _changes(driver: DriverUnderTest, version: int) -> Iterator[tuple[str, Slice | None, bool]]:
    """Yield the changes to the driver's slices since a resource version.

    Each change consists of the slice's name, its new state (None if the slice was deleted), and whether a check has
    deleted the slice.

    Raises Skip if the driver is not registered, or if too much has changed since that version.
    """
    _ = driver.registration.instance
    settle(driver)
    with skipping(ApiError):
        events, _ = driver.api.store.events_after(version, driver.api.kinds.named("ResourceSlice"))
    for event in events:
        one = event.after or event.before or {}
        name = one["metadata"]["name"]
        if name not in driver.slices.planted and one["spec"].get("driver") == driver.registration.name:
            yield name, event.after, one["metadata"]["uid"] in driver.slices.wiped


def _identities(driver: DriverUnderTest) -> dict[str, set[tuple[str, str]]]:
    """Return, by device name, the attributes whose values are unique among the devices."""
    found: dict[str, dict[str, list[str]]] = {}
    for device, name, value in attributes(driver):
        found.setdefault(name, {}).setdefault(str(value), []).append(device)
    result: dict[str, set[tuple[str, str]]] = {}
    for name, owners in found.items():
        if len(owners) > 1 and all(len(devices) == 1 for devices in owners.values()):
            for value, (device,) in owners.items():
                result.setdefault(device, set()).add((name, value))
    return result


@across(
    KILL,
    MUST,
    expected="the obsolete slices are deleted or replaced within the time allowed for slices to come back",
    clause=(
        "The driver that publishes a pool must remove slices of older generations, and pools that no longer exist. "
        "(ResourceSlice, API reference, spec.pool)"
    ),
)
def removes_obsolete_slices(driver: DriverUnderTest) -> Parts:
    """Slices of an older generation and of a former pool are created, then the driver is restarted."""
    pool = driver.slices.catalogue[0]
    own = pool.slices[0]["spec"]  # a driver recognizes its own slices by these fields
    spec = {name: own[name] for name in ("driver", "nodeName", "nodeSelector", "allNodes") if name in own}
    spec["devices"] = [{"name": _LEFTOVER}]
    planted = []
    if "nodeName" in spec:  # other publishers of the driver may have pools for several nodes
        former = {"name": "former-pool", "generation": 1, "resourceSliceCount": 1}
        planted.append(driver.slices.plant(spec | {"pool": former}))
    if pool.generation > 0:
        older = {"name": pool.name, "generation": pool.generation - 1, "resourceSliceCount": 1}
        planted.append(driver.slices.plant(spec | {"pool": older}))
    yield
    _ = driver.registration.instance

    def left() -> list[str]:
        return [one for one in planted if _holds_leftover(driver, one)]

    driver.process.wait(lambda: not left(), min(driver.settings.republishing, _AT_A_START))
    names = [driver.api.get("ResourceSlice", one)["spec"]["pool"]["name"] for one in left()]
    require(not names, f"there are still obsolete slices, in the pools {some(names)}", late=True)
    return f"{counted(len(planted), 'obsolete slice')} removed"


def _holds_leftover(driver: DriverUnderTest, name: str) -> bool:
    try:
        body = driver.api.get("ResourceSlice", name)
    except ApiError:
        return False
    return any(device["name"] == _LEFTOVER for device in body["spec"].get("devices") or ())


@at_the_end(
    MUST,
    expected="pools with different names, and unchanged slices for the first node",
    clause="pool.name: The pool name must be unique among the pools of a driver, in the whole cluster. It is often the "
    "node name. A driver publishes the pools for its own node. (ResourceSlice, API reference)",
)
def keeps_nodes_apart(driver: DriverUnderTest) -> str:
    """The driver is started on a second node with its own directories, and the slices of both nodes are compared."""
    does_not_apply_if(driver.environment.has_places, "both nodes would share the user's directories")
    settle(driver)

    def current() -> dict[str, tuple[str, ...]]:
        """Return what a process for another node must not change. The first process may change taints meanwhile."""
        found: dict[str, tuple[str, ...]] = {}
        for one in driver.slices.now():
            spec = one["spec"]
            names = sorted(device["name"] for device in spec.get("devices") or ())
            found[one["metadata"]["name"]] = (
                one["metadata"]["uid"],
                spec.get("nodeName", ""),
                spec["pool"]["name"],
                *names,
            )
        return found

    before = current()
    skip_if(not before, "the driver has published no slices")
    own = driver.environment.node
    does_not_apply_if(any(node != own for _, node, *_ in before.values()), f"the slices do not belong to {own}")

    def published() -> list[Slice]:
        found: Sequence[Slice] = driver.api.objects("ResourceSlice")
        mine = [one for one in found if one["spec"].get("driver") == driver.registration.name]
        return [one for one in mine if one["spec"].get("nodeName") == OTHER_NODE]

    def kept() -> list[str]:
        now = current()
        return [name for name, one in before.items() if now.get(name) != one]

    first = driver.slices.wait_for_pools() or driver.settings.returning
    limit = min(_SECOND_START * max(first + driver.registration.warm_up, 1.0), driver.settings.returning)
    with driver.environment.second_node() as texts:
        kubelet = DriverKubelet(Path(texts["{registry}"]))  # a driver may publish only once it is registered
        kubelet.start()
        process = driver.process.spawn(texts=texts)
        try:
            driver.process.wait_fairly(published, limit)
            driver.process.pause(_SETTLED)
            other = published()
            gone = kept()
        finally:
            process.stop(grace=2.0)
            kubelet.stop()
            for one in published():
                with suppress(ApiError):  # the driver has already deleted the slice
                    driver.api.delete("ResourceSlice", one["metadata"]["name"])
    require(not gone, f"the driver has changed {some(gone)} for the first node")
    does_not_apply_if(not other, "a process with a different {node} has published nothing for that node")
    names = {pool for _, _, pool, *_ in before.values()}
    shared = sorted(names & {one["spec"]["pool"]["name"] for one in other})
    require(not shared, f"both nodes have a pool {some(shared)}, which a scheduler treats as one pool")
    return f"{counted(len(other), 'slice')} for the second node"


@across(
    KILL,
    MUST,
    expected="the slices stay unchanged",
    clause="A driver publishes the pools for its own node. Slices of other drivers and nodes do not belong to it.",
)
def leaves_slices_of_others_alone(driver: DriverUnderTest) -> Parts:
    """Slices of another driver and of another node are created, then the driver is restarted."""
    pool = {"name": "elsewhere", "generation": 1, "resourceSliceCount": 1}
    node, devices = driver.environment.node, [{"name": "device-of-others"}]
    specs = (
        {"driver": "other.example.com", "nodeName": node, "pool": pool, "devices": devices},
        {"driver": driver.registration.name, "nodeName": f"not-{node}", "pool": pool, "devices": devices},
    )
    planted = [driver.slices.plant(spec) for spec in specs]
    yield
    _ = driver.registration.instance
    settle(driver)
    for name, spec, what in zip(planted, specs, ("another driver", "another node"), strict=True):
        try:
            after = driver.api.get("ResourceSlice", name)["spec"]
        except ApiError:
            after = None
        require(after == spec, f"the driver has {'deleted' if after is None else 'changed'} a slice of {what}")
    return "the slices are unchanged"


@across(
    KUBELET_RESTART,
    MUST,
    expected="the pools are complete again in time",
    clause=(
        "A kubelet deletes its node's slices when it starts, and a driver's slices once the driver has been "
        "disconnected for 30 seconds. The driver has to publish its slices again. (kubelet, DRA manager)"
    ),
    found=("NVIDIA/k8s-dra-driver-gpu#330",),
)
def publishes_again_after_a_wipe(driver: DriverUnderTest) -> Parts:
    """The kubelet is restarted and deletes the slices while the driver is running."""
    _ = driver.slices.catalogue
    yield
    wipe = driver.seen.wipe
    if wipe.republished_after is not None:
        return f"the pools were complete again within {wipe.republished_after:.1f} seconds"
    waited = driver.settings.republishing
    if wipe.calm < driver.settings.race:
        reason = (
            f"the pools were not back after {counted(waited, 'second')}, but the driver, which keeps writing slices, "
            f"had last written one {counted(round(wipe.calm), 'second')} before the deletion, and {RACE}"
        )
        raise Undecided(reason)
    # The driver fails only if it had enough time even after its waits for processors and disks are subtracted.
    is_late = time.monotonic() - wipe.at - wipe.waits.until(driver.process.waits) < waited
    text = f"the pools were not complete again after {counted(waited, 'second')}; {_asked(driver)}"
    raise (TookTooLong if is_late else Failure)(text)


@check(
    INFO,
    expected="the pools are soon complete again; Kubernetes' own publishing helper fails this check",
    clause=(
        f"A kubelet may start at any time, even right after the driver has changed its slices. But {RACE}, so a "
        "failure is the fault of that helper (k8s.io/dynamic-resource-allocation, resourceslice), not of the "
        "driver."
    ),
)
def notices_a_wipe_right_after_an_update(driver: DriverUnderTest) -> str:
    """The slices are changed while the driver is down. The driver starts and repairs them. Then they are deleted."""
    slices, limit = driver.slices, driver.settings.race * _LONGER
    _ = slices.catalogue
    skip_if(
        driver.process.time_left < 2 * limit,
        f"the check needs {counted(round(2 * limit), 'second')}, which is more than is left",
    )
    driver.process.kill()
    for one in [one for one in slices.now() if one["spec"].get("devices")]:  # other slices contain counters
        driver.slices.follow()
        driver.slices.expects_changes = True  # it is the check that changes devices, not the driver
        driver.api.change("ResourceSlice", one["metadata"]["name"], _with_another_device)
    driver.process.start()
    if not driver.process.wait(lambda: _updates(driver), limit):
        raise Skip("the driver did not repair its slices with an update")
    settle(driver)
    wipe(driver)
    wait_republished(driver, limit)
    seconds = driver.seen.wipe.republished_after
    require(seconds is not None, f"the pools were not back after {counted(round(limit), 'second')}: {RACE}")
    return f"the pools were complete again within {seconds:.1f} seconds"


def _with_another_device(body: Json) -> None:
    body["spec"]["devices"] = [*(body["spec"].get("devices") or ())[:-1], {"name": _LEFTOVER}]


def _updates(driver: DriverUnderTest) -> bool:
    made = driver.slices.writes(driver.process.asked_before)
    return driver.slices.is_complete() and any(one.verb in {"update", "patch"} for one in made)


@across(
    QUIET,
    SHOULD,
    core=True,
    expected="no slice writes, or a single write that changes the slices",
    clause="Each write of a slice is sent to every scheduler and autoscaler in the cluster. Values that change all the "
    "time belong in metrics.",
)
def writes_no_slices_without_a_change(driver: DriverUnderTest) -> Parts:
    """The driver is left alone, its slice writes are counted, and its slices are compared before and after."""
    _ = driver.slices.catalogue
    since, before = len(driver.api.requests), [one["spec"] for one in driver.slices.now()]
    yield
    made = driver.slices.writes(since)
    seconds = counted(driver.settings.quiet, "second")
    driver.seen.idle_writes = len(made) / driver.settings.quiet
    text = (
        f"the driver wrote {counted(len(made), 'time')} in {seconds}"
        if made
        else f"the driver wrote nothing for {seconds}"
    )
    if len(made) == 1 and before != [one["spec"] for one in driver.slices.now()]:
        return f"{text}, and the driver's slices have changed"
    require(not made, text)
    return text


@across(
    QUIET,
    SHOULD,
    core=True,
    expected="apart from watches, at most one request, and one more for every ten seconds",
    clause="Every node of a cluster may run the driver, and the requests from all nodes reach one API server.",
)
def asks_the_api_server_rarely(driver: DriverUnderTest) -> Parts:
    """The driver is left alone, and its requests to the API server are counted."""
    _ = driver.registration.instance
    since = len(driver.api.requests)
    yield
    made = [one for one in driver.api.requests[since : driver.seen.requests_when_idle] if one.verb != "watch"]
    allowed = 1 + int(driver.settings.quiet // 10)
    text = f"the driver made {counted(len(made), 'request')} in {counted(driver.settings.quiet, 'second')}"
    require(len(made) <= allowed, text)
    return text


@at_the_end(
    MUST,
    expected="the pools are complete in time, and no device appears twice",
    clause=(
        "An update of an object that has been changed in the meantime is answered with status 409, and the client "
        "must retry with the latest version. (Kubernetes API conventions)"
    ),
)
def publishes_despite_conflicts(driver: DriverUnderTest) -> str:
    """The driver is started without slices, and every other one of its first writes is answered with a conflict."""
    _ = driver.slices.catalogue
    if not driver.process.wait(driver.slices.is_complete, 1.0):
        driver.process.start()  # the driver may not have noticed an earlier wipe
    skip_if(not driver.slices.wait_complete(), "the driver's pools are not complete")
    before = {name for pool in driver.slices.pools() for name in pool.repeated_names}
    driver.process.kill()
    driver.slices.wipe()
    for method in ("POST", "PUT"):
        conflict = Answer(_CONFLICT.code, _CONFLICT.status)
        driver.api.inject(conflict, method=method, resource="resourceslices", times=2, every=2)
    try:
        driver.process.start()
        complete = driver.slices.wait_complete()
    finally:
        driver.api.clear_faults()
    require(complete, f"there are no complete pools; {_asked(driver)}", late=True)
    require_unique_names(driver.slices.pools(), before)
    return "the pools are complete"


@at_the_end(
    MUST,
    expected="complete pools, from the same process; a process that has not registered yet may exit, and the check "
    "then restarts it",
    clause="An API server answers with status 500 while its storage chooses a leader. Kubernetes' helper reports this "
    "as a recoverable error. (kubeletplugin, DRAPlugin.HandleError) While a driver is gone, no pod that uses its "
    "devices can start or end. (kubelet, DRA manager)",
)
def survives_a_failed_write(driver: DriverUnderTest) -> str:
    """The driver is started without slices. After its registration, its first request to create a slice fails (500)."""
    _ = driver.slices.catalogue
    driver.process.kill()
    driver.slices.wipe()
    exits, asked, since = len(driver.process.exits), len(driver.api.requests), time.monotonic()
    may_go_on = threading.Event()
    hold = RunFirst(partial(may_go_on.wait, _REGISTERS))  # the first request for slices waits for the registration
    driver.api.inject(hold, resource="resourceslices")
    driver.api.inject(Answer(_FAILURE.code, _FAILURE.status), method="POST", resource="resourceslices")
    try:
        driver.process.start()
        is_registered = driver.process.wait(
            lambda: any(one.found_at >= since for one in driver.kubelet.registered), _REGISTERS
        )
        may_go_on.set()
        is_complete = driver.slices.wait_complete()
    finally:
        may_go_on.set()
        driver.api.clear_faults()
    ended = driver.process.exits_since(exits)
    require(not ended or not is_registered, f"the driver was registered, and then {some(ended)}")
    require(is_complete, f"there are no complete pools; {_asked(driver)}", late=True)
    does_not_apply_if(
        all(one.method != "POST" for one in driver.slices.writes(asked)), "the driver has created no slice"
    )
    return "the pools are complete"


@across(
    LATE_API_SERVER,
    MUST,
    expected="the driver waits, or exits and is restarted, and publishes once the API server is available",
    clause="A driver and the API server start in no fixed order.",
)
def waits_for_a_late_api_server(driver: DriverUnderTest) -> Parts:
    """The driver is started while the API server is down. The API server is back a second later."""
    _ = driver.slices.catalogue
    yield
    is_complete = driver.slices.wait_complete()
    require(is_complete, f"there are no complete pools after the API server came back; {_asked(driver)}", late=True)
    return "the driver published its pools once the API server was available"


@across(
    TERM,
    SHOULD,
    core=True,
    expected="the slices stay",
    clause="If a driver deletes its slices when it ends, pods stay pending during each of its updates. A kubelet "
    "deletes the slices of a driver that has been disconnected for 30 seconds. (kubelet, DRA manager)",
)
def keeps_its_slices_at_sigterm(driver: DriverUnderTest) -> Parts:
    """The driver is stopped with SIGTERM, and its slices are read."""
    _ = driver.slices.catalogue
    yield
    skip_if(not driver.seen.ending.had_slices, "there were no slices before the driver exited")
    require(driver.seen.ending.kept_slices, "the driver deleted its slices")
    return "the slices stay"
