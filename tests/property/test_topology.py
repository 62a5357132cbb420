"""The laws of `domain/topology.py`.

"A hint says what could be allocated from a set of NUMA nodes, never what will be. None means that there is no
preference, and an empty tuple that no set of NUMA nodes is possible; every function here distinguishes the two."
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations

from attrs import frozen
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from devicecore.domain.capacity import pod_request
from devicecore.domain.device_set import DeviceSet
from devicecore.domain.events import DevicesReported, PluginLost, PluginRegistered
from devicecore.domain.inventory import DeviceReport
from devicecore.domain.model import (
    Container,
    Device,
    DeviceId,
    Health,
    NumaNode,
    PluginId,
    PluginOptions,
    Pod,
    ResourceName,
)
from devicecore.domain.node_state import NodeState
from devicecore.domain.selection import reusable_devices
from devicecore.domain.topology import (
    MAX_MASKS,
    Hints,
    NumaMask,
    Policy,
    Topology,
    TopologyHint,
    device_hints,
    generate_hints,
    merge,
)
from devicecore.testing.strategies import PODS, RESOURCES, admit, pods, provider_hints, topologies

GPU, RDMA = RESOURCES
PLUGIN = PluginId(GPU, "plugin.sock", 1)


# --- hints against brute force ---------------------------------------------------------------------------------------


@frozen
class Scene:
    """A machine, and a pod that needs hints there; some of its containers, and other pods, already have devices."""

    node: NodeState
    pod: Pod
    machine: tuple[NumaNode, ...]


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """Scenes in which each device is on up to three NUMA nodes, which the machine may lack, and is free or not."""
    machine = draw(topologies(max_nodes=6)).numa_nodes
    count = len(machine)
    nodes = st.integers(-1 if draw(st.booleans()) else 0, count).map(NumaNode)
    attachment = st.none() | st.lists(nodes, max_size=3).map(tuple)
    health = st.sampled_from((Health.HEALTHY,) * 4 + (Health.UNHEALTHY,))
    about = draw(st.lists(st.tuples(health, attachment), max_size=8))
    listed = tuple(Device(DeviceId(f"gpu-{number}"), *those) for number, those in enumerate(about))
    node = NodeState().apply(PluginRegistered(PLUGIN, PluginOptions()), now=0.0)
    node = node.apply(DevicesReported(PLUGIN, listed), now=0.0)
    pod, other = draw(pods(uids=PODS[:1], resources=[GPU])), draw(pods(uids=PODS[1:], resources=[GPU]))
    node = admit(node, other, confirmed=draw(st.booleans()))
    node = admit(node, pod, pod.in_start_order[: draw(st.integers(0, len(pod.in_start_order)))])
    match draw(st.sampled_from(("stays", "shrinks", "is lost"))):
        case "shrinks":
            node = node.apply(DevicesReported(PLUGIN, listed[1:]), now=1.0)
        case "is lost":
            node = node.apply(PluginLost(PLUGIN), now=1.0)
        case _:
            pass
    return Scene(node, pod, machine)


def brute_force(
    report: DeviceReport, available: set[DeviceId], reusable: set[DeviceId], request: int, machine: Sequence[NumaNode]
) -> list[TopologyHint]:
    """Return what `generateDeviceTopologyHints` would, by trying every subset of the nodes (kubelet.md 6.2)."""
    everything = report.devices.values()
    nodes = sorted({node for device in everything for node in device.numa_nodes if node in machine}) or list(machine)
    least = len(nodes)
    kept: list[tuple[NumaNode, ...]] = []
    for size in range(1, len(nodes) + 1):
        for mask in combinations(nodes, size):
            touching = {device.id for device in everything if set(device.numa_nodes) & set(mask)}
            if len(touching) >= request and size < least:
                least = size
            anchored = {device for device in reusable if device in report.devices}
            anchored = {device for device in anchored if report.devices[device].topology is not None}
            if anchored <= touching and len(anchored) + len(available & touching) >= request:
                kept.append(mask)
    return [TopologyHint(NumaMask.of(mask), len(mask) == least) for mask in kept]


def expected_hints(
    scene: Scene, requests: Mapping[str, int], held: set[DeviceId], reusable: set[DeviceId]
) -> dict[str, list[TopologyHint] | None]:
    """Return what `GetTopologyHints` would for the only resource (kubelet.md 6.1)."""
    request, ledger = requests.get(GPU), scene.node.ledger
    report = scene.node.inventory.current_report(GPU)
    if request is None or report is None:
        return {}
    if not any(device.numa_nodes for device in report.devices.values()):
        return {GPU: None}
    if held:
        return {GPU: brute_force(report, held, set(), request, scene.machine) if len(held) == request else []}
    available = set(report.healthy) - set(ledger.in_use(GPU))
    if len(available | reusable) < request:
        return {GPU: []}
    return {GPU: brute_force(report, available, reusable, request, scene.machine)}


def as_lists(hints: Hints) -> dict[str, list[TopologyHint] | None]:
    return {resource: None if listed is None else list(listed) for resource, listed in hints.items()}


@given(scenes())
def test_hints_for_a_container_equal_brute_force(scene: Scene) -> None:
    """For settled, changed and new containers, the hints are those of trying every set of nodes, in the same order."""
    inventory, ledger = scene.node.inventory, scene.node.ledger
    changed = [Container(one.name, {GPU: one.limits.get(GPU, 0) + 1}) for one in scene.pod.in_start_order]
    for container in (*scene.pod.in_start_order, *changed):
        key = scene.pod.key(container)
        allocation = ledger.allocation(key, GPU)
        held = set(allocation.devices) if allocation else set()
        reusable = set(reusable_devices(scene.pod, key, GPU, ledger))
        expected = expected_hints(scene, container.limits, held, reusable)
        hints = device_hints(scene.pod, container, inventory, ledger, scene.machine)
        assert as_lists(hints) == expected
        for listed in hints.values():
            event("no preference" if listed is None else "impossible" if not listed else "hints")


@given(scenes())
def test_hints_for_a_pod_equal_brute_force(scene: Scene) -> None:
    """For the pod as a whole, its peak is requested. Devices of all its containers count, and none is reused."""
    inventory, ledger = scene.node.inventory, scene.node.ledger
    held = {device for allocation in ledger.of_pod(scene.pod.uid) for device in allocation.devices}
    expected = expected_hints(scene, pod_request(scene.pod), held, set())
    assert as_lists(device_hints(scene.pod, None, inventory, ledger, scene.machine)) == expected


@given(scenes())
def test_a_hint_says_what_could_be_allocated(scene: Scene) -> None:
    """The NUMA nodes of a hint for a container without devices have enough free or reusable devices."""
    inventory, ledger = scene.node.inventory, scene.node.ledger
    report = inventory.current_report(GPU)
    for container in scene.pod.in_start_order:
        key = scene.pod.key(container)
        if report is None or ledger.allocation(key, GPU) is not None:
            continue
        usable = (report.healthy - ledger.in_use(GPU)) | reusable_devices(scene.pod, key, GPU, ledger)
        hints = device_hints(scene.pod, container, inventory, ledger, scene.machine).get(GPU)
        for hint in hints or ():
            assert hint.mask is not None
            assert set(hint.mask) <= set(scene.machine)
            assert len(usable & report.touching(hint.mask)) >= container.limits[GPU]


# --- many nodes ------------------------------------------------------------------------------------------------------

BIG_MACHINE = tuple(map(NumaNode, range(36)))


@settings(max_examples=3)
@given(st.lists(st.integers(0, 3), min_size=36, max_size=36), st.integers(1, 40), st.sets(st.integers(0, 35)))
@example([1] * 36, 36, set())
@example([1] * 36, 18, {0, 35})
def test_thirty_six_nodes_are_bounded(on_node: list[int], size: int, taken: set[int]) -> None:
    """With 36 NUMA nodes, the number of hints is bounded, and each hint's nodes have enough available devices.

    The set of all nodes with devices is among the hints if and only if enough devices are available.
    """
    devices = [
        Device(DeviceId(f"gpu-{node}-{number}"), topology=(NumaNode(node),))
        for node, count in enumerate(on_node)
        for number in range(count)
    ]
    report = DeviceReport.of(devices)
    available = DeviceSet.of(device.id for device in devices if device.numa_nodes[0] not in taken)
    hints = generate_hints(report, available, DeviceSet(), size, BIG_MACHINE)
    assert len(hints) <= MAX_MASKS + 1
    fewest = _fewest(on_node, size)
    for hint in hints:
        assert hint.mask is not None
        assert len(available & report.touching(hint.mask)) >= size
        assert hint.preferred == (len(hint.mask) == fewest)
    carrying = NumaMask.of(report.by_numa_node or BIG_MACHINE)
    assert any(hint.mask == carrying for hint in hints) == (len(available) >= size)
    assert len({hint.mask for hint in hints}) == len(hints)


def _fewest(on_node: list[int], size: int) -> int:
    """Return the smallest number of nodes that together have `size` devices, each of which is on one node.

    If there are too few devices, the result is the number of nodes with devices, or of all nodes if there are none.
    """
    counts = sorted((count for count in on_node if count), reverse=True)
    sums = (number for number in range(1, len(counts) + 1) if sum(counts[:number]) >= size)
    return next(sums, len(counts) or len(on_node))


# --- merging against the kubelet -------------------------------------------------------------------------------------


def kubelet_merge(topology: Topology, providers: Sequence[Hints]) -> tuple[TopologyHint, bool]:
    """Merge hints as the topology manager does: filter, compare permutation by permutation, judge (kubelet.md 6.3)."""
    if topology.policy is Policy.NONE:
        return TopologyHint(None, preferred=True), True
    everywhere = NumaMask.of(topology.numa_nodes)
    filtered = list(_filter_providers_hints(providers))
    if topology.policy is Policy.SINGLE_NUMA_NODE:
        filtered = [
            [hint for hint in hints if hint.preferred and (hint.mask is None or len(hint.mask) == 1)]
            for hints in filtered
        ]
    best_non_preferred_affinity_count = 0  # maxOfMinAffinityCounts
    for hints in filtered:
        counts = [len(hint.mask) for hint in hints if hint.mask is not None]
        best_non_preferred_affinity_count = max(best_non_preferred_affinity_count, min(counts, default=0))
    best: TopologyHint | None = None
    for permutation in _permutations(filtered):
        candidate = _merge_permutation(everywhere, permutation)
        best = _compare(best, candidate, best_non_preferred_affinity_count, topology)
    best = best or TopologyHint(everywhere, preferred=False)
    if topology.policy is Policy.SINGLE_NUMA_NODE and best.mask == everywhere:
        best = TopologyHint(None, best.preferred)
    return best, topology.policy is Policy.BEST_EFFORT or best.preferred


def _filter_providers_hints(providers: Sequence[Hints]) -> Iterator[list[TopologyHint]]:
    for provider in providers:
        if not provider:
            yield [TopologyHint(None, preferred=True)]
        for hints in provider.values():
            if hints is None:
                yield [TopologyHint(None, preferred=True)]
            elif len(hints) == 0:
                yield [TopologyHint(None, preferred=False)]
            else:
                yield list(hints)


def _permutations(filtered: Sequence[list[TopologyHint]]) -> Iterator[list[TopologyHint]]:
    if not filtered:
        yield []
        return
    for hint in filtered[0]:
        for rest in _permutations(filtered[1:]):
            yield [hint, *rest]


def _merge_permutation(everywhere: NumaMask, permutation: list[TopologyHint]) -> TopologyHint:
    preferred, merged = True, everywhere
    affinities: list[NumaMask] = []
    for hint in permutation:
        if hint.mask is not None:
            affinities.append(hint.mask)
            merged = merged & hint.mask
            if hint.mask != affinities[0]:
                preferred = False
        if not hint.preferred:
            preferred = False
    return TopologyHint(merged, preferred)


def _compare(current: TopologyHint | None, candidate: TopologyHint, fitting: int, of: Topology) -> TopologyHint | None:  # noqa: C901, PLR0911 - the kubelet's cases, one by one
    assert candidate.mask is not None
    if len(candidate.mask) == 0:
        return current
    if current is None:
        return candidate
    assert current.mask is not None
    if not current.preferred and candidate.preferred:
        return candidate
    if current.preferred and not candidate.preferred:
        return current
    if current.preferred and candidate.preferred:
        return _fitter(current, candidate, of)
    if len(current.mask) > fitting:  # case 1
        return _fitter(current, candidate, of)
    if len(current.mask) == fitting:  # case 2
        return current if len(candidate.mask) != fitting else _fitter(current, candidate, of)
    if len(candidate.mask) > fitting:  # case 3a
        return current
    if len(candidate.mask) == fitting:  # case 3b
        return candidate
    if len(candidate.mask) > len(current.mask):  # case 3ca
        return candidate
    if len(candidate.mask) < len(current.mask):  # case 3cb
        return current
    return _fitter(current, candidate, of)  # case 3cc


def _fitter(current: TopologyHint, candidate: TopologyHint, of: Topology) -> TopologyHint:
    """Return the narrower hint or, if both are equally wide, the one with closer nodes (`CompareNUMAAffinityMasks`)."""
    return min(current, candidate, key=lambda hint: _width(hint, of))


def _width(hint: TopologyHint, of: Topology) -> tuple[int, float, int]:
    """Return a sort key: the number of nodes, their average distance, and the mask (`IsNarrowerThan`, `Closest`)."""
    assert hint.mask is not None
    place = {node: number for number, node in enumerate(of.numa_nodes)}
    between = [
        of.distances[place[here]][place[there]]
        for here in hint.mask
        for there in hint.mask
        if of.distances and of.policy is not Policy.SINGLE_NUMA_NODE
    ]
    return len(hint.mask), sum(between) / max(1, len(between)), hint.mask.bits


providers_hints = st.lists(provider_hints(nodes=4), max_size=3)


def hinted(*masks: set[int], preferred: bool = False) -> Hints:
    """Return a provider's hints for one resource."""
    return {"r": tuple(TopologyHint(NumaMask.of(map(NumaNode, mask)), preferred) for mask in masks)}


