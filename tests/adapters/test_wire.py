"""Messages as a kubelet knows them, in a separate descriptor pool, and their conversion to and from domain values."""

import ast
import importlib
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from devicecore_tools.testing import wire as tools_wire
from google.protobuf import descriptor_pool
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from devicecore import wire
from devicecore.domain.checks import received
from devicecore.domain.container_options import ContainerAllocateResponse, DeviceSpec, Mount
from devicecore.domain.errors import UnreadableReceiptError
from devicecore.domain.model import Device, DeviceId, Health, NumaNode, PluginOptions, Receipt
from devicecore.testing.strategies import device_lists as lists_of_devices
from devicecore.wire import conversion, device_lists, deviceplugin, podresources
from devicecore.wire.conversion import from_devices
from devicecore.wire.device_lists import ListReader, count_devices, read_devices, read_plain
from tests.adapters.peers import ROOT, environment

PACKAGES = {"devicecore": wire, "devicecore_tools": tools_wire}
WIRE = Path(wire.__file__).parent
MODULES = [
    f"{package.__name__}.{stub.stem}"
    for package in PACKAGES.values()
    for stub in sorted(Path(str(package.__file__)).parent.glob("*.pyi"))
]

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
responses = st.builds(  # from plugins in any language: plugins in Python cannot return some of these paths
    ContainerAllocateResponse,
    envs=st.dictionaries(text, text),
    mounts=st.lists(st.builds(partial(received, Mount), text, text, st.booleans())).map(tuple),
    devices=st.lists(st.builds(partial(received, DeviceSpec), text, text, text)).map(tuple),
    annotations=st.dictionaries(text, text),
    cdi_devices=st.lists(text).map(tuple),
)
nodes = st.integers(-(2**63), 2**63 - 1).map(NumaNode)
devices = st.builds(
    partial(received, Device),
    text.map(DeviceId),
    st.sampled_from(Health),
    st.none() | st.lists(nodes, max_size=3).map(tuple),
)


@st.composite
def listings(draw: st.DrawFn) -> bytes:
    """A serialized list, in some cases with changed bytes."""
    data = bytearray(conversion.from_devices(draw(st.lists(devices, max_size=4))).SerializeToString())
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(data)))
        # Lengths and tags, repeated ids and health, an unknown field, two-byte lengths, and bytes that are not a
        # string.
        piece = draw(st.sampled_from([b"", b"\n", b"\n\x00", b"\n\x01b", b"\x12\x00", b"\x12\x07Healthy", b"\x1a\x00",
            b"\x08\x01", b"\x80", b"\x81\x00", b"\xff", b"\x05", b"\n\x05\n\x01c\x12\x00"]))  # fmt: skip
        data[place : place + draw(st.integers(0, 2))] = piece
    return bytes(data)


@st.composite
def successive_listings(draw: st.DrawFn) -> list[bytes]:
    """Serialized lists, each of which differs from the previous list in only one place."""
    listed: list[bytes] = []
    successive = []
    for _ in range(draw(st.integers(1, 6))):
        place = draw(st.integers(0, len(listed)))
        listed[place : place + draw(st.integers(0, 4))] = draw(st.lists(listings(), max_size=4))
        successive.append(b"".join(listed))
    return successive


