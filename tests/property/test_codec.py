"""Laws of the checkpoint codec, each checked with and without the accelerators.

Decoding what was encoded gives the same data. Equal data gives equal bytes. For any bytes, `decode` raises only the
codec's own errors. Hashing can be resumed.
"""

import base64
import copy
import importlib
import json
import pickle
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeVar

import fnv_hash_fast
import orjson
import pytest
from attrs import evolve
from hypothesis import example, given
from hypothesis import strategies as st

from devicecore import domain
from devicecore.domain import checkpoint as fast_codec
from devicecore.domain.checkpoint import CheckpointData, PodDevicesEntry
from devicecore.domain.checkpoint.fnv import fnv1a_32_pure, resumable
from devicecore.domain.errors import (
    CheckpointError,
    CorruptCheckpointError,
    MalformedCheckpointError,
    UnencodableCheckpointError,
)

K = TypeVar("K")
V = TypeVar("V")

PACKAGE = "devicecore.domain.checkpoint"


@contextmanager
def modules_set_aside(**instead: None) -> Iterator[None]:
    """Make the next import of the checkpoint package start over, as if the modules in `instead` were not installed."""
    ours = {name: module for name, module in sys.modules.items() if name.startswith(PACKAGE)}
    kept = ours | {name: sys.modules[name] for name in instead}
    for name in ours:
        del sys.modules[name]
    sys.modules.update(instead)  # type: ignore[arg-type]  # None makes a module impossible to import
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name.startswith(PACKAGE)]:
            del sys.modules[name]
        sys.modules.update(kept)
        domain.checkpoint = fast_codec  # the new import has set this attribute, too


def without_the_accelerators() -> ModuleType:
    """Return a second copy of the package, imported as if neither accelerator were installed."""
    with modules_set_aside(orjson=None, fnv_hash_fast=None):
        return importlib.import_module(PACKAGE)


CODECS = {"fast": fast_codec, "pure": without_the_accelerators()}
every_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS.keys())


def of(codec: ModuleType, data: CheckpointData) -> CheckpointData:
    """Return `data` as a value of this copy of the package, with no fragment rendered yet."""
    entries = data.entries
    if entries is not None:
        entries = tuple(
            codec.PodDevicesEntry(
                entry.pod_uid, entry.container_name, entry.resource_name, entry.device_ids, entry.alloc_resp
            )
            for entry in entries
        )
    same: CheckpointData = codec.CheckpointData(entries, data.registered_devices)
    return same


# --- strategies -------------------------------------------------------------------------------------------------------

INT64 = st.integers(-(2**63), 2**63 - 1)


def texts() -> st.SearchStrategy[str]:
    """Strings that JSON, Go's escapes and the dump treat specially, and any other strings."""
    special = st.sampled_from(
        ["", "<&>", "\u2028\u2029", '"\\/', "\b\f\n\r\t\0\x1f\x7f", "a b", "map[0:[a]]", "\U0001f600"]
    )
    return special | st.text(max_size=8)


def id_lists() -> st.SearchStrategy[tuple[str, ...] | None]:
    """Lists of strings, or null."""
    return st.none() | st.lists(texts(), max_size=4).map(tuple)


def numa_maps() -> st.SearchStrategy[dict[int, tuple[str, ...] | None] | None]:
    """Devices per NUMA node, or null."""
    return st.none() | st.dictionaries(st.integers(-1, 12) | INT64, id_lists(), max_size=4)


def pod_devices_entries() -> st.SearchStrategy[PodDevicesEntry]:
    """Any entry that Go could have in memory."""
    return st.builds(PodDevicesEntry, texts(), texts(), texts(), numa_maps(), st.none() | st.binary(max_size=8))


def checkpoint_data() -> st.SearchStrategy[CheckpointData]:
    """Any data that Go could have in memory."""
    return st.builds(
        CheckpointData,
        st.none() | st.lists(pod_devices_entries(), max_size=4).map(tuple),
        st.none() | st.dictionaries(texts(), id_lists(), max_size=4),
    )


FIELDS = st.sampled_from(
    [
        *("Data", "Checksum", "PodDeviceEntries", "RegisteredDevices", "data", "x"),
        *("PodUID", "ContainerName", "ResourceName", "DeviceIDs", "AllocResp", "0", "+1"),
    ]
)


