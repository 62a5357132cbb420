"""Checks against a kubelet: files that it has written, and its verdicts on other files."""

import base64
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest
from attrs import evolve

from devicecore.adapters.memory import MemoryStore
from devicecore.domain.checkpoint import (
    CheckpointData,
    CheckpointWriter,
    FileVerdict,
    PodDevicesEntry,
    checkpoint_of,
    checksum,
    decode,
    dump,
    encode,
    judge,
    restore,
)
from devicecore.domain.checkpoint.go_json import MAX_DEPTH, parse
from devicecore.domain.errors import CorruptCheckpointError, MalformedCheckpointError
from devicecore.plugins.simulated import SimulatedPlugin
from tests.memory_manager import MemoryManager
from tests.recorded import check_each, lines

DATA = Path(__file__).parent.parent / "data"


def cases(key: str) -> list[Any]:
    """Return a parameter for each case in this part of the catalog."""
    catalogue = json.loads((DATA / "cases" / "checkpoint.json").read_text(encoding="utf-8"))
    return [pytest.param(case, id=case.get("id")) for case in catalogue[key]]


def strings(value: list[str] | None) -> tuple[str, ...] | None:
    return None if value is None else tuple(value)


def entry_of(case: dict[str, Any]) -> PodDevicesEntry:
    devices, response = case["deviceIDs"], case["allocResp"]
    return PodDevicesEntry(
        case["podUID"],
        case["containerName"],
        case["resourceName"],
        None if devices is None else {int(node): strings(ids) for node, ids in devices.items()},
        None if response is None else base64.b64decode(response),
    )


def data_of(case: dict[str, Any]) -> CheckpointData:
    entries, registered = case["entries"], case["registeredDevices"]
    return CheckpointData(
        None if entries is None else tuple(entry_of(entry) for entry in entries),
        None if registered is None else {name: strings(ids) for name, ids in registered.items()},
    )


def test_a_file_of_ours_is_the_kubelets_byte_for_byte() -> None:
    def check(case: dict[str, Any]) -> None:
        data = data_of(case["data"])
        assert encode(data) == case["file"].encode()
        assert dump(data) == case["hashed"].encode()
        assert checksum(data) == case["checksum"]

    check_each(lines("checkpoint/encode*.jsonl"), check)


def test_what_a_kubelet_wrote_is_read_as_what_it_meant() -> None:
    def check(case: dict[str, Any]) -> None:
        found = decode(case["file"].encode())
        assert (found.format, found.verified()) == (2, data_of(case["data"]))

    check_each(lines("checkpoint/encode*.jsonl"), check)


def test_a_file_is_judged_as_the_kubelet_judges_it() -> None:
    check_each(lines("checkpoint/decode*.jsonl"), check_verdict)


def check_verdict(case: dict[str, Any]) -> None:
    finding = judge(base64.b64decode(case["file_b64"]))
    if case["verdict"] == "malformed":  # to a current kubelet, formats 1 and 0 are malformed, too
        assert finding.verdict is FileVerdict.MALFORMED or finding.format in {0, 1}
        return
    assert finding.format == 2
    assert finding.verdict.value == case["verdict"]
    assert (finding.stored, finding.computed) == (case["stored"], case["computed"])
    assert (finding.entries, finding.resources) == (case["entries"], case["resources"])


@pytest.mark.parametrize("case", cases("text_and_checksum"))
def test_the_text_that_is_hashed_is_gos_dump_of_the_data(case: dict[str, Any]) -> None:
    file = case.get("file") or {"Data": case["data"], "Checksum": case["checksum"]}
    found = decode(json.dumps(file).encode())
    assert dump(found.verified()) == case["hash_text"].encode()
    assert found.computed == case["checksum"]


RECOVERY = {
    "no file": FileVerdict.ABSENT,
    "bad checksum": FileVerdict.CHECKSUM,
    "not JSON": FileVerdict.MALFORMED,
    "pre-1.20 flat DeviceIDs list": FileVerdict.OK,
}


@pytest.mark.parametrize("case", [case for case in cases("recovery") if case.id in RECOVERY])
def test_a_file_that_a_kubelet_may_find_gets_its_verdict(case: dict[str, Any]) -> None:
    text = case.get("file_text") or (json.dumps(case["file"]) if case["file"] else None)
    assert judge(None if text is None else text.encode()).verdict is RECOVERY[case["id"]]


