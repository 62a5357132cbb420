"""The checks of Allocate.

Law: Allocate is called only for devices that the plugin has listed, as a kubelet does, except to provoke a refusal.
"""

import os
import posixpath
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from devicecore.adapters.grpc_unix import rpc
from devicecore.domain.dra.answers import is_cdi_name
from devicecore.domain.text import counted, foreign_text
from devicecore.wire import deviceplugin
from devicecore_tools.conformance.connection import CallFailedError
from devicecore_tools.conformance.device_plugin.checks.common import (
    ALLOCATE,
    HEALTHS,
    INFO,
    MUST,
    ONE_BY_ONE,
    SHORT_PAUSE,
    SHOULD,
    allocate_or_skip,
    allocated_to,
    ask_for_preferred,
    hardware,
    is_refusal,
    nodes_in,
    paths_in,
    preferred_or_skip,
    problem_of_node,
    succeeds,
)
from devicecore_tools.conformance.device_plugin.devices import (
    STARTING,
    allocate_request,
    contents_of,
)
from devicecore_tools.conformance.device_plugin.plugin import PluginUnderTest
from devicecore_tools.conformance.model import (
    DoesNotApply,
    Failure,
    Skip,
    check,
    does_not_apply_if,
    in_context,
    require,
    reworded,
    skip_if,
    skipping,
    some,
)
from devicecore_tools.conformance.processes import Usage

UNKNOWN_DEVICE = "no-such-device-of-devicecore"
_LAST_NUMBER = re.compile(r"[0-9]{1,18}(?=[^0-9]*$)")
_FAR = 1_000_000  # added to the last number in a listed id
_OTHERS = 2  # resources
_MAX_VARIABLE = 131_072  # bytes, including the name, = and a NUL
_EXCEPTION = re.compile(
    r"^Exception calling application: |Traceback \(most recent call last\)|^panic: |goroutine \d+ \["
)
_CANCELED_AFTER = (0.001, 0.002, 0.003, 0.005, 0.01)  # seconds
_LONG = 5.0  # seconds; a plugin checks its devices several times in this time
_AT_ONCE, _ROUNDS = 8, 5  # concurrent calls, and how many times they are made
_CALLS, _CALLS_FIRST, _CALLING = 200, 50, 5.0  # calls, calls before the first measurement, seconds
_FEWEST_CALLS = 25  # between two measurements; a plugin may get twice the time for them
_VARIABLE = re.compile(r"[^=\0\s]+")
_ANNOTATION = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_CDI_ANNOTATION = "cdi.k8s.io/"


@check(MUST, expected="an answer for each device", clause=ALLOCATE)
def allocates_each_device(plugin: PluginUnderTest) -> str:
    """Allocate is called for each healthy device separately, for up to 64 devices."""
    refused: dict[str, Failure] = {}
    for device in plugin.lists.healthy:
        try:
            if plugin.lists.first_answer(device) is None:
                refused[device] = Failure("the answer has no container response")
        except CallFailedError as error:
            refused[device] = error
            if error.is_late:
                break  # otherwise, a plugin that hangs would use up the time for all other checks
    if refused:
        raise reworded(some([f"{device}: {failure}" for device, failure in refused.items()]), *refused.values())
    return f"{counted(len(plugin.lists.healthy), 'device')} allocated one by one"


@check(
    SHOULD,
    expected="each answer within --timeout seconds",
    clause=f"{ALLOCATE} A kubelet sets no time limit, and starts no other container of the pod in the meantime.",
)
def allocates_in_time(plugin: PluginUnderTest) -> str:
    """The slowest answer to Allocate so far is compared with the limit."""
    skip_if(not plugin.lists.was_allocated, "nothing was allocated")
    slowest, limit = plugin.lists.slowest, plugin.settings.timeout
    text = f"the slowest answer took {slowest:.1f} seconds"
    require(slowest <= limit, f"{text}, and the limit is {counted(limit, 'second')} (--timeout allows more)", late=True)
    return text


@check(
    SHOULD,
    expected="an answer",
    clause=f"{ALLOCATE} A container may request all devices, and most plugins have no reason to refuse that. Plugins "
    "that share a device among containers may have such a reason.",
)
def allocates_all_devices(plugin: PluginUnderTest) -> str:
    """Allocate is called for one container with all healthy devices, or with 64 of them."""
    ids = plugin.lists.healthy
    with in_context(f"for {counted(len(ids), 'device')}"), _unless_taken(plugin, *ids):
        require(plugin.lists.allocate(ids), "the answer has no container response")
    return f"{counted(len(ids), 'device')} allocated together"


@check(
    MUST,
    expected="an answer, if the plugin allocates two devices together",
    clause=f"{ALLOCATE} A kubelet admits a container that requests any number of devices, up to all of them. A plugin "
    "of shares may refuse more than one share, but no kubelet knows of another limit.",
)
def allocates_more_than_two_devices(plugin: PluginUnderTest) -> str:
    """Allocate is called for one container with two devices, and then with all healthy devices, or with 64 of them."""
    plugin.lists.two_devices()
    ids = plugin.lists.every_healthy
    does_not_apply_if(len(ids) < 3, f"the plugin has only {counted(len(ids), 'healthy device')}")
    allocate_or_skip(plugin, ids[:2])
    with (
        in_context(f"two devices are allocated together, but for {counted(len(ids), 'device')}"),
        _unless_taken(plugin, *ids),
    ):
        require(plugin.lists.allocate(ids), "the answer has no container response")
    return f"{counted(len(ids), 'device')} allocated together"


@check(
    MUST,
    expected="one answer for the container",
    clause="AllocateResponse.container_responses is one ContainerAllocateResponse for each of "
    "AllocateRequest.container_requests (api.proto). A kubelet reads only the first response.",
)
def answers_once_per_container(plugin: PluginUnderTest) -> str:
    """Allocate is called for one container with two devices."""
    first, second = plugin.lists.two_devices()
    answers = allocate_or_skip(plugin, [first, second])
    require(len(answers) == 1, f"{counted(len(answers), 'answer')} for one container with 2 devices")
    return "one answer"


@check(
    SHOULD,
    expected="two answers in the order of the containers",
    clause="AllocateRequest.container_requests is repeated (api.proto). Today's kubelets send one container per call, "
    "but the API allows more.",
)
def answers_each_of_two_containers(plugin: PluginUnderTest) -> str:
    """Allocate is called for two containers with one device each."""
    first, second = plugin.lists.two_devices()
    one, other = plugin.lists.alone(first), plugin.lists.alone(second)
    with _unless_taken(plugin, first, second):
        answers = plugin.lists.allocate([first], [second])
        require(len(answers) == 2, f"{counted(len(answers), 'answer')} for 2 containers")
    require(one == other or answers[1] != one, f"the second answer, for {second}, repeats the first one, for {first}")
    more = strange(answers[1], own=other, others=[one])
    require(not more, f"the second answer, for {second}, contains {some(more)} from the first one, for {first}")
    return "two answers, each for its own container"


@check(
    SHOULD,
    expected="an empty answer or an error, and a plugin that still answers",
    clause=(
        "ContainerAllocateRequest.devices_ids is repeated (api.proto), so the list may be empty, although no kubelet "
        "sends an empty list."
    ),
)
def survives_a_request_for_no_devices(plugin: PluginUnderTest) -> str:
    """Allocate is called for one container without devices, and then GetDevicePluginOptions is called."""
    connection = plugin.registration.connected()
    try:
        actual = counted(len(plugin.lists.allocate([])), "answer")
    except CallFailedError as error:
        actual = str(error)
    with in_context(f"{actual}; the next call"):
        connection.call(rpc.GET_DEVICE_PLUGIN_OPTIONS, deviceplugin.Empty(), plugin.settings.timeout)
    return actual


