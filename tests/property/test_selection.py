"""The laws of `domain/selection.py`.

"These functions call no port. A function that needs the plugin's preference returns the question to ask. Whatever the
plugin answers, the container gets exactly as many devices as it requests, each of them free or reusable inside its pod.
Ties are broken by the natural order of the ids."
"""

from collections.abc import Iterable, Sequence

from attrs import evolve, frozen
from hypothesis import event, example, given
from hypothesis import strategies as st

from devicecore.domain.checks import received
from devicecore.domain.device_set import DeviceSet, natural_key
from devicecore.domain.errors import (
    AdmissionError,
    ChangedRequestError,
    DevicesNoLongerHealthyError,
    NoHealthyDevicesError,
    NotEnoughDevicesError,
    UnregisteredDeviceError,
)
from devicecore.domain.events import DevicesReported, PluginLost, PluginRegistered
from devicecore.domain.inventory import DeviceReport, Inventory
from devicecore.domain.ledger import Allocation, Ledger
from devicecore.domain.model import (
    Container,
    ContainerKey,
    Device,
    DeviceId,
    Health,
    NumaNode,
    PluginId,
    PluginOptions,
    Pod,
    PodUid,
    Receipt,
)
from devicecore.domain.node_state import NodeState
from devicecore.domain.selection import AskPlugin, Decision, ResourceRequest
from devicecore.testing.strategies import PODS, RESOURCES, admit, device_ids, numa_nodes, pods

GPU = RESOURCES[0]
PLUGIN = PluginId(GPU, "plugin.sock", 1)
NEWCOMER, OTHER, _ = PODS

answers = st.lists(device_ids(), max_size=6)


@frozen
class Scene:
    """A container that requests devices on a node with other pods. Earlier containers in its pod may hold devices."""

    node: NodeState
    pod: Pod
    request: ResourceRequest

    def decide(self) -> Decision | AdmissionError:
        try:
            return self.node.devices_to_allocate(self.pod, self.request)
        except AdmissionError as refusal:
            return refusal

    def choose(self, answer: Iterable[DeviceId] = ()) -> DeviceSet | AdmissionError:
        decision = self.decide()
        return decision.answer(answer) if isinstance(decision, AskPlugin) else decision

    @property
    def reusable(self) -> set[DeviceId]:
        """The devices that the container may reuse, like the kubelet's `devicesToReuse` (kubelet.md 5.2)."""
        reuse: set[DeviceId] = set()
        held = self.node.ledger.held_by(self.pod.uid, GPU)
        for container in self.pod.in_start_order:
            if container.name == self.request.key.container:
                break
            if container in self.pod.init_containers and not container.restartable:
                reuse |= set(held.get(container.name, ()))
            else:
                reuse -= set(held.get(container.name, ()))
        return reuse

    @property
    def free(self) -> set[DeviceId]:
        report = self.node.inventory.current_report(GPU)
        return set(report.healthy - self.node.ledger.in_use(GPU)) if report else set()

    @property
    def has_them_already(self) -> bool:
        held = self.node.ledger.allocation(self.request.key, GPU)
        return held is not None and len(held.devices) == self.request.size


health = st.sampled_from((Health.HEALTHY,) * 5 + (Health.UNHEALTHY,))
attachment = st.none() | st.lists(numa_nodes(), max_size=2).map(tuple)


