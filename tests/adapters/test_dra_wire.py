"""Messages between kubelets and DRA drivers, and their conversion to and from values."""

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given
from hypothesis import strategies as st

from devicecore.domain.dra.answers import PrepareResult, UnprepareResult
from devicecore.domain.dra.health import DraHealth, ReportedHealth
from devicecore.domain.dra.model import ClaimKey, ClaimRef, ClaimUid, PreparedDevice
from devicecore.wire import dra_conversion as conversion
from devicecore.wire import dra_health_v1alpha1, dra_v1, dra_v1beta1

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
names = st.lists(text, min_size=1, max_size=3).map(tuple) | st.none()
devices = st.builds(PreparedDevice, text, text, text | st.none(), names, names)
results = st.builds(PrepareResult, st.lists(devices, max_size=3).map(tuple), text)
uids = text.map(ClaimUid)
claims = st.lists(st.builds(ClaimRef, st.builds(ClaimKey, text, text), uids), max_size=4).map(tuple)
reports = st.lists(
    st.builds(ReportedHealth, text, text, st.sampled_from(DraHealth), st.integers(-(2**63), 2**63 - 1), text),
    max_size=4,
).map(tuple)
U1 = ClaimUid("u1")


def test_the_messages_have_the_kubelets_names_and_numbers() -> None:
    def fields(message: type[Message]) -> dict[str, int]:
        return {field.name: field.number for field in message.DESCRIPTOR.fields}

    for version, more in ((dra_v1, {"share_id": 5}), (dra_v1beta1, {})):
        package = f"k8s.io.kubelet.pkg.apis.dra.{version.__name__.rpartition('_')[2]}"
        service = version.DESCRIPTOR.services_by_name["DRAPlugin"]
        assert service.full_name == f"{package}.DRAPlugin"
        assert list(service.methods_by_name) == ["NodePrepareResources", "NodeUnprepareResources"]
        assert version.Device.DESCRIPTOR.full_name == f"{package}.Device"
        assert fields(version.Device) == {
            "request_names": 1, "pool_name": 2, "device_name": 3, "cdi_device_ids": 4, **more,
        }  # fmt: skip  # as a table
        assert fields(version.Claim) == {"namespace": 1, "uid": 2, "name": 3}
        assert fields(version.NodePrepareResourceResponse) == {"devices": 1, "error": 2}
        assert fields(version.NodeUnprepareResourceResponse) == {"error": 1}
    service = dra_health_v1alpha1.DESCRIPTOR.services_by_name["DRAResourceHealth"]
    assert service.full_name == "v1alpha1.DRAResourceHealth"
    assert fields(dra_health_v1alpha1.DeviceHealth) == {
        "device": 1, "health": 2, "last_updated_time": 3, "health_check_timeout_seconds": 4, "message": 5,
    }  # fmt: skip  # as a table


def test_messages_have_the_bytes_that_a_kubelet_writes_and_reads() -> None:
    request = dra_v1.NodePrepareResourcesRequest(
        claims=[dra_v1.Claim(namespace="ns", uid="u1", name="c1")]
    ).SerializeToString()
    assert request.hex() == "0a0c0a026e73120275311a026331"
    device = PreparedDevice("p", "d", None, ("r",), ("gpu.example.com/gpu=u1",))
    answer = conversion.from_prepared({U1: PrepareResult((device,))}).SerializeToString()
    assert answer.hex() == "0a290a02753112230a210a01721201701a016422166770752e6578616d706c652e636f6d2f6770753d7531"
    busy = conversion.from_prepared({U1: PrepareResult(error="busy")}).SerializeToString()
    assert busy.hex() == "0a0c0a0275311206120462757379"
    assert conversion.from_unprepared({U1: UnprepareResult()}).SerializeToString().hex() == "0a060a0275311200"
    without_value = dra_v1.NodeUnprepareResourcesResponse.FromString(bytes.fromhex("0a040a027531"))
    assert conversion.to_unprepared(without_value) == {U1: UnprepareResult()}
    report = conversion.from_report([ReportedHealth("p", "d", DraHealth.HEALTHY)], 0).SerializeToString()
    assert report.hex() == "0a0a0a060a01701201641001"


