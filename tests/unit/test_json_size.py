"""Every JSON reader refuses documents that would be too expensive before it creates values from them."""

import tracemalloc
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from zlib import crc32

import pytest
from devicecore_tools.checkpoint.salvage import MAX_UNREADABLE, salvage

from devicecore.adapters.file import FileStore, JsonFileSink
from devicecore.adapters.manifests.pods_file import PodsFile
from devicecore.domain.capacity import NodeStatus
from devicecore.domain.checkpoint import CheckpointData, PodDevicesEntry, decode, encode
from devicecore.domain.checkpoint.go_json import MAX_DEEP_MEMBERS, MAX_REPLACED, parse
from devicecore.domain.checkpoint.go_values import MAX_ITEMS
from devicecore.domain.dra import health_file, state_file
from devicecore.domain.errors import MalformedCheckpointError, SinkError, StoreError
from devicecore.domain.json_size import MAX_BYTES, STATE, size_problem
from tests.recorded import share

SIZE = 12_000_000
UNITS = {"objects": b"{},", "lists": b"[],", "nulls": b"null,", "numbers": b"1,", "pairs": b'{"a":1},', "nested": b"["}


@lru_cache(maxsize=1)
def rubbish(unit: bytes) -> bytes:
    return b'{"Data":{"PodDeviceEntries":[' + unit * (SIZE // len(unit)) + b"{}]}}"


def as_data(blob: bytes) -> bytes:
    """Return a claims file whose data is `blob`, with opening braces and commas written as escapes."""
    hidden = blob.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b",", b"\\u002c").replace(b"{", b"\\u007b")
    return b'{"Data":"%b","Checksum":%d}' % (hidden, crc32(blob))


def read_pods_file(blob: bytes, directory: Path) -> None:
    (directory / "pods").write_bytes(blob)
    assert not PodsFile(directory / "pods", "").files


def publish(blob: bytes, directory: Path) -> None:
    (directory / "node").write_bytes(blob)
    JsonFileSink(directory / "node").publish(NodeStatus({}, {}))


DOORS: dict[str, Callable[[bytes, Path], object]] = {
    "checkpoint": lambda blob, _: decode(blob),
    "salvage": lambda blob, _: salvage(blob),
    "claims": lambda blob, _: state_file.decode(blob),
    "claims without a checksum": lambda blob, _: state_file.entries_of(blob),
    "health": lambda blob, _: health_file.decode(blob),
    "pods that ran": read_pods_file,
    "status": publish,
}


def _turned(names: Sequence[str], by: int) -> Sequence[str]:
    return [*names[by:], *names[:by]]


# Each kind of garbage goes to two readers, and each reader gets one or two kinds. `make laws` tries all pairs.
PAIRS = [(unit, door) for row, unit in enumerate(UNITS) for door in share(_turned([*DOORS], row), of=4)]


@pytest.mark.parametrize(("unit", "door"), PAIRS)
def test_garbage_is_refused_before_it_is_parsed_into_values(
    door: str, unit: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blob = rubbish(UNITS[unit])
    tracemalloc.start()
    try:
        if door == "pods that ran":
            DOORS[door](blob, tmp_path)
            assert "values" in caplog.text
        else:
            with pytest.raises((MalformedCheckpointError, SinkError), match=r"expected at most .* values, got"):
                DOORS[door](blob, tmp_path)
        assert tracemalloc.get_traced_memory()[1] < MAX_BYTES + 3 * SIZE
    finally:
        tracemalloc.stop()


def test_values_behind_escapes_are_counted_when_they_appear() -> None:
    blob = as_data(b"[" + b"{}," * (STATE.max_values // 2) + b"{}]")
    with pytest.raises(MalformedCheckpointError, match="values, got"):
        state_file.decode(blob)


@pytest.mark.parametrize(
    ("blob", "problem"),
    [
        (b" " * (MAX_BYTES + 1), "bytes, got"),
        ("\U0001f600".encode() * 6_000_000, "too much memory"),
        (b'"' + b"\xff" * (MAX_REPLACED + 1) + b'"', "bytes that are not UTF-8"),
        (b'"' + b"\\ud800" * (MAX_REPLACED + 1) + b'"', "escapes in a text with surrogates"),
        (b"[" * 90_000 + b"0," * (MAX_DEEP_MEMBERS - 80_000) + b"0" + b"]" * 90_000, "deeply nested"),
    ],
    ids=["bytes", "wide characters", "no UTF-8", "surrogates", "deep"],
)
def test_each_limit_of_a_text_has_its_sentence(blob: bytes, problem: str) -> None:
    with pytest.raises(MalformedCheckpointError, match=problem):
        parse(b" " + blob if blob.strip() else b"0" + blob)


def test_lists_of_structs_and_answers_have_limits() -> None:
    with pytest.raises(MalformedCheckpointError, match="expected at most 100,000 items, got 100,001"):
        decode(b'{"Data":{"PodDeviceEntries":[' + b"{}," * MAX_ITEMS + b"{}]}}")
    with pytest.raises(MalformedCheckpointError, match="AllocResp: expected at most 6,291,456 characters"):
        decode(b'{"Data":{"PodDeviceEntries":[{"AllocResp":"' + b"AAAA" * 2_000_000 + b'"}]}}')


def test_a_file_with_too_much_unreadable_data_is_not_salvaged() -> None:
    bad = b'{"PodUID":1},' * (MAX_UNREADABLE + 1)
    with pytest.raises(MalformedCheckpointError, match="at most 1,000 parts that cannot be read, got 1,001"):
        salvage(b'{"Data":{"PodDeviceEntries":[' + bad + b"{}]}}")


@pytest.mark.slow
def test_a_checkpoint_of_20_000_devices_is_far_from_the_limits(tmp_path: Path) -> None:
    ids = [f"device-{number:05}" for number in range(20_000)]
    entries = tuple(PodDevicesEntry(f"pod-{id_}", "main", "example.com/gpu", {0: (id_,)}, b"\0" * 100) for id_ in ids)
    blob = encode(CheckpointData(entries, {"example.com/gpu": tuple(ids)}))
    assert not size_problem(blob)
    assert 25 * len(ids) < STATE.max_values
    FileStore(tmp_path / "file").save(blob)
    assert decode(blob).valid


def test_a_store_writes_nothing_that_cannot_be_read_again(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "file")
    store.save(b"{}")
    for text in (b'["d"' + b',"d"' * STATE.max_values + b"]", b'"' + b"," * (STATE.max_values + 1) + b'"'):
        with pytest.raises(StoreError, match="it could not be read again: expected at most"):
            store.save(b'{"Data":' + text + b"}")
    assert store.load() == b"{}"


@pytest.mark.parametrize(("character", "most"), [(b"\\u0100", 420_000_000 // 11), (b"\\ud83d", 420_000_000 // 21)])
def test_the_widest_character_decides_how_long_a_text_may_be(character: bytes, most: int) -> None:
    """Python uses 2 or 4 bytes for each character of a wide string, and a state file is copied five times."""
    text = character + b" " * (most - len(character))
    assert size_problem(text) == ""
    assert size_problem(text + b" ") != ""


@pytest.mark.parametrize("inside", ["1 2", "{1: 2}", '{"a" 1}', '{"a": 1 "b": 2}', "1}", "[1", "1]"])
def test_invalid_json_is_refused_at_any_depth(inside: str) -> None:
    """Python's own parser fails at this depth."""
    parse(b"[" * 3000 + b"1" + b"]" * 3000)
    with pytest.raises(MalformedCheckpointError, match="not JSON: "):
        parse(b"[" * 3000 + inside.encode() + b"]" * 3000)
