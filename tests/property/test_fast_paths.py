"""Caches give the same results as the plain definitions, for everything that Hypothesis generates."""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from itertools import chain, combinations, product
from operator import and_, or_

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from devicecore.domain import checkpoint
from devicecore.domain.checkpoint import decoding as checkpoint_decoding
from devicecore.domain.checkpoint import writer as checkpoint_writer
from devicecore.domain.checkpoint.fnv import OFFSET, HashedText, before, fnv1a_32_pure
from devicecore.domain.checkpoint.plain_file import read_plain
from devicecore.domain.device_list import DeviceList
from devicecore.domain.device_set import DeviceIndex, DeviceSet, in_natural_order, natural_key
from devicecore.domain.events import DevicesReported, PluginRegistered
from devicecore.domain.inventory import DeviceReport
from devicecore.domain.model import (
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
    resource_name,
)
from devicecore.domain.node_state import NodeState
from devicecore.domain.selection import ResourceRequest
from devicecore.domain.topology import NumaMask, Policy, Topology, TopologyHint, generate_hints, merge
from devicecore.testing.strategies import device_ids

states = st.integers(0, 2**32 - 1)
STORE = resource_name("example.com/gpu"), resource_name("example.com/nic")


# --- hashing ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=20), max_size=4), st.lists(states, max_size=4))
def test_a_hashed_text_has_the_hash_of_its_text(parts: list[bytes], starts: list[int]) -> None:
    hashed = HashedText(tuple(parts))
    for start in (*starts, *starts, OFFSET, OFFSET ^ 0xABCD00):
        assert hashed.hash(start) == fnv1a_32_pure(b"".join(parts), start)


@given(st.binary(max_size=9), states)
def test_hashing_can_be_undone(text: bytes, state: int) -> None:
    assert checkpoint.fnv1a_32(text, before(text, state)) == state


# --- order and sets ---------------------------------------------------------------------------------------------------

numbered = st.builds(
    lambda start, numbers: [DeviceId(f"{start}{number}") for number in numbers],
    st.sampled_from(["", "gpu-", "gpu-1", "gpu-0", "é", "a1b"]),
    st.lists(st.integers(0, 1200).map(str) | st.sampled_from(["007", "00", "0", "٣", "²", "", "x", "9" * 1001])),
)


@given(st.lists(device_ids()) | numbered)
@example([DeviceId("1"), DeviceId("01")])
def test_natural_order_is_that_of_the_keys(ids: list[DeviceId]) -> None:
    assert in_natural_order(ids) == sorted(ids, key=natural_key)


@given(st.integers(0, 60), st.data())
def test_many_members_are_as_good_as_few(count: int, data: st.DataObject) -> None:
    """Large sets are built and iterated differently from small ones."""
    index = DeviceIndex.of([DeviceId(f"d{number}") for number in range(count)])
    chosen = data.draw(st.lists(st.sampled_from(index.ids)) if count else st.just([]))
    devices = index.select(chosen)
    assert list(devices) == [device for device in index.ids if device in set(chosen)]
    assert index.select(index.ids) == index.all
    assert list(index.all) == list(index.ids)


# --- the checkpoint ---------------------------------------------------------------------------------------------------


