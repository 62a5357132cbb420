"""The kubelet's cases for a node's capacity and allocatable."""

import pytest
from attrs import evolve

from devicecore import Admitted, Container, DeviceManager, Pod, PodUid, Refused
from devicecore.adapters.memory import MemorySink, MemoryStore, MemoryTransport
from devicecore.domain.capacity import pod_request, sanitize_allocatable
from devicecore.domain.checkpoint import checkpoint_of, restore
from devicecore.domain.inventory import Inventory
from devicecore.domain.ledger import Ledger
from devicecore.domain.model import (
    Device,
    DeviceId,
    Health,
    PluginId,
    PluginOptions,
    ResourceName,
    is_extended_resource,
)
from devicecore.domain.node_state import NodeState
from devicecore.plugins.simulated import SimulatedPlugin, simulated_devices
from tests import recorded
from tests.recorded import Json

SCRIPTS = recorded.cases("get_capacity")
REQUESTS = recorded.cases("pod_device_request")
NAMES = recorded.cases("resource_names")
FLOWS = recorded.cases("allocate_flows")["cases"]
NOW = 1000.0


class Script:
    """Executes the steps of a `get_capacity` case on a `NodeState`."""

    def __init__(self) -> None:
        self.node = NodeState()
        self.plugins: dict[str, PluginId] = {}
        self.checkpoint = checkpoint_of(self.node)

    @property
    def inventory(self) -> Inventory:
        return self.node.inventory

    @inventory.setter
    def inventory(self, inventory: Inventory) -> None:
        self.node = evolve(self.node, inventory=inventory)

    def install_endpoint(self, step: Json) -> None:
        name = ResourceName(step["resource"])
        self.plugins[name] = PluginId(name, step.get("socket", "plugin.sock"), len(self.plugins) + 1)
        self.inventory = self.inventory.connect(self.plugins[name], PluginOptions())

    def device_update(self, step: Json) -> None:
        name = ResourceName(step["resource"])
        devices = [Device(DeviceId(row["id"]), Health.parse(row["health"])) for row in step["devices"]]
        if name in self.plugins:
            self.inventory = self.inventory.report(self.plugins[name], devices)
        else:  # no inventory has a report without a plugin, so the state is built directly
            listed = Inventory().connect(PluginId(name, "", 0), PluginOptions()).report(PluginId(name, "", 0), devices)
            self.inventory = recorded.inventory(evolve(listed.resources[name], plugins=()))

    def set_stop_time(self, step: Json) -> None:
        # The plugin is gone, but its devices have not been marked. Again, only a state that is built directly can be
        # like this.
        known = self.inventory.resources[ResourceName(step["resource"])]
        gone = evolve(known, plugins=(), stopped=known.plugin, gone_since=NOW - step["seconds_ago"])
        self.inventory = Inventory({**self.inventory.resources, gone.name: gone})

    def client_disconnect(self, step: Json) -> None:
        name = ResourceName(step["resource"])
        self.inventory = self.inventory.disconnect(self.plugins.get(name, PluginId(name, "", 0)), NOW)

    def mark_unhealthy(self, step: Json) -> None:
        known = self.inventory.resources[ResourceName(step["resource"])]
        assert known.report is not None
        marked = evolve(known, report=known.report.all_unhealthy())  # a disconnect has already done this
        self.inventory = Inventory({**self.inventory.resources, known.name: marked})

    def write_checkpoint(self, _: Json) -> None:
        self.checkpoint = checkpoint_of(self.node)

    def clear_device_sets(self, _: Json) -> None:
        self.node = NodeState()

    def read_checkpoint(self, _: Json) -> None:
        self.node = restore(self.checkpoint, NOW)

    def get_capacity(self, step: Json) -> None:
        removed, self.node = self.node.expire(NOW)
        status = self.inventory.status()
        expect = step["expect"]
        assert (status.capacity, status.allocatable) == (expect["capacity"], expect["allocatable"])
        assert sorted(removed) == sorted(expect["removed"])

    def get_allocatable_devices(self, step: Json) -> None:
        healthy = {name: list(known.report.healthy) for name, known in self.inventory.resources.items() if known.report}
        assert healthy == step["expect"]