@pytest.mark.parametrize(
    ("name", "form", "stored", "computed", "devices"),
    [
        ("empty", 2, 3467439661, 3467439661, []),
        ("one-pod", 1, 3602853121, 82159178, [8]),
        ("two-pods", 1, 3285376913, 3285376913, [8, 10, 2]),
    ],
)
def test_published_files_of_1_13_are_read(name: str, form: int, stored: int, computed: int, devices: list[int]) -> None:
    """Without entries, formats 1 and 2 cannot be told apart.

    The file with one pod was already published with an error.
    """
    found = decode((DATA / "checkpoint" / f"v1.13-{name}.json").read_bytes())
    assert (found.format, found.stored, found.computed) == (form, stored, computed)
    assert [len((entry.device_ids or {})[0] or ()) for entry in found.data.entries or ()] == devices


# --- cases without a recorded file ----------------------------------------------------------------------------------

EMPTY = 2932075448  # the checksum of [] and {}


def entries_of(text: str) -> tuple[PodDevicesEntry, ...] | None:
    """Return the entries of a file whose `Data` has these members, given as JSON."""
    return decode(f'{{"Data":{{{text}}}}}'.encode()).data.entries


@pytest.mark.parametrize(
    ("text", "pods"),
    [
        ('"PodDeviceEntries":[{"PodUID":"a"},{"PodUID":"b"}],"PodDeviceEntries":[{}]', ["a"]),
        ('"PodDeviceEntries":[{"PodUID":"a"},{"PodUID":"b"}],"PodDeviceEntries":[{},{}]', ["a", "b"]),
        (
            '"PodDeviceEntries":[{"PodUID":"a"},{"PodUID":"b"}],"PodDeviceEntries":[{}],"podDeviceEntries":[{},null]',
            ["a", "b"],
        ),
        ('"PodDeviceEntries":[{"PodUID":"a"}],"PodDeviceEntries":[],"PodDeviceEntries":[{}]', [""]),
        ('"PodDeviceEntries":[{"PodUID":"a"}],"PodDeviceEntries":null,"PodDeviceEntries":[{}]', [""]),
        ('"PodDeviceEntries":[{"PodUID":"a","poduid":null}]', ["a"]),
    ],
)
def test_a_repeated_list_is_decoded_into_its_old_elements(text: str, pods: list[str]) -> None:
    assert [entry.pod_uid for entry in entries_of(text) or ()] == pods


@pytest.mark.parametrize(
    ("text", "response"),
    [
        ('"AllocResp":"AQID"', b"\1\2\3"),
        ('"AllocResp":""', b""),
        ('"AllocResp":null', None),
        ('"AllocResp":[]', b""),
        ('"AllocResp":[1,null,255]', b"\1\0\xff"),
        ('"AllocResp":"AQID","AllocResp":[9,null]', b"\x09\2"),
        ('"AllocResp":[1,2,3],"AllocResp":[9],"AllocResp":[null,null,null,null]', b"\x09\2\3\0"),
        ('"AllocResp":[1,2,3],"AllocResp":"AQ==","AllocResp":[null,null]', b"\1\0"),
        ('"AllocResp":"\\nA\\rQ==\\n"', b"\1"),
        ('"AllocResp":"AR=\\n="', b"\1"),
    ],
)
def test_a_response_is_read_as_go_reads_bytes(text: str, response: bytes | None) -> None:
    assert (entries_of(f'"PodDeviceEntries":[{{{text}}}]') or ())[0].alloc_resp == response


def test_map_values_are_new_and_maps_are_merged() -> None:
    entries = entries_of(
        '"PodDeviceEntries":[{"DeviceIDs":{"0":["a","b"],"+1":["c"],"007":[null]},"DeviceIDs":{"0":[null],"1":null}}]'
    )
    assert (entries or ())[0].device_ids == {0: ("",), 1: None, 7: ("",)}


def filled(text: str) -> bytes:
    """Return the file that a pattern describes, with its placeholders filled in."""
    return text.replace("SUM}", f"{EMPTY}}}").replace("SUM,", f"{EMPTY},").replace("NINES", "9" * 5000).encode()


def shown(text: str) -> str:
    """Return the test id for a text."""
    start, end = (text[:20], f"...{text[-20:]}x{len(text)}") if len(text) > 100 else (text, "")
    return (start + end).encode("unicode_escape").decode()


DEEP = MAX_DEPTH - 1  # the maximum depth of a value, which is within the file's own brackets