class SavedAgainAndAgain(RuleBasedStateMachine):
    """A node whose pods arrive, get more devices and leave, and whose plugins sometimes report other devices."""

    def __init__(self) -> None:
        super().__init__()
        self.node = NodeState()
        self.writer = checkpoint.CheckpointWriter()
        self.generation = 0

    @rule(resource=st.sampled_from(STORE), ids=st.lists(st.integers(0, 30), max_size=12), ill=st.booleans())
    def report(self, resource: str, ids: list[int], *, ill: bool) -> None:
        name = resource_name(resource)
        self.generation += 1
        plugin = PluginId(name, f"{self.generation}.sock", self.generation)
        devices = [Device(DeviceId(f"<{number}>"), Health.HEALTHY, (NumaNode(number % 3),)) for number in ids]
        if ill and devices:
            devices[0] = Device(devices[0].id, Health.UNHEALTHY)
        self.node = self.node.apply(PluginRegistered(plugin, PluginOptions()), 0.0)
        self.node = self.node.apply(DevicesReported(plugin, tuple(devices)), 0.0)

    @rule(pod=st.integers(0, 9), container=st.sampled_from("abc"), resource=st.sampled_from(STORE), answer=st.binary())
    def admit(self, pod: int, container: str, resource: str, answer: bytes) -> None:
        name = resource_name(resource)
        key = ContainerKey(PodUid(f"pod-{pod}"), container)
        report = self.node.inventory.current_report(name)
        free = report.healthy - self.node.ledger.in_use(name) if report else DeviceSet()
        if free and self.node.ledger.allocation(key, name) is None:
            request = ResourceRequest(key, name, 1)
            self.node = self.node.reserve(Pod(key.pod), request, free.take(1)).confirm(key, name, Receipt(answer))

    @rule(pods=st.sets(st.integers(0, 9), max_size=4))
    def evict(self, pods: set[int]) -> None:
        ledger = self.node.ledger.evict([PodUid(f"pod-{pod}") for pod in pods])
        self.node = NodeState(self.node.inventory, ledger)

    @rule()
    def restart(self) -> None:
        self.node = checkpoint.restore(checkpoint.decode(checkpoint.CheckpointWriter().file(self.node)).verified(), 0.0)

    @invariant()
    def the_file_is_that_of_the_whole_state(self) -> None:
        assert self.writer.file(self.node) == checkpoint.encode(checkpoint.checkpoint_of(self.node))


