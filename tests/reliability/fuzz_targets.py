"""Laws for any bytes, as functions of bytes, for Hypothesis, for atheris, and for the inputs that these have found.

Law: bytes from outside become a value or one of our errors; any other exception is a bug.
"""

import json
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from devicecore.adapters.kube_api import ApiAccessError, PatchStrategy
from devicecore.adapters.kube_api.client_config import load
from devicecore.adapters.kube_api.patches import NodeObject, Wanted, changes, render
from devicecore.adapters.manifests import ManifestError, read_pods
from devicecore.adapters.manifests.pods_file import PodsFile
from devicecore.domain import model
from devicecore.domain.capacity import NodeStatus
from devicecore.domain.checkpoint import checkpoint_of, decode, encode, judge, restore
from devicecore.domain.errors import CheckpointError, DeviceCoreError, UnreadableReceiptError
from devicecore.domain.events import DevicesReported, PluginLost, PluginRegistered
from devicecore.domain.node_state import NodeState
from devicecore.domain.selection import AskPlugin, ResourceRequest
from devicecore.domain.text import foreign_text
from devicecore.system.list_check import ListCheck
from devicecore.wire import conversion, deviceplugin, podresources
from devicecore.wire.device_lists import read_devices

M = TypeVar("M", bound=Message)
SMALL_MESSAGE = 200  # bytes; so small that a fuzzer's lists come close to the limit
RESOURCE = model.resource_name("acme.io/gpu")
POD = model.Pod(model.PodUid("fuzz"), containers=(model.Container("main", {RESOURCE: 2}),))


def checkpoint(data: bytes) -> None:
    """A checkpoint is read or refused.

    If it is read, it is the same after being written and read again, and a node can start with it.
    """
    judge(data)
    try:
        decoded = decode(data)
    except CheckpointError as refusal:
        assert str(refusal)  # noqa: PT017 - no exception is expected, but one of ours may be raised
        return
    for number in (1, 2):
        encode(decoded.data, number)
    again = decode(encode(decoded.data))
    assert again.verified() == decoded.data
    node = restore(decoded.data, now=0.0)
    written = encode(checkpoint_of(node))
    restarted = restore(decode(written).verified(), now=1.0)
    assert encode(checkpoint_of(restarted)) == written
    for entry in decoded.data.entries or ():
        receipt(entry.alloc_resp or b"")


def manifest(data: bytes) -> None:
    """A manifest in YAML or JSON is read, or refused in one printable line. Reading it again gives the same pods."""
    text = data.decode(errors="replace")
    try:
        pods = read_pods(text, "fuzz.yaml")
    except ManifestError as refusal:
        assert str(refusal).isprintable()  # noqa: PT017 - as above
        return
    assert pods == read_pods(text, "fuzz.yaml")
    assert all(f"{pod.namespace}/{pod.name} {pod.uid}".isprintable() for pod in pods)


def pods_file(data: bytes) -> None:
    """A state file of manifests is used or ignored.

    Afterwards, a pod can be marked as running, and the mark is found again.
    """
    with TemporaryDirectory() as directory:
        path = Path(directory) / "pods.json"
        path.write_bytes(data)
        before = PodsFile(path, "boot")
        before.keep({"a": "b"}, before.ran)
        before.mark_running(model.PodUid("u"))
        assert PodsFile(path, "boot").ran == {*before.ran, "u"}


def kubeconfig(data: bytes) -> None:
    """A kubeconfig is used, or refused in one printable line. Reading it runs no program."""
    with TemporaryDirectory() as directory:
        path = Path(directory) / "kubeconfig"
        path.write_bytes(data)
        try:
            load(path, None, directory)
        except ApiAccessError as refusal:
            assert str(refusal).isprintable()  # noqa: PT017 - as above


def api_answer(data: bytes) -> None:
    """An API server's answer becomes a Node that can be patched, or raises ValueError or RecursionError."""
    try:
        node = NodeObject.parse(json.loads(data))
    except (ValueError, RecursionError):
        return
    node.leftovers("devicecore")
    wanted = Wanted().updated(NodeStatus({RESOURCE: 4}, {RESOURCE: 3}), 0)
    for strategy in PatchStrategy:
        with suppress(ValueError):  # other fields were applied
            _, body = render(strategy, changes(wanted, node), wanted, node, "devicecore")
            json.dumps(body)