@pytest.mark.parametrize(
    "text",
    [
        '{"Checksum":SUM}',
        '{"Data":null,"Checksum":SUM}',
        '{"checK\u017fum":1,"CHEC\u212aSUM":SUM}',
        '{"Checksum":SUM,"Checksum":null}',
        '{"x":NINES,"Checksum":SUM}',
        '{"x":1e999999999,"Checksum":SUM}',
        '{"x":"\\ud800\\\\ud800\\udc00\\ud83d\\ude00\ufeff\u007f","Checksum":SUM}',
        '{"x":' + "[" * DEEP + "]" * DEEP + ',"Checksum":SUM}',
        '{"x":' + '{"a":' * DEEP + "1" + "}" * DEEP + ',"Checksum":SUM}',
        '{"x":' + "[" * (DEEP - 2) + ' [ ] , { } , { "a" : [ 1.5 , "b" ] } ' + "]" * (DEEP - 2) + ',"Checksum":SUM}',
    ],
    ids=shown,
)
def test_what_go_accepts_is_accepted(text: str) -> None:
    data = decode(filled(text)).verified()
    assert (data.entries, data.registered_devices) == ((), {})
    assert decode(encode(data)).verified() == data


@pytest.mark.parametrize(("begin", "end"), [("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")])
def test_the_depth_is_bounded_where_python_reads_as_deep(begin: str, end: str) -> None:
    """Python's own limit differs between versions, and a program can raise it, except in 3.12 and 3.13."""
    levels = MAX_DEPTH // len(begin.replace('"a":', ""))
    problems: list[str] = []

    def read() -> None:
        for more in (0, 1):
            try:
                parse((begin * (levels + more) + "0" + end * (levels + more)).encode())
            except MalformedCheckpointError as error:
                # Our own reader, which takes over where Python's parser gives up, also names the position.
                problems.append(f"{more} more: {error.problem.partition(': line ')[0]}")

    limit, size = sys.getrecursionlimit(), threading.stack_size(256 << 20)
    sys.setrecursionlimit(3 * MAX_DEPTH)
    try:
        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
    finally:
        sys.setrecursionlimit(limit)
        threading.stack_size(size)
    assert problems == ["1 more: not JSON: exceeded max depth"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "1",
        '"x"',
        "\ufeff{}",
        "{}x",
        "{} {}",
        "[1]",
        '[{"DeviceIDs":{}}]',
        '{"Data":[]}',
        '{"Data":1}',
        '{"Data":"x"}',
        '{"Data":true}',
        '{"x":NaN}',
        '{"x":-Infinity}',
        '{"x":01}',
        '{"x":1.}',
        '{"x":"\t"}',
        '{"x":"\\x"}',
        '{"x":"\\u+123"}',
        '{"Checksum":-0}',
        '{"Checksum":1e3}',
        '{"Checksum":1.0}',
        '{"Checksum":"1"}',
        '{"Checksum":true}',
        '{"Checksum":18446744073709551616}',
        '{"Checksum":NINES}',
        '{"Data":{"RegisteredDevices":[]}}',
        '{"Data":{"RegisteredDevices":{"a":"b"}}}',
        '{"Data":{"RegisteredDevices":{"a":[1]}}}',
        '{"Data":{"RegisteredDevices":{"a":[["b"]]}}}',
        '{"Data":{"PodDeviceEntries":{}}}',
        '{"Data":{"PodDeviceEntries":[1]}}',
        '{"Data":{"PodDeviceEntries":[{"PodUID":1}]}}',
        '{"Data":{"PodDeviceEntries":[{"DeviceIDs":{"":[]}}]}}',
        '{"Data":{"PodDeviceEntries":[{"DeviceIDs":{"+":[]}}]}}',
        '{"Data":{"PodDeviceEntries":[{"DeviceIDs":{" 1":[]}}]}}',
        '{"Data":{"PodDeviceEntries":[{"DeviceIDs":{"1_0":[]}}]}}',
        '{"Data":{"PodDeviceEntries":[{"DeviceIDs":{"\u0661":[]}}]}}',
        '{"Data":{"PodDeviceEntries":[{"DeviceIDs":{"9223372036854775808":[]}}]}}',
        '{"Data":{"PodDeviceEntries":[{"DeviceIDs":{"NINES":[]}}]}}',
        '{"Data":{"PodDeviceEntries":[{"DeviceIDs":{"0":[]}},{"DeviceIDs":[]}]}}',
        '{"Data":{"PodDeviceEntries":[{"AllocResp":"AAAA="}]}}',
        '{"Data":{"PodDeviceEntries":[{"AllocResp":"AAAA===="}]}}',
        '{"Data":{"PodDeviceEntries":[{"AllocResp":"AA"}]}}',
        '{"Data":{"PodDeviceEntries":[{"AllocResp":"AA=A"}]}}',
        '{"Data":{"PodDeviceEntries":[{"AllocResp":"A A="}]}}',
        '{"Data":{"PodDeviceEntries":[{"AllocResp":"A-_="}]}}',
        '{"Data":{"PodDeviceEntries":[{"AllocResp":[256]}]}}',
        '{"Data":{"PodDeviceEntries":[{"AllocResp":[-1]}]}}',
        '{"Data":{"PodDeviceEntries":[{"AllocResp":[1.0]}]}}',
        '{"Data":{"PodDeviceEntries":[{"AllocResp":["1"]}]}}',
        '{"x":' + "[" * (DEEP + 1) + "]" * (DEEP + 1) + "}",
        '{"x":' + '{"a":' * (DEEP + 1) + "1" + "}" * (DEEP + 1) + "}",
        '{"x":' + "[" * 1_000_000 + "]" * 1_000_000 + "}",
        "[" * 100_000,
        "[" * 5_000 + "]" * 5_001,
        "[" * 5_000 + "}",
        "[" * 5_000 + "1 2",
        "[" * 5_000 + "{1:2}",
        "[" * 5_000 + '{"a" 2}',
        "[" * 5_000 + "nul",
    ],
    ids=shown,
)
def test_what_go_refuses_is_malformed(text: str) -> None:
    with pytest.raises(MalformedCheckpointError):
        decode(filled(text))