@check(
    SHOULD,
    expected=(
        "an error, because the container must not start without its device. If the answers for all listed devices are "
        "the same, that answer is also accepted"
    ),
    clause="Failure Handling: [...] The Device plugin should send a ListAndWatch update and fail the Allocation "
    "request (api.proto). A kubelet requests only listed ids, but may request a removed id until it has the new list.",
)
def refuses_an_unknown_device(plugin: PluginUnderTest) -> str:
    """Allocate is called for an id that was never listed, and for a listed id with a million added to its number."""
    plugin.registration.connected()
    listed, before = "", None
    with suppress(Skip):
        given = [plugin.lists.alone(id_) for id_ in plugin.lists.healthy]
        before = (
            given[0] if len({_key(_nameless(one, plugin.lists.healthy)) for one in given}) == 1 < len(given) else None
        )
    texts = [_refusal(plugin, UNKNOWN_DEVICE, before)]
    with suppress(Skip):  # there is no device, or it is refused, so the unknown id must suffice
        listed = next((id_ for id_ in plugin.lists.healthy if _LAST_NUMBER.search(id_)), "")
        before = plugin.lists.alone(listed) if listed else None
    if before is not None:
        texts.append(_refusal(plugin, _unlisted(plugin, listed), before))
    return "; ".join(texts)


def _refusal(
    plugin: PluginUnderTest, device: str, share_of: deviceplugin.ContainerAllocateResponse | None = None
) -> str:
    """Return how the plugin refuses a device, or why its answer is acceptable: the device is a share of a listed one.

    Raises Failure if the plugin gives any other answer, or none.
    """
    try:
        answers = plugin.lists.allocate([device])
    except CallFailedError as error:
        require(is_refusal(plugin, error), f"Allocate for {device!r} was not refused: {error}", late=error.is_late)
        return f"{device!r}: {error}"
    if not answers:
        return f"{device!r}: the answer has no container response, which a kubelet treats as an error"
    # Shares of one device have numbered ids, too, and no share can be removed while the device exists.
    ids = (device, *plugin.lists.healthy)
    if share_of is not None and _key(_nameless(share_of, ids)) == _key(_nameless(answers[0], ids)):
        return (
            f"{device!r}: except for the ids, the answer is the same as for a listed device, so both are shares of one "
            "device"
        )
    if share_of is not None and hardware(share_of) == hardware(answers[0]) != (frozenset(), frozenset()):
        return f"{device!r}: the answer is the same as for a listed device, so it is a share of that device"
    given = ", ".join(filter(None, map(_given, answers)))
    result = (
        f", and the container gets {given}"
        if given
        else (" with an empty answer, so the container starts without the device")
    )
    raise Failure(f"Allocate for {device!r} succeeded{result}")


@check(
    SHOULD,
    expected="a message that says why, and not only which exception was raised",
    clause="Failure Handling: [...] The Device plugin should send a ListAndWatch update and fail the Allocation "
    "request (api.proto). A kubelet shows the message to the pod's user, in an event.",
)
def explains_its_refusals(plugin: PluginUnderTest) -> str:
    """Allocate is called for an id that was never listed, and the message is read."""
    try:
        plugin.lists.allocate([UNKNOWN_DEVICE])
    except CallFailedError as error:
        skip_if(not is_refusal(plugin, error), "the plugin did not answer")
        require(error.details and not _EXCEPTION.search(error.details), f"the message is {error.details!r}")
        return f"the message is {error.details!r}"
    raise DoesNotApply("the plugin does not refuse an unknown id")


def _unlisted(plugin: PluginUnderTest, listed: str) -> str:
    """Return `listed` with its last number raised by so much that no later list will contain the new id."""
    ids = {device.ID for device in plugin.lists.devices} | {listed}
    while listed in ids:
        listed = _LAST_NUMBER.sub(lambda found: f"{int(found[0]) + _FAR:0{len(found[0])}}", listed)
    return listed


def _nameless(
    answer: deviceplugin.ContainerAllocateResponse, ids: Sequence[str]
) -> deviceplugin.ContainerAllocateResponse:
    """Return an answer without device ids in variables and annotations, so that the answers for shares are equal."""
    copy = deviceplugin.ContainerAllocateResponse.FromString(answer.SerializeToString())
    for texts in (copy.envs, copy.annotations):
        for name, value in texts.items():
            texts[name] = next((value.replace(id_, "") for id_ in ids if id_ in value), value)
    return copy


@check(
    MUST,
    expected="every device node and mount has an absolute path on the host and in the container",
    clause="DeviceSpec.host_path: Path of the device on the host. Mount.host_path: Path of the mount on the host "
    "(api.proto). A container runtime refuses a path that is not absolute.",
)
def gives_absolute_paths(plugin: PluginUnderTest) -> str:
    """The paths in the answers for single devices are read."""
    answers = [plugin.lists.alone(device) for device in plugin.lists.healthy]
    paths = [
        (f"{name} {field}", path)
        for answer in answers
        for name, listed in (("device", answer.devices), ("mount", answer.mounts))
        for each in listed
        for field, path in (("host_path", each.host_path), ("container_path", each.container_path))
    ]
    does_not_apply_if(not paths, "the plugin provides no device nodes and no mounts")
    relative = sorted({f"{where} {path!r}" for where, path in paths if not path.startswith("/")})
    require(not relative, f"these paths are not absolute: {some(relative)}")
    return f"{counted(len(paths), 'path')}, all absolute"


@check(
    MUST,
    expected="no directory is mounted at /dev, except the host's /dev",
    clause="Mount.container_path: Path of the mount within the container. (api.proto) If a mount replaces the "
    "container's /dev, a container runtime creates no device nodes there, not even /dev/null. (runc, needsSetupDev)",
)
def mounts_nothing_over_device_nodes(plugin: PluginUnderTest) -> str:
    """The mounts in the answers for single devices are read."""
    mounts = [mount for device in plugin.lists.healthy for mount in plugin.lists.alone(device).mounts]
    does_not_apply_if(not mounts, "the plugin provides no mounts")
    over = {
        f"{mount.host_path} at {mount.container_path}"
        for mount in mounts
        if posixpath.normpath(mount.container_path) in {"/", "/dev"} and posixpath.normpath(mount.host_path) != "/dev"
    }
    require(not over, f"the plugin mounts {some(sorted(over))}")
    return counted(len(mounts), "mount")