@given(st.dictionaries(uids, results, max_size=3))
def test_an_answer_survives_the_wire(answer: dict[ClaimUid, PrepareResult]) -> None:
    data = conversion.from_prepared(answer).SerializeToString()
    assert conversion.to_prepared(dra_v1.NodePrepareResourcesResponse.FromString(data)) == answer


@given(st.dictionaries(uids, text.map(UnprepareResult), max_size=3), claims)
def test_a_release_survives_the_wire(answer: dict[ClaimUid, UnprepareResult], asked: tuple[ClaimRef, ...]) -> None:
    data = conversion.from_unprepared(answer).SerializeToString()
    assert conversion.to_unprepared(dra_v1beta1.NodeUnprepareResourcesResponse.FromString(data)) == answer
    request = dra_v1beta1.NodeUnprepareResourcesRequest(claims=conversion.from_claims(asked)).SerializeToString()
    assert conversion.to_claims(dra_v1.NodeUnprepareResourcesRequest.FromString(request).claims) == asked


@given(reports)
def test_a_health_report_survives_the_wire(report: tuple[ReportedHealth, ...]) -> None:
    data = conversion.from_report(report, 1).SerializeToString()
    assert conversion.to_report(dra_health_v1alpha1.NodeWatchResourcesResponse.FromString(data)) == report


def test_v1beta1_has_no_share_ids() -> None:
    data = conversion.from_prepared({U1: PrepareResult((PreparedDevice("p", "d", "s"),))}).SerializeToString()
    answer = conversion.to_prepared(dra_v1beta1.NodePrepareResourcesResponse.FromString(data))
    assert answer == {U1: PrepareResult((PreparedDevice("p", "d", None),))}


def test_an_unknown_health_and_a_missing_identifier_are_read() -> None:
    message = dra_health_v1alpha1.NodeWatchResourcesResponse.FromString(bytes.fromhex("0a02100a0a00"))
    nameless = ReportedHealth("", "", DraHealth.UNKNOWN)
    assert conversion.to_report(message) == (nameless, nameless)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ({ClaimUid(str(n)): PrepareResult() for n in range(1001)}, "1001 claims, expected at most 1000"),
        ({U1: PrepareResult((PreparedDevice("p", "d"),) * 10_001)}, "10001 devices, expected at most 10000"),
        ({U1: PrepareResult((PreparedDevice("p", "d", None, ("r",) * 100_001),))}, "100001 names"),
        ({U1: PrepareResult((PreparedDevice("p" * 4097, "d"),))}, "4097 characters of a name"),
        ({U1: PrepareResult((PreparedDevice("p", "d", "s" * 4097),))}, "4097 characters of a name"),
        ({ClaimUid("u" * 4097): PrepareResult()}, "4097 characters of a name"),
    ],
    ids=["claims", "devices", "names", "long name", "long share", "long uid"],
)
def test_an_answer_with_too_much_in_it_is_refused(answer: dict[ClaimUid, PrepareResult], sentence: str) -> None:
    with pytest.raises(conversion.TooMuchError, match=sentence):
        conversion.to_prepared(conversion.from_prepared(answer))


def test_a_release_or_a_report_with_too_much_in_it_is_refused() -> None:
    many = {ClaimUid(str(n)): UnprepareResult() for n in range(1001)}
    with pytest.raises(conversion.TooMuchError, match="1001 claims"):
        conversion.to_unprepared(conversion.from_unprepared(many))
    report = conversion.from_report([ReportedHealth("p", "d", DraHealth.HEALTHY)] * 10_001, 0)
    with pytest.raises(conversion.TooMuchError, match="10001 devices"):
        conversion.to_report(report)


@given(st.binary(max_size=60))
def test_any_bytes_are_an_answer_or_no_message(data: bytes) -> None:
    for message in (dra_v1.NodePrepareResourcesResponse, dra_v1beta1.NodePrepareResourcesResponse):
        try:
            conversion.to_prepared(message.FromString(data))
        except (DecodeError, UnicodeDecodeError):
            continue
