"""The laws of `domain/capacity.py`.

"In a `NodeStatus`, allocatable never exceeds capacity, and `sanitize_allocatable` never lowers a number."
"""

from collections.abc import Mapping
from typing import TypeVar

from devicecore_tools.command.demo.cluster import lacking
from hypothesis import given
from hypothesis import strategies as st

from devicecore.domain.capacity import NodeStatus, pod_request, sanitize_allocatable
from devicecore.domain.events import Event
from devicecore.domain.inventory import Inventory
from devicecore.domain.model import Pod, ResourceName, is_extended_resource
from devicecore.testing.strategies import RESOURCES, plugin_events, pods
from tests.property.test_inventory import after

Name = TypeVar("Name", bound=str)

FOREIGN = ("cpu", "memory", "hugepages-2Mi", "attachable-volumes", "other.com/fpga")

counts = st.dictionaries(st.sampled_from(RESOURCES), st.integers(0, 20))
foreign = st.dictionaries(st.sampled_from(FOREIGN), st.integers(0, 20))
native = st.dictionaries(st.sampled_from(FOREIGN[:-1]), st.integers(0, 20))


@st.composite
def statuses(draw: st.DrawFn) -> NodeStatus:
    """Statuses as an inventory publishes them: allocatable is at most capacity, and neither has removed resources."""
    capacity = draw(counts)
    allocatable = {name: draw(st.integers(0, count)) for name, count in capacity.items()}
    removed = draw(st.sets(st.sampled_from(RESOURCES)))
    return NodeStatus(capacity, allocatable, tuple(sorted(removed - capacity.keys())))


# --- sanitize_allocatable --------------------------------------------------------------------------------------------


@given(counts, counts)
def test_sanitizing_never_lowers(allocatable: dict[ResourceName, int], in_use: dict[ResourceName, int]) -> None:
    """Every number stays the same or grows to what is in use. Resources that no pod uses do not change."""
    sanitized = sanitize_allocatable(allocatable, in_use)
    assert sanitized.keys() == allocatable.keys() | in_use.keys()
    for name, count in sanitized.items():
        assert count == max(allocatable.get(name, 0), in_use.get(name, 0))
        assert name in in_use or count == allocatable[name]


@given(counts, counts)
def test_sanitizing_is_idempotent(allocatable: dict[ResourceName, int], in_use: dict[ResourceName, int]) -> None:
    """A second call changes nothing."""
    once = sanitize_allocatable(allocatable, in_use)
    assert sanitize_allocatable(once, in_use) == once


@given(counts, counts, counts, counts)
def test_sanitizing_is_monotone(
    allocatable: dict[ResourceName, int],
    more: dict[ResourceName, int],
    in_use: dict[ResourceName, int],
    more_in_use: dict[ResourceName, int],
) -> None:
    """A larger allocatable or more devices in use never lead to a smaller result."""
    less = sanitize_allocatable(allocatable, in_use)
    greater = sanitize_allocatable(_sum(allocatable, more), _sum(in_use, more_in_use))
    assert all(count <= greater[name] for name, count in less.items())


def _sum(one: Mapping[Name, int], other: Mapping[Name, int]) -> dict[Name, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in one.keys() | other.keys()}


@given(plugin_events(max_size=12), st.integers(0, 12), st.floats(0, 1000))
def test_allocatable_never_exceeds_capacity(events: tuple[Event, ...], first: int, now: float) -> None:
    """At any time, 0 <= allocatable <= capacity for the same resources, and a removed resource is in neither."""
    inventory = Inventory()
    for heard in (events[:first], events[first:]):
        removed, inventory = after(heard, inventory=inventory).expire(now)
        status = inventory.status()
        assert status.allocatable.keys() == status.capacity.keys()
        assert all(0 <= status.allocatable[name] <= count for name, count in status.capacity.items())
        assert status.capacity.keys().isdisjoint(removed)


# --- requests --------------------------------------------------------------------------------------------------------


def peak(pod: Pod) -> dict[str, int]:
    """Return the pod's peak use of each resource, found by simulating its containers step by step."""
    running: list[Mapping[str, int]] = []
    moments: list[list[Mapping[str, int]]] = []
    for container in pod.init_containers:
        running.append(container.limits)
        moments.append(list(running))
        if not container.restartable:
            running.pop()  # the container ends before the next one starts
    running += [container.limits for container in pod.containers]
    moments.append(running)
    used = [{name: sum(limits.get(name, 0) for limits in moment) for name in (*RESOURCES, "cpu")} for moment in moments]
    return {name: max(moment[name] for moment in used) for name in (*RESOURCES, "cpu")}


@given(pods(max_init_containers=5))
def test_a_pod_requests_its_peak(pod: Pod) -> None:
    """The request is the most that is in use at any time while the pod runs. Sidecars keep running."""
    request = pod_request(pod)
    assert {name: request.get(name, 0) for name in (*RESOURCES, "cpu")} == peak(pod)
    assert request.keys() == {name for container in pod.in_start_order for name in container.limits}


@given(pods(), counts, counts)
def test_a_pod_lacks_exactly_what_it_asks_for_and_is_not_free(
    pod: Pod, allocatable: dict[str, int], used: dict[str, int]
) -> None:
    """The result has the extended resources that the pod requests more of than is left, by name."""
    wanted = {name: count for name, count in pod_request(pod).items() if is_extended_resource(name) and count > 0}
    left = {name: allocatable.get(name, 0) - used.get(name, 0) for name in wanted}
    assert lacking(pod, allocatable, used) == sorted(name for name, count in wanted.items() if count > left[name])


@given(pods(), counts, counts, counts)
def test_a_richer_node_lacks_no_more(
    pod: Pod, allocatable: dict[str, int], more: dict[str, int], used: dict[str, int]
) -> None:
    """A pod that fits still fits if the node has more."""
    assert {*lacking(pod, _sum(allocatable, more), used)} <= {*lacking(pod, allocatable, used)}