THREE_NODES = Topology(map(NumaNode, (0, 1, 2)), Policy.BEST_EFFORT)


@given(topologies(max_nodes=4), providers_hints)
@example(THREE_NODES, [hinted({1}, preferred=True), hinted({2}, preferred=True)])
@example(THREE_NODES, [hinted({0})])
def test_merging_equals_the_kubelets_fold(topology: Topology, providers: list[Hints]) -> None:
    """Searching for the best by rank finds what the kubelet finds by comparing pair after pair."""
    merged, admitted = merge(topology, providers)
    assert (merged, admitted) == kubelet_merge(topology, providers)
    event(
        f"{topology.policy.value}: {'admitted' if admitted else 'refused'}, {'preferred' if merged.preferred else ''}"
    )


@given(topologies(max_nodes=4), providers_hints, st.data())
def test_the_order_of_providers_and_hints_does_not_matter(
    topology: Topology, providers: list[dict[str, Sequence[TopologyHint] | None]], data: st.DataObject
) -> None:
    """Neither the order of the providers nor the order of their hints has an effect."""
    shuffled = [
        {name: hints and tuple(data.draw(st.permutations(hints))) for name, hints in provider.items()}
        for provider in data.draw(st.permutations(providers))
    ]
    assert merge(topology, shuffled) == merge(topology, providers)


