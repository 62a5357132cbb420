"""The checks of the registration and of the list of devices.

Law: these checks call only what a kubelet calls when a plugin registers, and restart nothing.
"""

import time
from collections import Counter

from devicecore.adapters.grpc_unix import rpc
from devicecore.domain.model import MAX_DEVICE_ID_LENGTH, is_extended_resource
from devicecore.domain.text import counted
from devicecore.wire import deviceplugin
from devicecore_tools.conformance.device_plugin.checks.common import HEALTHS, MUST, SHOULD
from devicecore_tools.conformance.device_plugin.devices import health_of
from devicecore_tools.conformance.device_plugin.kubelet import path_problem
from devicecore_tools.conformance.device_plugin.plugin import PluginUnderTest
from devicecore_tools.conformance.model import (
    Abort,
    Failure,
    TookTooLong,
    Undecided,
    check,
    does_not_apply_if,
    require,
    some,
)

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""The largest message, in bytes, that a kubelet's gRPC connection accepts."""
_LAST_NUMA_NODE = 63
_DIRECTORY = "/var/lib/kubelet/device-plugins"


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


# --- helpers for several checks -------------------------------------------------------------------------------------


def _options(options: deviceplugin.DevicePluginOptions) -> str:
    return (
        f"PreStartContainer {'required' if options.pre_start_required else 'not required'}, "
        f"GetPreferredAllocation {'available' if options.get_preferred_allocation_available else 'not available'}"
    )