@check(
    MUST,
    expected="CDI devices have names like vendor/class=name, and device nodes have one or more of the permissions r, "
    "w and m",
    clause="CDIDevice.name: Fully qualified CDI device name. DeviceSpec.permissions: Cgroups permissions of the "
    "device, candidates are one or more of r, w, m (api.proto). A container runtime refuses anything else. The runtime "
    f"also reads CDI devices from annotations whose names begin with {_CDI_ANNOTATION}. (CDI library in Go)",
)
def gives_valid_cdi_names_and_permissions(plugin: PluginUnderTest) -> str:
    """The CDI devices and the permissions in the answers for single devices and for several are read."""
    answers = [plugin.lists.alone(device) for device in plugin.lists.healthy]
    with suppress(Skip):  # reported by another check
        answers += [answer for ids in plugin.lists.combinations() for answer in _answers(plugin, ids)]
    names = [device.name for answer in answers for device in answer.cdi_devices]
    annotated = [
        (key, name)
        for answer in answers
        for key, value in answer.annotations.items()
        if key.startswith(_CDI_ANNOTATION)
        for name in value.split(",")
    ]
    permissions = [node.permissions for answer in answers for node in answer.devices]
    number = len(names) + len(annotated)
    does_not_apply_if(not number and not permissions, "the plugin provides no device nodes and no CDI devices")
    odd = {f"a CDI device has the name {name!r}" for name in names if not is_cdi_name(name)}
    odd |= {f"a CDI device in {key!r} has the name {name!r}" for key, name in annotated if not is_cdi_name(name)}
    odd |= {f"a device node has the permissions {one!r}" for one in permissions if not one or set(one) - set("rwm")}
    require(not odd, some(sorted(odd)))
    return f"{counted(number, 'CDI device')} and {counted(len(permissions), 'node')}"


@check(
    MUST,
    expected="no answer for a single device contains a CDI device named `all`, if the answers for devices differ",
    clause="AllocateResponse includes the artifacts that needs to be injected into a container for accessing "
    "'deviceIDs' that were mentioned. (api.proto) By convention, the CDI device `all` contains all devices of its "
    "vendor and class. (NVIDIA Container Toolkit)",
)
def names_no_cdi_device_for_all(plugin: PluginUnderTest) -> str:
    """The CDI devices in the answers for single devices are read."""
    plugin.lists.two_devices()
    answers = {device: plugin.lists.alone(device) for device in plugin.lists.healthy}
    names = sorted({one.name for answer in answers.values() for one in answer.cdi_devices})
    does_not_apply_if(not names, "the plugin gives no CDI devices")
    are_alike = len({_key(answer) for answer in answers.values()}) == 1
    does_not_apply_if(are_alike, "all devices have the same answer, so a container may use all of them")
    of_all = [name for name in names if name.endswith("=all")]
    require(not of_all, f"the answers for single devices contain {some(of_all)}")
    return f"{counted(len(names), 'CDI device')}"


@check(
    MUST,
    expected=(
        "every node in the answer for several devices is also in an answer for a single device; so is every CDI "
        "device, if the answers for single devices all have the same CDI devices"
    ),
    clause=(
        f"{ALLOCATE} The id determines a device's node. A plugin that returns the first node for the first id "
        "of each request gives two containers the same device."
    ),
)
def gives_nodes_by_id(plugin: PluginUnderTest) -> str:
    """The nodes and CDI devices in each answer for several devices are looked up in the answers for single devices."""
    plugin.lists.two_devices()
    each = [hardware(plugin.lists.alone(device)) for device in plugin.lists.healthy]
    # Several devices together may have a CDI device with a different name, if the names for single devices identify the
    # devices.
    has_same_names = len({names for _, names in each}) == 1

    def compared(nodes: frozenset[str], names: frozenset[str]) -> frozenset[str]:
        return nodes | names if has_same_names else nodes

    single = [compared(*one) for one in each]
    does_not_apply_if(not any(single), "the plugin provides no device nodes, and its CDI devices depend on the ids")
    together, again = (
        frozenset().union(*(compared(*hardware(one)) for one in allocate_or_skip(plugin, plugin.lists.healthy)))
        for _ in range(2)
    )
    skip_if(together != again, "the nodes change from call to call")
    unknown = sorted(together - frozenset().union(*single))
    require(
        not unknown,
        f"the answer for all devices contains {some(unknown)}, which is in no answer for a single device: the nodes "
        "do not depend on the ids alone, but on their positions or on earlier calls",
    )
    own = dict(zip(plugin.lists.healthy, single, strict=True))
    for ids in plugin.lists.combinations():
        given = frozenset().union(*(compared(*hardware(one)) for one in _answers(plugin, ids)))
        others = sorted(given.difference(*(own[id_] for id_ in ids)))
        require(not others, f"the answer for {some(ids)} contains {some(others)}, which none of them has on its own")
    return f"{counted(len(together), 'node')} for {counted(len(single), 'device')}, all also given for single devices"


@check(
    MUST,
    expected=(
        "every device node that only one device has, every CDI device of a single device if the answer has any of "
        "those, and an answer that differs from that for each single device; if devices have the same nodes on the "
        "host, every path in the container that only one device has"
    ),
    clause=f"{ALLOCATE} A container that requests several devices needs all of these devices.",
)
def gives_the_nodes_of_each_device(plugin: PluginUnderTest) -> str:
    """The nodes and CDI devices in the answers for several devices are compared with those for single devices."""
    plugin.lists.two_devices()
    each = {device: plugin.lists.alone(device) for device in plugin.lists.healthy}
    does_not_apply_if(len({_key(one) for one in each.values()}) == 1, "all single devices have the same answer")
    together, again = (allocate_or_skip(plugin, plugin.lists.healthy) for _ in range(2))
    skip_if(len(together) != 1 or len(again) != 1, f"{counted(len(together), 'answer')} for one container")
    skip_if(hardware(together[0]) != hardware(again[0]), "the nodes change from call to call")
    same = [device for device, one in each.items() if _key(one) == _key(together[0])]
    require(not same, f"the answer for {counted(len(each), 'device')} is the same as for {some(same)} alone")
    owners = Counter(node for one in each.values() for node in nodes_in(one))
    missing = sorted(node for node, number in owners.items() if number == 1 and node not in nodes_in(together[0]))
    # The nodes of some plugins, such as plugins of simulated devices, differ only in their container paths.
    alike = [one for one in each.values() if all(owners[node] > 1 for node in nodes_in(one))]
    places = Counter(path for one in each.values() for path in {node.container_path for node in one.devices})
    there = {node.container_path for node in together[0].devices}
    missing += sorted(
        {node.container_path for one in alike for node in one.devices if places[node.container_path] == 1} - there
    )
    names = Counter(one.name for answer in each.values() for one in answer.cdi_devices)
    given = {one.name for one in together[0].cdi_devices}
    if names.keys() & given:  # several devices together may have a CDI device with a different name
        missing += sorted(name for name in names if name not in given)
    require(not missing, f"the answer for {counted(len(each), 'device')} lacks {some(missing)}")
    for ids in plugin.lists.combinations():
        own = {node for id_ in ids for node in nodes_in(each[id_]) if owners[node] == 1}
        own |= {node.container_path for one in alike for node in one.devices if places[node.container_path] == 1} & {
            node.container_path for id_ in ids for node in each[id_].devices
        }
        for answer in _answers(plugin, ids):
            left = sorted(own - paths_in(answer))
            require(not left, f"the answer for {some(ids)} lacks {some(left)}")
    return f"{counted(len(owners), 'node')} of {counted(len(each), 'device')}"


