"""The checks for device plugins, in the order in which they run.

Law: a check tests one thing. To add a check, write a function in the right place below.
"""

import os
import posixpath
import re
import signal
import socket
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from devicecore.adapters.grpc_unix import rpc
from devicecore.domain.dra.answers import is_cdi_name
from devicecore.domain.model import MAX_DEVICE_ID_LENGTH, is_extended_resource
from devicecore.domain.text import counted, foreign_text
from devicecore.wire import deviceplugin
from devicecore_tools.conformance.connection import CallFailedError
from devicecore_tools.conformance.device_plugin.devices import (
    PATIENCE,
    REFUSAL,
    STARTING,
    allocate_request,
    contents_of,
    health_changes,
    health_of,
)
from devicecore_tools.conformance.device_plugin.kubelet import ENDED_BY_PLUGIN, PluginConnection, path_problem
from devicecore_tools.conformance.device_plugin.plugin import Absence, PluginUnderTest, Quiet, SickStart
from devicecore_tools.conformance.model import (
    Abort,
    Check,
    DoesNotApply,
    Failure,
    NotYet,
    Severity,
    Skip,
    TookTooLong,
    Undecided,
    check,
    does_not_apply_if,
    in_context,
    require,
    reworded,
    skip_if,
    skipping,
    some,
)
from devicecore_tools.conformance.processes import (
    MAX_CPU,
    ProcessorUse,
    Usage,
    has_panicked,
    problem_of_command,
)
from devicecore_tools.testing.process import PluginProcess

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""The largest message, in bytes, that a kubelet's gRPC connection accepts."""
UNKNOWN_DEVICE = "no-such-device-of-devicecore"
_LAST_NUMA_NODE = 63
_LAST_NUMBER = re.compile(r"[0-9]{1,18}(?=[^0-9]*$)")
_IDLE = 1.5  # seconds
_AFTER_REFUSAL = 40.0  # seconds; some plugins try again after half a minute
MAX_RATE = 10.0  # registrations per second, after the first `MAX_BURST`
MAX_BURST = 10  # registrations at once
MAX_PRINTED_IDLE = 2000  # bytes per second; a plugin may print that it tries to register again
_MAX_SICK_REPEATS = 2  # lists
MAX_LISTS = 10.0  # lists per second
MAX_REPEATS = 0.4  # lists per second without a change; some plugins send one every few seconds
SOON = 3.0  # seconds for the first list of a stream
TWICE = 0.5  # seconds within which some plugins register twice
LATER = 2.0  # seconds by which a child process may outlive the plugin
_FAR = 1_000_000  # added to the last number in a listed id
_RESTARTED = 8  # the maximum number of devices that some checks allocate one by one
_OTHERS = 2  # resources
_ALONE_AGAIN = 3.0  # seconds; a plugin that keeps registering does so several times in this time
_LATE_KUBELET = 1.5  # seconds; `Settings.away` may be shorter
_OTHER_SOCKET, _CHECKPOINT = "conformance-other.sock", "kubelet_internal_checkpoint"
_DIRECTORY = "/var/lib/kubelet/device-plugins"
_MAX_VARIABLE = 131_072  # bytes, including the name, = and a NUL
_FIRST_WORD = re.compile(r"[A-Za-z0-9]+")
_EXCEPTION = re.compile(
    r"^Exception calling application: |Traceback \(most recent call last\)|^panic: |goroutine \d+ \["
)
_CANCELED_AFTER = (0.001, 0.002, 0.003, 0.005, 0.01)  # seconds
_SHORT_PAUSE = 0.3  # seconds
_NOTICEABLE = 0.5  # seconds; calls that take less time may well wait for each other
_ALMOST_TWICE = 1.6  # times the usual time
_LONG = 5.0  # seconds; a plugin checks its devices several times in this time
_REFILLING = 3.0  # seconds for a list with devices to follow an empty one
_WITH_SOCKET = 0.75  # of the kubelet's absence; a plugin may try to register only while there is a socket
_AT_LEAST, _RESTARTS, _RESTARTING, _BRIEF = 3, 12, 1.5, 0.1  # restarts, seconds for all of them and for one
_KILLED_DURING, _UNDER_LOAD = 4, 0.2  # concurrent calls, and for how many seconds
_WAITING = 1.0  # seconds for a started plugin to look for the kubelet
_AT_ONCE, _ROUNDS = 8, 5  # concurrent calls, and how many times they are made
_CALLS, _CALLS_FIRST, _CALLING = 200, 50, 5.0  # calls, calls before the first measurement, seconds
_FEWEST_CALLS = 25  # between two measurements; a plugin may get twice the time for them
_VARIABLE = re.compile(r"[^=\0\s]+")
_ANNOTATION = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_CDI_ANNOTATION = "cdi.k8s.io/"
_STOPPED = (0, -signal.SIGTERM, 128 + signal.SIGTERM)  # a shell adds 128
HEALTHS = ("Healthy", "Unhealthy")
_NO_CHANGE = "no change of health was listed as it should be (reports-a-change-of-health)"

MUST, SHOULD, INFO = Severity.MUST, Severity.SHOULD, Severity.INFO


# --- registration -----------------------------------------------------------------------------------------------------


@check(
    MUST,
    expected="the plugin registers, and its own socket is reachable before the registration is answered",
    clause="A plugin MUST start serving gRPC service before registering itself with kubelet for successful "
    "registration. (kubernetes.io, Device Plugins)",
)
def serves_before_it_registers(plugin: PluginUnderTest) -> str:
    """The kubelet starts. When the plugin registers, the kubelet connects to the plugin before answering."""
    began = time.monotonic()
    plugin.registration.wait_for_first()
    kubelet = plugin.kubelet
    if not kubelet.registrations:
        silence = f"{kubelet.silence}, for {counted(round(time.monotonic() - began), 'second')}"
        parts = [silence, *map(str, plugin.process.exits[-1:])]
        if not plugin.process.exits:
            parts.append(
                f"is the plugin configured to use {kubelet.directory}? If its directory is fixed, pass that directory "
                "with --socket-dir. If the program is a DRA driver, run: devicecore conformance driver"
            )
        if plugin.settings.budget < plugin.settings.first and not plugin.process.has_exited:
            parts.append("--budget ended the wait before --starting did")
            raise Undecided("; ".join(parts))
        raise Abort("; ".join(parts))
    first = plugin.registration.first
    took = f"the plugin registered after {max(first.at - began, 0):.1f} seconds"
    require(first.stage != "dial", f"{took}, but then: {first.problem}", late=first.is_late)
    reached = f"was reached {first.reached_after:.2f} seconds later"
    is_first = first.reached_after < 1 or not first.given_up
    require(is_first, f"{took}, canceled its call, and only then {reached}", late=True)
    return f"{took}, and {reached}"


@check(
    MUST,
    expected=f"the version is {rpc.VERSION}",
    clause="RegisterRequest.version: Version of the API the Device Plugin was built against (api.proto). "
    f"A kubelet supports only {rpc.VERSION}.",
)
def registers_a_supported_version(plugin: PluginUnderTest) -> str:
    """The version in the registration is read."""
    version = plugin.registration.first.request.version
    require(version == rpc.VERSION, f"the version is {version!r}")
    return f"the version is {version}"


@check(
    MUST,
    expected="the endpoint is the name of a file in the socket directory, not an absolute path (with --registry: an "
    "absolute path or empty), and short enough for a unix socket",
    clause="RegisterRequest.endpoint: Name of the unix socket the device plugin is listening on; "
    "PATH = path.Join(DevicePluginPath, endpoint) (api.proto)",
)
def registers_an_endpoint_in_the_directory(plugin: PluginUnderTest) -> str:
    """The endpoint in the registration is read."""
    endpoint = plugin.registration.first.request.endpoint
    problem = plugin.kubelet.endpoint_problem(endpoint)
    if not problem and not plugin.kubelet.is_watcher:  # the path in the directory of this run is shorter
        problem = path_problem(f"{_DIRECTORY}/{endpoint}")
    require(not problem, f"the endpoint is {endpoint!r}: {problem}")
    return f"the endpoint is {endpoint}"


@check(
    MUST,
    expected="an extended resource name: a domain that is not one of Kubernetes' own, a slash, and a name",
    clause="The ResourceName it wants to advertise. Here ResourceName needs to follow the extended resource naming "
    "scheme as vendor-domain/resourcetype. (kubernetes.io, Device Plugins)",
)
def registers_an_extended_resource_name(plugin: PluginUnderTest) -> str:
    """The resource name in the registration is read."""
    name = plugin.registration.first.request.resource_name
    require(is_extended_resource(name), f"the resource name is {name!r}")
    return f"the resource is {name}"


@check(
    MUST,
    expected="an answer in time, before the plugin receives the answer to its registration",
    clause="GetDevicePluginOptions returns options to be communicated with Device Manager. (api.proto)",
)
def answers_options(plugin: PluginUnderTest) -> str:
    """As in a kubelet, GetDevicePluginOptions is called before the registration is answered."""
    first = plugin.registration.first
    require(first.stage != "options", first.problem, late=first.is_late)
    return f"the options are: {_options(plugin.registration.connected().options)}"


@check(
    MUST,
    expected="an answer in time",
    clause="NotifyRegistrationStatus: notifies the plugin if registration succeeded or failed (pluginregistration, "
    "api.proto). A kubelet disconnects a plugin that does not answer.",
)
def answers_notify_registration_status(plugin: PluginUnderTest) -> str:
    """If the plugin uses the kubelet's plugin watcher (--registry), NotifyRegistrationStatus is called."""
    does_not_apply_if(not plugin.kubelet.is_watcher, "the plugin calls Register (no --registry)")
    first = plugin.registration.first
    require(first.stage != "status", first.problem, late=first.is_late)
    plugin.registration.connected()
    return "the plugin answers"


@check(
    MUST,
    expected="GetDevicePluginOptions returns every option in the registration",
    clause=(
        "RegisterRequest.options: Options to be communicated with Device Manager (api.proto). A kubelet uses only the "
        "options from GetDevicePluginOptions, and never calls a method that these options do not announce."
    ),
)
def answers_the_options_it_registers(plugin: PluginUnderTest) -> str:
    """The options in the registration are compared with those from GetDevicePluginOptions."""
    connection = plugin.registration.connected()
    registered, answered = plugin.registration.first.request.options, connection.options
    lacks = (registered.pre_start_required and not answered.pre_start_required) or (
        registered.get_preferred_allocation_available and not answered.get_preferred_allocation_available
    )
    text = f"in the registration: {_options(registered)}; from GetDevicePluginOptions: {_options(answered)}"
    require(not lacks, text)
    return "nothing is missing from the answer"


# --- the list ---------------------------------------------------------------------------------------------------------


@check(
    MUST,
    expected="a first list in time; it may be empty",
    clause="ListAndWatch returns a stream of List of Devices. (api.proto)",
)
def lists_devices_in_time(plugin: PluginUnderTest) -> str:
    """ListAndWatch is called as soon as the plugin has registered."""
    connection = plugin.registration.streaming()
    if not connection.list_count:
        why = f"the stream ended ({connection.ended})" if connection.ended else "the stream is open and silent"
        more = "" if connection.ended else " (--timeout gives more)"
        text = f"no list within {counted(plugin.settings.timeout, 'second')}{more}: {why}"
        raise (Failure if connection.ended else TookTooLong)(text)
    took = connection.first_list_at - connection.opened
    return f"a list after {took:.2f} seconds; the list now contains {counted(len(plugin.lists.devices), 'device')}"


@check(
    MUST,
    expected="every id is listed once",
    clause="Device.ID: A unique ID assigned by the device plugin used to identify devices during the communication "
    "(api.proto)",
)
def lists_unique_ids(plugin: PluginUnderTest) -> str:
    """The ids in the list are compared."""
    count = Counter(device.ID for device in plugin.lists.devices)
    twice = sorted(id_ for id_, number in count.items() if number > 1)
    require(not twice, f"these ids are listed more than once: {some(twice)}")
    return f"{counted(len(count), 'id')}, each listed once"