@st.composite
def scenes(draw: st.DrawFn, *, lively: bool = False) -> Scene:
    """Scenes in which devices are free, unhealthy, held by another pod, or held or reusable by the container's pod.

    In `lively` scenes, the plugin is connected and offers preferences, and the container requests devices but has none.
    """
    listed = tuple(
        Device(DeviceId(f"gpu-{number}"), *about)
        for number, about in enumerate(draw(st.lists(st.tuples(health, attachment), min_size=1, max_size=10)))
    )
    willing = lively or draw(st.booleans())
    options = PluginOptions(get_preferred_allocation_available=willing)
    node = NodeState().apply(PluginRegistered(PLUGIN, options), now=0.0)
    node = node.apply(DevicesReported(PLUGIN, listed), now=0.0)
    other = Pod(OTHER, containers=(Container("app", {GPU: draw(st.integers(0, 2))}),))
    node = admit(node, other, confirmed=draw(st.booleans()))
    pod = draw(pods(uids=[NEWCOMER], resources=[GPU]))
    place = draw(st.integers(0, len(pod.in_start_order) - 1))
    container = pod.in_start_order[place]
    node = admit(node, pod, pod.in_start_order[: place + (not lively and draw(st.booleans()))])
    size, affinity = draw(st.integers(int(lively), 4)), draw(st.none() | st.sets(numa_nodes(), min_size=1))
    if not lively:
        size = draw(st.sampled_from((size, container.limits.get(GPU, 0))))
        match draw(st.sampled_from(("stays", "changes", "changes", "is lost"))):
            case "changes":
                ill = draw(st.integers(0, len(listed)))  # the first devices are those that pods hold
                changed = (*(evolve(device, health=Health.UNHEALTHY) for device in listed[:ill]), *listed[ill:])
                node = node.apply(DevicesReported(PLUGIN, changed[draw(st.integers(0, 1)) :]), now=1.0)
            case "is lost":
                node = node.apply(PluginLost(PLUGIN), now=1.0)
            case _:
                pass
    running = not lively and draw(st.integers(0, 9)) == 9
    return Scene(node, pod, ResourceRequest(pod.key(container), GPU, size, affinity, running))


def questions() -> st.SearchStrategy[tuple[Scene, AskPlugin]]:
    """Scenes in which the plugin must be asked for its preference, with the question."""

    def asked(scene: Scene) -> list[tuple[Scene, AskPlugin]]:
        decision = scene.decide()
        return [(scene, decision)] if isinstance(decision, AskPlugin) else []

    return scenes(lively=True).map(asked).filter(bool).map(lambda found: found[0])


def kubelet(  # noqa: C901, PLR0911 - this is one function of the kubelet's, in its order
    scene: Scene, answer: Sequence[DeviceId]
) -> tuple[set[DeviceId], bool] | type[AdmissionError]:
    """Return what `devicesToAllocate` takes, by the same steps (kubelet.md 5.4), and whether it asks the plugin.

    Where the kubelet's choice depends on the order of a Go map, ids are in natural order, and preferred ids in the
    plugin's order.
    """
    required, resource = scene.request.size, scene.node.inventory.resources.get(GPU)
    held = scene.node.ledger.allocation(scene.request.key, GPU)
    needed = required
    if held is not None:
        needed -= len(held.devices)
        if needed != 0:
            return ChangedRequestError
    if scene.request.already_running:
        return set(), False
    if resource is None or resource.report is None:
        return UnregisteredDeviceError
    report = resource.report
    if not set(report.healthy):
        return NoHealthyDevicesError
    if held is not None and not set(held.devices) <= set(report.healthy):
        return DevicesNoLongerHealthyError
    if needed == 0:
        return set(), False
    taken: set[DeviceId] = set()

    def take(devices: Iterable[DeviceId]) -> bool:
        for device in devices:
            if device not in taken and len(taken) < required:
                taken.add(device)
        return len(taken) == required

    def natural(devices: Iterable[DeviceId]) -> list[DeviceId]:
        return sorted(devices, key=natural_key)

    if take(natural(scene.reusable)):
        return taken, False
    available = set(report.healthy) - set(scene.node.ledger.in_use(GPU))
    if len(available) < required - len(taken):
        return NotEnoughDevicesError
    aligned, unaligned, no_affinity = set(), set(), set(available)
    mask = scene.request.affinity
    if mask is not None and any(device.numa_nodes for device in report.devices.values()):
        attached = {device for device in available if report.devices[device].numa_nodes}
        no_affinity = available - attached
        aligned = {device for device in attached if set(report.devices[device].numa_nodes) & set(mask)}
        unaligned = attached - aligned
    plugin = resource.plugin
    asks = plugin is not None and plugin.options.get_preferred_allocation_available
    preferred = list(answer) if asks else []
    if required - len(taken) < len(aligned):
        take(device for device in preferred if device in aligned)
        take(natural(aligned))
        return taken, asks
    if aligned and take(natural(aligned)):
        return taken, False
    take(device for device in preferred if device in available)
    take(natural(unaligned))
    take(natural(no_affinity))
    return taken, asks