def json_values() -> st.SearchStrategy[Any]:
    """JSON values, many of whose keys are those in a kubelet's file."""
    scalars = (
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["AQ==", "A"])
    )
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(FIELDS | st.text(max_size=3), inner, max_size=4),
        max_leaves=20,
    )


@st.composite
def mutated_files(draw: st.DrawFn) -> bytes:
    """Valid files in which a few parts have been replaced."""
    blob = fast_codec.encode(draw(checkpoint_data()), draw(st.sampled_from([1, 2])))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(blob)))
        end = start + draw(st.integers(0, 6))
        tokens = st.sampled_from(
            [b"", b"null", b"[", b"]", b"{", b"}", b'"', b"\\ud800", b"\xff", b"-0", b"1e9", b"NaN", b"0,"]
        )
        blob = blob[:start] + draw(tokens | st.binary(max_size=3)) + blob[end:]
    return blob


# --- the plain definitions: what the spec says, without optimizations ----------------------------------------------


def naive_fnv1a_32(data: bytes) -> int:
    state = 0x811C9DC5
    for byte in data:
        state = (state ^ byte) * 0x01000193 % 2**32
    return state


def naive_list(strings: tuple[str, ...] | None) -> str:
    return "<nil>" if strings is None else "[" + " ".join(strings) + "]"


def naive_map(items: list[tuple[Any, tuple[str, ...] | None]] | None) -> str:
    return "<nil>" if items is None else "map[" + " ".join(f"{key}:{naive_list(ids)}" for key, ids in items) + "]"


def naive_dump(data: CheckpointData) -> str:
    entries = "<nil>"
    if data.entries is not None:
        entries = "[" + " ".join(map(naive_entry_dump, data.entries)) + "]"
    registered = data.registered_devices
    items = None if registered is None else sorted(registered.items(), key=lambda item: item[0].encode())
    return (
        f"(checkpoint.checkpointData){{PodDeviceEntries:([]checkpoint.PodDevicesEntry){entries}"
        f" RegisteredDevices:(map[string][]string){naive_map(items)}}}"
    )


def naive_entry_dump(entry: PodDevicesEntry) -> str:
    items = None if entry.device_ids is None else sorted(entry.device_ids.items())
    numbers = "<nil>" if entry.alloc_resp is None else "[" + " ".join(map(str, entry.alloc_resp)) + "]"
    return (
        f"{{PodUID:(string){entry.pod_uid} ContainerName:(string){entry.container_name}"
        f" ResourceName:(string){entry.resource_name} DeviceIDs:(checkpoint.DevicesPerNUMA){naive_map(items)}"
        f" AllocResp:([]uint8){numbers}}}"
    )