@check(
    MUST,
    expected=f"every id has 1 to {MAX_DEVICE_ID_LENGTH} characters",
    clause=f"Device.ID: Max length of this field is {MAX_DEVICE_ID_LENGTH} characters (api.proto)",
)
def lists_short_ids(plugin: PluginUnderTest) -> str:
    """The length of each id is measured."""
    ids = [device.ID for device in plugin.lists.devices]
    require("" not in ids, "an id is empty")
    long = [f"{id_} ({len(id_)} characters)" for id_ in ids if len(id_) > MAX_DEVICE_ID_LENGTH]
    require(not long, f"these ids are too long: {some(long)}")
    return f"the longest id has {counted(max(map(len, ids), default=0), 'character')}"


@check(
    SHOULD,
    expected="Healthy or Unhealthy, in this spelling",
    clause="Device.health: Health of the device, can be Healthy or Unhealthy, see constants.go (api.proto). A kubelet "
    "treats everything else as unhealthy.",
)
def lists_known_health(plugin: PluginUnderTest) -> str:
    """The health of each device is read."""
    health = health_of(plugin.lists.devices)
    odd = [f"{id_} is {value!r}" for id_, value in health.items() if value not in HEALTHS]
    require(not odd, some(odd))
    healthy = sum(value == HEALTHS[0] for value in health.values())
    return f"{healthy} of {counted(len(health), 'device')} {'is' if healthy == 1 else 'are'} healthy"


@check(
    MUST,
    expected=f"at most {MAX_MESSAGE_BYTES} bytes",
    clause="A kubelet's gRPC connection has the default limits: a message of more than 4 MiB ends the stream, and the "
    "resource then has no devices.",
)
def lists_fit_into_a_message(plugin: PluginUnderTest) -> str:
    """The size of the largest list so far is measured."""
    size = plugin.lists.require_list().largest_list
    devices = len(plugin.lists.devices)
    text = f"the list of {counted(devices, 'device')} takes {counted(size, 'byte')}"
    require(size <= MAX_MESSAGE_BYTES, text)
    return f"{text}; about {devices * MAX_MESSAGE_BYTES // size} devices fit" if size else text


@check(
    MUST,
    expected=f"numbers from 0 to {_LAST_NUMA_NODE}, and no NUMA node for a device whose NUMA node is unknown",
    clause="Setting TopologyInfo to nil or providing an empty list of NUMA nodes for a given device indicates that the "
    "Device Plugin does not express a NUMA affinity preference for that device. (kubernetes.io, Device Plugins) Linux "
    "reports -1 for a device without a NUMA node. A kubelet finds no NUMA node with that number, or with one of 64 or "
    "more, since its masks have 64 bits. If its topology "
    "manager policy is restricted or single-numa-node, it refuses each pod for which the other devices do not suffice.",
)
def numbers_numa_nodes_from_zero(plugin: PluginUnderTest) -> str:
    """The NUMA nodes of each device in the list are read."""
    found = [(device.ID, int(node.ID)) for device in plugin.lists.devices for node in device.topology.nodes]
    does_not_apply_if(not found, "the plugin provides no NUMA nodes")
    odd = [f"{id_} is on NUMA node {number}" for id_, number in found if not 0 <= number <= _LAST_NUMA_NODE]
    require(not odd, some(odd))
    return f"the highest of {counted(len(found), 'NUMA node number')} is {max(number for _, number in found)}"


# --- Allocate ---------------------------------------------------------------------------------------------------------

ALLOCATE = (
    "Allocate is called during container creation so that the Device Plugin can run device specific operations and "
    "instruct Kubelet of the steps to make the Device available in the container. (api.proto)"
)


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
        require(_is_refusal(plugin, error), f"Allocate for {device!r} was not refused: {error}", late=error.is_late)
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
        skip_if(not _is_refusal(plugin, error), "the plugin did not answer")
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
    owners = Counter(node for one in each.values() for node in _nodes(one))
    missing = sorted(node for node, number in owners.items() if number == 1 and node not in _nodes(together[0]))
    # The nodes of some plugins, such as plugins of simulated devices, differ only in their container paths.
    alike = [one for one in each.values() if all(owners[node] > 1 for node in _nodes(one))]
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
        own = {node for id_ in ids for node in _nodes(each[id_]) if owners[node] == 1}
        own |= {node.container_path for one in alike for node in one.devices if places[node.container_path] == 1} & {
            node.container_path for id_ in ids for node in each[id_].devices
        }
        for answer in _answers(plugin, ids):
            left = sorted(own - _paths(answer))
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
    own = {device: _merged(plugin.lists.alone(device)) for device in plugin.lists.healthy[:_RESTARTED]}
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
    for id_ in sorted({one.ID for one in connection.last_list.devices if one.health == HEALTHS[0]})[:_RESTARTED]:
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
    expected="if this machine has all device nodes of one device, it has those of all others, and all are device nodes",
    clause="DeviceSpec.host_path: Path of the device on the host (api.proto). A container runtime refuses a path that "
    "does not exist or is not a device node. From a directory, it takes all device nodes.",
)
def gives_existing_device_nodes(plugin: PluginUnderTest) -> str:
    """The device nodes in the answers for single devices are looked up on this machine."""
    nodes = {device: _nodes(plugin.lists.alone(device)) for device in plugin.lists.healthy}
    does_not_apply_if(not any(nodes.values()), "the plugin provides no device nodes")
    prefixed = [
        f"{path}, but there is {real}" for path in sorted(set().union(*nodes.values())) if (real := _real(path))
    ]
    require(not prefixed, f"there is no {some(prefixed)}")
    wrong = {device: sorted(filter(None, map(_problem_of_node, given))) for device, given in nodes.items()}
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
    return next((str(one) for one in shorter if not _problem_of_node(str(one)) and not one.is_dir()), "")


def _problem_of_node(path: str) -> str:
    """Return why a container runtime cannot take a device from this path, or an empty string."""
    try:
        mode = Path(path).stat().st_mode
    except OSError as error:
        return f"{path}: {error.strerror}"
    is_one = stat.S_ISCHR(mode) or stat.S_ISBLK(mode) or stat.S_ISDIR(mode)
    return "" if is_one else f"{path} is not a device node"


@check(
    SHOULD,
    expected="no mount or device node of a device is a directory that contains a node of another device only",
    clause=f"{ALLOCATE} A privileged container can open each node that it sees. If the path of a device node is a "
    "directory, container runtimes add all nodes in it.",
)
def shows_no_nodes_of_other_devices(plugin: PluginUnderTest) -> str:
    """The paths on the host in the answer for each single device are compared with the nodes of the other devices."""
    plugin.lists.two_devices()
    nodes, number = _nodes_of_each(plugin), 0
    for device, own in nodes.items():
        answer = plugin.lists.alone(device)
        paths = {mount.host_path for mount in answer.mounts} | _nodes(answer)
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
    for several devices equals that of one of them. Raises Skip if the responses cannot be compared.
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
    working = {name: call for name, call in calls.items() if _succeeds(call)}
    if plugin.lists.starts_slowly:
        working.pop("PreStartContainer", None)
    return working


def _succeeds(call: Callable[[], object]) -> bool:
    try:
        call()
    except Failure:  # another check reports this
        return False
    return True


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
    """Allocate is called for devices and an unlisted one together, which is refused, and then for each device."""
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
            refused += 1  # with UNAVAILABLE, too, which plugins use if a device is busy
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
    lost = sorted(_nodes(plugin.lists.alone(device)) - _nodes(answers[0]))
    require(not lost or "device nodes" in plugin.lists.unsteady, f"the answer lacks {some(lost)}")


def _answers_call(plugin: PluginUnderTest, method: rpc.Method[Any, Any], request: Message) -> bool:
    """Return whether the plugin answers a call, or has answered the same call before."""
    return plugin.lists.has_answered(method, request) or _succeeds(lambda: plugin.lists.call(method, request, STARTING))


def _call_until_answered(plugin: PluginUnderTest, method: rpc.Method[Any, Any], request: Message) -> None:
    """Make a call again until it is answered.

    Raises Failure if the plugin still refuses it when it must have finished with all canceled calls.
    """
    until = time.monotonic() + (len(_CANCELED_AFTER) + 1) * plugin.lists.took[method.name] + _SHORT_PAUSE
    while True:
        try:
            plugin.lists.call(method, request, STARTING)
        except CallFailedError as error:
            if error.is_late or time.monotonic() > until:
                raise
        else:
            return
        plugin.process.pause(_SHORT_PAUSE)


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
        plugin.process.pause(_SHORT_PAUSE)
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
            _preferred(plugin, ids, [], 1)
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
        text = f"Allocate takes at least {took:.1f} seconds, so there is only time for few calls"
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


# --- preferences ------------------------------------------------------------------------------------------------------

PREFERENCE = (
    "GetPreferredAllocation returns a preferred set of devices to allocate from a list of available ones. (api.proto)"
)
ADVICE = f"{PREFERENCE} The answer is advice: a kubelet uses the part that fits."


@check(
    MUST,
    expected="an answer with one set of ids, because the plugin has announced the method",
    clause=f"{PREFERENCE} If the plugin answers with an error, the kubelet refuses the pod.",
)
def answers_get_preferred_allocation(plugin: PluginUnderTest) -> str:
    """GetPreferredAllocation, if announced, is called for various sizes, required devices and available devices."""
    ids = plugin.lists.healthy
    calls = [(ids, must, size) for size, must in _preference_calls(ids)]
    calls += [
        (ids[::-1], [], 1),
        (ids[1:] or ids, [], 1),
        (ids[-1:], [], 1),
    ]  # a kubelet sends the free devices in any order
    for available, must, size in calls:
        with in_context(f"for {size} of {some(available)}, with {some(must) or 'none'} that must be included"):
            ask_for_preferred(plugin, available, must, size)
    return counted(len(calls), "answer")


@check(
    SHOULD,
    expected="two answers in the order of the containers",
    clause=f"{PREFERENCE} PreferredAllocationRequest.container_requests is repeated. Today's kubelets send one "
    "container per call, but the API allows more.",
)
def prefers_for_each_of_two_containers(plugin: PluginUnderTest) -> str:
    """GetPreferredAllocation, if announced, is called for two containers, each of which can get any device."""
    plugin.registration.require_preferences()
    container = deviceplugin.ContainerPreferredAllocationRequest(
        available_deviceIDs=plugin.lists.healthy, allocation_size=1
    )
    request = deviceplugin.PreferredAllocationRequest(container_requests=[container, container])
    answers = plugin.lists.call(rpc.GET_PREFERRED_ALLOCATION, request).container_responses
    require(len(answers) == 2, f"{counted(len(answers), 'answer')} for 2 containers")
    return "two answers"


@check(
    SHOULD,
    expected="as many ids as requested",
    clause=f"ContainerPreferredAllocationRequest.allocation_size: Number of devices to include in the preferred "
    f"allocation. {ADVICE}",
)
def prefers_as_many_as_asked(plugin: PluginUnderTest) -> str:
    """GetPreferredAllocation, if announced, is called for one, two, half and all devices, also with required ones."""
    ids = plugin.lists.healthy
    for size, must in _preference_calls(ids):
        preferred = _preferred(plugin, ids, must, size)
        required = f" with {some(must)}" if must else ""
        require(
            len(preferred) == len(set(preferred)) == size,
            f"{size} of {counted(len(ids), 'device')} requested{required}, but the preferred devices are "
            f"{some(preferred) or 'none'}",
        )
    return f"{', '.join(map(str, _sizes(ids)))} of {counted(len(ids), 'device')}, as requested"


@check(
    SHOULD,
    expected="only ids that are available",
    clause=f"ContainerPreferredAllocationRequest.available_deviceIDs: List of available deviceIDs from which to choose "
    f"a preferred allocation. {ADVICE}",
)
def prefers_only_what_is_available(plugin: PluginUnderTest) -> str:
    """GetPreferredAllocation, if announced, is called without the first device, unless there is only one."""
    ids = plugin.lists.healthy
    available = ids[1:] or ids
    unavailable = sorted(set(_preferred(plugin, available, [], len(available))) - set(available))
    require(not unavailable, f"the plugin prefers {some(unavailable)}, which was not available")
    return f"all preferred devices are among the {len(available)} available ones"


