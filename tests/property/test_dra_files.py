"""Laws of the claim and health files: written files are read back unchanged, and no bytes break a reader."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from attrs import evolve
from hypothesis import example, given
from hypothesis import strategies as st

from devicecore.domain.checkpoint.verdict import FileVerdict
from devicecore.domain.dra import health_file, state_file
from devicecore.domain.dra.answer_size import size_in_file
from devicecore.domain.dra.claims import ClaimCache, ClaimInfo
from devicecore.domain.dra.health import SECOND, DeviceHealth, DraHealth, HealthCache, ReportedHealth
from devicecore.domain.dra.model import ClaimKey, ClaimUid, DriverName, PreparedDevice
from devicecore.domain.dra.state_file import ClaimEntry, StateWriter, judge
from devicecore.domain.errors import CorruptCheckpointError, MalformedCheckpointError
from devicecore.domain.model import PodUid

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
texts = st.none() | st.lists(text, max_size=3).map(tuple)
devices = st.builds(PreparedDevice, text, text, st.none() | text, texts, texts)
listed = st.none() | st.lists(devices, max_size=3).map(tuple)
calls = st.frozensets(st.sampled_from(["NodePrepareResources", "NodeUnprepareResources", "*"]))
entries = st.builds(
    lambda uid, name, space, pods, drivers, skips: ClaimEntry(
        uid, name, space, pods, drivers, {driver: skips for driver in drivers or () if skips}
    ),
    text,
    text,
    text,
    st.none() | st.lists(text, max_size=3, unique=True).map(sorted).map(tuple),
    st.none() | st.dictionaries(text, listed, max_size=3),
    calls,
)
claims = st.builds(
    ClaimInfo,
    st.builds(ClaimKey, text, text),
    text.map(ClaimUid),
    st.frozensets(text.map(PodUid), max_size=3),
    st.dictionaries(text.map(DriverName), listed, max_size=2),
)
ONE = ClaimInfo(ClaimKey("ns", "one"), ClaimUid("1"), drivers={DriverName("d"): (PreparedDevice("p", "d"),)})
TWICE = [ONE, evolve(ONE, drivers={})]
caches = st.lists(claims, max_size=5).map(ClaimCache.of)
moments = st.integers(-62_135_596_800 * SECOND, 253_402_300_799 * SECOND)
healths = st.builds(DeviceHealth, text, text, st.sampled_from(DraHealth), moments, st.integers(1, 2**63 - 1), text)


@given(st.lists(entries, max_size=5))
def test_claims_that_are_written_are_read_again(written: Sequence[ClaimEntry]) -> None:
    blob = state_file.encode(written)
    assert list(state_file.decode(blob).entries) == list(written)
    assert judge(blob).verdict is FileVerdict.OK


@given(st.lists(caches, max_size=5))
def test_a_writer_writes_each_cache_as_if_it_were_the_first(changes: Sequence[ClaimCache]) -> None:
    writer = StateWriter()
    for cache in changes:
        assert writer.encode(cache) == state_file.encode(map(ClaimEntry.of, cache.claims.values()))


ranges = st.builds(range, st.integers(0, 900), st.integers(0, 900), st.integers(1, 300))


@given(st.lists(st.tuples(st.booleans(), ranges), max_size=8))
@example([(True, range(900)), (False, range(0, 900, 2)), (False, range(1, 900, 2))])
@example([(True, range(900)), (False, range(256, 512)), (True, range(10, 300, 7)), (True, range(880, 900))])
def test_claims_in_blocks_are_those_of_a_dict_and_are_written_like_one(steps: Sequence[tuple[bool, range]]) -> None:
    """The order is also kept. Blocks are never empty, and two neighboring blocks together are never nearly empty."""
    cache, expected, writer = ClaimCache(), dict[ClaimKey, ClaimInfo](), StateWriter()
    for number, (is_added, names) in enumerate(steps):
        keys = [ClaimKey("ns", str(name)) for name in names]
        if is_added:
            changed = [ClaimInfo(key, ClaimUid(str(number))) for key in keys]
            cache = cache.put(*changed)
            expected.update((claim.key, claim) for claim in changed)
        else:
            cache = cache.without(keys)
            for key in keys:
                expected.pop(key, None)
        assert list(cache.claims.items()) == list(expected.items())
        assert len(cache.claims) == len(expected)
        sizes = [len(block) for block in cache.claims.blocks]
        assert all(0 < size <= 256 for size in sizes)
        assert all(one + other > 128 for one, other in pairwise(sizes)), sizes
        assert writer.encode(cache) == state_file.encode(map(ClaimEntry.of, expected.values()))


@given(listed)
def test_the_size_of_an_answer_is_at_least_that_in_the_file(answer: tuple[PreparedDevice, ...] | None) -> None:
    sizes = [len(state_file.encode([ClaimEntry(drivers={"d": found})])) for found in (answer, None)]
    assert not answer or size_in_file(answer) >= sizes[0] - sizes[1] + len("null")


@given(caches, st.lists(claims, max_size=3) | st.just(TWICE), st.data())
def test_the_sizes_of_a_cache_are_those_of_its_claims(
    cache: ClaimCache, changed: Sequence[ClaimInfo], data: st.DataObject
) -> None:
    gone = data.draw(st.sets(st.sampled_from([*cache.claims, *(claim.key for claim in changed)]))) if changed else ()
    after = cache.put(*changed).without(gone)
    again, drivers = ClaimCache.of(after.claims.values()), {name for claim in changed for name in claim.drivers}
    assert {name: after.size_of(name) for name in drivers} == {name: again.size_of(name) for name in drivers}


@given(caches)
def test_a_cache_that_is_written_is_read_again(cache: ClaimCache) -> None:
    assert state_file.decode(StateWriter().encode(cache)).cache == cache


@given(st.binary(max_size=60))
@example(b'{"Data":"{\\"ClaimInfoStateList\\":[{\\"PodUIDs\\":[]}]}","Checksum":0}')
def test_any_bytes_have_one_verdict(blob: bytes) -> None:
    report = judge(blob)
    assert (report.verdict is FileVerdict.OK) is (not report.problem)


@given(st.lists(entries, min_size=1, max_size=2), st.data())
def test_a_file_that_lost_a_byte_is_never_taken_for_another(written: Sequence[ClaimEntry], data: st.DataObject) -> None:
    """A file with one byte removed is refused, or contains the same claims."""
    blob = state_file.encode(written)
    at = data.draw(st.integers(0, len(blob) - 1))
    spoilt = blob[:at] + blob[at + 1 :]
    try:
        found = state_file.decode(spoilt)
    except (MalformedCheckpointError, CorruptCheckpointError):
        return
    assert found.entries == tuple(written)


@given(st.dictionaries(text.map(DriverName), st.lists(healths, max_size=3), max_size=3))
def test_health_that_is_written_is_read_again(drivers: dict[DriverName, list[DeviceHealth]]) -> None:
    cache = HealthCache({driver: {item.key: item for item in items} for driver, items in drivers.items()})
    assert health_file.decode(health_file.encode(cache)) == cache


@given(st.binary(max_size=40) | st.text(max_size=40).map(lambda word: f'{{"d":{{"Devices":{word}}}}}'.encode()))
@example(b"null")
@example(b'{"d":null}')
@example(b'{"d":{"Devices":{"a/b":{"LastUpdated":"2026-01-31T12:00:00.5+01:00"}}}}')
@example(b'{"d":{"Devices":{"a/b":{"LastUpdated":"2026-02-31T12:00:00Z"}}}}')
@example(b'{"d":{"Devices":{"a/b":{"LastUpdated":"0001-01-01T00:00:00+14:00"}}}}')
@example(b'{"d":{"Devices":{"a/b":{"HealthCheckTimeout":1.5}}}}')
@example(b'{"d":{"Devices":{"a/b":{"HealthCheckTimeout":null}}}}')
@example(b'{"d":{"Devices":{"a/b":{"HealthCheckTimeout":"30s"}}}}')
def test_any_bytes_are_health_or_malformed(blob: bytes) -> None:
    try:
        cache = health_file.decode(blob)
    except MalformedCheckpointError:
        return
    assert isinstance(cache, HealthCache)
    assert health_file.decode(health_file.encode(cache)).drivers.keys() == cache.drivers.keys()


@pytest.mark.parametrize(
    ("stored", "written"),
    [
        ("9999-12-31T23:59:59-23:59", "9999-12-31T23:59:59Z"),
        ("9999-12-31T23:59:59.9999999999Z", "9999-12-31T23:59:59.999999999Z"),
        ("0001-01-01T00:00:00+23:59", "0001-01-01T00:00:00Z"),
        ("0000-02-29T00:00:00.5Z", "0001-01-01T00:00:00Z"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"),
        ("2026-01-31T00:30:00.000000001+01:00", "2026-01-30T23:30:00.000000001Z"),
    ],
)
def test_a_time_that_python_cannot_have_is_read_and_written_again(stored: str, written: str) -> None:
    cache = health_file.decode(b'{"d":{"Devices":{"p/a":{"LastUpdated":"%b"}}}}' % stored.encode())
    reported = ReportedHealth("p", "b", DraHealth.HEALTHY, limit=2**63 - 1)
    blob = health_file.encode(cache.report(DriverName("d"), [reported], -(10**21)).cache)
    assert f'"LastUpdated":"{written}"'.encode() in blob
    assert health_file.decode(blob).drivers[DriverName("d")]["p/b"].limit == 2**63 - 1


@pytest.mark.parametrize(
    "text", ["2016-12-31T23:59:60Z", "20260131T120000Z", "2026-01-31T12:00:00+24:00", "2026-01-31T12:00:00"]
)
def test_a_time_that_go_refuses_is_refused(text: str) -> None:
    with pytest.raises(MalformedCheckpointError, match="expected a time"):
        health_file.decode(b'{"d":{"Devices":{"p/a":{"LastUpdated":"%b"}}}}' % text.encode())