@check(
    MUST,
    expected="every path in the container has only one path on the host",
    clause="DeviceSpec.container_path: Path of the device within the container. Mount.container_path: Path of the "
    "mount within the container (api.proto). If two devices or mounts have the same path, the container gets only one "
    "of them.",
)
def gives_each_node_its_own_container_path(plugin: PluginUnderTest) -> str:
    """The paths in each answer for several devices are compared."""
    plugin.lists.two_devices()
    allocate_or_skip(plugin, plugin.lists.healthy)
    number = 0
    for ids in plugin.lists.combinations():
        hosts: dict[str, set[str]] = {}
        for answer in _answers(plugin, ids)[:1]:
            for node in answer.devices:
                hosts.setdefault(node.container_path, set()).add(node.host_path)
            for mount in answer.mounts:
                hosts.setdefault(mount.container_path, set()).add(mount.host_path)
        several = [f"{path} is used for {some(sorted(found))}" for path, found in hosts.items() if len(found) > 1]
        require(not several, f"for {some(ids)}, {some(several)}")
        number = max(number, len(hosts))
    does_not_apply_if(not number, "the plugin provides no device nodes and no mounts")
    return counted(number, "path")


@check(
    MUST,
    expected=(
        "every device has a node of its own, or none does; a device may also be listed as several copies, if each "
        "device has the same number of copies or the ids of its copies are similar"
    ),
    clause=f"{ALLOCATE} A kubelet gives each device to one container, so only that container should get its node.",
)
def gives_each_device_its_own_nodes(plugin: PluginUnderTest) -> str:
    """The host paths of device nodes in the answers for single devices are compared."""
    nodes = _nodes_of_each(plugin)
    owners = Counter(node for given in nodes.values() for node in given)
    own = [id_ for id_, given in nodes.items() if any(owners[node] == 1 for node in given)]
    ids_of: dict[frozenset[str], list[str]] = {}
    for id_, given in nodes.items():
        ids_of.setdefault(given, []).append(id_)
    # A plugin may list a device or group of devices once for each container that may use it.
    are_copies = len({len(ids) for ids in ids_of.values()}) == 1 or _have_names_like_each_other(nodes)
    same = [] if are_copies else [" and ".join(ids) for ids in ids_of.values() if len(ids) > 1]
    require(not same, f"these devices share their nodes, while others have their own: {some(same)}")
    if not own:
        return f"no device has its own node: {counted(len(nodes), 'device')} share {counted(len(owners), 'node')}"
    others = [id_ for id_ in nodes if id_ not in own and len(ids_of[nodes[id_]]) == 1]
    require(not others, f"these devices have a node of their own: {some(own)}; these devices have none: {some(others)}")
    return f"each of {counted(len(nodes), 'device')} has its own nodes, or is one of the copies of a device"


@check(
    MUST,
    expected="no two of the devices are also devices of another of the plugin's resources, with the same nodes",
    clause=f"{ALLOCATE} A kubelet counts each resource's devices separately. If a device is listed for two resources, "
    "such as an old name and a new one, two containers get the device.",
)
def lists_each_device_for_one_resource(plugin: PluginUnderTest) -> str:
    """The devices of up to two other resources are listed and allocated, and their nodes are compared."""
    others = sorted(plugin.kubelet.endpoints.keys() - {plugin.kubelet.resource})[:_OTHERS]
    does_not_apply_if(not others, "the plugin has only one resource")
    own_sockets = {one.request.endpoint for one in plugin.kubelet.registrations}
    same = [foreign_text(one) for one in others if plugin.kubelet.endpoints[one] in own_sockets]
    require(not same, f"the plugin registered {some(same)} with the same socket, so a kubelet gets the same devices")
    nodes = _nodes_of_each(plugin)
    owners = Counter(node for given in nodes.values() for node in given)
    own = {id_: frozenset(node for node in given if owners[node] == 1) for id_, given in nodes.items()}
    does_not_apply_if(not all(own.values()), "not every device has a node of its own")
    for resource in others:
        there: list[str] = []
        for given in _nodes_of_other(plugin, resource):
            found = [id_ for id_, mine in own.items() if mine <= given]
            there += found if len(found) == 1 else []  # a monitor may get all devices
        require(len(there) < 2, f"{foreign_text(resource)} also has the nodes of {some(sorted(there))}")
    return f"{counted(len(others), 'other resource')} with different devices"


@check(
    MUST,
    expected="a container with a device of each resource gets a single value for each variable and annotation, and a "
    "single host path for each path in the container",
    clause=f"{ALLOCATE} A container may request several resources. The kubelet merges the answers. If they have "
    "different values for a variable, or different sources for a path, the container gets only one of them. "
    "(kubelet, deviceRunContainerOptions)",
)
def gives_each_variable_once(plugin: PluginUnderTest) -> str:
    """The answers for devices of up to two other resources are compared with those for the tested resource."""
    others = sorted(plugin.kubelet.endpoints.keys() - {plugin.kubelet.resource})[:_OTHERS]
    does_not_apply_if(not others, "the plugin has only one resource")
    own = {device: _merged(plugin.lists.alone(device)) for device in plugin.lists.healthy[:ONE_BY_ONE]}
    number = 0
    for resource in others:
        for answer in _answers_of_other(plugin, resource):
            number, given = number + 1, _merged(answer)
            for device, mine in own.items():
                twice = [
                    f"{name} is {mine[name]!r} for {device}, and {given[name]!r} for a device of "
                    f"{foreign_text(resource)}"
                    for name in sorted(mine.keys() & given.keys())
                    if mine[name] != given[name]
                ]
                require(not twice, some(twice))
    skip_if(not number, "no device of another resource was allocated")
    return f"{counted(number, 'device')} of {counted(len(others), 'other resource')}"


def _merged(answer: deviceplugin.ContainerAllocateResponse) -> Mapping[str, str]:
    """Return what a kubelet merges with the answers for other resources, by name."""
    found = {f"the {part} {name}": value for part, of in PARTS.items() for name, value in of(answer).items()}
    return found | {f"the device node {node.container_path}": node.host_path for node in answer.devices}


def _nodes_of_other(plugin: PluginUnderTest, resource: str) -> Iterator[frozenset[str]]:
    """Yield the nodes of the first few healthy devices of another resource, device by device.

    Raises Skip if there is no list.
    """
    for answer in _answers_of_other(plugin, resource):
        yield _real_nodes(answer)


def _answers_of_other(plugin: PluginUnderTest, resource: str) -> Iterator[deviceplugin.ContainerAllocateResponse]:
    """Yield the answers for the first few devices of another resource, device by device.

    Raises Skip if there is no list.
    """
    connection = plugin.kubelet.connection_to(resource)
    if connection is None:
        raise Skip(f"there is no connection for {foreign_text(resource)}")
    plugin.process.wait(lambda: connection.list_count or connection.ended, plugin.settings.timeout)
    skip_if(not connection.list_count, f"there is no device list for {foreign_text(resource)}")
    for id_ in sorted({one.ID for one in connection.last_list.devices if one.health == HEALTHS[0]})[:ONE_BY_ONE]:
        request = allocate_request([id_])
        with suppress(CallFailedError):  # each resource can be tested with --resource
            answer = connection.call(rpc.ALLOCATE, request, plugin.settings.timeout)
            yield from answer.container_responses


def _have_names_like_each_other(nodes: Mapping[str, frozenset[str]]) -> bool:
    """Return whether all ids that differ only in their last numbers have the same nodes."""
    stems: dict[str, set[frozenset[str]]] = {}
    for id_, given in nodes.items():
        stems.setdefault(_LAST_NUMBER.sub("", id_) if _LAST_NUMBER.search(id_) else id_, set()).add(given)
    return all(len(found) == 1 for found in stems.values())