@given(scenes() | scenes(lively=True), answers)
def test_the_choice_is_that_of_the_kubelet(scene: Scene, answer: list[DeviceId]) -> None:
    """The refusals, their order and the devices are the same, and the plugin is asked in the same cases."""
    expected = kubelet(scene, answer)
    decision = scene.decide()
    event(type(decision).__name__)
    if isinstance(expected, type):
        assert type(decision) is expected
        return
    devices, asked = expected
    chosen = scene.choose(answer)
    assert isinstance(chosen, DeviceSet), chosen
    assert chosen == devices
    assert isinstance(decision, AskPlugin) == asked


@given(scenes() | scenes(lively=True), answers)
def test_a_container_gets_the_requested_count_for_any_answer(scene: Scene, answer: list[DeviceId]) -> None:
    """An answer with too few, too many, foreign, taken or repeated ids changes neither the count nor the source."""
    decision = scene.choose(answer)
    if not isinstance(decision, DeviceSet):
        return
    gets_none = scene.request.already_running or scene.has_them_already
    assert len(decision) == (0 if gets_none else scene.request.size)
    assert set(decision) <= scene.free | scene.reusable


@given(scenes() | scenes(lively=True), answers)
def test_what_is_chosen_can_be_reserved(scene: Scene, answer: list[DeviceId]) -> None:
    """The ledger accepts every choice."""
    decision = scene.choose(answer)
    if isinstance(decision, DeviceSet) and decision:
        reserved = scene.node.reserve(scene.pod, scene.request, decision)
        assert decision <= reserved.ledger.in_use(GPU)


def test_a_device_with_two_owners_is_not_reused() -> None:
    """If a file gave a device to two pods, other devices are chosen."""
    pod = Pod(NEWCOMER, init_containers=(Container("init", {GPU: 1}),), containers=(Container("app", {GPU: 1}),))
    node = NodeState(ledger=Ledger.of(_has(uid, "init", "gpu-0") for uid in PODS))
    node = node.apply(PluginRegistered(PLUGIN, PluginOptions()), now=0.0)
    node = node.apply(DevicesReported(PLUGIN, (Device(DeviceId("gpu-0")), Device(DeviceId("gpu-1")))), now=0.0)
    request = ResourceRequest(pod.key(pod.container("app")), GPU, 1)
    chosen = DeviceSet.of([DeviceId("gpu-1")])
    assert Scene(node, pod, request).choose() == chosen
    node.reserve(pod, request, chosen)


def _has(pod: PodUid, container: str, device: str) -> Allocation:
    return Allocation(ContainerKey(pod, container), GPU, {DeviceId(device): ()}, Receipt(b""))


@given(questions())
def test_a_question_is_fair(asked: tuple[Scene, AskPlugin]) -> None:
    """The plugin is asked only if it can answer, if there is a choice, and with enough candidates."""
    scene, question = asked
    plugin = scene.node.inventory.resources[GPU].plugin
    assert plugin is not None
    assert plugin.options.get_preferred_allocation_available
    assert question.size == scene.request.size
    assert question.must_include < question.candidates
    assert len(question.must_include) < question.size <= len(question.candidates)
    assert set(question.candidates) <= scene.free | scene.reusable


@given(questions(), st.data())
def test_a_good_answer_is_taken_as_it_is(asked: tuple[Scene, AskPlugin], data: st.DataObject) -> None:
    """If the plugin names the right number of candidates, with or without the required ones, its answer counts."""
    _, question = asked
    missing = question.size - len(question.must_include)
    chosen = data.draw(st.permutations(list(question.candidates - question.must_include)))[:missing]
    expected = question.must_include | DeviceSet.of(chosen)
    assert question.answer((*question.must_include, *chosen)) == expected
    assert question.answer(chosen) == expected


@given(questions(), answers, st.data())
def test_a_bad_answer_is_repaired(asked: tuple[Scene, AskPlugin], answer: list[DeviceId], data: st.DataObject) -> None:
    """For any answer, the required devices are chosen first, and then the first usable devices of the answer."""
    _, question = asked
    answer = data.draw(st.permutations([*answer, *question.candidates]))[: data.draw(st.integers(0, 12))]
    devices = question.answer(answer)
    assert len(devices) == question.size
    assert question.must_include <= devices <= question.candidates
    choosable = [device for device in dict.fromkeys(answer) if device in question.candidates - question.must_include]
    assert set(choosable[: question.size - len(question.must_include)]) <= set(devices)


