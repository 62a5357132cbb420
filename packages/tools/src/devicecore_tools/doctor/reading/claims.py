"""The devices of ResourceClaims on a node, and what their drivers have published.

Law: a file that was read incompletely is not mistaken for a file without claims.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from devicecore.domain.allocation import Slices, TargetNode, slice_of
from devicecore.domain.allocation.model import Features, NodeRule, PoolDevice, PoolSlice
from devicecore.domain.allocation.pools import Pool
from devicecore.domain.allocation.search import REPELLING_EFFECTS
from devicecore.domain.checkpoint import FileVerdict
from devicecore.domain.documents import Value
from devicecore.domain.dra import health_file
from devicecore.domain.dra.answers import PREPARE, UNPREPARE
from devicecore.domain.dra.claims import ALL_CALLS
from devicecore.domain.dra.state_file import ClaimEntry, entries_of, judge
from devicecore.domain.errors import DeviceCoreError, MalformedCheckpointError
from devicecore.domain.json_size import MAX_BYTES
from devicecore.system.files import read_file
from devicecore_tools.budget import Budget
from devicecore_tools.doctor.look.values import (
    NO_FILE,
    AllocatedClaimSeen,
    ClaimsSeen,
    Device,
    PoolCounters,
    PreparedDeviceSeen,
    PublishedDeviceSeen,
    Reading,
    grouped,
)
from devicecore_tools.doctor.reading.objects import items_of, seconds_of


def read_claims(path: str, *, may_be_absent: bool) -> Reading[ClaimsSeen]:
    """Return the kubelet's claim checkpoint at `path`.

    A kubelet writes the file when it prepares its first claim. If a kubelet's directory has no such file
    (`may_be_absent`), no claim is prepared. Elsewhere, a missing file proves nothing.
    """
    try:
        blob = read_file(path, MAX_BYTES, follow_links=True)
    except FileNotFoundError:
        if not Path(path).parent.is_dir():
            return Reading(path, problem=f"there is no directory {Path(path).parent}")
        if not may_be_absent:
            return Reading(path, problem=NO_FILE)
        return Reading.of(path, ClaimsSeen(), (f"{NO_FILE}, so no claim is prepared",))
    except OSError as error:
        return Reading(path, problem=error.strerror or str(error))
    verdict = judge(blob)
    problem = "" if verdict.verdict is FileVerdict.OK else verdict.problem
    try:
        entries = entries_of(blob) if verdict.entries is None else tuple(verdict.entries)
    except MalformedCheckpointError as error:
        return Reading.of(path, ClaimsSeen(problem=error.problem), (error.problem,))
    return Reading.of(path, _seen(entries, problem), (problem,) if problem else ())


def read_health(path: str, now: int) -> Reading[Mapping[tuple[str, str, str], str]]:
    """Return the health of each driver's devices from the kubelet's `dra_health_state`.

    A device's health is empty if its report is too old at `now`, in nanoseconds since 1970: the kubelet writes the file
    only when something changes, so the file does not show whether the driver has reported since.
    """
    try:
        cache = health_file.decode(read_file(path, MAX_BYTES, follow_links=True))
    except FileNotFoundError:  # a kubelet without DRA drivers has no such file
        return Reading(problem=NO_FILE)
    except OSError as error:
        return Reading(path, problem=error.strerror or str(error))
    except DeviceCoreError as error:
        return Reading(path, problem=str(error))
    return Reading.of(
        path,
        {
            (str(driver), one.pool, one.device): "" if one.is_expired(now) else one.health.value
            for driver, devices in cache.drivers.items()
            for one in devices.values()
        },
    )


def slices_in(document: Value, budget: Budget | None = None) -> tuple[PoolSlice, ...]:
    """Return the slices in a list of ResourceSlices.

    Raises DocumentError if the list is incomplete or of a different kind, or has more devices than the budget allows.
    """
    keep = (budget or Budget()).keep_slice
    return tuple(slice_of(keep(one)) for one in items_of(document, "ResourceSlices", "ResourceSliceList"))


def published_by(
    slices: Iterable[PoolSlice], name: str = "", node: TargetNode | None = None
) -> tuple[PublishedDeviceSeen, ...]:
    """Return the devices that a node may use, with their string attributes.

    If the node's name is unknown, every device is returned. If the Node's labels are unknown, it is also unknown
    whether the node may use a device with a node selector.
    """
    whole, newest = tuple(slices), dict[tuple[str, str], int]()
    local = [one for one in whole if not name or one.place is None or one.place.node in ("", name)]
    for one in local:  # slices of an older generation no longer count
        newest[one.driver, one.pool] = max(one.generation, newest.get((one.driver, one.pool), 0))
    pools = {pool.key: (pool, _counters(pool)) for pool in Slices(whole).pools(node or TargetNode(name), Features())}
    return tuple(
        seen
        for one in local
        if one.generation == newest[one.driver, one.pool]
        for seen in _published(
            one, partial(_is_usable, name=name, node=node), *pools.get((one.driver, one.pool), (None, None))
        )
    )


def elsewhere(slices: Iterable[PoolSlice], name: str) -> dict[str, tuple[str, ...]]:
    """Return the other nodes that the slices of each driver name."""
    places = grouped((one.driver, one.place.node) for one in slices if one.place and one.place.node not in ("", name))
    return {driver: tuple(dict.fromkeys(nodes)) for driver, nodes in places.items()}


def _is_usable(place: NodeRule, name: str, node: TargetNode | None) -> bool | None:
    """Return whether a slice or one of its devices is for a node, or None if unknown."""
    if place.node:
        return place.node == name if name else None
    if place.source is None or place.all_nodes:
        return True
    return place.accepts(node) if node is not None else None


def _counters(pool: Pool) -> PoolCounters | None:
    """Return the counters of a pool, or None if it has none."""
    if not pool.counters:
        return None
    totals = {
        (of, counter): amount.nanos for of, amounts in pool.counters.items() for counter, amount in amounts.items()
    }
    devices = [*(device for _, device in pool.devices), *pool.elsewhere]
    return PoolCounters(
        totals,
        {one.key.device: {use: amount.nanos for use, amount in one.uses.items()} for one in devices if one.uses},
    )


def _published(
    of: PoolSlice, usable: Callable[[NodeRule], bool | None], pool: Pool | None, counters: PoolCounters | None
) -> Iterator[PublishedDeviceSeen]:
    problem = pool.problem if pool and of.count else ""
    skipped = {*of.skip_node_operations}
    needs_driver = ALL_CALLS not in skipped and not skipped >= {PREPARE, UNPREPARE}
    for device in of.devices:
        place = of.place_of(device)
        is_usable = usable(place)
        if is_usable is False:
            continue
        texts = {name: str(one.values[0]) for name, one in device.attributes.items() if one.kind == "string"}
        taints = grouped((one.effect in REPELLING_EFFECTS, str(one)) for one in device.taints)
        yield PublishedDeviceSeen(
            *device.key,
            {name: text for name, text in texts.items() if text},
            numa_nodes=_numa_nodes(device),
            taint=next(iter(taints.get(True, ())), ""),
            remark=next(iter(taints.get(False, ())), ""),
            counters=counters,
            is_own=bool(is_usable) and not place.all_nodes and place.source is None,
            is_usable=None if problem else is_usable,
            needs_driver=needs_driver,
            pool_problem="" if pool and pool.is_obsolete else problem,
        )


def _numa_nodes(device: PoolDevice) -> tuple[int, ...] | None:
    """Return a device's NUMA nodes, from the standard attribute or else a driver's attribute, or None if unknown."""
    for name in ("resource.kubernetes.io/numaNode", f"{device.key.driver}/numaNode", "numaNode"):
        one = device.attributes.get(name)
        if one is not None and one.kind in {"int", "ints"}:
            return tuple(sorted(map(int, one.values)))
    return None


def allocations_in(document: Value) -> tuple[AllocatedClaimSeen, ...]:
    """Return the ResourceClaims of a list, including those without devices.

    Raises DocumentError if the document is not a complete list of ResourceClaims.
    """
    return tuple(map(_allocated, items_of(document, "ResourceClaims", "ResourceClaimList")))


def _allocated(item: Value) -> AllocatedClaimSeen:
    metadata, status = item["metadata"], item["status"]
    allocation, consumers = status["allocation"], status["reservedFor"].sequence()
    nodes = [
        value.text()
        for term in allocation["nodeSelector"]["nodeSelectorTerms"].sequence()
        for field in term["matchFields"].sequence()
        if field["key"].data == "metadata.name"
        for value in field["values"].sequence()
    ]
    results = [
        ((one["driver"].text(), one["pool"].text(), one["device"].text()), one)
        for one in allocation["devices"]["results"].sequence()
    ]
    is_for_pods = all(one["resource"].text("pods") == "pods" for one in consumers)
    return AllocatedClaimSeen(
        f"{metadata['namespace'].text('default')}/{metadata['name'].text()}",
        tuple(device for device, _ in results),
        tuple(one["uid"].text("") for one in consumers) if is_for_pods else None,
        nodes=tuple(nodes),
        only_watched=frozenset(device for device, one in results if one["adminAccess"].data is True),
        shared=frozenset(device for device, one in results if one["shareID"].data is not None),
        remarks=tuple(_remarks(status["devices"], dict(results))),
        uid=metadata["uid"].text(""),
        is_deleting=metadata["deletionTimestamp"].data is not None,
        allocated_at=seconds_of(allocation["allocationTimestamp"].text("")),
    )


def _remarks(devices: Value, results: Mapping[Device, Value]) -> Iterator[tuple[Device, str]]:
    """Yield what drivers report about broken devices, from the conditions in a claim's status.

    An allocation names the conditions that a device must have before a pod is bound, and the conditions that mean
    failure.
    """
    for device in devices.sequence():
        key = device["driver"].text(), device["pool"].text(), device["device"].text()
        result = results.get(key)
        needed, failing = ([one.text() for one in result[name].sequence()] if result else [] for name in _BINDING)
        wanted = {"Ready": "True", **dict.fromkeys(needed, "True"), **dict.fromkeys(failing, "False")}
        for one in device["conditions"].sequence():
            kind, status = one["type"].text(""), one["status"].text("")
            if status != wanted.get(kind, status):
                yield (
                    key,
                    ": ".join(filter(None, (f"{kind} is {status}", one["reason"].text(""), one["message"].text("")))),
                )


_BINDING = ("bindingConditions", "bindingFailureConditions")


def _seen(entries: tuple[ClaimEntry, ...], problem: str) -> ClaimsSeen:
    devices = tuple(
        PreparedDeviceSeen(f"{entry.namespace}/{entry.name}", driver, one.pool, one.name, one.cdi_ids or ())
        for entry in entries
        for driver, listed in (entry.drivers or {}).items()
        for one in listed or ()
    )
    by_name = {f"{entry.namespace}/{entry.name}": entry for entry in entries}
    drivers = {name: tuple(_called(entry, UNPREPARE)) for name, entry in by_name.items()}
    pods = {name: tuple(entry.pods or ()) for name, entry in by_name.items()}
    asked = {
        name: [one for one in _called(entry, PREPARE) if not (entry.drivers or {})[one]]
        for name, entry in by_name.items()
    }
    unanswered = {name: tuple(missing) for name, missing in asked.items() if missing}
    uids = {name: entry.uid for name, entry in by_name.items()}
    return ClaimsSeen(devices, drivers, pods, unanswered, problem=problem, uids=uids)


def _called(entry: ClaimEntry, call: str) -> Iterator[str]:
    """Yield the drivers that a kubelet calls to prepare or release a claim."""
    return (driver for driver in entry.drivers or () if {ALL_CALLS, call}.isdisjoint(entry.skips.get(driver, ())))