@check(
    MUST,
    expected="an answer with the same device nodes and CDI devices as the first time",
    clause=f"{ALLOCATE} A kubelet allocates the same device again for the same container after a failed start or a "
    "lost checkpoint, and for the next container that gets the device.",
)
def allocates_again_in_the_same_way(plugin: PluginUnderTest) -> str:
    """Allocate is called a second and a third time for the same device, without a pause."""
    device = plugin.lists.healthy[0]
    before = plugin.lists.alone(device)
    with in_context("the second time"):
        again = plugin.lists.allocate([device])
        require(again, "the answer has no container response")
    with in_context("the third time, right after the second"):
        require(plugin.lists.allocate([device]), "the answer has no container response")
    _require_same(device, before, again[0], "devices", "cdi_devices")
    with suppress(Skip):
        _ = plugin.lists.unsteady  # measured now, because a later event may damage the plugin
    given = [*before.devices, *before.cdi_devices]
    does_not_apply_if(not given, "the plugin provides no device nodes and no CDI devices")
    return "both answers are the same"


@check(
    INFO,
    expected="the same mounts as the first time",
    clause=(
        "Mount.host_path: Path of the mount on the host (api.proto). A plugin that creates a new mount for every call "
        "must know when the mount can be removed, which no kubelet tells the plugin."
    ),
)
def mounts_the_same_again(plugin: PluginUnderTest) -> str:
    """Allocate is called a second time for the same device, and the mounts are compared."""
    device = plugin.lists.healthy[0]
    before = plugin.lists.alone(device)
    for again in allocate_or_skip(plugin, [device]):
        _require_same(device, before, again, "mounts")
    return "both answers are the same"


@check(
    INFO,
    expected="if the device nodes exist on this machine, so does everything that is mounted",
    clause="Mount.host_path: Path of the mount on the host (api.proto). Some container runtimes replace a missing "
    "source with an empty directory, and others refuse the container. A plugin of simulated devices "
    "may fail this check.",
)
def mounts_existing_paths(plugin: PluginUnderTest) -> str:
    """The paths in the answers for single devices are looked up on this machine."""
    answers = [plugin.lists.alone(device) for device in plugin.lists.healthy]
    sources = sorted({mount.host_path for answer in answers for mount in answer.mounts})
    does_not_apply_if(not sources, "the plugin provides no mounts")
    nodes = [node.host_path for answer in answers for node in answer.devices]
    does_not_apply_if(
        not nodes or not all(Path(path).exists() for path in nodes), "this machine does not have the device nodes"
    )
    missing = [path for path in sources if not Path(path).exists()]
    require(not missing, f"there is no {some(missing)}")
    return f"{counted(len(sources), 'mounted path')}, all present"


@check(
    MUST,
    expected="if all paths of one device exist on this machine, so do those of all others, and all are device nodes",
    clause="DeviceSpec.host_path: Path of the device on the host (api.proto). A container runtime refuses a path that "
    "does not exist or is not a device node. From a directory, it takes all device nodes.",
)
def gives_existing_device_nodes(plugin: PluginUnderTest) -> str:
    """The device nodes in the answers for single devices are looked up on this machine."""
    nodes = {device: nodes_in(plugin.lists.alone(device)) for device in plugin.lists.healthy}
    does_not_apply_if(not any(nodes.values()), "the plugin provides no device nodes")
    prefixed = [
        f"{path}, but there is {real}" for path in sorted(set().union(*nodes.values())) if (real := _real(path))
    ]
    require(not prefixed, f"there is no {some(prefixed)}")
    wrong = {device: sorted(filter(None, map(problem_of_node, given))) for device, given in nodes.items()}
    is_simulated = not any(nodes[device] and not wrong[device] for device in nodes)
    does_not_apply_if(is_simulated, "no device has all of its device nodes on this machine")
    found = sorted({text for texts in wrong.values() for text in texts})
    require(not found, some(found))
    return f"{counted(len(frozenset().union(*nodes.values())), 'device node')}, all present"


def _real(path: str) -> str:
    """Return the path without the prefix that the host has in the plugin's container, if only that path exists."""
    parts = Path(path).parts[1:]
    if Path(path).exists() or not path.startswith("/"):
        return ""
    shorter = (Path("/", *parts[number:]) for number in range(1, len(parts) - 1))
    return next((str(one) for one in shorter if not problem_of_node(str(one)) and not one.is_dir()), "")


@check(
    SHOULD,
    expected="no mount or device node of a device is a directory that contains a node that only other devices have",
    clause=f"{ALLOCATE} A privileged container can open each node that it sees. If the path of a device node is a "
    "directory, container runtimes add all nodes in it.",
)
def shows_no_nodes_of_other_devices(plugin: PluginUnderTest) -> str:
    """The paths on the host in the answer for each single device are compared with the nodes of the other devices."""
    plugin.lists.two_devices()
    nodes, number = _nodes_of_each(plugin), 0
    for device, own in nodes.items():
        answer = plugin.lists.alone(device)
        paths = {mount.host_path for mount in answer.mounts} | nodes_in(answer)
        for path in sorted(paths):
            place = Path(os.path.realpath(path))
            others = frozenset().union(*nodes.values()) - own
            inside = sorted(node for node in others if Path(node).is_relative_to(place))
            require(not inside, f"the answer for {device} contains {path}, and so {some(inside)}")
            number += 1
    return counted(number, "path")


@check(
    MUST,
    expected="every mounted path that existed after the first call still exists after the second call",
    clause="Mount.host_path: Path of the mount on the host (api.proto). No kubelet tells a plugin that a container has "
    "ended, and a kubelet starts a container again without calling Allocate again.",
)
def keeps_the_mounts_of_other_containers(plugin: PluginUnderTest) -> str:
    """Allocate is called for one device and then for another one, and the first device's mounts are looked up."""
    first, second = plugin.lists.two_devices()
    answers = allocate_or_skip(plugin, [first])
    sources = sorted(
        {mount.host_path for answer in answers for mount in answer.mounts if Path(mount.host_path).exists()}
    )
    does_not_apply_if(not sources, "the plugin mounts nothing that exists on this machine")
    allocate_or_skip(plugin, [second])
    gone = [path for path in sources if not Path(path).exists()]
    require(not gone, f"Allocate for {second} has removed {some(gone)}, which {first} needs")
    return f"{counted(len(sources), 'mounted path')} still there"


@check(
    MUST,
    expected="small files that are mounted for a device, links and CDI devices do not change when another device is "
    "allocated, unless they keep changing anyway",
    clause="Mount.host_path: Path of the mount on the host. (api.proto) A container reads its files as long as it "
    "runs, and must not find the settings of another container there. A container that is started again resolves its "
    "paths and CDI devices again.",
)
def keeps_the_files_of_other_containers(plugin: PluginUnderTest) -> str:
    """A device, another one, and the first again are allocated. Each time, the first one's files are read."""
    first, second = plugin.lists.two_devices()

    def start(device: str) -> list[deviceplugin.ContainerAllocateResponse]:
        answers = allocate_or_skip(plugin, [device])
        if plugin.registration.connected().options.pre_start_required and not plugin.lists.starts_slowly:
            with skipping(Failure):
                plugin.lists.pre_start([device])
        return answers

    answer = start(first)[0]
    before = contents_of(answer)
    does_not_apply_if(not before, "the plugin gives no small files, links or CDI devices that this machine has")
    start(second)
    then = contents_of(answer)
    start(first)
    again = contents_of(answer)
    # Logs and counters keep changing, and do not change back.
    wrong = [name for name, content in before.items() if then.get(name) != content == again.get(name)]
    require(not wrong, f"a container with {second} has changed {some(wrong)}, which a container with {first} uses")
    return f"{counted(len(before), 'file')} as before"