@check(
    SHOULD,
    expected="the required ids are included",
    clause=f"ContainerPreferredAllocationRequest.must_include_deviceIDs: List of deviceIDs that must be included in "
    f"the preferred allocation. {ADVICE}",
)
def prefers_what_it_must_include(plugin: PluginUnderTest) -> str:
    """GetPreferredAllocation, if announced, is called with one or more devices that must be included."""
    ids = plugin.lists.healthy
    calls = [*((min(2, len(ids)), [must]) for must in ids[-5:]), *_preference_calls(ids)]
    for size, must in calls:
        preferred = _preferred(plugin, ids, must, size)
        left = [id_ for id_ in must if id_ not in preferred]
        require(not left, f"{some(left)} must be included, but the preferred devices are {some(preferred) or 'none'}")
    return "the required ids are included"


# --- PreStartContainer ------------------------------------------------------------------------------------------------


@check(
    MUST,
    expected="an answer in time; a kubelet waits 30 seconds",
    clause="PreStartContainer is called, if indicated by Device Plugin during registration phase, before each "
    "container start. (api.proto)",
)
def answers_pre_start_container(plugin: PluginUnderTest) -> str:
    """PreStartContainer, if announced, is called twice for each of several sets of one, two and all devices."""
    plugin.registration.require_pre_start()
    ids = plugin.lists.healthy
    calls = [(ids[:1], "the first time"), (ids[:1], "for another container with the same device")]
    calls += [(ids[:2], "for two devices"), (plugin.lists.every_healthy, "for all devices")]
    calls += [(ids[-1:], "for another device")]
    for devices, when in calls[::3] if plugin.lists.starts_slowly else calls:
        allocate_or_skip(plugin, devices)
        for again in ("", ", when the container is started again"):
            with in_context(when + again):
                plugin.lists.pre_start(devices)
    return "the plugin answers"


@check(
    SHOULD,
    expected="two containers start in less time than one after the other, and Allocate does not wait for them",
    clause="A kubelet waits at most 30 seconds for PreStartContainer (constants.go), and starts containers of several "
    "pods at the same time. (kubelet) If one call waits for another, a few pods that start together exceed this time.",
)
def starts_containers_at_the_same_time(plugin: PluginUnderTest) -> str:
    """If PreStartContainer takes a while, it is called for two devices at once, and Allocate in the meantime."""
    plugin.registration.require_pre_start()
    first, second = plugin.lists.two_devices()
    took = plugin.lists.took.get(rpc.PRE_START_CONTAINER.name)
    if took is None:
        raise Skip("PreStartContainer was not answered")
    does_not_apply_if(took < _NOTICEABLE, f"PreStartContainer takes only {took:.2f} seconds")
    usual = plugin.lists.took.get(rpc.ALLOCATE.name, 0.0)
    began = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        starts = [pool.submit(plugin.lists.pre_start, [device]) for device in (first, second)]
        plugin.process.pause(took / 4)
        asked = time.monotonic()
        with skipping(Failure):
            plugin.lists.allocate([second])
            allocated = time.monotonic() - asked
            for start in starts:
                start.result()
    both = time.monotonic() - began
    text = f"PreStartContainer takes {took:.1f} seconds for one device and {both:.1f} seconds for two at once"
    require(both < took * _ALMOST_TWICE, text, late=True)
    text = f"{text}; in the meantime, Allocate takes {allocated:.1f} seconds instead of {usual:.1f}"
    require(allocated < usual + took / 2, text, late=True)
    return text


# --- kubelet restarts -------------------------------------------------------------------------------------------------

CHANGES = "Whenever a Device state change or a Device disappears, ListAndWatch returns the new list. (api.proto)"


@check(
    MUST,
    expected="the stream stays open",
    clause=f"{CHANGES} To a kubelet, the end of the stream is the end of the plugin.",
)
def keeps_its_stream_open(plugin: PluginUnderTest) -> str:
    """The stream of lists is watched for some time after it is opened."""
    try:
        connection = plugin.registration.connected()
    except Skip:
        lost_stream = plugin.registration.lost_stream
        require(not lost_stream, f"the stream ended ({lost_stream})")
        raise
    _wait_for_stream(plugin, connection)
    kept = [one.connection for one in plugin.kubelet.registrations if one.connection is not None]
    if connection not in kept:  # the plugin has registered so often that its older connections were closed
        connection = kept[0]
    require(not connection.ended, f"the stream ended ({connection.ended})")
    open_for = time.monotonic() - connection.opened
    return f"the stream has been open for {open_for:.1f} seconds, with {counted(connection.list_count, 'list')}"


def _wait_for_stream(plugin: PluginUnderTest, connection: PluginConnection) -> None:
    """Wait until the stream of lists has been open for some time, and measure what the idle plugin uses meanwhile."""
    left = connection.opened + plugin.settings.alone - time.monotonic()
    if left < _IDLE:
        plugin.registration.wait_for_stream(connection)
        return
    quiet = _quiet_during(plugin, partial(plugin.registration.wait_for_stream, connection))
    if quiet is not None and quiet.seconds >= _IDLE:
        plugin.seen.idle = quiet


def _quiet_during(plugin: PluginUnderTest, wait: Callable[[], object]) -> Quiet | None:
    """Call `wait`, during which nobody calls the plugin. Return what the plugin did, or None if its process exited."""
    process = plugin.process.running
    before, printed = _processor_use(process), process.printed if process else 0
    wait()
    after = _processor_use(process)
    if process is None or process is not plugin.process.running or before is None or after is None:
        return None
    return Quiet(before, after, process.printed - printed)


def _processor_use(process: PluginProcess | None) -> ProcessorUse | None:
    return ProcessorUse.of(process) if process is not None and process.status is None else None


def _require_quiet(quiet: Quiet | None) -> str:
    """Return what the plugin has used and printed.

    Raises Failure if that is too much for a plugin that has nothing to do, and Skip if it is unknown.
    """
    if quiet is None:
        raise Skip("the plugin's process exited in the meantime")
    share = quiet.before.require_little_until(quiet.after, "plugin")
    rate = quiet.printed / quiet.seconds
    require(rate <= MAX_PRINTED_IDLE, f"the plugin printed {rate:.0f} bytes per second")
    return f"the plugin used {share:.1%} of one processor, and printed {rate:.0f} bytes per second"


@check(
    SHOULD,
    expected=f"a first list within {SOON:g} seconds, on each stream",
    clause="ListAndWatch returns a stream of List of Devices. (api.proto) A kubelet that was restarted refuses pods "
    "until it has a list, even pods that were running before.",
)
def lists_devices_soon(plugin: PluginUnderTest) -> str:
    """The time until the first list is measured on each stream so far."""
    plugin.lists.require_list()
    streams = [one.connection for one in plugin.kubelet.registrations if one.connection and one.connection.list_count]
    slowest = max(one.first_list_at - one.opened for one in streams)
    text = f"the first list of a stream came after {slowest:.1f} seconds"
    require(slowest <= SOON, text, late=True)
    return f"{text} at most"


@check(
    SHOULD,
    expected=f"at most {MAX_LISTS:g} lists per second after the first {MAX_BURST}",
    clause=f"{CHANGES} A kubelet writes its checkpoint file for every list, even if nothing has changed.",
)
def sends_few_lists(plugin: PluginUnderTest) -> str:
    """The lists since the stream was opened are counted, once it has been open for some time."""
    connection = plugin.lists.require_list()
    _wait_for_stream(plugin, connection)
    number, seconds = connection.list_count, time.monotonic() - connection.opened
    text = f"{counted(number, 'list')} in {seconds:.1f} seconds"
    require(number <= MAX_BURST + MAX_LISTS * seconds, text)
    return text


@check(
    SHOULD,
    expected=f"at most {MAX_REPEATS:g} lists per second that repeat the previous list, after the first {MAX_BURST}",
    clause=f"{CHANGES} A kubelet writes its checkpoint file for every list, even if nothing has changed.",
)
def repeats_few_lists(plugin: PluginUnderTest) -> str:
    """On each stream so far, the lists that repeat the previous list are counted."""
    plugin.lists.require_list()
    streams = [one.connection for one in plugin.kubelet.registrations if one.connection and one.connection.list_count]
    for stream in streams:
        seconds = (stream.ended_at or time.monotonic()) - stream.opened
        text = f"{counted(stream.repeats, 'list')} in {seconds:.0f} seconds said nothing new"
        require(stream.repeats <= MAX_BURST + MAX_REPEATS * seconds, text)
    return (
        f"{counted(sum(one.repeats for one in streams), 'list')} on {counted(len(streams), 'stream')} said nothing new"
    )


@check(
    SHOULD,
    expected=f"at most one registration later than {TWICE:g} seconds after the first",
    clause=(
        "Device Plugin can register itself with Kubelet at its start (api.proto). If the stream of lists is open, "
        "a 1.37 kubelet refuses the same socket, and a 1.36 kubelet treats all devices as unhealthy when that "
        "stream ends."
    ),
)
def registers_once(plugin: PluginUnderTest) -> str:
    """The plugin is left alone for some time after its registration. Further registrations are counted."""
    plugin.registration.streaming()
    answered = [one for one in plugin.kubelet.registrations if one.answered and one.at >= plugin.process.started_at]
    skip_if(not answered, "the plugin has just been started again")
    first = answered[0]
    plugin.process.pause(first.at + plugin.settings.alone - time.monotonic())
    # After very many registrations, `first.connection` is None.
    ended = first.connection is not None and first.connection.ended
    skip_if(bool(ended), "the stream of lists has ended")
    later = sum(one.at > first.at + TWICE for one in plugin.kubelet.registrations)
    text = f"{later} more in {time.monotonic() - first.at:.1f} seconds"
    require(later < 2, text)
    return text


@check(
    SHOULD,
    expected=f"less than {MAX_CPU:.0%} of one processor, and at most {MAX_PRINTED_IDLE // 1000} kB of output a second",
    clause=(
        "While the kubelet starts no container, a plugin has nothing to do, and other programs need the processors and "
        "the disk."
    ),
)
def is_quiet_when_idle(plugin: PluginUnderTest) -> str:
    """The processor time and the output of the plugin's processes are measured while the plugin is registered."""
    plugin.registration.connected()
    plugin.process.require_process()
    if plugin.seen.idle is None:
        plugin.seen.idle = _quiet_during(plugin, partial(plugin.process.pause, _IDLE))
    return _require_quiet(plugin.seen.idle)


ENDS = (
    "Kubernetes ends a pod with SIGTERM, and with SIGKILL when its grace period is over. (kubernetes.io, Pod Lifecycle)"
)
RESTARTS = (
    "A device plugin is expected to detect kubelet restarts and re-register itself with the new kubelet instance. "
    "(kubernetes.io, Device Plugins)"
)
RETURNS = "the plugin registers again, can be reached, and lists its devices"


@check(MUST, expected="the plugin registers again when the kubelet is back", clause=RESTARTS)
def returns_to_a_kubelet_that_was_away(plugin: PluginUnderTest) -> str:
    """For a few seconds, no process listens on kubelet.sock; then the kubelet starts and deletes all sockets."""
    absence = _absence(plugin)
    if absence.problem is not None:
        raise absence.problem
    took = absence.returned_after
    return (
        f"the kubelet was down for {counted(plugin.settings.away, 'second')}, and the plugin was back {took:.1f} "
        "seconds after the kubelet"
    )


def _absence(plugin: PluginUnderTest) -> Absence:
    """Stop the kubelet for a few seconds, delete all sockets and start it. Return what the plugin did.

    Further calls return the same result.
    """
    if plugin.seen.absence is None:
        plugin.registration.streaming()
        number = len(plugin.kubelet.registrations)
        plugin.kubelet.leave()

        def wait() -> None:
            # A kubelet that was killed leaves its socket file, and a reboot removes it. A plugin may spin either way.
            plugin.process.pause(plugin.settings.away * _WITH_SOCKET)
            plugin.kubelet.socket.unlink(missing_ok=True)
            plugin.process.pause(plugin.settings.away * (1 - _WITH_SOCKET))

        quiet = _quiet_during(plugin, wait)
        plugin.kubelet.wipe()
        plugin.kubelet.serve()
        began, problem = time.monotonic(), None
        try:
            plugin.registration.see_it_return(number)
        except Failure as failure:
            problem = failure
        plugin.seen.absence = Absence(quiet, time.monotonic() - began, problem)
    return plugin.seen.absence