def test_the_largest_and_smallest_numbers_are_read() -> None:
    found = decode(
        b'{"Data":{"PodDeviceEntries":[{"DeviceIDs":{"-9223372036854775808":[],"+9223372036854775807":[],"%b5":[]}}]},'
        b'"Checksum":18446744073709551615}' % (b"0" * 5000)
    )
    assert found.stored == 2**64 - 1
    assert list((found.data.entries or ())[0].device_ids or ()) == [-(2**63), 2**63 - 1, 5]
    assert found.explanation == "a checksum cannot have more than 32 bits"


@pytest.mark.parametrize(
    ("raw", "read"),
    [
        (b"\xe6\x97", "\ufffd\ufffd"),
        (b"\xf0\x9f\x98x", "\ufffd\ufffd\ufffdx"),
        (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),
        (b"\xc0\x80\xff", "\ufffd\ufffd\ufffd"),
        (b"\\ud800", "\ufffd"),
        (b"\\udc00\\ud800", "\ufffd\ufffd"),
        (b"\\ud800\\ud83d\\ude00", "\ufffd\U0001f600"),
        (b"\\\\ud800", "\\ud800"),
        (b"\\uD83D\\uDE00", "\U0001f600"),
        (b"\\ud800\xff\\u0041", "\ufffd\ufffdA"),
    ],
)
def test_each_invalid_piece_of_text_becomes_one_replacement_character(raw: bytes, read: str) -> None:
    found = decode(b'{"Data":{"RegisteredDevices":{"%b":["%b"]}}}' % (raw, raw))
    assert found.data.registered_devices == {read: (read,)}


def test_only_two_letters_outside_ascii_fold_into_a_field_name() -> None:
    """Go treats U+017F as an s and U+212A as a k, and knows no other such equivalents."""
    others = [other for other in map(chr, range(0x80, 0x110000)) if other != normalize("NFKC", other.casefold())]
    patterns = ("Chec{}sum", "Check{}um", "Regi{}eredDevices")
    names = {pattern.format(other): other for other in others for pattern in patterns}
    unknown = decode(json.dumps(dict.fromkeys(names)).encode()).data.extra.all
    assert {names[name] for name in names.keys() - unknown.keys()} == {"\u017f", "\u212a"}


# --- formats, checksums, the rest of the file -------------------------------------------------------------------------

DEVICES = CheckpointData((PodDevicesEntry("u", "c", "a.com/x", {0: ("d", "e")}, b"\1"),), {"a.com/x": ("d", "e", "f")})


def test_a_bare_list_is_format_0_and_has_no_checksum() -> None:
    found = decode(b'[{"PodUID":"u","DeviceIDs":["d"],"AllocResp":"AQ=="},{"DeviceIDs":null}]')
    assert (found.format, found.stored, found.computed, found.valid) == (0, None, None, True)
    assert found.verified().entries == (PodDevicesEntry("u", "", "", {0: ("d",)}, b"\1"), PodDevicesEntry())
    assert decode(b"[]").data.entries == ()
    assert judge(b"[]").format == 0


