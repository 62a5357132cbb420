"""The kubelet's cases for the choice of a container's devices."""

from collections import Counter

import pytest

from devicecore.domain.device_set import DeviceSet
from devicecore.domain.errors import DeviceCoreError, PluginCallError
from devicecore.domain.inventory import DeviceReport, Inventory, Resource
from devicecore.domain.ledger import Ledger
from devicecore.domain.model import ContainerKey, Device, DeviceId, NumaNode, PluginOptions, PodUid, ResourceName
from devicecore.domain.selection import AskPlugin, ResourceRequest, devices_to_allocate, filter_by_affinity
from tests import recorded
from tests.recorded import Json

ROWS = recorded.cases("devices_to_allocate")
FILTER_ROWS = recorded.cases("filter_by_affinity")


def inventory_of(row: Json) -> Inventory:
    """Return an inventory with the resource of a case, as its plugin serves it."""
    if not row["registered"]:
        return Inventory()
    options = PluginOptions(get_preferred_allocation_available=row["plugin"].get("preferred_available", False))
    listed = recorded.resource(row["resource"], row["devices"], options)
    if not row["plugin"]["endpoint"]:
        listed = Resource(listed.name, report=listed.report)
    return recorded.inventory(listed)


def ledger_of(row: Json) -> Ledger:
    """Return a ledger with the devices that a case's container holds, and those that another pod holds."""
    others = [id_ for id_ in row["allocated"] if id_ not in (row["pre_allocated"] or ())]
    held = {} if row["pre_allocated"] is None else {row["container"]: {row["resource"]: row["pre_allocated"]}}
    return recorded.ledger({row["pod_uid"]: held, "another pod": {"c": {row["resource"]: others}}})


def decide(row: Json) -> tuple[DeviceSet, Json]:
    """Return the devices chosen in a case, and the question for the case's plugin, or None if there is no question."""
    request = ResourceRequest(
        ContainerKey(PodUid(row["pod_uid"]), row["container"]),
        ResourceName(row["resource"]),
        row["request"],
        None if row["hint_mask"] is None else tuple(map(NumaNode, row["hint_mask"])),
        already_running=row["container_running"] and not row["sources_ready"],
    )
    reusable = DeviceSet.of(map(DeviceId, row["reusable"]))
    decision = devices_to_allocate(request, inventory_of(row), ledger_of(row), reusable)
    if not isinstance(decision, AskPlugin):
        return decision, None
    call = {"available": set(decision.candidates), "must_include": set(decision.must_include), "size": decision.size}
    response = row["plugin"]["preferred_response"]
    if isinstance(response, dict):
        raise PluginCallError(row["resource"], "GetPreferredAllocation", response["error"])
    return decision.answer(map(DeviceId, response or ())), call


@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
def test_devices_are_chosen_as_a_kubelet_chooses_them(row: Json) -> None:
    """The refusals, numbers of devices, questions to plugins and NUMA nodes are the same as in a kubelet."""
    expect = row["expect"]
    if "error" in expect:
        with pytest.raises(DeviceCoreError) as refused:
            decide(row)
        assert str(refused.value) == expect["error"]
        return
    chosen, call = decide(row)
    if expect.get("noop"):
        assert chosen == DeviceSet()
        return
    assert len(chosen) == expect["size"]
    assert set(expect.get("must_contain", ())) <= set(chosen)
    if "preferred_call" in expect:
        wanted = expect["preferred_call"]
        assert call == (wanted and {key: set(ids) if key != "size" else ids for key, ids in wanted.items()})
    if "numa_counts" in expect:
        devices = [recorded.device(listed) for listed in row["devices"]]
        assert first_nodes(devices, chosen) == expect["numa_counts"]


def first_nodes(devices: list[Device], chosen: DeviceSet) -> dict[str, int]:
    """Return, for each NUMA node, the number of chosen devices that list it first."""
    return dict(Counter(str(device.numa_nodes[0]) for device in devices if device.id in chosen and device.numa_nodes))


@pytest.mark.parametrize("row", FILTER_ROWS, ids=[row["id"] for row in FILTER_ROWS])
def test_devices_are_split_by_affinity_as_a_kubelet_splits_them(row: Json) -> None:
    """The sets of aligned devices, of unaligned ones and of devices without affinity are as recorded."""
    report = DeviceReport.of(map(recorded.device, row["devices"]))
    mask = None if row["hint_mask"] is None else tuple(map(NumaNode, row["hint_mask"]))
    split = filter_by_affinity(report, mask, report.index.select(map(DeviceId, row["available"])))
    expected = row["expected"]
    assert split == tuple(DeviceSet.of(expected[tier]) for tier in ("aligned", "unaligned", "no_affinity"))