@check(
    SHOULD,
    expected=f"less than {MAX_CPU:.0%} of one processor, and at most {MAX_PRINTED_IDLE // 1000} kB of output a second",
    clause=f"{RESTARTS} A kubelet may be down for a long time, and a plugin that waits for it should not waste the "
    "node's processor time.",
)
def is_quiet_while_the_kubelet_is_away(plugin: PluginUnderTest) -> str:
    """While the kubelet is down, first with and then without its socket, the plugin's processor time is measured."""
    plugin.process.require_process()
    return _require_quiet(_absence(plugin).quiet)


@check(
    INFO,
    expected=RETURNS,
    clause=f"{RESTARTS} A plugin may watch only its own socket, because kubelets delete it when they start. Such a "
    "plugin does not notice a kubelet.sock that something else has replaced.",
)
def returns_after_kubelet_sock_is_recreated(plugin: PluginUnderTest) -> str:
    """Streams end and kubelet.sock is recreated. The plugin's own socket is left alone."""
    return plugin.registration.see_it_return(plugin.registration.restart_kubelet(wipe=False), noticing=True)


@check(
    SHOULD,
    expected=f"at most {MAX_RATE:g} registrations per second after the first {MAX_BURST}",
    clause="Device plugin is expected to terminate upon registration failure (api.proto). Whether the plugin "
    "terminates or tries again, it should not flood a kubelet that refuses it.",
)
def is_patient_with_a_kubelet_that_refuses(plugin: PluginUnderTest) -> str:
    """For a few seconds, the restarted kubelet refuses every registration for all of the plugin's resources."""
    plugin.registration.streaming()
    number, exits = len(plugin.kubelet.registrations), len(plugin.process.exits)
    plugin.kubelet.leave()
    plugin.process.pause(plugin.settings.restarting)
    plugin.kubelet.wipe()
    refused = plugin.kubelet.refused
    refused.clear()
    plugin.kubelet.refusal = "this kubelet refuses every plugin for a few seconds"
    plugin.kubelet.serve()
    try:
        plugin.process.pause(plugin.settings.refusing)
        plugin.process.wait(lambda: refused, plugin.registration.usual_return)  # some plugins return later
        plugin.kubelet.refusal = ""
        if refused and not plugin.kubelet.is_watcher:

            def reacted() -> bool:
                again = any(one.connection for one in plugin.kubelet.registrations[number:])
                return again or len(plugin.process.exits) > exits

            plugin.process.wait(reacted, _AFTER_REFUSAL)
            plugin.seen.reacts_to_refusal = reacted()  # `wait` returns None if the process exits and is not restarted
    finally:
        if not plugin.seen.reacts_to_refusal:
            plugin.kubelet.leave()  # some plugins try again only when they see a new kubelet
            plugin.kubelet.refusal = ""
            plugin.kubelet.serve()
    resource, attempts = max(refused.items(), key=lambda one: one[1], default=("", 0))
    if attempts:  # a plugin that made no attempt may need longer to notice the restart
        plugin.registration.wait_registered(number + refused[plugin.kubelet.resource], plugin.settings.noticing)
        plugin.registration.note_absent()
    plugin.seen.refused += len(plugin.process.exits) - exits  # a plugin may exit because of a refusal (api.proto)
    plugin.process.excuse(exits)
    allowed = MAX_BURST + MAX_RATE * plugin.settings.refusing
    name = plugin.kubelet.attempt if attempts == 1 else plugin.kubelet.attempts
    other = f" for {foreign_text(resource)}" if len(refused) > 1 else ""
    text = f"{attempts} {name}{other} in {counted(plugin.settings.refusing, 'second')}"
    require(attempts <= allowed, text)
    skip_if(not attempts, f"{text}, so there was nothing to refuse")
    return text


@check(
    MUST,
    expected=f"the plugin exits, or registers again within {counted(round(_AFTER_REFUSAL), 'second')}",
    clause="Device plugin is expected to terminate upon registration failure. (api.proto) Otherwise the plugin's "
    "devices are missing until someone restarts it.",
)
def ends_or_registers_after_a_refusal(plugin: PluginUnderTest) -> str:
    """After is-patient-with-a-kubelet-that-refuses, the same kubelet accepts registrations for up to 40 seconds."""
    does_not_apply_if(plugin.kubelet.is_watcher, "the plugin does not call Register (--registry)")
    reacts = plugin.seen.reacts_to_refusal
    skip_if(reacts is None, "is-patient-with-a-kubelet-that-refuses saw no refused registration")
    require(reacts, "the plugin neither exited nor registered again")
    return "the plugin exited, or registered again"


@contextmanager
def calls_in_progress(plugin: PluginUnderTest) -> Iterator[None]:
    """Call Allocate all the time during this block, for a few devices at once, until the plugin no longer answers."""
    connection, ids, over = plugin.registration.connected(), [""], threading.Event()
    with suppress(NotYet):
        ids = plugin.lists.healthy[:_KILLED_DURING]

    def call(device: str) -> None:
        request = allocate_request([device])
        with suppress(CallFailedError):
            while not over.is_set():
                connection.call(rpc.ALLOCATE, request, plugin.settings.timeout)

    with ThreadPoolExecutor(len(ids)) as pool:
        for device in ids if plugin.lists.was_allocated else ():
            pool.submit(call, device)
        try:
            plugin.process.pause(_UNDER_LOAD)
            yield
        finally:
            over.set()


@contextmanager
def others_left_alone(plugin: PluginUnderTest) -> Iterator[Callable[[], list[str] | None]]:
    """Put other plugins' sockets and a kubelet's checkpoint into the directory for the duration of this block.

    The name of one socket begins with the same word as that of the plugin's own socket. Yield a function that returns
    which of these files and the kubelet's own socket are gone, or None if the sockets could not be created.
    """
    directory, checkpoint = plugin.kubelet.directory, plugin.kubelet.directory / _CHECKPOINT
    begin = _FIRST_WORD.match(posixpath.basename(plugin.kubelet.registrations[-1].request.endpoint))
    names = {_OTHER_SOCKET, f"{begin[0] if begin else ''}-{_OTHER_SOCKET}"}
    is_own = not checkpoint.exists()
    with ExitStack() as stack:
        listeners = {directory / name: stack.enter_context(socket.socket(socket.AF_UNIX)) for name in sorted(names)}
        # a plugin watcher would use the sockets
        was_made = not plugin.kubelet.is_watcher and all(_made(one, path) for path, one in listeners.items())
        try:
            if was_made and is_own:
                checkpoint.write_bytes(b"{}")
            places = {f"another plugin's socket {path.name}": path for path in listeners} | {
                "the kubelet's checkpoint": checkpoint,
                "the kubelet's socket": plugin.kubelet.socket,
            }
            yield lambda: [what for what, place in places.items() if not place.exists()] if was_made else None
        finally:
            if not plugin.kubelet.is_watcher:
                for path in listeners:
                    path.unlink(missing_ok=True)
            if was_made and is_own:
                checkpoint.unlink(missing_ok=True)


def _made(listener: socket.socket, path: Path) -> bool:
    """Create a socket, and return whether this was possible."""
    with suppress(OSError):  # the path is too long, or the plugin has removed the directory
        listener.bind(str(path))
        listener.listen()
        return True
    return False


@check(
    MUST,
    expected=RETURNS,
    clause=f"{RESTARTS} Plugins and the kubelet start in any order, and a kubelet deletes all sockets when it starts.",
)
def waits_for_a_late_kubelet(plugin: PluginUnderTest) -> str:
    """The plugin is started without a kubelet. The kubelet starts a few seconds later and deletes all sockets."""
    plugin.process.require_process()
    plugin.registration.streaming()
    number = len(plugin.kubelet.registrations)
    plugin.kubelet.leave()
    plugin.kubelet.wipe()
    plugin.process.kill_and_start()
    plugin.process.pause(min(plugin.settings.away, _LATE_KUBELET))
    plugin.kubelet.wipe()
    plugin.kubelet.serve()
    return plugin.registration.see_it_return(number)


@check(
    SHOULD,
    expected="the process exits within --grace seconds",
    clause=f"{ENDS} The kubelet may be down at that time.",
)
def ends_on_sigterm_without_a_kubelet(plugin: PluginUnderTest) -> str:
    """The plugin is started without a kubelet, and SIGTERM is sent a second later."""
    plugin.process.require_process()
    plugin.registration.streaming()
    plugin.kubelet.leave()
    plugin.kubelet.wipe()
    plugin.process.start()
    try:
        plugin.process.pause(_WAITING)
        process = plugin.process.require_process()  # a plugin that exits without a kubelet has been started again
        process.terminate()
        took = plugin.process.wait_for_end(process, plugin.settings.grace)
    finally:
        plugin.kubelet.serve()
    limit = counted(plugin.settings.grace, "second")
    require(process.status is not None, f"the plugin is still running after {limit}", late=True)
    return f"the plugin exited after {took:.1f} seconds"


@check(
    MUST,
    expected="the plugin registers again each time, and then still answers",
    clause=f"{RESTARTS} A plugin runs for months. It must not use up its threads, its open files or anything else with "
    "each stream that ends.",
)
def returns_after_many_restarts(plugin: PluginUnderTest) -> str:
    """For a few seconds, the kubelet restarts whenever the plugin has returned. Then Allocate is called."""
    plugin.registration.connected()
    plugin.lists.wait_for_devices()
    ids = plugin.lists.healthy[:1]
    _ = plugin.lists.alone(ids[0])
    plugin.seen.used_by = None  # another check judges growth in ordinary life
    began, number = time.monotonic(), 0
    while number < _RESTARTS and (number < _AT_LEAST or time.monotonic() - began < _RESTARTING):
        before = plugin.registration.restart_kubelet(wipe=True, pause=min(_BRIEF, plugin.settings.restarting))
        with in_context(f"restart {number + 1}"):
            plugin.registration.see_it_return(before)
        number += 1
    with in_context(f"after {counted(number, 'restart')}"):
        require(plugin.lists.allocate(ids), "the answer has no container response")
    return f"the plugin was back after each of {counted(number, 'restart')}"


@check(
    SHOULD,
    expected=RETURNS,
    clause=f"{RESTARTS} systemd restarts a kubelet that exits soon after it starts.",
)
def returns_after_two_restarts(plugin: PluginUnderTest) -> str:
    """The kubelet restarts twice within a second, and deletes all sockets each time."""
    plugin.registration.streaming()
    number = len(plugin.kubelet.registrations)
    for _ in range(2):
        plugin.kubelet.leave()
        plugin.kubelet.wipe()
        plugin.process.pause(_SHORT_PAUSE)
        plugin.kubelet.serve()
        first, number = number, len(plugin.kubelet.registrations)
        plugin.process.pause(_SHORT_PAUSE)
    # The other resources may have registered with the first of the two kubelets and waited ten seconds for its answer.
    return plugin.registration.see_it_return(max(first, number - 1), with_others=False)


@check(
    MUST,
    expected="every resource that the plugin has registered is registered again each time, and has healthy devices if "
    "it had any",
    clause=f"{RESTARTS} Each resource is registered by a call of its own, and a kubelet that was restarted knows none.",
)
def returns_with_all_its_resources(plugin: PluginUnderTest) -> str:
    """The plugin's other resources are looked for after each return of the plugin so far."""
    others = plugin.kubelet.others
    does_not_apply_if(not others, "the plugin has only one resource")
    absent = plugin.registration.absent
    text = f"{some(sorted(absent))} did not return, although {plugin.kubelet.resource} did"
    require(not absent, text, late=plugin.registration.was_held_up)
    skip_if(not plugin.registration.has_returned, "the plugin has had no reason to register again")
    return f"{counted(len(others), 'other resource')} returned, too"


@check(
    SHOULD,
    expected=f"at most one registration later than {TWICE:g} seconds after the first",
    clause=(
        f"{RESTARTS} If the stream of lists is open, a 1.37 kubelet refuses the same socket, and a 1.36 kubelet "
        "treats all devices as unhealthy when that stream ends."
    ),
)
def registers_once_after_a_kubelet_restart(plugin: PluginUnderTest) -> str:
    """The plugin is left alone for a few seconds after it last returned. Further registrations are counted."""
    connection = plugin.registration.streaming()
    began = {one.connection: one.at for one in plugin.kubelet.registrations[1:]}.get(connection)
    if began is None:
        raise Skip("the plugin has had no reason to register again")
    plugin.process.pause(began + min(plugin.settings.alone, _ALONE_AGAIN) - time.monotonic())
    skip_if(bool(connection.ended), "the stream of lists has ended")
    later = sum(one.at > began + TWICE for one in plugin.kubelet.registrations)
    text = f"{later} more in {time.monotonic() - began:.1f} seconds"
    require(later < 2, text)
    return text