def receipt(data: bytes) -> None:
    """A receipt is refused, or is the same after being read, written and read again."""
    try:
        response = conversion.read_receipt(model.Receipt(data))
    except UnreadableReceiptError as refusal:
        assert str(refusal)  # noqa: PT017 - as above
        return
    assert conversion.read_receipt(conversion.write_receipt(response)) == response


def wire(data: bytes) -> None:
    """Every message from a plugin is read or refused. The first byte selects the kind of message."""
    kinds = (_list, _allocation, _preference, _options, _registration, receipt, _pod_resources)
    if data:
        kinds[data[0] % len(kinds)](data[1:])


def _list(data: bytes) -> None:
    message = _parsed(deviceplugin.ListAndWatchResponse, data)
    if message is None:
        return
    devices = read_devices(data)
    assert devices == conversion.to_devices(message)
    assert conversion.to_devices(conversion.from_devices(devices)) == devices
    plugin = model.PluginId(RESOURCE, "/p.sock", 1)
    ListCheck(plugin, SMALL_MESSAGE).look(len(data), devices)
    node = NodeState().apply(
        PluginRegistered(plugin, conversion.to_options(deviceplugin.DevicePluginOptions())), now=0.0
    )
    node = node.apply(DevicesReported(plugin, devices), now=0.0)
    status = node.inventory.status()
    assert 0 <= status.allocatable[RESOURCE] <= status.capacity[RESOURCE]
    assert decode(encode(checkpoint_of(node))).verified() == checkpoint_of(node)
    node = _admitted(node)
    assert decode(encode(checkpoint_of(node))).verified() == checkpoint_of(node)
    gone = node.apply(PluginLost(plugin), now=1.0).inventory.status()
    # As in a kubelet, an id that is listed twice with different health counts twice, as long as its plugin is
    # connected.
    assert gone.capacity == {RESOURCE: len({device.id for device in devices})}
    assert gone.allocatable == {RESOURCE: 0}


def _admitted(node: NodeState) -> NodeState:
    request = ResourceRequest(POD.key(POD.containers[0]), RESOURCE, 2, None, False)  # noqa: FBT003 - not already running
    try:
        decision = node.devices_to_allocate(POD, request)
    except DeviceCoreError:
        return node
    assert not isinstance(decision, AskPlugin)
    assert len(decision) == 2
    return node.reserve(POD, request, decision).confirm(request.key, RESOURCE, model.Receipt(b""))


def _allocation(data: bytes) -> None:
    message = _parsed(deviceplugin.AllocateResponse, data)
    for container in message.container_responses if message else ():
        receipt(conversion.to_receipt(container))
        assert conversion.read_receipt(conversion.to_receipt(container)) == conversion.to_response(container)


def _preference(data: bytes) -> None:
    message = _parsed(deviceplugin.PreferredAllocationResponse, data)
    for container in message.container_responses if message else ():
        assert all(isinstance(model.DeviceId(device), str) for device in container.deviceIDs)


def _options(data: bytes) -> None:
    message = _parsed(deviceplugin.DevicePluginOptions, data)
    if message is not None:
        options = conversion.to_options(message)
        assert conversion.to_options(conversion.from_options(options)) == options


def _registration(data: bytes) -> None:
    message = _parsed(deviceplugin.RegisterRequest, data)
    if message is None:
        return
    for text in (message.version, message.resource_name, message.endpoint):
        assert foreign_text(text, model.MAX_DEVICE_ID_LENGTH).isprintable()
    try:
        name = model.resource_name(message.resource_name)
    except DeviceCoreError as refusal:
        assert str(refusal)  # noqa: PT017 - as above
    else:
        assert name == message.resource_name


def _pod_resources(data: bytes) -> None:
    _parsed(podresources.ListPodResourcesResponse, data)


def _parsed(kind: type[M], data: bytes) -> M | None:
    try:
        return kind.FromString(data)
    except (DecodeError, UnicodeDecodeError):
        return None