def naive_file(data: CheckpointData) -> str:
    def entry(value: PodDevicesEntry) -> dict[str, Any]:
        devices, response = value.device_ids, value.alloc_resp
        return {
            "PodUID": value.pod_uid,
            "ContainerName": value.container_name,
            "ResourceName": value.resource_name,
            "DeviceIDs": None if devices is None else dict(sorted((str(node), ids) for node, ids in devices.items())),
            "AllocResp": None if response is None else base64.b64encode(response).decode(),
        }

    content = {
        "PodDeviceEntries": None if data.entries is None else [entry(value) for value in data.entries],
        "RegisteredDevices": None if data.registered_devices is None else dict(sorted(data.registered_devices.items())),
    }
    file = {"Data": content, "Checksum": naive_fnv1a_32(naive_dump(data).encode())}
    text = json.dumps(file, ensure_ascii=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


# --- the hash ---------------------------------------------------------------------------------------------------------


@given(st.binary(max_size=50), st.binary(max_size=50))
@example(b"\0", b"\0")
@example(b"", b"")
def test_hashing_is_resumable_and_fast_is_pure_is_naive(before: bytes, after: bytes) -> None:
    expected = naive_fnv1a_32(before + after)
    for fnv1a_32 in (fnv1a_32_pure, resumable(fnv_hash_fast.fnv1a_32), *(codec.fnv1a_32 for codec in CODECS.values())):
        assert fnv1a_32(before + after) == expected
        assert fnv1a_32(after, fnv1a_32(before)) == expected


@given(st.integers(0, 2**32 - 1), st.binary(max_size=50))
def test_hashing_resumes_from_any_state(state: int, data: bytes) -> None:
    assert resumable(fnv_hash_fast.fnv1a_32)(data, state) == fnv1a_32_pure(data, state)


# --- encode -----------------------------------------------------------------------------------------------------------

ODD = CheckpointData(
    (
        PodDevicesEntry('<&>\u2028\u2029"\\/', "\b\f\n\r\t\0\x1f\x7f", "", {10: ("a b",), 2: None, -1: ()}, b"\0\xff"),
        PodDevicesEntry("", "\U0001f600\uffff", "e\u0301", {}, b""),
        PodDevicesEntry(),
    ),
    {"\U0001f600": ("z", "a"), "\uffff": None, "": ("",)},
)


@every_codec
@given(checkpoint_data())
@example(ODD)
@example(CheckpointData())
def test_what_is_written_is_what_the_plain_definition_says(codec: ModuleType, data: CheckpointData) -> None:
    ours = of(codec, data)
    assert codec.encode(ours) == naive_file(data).encode()
    assert codec.dump(ours) == naive_dump(data).encode()
    assert codec.checksum(ours) == naive_fnv1a_32(naive_dump(data).encode())


@every_codec
@given(checkpoint_data())
@example(ODD)
def test_equal_data_gives_equal_bytes_in_any_order_of_maps(codec: ModuleType, data: CheckpointData) -> None:
    def reversed_map(items: Mapping[K, V] | None) -> dict[K, V] | None:
        return None if items is None else dict(reversed(list(items.items())))

    entries = data.entries
    if entries is not None:
        entries = tuple(evolve(entry, device_ids=reversed_map(entry.device_ids)) for entry in entries)
    again = CheckpointData(entries, reversed_map(data.registered_devices))
    assert again == data
    for format_ in (1, 2):
        assert codec.encode(of(codec, again), format_) == codec.encode(of(codec, data), format_)


@given(pod_devices_entries())
def test_an_entry_that_has_rendered_itself_is_still_the_same_value(entry: PodDevicesEntry) -> None:
    rendered = (entry.json, entry.dump)
    for other in (copy.deepcopy(entry), pickle.loads(pickle.dumps(entry)), evolve(entry)):  # noqa: S301 - our own pickle
        assert other == entry
        assert (other.json, other.dump) == rendered
    assert evolve(entry, pod_uid="another").json != rendered[0] or entry.pod_uid == "another"


@every_codec
@pytest.mark.parametrize("format_", [1, 2])
@pytest.mark.parametrize(
    "data",
    [
        CheckpointData((PodDevicesEntry("\ud800"),)),
        CheckpointData((PodDevicesEntry(device_ids={0: ("\udfff",)}),)),
        CheckpointData(None, {"\ud83d": ()}),
        CheckpointData(None, {"a": ("b\udc80",)}),
    ],
    ids=["pod", "device", "resource", "registered"],
)
def test_invalid_text_cannot_be_written(codec: ModuleType, format_: int, data: CheckpointData) -> None:
    with pytest.raises(UnencodableCheckpointError, match="contains a lone surrogate"):
        codec.encode(of(codec, data), format_)
    with pytest.raises(UnencodableCheckpointError, match=r"cannot be written: .* contains a lone surrogate"):
        codec.checksum(of(codec, data), format_)


@every_codec
@pytest.mark.parametrize("node", [2**63, -(2**63) - 1])
def test_a_numa_node_beyond_64_bits_cannot_be_written(codec: ModuleType, node: int) -> None:
    data = of(codec, CheckpointData((PodDevicesEntry(device_ids={0: (), node: ()}),)))
    for write in (codec.encode, codec.dump):
        with pytest.raises(UnencodableCheckpointError, match=str(node)):
            write(data)


# --- decode -----------------------------------------------------------------------------------------------------------


@every_codec
@given(checkpoint_data())
@example(ODD)
@example(CheckpointData())
@example(CheckpointData((), {}))
def test_encode_then_decode_is_identity(codec: ModuleType, data: CheckpointData) -> None:
    ours = of(codec, data)
    found = codec.decode(codec.encode(ours))
    assert (found.format, found.valid, found.explanation) == (2, True, "")
    assert found.verified() == ours


@every_codec
@given(checkpoint_data())
@example(ODD)
@example(CheckpointData((PodDevicesEntry(),)))
@example(CheckpointData((PodDevicesEntry(device_ids={1: ("b", "a"), 0: ("a", "c"), 2: None}),)))
def test_format_1_keeps_everything_but_the_nodes(codec: ModuleType, data: CheckpointData) -> None:
    ours = of(codec, data)
    blob = codec.encode(ours, 1)
    found = codec.decode(blob)
    read = found.verified()
    assert codec.encode(read, found.format) == blob
    assert read.registered_devices == data.registered_devices
    assert [devices(entry) for entry in read.entries or ()] == [devices(entry) for entry in data.entries or ()]
    for entry, original in zip(read.entries or (), data.entries or (), strict=True):
        assert (entry.pod_uid, entry.container_name) == (original.pod_uid, original.container_name)
        assert (entry.resource_name, entry.alloc_resp) == (original.resource_name, original.alloc_resp)


def devices(entry: PodDevicesEntry) -> set[str]:
    return {device for ids in (entry.device_ids or {}).values() for device in ids or ()}


def examine(codec: ModuleType, blob: bytes) -> tuple[Any, ...]:
    """Return the codec's verdict on `blob`. An error that is not the codec's own fails the test."""
    finding = codec.judge(blob)
    try:
        found = codec.decode(blob)
        found.verified()
    except MalformedCheckpointError:
        assert finding.verdict.value == "malformed"
    except CorruptCheckpointError:
        assert finding.verdict.value == "checksum"
        assert found.format in {1, 2}
    except CheckpointError as error:  # pragma: no cover - there is no other case, and this line says so
        raise AssertionError from error
    else:
        assert finding.verdict.value == "ok"
        if found.format:  # data that was read can be written, and is read back unchanged
            assert codec.decode(codec.encode(found.data, found.format)).data == found.data
    return (finding.verdict.value, finding.format, finding.stored, finding.computed, finding.entries, finding.resources)


def agree(blob: bytes) -> None:
    fast, pure = (examine(codec, blob) for codec in CODECS.values())
    assert fast == pure


@given(st.binary(max_size=60))
@example(b"")
@example(b"\xef\xbb\xbf{}")
@example(b"\xff\xfe{\0}\0")
@example(b"{}\0")
@example(b"[" * 100_000)
@example(b'{"a":' * 20_000)
@example(b'{"x":' + b"[" * 9_999 + b"]" * 9_999 + b"}")
@example(b"9" * 5_000)
@example(b'{"Checksum":' + b"9" * 5_000 + b"}")
@example(b'{"Checksum":1e99999}')
@example(b'{"Checksum":NaN}')
@example(b"null")
def test_any_bytes_get_a_verdict(blob: bytes) -> None:
    agree(blob)


@given(json_values())
@example({"Data": {"PodDeviceEntries": [{"DeviceIDs": {"9" * 5_000: []}}]}})
@example({"Data": {"PodDeviceEntries": [{"DeviceIDs": {"0" * 5_000: []}}]}})
@example({"Data": {"PodDeviceEntries": [None]}})
@example({"Data": {"PodDeviceEntries": [{"AllocResp": [0, None]}]}})
@example({"Data": {"RegisteredDevices": {"\ud800": ["\udfff"]}}})
@example([{"DeviceIDs": [None]}])
def test_any_json_gets_a_verdict(value: object) -> None:
    agree(json.dumps(value).encode())
    agree(json.dumps({"Data": {"PodDeviceEntries": [value], "RegisteredDevices": value}, "Checksum": 0}).encode())


@given(mutated_files())
def test_any_damaged_file_gets_a_verdict(blob: bytes) -> None:
    agree(blob)


@every_codec
@given(checkpoint_data(), st.integers(0, 4))
@example(ODD, 1)
def test_layout_does_not_matter(codec: ModuleType, data: CheckpointData, indent: int) -> None:
    blob = codec.encode(of(codec, data))
    for text in (json.dumps(json.loads(blob), indent=indent), json.dumps(json.loads(blob), sort_keys=True)):
        assert codec.decode(text.encode()).verified() == of(codec, data)
    assert codec.decode(orjson.dumps(orjson.loads(blob))).verified() == of(codec, data)
