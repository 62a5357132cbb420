"""The cost of a report on a node with many problems, measured in instructions rather than time.

Law: a node with four times as many pods, plugins or claims takes about four times the work, whatever is wrong with it.
The work is the number of Python instructions executed.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType
from typing import Any

import pytest
from attrs import evolve
from devicecore_tools.doctor.account.facts import Facts
from devicecore_tools.doctor.findings.report import check, report
from devicecore_tools.doctor.look import values as looks
from devicecore_tools.doctor.reading.claims import published_by, slices_in
from tests.doctor.nodes import GPU, Entry, checkpoint, plugin, pod, with_api, with_file, with_plugins, with_pods

from devicecore.domain.documents import Value
from devicecore.domain.model import Container, Pod, PodUid

FEW, MANY = 25, 100
TIMES = 4.2
"""The work for four times as many objects may grow by at most this factor."""


def node(
    entries: Iterable[Entry],
    registered: Mapping[str, tuple[str, ...]],
    holdings: Sequence[looks.HoldingSeen] = (),
    plugins: Sequence[looks.PluginSeen] = (),
) -> looks.Look:
    look = with_file(looks.Look(), checkpoint(entries, registered))
    holders = frozenset((one.namespace, one.pod) for one in holdings)
    look = with_api(look, looks.PodResourcesSeen("v1", holders, tuple(holdings)))
    return with_plugins(look, *plugins)


def held(pod: str, container: str) -> looks.HoldingSeen:
    return looks.HoldingSeen("default", pod, container, GPU, {"gpu-0": ()})


def one_device_of_many_pods(count: int) -> looks.Look:
    entries: list[Entry] = [(f"uid-p{number}", "main", GPU, {0: ("gpu-0",)}) for number in range(count)]
    look = node(entries, {GPU: ("gpu-0",)}, [held(f"p{number}", "main") for number in range(count)])
    return with_pods(look, *(pod(f"p{number}", "main") for number in range(count)))


def one_device_of_many_pods_that_are_not_known(count: int) -> looks.Look:
    entries: list[Entry] = [(f"uid-p{number}", "main", GPU, {0: ("gpu-0",)}) for number in range(count)]
    return node(entries, {GPU: ("gpu-0",)}, [held(f"p{number}", "main") for number in range(count)])


def one_device_of_many_init_containers(count: int) -> looks.Look:
    names = [f"c{number}" for number in range(count)]
    entries: list[Entry] = [("uid-p", name, GPU, {0: ("gpu-0",)}) for name in names]
    return with_pods(node(entries, {GPU: ("gpu-0",)}), pod("p", "main", init=names))


def plugins_that_are_not_registered(count: int) -> looks.Look:
    registered = {f"example.com/r{number}": (f"d{number}",) for number in range(count)}
    return node([], registered, plugins=[plugin(f"{number}.sock", (f"z{number}",)) for number in range(count)])


def resources_without_a_plugin(count: int) -> looks.Look:
    sockets = looks.SocketsSeen(kubelet=True, plugins=tuple(f"{number}.sock" for number in range(count)))
    look = plugins_that_are_not_registered(count)
    return looks.Look(look.checkpoint, looks.Reading.of("plugins", sockets), look.pod_resources, plugins=look.plugins)


def unhealthy_devices_of_many_plugins(count: int) -> looks.Look:
    names = [(f"example.com/r{number}", f"d{number}") for number in range(count)]
    entries: list[Entry] = [(f"uid-{device}", "main", resource, {0: (device,)}) for resource, device in names]
    plugins = [plugin(f"{device}.sock", (device,), unhealthy=(device,)) for _, device in names]
    return node(entries, {resource: (device,) for resource, device in names}, plugins=plugins)


def replicas_of_one_name_and_many_claims_of_that_name(count: int) -> looks.Look:
    claims = [
        looks.PreparedDeviceSeen(f"default/c{number}", "other.org", f"n{number}", "gpu-0") for number in range(count)
    ]
    look = node([], {GPU: tuple(f"gpu-0::{number}" for number in range(count))})
    return looks.Look(look.checkpoint, claims=looks.Reading.of("dra_manager_state", looks.ClaimsSeen(tuple(claims))))


def partitions_in_many_slices(count: int) -> looks.Look:
    uses = [{"counterSet": "memory", "counters": {"size": {"value": "1"}}}]
    shared = [{"name": "memory", "counters": {"size": {"value": "9"}}}]
    pool = {"name": "n", "generation": 1, "resourceSliceCount": count + 1}
    specs: list[Any] = [{"devices": [{"name": f"d{one}", "consumesCounters": uses}]} for one in range(count)]
    items = [
        {"spec": {"driver": GPU, "nodeName": "n", "pool": pool, **of}} for of in ({"sharedCounters": shared}, *specs)
    ]
    slices = published_by(slices_in(Value({"kind": "ResourceSliceList", "items": items}, "slices")), "n")
    assert len({id(one.counters) for one in slices}) == 1
    claims = tuple(looks.AllocatedClaimSeen(one.device, ((GPU, "n", one.device),)) for one in slices)
    return evolve(node([], {}), slices=looks.Reading.of("s", slices), allocations=looks.Reading.of("c", claims))


def asking(name: str, phase: str = "Running", **limits: int) -> looks.PodSeen:
    """Return a pod with a container that requests devices."""
    containers = (Container("main", {f"example.com/{resource}": size for resource, size in limits.items()}),)
    return looks.PodSeen(Pod(PodUid(f"uid-{name}"), name=name, containers=containers), phase, is_acknowledged=True)


def pods_without_a_source_of_their_devices(count: int) -> looks.Look:
    return with_pods(looks.Look(), *(asking(f"p{number}", gpu=1) for number in range(count)))


def pods_that_have_lost_their_devices_to_others(count: int) -> looks.Look:
    ids = tuple(f"gpu-{number}" for number in range(count))
    entries: list[Entry] = [(f"uid-h{number}", "main", GPU, {0: (device,)}) for number, device in enumerate(ids)]
    look = node(
        entries, {GPU: ids}, [looks.HoldingSeen("default", f"h{n}", "main", GPU, {ids[n]: ()}) for n in range(count)]
    )
    api = look.pod_resources.value
    assert api is not None
    look = with_api(look, evolve(api, pods=api.pods | {("default", f"p{number}") for number in range(count)}))
    pods = [asking(f"{kind}{number}", gpu=1) for kind in "hp" for number in range(count)]
    return with_pods(look, *pods)


def pods_that_wait_and_events_about_them(count: int) -> looks.Look:
    pods = [asking(f"p{number}", "Pending", gpu=1) for number in range(count)]
    events = tuple(
        looks.EventSeen("default", f"p{number}", "", "FailedCreatePodSandBox", "no network") for number in range(count)
    )
    return evolve(with_pods(looks.Look(), *pods), events=looks.Reading.of("events", events))


def drivers_with_one_device_each(count: int) -> looks.Look:
    slices = tuple(
        looks.PublishedDeviceSeen(f"d{number}.example.com", "p", "x", pool_problem=f"why {number}")
        for number in range(count)
    )
    return evolve(looks.Look(), slices=looks.Reading.of("s", slices))


def statuses_that_call_devices_of_claims_unhealthy(count: int) -> looks.Look:
    told = {("main", "claim:c"): {"d": "Unhealthy"}}
    pods = [evolve(asking(f"p{number}"), statuses=told) for number in range(count)]
    slices = tuple(looks.PublishedDeviceSeen("d.example.com", "p", f"d{number}") for number in range(count))
    return evolve(with_pods(node([], {}), *pods), slices=looks.Reading.of("s", slices))


def a_pod_with_many_claims_and_statuses(count: int) -> looks.Look:
    claims = [f"default/c{number}" for number in range(count)]
    prepared = tuple(looks.PreparedDeviceSeen(claim, "d.example.com", "p", claim[8:]) for claim in claims)
    file = looks.ClaimsSeen(prepared, pods=dict.fromkeys(claims, ("uid-p",)))
    told = {("main", f"claim:{claim[8:]}"): {f"d.example.com/p/{claim[8:]}": "Healthy"} for claim in claims}
    look = with_pods(looks.Look(), evolve(asking("p"), statuses=told))
    return evolve(look, claims=looks.Reading.of("dra_manager_state", file))


def claims_that_are_unhealthy(count: int) -> looks.Look:
    keys = [("d.example.com", "p", f"d{number}") for number in range(count)]
    prepared = tuple(looks.PreparedDeviceSeen(f"default/c{number}", *key) for number, key in enumerate(keys))
    file = looks.ClaimsSeen(prepared, pods={f"default/c{number}": (f"uid-p{number}",) for number in range(count)})
    look = with_pods(looks.Look(), *(asking(f"p{number}") for number in range(count)))
    look = evolve(look, health=looks.Reading.of("h", dict.fromkeys(keys, "Unhealthy")))
    return evolve(look, claims=looks.Reading.of("dra_manager_state", file))


NODES: tuple[Callable[[int], looks.Look], ...] = (
    one_device_of_many_pods,
    one_device_of_many_pods_that_are_not_known,
    one_device_of_many_init_containers,
    plugins_that_are_not_registered,
    resources_without_a_plugin,
    unhealthy_devices_of_many_plugins,
    replicas_of_one_name_and_many_claims_of_that_name,
    partitions_in_many_slices,
    pods_without_a_source_of_their_devices,
    pods_that_have_lost_their_devices_to_others,
    pods_that_wait_and_events_about_them,
    drivers_with_one_device_each,
    statuses_that_call_devices_of_claims_unhealthy,
    a_pod_with_many_claims_and_statuses,
    claims_that_are_unhealthy,
)


def work(call: Callable[[], object]) -> int:
    """Return the number of Python instructions that `call` executes."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:  # noqa: ANN401 - a trace function returns itself
        nonlocal count
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def whole_report(look: looks.Look) -> None:
    facts = Facts(look)
    report(facts, check(facts))


@pytest.mark.parametrize("node_of", NODES)
def test_four_times_as_many_problems_take_four_times_the_work(
    node_of: Callable[[int], looks.Look],
) -> None:
    few, many = node_of(FEW), node_of(MANY)
    assert work(lambda: whole_report(many)) < TIMES * work(lambda: whole_report(few))
