"""The content of a fleet's file, and how mistakes in it are reported."""

import pytest
from devicecore_fleet.fleet.commands import check_command
from devicecore_fleet.fleet.description import FleetDescription
from devicecore_fleet.fleet.reading import FleetFileError, parse_fleet, shapes
from devicecore_fleet.fleet.schedule import Schedule
from devicecore_tools.testing.api_server.slice_rules import slice_causes

from devicecore.domain.dra.slices import DevicePool, changes


def fleet(text: str) -> FleetDescription:
    return parse_fleet(text, "f")


@pytest.mark.parametrize("name", shapes())
def test_every_shape_can_be_used_and_the_api_server_takes_its_devices(name: str) -> None:
    found = fleet(shapes()[name])
    for node, group in found.nodes():
        for driver in group.drivers:
            pool = DevicePool(driver.name, node, node, driver.published(node), driver.counters)
            for body in changes(pool, "uid", ()).create:
                assert list(slice_causes(dict(body), None)) == []
    assert all(group.patterns for group in found.groups)


def test_a_group_has_what_its_shape_has_and_it_does_not_say_itself() -> None:
    small = fleet("nodes:\n- {shape: dgx-h100, name: 'small-{number:02}', count: 12, first: 5, cpu: 500m}")
    (group,) = small.groups
    assert [*group.node_names()][:2] == ["small-05", "small-06"]
    assert group.capacity == {"cpu": "500m", "memory": "2Ti", "ephemeral-storage": "1Ti", "pods": "110"}
    gpus = group.plugins[0].devices
    assert [(device.id, device.topology) for device in gpus][3:5] == [("gpu-3", (0,)), ("gpu-4", (1,))]


def test_the_topology_manager_of_a_group_has_options() -> None:
    manager = "{policy: best-effort, options: {prefer-closest-numa-nodes: true}, distances: [[10, 30], [30, 10]]}"
    (group,) = fleet(f"nodes:\n- {{name: a, numaNodes: 2, topologyManager: {manager}}}").groups
    assert group.topology.distances == ((10, 30), (30, 10))
    many = "{policy: best-effort, options: {max-allowable-numa-nodes: 16}}"
    (group,) = fleet(f"nodes:\n- {{name: a, numaNodes: 16, topologyManager: {many}}}").groups
    assert len(group.topology.numa_nodes) == 16