@given(scenes() | scenes(lively=True), answers)
def test_aligned_devices_come_first(scene: Scene, answer: list[DeviceId]) -> None:
    """No device of other NUMA nodes is chosen while the affinity's nodes have a free one."""
    decision, report = scene.choose(answer), scene.node.inventory.current_report(GPU)
    if isinstance(decision, DeviceSet) and scene.request.affinity is not None and report is not None:
        wanted = set(scene.request.affinity)
        aligned = {device for device in scene.free if set(report.devices[device].numa_nodes) & wanted}
        chosen = set(decision) - scene.reusable
        assert chosen <= aligned or aligned <= chosen


@given(scenes() | scenes(lively=True), answers, st.data())
def test_permuting_the_input_changes_no_output(scene: Scene, answer: list[DeviceId], data: st.DataObject) -> None:
    """The order of the plugin's list, of the ledger's entries and of the requested NUMA nodes has no effect."""
    resource = scene.node.inventory.resources[GPU]
    assert resource.report is not None
    listed = data.draw(st.permutations(list(resource.report.devices.values())))
    report = DeviceReport.of(listed) if resource.plugins else DeviceReport.of(listed).all_unhealthy()
    shuffled = Ledger.of(data.draw(st.permutations(list(scene.node.ledger))))
    for reservation in scene.node.ledger.reservations:
        shuffled = shuffled.reserve(reservation.key, GPU, reservation.devices)
    affinity = scene.request.affinity and tuple(data.draw(st.permutations(sorted(scene.request.affinity))))
    other = Scene(
        NodeState(Inventory({GPU: evolve(resource, report=report)}), shuffled),
        scene.pod,
        evolve(scene.request, affinity=affinity),
    )
    assert comparable(other.choose(answer)) == comparable(scene.choose(answer))


def comparable(outcome: DeviceSet | AdmissionError) -> object:
    """Return the outcome as a value that can be compared, unlike errors."""
    return outcome if isinstance(outcome, DeviceSet) else (type(outcome), str(outcome))


@given(scenes() | scenes(lively=True), answers)
def test_the_same_question_has_the_same_answer(scene: Scene, answer: list[DeviceId]) -> None:
    """A second decision from the same state gives the same result."""
    assert comparable(scene.choose(answer)) == comparable(scene.choose(answer))


@given(scenes() | scenes(lively=True), answers, st.none() | st.lists(numa_nodes(), max_size=2, unique=True).map(tuple))
def test_more_available_devices_never_turn_a_yes_into_a_no(
    scene: Scene, answer: list[DeviceId], topology: tuple[NumaNode, ...] | None
) -> None:
    """After one more free healthy device is listed, a request that succeeded still succeeds."""
    report = scene.node.inventory.current_report(GPU)
    assert report is not None
    more = (*report.devices.values(), Device(DeviceId("more"), topology=topology))
    richer = scene.node.apply(DevicesReported(PLUGIN, more), now=0.0)
    if isinstance(scene.choose(answer), DeviceSet):
        assert isinstance(Scene(richer, scene.pod, scene.request).choose(answer), DeviceSet)


@given(st.lists(device_ids(), min_size=4, max_size=4, unique=True), st.permutations(range(4)))
@example([DeviceId(f"gpu-{n}") for n in (2, 10, 1, 3)], [0, 1, 2, 3])
def test_among_equals_the_natural_order_decides(ids: list[DeviceId], order: list[int]) -> None:
    """A request for two of four devices gets the first two in natural order, for any order of the list."""
    node = NodeState().apply(PluginRegistered(PLUGIN, PluginOptions()), now=0.0)
    listed = tuple(received(Device, ids[place], Health.HEALTHY, None) for place in order)
    node = node.apply(DevicesReported(PLUGIN, listed), now=0.0)
    pod = Pod(NEWCOMER, containers=(Container("app", {GPU: 2}),))
    decision = Scene(node, pod, ResourceRequest(pod.key(pod.container("app")), GPU, 2)).choose()
    assert decision == DeviceSet.of(sorted(ids, key=natural_key)[:2])
