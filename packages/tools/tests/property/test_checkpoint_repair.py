"""Laws about repairing, comparing and salvaging checkpoints.

Repairing a repaired file changes nothing, and each dropped device is listed. A repaired file has the verdict "ok".
There is no difference between data and itself, and swapping the arguments reverses a difference. Salvaging never loses
a part of the file without saying so.
"""

import json

import pytest
from attrs import evolve
from devicecore_tools.checkpoint.difference import Difference, difference
from devicecore_tools.checkpoint.repair import devices_of, repaired, shared_devices
from devicecore_tools.checkpoint.salvage import salvage
from hypothesis import example, given
from hypothesis import strategies as st

from devicecore.domain.checkpoint import CheckpointData, FileVerdict, PodDevicesEntry, decode, encode, judge
from devicecore.domain.errors import MalformedCheckpointError

PODS = st.sampled_from(["uid-1", "uid-2", "uid-3"])
IDS = st.lists(st.sampled_from(["gpu-1", "gpu-2", "gpu-10"]), max_size=3, unique=True).map(tuple)
ENTRIES = st.builds(
    PodDevicesEntry,
    PODS,
    st.sampled_from(["main", "side"]),
    st.sampled_from(["example.com/gpu", "example.com/nic"]),
    st.none() | st.dictionaries(st.integers(-1, 2), st.none() | IDS, max_size=3),
    st.none() | st.sampled_from([b"", b"good", b"bad"]),
)
DATA = st.builds(
    CheckpointData,
    st.none() | st.lists(ENTRIES, max_size=6).map(tuple),
    st.none() | st.dictionaries(st.sampled_from(["example.com/gpu", "example.com/nic"]), st.none() | IDS),
)


def is_readable(answer: bytes) -> bool:
    return answer != b"bad"


def held(data: CheckpointData) -> list[tuple[str, str, str, str]]:
    """Return the pod, the container, the resource and the id of each device in each entry."""
    return [
        (entry.pod_uid, entry.container_name, entry.resource_name, id_)
        for entry in data.entries or ()
        for id_ in devices_of(entry)
    ]


@given(DATA, st.none() | st.frozensets(PODS), st.frozensets(PODS))
def test_a_second_repair_does_nothing(data: CheckpointData, pods: frozenset[str] | None, keep: frozenset[str]) -> None:
    once = repaired(data, is_readable, pods=pods, keep=keep)
    twice = repaired(once.data, is_readable, pods=pods, keep=keep)
    assert (twice.data, twice.dropped, twice.undecided) == (once.data, (), once.undecided)


@given(DATA, st.none() | st.frozensets(PODS), st.frozensets(PODS))
def test_each_device_is_kept_or_listed_as_dropped(
    data: CheckpointData, pods: frozenset[str] | None, keep: frozenset[str]
) -> None:
    result = repaired(data, is_readable, pods=pods, keep=keep)
    dropped = [(one.pod, one.container, one.resource, id_) for one in result.dropped for id_ in one.devices]
    assert sorted(held(result.data) + dropped) == sorted(held(data))
    assert len(result.data.entries or ()) + len(result.dropped) >= len(data.entries or ())


@given(DATA, st.none() | st.frozensets(PODS), st.frozensets(PODS))
def test_a_repaired_file_is_ok_and_has_no_second_owner(
    data: CheckpointData, pods: frozenset[str] | None, keep: frozenset[str]
) -> None:
    result = repaired(data, is_readable, pods=pods, keep=keep)
    for format in (1, 2):  # noqa: A001 - the kubelet's word
        assert judge(encode(result.data, format)).verdict is FileVerdict.OK
    assert shared_devices(result.data.entries or ()) == result.undecided
    assert all(len(keep.intersection(one.pods)) != 1 for one in result.undecided)
    assert pods is None or pods.issuperset(entry.pod_uid for entry in result.data.entries or ())


@given(DATA)
def test_a_sound_checkpoint_is_not_changed(data: CheckpointData) -> None:
    sound = repaired(data, is_readable, keep=["uid-1", "uid-2", "uid-3"]).data
    if not shared_devices(sound.entries or ()):
        assert repaired(sound, is_readable).data is sound


@given(DATA)
def test_data_does_not_differ_from_itself(data: CheckpointData) -> None:
    assert difference(data, data) == Difference()
    assert difference(data, decode(encode(data)).data) == Difference()


@given(DATA, DATA, st.booleans())
@example(
    CheckpointData((PodDevicesEntry("uid-1", "main", "example.com/gpu", {0: ("gpu-1",)}),)),
    CheckpointData((PodDevicesEntry("uid-2", "main", "example.com/gpu", {0: ("gpu-1",)}),)),
    True,  # noqa: FBT003 - examples are by place
)
def test_a_difference_reads_the_same_backwards(before: CheckpointData, after: CheckpointData, with_numa: bool) -> None:
    found = difference(before, after, with_numa=with_numa)
    assert difference(after, before, with_numa=with_numa) == found.reversed
    assert found.reversed.reversed == found


@given(DATA, DATA)
def test_a_difference_applied_to_the_first_data_gives_the_second(before: CheckpointData, after: CheckpointData) -> None:
    found = difference(before, after)
    gone = {*found.removed, *(move.before for move in found.moved)}
    new = {*found.added, *(move.after for move in found.moved)}
    as_tuples = [{(one.pod, one.container, one.resource, one.device) for one in holdings} for holdings in (gone, new)]
    assert (set(held(before)) - as_tuples[0]) | as_tuples[1] == set(held(after))


@given(DATA, st.sampled_from([1, 2]))
def test_salvage_of_a_readable_file_is_its_data(data: CheckpointData, format: int) -> None:  # noqa: A002 - as above
    blob = encode(data, format)
    found = salvage(blob)
    assert (found.data, found.unreadable) == (decode(blob).data, ())


@given(DATA.filter(lambda data: bool(data.entries)), st.data())
def test_salvage_loses_only_the_entries_that_it_names(data: CheckpointData, choice: st.DataObject) -> None:
    document = json.loads(encode(data))
    entries = document["Data"]["PodDeviceEntries"]
    broken = choice.draw(st.sets(st.integers(0, len(entries) - 1), min_size=1))
    for number in broken:
        entries[number]["PodUID"] = 7
    blob = json.dumps(document).encode()
    if len(broken) == len(entries):
        with pytest.raises(MalformedCheckpointError):
            salvage(blob)
        return
    found = salvage(blob)
    assert [one.place for one in found.unreadable] == [f"entry {number + 1}" for number in sorted(broken)]
    intact = [entry for number, entry in enumerate(data.entries or ()) if number not in broken]
    expected = evolve(data, entries=tuple(intact))
    assert held(found.data) == held(expected)
    assert found.format == 2 or not held(found.data)


@given(st.binary(max_size=40) | st.text(alphabet='{}[]":,Data01', max_size=40).map(str.encode))
def test_no_bytes_make_salvage_raise_anything_else(blob: bytes) -> None:
    try:
        found = salvage(blob)
    except MalformedCheckpointError:
        return
    assert judge(encode(found.data)).verdict is FileVerdict.OK