def test_a_node_that_is_saved_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block has only three pods, so that there are several blocks."""
    monkeypatch.setattr(checkpoint_writer, "_FEW_PODS", 3)
    monkeypatch.setattr(checkpoint_writer, "_room", lambda _: 3)
    run_state_machine_as_test(SavedAgainAndAgain)


plain_text = st.text(st.characters(min_codepoint=32, max_codepoint=126, exclude_characters='"\\<>&'), max_size=4)
plain_lists = st.lists(plain_text, min_size=1, max_size=3).map(tuple)
plain_data = st.builds(
    checkpoint.CheckpointData,
    st.lists(
        st.builds(
            checkpoint.PodDevicesEntry,
            plain_text,
            plain_text,
            plain_text,
            st.dictionaries(st.integers(-1, 11), plain_lists, min_size=1, max_size=3),
            st.binary(max_size=5),
        ),
        min_size=1,
        max_size=4,
    ).map(tuple),
    st.dictionaries(plain_text, plain_lists, max_size=3),
)


LOADS = (checkpoint.plain_file._loads, json.loads)  # noqa: SLF001 - the first is orjson's, if that is installed


@given(plain_data)
def test_plain_files_are_read_without_the_rules(data: checkpoint.CheckpointData) -> None:
    found = read_plain(checkpoint.encode(data))
    assert found is not None
    assert found[0] == data == _by_the_rules(checkpoint.encode(data)).data


@given(plain_data, st.data(), st.sampled_from(LOADS))
def test_the_rules_would_read_just_so(
    data: checkpoint.CheckpointData, draw: st.DataObject, loads: Callable[..., object]
) -> None:
    """For any damage to a file: if the fast reader accepts it, the complete reader gives the same result."""
    blob = bytearray(checkpoint.encode(data))
    for _ in range(draw.draw(st.integers(0, 2))):
        place = draw.draw(st.integers(0, len(blob)))
        blob[place : place + draw.draw(st.integers(0, 3))] = draw.draw(
            st.sampled_from([b"", b'"', b",", b"[]", b"null", b" ", b"\n", b"0", b"=", b"{}", b"\\n", b"\xff"])
        )
    assert_that_the_rules_agree(bytes(blob), loads)


ENTRY = b'[{"PodUID":"p","ContainerName":"c","ResourceName":"r","DeviceIDs":{"0":["d"]},"AllocResp":"%s"}]'
SOUND = b'{"Data":{"PodDeviceEntries":[],"RegisteredDevices":{"a/b":["c"]}},"Checksum":1}'


@pytest.mark.parametrize("loads", LOADS, ids=["installed", "standard"])
@pytest.mark.parametrize(
    "blob",
    [
        SOUND.replace(b":1}", b":true}"),
        SOUND.replace(b":1}", b':1,"Checksum":2}'),
        SOUND.replace(b":1}", b":1.0}"),
        SOUND.replace(b":1}", b":-0}"),
        SOUND.replace(b":1}", b":18446744073709551616}"),
        SOUND.replace(b':["c"]', b':["c"],"a/b":[]'),
        SOUND.replace(b'["c"]', b'["\\ud800"]'),
        SOUND.replace(b'["c"]', b'["\\u0063"]'),
        SOUND.replace(b'["c"]', b'["<"]'),
        SOUND.replace(b'["c"]', b"[null]"),
        SOUND.replace(b'["c"]', b"[" * 200_000 + b"]" * 200_000),
        SOUND.replace(b"Checksum", b"checksum"),
        SOUND.replace(
            b"[]", b'[{"ContainerName":"c","PodUID":"p","ResourceName":"r","DeviceIDs":{"0":["d"]},"AllocResp":""}]'
        ),
        *(SOUND.replace(b"[]", ENTRY % text) for text in (b"AAAA=", b"AAAA==", b"AAAA====")),
        b"\xef\xbb\xbf" + SOUND,
        SOUND.decode().encode("utf-16"),
        SOUND + b"\n",
    ],
    ids=lambda blob: repr(blob[:70] + blob[-60:]),
)
def test_what_libraries_forgive_is_left_to_the_rules(blob: bytes, loads: Callable[..., object]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint.plain_file, "_loads", loads)
        assert read_plain(SOUND.replace(b"[]", ENTRY % b"AAAA")) is not None
        assert read_plain(blob) is None


def assert_that_the_rules_agree(blob: bytes, loads: Callable[..., object]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint.plain_file, "_loads", loads)
        found = read_plain(blob)
    if found is not None:
        ruled = _by_the_rules(blob)
        assert (ruled.format, ruled.data, ruled.stored) == (2, *found)


def _by_the_rules(blob: bytes) -> checkpoint_decoding.Decoded:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_decoding, "read_plain", lambda _: None)
        return checkpoint.decode(blob)


# --- topology ---------------------------------------------------------------------------------------------------------

NODES = tuple(map(NumaNode, range(4)))


@st.composite
def reports(draw: st.DrawFn) -> DeviceReport:
    """Devices on no NUMA node, on one, and sometimes on several."""
    most = draw(st.sampled_from([1, 1, 3]))
    nodes = st.lists(st.sampled_from(NODES), max_size=most, unique=True).map(tuple)
    places = draw(st.lists(nodes, max_size=9))
    return DeviceReport.of([Device(DeviceId(f"d{n}"), Health.HEALTHY, on) for n, on in enumerate(places)])


def plain_hints(report: DeviceReport, available: DeviceSet, reusable: DeviceSet, size: int) -> list[TopologyHint]:
    """Return what the kubelet's `generateDeviceTopologyHints` would, by the same steps."""
    nodes = [node for node in report.by_numa_node if node in NODES] or list(NODES)
    least = len(nodes)
    found = []
    for mask in chain.from_iterable(combinations(nodes, count) for count in range(1, len(nodes) + 1)):
        touched = {device.id for device in report.devices.values() if set(device.numa_nodes) & set(mask)}
        if len(touched) >= size:
            least = min(least, len(mask))
        anchored = [report.devices[device] for device in reusable if report.devices[device].topology is not None]
        if all(device.id in touched for device in anchored) and len(touched & set(available)) >= size - len(anchored):
            found.append(mask)
    return [TopologyHint(NumaMask.of(mask), len(mask) == least) for mask in found]