class TestMessages:
    def test_the_descriptors_match_the_protos(self, tmp_path: Path) -> None:
        pytest.importorskip("grpc_tools")
        subprocess.run([sys.executable, ROOT / "tools" / "make_protos.py", tmp_path], check=True)
        for name, package in PACKAGES.items():
            made = {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
            kept = [
                *Path(str(package.__file__)).parent.glob("*.pyi"),
                Path(str(package.__file__)).with_name("descriptors.binpb"),
            ]
            assert made == {path.name: path.read_bytes() for path in kept}
            assert len(made) > 3

    @pytest.mark.parametrize("name", MODULES)
    def test_a_module_has_the_names_of_its_stub(self, name: str) -> None:
        module = importlib.import_module(name)
        stub = ast.parse(Path(str(module.__file__)).with_suffix(".pyi").read_text())
        promised = {node.name for node in stub.body if isinstance(node, ast.ClassDef)}
        held = {key for key, value in vars(module).items() if isinstance(value, type | EnumTypeWrapper)}
        descriptor = module.DESCRIPTOR
        assert promised == held == {*descriptor.message_types_by_name, *descriptor.enum_types_by_name}

    def test_the_fields_have_the_kubelets_names_and_numbers(self) -> None:
        def fields(message: type) -> dict[str, int]:
            return {field.name: field.number for field in message.DESCRIPTOR.fields}  # type: ignore[attr-defined]  # every message has one

        assert fields(deviceplugin.RegisterRequest) == {
            "version": 1, "endpoint": 2, "resource_name": 3, "options": 4,
        }  # fmt: skip  # as a table
        assert fields(deviceplugin.DevicePluginOptions) == {
            "pre_start_required": 1, "get_preferred_allocation_available": 2,
        }  # fmt: skip  # as a table
        assert fields(deviceplugin.Device) == {"ID": 1, "health": 2, "topology": 3}
        assert fields(deviceplugin.ContainerPreferredAllocationRequest) == {
            "available_deviceIDs": 1, "must_include_deviceIDs": 2, "allocation_size": 3,
        }  # fmt: skip  # as a table
        assert fields(deviceplugin.ContainerPreferredAllocationResponse) == {"deviceIDs": 1}
        assert fields(deviceplugin.ContainerAllocateRequest) == {"devices_ids": 1}
        assert fields(deviceplugin.ContainerAllocateResponse) == {
            "envs": 1, "mounts": 2, "devices": 3, "annotations": 4, "cdi_devices": 5,
        }  # fmt: skip  # as a table
        assert fields(deviceplugin.Mount) == {"container_path": 1, "host_path": 2, "read_only": 3}
        assert fields(deviceplugin.DeviceSpec) == {"container_path": 1, "host_path": 2, "permissions": 3}
        assert fields(podresources.PodResources) == {
            "name": 1, "namespace": 2, "containers": 3, "cpu_ids": 4, "memory": 5,
        }  # fmt: skip  # as a table
        assert fields(podresources.DynamicResource) == {"claim_name": 2, "claim_namespace": 3, "claim_resources": 4}
        assert deviceplugin.Device.DESCRIPTOR.full_name == "v1beta1.Device"
        assert podresources.PodResources.DESCRIPTOR.full_name == "v1.PodResources"
        assert podresources.ClaimResource.DESCRIPTOR.fields_by_name["share_id"].has_presence

    def test_nothing_is_registered_where_others_register(self) -> None:
        assert deviceplugin.DESCRIPTOR.pool is not descriptor_pool.Default()
        assert podresources.DESCRIPTOR.pool is deviceplugin.DESCRIPTOR.pool

    def test_a_process_may_have_its_own_generated_copy_of_the_api(self, tmp_path: Path, directory: Path) -> None:
        """Every plugin author has a module generated from an `api.proto` whose text may differ from ours."""
        pytest.importorskip("grpc_tools")
        proto = (WIRE / "proto" / "deviceplugin.proto").read_text()
        (tmp_path / "api.proto").write_text(proto.replace("bool read_only = 3", "bool read_only = 3; string more = 9"))
        options = [f"--proto_path={tmp_path}", f"--python_out={tmp_path}", f"--grpc_python_out={tmp_path}"]
        subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *options, "api.proto"], check=True)
        script = Path(__file__).with_name("generated_plugin.py")
        run = subprocess.run(
            [sys.executable, script, directory],
            env=environment(tmp_path),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        assert run.stdout.split() == ["registered", "g0", "allocated", "d0", "served", "d0"]


class TestDevices:
    @given(devices)
    def test_a_device_survives_the_wire(self, device: Device) -> None:
        """from_device then to_device, through bytes, is identity."""
        data = conversion.from_device(device).SerializeToString()
        assert conversion.to_device(deviceplugin.Device.FromString(data)) == device

    @pytest.mark.parametrize(
        ("data", "topology"),
        [
            (b"\n\x01a", None),
            (b"\n\x01a\x1a\x00", ()),
            (b"\n\x01a\x1a\x02\n\x00", (NumaNode(0),)),
            (b"\n\x01a\x1a\x06\n\x02\x08\x03\n\x00", (NumaNode(3), NumaNode(0))),
        ],
        ids=["no topology", "no nodes", "a node without a number", "two nodes"],
    )
    def test_no_topology_differs_from_an_empty_one(self, data: bytes, topology: tuple[NumaNode, ...] | None) -> None:
        assert conversion.to_device(deviceplugin.Device.FromString(data)).topology == topology

    @pytest.mark.parametrize("health", ["Unhealthy", "healthy", "", "Degraded"])
    def test_any_other_word_than_healthy_is_unhealthy(self, health: str) -> None:
        assert conversion.to_device(deviceplugin.Device(ID="a", health=health)).health is Health.UNHEALTHY

    @given(st.lists(devices).map(tuple))
    def test_a_list_keeps_its_order_and_its_repetitions(self, listed: tuple[Device, ...]) -> None:
        """from_devices then to_devices is identity."""
        assert conversion.to_devices(conversion.from_devices(listed)) == listed

    @given(listings())
    @example(b"\n\x0e\n\x01b\x12\x07Healthy\n\x00")  # the id is sent again, empty
    @example(b"\n\x0f\n\x01b\x12\x07Healthy\n\x01c")  # the id is sent again, with a different value
    @example(b"\n\x0f\n\x01b\n\x01c\x12\x07Healthy")  # the same, before the health
    @example(b"\n\x0e\n\x01b\x12\x07Healthy")  # ends too early
    @example(b"\n\x02\n\x02")  # an id that ends after its device
    @example(b"\n\x8a\n\n" + b"a" * 10 + b"\x12\x7c" + b"h" * 124)  # a length of two bytes
    def test_lists_are_read_as_protobuf_reads_them(self, data: bytes) -> None:
        """It is read device by device, and is rejected if protobuf rejects it."""
        try:
            plain = conversion.to_devices(deviceplugin.ListAndWatchResponse.FromString(data))
        except DecodeError:
            with pytest.raises(DecodeError):
                read_devices(data)
        else:
            assert read_devices(data) == plain

    @given(st.lists(devices.filter(lambda device: device.id)))
    def test_usual_lists_are_not_read_device_by_device(self, listed: list[Device]) -> None:
        data = conversion.from_devices(listed).SerializeToString()
        if all(len(device.SerializeToString()) < 128 for device in conversion.from_devices(listed).devices):
            assert read_plain(data) == tuple(listed)

    @given(successive_listings())
    @example([b"\n\x03\n\x01a", b"\n\x05\n\x03\n\x01a"])  # ends like the previous list, in the middle of a device
    @example([b"\n\x03\n\x01a" * 4, b"\n\x03\n\x01a" * 2])  # starts and ends like the previous list, but is shorter
    def test_lists_are_read_alike_after_any_other_lists(self, successive: list[bytes]) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(device_lists, "_PORTION", 2)
            reader = ListReader()
            for data in (*successive, *reversed(successive)):
                try:
                    plain = conversion.to_devices(deviceplugin.ListAndWatchResponse.FromString(data))
                except DecodeError:
                    with pytest.raises(DecodeError):
                        reader.read(data)
                else:
                    assert reader.read(data) == plain

    def test_only_the_new_part_of_a_list_is_read(self) -> None:
        """The neighbors of the new part are read, too: the test counts ids that are new objects."""
        listed = [Device(DeviceId(f"dev-{number:04}"), Health.HEALTHY) for number in range(1000)]
        reader = ListReader()
        read = []
        last = reader.read(conversion.from_devices(listed).SerializeToString())
        for change in range(60):
            place = change * 397 % len(listed)
            if change % 3 == 0:
                listed[place] = Device(listed[place].id, Health.UNHEALTHY)
            elif change % 3 == 1:
                listed.insert(place, Device(DeviceId(f"new-{change}"), Health.HEALTHY))
            else:
                del listed[place]
            known = {*map(id, last.ids)}
            data = conversion.from_devices(listed).SerializeToString()
            last = reader.read(data)
            assert last == tuple(listed)
            assert reader.read(data) is last
            read.append(sum(id(device) not in known for device in last.ids))
        assert sum(read) < 60 * 64 + len(listed)

    @given(st.builds(PluginOptions, st.booleans(), st.booleans()))
    def test_options_survive_the_wire(self, options: PluginOptions) -> None:
        """from_options then to_options is identity."""
        assert conversion.to_options(conversion.from_options(options)) == options


class TestReceipts:
    @given(responses)
    def test_a_receipt_reads_as_it_was_written(self, response: ContainerAllocateResponse) -> None:
        """write_receipt then read_receipt is identity."""
        assert conversion.read_receipt(conversion.write_receipt(response)) == response

    @given(st.dictionaries(text, text, min_size=2))
    def test_equal_answers_make_equal_receipts(self, envs: dict[str, str]) -> None:
        """The order in which a mapping was filled has no effect."""
        backwards = dict(reversed(envs.items()))
        receipt = conversion.write_receipt(ContainerAllocateResponse(envs=envs))
        assert conversion.write_receipt(ContainerAllocateResponse(envs=backwards)) == receipt

    def test_fields_of_a_later_version_are_kept(self) -> None:
        data = b"\n\x06\n\x01A\x12\x01B\xfa\x01\x03new"
        message = deviceplugin.ContainerAllocateResponse.FromString(data)
        assert conversion.to_receipt(message) == data
        assert conversion.read_receipt(Receipt(data)) == ContainerAllocateResponse(envs={"A": "B"})

    def test_an_empty_receipt_is_an_answer_that_gives_nothing(self) -> None:
        assert conversion.read_receipt(Receipt(b"")) == ContainerAllocateResponse()

    @pytest.mark.parametrize("data", [b"\xff", b"\n\x05ab", b"\n\x03\n\x01\xff"], ids=["tag", "length", "utf-8"])
    def test_bytes_that_are_not_an_answer_are_unreadable(self, data: bytes) -> None:
        with pytest.raises(UnreadableReceiptError) as unreadable:
            conversion.read_receipt(Receipt(data))
        assert unreadable.value.cause


@given(lists_of_devices())
def test_devices_are_counted_as_they_are_read(devices: tuple[Device, ...]) -> None:
    assert count_devices(from_devices(devices).SerializeToString()) == len(devices)


def test_the_count_ends_at_the_most_that_is_wanted() -> None:
    assert [count_devices(b"\n\x00" * 3, most) for most in range(5)] == [0, 1, 2, 3, 3]


def test_bytes_that_are_not_a_device_list_end_the_count() -> None:
    for data in (b"", b"\x0a", b"\x0a\xff\xff\xff\xff\xff\xff", b"\x12\x00", b"\x0a\x00\x12"):
        assert count_devices(data) <= 1