# --- health -----------------------------------------------------------------------------------------------------------

CHANGED = "a new list in which a device's health has changed or a device is gone; a new device does not count"


def _wait_for_devices(plugin: PluginUnderTest, connection: PluginConnection) -> bool:
    """Wait until the devices are the same as in the first list, because a new process may find them late.

    Return whether the devices are the same.
    """
    first = health_of(plugin.lists.first or plugin.lists.devices)
    return bool(
        plugin.process.wait(
            lambda: not health_changes(first, health_of(connection.last_list.devices)), plugin.settings.timeout
        )
    )


def _health_changes(plugin: PluginUnderTest, connection: PluginConnection) -> Mapping[str, str]:  # noqa: C901 - each end has its own sentence
    """Run the command that changes a device's health, and return the changes that the plugin lists.

    Raises Failure if the plugin exited or ended its stream, or if it did not list the change in time, together with all
    other devices. Raises Skip if the plugin lists no device, if the command failed, or if a listed change could not be
    undone, which is not the plugin's fault.
    """
    _wait_for_devices(plugin, connection)
    before = health_of(plugin.lists.devices)
    skip_if(not before, "the plugin lists no device")
    with suppress(Skip):
        for device in plugin.lists.healthy[:_RESTARTED]:
            plugin.lists.alone(device)
    former = {id_: one for id_, one in plugin.lists.known_answers.items() if before.get(id_) == HEALTHS[0]}
    number, exits, registered = connection.list_count, len(plugin.process.exits), len(plugin.kubelet.registrations)

    def newer() -> list[PluginConnection]:
        """Return the connections of later registrations: after a kubelet restart, some plugins register twice."""
        return [one.connection for one in plugin.kubelet.registrations[registered:] if one.answered and one.connection]

    def look() -> Mapping[str, str] | None:
        lists = [*connection.lists_after(number), *(message for one in newer() for message in one.lists_after(0))]
        return next(filter(None, (health_changes(before, health_of(message.devices)) for message in lists)), None)

    is_cleared = False
    plugin.kubelet.expects_changes = True
    try:
        problem = _problem_of(plugin, plugin.settings.provoke_health)
        if plugin.seen.provocation != "":  # a command that has worked once is known to be correct
            plugin.seen.provocation = problem
        if not problem:
            plugin.process.wait(lambda: look() or len(plugin.process.exits) > exits, plugin.settings.timeout)
            plugin.process.wait_for_exit()  # a plugin may report the change and then exit
            is_cleared = len(before) > 1 and _is_refilled(plugin, connection, number)
            has_left = connection.list_count > number and connection.ended == ENDED_BY_PLUGIN
            # Without a stream, each call would restart the kubelet and the plugin first.
            if (now := look()) and len(plugin.process.exits) == exits and not has_left:
                _look_at_changes(plugin, connection, former, now)
    finally:
        not_undone = _problem_of(plugin, plugin.settings.undo_health) if plugin.settings.undo_health else ""
    skip_if(problem, f"--provoke-health: {problem}")
    changes = look()
    gone = [id_ for id_, health in changes.items() if health == "gone"] if changes else []
    if len(plugin.process.exits) > exits:
        actual = f"the plugin exited: {plugin.process.exits[exits]}"
    elif is_cleared:
        actual = (
            "the new list is empty, and the devices are back in the next list: a kubelet counts no devices until then"
        )
    elif changes and gone and len(changes) == len(before) > len(gone):
        actual = f"the new list contains only the changes, {_changed(changes)}: a kubelet reads it as the full list"
    elif changes and connection.list_count > number and connection.ended == ENDED_BY_PLUGIN:
        actual = f"after the new list, the stream ended ({connection.ended})"
    elif changes:
        skip_if(not_undone, not_undone)
        return changes
    elif connection.ended and all(one.ended for one in newer()):
        actual = f"the stream of lists ended ({connection.ended})"
    else:
        lists = connection.list_count - number + sum(one.list_count for one in newer())
        new = f"{counted(lists, 'new list')}, but no change" if lists else "no new list"
        raise TookTooLong(f"{new} within {counted(plugin.settings.timeout, 'second')}")
    raise Failure(actual)


def _look_at_changes(
    plugin: PluginUnderTest,
    connection: PluginConnection,
    former: Mapping[str, deviceplugin.ContainerAllocateResponse],
    changes: Mapping[str, str],
) -> None:
    """Record what later checks need to know about changes of health that have not been undone yet."""
    lost = [id_ for id_, one in changes.items() if one == "gone"]
    plugin.seen.dropped = [id_ for id_ in lost if id_ in former and _exists(former[id_])]
    plugin.seen.copies = _healthy_copies(plugin, connection, former, changes)
    are_different = len({hardware(one) for one in former.values()}) > 1
    plugin.seen.spared = sum(id_ not in changes for id_ in former) if are_different else None
    plugin.seen.while_sick = _calls_while_sick(plugin, former, changes)
    if plugin.seen.sick is None:
        repeats = connection.repeats
        plugin.seen.sick = _quiet_during(plugin, partial(plugin.process.pause, _IDLE))
        plugin.seen.repeats_while_sick = connection.repeats - repeats


def _is_refilled(plugin: PluginUnderTest, connection: PluginConnection, number: int) -> bool:
    """Return whether the first list after `number` lists is empty, and a later one is not."""
    lists = connection.lists_after(number)
    if not lists or lists[0].devices:
        return False
    refilled = plugin.process.wait(lambda: any(one.devices for one in connection.lists_after(number)), _REFILLING)
    return bool(refilled)


def _calls_while_sick(
    plugin: PluginUnderTest,
    former: Mapping[str, deviceplugin.ContainerAllocateResponse],
    changes: Mapping[str, str] = {},
) -> Mapping[str, Failure | Skip | int]:
    """Call each method for the devices that are still healthy, and Allocate for those that are not.

    Return, by method name, how many calls succeeded, or what went wrong. The name of the calls for other devices is
    `gone`.
    """
    seen: dict[str, Failure | Skip | int] = {}
    for name, calls in (
        ("Allocate", _allocated_while_sick),
        ("GetPreferredAllocation", _preferred_while_sick),
        ("PreStartContainer", _started_while_sick),
        ("gone", partial(_refused_while_gone, changes=changes)),
    ):
        try:
            seen[name] = calls(plugin, former)
        except NotYet:  # a plugin with a single device now lists no healthy device
            seen[name] = 0
        except (Failure, Skip) as problem:
            seen[name] = problem
    return seen


def _refused_while_gone(
    plugin: PluginUnderTest,
    former: Mapping[str, deviceplugin.ContainerAllocateResponse],
    *,
    changes: Mapping[str, str],
) -> int:
    """Call Allocate for the devices that have changed: a refusal is right, and an answer without the device is not."""
    notes, vanished = len(plugin.lists.changes), len(plugin.lists.vanished)
    try:
        for device in (one for one in changes if one in former):
            answers: list[deviceplugin.ContainerAllocateResponse] = []
            with suppress(CallFailedError):
                answers = plugin.lists.allocate([device])
            given = frozenset().union(*map(all_hardware, answers))
            lost = sorted(all_hardware(former[device]) - given)
            text = f"Allocate for {device}, which is {changes[device]}, succeeded"
            require(not answers or not lost, f"{text}, but without {some(lost)}")
            is_there = changes[device] != "gone" or not any(map(plugin.lists.has_vanished, answers))
            require(is_there, f"{text} with {some(sorted(given))}, although not all of them exist any longer")
    finally:
        del plugin.lists.changes[notes:], plugin.lists.vanished[vanished:]
    return sum(device in former for device in changes)


def _preferred_while_sick(plugin: PluginUnderTest, _: object) -> int:
    ids = plugin.lists.healthy
    calls = _preference_calls(ids)
    for size, must in calls:
        with in_context(f"for {size} of {some(ids)}, with {some(must) or 'none'} that must be included"):
            ask_for_preferred(plugin, ids, must, size)
    return len(calls)


def _started_while_sick(plugin: PluginUnderTest, former: Mapping[str, deviceplugin.ContainerAllocateResponse]) -> int:
    plugin.registration.require_pre_start()
    ids = _still_healthy(plugin, former)
    for device in ids:
        allocate_or_skip(plugin, [device])
        with in_context(f"for {device}, which is healthy"):
            plugin.lists.pre_start([device])
    return len(ids)


def _allocated_while_sick(plugin: PluginUnderTest, former: Mapping[str, deviceplugin.ContainerAllocateResponse]) -> int:
    owner = owners_of(former)
    left = _still_healthy(plugin, former)
    # As long as a kubelet waits, it admits no other pod, so a plugin that answers quickly must keep doing so.
    patience, slowest = plugin.settings.timeout if plugin.lists.is_quick else PATIENCE, plugin.lists.slowest
    for device in left:
        with in_context(f"for {device}, which is healthy (no earlier call took more than {slowest:.1f} seconds)"):
            answers = plugin.lists.allocate([device], patience=patience)
            require(answers, "the answer has no container response")
            others = [f"{one}, which belongs to {owner[one]}" for one in all_hardware(answers[0]) if one in owner]
            wrong = [text for text in others if not text.endswith(f" {device}")]
            require(not wrong, f"the answer contains {some(wrong)}")
            lost = _paths(former[device]) - _paths(answers[0])
            require(not lost, f"the answer lacks {some(sorted(lost))}")
    return len(left)


def _still_healthy(plugin: PluginUnderTest, former: Mapping[str, deviceplugin.ContainerAllocateResponse]) -> list[str]:
    """Return up to eight of the devices in `former` that are healthy, or two if the plugin is slow."""
    ids = [device for device in plugin.lists.every_healthy if device in former]
    return ids[: 2 if plugin.lists.needs_few else _RESTARTED]


def _problem_of(plugin: PluginUnderTest, command: str) -> str:
    """Run one of the user's commands. Return why the command failed, or an empty string."""
    plugin.lists.look_for_sources()
    problem = problem_of_command(command, plugin.kubelet.directory, plugin.settings.timeout)
    plugin.lists.forget_sources()
    return problem


@check(
    MUST,
    expected=CHANGED,
    clause=(
        f"{CHANGES} The same applies to the new stream after a kubelet restart. Some plugins still send to the old "
        "stream, or exit."
    ),
)
def reports_health_after_a_kubelet_restart(plugin: PluginUnderTest) -> str:
    """After the plugin has registered with a restarted kubelet, the --provoke-health command is run."""
    _require_provocation(plugin)
    connection = plugin.registration.connected()
    if connection is not plugin.seen.returned:
        number = plugin.registration.restart_kubelet(wipe=True)
        returned = plugin.registration.wait_registered(number, plugin.settings.returning)
        if returned is None:
            raise Skip("the plugin did not register again after the kubelet restart")
        connection = returned
    plugin.seen.health_changes = _health_changes(plugin, connection)
    return _changed(plugin.seen.health_changes)


@check(MUST, expected=CHANGED, clause=CHANGES)
def reports_a_change_of_health(plugin: PluginUnderTest) -> str:
    """Unless a change was listed after a kubelet restart, the --provoke-health command is run, and lists are read."""
    _require_provocation(plugin)
    if plugin.seen.health_changes:
        return f"seen after a kubelet restart: {_changed(plugin.seen.health_changes)}"
    if plugin.process.is_ours and plugin.lists.first:
        plugin.registration.restarted()
    connection = plugin.lists.require_list()
    if not _wait_for_devices(plugin, connection):
        reason = "the devices of a new process already differ from the first list; undo the change with --undo-health"
        raise Skip(reason)
    plugin.seen.health_changes = _health_changes(plugin, connection)
    return _changed(plugin.seen.health_changes)


@check(
    MUST,
    expected="the same device nodes as before, and if earlier calls were quick, in time",
    clause=f"{ALLOCATE} A kubelet keeps using the devices that are healthy. It admits one pod at a time, and waits for "
    "Allocate without a limit, so a call that waits for an unhealthy device holds up all pods. "
    "(kubernetes/kubernetes#117435)",
)
def allocates_while_a_device_is_sick(plugin: PluginUnderTest) -> str:
    """After the --provoke-health command has made devices unhealthy, Allocate is called for the others."""
    return f"{counted(_seen_while_sick(plugin, 'Allocate'), 'device')} as before"