# For each part of a response, a function that returns what the container gets, by name.
PARTS: Mapping[str, Callable[[deviceplugin.ContainerAllocateResponse], Mapping[str, str]]] = {
    "mount": lambda answer: {mount.container_path: mount.host_path for mount in answer.mounts},
    "variable": lambda answer: dict(answer.envs),
    "annotation": lambda answer: dict(answer.annotations),
}


def strange(
    answer: deviceplugin.ContainerAllocateResponse,
    *,
    own: deviceplugin.ContainerAllocateResponse,
    others: Sequence[deviceplugin.ContainerAllocateResponse],
) -> list[str]:
    """Return what a response contains from other devices, and the parts of which it has more than `own`."""
    found = [
        f"the {part} {name}"
        for part, of in PARTS.items()
        for name in sorted(of(answer))
        if name not in of(own) and any(name in of(other) for other in others)
    ]
    for part, more, before in (
        ("mounts", len(answer.mounts), len(own.mounts)),
        ("device nodes", len(answer.devices), len(own.devices)),
        ("CDI devices", len(answer.cdi_devices), len(own.cdi_devices)),
    ):
        found += [f"{more} {part} instead of {before}"] if more > before else []
    for part in ("variable", "annotation"):
        mine, alone = PARTS[part](answer), PARTS[part](own)
        values = {(name, PARTS[part](other)[name]) for other in others for name in PARTS[part](other)}
        found += [
            f"the {part} {name}={mine[name]}, with a value from another device"
            for name in sorted(mine.keys() & alone.keys())
            if any(of == name and text not in alone[name] and text in mine[name] for of, text in values if text)
        ]
    return found


def _of_each_device(plugin: PluginUnderTest, *parts: str) -> str:
    """Compare the named parts of each response for several devices with the responses for single devices.

    Raises Failure if a name that only one device has is missing, or if the devices have different values but the value
    for several devices is the value for a single device. Raises Skip if the responses cannot be compared.
    """
    plugin.lists.two_devices()
    each = {device: plugin.lists.alone(device) for device in plugin.lists.healthy}
    allocate_or_skip(plugin, plugin.lists.healthy)
    again: dict[str, deviceplugin.ContainerAllocateResponse] = {}

    def lasts(part: str, name: str, owner: str) -> bool:
        """Return whether a second answer for `owner` also has `name`.

        A different check covers names that change.
        """
        if owner not in again:
            again[owner] = allocate_or_skip(plugin, [owner])[0]
        return name in PARTS[part](again[owner])

    number = 0
    for ids in plugin.lists.combinations():
        answers = _answers(plugin, ids)
        skip_if(len(answers) > 1, f"{counted(len(answers), 'answer')} for one container")
        missing = []
        for part, together in ((part, answer) for part in parts for answer in answers):
            given = {device: PARTS[part](each[device]) for device in ids}
            got = PARTS[part](together)
            owners = Counter(name for one in given.values() for name in one)
            number = max(number, len(owners))
            for name, count in sorted(owners.items()):
                owner = next(device for device, one in given.items() if name in one)
                if name not in got and count == 1 and lasts(part, name, owner):
                    missing.append(f"no {part} {name}")
                values = {one[name]: device for device, one in given.items() if name in one}
                if len(values) == count > 1 and got.get(name) in values:
                    missing.append(f"the {part} {name} of {values[got[name]]} alone, {got[name]!r}")
        require(not missing, f"the answer for {some(ids)} has {some(missing)}")
    does_not_apply_if(not number, f"the plugin provides no {' and no '.join(f'{part}s' for part in parts)}")
    return f"{counted(number, 'name')} of {counted(len(each), 'device')}"


@check(
    MUST,
    expected="every mount that only one device has",
    clause=f"{ALLOCATE} A container that requests several devices needs all of their mounts.",
)
def gives_the_mounts_of_each_device(plugin: PluginUnderTest) -> str:
    """The mounts in the answers for several devices are compared with those for single devices."""
    return _of_each_device(plugin, "mount")


@check(
    MUST,
    expected=(
        "every variable and annotation that only one device has, and a combined value for each one that differs "
        "between the devices"
    ),
    clause=f"{ALLOCATE} A container has one value for each variable, so several devices need a combined value.",
)
def gives_the_variables_of_each_device(plugin: PluginUnderTest) -> str:
    """The variables and annotations in the answers for several devices are compared with those for single devices."""
    return _of_each_device(plugin, "variable", "annotation")


@check(
    MUST,
    expected=f"every variable, written as NAME=value, is shorter than {_MAX_VARIABLE} bytes",
    clause="ContainerAllocateResponse.envs: List of environment variable to be set in the container (api.proto). "
    "Linux starts no program with a longer variable. (execve(2), MAX_ARG_STRLEN)",
)
def gives_short_variables(plugin: PluginUnderTest) -> str:
    """The variables in the answers for single devices and for several are measured."""
    answers = [plugin.lists.alone(device) for device in plugin.lists.healthy]
    with suppress(Skip):  # the plugin has one device, or refuses several
        answers += [answer for ids in plugin.lists.combinations() for answer in _answers(plugin, ids)]
    lengths: dict[str, int] = {}
    for name, value in ((name, value) for answer in answers for name, value in answer.envs.items()):
        lengths[name] = max(lengths.get(name, 0), len(f"{name}={value}\0".encode()))
    does_not_apply_if(not lengths, "the plugin provides no variables")
    long = [f"{name} ({length} bytes)" for name, length in sorted(lengths.items()) if length > _MAX_VARIABLE]
    require(not long, f"these variables are too long: {some(long)}")
    return f"the longest has {max(lengths.values())} bytes"


@check(
    MUST,
    expected="each response contains only what belongs to the devices in its call",
    clause=(
        f"{ALLOCATE} If a response keeps data from an earlier call, the container gets another container's devices."
    ),
)
def keeps_calls_apart(plugin: PluginUnderTest) -> str:
    """Allocate is called for all devices, for one, for another, and for the first again. The answers are compared."""
    first, second = plugin.lists.two_devices()
    alone = plugin.lists.alone(first)
    with suppress(Failure):  # reported by another check
        plugin.lists.allocate(plugin.lists.healthy)
    one = allocate_or_skip(plugin, [first])[0]
    other = allocate_or_skip(plugin, [second])[0]
    again = allocate_or_skip(plugin, [first])[0]
    for device, answer, own in (
        (first, one, alone),
        (first, again, alone),
        (second, other, plugin.lists.alone(second)),
    ):
        strangers = [plugin.lists.alone(second) if own is alone else alone]
        more = strange(answer, own=own, others=strangers)
        require(not more, f"after calls for other devices, the answer for {device} contains {some(more)}")
    return "each response contains only its own devices"