def test_unknown_fields_of_the_file_are_kept() -> None:
    blob = encode(DEVICES)[:-1] + b',"BootID":"b\\u00e9","x":{"a":[1e5,null,true,{}],"b":"\\""},"x":[],"Checksum":null}'
    found = decode(blob)
    assert found.data.extra.at_end == {"BootID": '"b\u00e9"', "x": "[]"}
    assert decode(blob.replace(b',"x":[]', b"")).data.extra.all["x"] == '{"a":[1e5,null,true,{}],"b":"\\""}'
    assert found.verified() == evolve(DEVICES, extra=found.data.extra)


def test_a_manager_writes_back_what_it_found_in_the_file() -> None:
    store = MemoryStore(encode(DEVICES).replace(b'{"Data":', b'{"BootID":"1234","Data":'))
    with MemoryManager(SimulatedPlugin("example.com/gpu"), store=store):
        pass
    saved = store.load()
    assert saved is not None
    assert saved.startswith(b'{"BootID":"1234","Data":{')
    assert b'"gpu-1"' in saved


@pytest.mark.parametrize("format_", [1, 2])
@pytest.mark.parametrize(
    "change",
    [
        (b'{"Data":', b'{"BootID":"a\\u003cb\\u2028\xc3\xa9\\n\\u0001\x7f","Data":'),
        (b',"Checksum":', b',"BootID":"1","n":{"a":[1.50,-0,1e5,null,true,{},[]]},"Checksum":'),
        (b"}", b',"BootID":"1","z":null,"a":[]}'),
    ],
)
def test_unknown_fields_are_written_back_byte_for_byte(format_: int, change: tuple[bytes, bytes]) -> None:
    """The fields keep their places and are written as in Go, even by a writer that got the fields from a file."""
    head, old, tail = encode(DEVICES, format_).rpartition(change[0])
    blob = head + change[1] + tail if old else b""
    data = decode(blob).verified()
    assert encode(data, format_) == blob
    state = restore(data, 0.0)
    expected = encode(evolve(checkpoint_of(state), extra=data.extra))
    assert CheckpointWriter(data.extra).file(state) == expected
    assert len(expected) > len(encode(checkpoint_of(state)))


@pytest.mark.parametrize(("written", "summed"), [(1, 2), (2, 1)])
def test_a_checksum_of_the_other_format_is_recognized(written: int, summed: int) -> None:
    blob = encode(DEVICES, written).replace(b"%d" % checksum(DEVICES, written), b"%d" % checksum(DEVICES, summed))
    with pytest.raises(CorruptCheckpointError) as caught:
        decode(blob).verified()
    assert (caught.value.stored, caught.value.computed) == (checksum(DEVICES, summed), checksum(DEVICES, written))
    assert caught.value.explanation == f"it is the checksum of the same data in format {summed}"


def test_a_file_without_checksum_says_so() -> None:
    assert decode(b'{"data":{}}').explanation == "the file has no checksum"
    for other in (b"null", b"{}", b'{"kind":"PodList","items":[]}', b'{"checksum":1353318690,"policyName":"none"}'):
        assert decode(other).explanation == "this is not a checkpoint: expected the members Data and Checksum"
    assert decode(encode(DEVICES)).explanation == ""


def test_a_refusal_says_where_and_why() -> None:
    with pytest.raises(MalformedCheckpointError) as caught:
        decode(b'{"Data":{"PodDeviceEntries":[{},{"deviceIDs":{"0":["a",true]}}]}}')
    assert caught.value.problem == "Data.PodDeviceEntries[1].deviceIDs[0][1]: cannot use bool as string"
    with pytest.raises(MalformedCheckpointError) as caught:
        decode(b"7")
    assert caught.value.problem == "cannot use number 7 as struct"
    with pytest.raises(MalformedCheckpointError) as caught:
        decode(b"7" * 50)
    assert caught.value.problem == f"cannot use number {'7' * 40} as struct"


@pytest.mark.parametrize("write", [encode, dump, checksum])
def test_only_formats_1_and_2_are_written(write: Callable[[CheckpointData, int], object]) -> None:
    with pytest.raises(ValueError, match="format 0 cannot be written"):
        write(DEVICES, 0)