A_NODE = "nodes:\n- name: a\n"
GPUS = "  plugins: [{resource: a.com/gpu, devices: 2}]\nfaults:\n"
PARTS = "  drivers:\n  - name: d.com\n    devices:\n    - name: x\n      consumesCounters: [{counterSet: c}]"
DEVICE = "  drivers:\n  - name: d.com\n    devices: [{name: x, "
AT = "f:5: nodes[0].drivers[0].devices[0]"
SETS = "".join(f"    - {{name: c-{number}, counters: {{m: {{value: 1}}}}}}\n" for number in (0, 2))
COUNTED = (
    f"  drivers:\n  - name: d.com\n    sharedCounters:\n{SETS}    devices:\n    - name: 'x-{{number}}'\n"
    "      consumesCounters: [{counterSet: 'c-{number}', counters: {m: 1}}]\n      "
)
MISTAKES = {
    "kind: Namespace\n---\nkind: Deployment": "f:1: kind: expected a fleet's file, with `nodes`, got a Kubernetes",
    "nodes: []": "f:1: nodes: expected at least one group of nodes",
    A_NODE + "  lables: {}": "f:3: nodes[0].lables: there is no such field: expected one of shape, name,",
    "nodes:\n- name: A": "f:2: nodes[0].name: expected the name of a node, at most 63 of a-z, 0-9, '-' and '.', go",
    "nodes:\n- {name: a, count: 2}": "f:2: nodes[0].name: expected {number} in the name of more than one node",
    "nodes:\n- name: a\n- name: a": "f:2: nodes: expected each node once, got a twice",
    "nodes:\n- {name: 'a{number}', count: 5000}\n- {name: b}": "f:2: nodes: expected at most 5000 nodes, got 5001",
    A_NODE + "  memory: lots": "f:3: nodes[0].memory: ",
    "nodes:\n- {shape: cray, name: a}": "f:2: nodes[0].shape: expected one of ",
    A_NODE + "  plugins:\n  - resource: gpu": "f:4: nodes[0].plugins[0].resource: ",
    A_NODE + PARTS: "f:7: nodes[0].drivers[0].devices[0].consumesCounters[0].counterSet: expected the name of one of",
    "nodes:\n- {name: a, directory: /d}\n- {name: b, directory: /d}": "f:2: nodes: expected each directory once",
    A_NODE
    + "  topologyManager: {options: {closest: true}}": "f:3: nodes[0].topologyManager.options: closest: expected one",
    A_NODE
    + "  topologyManager: {options: {prefer-closest-numa-nodes: true}}": "f:3: nodes[0].topologyManager: expected "
    "distances, because prefer-closest-numa-nodes needs them",
    A_NODE
    + "  numaNodes: 9\n  topologyManager: {policy: restricted}": "f:4: nodes[0].topologyManager: expected at most 8",
    A_NODE + "  labels: {a: b c}": "f:3: nodes[0].labels.a: expected at most 63 letters, digits",
    A_NODE + "  taints: [{key: a b, effect: NoExecute}]": "f:3: nodes[0].taints[0].key: expected the key of a taint",
    A_NODE + "  taints: [{key: a, effect: NoExecute}, {key: a, value: b, effect: NoExecute}]": "f:3: nodes[0].taints: ",
    A_NODE + "  capacity: {a b: 3}": "f:3: nodes[0].capacity.a b: expected the name of a resource, got 'a b'",
    A_NODE + DEVICE + "attributes: {a b: c}}]": f"{AT}.attributes.a b: expected a name such as `name` or ",
    A_NODE + DEVICE + "attributes: {a: {version: 9.0}}}]": f"{AT}.attributes.a.version: expected a string, got 9.0",
    A_NODE + DEVICE + "attributes: {a: {version: 9.x}}}]": f"{AT}.attributes.a: attribute a: expected a version such",
    A_NODE + DEVICE + "attributes: {a: {int: x}}}]": f"{AT}.attributes.a: expected an integer or {{number}}",
    A_NODE + DEVICE + "capacity: {a b: 1Gi}}]": f"{AT}.capacity.a b: expected a name such as `name` or ",
    A_NODE + DEVICE + "taints: nope}]": f"{AT}.taints: expected a list, got 'nope'",
    A_NODE + DEVICE + "taints: [{key: a, effect: x}]}]": f"{AT}.taints[0].effect: expected one of NoSchedule",
    A_NODE
    + COUNTED
    + "count: 3": "f:10: nodes[0].drivers[0].devices[0].consumesCounters[0].counterSet: expected the name of",
    A_NODE + "  containers: [{do: crash}]": "f:3: nodes[0].containers[0].do: expected `exit CODE [after TIME]`",
    A_NODE
    + GPUS
    + "- {at: 3s, nodes: a, do: unhealthy gpu-2}": "f:5: faults[0].do: there is no device 'gpu-2'; devices: gpu-0",
    A_NODE + "  cpu: 4\n  cpu: 8": "f:4: expected each key once, got 'cpu' a second time",
    A_NODE + GPUS + "- {at: soon, nodes: a, do: down}": "f:5: faults[0].at: expected a duration",
    A_NODE + GPUS + "- {at: 1s, nodes: 'b*', do: down}": "f:5: faults[0].nodes: there is no node b*; nodes: a",
    "nodes:\n- shape: mig\nfaults:\n- {at: 1s, nodes: mig-9, do: down}": "f:4: faults[0].nodes: there is no node mi",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_one_sentence_with_line_and_path(text: str) -> None:
    with pytest.raises(FleetFileError) as caught:
        fleet(text)
    assert str(caught.value).startswith(MISTAKES[text])
    assert "\n" not in str(caught.value)


def test_the_first_behavior_that_fits_a_pod_counts() -> None:
    says = "[{pods: 'train-*', do: oom}, {pods: 'a/*', do: not-ready}, {labels: {app: s}, do: exit 1}]"
    (group,) = fleet(f"{A_NODE}  containers: {says}").groups

    def said(name: str, namespace: str = "default", **labels: str) -> str:
        return group.said_of({"metadata": {"name": name, "namespace": namespace, "labels": labels}})

    assert [said("train-1", "a"), said("x", "a", app="s"), said("x", app="s"), said("x")] == [
        *("oom", "not-ready", "exit 1", "")
    ]


def test_a_device_is_named_by_itself_or_with_its_owner() -> None:
    (group,) = fleet(shapes()["sriov"]).groups
    assert check_command(("unhealthy", "0000:3b:02.7"), group) == ""
    assert check_command(("unhealthy", "openshift.io/netdevice=0000:3b:02.7"), group) == ""
    wrong = check_command(("unhealthy", "x.com/y=0000:3b:02.7"), group)
    assert wrong.startswith("there is no device 'x.com/y=0000:3b:02.7'; devices: 0000:3b:02.0, ")
    assert "only for openshift.io/netdevice" in check_command(("plugin-gone", "a.com/b"), group)
    assert check_command(("explode",), group).startswith("expected `unhealthy DEVICE`")


def test_faults_happen_on_schedule_and_are_undone_and_repeated() -> None:
    repeated = "- {at: 10s, nodes: a, do: unhealthy gpu-1, for: 5s, every: 1m}\n"
    schedule = Schedule(fleet(A_NODE + GPUS + repeated + "- {at: 12s, nodes: a, do: partition}").commands, began=100.0)
    happened = []
    while (now := schedule.next_due) < 180:
        happened += [(now, " ".join(words)) for _, words in schedule.due(now)]
    bad, good = "unhealthy gpu-1", "healthy gpu-1"
    assert happened == [(110, bad), (112, "partition"), (115, good), (170, bad), (175, good)]