def test_no_mask_is_left_out_of_a_merge_with_few_pairs() -> None:
    """Of many masks, the only one that intersects the other provider's is neither among the best nor the widest."""
    topology = Topology(policy=Policy.BEST_EFFORT, numa_nodes=tuple(NumaNode(node) for node in range(10)))
    many = [NumaMask(bits) for bits in range(3, 256) if bits.bit_count() > 1]
    one = NumaMask(1 << 9 | 0b111110)
    providers: list[Hints] = [
        {GPU: [TopologyHint(mask, preferred=False) for mask in (*many, one)]},
        {RDMA: [TopologyHint(NumaMask(1 << 9), preferred=False)]},
    ]
    assert merge(topology, providers)[0] == TopologyHint(NumaMask(1 << 9), preferred=False)


def test_the_order_of_hints_does_not_matter_where_only_the_first_are_read() -> None:
    """Of several widest masks, always the same one is chosen."""

    def hints(*masks: Iterable[int]) -> Hints:
        return {GPU: [TopologyHint(NumaMask.of(map(NumaNode, mask)), preferred=False) for mask in masks]}

    topology = Topology(tuple(map(NumaNode, range(56))), Policy.BEST_EFFORT)
    many = hints(*combinations(range(32, 56), 2), range(24, 32))
    few = [*combinations(range(24), 2), range(24, 28), range(28, 32)]
    assert merge(topology, [hints(*few), many]) == merge(topology, [hints(*reversed(few)), many])