@check(
    MUST,
    expected="the answer for each device is the same as for a single call",
    clause=f"{ALLOCATE} A kubelet starts containers of several pods at the same time.",
)
def answers_calls_at_once(plugin: PluginUnderTest) -> str:
    """All announced methods are called concurrently. Allocate's answers are compared with those to single calls."""
    plugin.lists.two_devices()
    ids = plugin.lists.healthy[:_AT_ONCE]
    alone = {device: plugin.lists.alone(device) for device in ids}
    for device in ids:
        again = allocate_or_skip(plugin, [device])[0]
        others = [one for other, one in alone.items() if other != device]
        changes = hardware(again) != hardware(alone[device]) or strange(again, own=alone[device], others=others)
        skip_if(changes, "the answers change from call to call")
    exits, more_calls = len(plugin.process.exits), _optional_calls(plugin, ids)
    with ThreadPoolExecutor(len(ids) + len(more_calls)) as pool:
        for _ in range(_ROUNDS):
            made = {device: pool.submit(plugin.lists.allocate, [device]) for device in ids}
            optional = {name: pool.submit(call) for name, call in more_calls.items()}
            for device, call in made.items():
                with in_context(f"{device}, with {counted(len(ids) - 1, 'other call')} at the same time"):
                    answers = call.result()
                    require(answers, "the answer has no container response")
                    require(
                        hardware(answers[0]) == hardware(alone[device]),
                        "the device nodes differ from those for a single call",
                    )
                    others = [one for other, one in alone.items() if other != device]
                    more = strange(answers[0], own=alone[device], others=others)
                    require(not more, f"the answer contains {some(more)}")
            for name, other in optional.items():
                with in_context(f"{name}, during {counted(len(ids), 'call')} to Allocate"):
                    other.result()
    ended = plugin.process.exits_since(exits)
    require(not ended, f"the plugin exited: {some(ended)}")
    return f"{_ROUNDS} rounds of {counted(len(ids) + len(more_calls), 'call')} at once"


def _optional_calls(plugin: PluginUnderTest, ids: Sequence[str]) -> Mapping[str, Callable[[], object]]:
    """Return calls to the announced methods other than Allocate, by method name, except calls that fail or are slow."""
    options = plugin.registration.connected().options
    calls: dict[str, Callable[[], object]] = {
        "GetDevicePluginOptions": lambda: plugin.lists.call(rpc.GET_DEVICE_PLUGIN_OPTIONS, deviceplugin.Empty())
    }
    if options.get_preferred_allocation_available:
        calls["GetPreferredAllocation"] = lambda: ask_for_preferred(plugin, ids, [], 1)
    if options.pre_start_required:
        calls["PreStartContainer"] = lambda: plugin.lists.pre_start(ids[:1])
    working = {name: call for name, call in calls.items() if succeeds(call)}
    if plugin.lists.starts_slowly:
        working.pop("PreStartContainer", None)
    return working


@check(
    MUST,
    expected="an answer to each later call, with at least the same device nodes as before; while the plugin still "
    "works on a canceled call, it may refuse others",
    clause=f"{ALLOCATE} A kubelet that is stopped cancels its calls, and makes them again after its restart. It also "
    "gives up PreStartContainer after 30 seconds.",
)
def answers_after_canceled_calls(plugin: PluginUnderTest) -> str:
    """Calls to all announced methods are canceled early and halfway, and made again."""
    connection, ids = plugin.registration.connected(), plugin.lists.healthy[:_AT_ONCE]
    for device in ids:
        allocate_or_skip(plugin, [device])
    calls: list[tuple[rpc.Method[Any, Any], Message]] = [(rpc.ALLOCATE, allocate_request(ids[:1]))]
    if connection.options.get_preferred_allocation_available:
        preferred = deviceplugin.ContainerPreferredAllocationRequest(available_deviceIDs=ids, allocation_size=1)
        preference = deviceplugin.PreferredAllocationRequest(container_requests=[preferred])
        calls.append((rpc.GET_PREFERRED_ALLOCATION, preference))
    if connection.options.pre_start_required:
        calls.append((rpc.PRE_START_CONTAINER, deviceplugin.PreStartContainerRequest(devices_ids=ids[:1])))
    calls = [(method, request) for method, request in calls if _answers_call(plugin, method, request)]
    number = 0
    for method, request in calls:
        took = plugin.lists.took[method.name]
        early = () if method is rpc.PRE_START_CONTAINER and plugin.lists.starts_slowly else _CANCELED_AFTER
        for limit in (*early, took / 2):
            connection.cancel(method, request, plugin.settings.timeout, limit)
            number += 1
    for method, request in calls:
        with in_context(f"after {counted(number, 'canceled call')}"):
            _call_until_answered(plugin, method, request)
    for device in ids:
        with in_context(f"for {device}, after {counted(number, 'round')} of canceled calls"):
            _require_nodes(plugin, device)
    return f"{counted(len(ids), 'answer')} after {counted(number, 'round')} of canceled calls"


@check(
    MUST,
    expected="an answer to each later call, with at least the same device nodes as before",
    clause="Failure Handling: [...] The Device plugin should send a ListAndWatch update and fail the Allocation "
    "request. (api.proto) A kubelet may request a device that has just vanished together with others, which it then "
    "gives to another pod.",
)
def allocates_after_a_refusal(plugin: PluginUnderTest) -> str:
    """Allocate is called for devices together with an unlisted one, which is refused, and then for each device."""
    ids = plugin.lists.healthy[:_AT_ONCE]
    for device in ids:
        allocate_or_skip(plugin, [device])
    refused = 0
    for devices in ([*ids[:1], UNKNOWN_DEVICE], [*ids, UNKNOWN_DEVICE], [UNKNOWN_DEVICE, *ids]):
        try:
            plugin.lists.allocate(devices)
        except CallFailedError as error:
            if error.is_late:
                break
            refused += 1  # UNAVAILABLE counts, too: plugins use it if a device is busy
    else:
        does_not_apply_if(not refused, "the plugin does not refuse an unknown id")
    skip_if(not refused, "the plugin did not answer")
    for device in ids:
        with in_context(f"for {device}, after {counted(refused, 'refused call')}"):
            _require_nodes(plugin, device)
    return f"{counted(len(ids), 'answer')} after {counted(refused, 'refused call')}"


def _require_nodes(plugin: PluginUnderTest, device: str) -> None:
    """Require that Allocate for a device gives at least the device nodes of the first answer."""
    answers = plugin.lists.allocate([device])
    require(answers, "the answer has no container response")
    lost = sorted(nodes_in(plugin.lists.alone(device)) - nodes_in(answers[0]))
    require(not lost or "device nodes" in plugin.lists.unsteady, f"the answer lacks {some(lost)}")


def _answers_call(plugin: PluginUnderTest, method: rpc.Method[Any, Any], request: Message) -> bool:
    """Return whether the plugin answers a call, or has answered the same call before."""
    return plugin.lists.has_answered(method, request) or succeeds(lambda: plugin.lists.call(method, request, STARTING))


def _call_until_answered(plugin: PluginUnderTest, method: rpc.Method[Any, Any], request: Message) -> None:
    """Make a call again until it is answered.

    Raises Failure if the plugin still refuses it when it must have finished with all canceled calls.
    """
    until = time.monotonic() + (len(_CANCELED_AFTER) + 1) * plugin.lists.took[method.name] + SHORT_PAUSE
    while True:
        try:
            plugin.lists.call(method, request, STARTING)
        except CallFailedError as error:
            if error.is_late or time.monotonic() > until:
                raise
        else:
            return
        plugin.process.pause(SHORT_PAUSE)