def check(script: Script, step: Json) -> None:
    """Check the expectations of an `assert` step."""
    reports = {name: known.report for name, known in script.inventory.resources.items() if known.report}
    for name in (*step.get("healthy_lacks", ()), *step.get("unhealthy_lacks", ())):
        assert name not in reports
    if "endpoints" in step:
        assert sorted(script.inventory.resources) == sorted(step["endpoints"])
    for name, size in step.get("healthy_size", {}).items():
        assert len(reports[name].healthy) == size
    for name, size in step.get("unhealthy_size", {}).items():
        assert len(reports[name].unhealthy) == size
    for key in ("healthy_keys", "unhealthy_keys"):
        if key in step:
            assert sorted(reports) == sorted(step[key])
    for name, known in step.get("is_device_plugin_resource", {}).items():
        assert script.node.knows(name) is known


@pytest.mark.parametrize("case", SCRIPTS, ids=[case["id"] for case in SCRIPTS])
def test_capacity_is_what_a_kubelet_reports(case: Json) -> None:
    """Capacity, allocatable and removed resources follow from registrations, reports, losses and time."""
    script = Script()
    for step in case["steps"]:
        if step["op"] == "assert":
            check(script, step)
        else:
            getattr(script, step["op"])(step)


@pytest.mark.parametrize("row", REQUESTS, ids=[row["id"] for row in REQUESTS])
def test_a_pod_asks_for_its_peak(row: Json) -> None:
    """The requests of init containers, sidecars and app containers add up as in a kubelet."""
    request = pod_request(recorded.pod(row["pod"]))
    assert {name: count for name, count in request.items() if name in row["registered"]} == row["expected"]


@pytest.mark.parametrize("row", NAMES, ids=range(len(NAMES)))
def test_resource_names_are_judged_as_a_kubelet_judges_them(row: Json) -> None:
    """The same names as in a kubelet count as names of extended resources."""
    assert is_extended_resource(row["name"]) is row["extended"]


@pytest.mark.parametrize("name", ["a/b\n", "a/b/c", "a.com/" + "x" * 64, "gérät.com/x", "a.com/gérät", "A.com/x"])
def test_names_that_only_look_valid_are_refused(name: str) -> None:
    """Newlines, additional slashes, long names, non-ASCII letters and uppercase domains do not pass the check."""
    assert not is_extended_resource(name)


@pytest.mark.parametrize("case", [case for case in FLOWS if "node_allocatable_before" in case], ids=lambda c: c["id"])
def test_allocatable_is_raised_to_the_number_in_use(case: Json) -> None:
    """As in `UpdatePluginResources`, a node's allocatable is raised to what its pods hold, and never lowered."""
    holder = "pod" if case["pod_known"] else "another pod"
    ledger: Ledger = recorded.ledger({holder: {"c": case["allocated"]}})
    node = NodeState(ledger=ledger)
    before = case["node_allocatable_before"]
    assert node.sanitize_allocatable(recorded.pod({"containers": []}).uid, before) == case["node_allocatable_after"]
    assert sanitize_allocatable(before, {}) == before


def test_a_resource_whose_only_request_failed_leaves_no_zero() -> None:
    """A kubelet keeps an empty set of ids in use, so it writes 0 (kubelet.md 5.4 and 8.1; differences.md D20)."""
    transport = MemoryTransport()
    with DeviceManager(transport, MemoryStore(), MemorySink()) as manager:
        transport.connect(SimulatedPlugin("example.com/gpu", simulated_devices("gpu", 1)))
        transport.connect(SimulatedPlugin("example.com/nic", simulated_devices("nic", 1)))
        holder = Pod(PodUid("holder"), containers=(Container("main", {"example.com/gpu": 1}),))
        assert isinstance(manager.admit(holder), Admitted)
        refused = manager.admit(Pod(PodUid("refused"), containers=(Container("main", {"example.com/nic": 2}),)))
        assert isinstance(refused, Refused)
        assert manager.sanitize_allocatable(holder.uid, {}) == {"example.com/gpu": 1}
