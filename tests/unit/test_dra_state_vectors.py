"""Checks of `dra_manager_state` against a kubelet: files that it has written, and its verdicts on other files."""

import base64
from itertools import islice
from typing import Any

import pytest

from devicecore.domain.checkpoint.verdict import FileVerdict
from devicecore.domain.dra.claims import ClaimCache
from devicecore.domain.dra.model import PreparedDevice
from devicecore.domain.dra.state_file import ClaimEntry, StateWriter, decode, encode, judge
from devicecore.domain.errors import CorruptCheckpointError, MalformedCheckpointError
from tests.recorded import check_each, lines, share

Json = Any  # recorded data, whose structure the tests themselves check

VERDICTS = {"ok": FileVerdict.OK, "checksum": FileVerdict.CHECKSUM, "malformed": FileVerdict.MALFORMED}


def strings(value: list[str] | None) -> tuple[str, ...] | None:
    return None if value is None else tuple(value)


def device_of(case: Json) -> PreparedDevice:
    requests, ids = strings(case["RequestNames"]), strings(case["CDIDeviceIDs"])
    return PreparedDevice(case["PoolName"], case["DeviceName"], case["ShareID"], requests, ids)


def entry_of(case: Json) -> ClaimEntry:
    drivers = case["DriverState"]
    if drivers is not None:
        drivers = {
            name: None if state["Devices"] is None else tuple(map(device_of, state["Devices"]))
            for name, state in drivers.items()
        }
    return ClaimEntry(case["ClaimUID"], case["ClaimName"], case["Namespace"], strings(case["PodUIDs"]), drivers)


def recorded_claims(claims: Json) -> Json:
    """Return the claims of a recording, sorted, because their order has no meaning."""
    return sorted(map(entry_of, claims or ()), key=lambda entry: (entry.namespace, entry.name))


def claims_of(blob: bytes) -> Json:
    """Return the claims of a file as recordings show them: sorted by key, with sorted pods, and no pods for null."""
    by_key = {(entry.namespace, entry.name): entry for entry in decode(blob).entries}
    entries = (
        ClaimEntry(entry.uid, entry.name, entry.namespace, tuple(sorted(entry.pods or ())), entry.drivers)
        for entry in by_key.values()
    )
    return sorted(entries, key=lambda entry: (entry.namespace, entry.name))


def test_a_file_of_claims_is_the_kubelets_byte_for_byte() -> None:
    def check(case: Json) -> None:
        entries = None if case["claims"] is None else [entry_of(claim) for claim in case["claims"]]
        assert encode(entries) == base64.b64decode(case["bytes"])

    check_each(lines("dra/encode*.jsonl"), check)


def test_what_a_kubelet_has_written_is_read_and_written_again() -> None:
    def check(case: Json) -> None:
        blob = base64.b64decode(case["bytes"])
        found = decode(blob)
        assert found.stored == found.computed
        if case["claims"] is not None:
            assert encode(found.entries) == blob

    check_each(lines("dra/encode*.jsonl"), check)


def test_a_verdict_on_a_file_of_claims_is_the_kubelets() -> None:
    check_each(share(list(lines("dra/decode*.jsonl")), of=3), check_verdict)


def check_verdict(case: Json) -> None:
    blob = base64.b64decode(case["bytes"])
    report = judge(blob)
    assert report.verdict is VERDICTS[case["verdict"]]
    assert bool(report.problem) is (report.verdict is not FileVerdict.OK)
    if case["verdict"] == "ok":
        assert claims_of(blob) == recorded_claims(case["claims"])


@pytest.mark.parametrize(
    ("text", "checksum"),
    [
        ("null", 4010664294),
        ("[]", 2361995144),
        ('[{"ClaimUID":"u1","ClaimName":"c1","Namespace":"ns","PodUIDs":{"p1":{}},"DriverState":{}}]', 3396539654),
        (
            (
                '[{"ClaimUID":"u1","ClaimName":"c1","Namespace":"ns","PodUIDs":{"p1":{}},'
                '"DriverState":{"gpu.example.com":{"Devices":null}}}]'
            ),
            1026101120,
        ),
        (
            (
                '[{"ClaimUID":"u1","ClaimName":"c1","Namespace":"ns","PodUIDs":{"p1":{}},"DriverState":'
                '{"gpu.example.com":{"Devices":[{"PoolName":"node-1","DeviceName":"gpu-0","ShareID":null,'
                '"RequestNames":["r"],"CDIDeviceIDs":["gpu.example.com/gpu=u1-gpu-0"]}]}}}]'
            ),
            1656044793,
        ),
    ],
)
def test_known_lists_have_known_checksums(text: str, checksum: int) -> None:
    data = f'{{"kind":"DRACheckpoint","apiVersion":"checkpoint.dra.kubelet.k8s.io/v1","ClaimInfoStateList":{text}}}'
    escaped = data.replace("\\", "\\\\").replace('"', '\\"')
    blob = f'{{"Data":"{escaped}","Checksum":{checksum}}}'.encode()
    assert judge(blob).verdict is FileVerdict.OK
    if text != "null":
        assert encode(decode(blob).entries) == blob


@pytest.mark.parametrize("blob", [b"{}", b"null", b'{"Data":null}', b' {"data":null} \n'])
def test_a_file_without_data_is_empty(blob: bytes) -> None:
    assert decode(blob).cache == ClaimCache()


def test_the_file_of_an_older_kubelet_is_refused_as_corrupt() -> None:
    with pytest.raises(CorruptCheckpointError, match=r"a kubelet before 1\.32"):
        decode(b'{"version":"v1","entries":[],"checksum":2412023312}')


@pytest.mark.parametrize(
    ("checksum", "said"),
    [('"1"', "cannot use string as uint32"), ("4294967296", "expected a number from 0 to 4294967295, got 4294967296")],
)
def test_a_file_that_cannot_be_read_says_where(checksum: str, said: str) -> None:
    with pytest.raises(MalformedCheckpointError, match=f"Checksum: {said}"):
        decode(f'{{"Checksum":{checksum}}}'.encode())


def test_no_file_is_absent() -> None:
    assert judge(None).verdict is FileVerdict.ABSENT


def test_writing_again_and_again_gives_what_writing_once_gives() -> None:
    def check(case: Json) -> None:
        claims = [entry_of(claim).claim for claim in case["claims"] or ()]
        writer = StateWriter()
        for count in (len(claims), 0, 1, len(claims), len(claims) // 2):
            cache = ClaimCache.of(claims[:count])
            assert writer.encode(cache) == encode([ClaimEntry.of(claim) for claim in cache.claims.values()])

    check_each(islice(lines("dra/encode*.jsonl"), 30), check)