@check(
    MUST,
    expected="an answer with one set of ids",
    clause=f"{PREFERENCE} If the plugin answers with an error, the kubelet refuses the pod, although other devices are "
    "healthy.",
)
def prefers_while_a_device_is_sick(plugin: PluginUnderTest) -> str:
    """After --provoke-health has made devices unhealthy, GetPreferredAllocation is called for the others."""
    return counted(_seen_while_sick(plugin, "GetPreferredAllocation"), "answer")


@check(
    MUST,
    expected="an answer",
    clause="PreStartContainer is called, if indicated by Device Plugin during registration phase, before each "
    "container start. (api.proto) A kubelet keeps starting containers with the devices that are healthy.",
)
def pre_starts_while_a_device_is_sick(plugin: PluginUnderTest) -> str:
    """After the --provoke-health command has made devices unhealthy, PreStartContainer is called for the others."""
    return counted(_seen_while_sick(plugin, "PreStartContainer"), "answer")


@check(
    SHOULD,
    expected="if the devices have different nodes, some of them stay healthy",
    clause=f"{CHANGES} An error of one device says nothing about the others. If all devices become unhealthy, the node "
    "accepts no pod that needs one of them.",
)
def keeps_other_devices_healthy(plugin: PluginUnderTest) -> str:
    """After --provoke-health has changed the health of a device, the other devices in the list are counted."""
    _require_provocation(plugin)
    if plugin.seen.health_changes is None:
        raise Skip(_NO_CHANGE)
    spared = plugin.seen.spared
    if spared is None:
        raise DoesNotApply("the devices share their nodes, or there is only one")
    require(spared, f"all devices have changed: {_changed(plugin.seen.health_changes)}")
    return f"{counted(spared, 'device')} still healthy"


def _require_known(plugin: PluginUnderTest) -> None:
    """Require that a device whose health has changed was allocated before that.

    Raises NotYet otherwise, because the device is allocated when it has recovered, and then changes once more.
    """
    changed = plugin.seen.health_changes or {}
    if not changed.keys() & plugin.lists.known_answers.keys():
        raise NotYet(f"{some(sorted(changed))} was not allocated before its health changed")


def _healthy_copies(
    plugin: PluginUnderTest,
    connection: PluginConnection,
    former: Mapping[str, deviceplugin.ContainerAllocateResponse],
    changes: Mapping[str, str],
) -> Mapping[str, str] | None:
    """Return the devices that are listed as healthy, although they are copies of a device that has become unhealthy.

    The values are the unhealthy copies. Return None if no unhealthy device has copies.
    """
    nodes = {id_: _nodes(one) for id_, one in former.items()}
    sick = {nodes[id_]: id_ for id_, one in changes.items() if one not in {HEALTHS[0], "gone"} and nodes.get(id_)}
    of_sick = [id_ for id_, given in nodes.items() if given in sick]
    if len(set(nodes.values())) < 2 or len(of_sick) == len(sick):  # if all devices share their nodes, one may be sick
        return None
    copies = {id_: sick[nodes[id_]] for id_ in of_sick if id_ not in changes}
    health: Mapping[str, str] = {}

    def left() -> bool:
        nonlocal health
        health = health_of(connection.last_list.devices)
        return any(health.get(id_) == HEALTHS[0] for id_ in copies)

    plugin.process.wait(lambda: not left(), _WAITING)
    return {id_: one for id_, one in copies.items() if health.get(id_) == HEALTHS[0]}


@check(
    MUST,
    expected="if a device is listed as several copies, all of them are unhealthy",
    clause=f"{CHANGES} A kubelet gives the copies that are healthy to pods.",
)
def reports_the_health_of_each_copy(plugin: PluginUnderTest) -> str:
    """After --provoke-health has made a device unhealthy, the health of devices with the same nodes is read."""
    _require_provocation(plugin)
    if plugin.seen.health_changes is None:
        raise Skip(_NO_CHANGE)
    if plugin.seen.copies is None:
        _require_known(plugin)
        number = len(plugin.lists.known_answers)
        raise DoesNotApply(f"no unhealthy device has copies among the {counted(number, 'device')} that were allocated")
    healthy = [f"{id_} is healthy, but has the nodes of {sick}" for id_, sick in plugin.seen.copies.items()]
    require(not healthy, some(healthy))
    return "all copies are unhealthy"


@check(
    SHOULD,
    expected="a device that still exists stays in the list, and is unhealthy",
    clause="Device.health: Health of the device, can be Healthy or Unhealthy (api.proto). If a running pod's device "
    "is no longer listed, a kubelet no longer reports it as unhealthy in the pod's status, and the node's capacity "
    "shrinks. (KEP-4680)",
)
def lists_sick_devices(plugin: PluginUnderTest) -> str:
    """After --provoke-health has removed devices from the list, their device nodes are looked up on this machine."""
    _require_provocation(plugin)
    if plugin.seen.health_changes is None:
        raise Skip(_NO_CHANGE)
    text = f"{some(plugin.seen.dropped)} is no longer listed, but its device nodes exist"
    require(not plugin.seen.dropped, text)
    return "no device is missing that still exists"


@check(
    MUST,
    expected="if several devices are no longer listed, although they still exist, another device is healthy",
    clause="ListAndWatch returns a stream of List of Devices. Whenever a Device state change or a Device disappears, "
    "ListAndWatch returns the new list. (api.proto) A kubelet forgets the devices that the new list lacks, so if one "
    "broken device makes a plugin list none, the node has no device left for any pod.",
)
def lists_others_while_a_device_is_sick(plugin: PluginUnderTest) -> str:
    """After --provoke-health has changed a device, the nodes of devices that are no longer listed are looked up."""
    _require_provocation(plugin)
    if plugin.seen.health_changes is None:
        raise Skip(_NO_CHANGE)
    spared, dropped = plugin.seen.spared, plugin.seen.dropped
    if spared is None:
        raise DoesNotApply("the devices share their nodes, or there is only one")
    text = f"no device is healthy, and {some(dropped)} are no longer listed, but their device nodes exist"
    require(spared or len(dropped) < 2, text)
    return f"{counted(spared, 'device')} still healthy, and {len(dropped)} missing"


@check(
    SHOULD,
    expected=f"less than {MAX_CPU:.0%} of one processor, at most {MAX_PRINTED_IDLE // 1000} kB of output a second, and "
    f"at most {_MAX_SICK_REPEATS} lists that repeat the previous list",
    clause=f"{CHANGES} A device may stay broken for days. A kubelet writes its checkpoint file for every list.",
)
def is_quiet_while_a_device_is_sick(plugin: PluginUnderTest) -> str:
    """After --provoke-health has made a device unhealthy, the plugin is left alone, and measured, for a moment."""
    _require_provocation(plugin)
    plugin.process.require_process()
    if plugin.seen.while_sick is None:
        raise Skip(_NO_CHANGE)
    text = _require_quiet(plugin.seen.sick)
    lists = f"{counted(plugin.seen.repeats_while_sick, 'list')} in {_IDLE:g} seconds said nothing new"
    require(plugin.seen.repeats_while_sick <= _MAX_SICK_REPEATS, lists)
    return f"{text}; {lists}"


def _exists(answer: deviceplugin.ContainerAllocateResponse) -> bool:
    """Return whether this machine has all device nodes in an answer, and there are some."""
    return bool(answer.devices) and not any(_problem_of_node(path) for path in _nodes(answer))


@check(
    MUST,
    expected="an error, or an answer with the device nodes that the device had before",
    clause="Failure Handling: [...] The Device plugin should send a ListAndWatch update and fail the Allocation "
    "request. (api.proto) Until a kubelet has the new list, it may request a device that is gone. If the answer is not "
    "an error, the container starts without the device.",
)
def refuses_a_device_that_is_gone(plugin: PluginUnderTest) -> str:
    """Allocate is called for the devices that --provoke-health has made unhealthy or removed from the list."""
    _require_provocation(plugin)
    seen = (plugin.seen.while_sick or {}).get("gone")
    if seen is None:
        raise Skip(_NO_CHANGE)
    if isinstance(seen, Failure | Skip):
        raise seen
    if seen == 0:
        _require_known(plugin)
        raise DoesNotApply("no device that was allocated before has changed")
    return f"{counted(seen, 'device')} refused, or given as before"


def _seen_while_sick(plugin: PluginUnderTest, method: str) -> int:
    """Return how many calls to `method` were answered while a device was sick.

    Raises Failure if a call failed, and Skip if there was no call.
    """
    _require_provocation(plugin)
    seen = (plugin.seen.while_sick or {}).get(method)
    if seen is None:
        raise Skip(_NO_CHANGE)
    if isinstance(seen, Failure | Skip):
        raise seen
    does_not_apply_if(seen == 0, "after the command, no device that was allocated before is healthy")
    return seen


@check(
    MUST,
    expected="no device that has become unhealthy in the meantime is listed as healthy",
    clause=(
        f"{CHANGES} A kubelet knows only the lists that it has received, so the first list must show the current state."
    ),
)
def reports_a_change_while_the_kubelet_was_away(plugin: PluginUnderTest) -> str:
    """While the kubelet is down, the --provoke-health command is run. Then the kubelet starts."""
    _require_provocation(plugin)
    skip_if(not plugin.seen.health_changes, "the plugin has not listed a change of health yet")
    changed = dict(plugin.seen.health_changes or {})
    plugin.registration.streaming()
    number = len(plugin.kubelet.registrations)
    plugin.kubelet.leave()
    try:
        problem = _problem_of(plugin, plugin.settings.provoke_health)
        skip_if(problem, f"--provoke-health: {problem}")
        plugin.process.pause(plugin.settings.restarting)
        plugin.kubelet.wipe()
        plugin.kubelet.serve()
        connection = plugin.registration.wait_registered(number, plugin.registration.after_a_start)
        if connection is None:
            _require_all_sick(plugin, changed)
            raise TookTooLong("the plugin did not register while a device was unhealthy")
        hidden = _hidden(plugin, connection, changed)
        require(not hidden, f"the plugin lists {some(hidden)} as healthy", late=True)
    finally:
        if plugin.kubelet.connection is None and not plugin.kubelet.socket.exists():
            plugin.kubelet.serve()
        if plugin.settings.undo_health:
            _problem_of(plugin, plugin.settings.undo_health)
    return _changed(changed)


def _hidden(plugin: PluginUnderTest, connection: PluginConnection, changed: Mapping[str, str]) -> list[str]:
    """Return the devices with these changes of health that are listed as healthy, even after a while."""

    def hidden() -> list[str]:
        now = health_of(connection.last_list.devices)
        return [id_ for id_ in changed if now.get(id_) == HEALTHS[0] != changed[id_]]

    plugin.process.wait(lambda: not hidden(), plugin.settings.timeout)
    return hidden()


def _require_all_sick(plugin: PluginUnderTest, changed: Mapping[str, str]) -> None:
    """Raise DoesNotApply if these changes of health leave no healthy device, so that nothing needs to be registered."""
    are_sick = changed.keys() >= {one.ID for one in plugin.lists.first or ()}
    does_not_apply_if(are_sick, "the plugin does not register, but no device is healthy")


def _start_while_sick(plugin: PluginUnderTest) -> SickStart:
    """Make devices unhealthy with the user's command, and kill and start the plugin. Further calls do nothing.

    Raises Skip if no change of health has been listed before, or if the command fails.
    """
    if plugin.seen.sick_start is not None:
        return plugin.seen.sick_start
    _require_provocation(plugin)
    plugin.process.require_process()
    changed = dict(plugin.seen.health_changes or {})
    skip_if(not changed, "the plugin has not listed a change of health yet")
    plugin.registration.streaming()
    plugin.lists.wait_for_devices()
    former = {id_: plugin.lists.alone(id_) for id_ in plugin.lists.healthy[:_RESTARTED] if id_ not in changed}
    number, exits = len(plugin.kubelet.registrations), len(plugin.process.exits)
    try:
        problem = _problem_of(plugin, plugin.settings.provoke_health)
        skip_if(problem, f"--provoke-health: {problem}")
        with calls_in_progress(plugin):
            plugin.process.kill_and_start()
        connection = plugin.registration.wait_registered(number, plugin.registration.after_a_start)
        if connection is None:
            _require_all_sick(plugin, changed)
            ended = plugin.process.exits_since(exits)
            text = f"the plugin did not register; it exited: {some(ended)}" if ended else "the plugin did not register"
            plugin.seen.sick_start = SickStart((Failure if ended else TookTooLong)(text), {})
        else:
            hidden = tuple(_hidden(plugin, connection, changed))
            plugin.process.wait(lambda: former.keys() <= set(plugin.lists.every_healthy), plugin.settings.timeout)
            plugin.seen.sick_start = SickStart(hidden, _calls_while_sick(plugin, former) if former else {})
    finally:
        if plugin.settings.undo_health:
            _problem_of(plugin, plugin.settings.undo_health)
    return plugin.seen.sick_start