@check(
    INFO,
    expected="variables without = in their names, and annotations with qualified names",
    clause="A container has each variable as NAME=value, so a name with = would become a different variable. "
    "(execve(2)) Annotations are metadata of the container's sandbox. (kubernetes.io, Annotations)",
)
def gives_valid_variables_and_annotations(plugin: PluginUnderTest) -> str:
    """The names of variables and annotations in the answers for single devices are read."""
    answers = [plugin.lists.alone(device) for device in plugin.lists.healthy]
    variables = sorted({name for answer in answers for name in answer.envs})
    annotations = sorted({name for answer in answers for name in answer.annotations})
    does_not_apply_if(not variables + annotations, "the plugin provides no variables and no annotations")
    odd = [f"the variable {name!r}" for name in variables if not _VARIABLE.fullmatch(name)]
    odd += [f"the annotation {name!r}" for name in annotations if not _ANNOTATION.fullmatch(name)]
    require(not odd, some(odd))
    return f"{counted(len(variables), 'variable')} and {counted(len(annotations), 'annotation')}"


@check(
    MUST,
    expected="an answer each time, and a process that keeps running",
    clause=f"{ALLOCATE} A plugin runs for months, and containers come and go.",
)
def answers_many_calls(plugin: PluginUnderTest) -> str:
    """Allocate and the announced optional methods are called up to 200 times, for at most a few seconds."""
    exits, began, number = len(plugin.process.exits), time.monotonic(), 0
    ids, options = plugin.lists.healthy, plugin.registration.connected().options
    _ = plugin.lists.alone(ids[0])
    process, first, plugin.seen.growth, idle = plugin.process.running, None, None, 0.0
    starting, warm = 0.0, _CALLS
    if process is not None and process.status is None:
        before = Usage.of(process)
        plugin.process.pause(SHORT_PAUSE)
        idle = before.printed_until(Usage.of(process))
    while number < _CALLS:
        needs_more = first is not None and number < warm + _FEWEST_CALLS
        if time.monotonic() - began > _CALLING * (2 if needs_more else 1):
            break
        device = ids[number % len(ids)]
        with in_context(f"call {number + 1} of many"), _unless_taken_at_first(plugin, device, number):
            require(plugin.lists.allocate([device]), "the answer has no container response")
        if options.pre_start_required and starting < _CALLING / 2:  # it may be slow, and Allocate needs time, too
            asked = time.monotonic()
            with skipping(Failure):
                plugin.lists.pre_start([device])
            starting += time.monotonic() - asked
        if options.get_preferred_allocation_available:
            preferred_or_skip(plugin, ids, [], 1)
        number += 1
        is_warm = number == _CALLS_FIRST or time.monotonic() - began > _CALLING / 2
        if first is None and is_warm and process is not None and process.status is None:
            first, warm = Usage.of(process), number
    if (
        first is not None
        and number >= warm + _FEWEST_CALLS
        and process is not None
        and process is plugin.process.running
        and process.status is None
    ):
        plugin.seen.growth = first.growth_until(Usage.of(process), number - warm, idle)
    plugin.note_usage(is_first=True)
    ended = plugin.process.exits_since(exits)
    require(not ended, f"the plugin exited: {some(ended)}")
    return f"the plugin answered {counted(number, 'time')}"


@contextmanager
def _unless_taken_at_first(plugin: PluginUnderTest, device: str, number: int) -> Iterator[None]:
    """Skip the check if this block fails for the first call with a device; another check reports that."""
    try:
        yield
    except Failure:
        skip_if(number < len(plugin.lists.healthy), f"{device} is not allocated again")
        raise


@check(
    SHOULD,
    expected="memory, threads, open files, zombie processes and output that do not grow with each call",
    clause="A plugin runs for months, and the kubelet needs the node's memory and disk for containers.",
)
def grows_with_no_call(plugin: PluginUnderTest) -> str:
    """The plugin's resource usage is compared before and after most of the calls in answers-many-calls."""
    plugin.process.require_process()
    if plugin.seen.growth is None:
        took = plugin.lists.took.get(rpc.ALLOCATE.name, 0.0)
        text = f"Allocate takes at least {took:.1f} seconds, so there is time for only a few calls"
        does_not_apply_if(took * _FEWEST_CALLS > 2 * _CALLING, text)
        raise Skip("too few calls were answered")
    require(not plugin.seen.growth, str(plugin.seen.growth))
    return "the plugin uses no more than before"


@check(
    SHOULD,
    expected="threads, open files and zombie processes that do not grow with time",
    clause="A plugin runs for months. If it leaves files open each time it checks its devices, it soon cannot open "
    "anything, not even a connection to a new kubelet.",
)
def does_not_grow_with_time(plugin: PluginUnderTest) -> str:
    """The plugin's resource usage is compared after answers-many-calls and at the end of the same process."""
    plugin.process.require_process()
    usages = plugin.seen.usages
    skip_if(len(usages) < 2, "the process did not run long enough")
    first, last = usages
    seconds = last.at - first.at
    skip_if(seconds < _LONG, f"the process ran for only {seconds:.1f} seconds after many calls")
    text = f"in {seconds:.0f} seconds"
    grown = first.more_until(last)
    require(not grown, f"{some(grown)} {text}")
    return f"no more {text}"


def _answers(plugin: PluginUnderTest, devices: Sequence[str]) -> list[deviceplugin.ContainerAllocateResponse]:
    """Return the responses to Allocate, or none if the plugin refuses the call, as it may for several devices."""
    try:
        return allocated_to(plugin, devices, plugin.lists.together)
    except DoesNotApply:
        return []


def _nodes_of_each(plugin: PluginUnderTest) -> dict[str, frozenset[str]]:
    """Return the device nodes in the answer for each healthy device on its own, with symbolic links resolved."""
    plugin.lists.two_devices()
    nodes = {device: _real_nodes(plugin.lists.alone(device)) for device in plugin.lists.healthy}
    does_not_apply_if(not any(nodes.values()), "the plugin provides no device nodes")
    return nodes


def _require_same(
    device: str,
    before: deviceplugin.ContainerAllocateResponse,
    again: deviceplugin.ContainerAllocateResponse,
    *fields: str,
) -> None:
    """Check that two responses for a device have equal fields."""
    for name in fields:
        first, second = _listed(before, name), _listed(again, name)
        require(first == second, f"the {name} of {device} were {first} the first time and {second} the second time")


@contextmanager
def _unless_taken(plugin: PluginUnderTest, *devices: str) -> Iterator[None]:
    """Skip the check if this block fails and a device is also refused on its own, for example because it is taken."""
    try:
        yield
    except Failure as failure:
        has_answered = not isinstance(failure, CallFailedError) or failure.is_late or is_refusal(plugin, failure)
        for device in devices if has_answered else ():
            allocate_or_skip(plugin, [device])
        raise


def _real_nodes(answer: deviceplugin.ContainerAllocateResponse) -> frozenset[str]:
    """Return the device nodes in an answer, with symbolic links resolved."""
    return frozenset(map(os.path.realpath, nodes_in(answer)))


def _key(answer: deviceplugin.ContainerAllocateResponse) -> bytes:
    """Return the same bytes for equal responses."""
    return answer.SerializeToString(deterministic=True)


def _listed(answer: deviceplugin.ContainerAllocateResponse, name: str) -> list[str]:
    return sorted(str(each).replace("\n", " ").strip() for each in getattr(answer, name))


def _given(answer: deviceplugin.ContainerAllocateResponse) -> str:
    """Return a description of what the answer gives a container, or an empty string if it gives nothing."""
    envs = [f"{name}={value}" for name, value in sorted(answer.envs.items())]
    mounts = sorted(mount.host_path for mount in answer.mounts)
    annotations = [f"annotation {name}" for name in sorted(answer.annotations)]
    return some([*envs, *sorted(nodes_in(answer)), *mounts, *(one.name for one in answer.cdi_devices), *annotations])