@given(reports(), st.data(), st.integers(0, 5))
def test_hints_are_those_of_the_plain_definition(report: DeviceReport, data: st.DataObject, size: int) -> None:
    ids = sorted(report.devices)
    available = report.index.select(data.draw(st.lists(st.sampled_from(ids), unique=True) if ids else st.just([])))
    reusable = data.draw(st.sampled_from([DeviceSet(report.index), (report.healthy - available).take(2)]))
    hints = list(generate_hints(report, available, reusable, size, NODES))
    assert hints == plain_hints(report, available, reusable, size)


masks = st.sets(st.sampled_from(NODES)).map(NumaMask.of)
topology_hints = st.builds(TopologyHint, masks | st.none(), preferred=st.booleans())
resource_hints = st.lists(topology_hints, max_size=5, unique=True) | st.none()


def plain_best(everywhere: NumaMask, hints: Iterable[Sequence[TopologyHint]]) -> TopologyHint:
    """Return the best combination of hints, found by ranking all of them."""
    hints = list(hints)
    fitting = max(
        (min((len(hint.mask) for hint in of_resource if hint.mask), default=0) for of_resource in hints), default=0
    )
    best: TopologyHint | None = None

    def rank(hint: TopologyHint) -> tuple[int, ...]:
        mask = hint.mask or NumaMask(0)
        if hint.preferred:
            return 0, len(mask), mask.bits
        above = len(mask) > fitting
        return 1, above, len(mask) if above else fitting - len(mask), mask.bits

    for members in product(*hints):
        named = [hint.mask for hint in members if hint.mask is not None]
        preferred = all(hint.preferred for hint in members) and all(mask == named[0] for mask in named)
        merged = TopologyHint(reduce(and_, named, everywhere), preferred)
        if merged.mask and (best is None or rank(merged) < rank(best)):
            best = merged
    return best or TopologyHint(everywhere, preferred=False)


@given(st.lists(resource_hints, max_size=4))
def test_the_best_hint_is_the_best_of_all_combinations(hints: list[list[TopologyHint] | None]) -> None:
    providers = [{f"r{place}": of_resource for place, of_resource in enumerate(hints)}] if hints else []
    everywhere = NumaMask.of(NODES)
    asked = [of_resource or [TopologyHint(None, preferred=of_resource is None)] for of_resource in hints]
    for policy in (Policy.BEST_EFFORT, Policy.RESTRICTED):
        best, admitted = merge(Topology(NODES, policy), providers)
        assert best == plain_best(everywhere, asked)
        assert admitted == (best.preferred or policy is Policy.BEST_EFFORT)


@given(reports(), st.data())
def test_a_report_that_is_repeated_changes_nothing(report: DeviceReport, data: st.DataObject) -> None:
    listed = tuple(report.devices.values())
    other = data.draw(st.permutations(listed)) if data.draw(st.booleans()) else listed
    assert report.repeats(tuple(other)) == (tuple(other) == listed)
    assert reduce(or_, report.by_numa_node.values(), DeviceSet()) == report.touching(report.by_numa_node)


# --- device lists -----------------------------------------------------------------------------------------------------

listed_devices = st.lists(
    st.builds(
        Device,
        st.sampled_from([DeviceId(f"d{number}") for number in range(4)]),
        st.sampled_from(Health),
        st.none() | st.lists(st.sampled_from(NODES), max_size=2).map(tuple),
    ),
    max_size=6,
).map(tuple)


@given(listed_devices, listed_devices)
def test_a_device_list_is_the_tuple_of_its_devices(devices: tuple[Device, ...], others: tuple[Device, ...]) -> None:
    listed = DeviceList.of(devices)
    assert tuple(listed) == tuple(listed[place] for place in range(len(listed))) == devices
    assert listed == devices
    assert hash(listed) == hash(devices)
    assert listed[1:] == devices[1:]
    assert (listed == DeviceList.of(others)) == (listed == others) == (devices == others)
    assert dict(listed.by_id) == {device.id: device for device in devices}
    assert list(listed.by_id) == list(dict.fromkeys(device.id for device in devices))
    assert all(device in listed.by_id for device in listed.ids)
    assert "another" not in listed.by_id
    assert listed.ids_of(Health.HEALTHY) == [device.id for device in devices if device.health is Health.HEALTHY]