@check(
    MUST,
    expected="the plugin registers, lists the other devices as healthy, and answers the calls for them",
    clause=f"{CHANGES} Nodes are rebooted and plugins are updated while a device is broken. Pods that have or get the "
    "other devices need the plugin.",
)
def starts_while_a_device_is_sick(plugin: PluginUnderTest) -> str:
    """The --provoke-health command is run, and then the plugin is killed and started again."""
    seen = _start_while_sick(plugin)
    if isinstance(seen.hidden, Failure):
        raise seen.hidden
    for method, outcome in seen.calls.items():
        if isinstance(outcome, Failure):
            raise reworded(f"{method}: {outcome}", outcome)
    return "the plugin registers, and answers" if seen.calls else "the plugin registers"


@check(
    INFO,
    expected="no device that became unhealthy before the kill is listed as healthy",
    clause=f"{CHANGES} Plugins are updated while devices are broken. If the new process lists a broken device as "
    "healthy, the kubelet gives it to a pod. If the command only sends a signal to the plugin, this check cannot pass.",
)
def reports_a_sick_device_after_a_kill(plugin: PluginUnderTest) -> str:
    """In the same situation, the health in the list is read."""
    hidden = _start_while_sick(plugin).hidden
    if isinstance(hidden, Failure):
        raise Skip(f"the plugin could not be asked: {hidden}")
    require(not hidden, f"the plugin lists {some(hidden)} as healthy", late=True)
    return _changed(plugin.seen.health_changes or {})


@check(
    MUST,
    expected="a new list in which the devices are present and healthy",
    clause=f"{CHANGES} A device that stays unhealthy is lost to the node until the plugin is restarted.",
)
def reports_a_recovery_of_health(plugin: PluginUnderTest) -> str:
    """After the --undo-health command has undone a change of health, the lists are watched."""
    _require_provocation(plugin)
    does_not_apply_if(not plugin.settings.undo_health, "there is no command to undo a change of health (--undo-health)")
    changes = plugin.seen.health_changes
    if changes is None:
        raise Skip("no change of health was both listed and undone")
    worse = [id_ for id_, health in changes.items() if health != HEALTHS[0]]
    does_not_apply_if(not worse, "the command has made no device unhealthy")

    def still_changed() -> list[str]:
        connection = plugin.kubelet.connection
        now = health_of(connection.last_list.devices) if connection and connection.list_count else {}
        return [f"{id_} is {now.get(id_, 'gone')}" for id_ in worse if now.get(id_) != HEALTHS[0]]

    plugin.registration.connected()
    plugin.process.wait(lambda: not still_changed(), plugin.settings.timeout)
    left, limit = still_changed(), counted(plugin.settings.timeout, "second")
    require(not left, f"{limit} after the --undo-health command, {some(left)}", late=True)
    plugin.seen.recovered = tuple(worse)
    return f"{counted(len(worse), 'device')} healthy again"


def _require_recovery(plugin: PluginUnderTest) -> None:
    """Raise Skip unless a device has recovered, and DoesNotApply if none had to."""
    does_not_apply_if(not plugin.settings.undo_health, "there is no command to undo a change of health (--undo-health)")
    are_worse = any(health != HEALTHS[0] for health in (plugin.seen.health_changes or {"": ""}).values())
    does_not_apply_if(not are_worse, "the command has made no device unhealthy")
    skip_if(not plugin.seen.recovered, "no device has recovered (reports-a-recovery-of-health)")


@check(
    MUST,
    expected="an answer with the same device nodes and CDI devices as before; a node that no longer exists may be "
    "replaced",
    clause=f"{ALLOCATE} To a kubelet, a device that is healthy again is as good as any other.",
)
def allocates_a_device_that_has_recovered(plugin: PluginUnderTest) -> str:
    """After a recovery, Allocate is called for the devices that have recovered."""
    _require_provocation(plugin)
    _require_recovery(plugin)
    health = health_of(plugin.lists.devices)
    ids = [device for device in plugin.seen.recovered if health.get(device) == HEALTHS[0]][:_RESTARTED]
    skip_if(not ids, "the devices that had recovered are no longer healthy")
    for device in ids:
        before = plugin.lists.alone(device)
        with in_context(f"for {device}"):
            again = plugin.lists.allocate([device])
            require(again, "the answer has no container response")
            if plugin.lists.has_vanished(before):  # the device has another path now
                fewer = len(all_hardware(before)) - len(all_hardware(again[0]))
                require(fewer <= 0, f"the answer has {fewer} device nodes and CDI devices fewer than before")
                continue
            lost = sorted(all_hardware(before) - all_hardware(again[0]))
            require(not lost, f"the answer lacks {some(lost)}")
    return f"{counted(len(ids), 'device')} as before"


@check(
    MUST,
    expected=CHANGED,
    clause=f"{CHANGES} A stream lasts as long as the kubelet, so it carries many changes.",
)
def reports_a_later_change_of_health(plugin: PluginUnderTest) -> str:
    """After a recovery, the --provoke-health command is run again, and the same stream is watched."""
    _require_provocation(plugin)
    _require_recovery(plugin)
    changes, former = _health_changes(plugin, plugin.registration.connected()), plugin.seen.health_changes or {}
    same = changes.keys() & former.keys()
    require(same, f"the command had changed other devices before: {_changed(former)}; now, {_changed(changes)}")
    return _changed(changes)


# --- the end ----------------------------------------------------------------------------------------------------------


@check(
    MUST,
    expected="the devices keep their ids from the first list",
    clause=(
        "Device.ID: A unique ID assigned by the device plugin used to identify devices (api.proto). To a kubelet, a "
        "new id is a new device: the kubelet gives it to a second container, and refuses the first container after the "
        "next kubelet restart."
    ),
)
def keeps_its_ids(plugin: PluginUnderTest) -> str:
    """The ids are compared after each restart. If the plugin has not been restarted so far, it is restarted."""
    plugin.process.require_process()
    before = {device.ID for device in plugin.lists.first or plugin.lists.devices}
    skip_if(not before, "the plugin lists no device")
    if plugin.process.started_at < plugin.lists.first_at:
        plugin.registration.restarted()
    last = plugin.lists.require_list()
    plugin.process.wait(lambda: len(last.last_list.devices) >= len(before) or last.ended, plugin.settings.timeout)
    listed = {
        number: connection
        for number, one in enumerate(plugin.kubelet.registrations, 1)
        if (connection := one.connection) and connection.list_count
    }
    for number, connection in listed.items():
        now = {device.ID for device in connection.last_list.devices}
        gone, new = sorted(before - now), sorted(now - before)
        # If only one of `gone` and `new` is nonempty, devices were added or removed, or the list was not complete yet.
        require(not (gone and new), f"in the list of registration {number}, {some(new)} replaced {some(gone)}")
    left, limit = sorted(plugin.registration.missing), counted(plugin.settings.timeout, "second")
    require(not left, f"the plugin did not list {some(left)} again within {limit} after it came back", late=True)
    return f"the same {counted(len(before), 'id')} after each of {counted(len(listed), 'registration')}"


@check(
    MUST,
    expected="the same device nodes, permissions, CDI devices and paths in the container, and the same names of "
    "variables and annotations; parts that differ between two calls in a row are not compared",
    clause=f"{ALLOCATE} Nothing else in a call tells the plugin what to give. The same devices are given to a "
    "container again after a restart of the kubelet, and to later containers.",
)
def keeps_its_answers(plugin: PluginUnderTest) -> str:
    """Each answer to Allocate so far is compared with the first answer for the same ids, whatever has happened."""
    lists = plugin.lists
    refusals = [text for part, text in lists.changes if part == REFUSAL]
    require(not refusals, some(refusals))  # a plugin that refuses cannot be asked what differs each time
    unsteady = lists.unsteady if lists.changes or not lists.compared else frozenset()
    changes = [text for part, text in lists.changes if part not in unsteady]
    require(not changes, some(changes))
    return f"{counted(lists.compared, 'answer')} as the first time"


@check(
    SHOULD,
    expected="a set that fits the request, if an earlier answer to the same request did",
    clause=f"{ADVICE} What other containers have is in the request, so the plugin need not remember it.",
)
def keeps_its_preferences(plugin: PluginUnderTest) -> str:
    """Each answer to GetPreferredAllocation so far must fit if an earlier answer to the same request did."""
    plugin.registration.require_preferences()
    lists = plugin.lists
    require(not lists.misfits, some(lists.misfits))
    return f"all answers to {counted(len(lists.preferred), 'request')} fit"


@check(
    MUST,
    expected="a device that is healthy in one list is also healthy in the next list",
    clause=(
        f"{CHANGES} Nothing has happened to the devices. While a device is missing or unhealthy, even for a moment, "
        "a kubelet refuses pods that need it."
    ),
)
def keeps_its_devices(plugin: PluginUnderTest) -> str:
    """Each list is compared with the previous one on its stream. After each return, healthy devices are compared."""
    plugin.lists.require_list()
    lost = plugin.kubelet.lost
    require(not lost, some(list(lost)))
    sick = sorted(plugin.registration.sick)
    require(not sick, f"{some(sick)} did not become healthy again after the plugin had come back", late=True)
    lists = sum(one.connection.list_count for one in plugin.kubelet.registrations if one.connection)
    return f"no device was lost in {counted(lists, 'list')}"


@check(
    MUST,
    expected="the health of healthy devices is spelled `Healthy`",
    clause=(
        "constants.Healthy is `Healthy`. (api, constants.go) A kubelet treats any other value as unhealthy, and "
        "gives the device to no pod."
    ),
)
def spells_healthy_as_kubelets_do(plugin: PluginUnderTest) -> str:
    """The health of each device is read in the last lists from each registration so far."""
    plugin.lists.require_list()
    lists = [one for each in plugin.kubelet.registrations if each.connection for one in each.connection.lists_after(0)]
    found = {(device.ID, device.health) for one in lists for device in one.devices}
    odd = [
        f"{id_} is {text!r}" for id_, text in sorted(found) if text != HEALTHS[0] and text.strip().lower() == "healthy"
    ]
    require(not odd, some(odd))
    return f"{counted(len(lists), 'list')} read"


@check(
    MUST,
    expected="in every list, devices have the same NUMA nodes as in the first list that gives NUMA nodes for them",
    clause=(
        "TopologyInfo describes hardware properties of the device. (api.proto) A device does not move. A kubelet "
        "aligns the CPUs and the memory of later containers with the last list. If that list is wrong, the kubelet "
        "refuses pods that fit, or admits pods whose devices are elsewhere."
    ),
)
def keeps_its_numa_nodes(plugin: PluginUnderTest) -> str:
    """Each device's NUMA nodes in the last lists from each registration are compared with those listed first."""
    plugin.lists.require_list()
    first: dict[str, frozenset[int]] = {}
    moved: dict[str, None] = {}
    for one in plugin.kubelet.registrations:
        if one.connection:
            for message in one.connection.lists_after(0):
                for device in message.devices:
                    now = frozenset(int(node.ID) for node in device.topology.nodes)
                    if (before := first.get(device.ID) or first.setdefault(device.ID, now)) != now:
                        text = f"{device.ID} was on {sorted(before) or 'none'}, and then on {sorted(now) or 'none'}"
                        moved[text] = None
    does_not_apply_if(not any(first.values()), "the plugin provides no NUMA nodes")
    require(not moved, some(list(moved)))
    return f"{counted(len(first), 'device')} as in the first list"