@given(topologies(max_nodes=4), providers_hints)
def test_no_preference_changes_nothing(topology: Topology, providers: list[Hints]) -> None:
    """A provider without hints or without a preference has no effect.

    After a provider with an empty list, the result is not preferred, unless the policy is `none`.
    """
    merged = merge(topology, providers)
    assert merge(topology, [*providers, {}]) == merged
    assert merge(topology, [*providers, {"other": None}]) == merged
    impossible, admitted = merge(topology, [*providers, {"other": ()}])
    assert topology.policy is Policy.NONE or not impossible.preferred
    assert admitted == (topology.policy in (Policy.NONE, Policy.BEST_EFFORT))


@given(topologies(max_nodes=6), providers_hints)
def test_a_chosen_mask_is_part_of_the_machine(topology: Topology, providers: list[Hints]) -> None:
    """The result has only NUMA nodes of the machine. Only `none` and `single-numa-node` may have no mask."""
    merged, _ = merge(topology, providers)
    if merged.mask is None:
        assert topology.policy in (Policy.NONE, Policy.SINGLE_NUMA_NODE)
    else:
        assert set() < set(merged.mask) <= set(topology.numa_nodes)


@given(st.sets(st.integers(0, 70)), st.sets(st.integers(0, 70)))
def test_a_mask_is_a_set_of_nodes(one: set[int], other: set[int]) -> None:
    """Its size, members and intersection are those of the set; nodes below 0 are none."""
    mask, also = NumaMask.of(map(NumaNode, one)), NumaMask.of(map(NumaNode, other))
    assert list(mask) == sorted(one)
    assert len(mask) == len(one)
    assert set(mask & also) == one & other
    assert all((node in mask) == (node in one) for node in one | other | {-1})
    assert NumaMask.of(map(NumaNode, one | {-1})) == mask


def test_an_unknown_resource_has_no_hints() -> None:
    """The result contains only resources that device plugins serve, and there are none here."""
    pod = Pod(PODS[0], containers=(Container("app", {"cpu": 1, RDMA: 1, ResourceName("other.com/x"): 1}),))
    assert device_hints(pod, pod.containers[0], NodeState().inventory, NodeState().ledger, BIG_MACHINE) == {}