@check(
    MUST,
    expected="while the plugin and the kubelet are running, no stream ends",
    clause=f"{CHANGES} To a kubelet, the end of the stream is the end of the plugin. Pods that need its devices are "
    "refused until it registers again.",
)
def ends_no_stream(plugin: PluginUnderTest) -> str:
    """The streams of all resources are watched during all checks, except when the kubelet or the plugin is stopped."""
    plugin.process.require_process()
    plugin.registration.connected()
    require(not plugin.seen.ended, some(plugin.seen.ended))
    return "no stream has ended without a reason"


@check(
    MUST,
    expected="the process never exits on its own, except after a kubelet restart or a refused registration",
    clause="Device plugin is expected to terminate upon registration failure (api.proto), and for no other reason. "
    "While the plugin is gone, a kubelet cannot give its devices to pods.",
)
def stays_up(plugin: PluginUnderTest) -> str:
    """The plugin's exits are counted, except those soon after a kubelet restart or reported by another check."""
    plugin.process.require_process()
    plugin.registration.connected()
    exits, process = plugin.process.exits, plugin.process
    alone = [one for one in exits if one.pid in process.unprovoked and one.pid not in process.reported]
    require(
        not alone, f"the plugin exited {counted(len(alone), 'time')}; first: {some([str(one) for one in alone[:1]])}"
    )
    if exits:
        return (
            f"the plugin exited {counted(len(exits), 'time')}, after a kubelet restart or as reported by another check"
        )
    return "the plugin never exited on its own"


@check(
    SHOULD,
    expected="the process exits within --grace seconds, without a crash, and with status 0 or because of the signal",
    clause=ENDS,
)
def ends_on_sigterm(plugin: PluginUnderTest) -> str:
    """SIGTERM is sent while the stream of lists is open."""
    plugin.process.require_process()
    plugin.registration.connected()
    process = plugin.process.require_process()
    process.terminate()
    took = plugin.process.wait_for_end(process, plugin.settings.grace)
    status = process.status
    require(
        status is not None, f"the plugin is still running after {counted(plugin.settings.grace, 'second')}", late=True
    )
    require(not has_panicked(process), f"the plugin crashed: {process.crash}")
    plugin.process.wait(lambda: not process.descendants, LATER)
    require(
        not process.descendants,
        "the plugin exited, but a process that it started is still running. A shell or `go run` does not pass on "
        "signals: use the plugin itself as the command",
    )
    require(status in _STOPPED, f"the plugin exited after {took:.1f} seconds with status {status}, as if it had failed")
    return f"the plugin exited after {took:.1f} seconds with status {status}"


@check(
    SHOULD,
    expected="the plugin's socket is gone",
    clause=f"{ENDS} A client that finds a socket without a listener tries to connect to it and fails.",
)
def removes_its_socket(plugin: PluginUnderTest) -> str:
    """After the plugin has exited, its sockets must be gone. Sockets of killed processes do not count."""
    process = plugin.process.require_process()
    if process.status is None:
        raise Skip("the plugin has not exited")
    skip_if(has_panicked(process), "the plugin crashed when it exited")
    left = plugin.process.own_sockets()
    require(not left, f"these sockets are left behind: {', '.join(left)}")
    return "nothing is left behind"


@check(
    MUST,
    expected="every device node, mounted path and CDI device that existed when it was first given exists each time",
    clause="DeviceSpec.host_path: Path of the device on the host. (api.proto) A device may come back under another "
    "path, and a driver may be updated. A container runtime refuses a device node that does not exist, and may replace "
    "a missing mount with an empty directory.",
)
def gives_nothing_that_has_vanished(plugin: PluginUnderTest) -> str:
    """The paths and CDI devices in all answers to Allocate are looked up on this machine."""
    lists = plugin.lists
    does_not_apply_if(not lists.existing, "the plugin has given nothing that exists on this machine")
    require(not lists.vanished, some(lists.vanished))
    return f"{counted(len(lists.existing), 'path')} looked up"


@check(
    SHOULD,
    expected="the output does not contain the values of variables such as passwords, tokens and license keys",
    clause="Log messages should not contain secrets. (kubernetes.io, System Logs) Everyone who can read the plugin's "
    "log can read what it prints.",
)
def prints_no_secrets(plugin: PluginUnderTest) -> str:
    """After each check, the plugin's output is searched for the values of variables whose names suggest secrets."""
    plugin.process.require_process()
    does_not_apply_if(not plugin.lists.secrets, "no variable has such a name")
    found = sorted(plugin.lists.printed)
    require(not found, f"the plugin has printed the value of {some(found)}")
    return f"the values of {some(sorted(set(plugin.lists.secrets.values())))} are not in the output"


@check(
    MUST,
    expected="every mounted path and CDI device that existed when it was given still exists, and every directory is "
    "the same one",
    clause="Mount.host_path: Path of the mount on the host (api.proto). Containers outlive the plugin and the kubelet, "
    "and a kubelet starts a container again without calling Allocate again.",
)
def keeps_what_it_has_mounted(plugin: PluginUnderTest) -> str:
    """After each check, including those that stop the plugin, all mounted paths and CDI devices are looked up."""
    lists = plugin.lists
    lists.look_for_sources()
    does_not_apply_if(not lists.sources, "the plugin has mounted nothing that exists on this machine")
    gone = [f"{path}, which was given for {lists.sources[path]}, {what}" for path, what in lists.gone.items()]
    require(not gone, some(gone))
    return f"all {len(lists.sources)} are still there"


ALONE: tuple[Check[PluginUnderTest], ...] = tuple(one for one in globals().values() if isinstance(one, Check))
"""The checks that are not in the table of situations."""


# --- helpers for several checks -------------------------------------------------------------------------------------


def _require_provocation(plugin: PluginUnderTest) -> None:
    does_not_apply_if(
        not plugin.settings.provoke_health, "there is no command to provoke a change of health (--provoke-health)"
    )
    skip_if(plugin.seen.provocation, f"--provoke-health: {plugin.seen.provocation}")


def _changed(changes: Mapping[str, str]) -> str:
    return some([f"{id_} is {health}" for id_, health in changes.items()])


def ask_for_preferred(plugin: PluginUnderTest, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
    """Return the ids that GetPreferredAllocation prefers for one container.

    Raises Failure if the plugin does not respond with exactly one set of ids. Raises DoesNotApply if the plugin does
    not announce the method.
    """
    plugin.registration.require_preferences()
    container = deviceplugin.ContainerPreferredAllocationRequest(
        available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
    )
    request = deviceplugin.PreferredAllocationRequest(container_requests=[container])
    answers = plugin.lists.call(rpc.GET_PREFERRED_ALLOCATION, request).container_responses
    require(len(answers) == 1, f"{counted(len(answers), 'answer')} for one container")
    plugin.lists.note_preference(available, must, size, answers[0].deviceIDs)
    return list(answers[0].deviceIDs)


def _answers(plugin: PluginUnderTest, devices: Sequence[str]) -> list[deviceplugin.ContainerAllocateResponse]:
    """Return the responses to Allocate, or none if the plugin refuses the call, as it may for several devices."""
    try:
        return _allocated(plugin, devices, plugin.lists.together)
    except DoesNotApply:
        return []


def _sizes(ids: Sequence[str]) -> list[int]:
    """Return the request sizes to try: one, two, half, and all of these devices."""
    return sorted({1, min(2, len(ids)), -(-len(ids) // 2), len(ids)})


def _preference_calls(ids: Sequence[str]) -> list[tuple[int, Sequence[str]]]:
    """Return, for each request, the size and the devices that must be included."""
    calls: list[tuple[int, Sequence[str]]] = [(size, []) for size in _sizes(ids)]
    return [*calls, *((size, ids[-number:]) for size in _sizes(ids) for number in sorted({1, size}))]


def _preferred(plugin: PluginUnderTest, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
    """Call GetPreferredAllocation. Raises Skip if the call fails; another check reports that."""
    with skipping(Failure):
        return ask_for_preferred(plugin, available, must, size)


def owners_of(answers: Mapping[str, deviceplugin.ContainerAllocateResponse]) -> Mapping[str, str]:
    """Return the owner of each device node and CDI device that only one of these devices has."""
    owners = Counter(one for answer in answers.values() for one in all_hardware(answer))
    return {one: device for device, answer in answers.items() for one in all_hardware(answer) if owners[one] == 1}


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


def allocate_or_skip(plugin: PluginUnderTest, devices: Sequence[str]) -> list[deviceplugin.ContainerAllocateResponse]:
    """Call Allocate. Raises Skip if the call fails or the response is empty; another check reports that."""
    return _allocated(plugin, devices, plugin.lists.allocate)


def _allocated(
    plugin: PluginUnderTest,
    devices: Sequence[str],
    allocate: Callable[[Sequence[str]], list[deviceplugin.ContainerAllocateResponse]],
) -> list[deviceplugin.ContainerAllocateResponse]:
    """Call `allocate`. Raises Skip if the call fails or the response is empty; another check reports that."""
    try:
        answers = allocate(devices)
    except CallFailedError as error:
        is_refused = len(devices) > 1 and _is_refusal(plugin, error)
        raise (DoesNotApply if is_refused else Skip)(f"{some(devices)} together: {error}") from None
    skip_if(not answers, f"the answer to Allocate for {some(devices)} has no container response")
    return answers


def _is_refusal(plugin: PluginUnderTest, error: CallFailedError) -> bool:
    """Return whether an error is the plugin's answer, and not the result of a lost connection or of a lack of time.

    A plugin may itself answer with UNAVAILABLE, and then it answers the next call, too.
    """
    if error.is_late or error.code != "UNAVAILABLE":
        return not error.is_late
    process, connection = plugin.process.running, plugin.registration.connected()
    is_up = _succeeds(lambda: connection.call(rpc.GET_DEVICE_PLUGIN_OPTIONS, deviceplugin.Empty(), PATIENCE))
    return is_up and process is plugin.process.running and (process is None or process.status is None)


@contextmanager
def _unless_taken(plugin: PluginUnderTest, *devices: str) -> Iterator[None]:
    """Skip the check if this block fails and a device is also refused on its own, for example because it is taken."""
    try:
        yield
    except Failure as failure:
        has_answered = not isinstance(failure, CallFailedError) or failure.is_late or _is_refusal(plugin, failure)
        for device in devices if has_answered else ():
            allocate_or_skip(plugin, [device])
        raise


def _nodes(answer: deviceplugin.ContainerAllocateResponse) -> frozenset[str]:
    return frozenset(node.host_path for node in answer.devices)


def _real_nodes(answer: deviceplugin.ContainerAllocateResponse) -> frozenset[str]:
    """Return the device nodes in an answer, with symbolic links resolved."""
    return frozenset(map(os.path.realpath, _nodes(answer)))


def _paths(answer: deviceplugin.ContainerAllocateResponse) -> frozenset[str]:
    """Return the paths of the device nodes on the host and in the container."""
    return frozenset(path for node in answer.devices for path in (node.host_path, node.container_path))


def hardware(answer: deviceplugin.ContainerAllocateResponse) -> tuple[frozenset[str], frozenset[str]]:
    """Return the device nodes and the CDI devices in an answer."""
    return _nodes(answer), frozenset(one.name for one in answer.cdi_devices)


def _key(answer: deviceplugin.ContainerAllocateResponse) -> bytes:
    """Return the same bytes for equal responses."""
    return answer.SerializeToString(deterministic=True)


def all_hardware(answer: deviceplugin.ContainerAllocateResponse) -> frozenset[str]:
    """Return the device nodes and the CDI devices in an answer as one set."""
    return frozenset().union(*hardware(answer))


def _listed(answer: deviceplugin.ContainerAllocateResponse, name: str) -> list[str]:
    return sorted(str(each).replace("\n", " ").strip() for each in getattr(answer, name))


def _given(answer: deviceplugin.ContainerAllocateResponse) -> str:
    """Return a description of what the answer gives a container, or an empty string if it gives nothing."""
    envs = [f"{name}={value}" for name, value in sorted(answer.envs.items())]
    mounts = sorted(mount.host_path for mount in answer.mounts)
    annotations = [f"annotation {name}" for name in sorted(answer.annotations)]
    return some([*envs, *sorted(_nodes(answer)), *mounts, *(one.name for one in answer.cdi_devices), *annotations])


def _options(options: deviceplugin.DevicePluginOptions) -> str:
    return (
        f"PreStartContainer {'required' if options.pre_start_required else 'not required'}, "
        f"GetPreferredAllocation {'available' if options.get_preferred_allocation_available else 'not available'}"
    )
