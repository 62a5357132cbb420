"""Every check, in the order in which they are made.

Law: a check looks at one thing. To add one, write a function below where it belongs, and name it in `CHECKS`.
"""

import time
from collections import Counter
from collections.abc import Sequence

from devicecore.adapters.grpc_unix import rpc
from devicecore.conformance.model import Check, Failure, Severity, Skip, check
from devicecore.conformance.peer import CallFailedError
from devicecore.conformance.subject import Subject, health_of
from devicecore.domain.model import MAX_DEVICE_ID_LENGTH, is_extended_resource
from devicecore.wire import deviceplugin

MESSAGE_LIMIT = 4 * 1024 * 1024  # bytes: what a kubelet's gRPC takes
UNKNOWN_DEVICE = "no-such-device-of-devicecore"
DIALLING = 60.0  # seconds, but the kubelet gives up before
BUSY = 0.1  # of one processor
FAST = 10.0  # registrations a second
BURST = 10  # registrations at once
HEALTHS = ("Healthy", "Unhealthy")

_SHOWN = 5

MUST, SHOULD, INFO = Severity.MUST, Severity.SHOULD, Severity.INFO


def some(ids: Sequence[str]) -> str:
    """The first of many, for a sentence."""
    more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
    return ", ".join(ids[:_SHOWN]) + more


def require(condition: object, came: str) -> None:
    """See that something holds.

    Raises:
        Failure: it does not; `came` says what does.
    """
    if not condition:
        raise Failure(came)


# --- registration -----------------------------------------------------------------------------------------------------


@check(
    MUST,
    expected="Register is called, and while it waits for its answer the plugin can be reached on its own socket",
    clause="A plugin MUST start serving gRPC service before registering itself with kubelet for successful "
    "registration. (kubernetes.io, Device Plugins)",
)
def serves_before_it_registers(plugin: Subject) -> str:
    """A kubelet is started; when Register comes, it dials the plugin before it answers."""
    began = time.monotonic()
    plugin.wait(lambda: plugin.peer.registrations, plugin.settings.first)
    plugin.wait(lambda: not plugin.peer.registrations or plugin.first.problem or plugin.first.answered, DIALLING)
    if not plugin.peer.registrations:
        exits = f"; {plugin.exits[-1]}" if plugin.exits else ""
        hint = f"; was it told {plugin.peer.directory}? If its directory is fixed, name that with --socket-dir"
        came = f"in {time.monotonic() - began:.0f} seconds {plugin.peer.silence}{exits}{hint}"
        raise Failure(came)
    first = plugin.first
    require(first.stage != "dial", f"Register came after {first.at - began:.1f} seconds, but then: {first.problem}")
    reached = f"the plugin was reached after {first.reached_after:.2f} seconds more"
    return f"Register came after {first.at - began:.1f} seconds, and {reached}"


@check(
    MUST,
    expected=f"the version is {rpc.VERSION}",
    clause="RegisterRequest.version: Version of the API the Device Plugin was built against (api.proto). "
    f"A kubelet supports {rpc.VERSION} and no other.",
)
def registers_a_supported_version(plugin: Subject) -> str:
    """The version in the call of Register is read."""
    version = plugin.first.request.version
    require(version == rpc.VERSION, f"the version is {version!r}")
    return f"the version is {version}"


@check(
    MUST,
    expected="it is the name of a file in the directory, not a path from the root (with --registry: such a path, or "
    "nothing), and fits into a unix socket's path",
    clause="RegisterRequest.endpoint: Name of the unix socket the device plugin is listening on; "
    "PATH = path.Join(DevicePluginPath, endpoint) (api.proto)",
)
def registers_an_endpoint_in_the_directory(plugin: Subject) -> str:
    """The endpoint in the call of Register is read."""
    endpoint = plugin.first.request.endpoint
    problem = plugin.peer.endpoint_problem(endpoint)
    require(not problem, f"the endpoint is {endpoint!r}: {problem}")
    return f"the endpoint is {endpoint}"


@check(
    MUST,
    expected="it is an extended resource name: a domain that is not Kubernetes' own, a slash, a name",
    clause="The ResourceName it wants to advertise. Here ResourceName needs to follow the extended resource naming "
    "scheme as vendor-domain/resourcetype. (kubernetes.io, Device Plugins)",
)
def registers_an_extended_resource_name(plugin: Subject) -> str:
    """The resource name in the call of Register is read."""
    name = plugin.first.request.resource_name
    require(is_extended_resource(name), f"the resource name is {name!r}")
    return f"the resource is {name}"


@check(
    MUST,
    expected="an answer in time, while Register waits for its own",
    clause="GetDevicePluginOptions returns options to be communicated with Device Manager. (api.proto)",
)
def answers_options(plugin: Subject) -> str:
    """GetDevicePluginOptions is called before Register is answered, as a kubelet does."""
    first = plugin.first
    require(first.stage != "options", first.problem)
    options = plugin.connected().options
    wants = [
        name
        for name, wanted in (
            ("PreStartContainer", options.pre_start_required),
            ("GetPreferredAllocation", options.get_preferred_allocation_available),
        )
        if wanted
    ]
    return f"it answers, and wants {' and '.join(wants) or 'neither PreStartContainer nor GetPreferredAllocation'}"


@check(
    MUST,
    expected="an answer in time",
    clause="NotifyRegistrationStatus: notifies the plugin if registration succeeded or failed (pluginregistration, "
    "api.proto). A kubelet lets go of a plugin that does not want to know.",
)
def answers_notify_registration_status(plugin: Subject) -> str:
    """Where a plugin watcher finds the plugin (--registry), it is told that it is registered."""
    if not plugin.peer.watches:
        why = "the plugin registers by itself (no --registry)"
        raise Skip(why)
    require(plugin.first.stage != "status", plugin.first.problem)
    plugin.connected()
    return "it answers"


@check(
    INFO,
    expected="the same options in both, if Register has any",
    clause="RegisterRequest.options: Options to be communicated with Device Manager (api.proto). A kubelet takes them "
    "from GetDevicePluginOptions alone.",
)
def registers_the_options_it_answers(plugin: Subject) -> str:
    """The options in Register are compared with those of GetDevicePluginOptions."""
    connection = plugin.connected()
    request = plugin.first.request
    if not request.HasField("options"):
        return "Register has none, and none are needed"
    require(
        request.options == connection.options,
        f"Register says {_options(request.options)}, GetDevicePluginOptions {_options(connection.options)}",
    )
    return "they are the same"


# --- the list ---------------------------------------------------------------------------------------------------------


@check(
    MUST,
    expected="a first list, even an empty one, in time",
    clause="ListAndWatch returns a stream of List of Devices. (api.proto)",
)
def lists_devices_in_time(plugin: Subject) -> str:
    """ListAndWatch is called as soon as the plugin has registered."""
    connection = plugin.connected()
    plugin.wait(lambda: connection.lists or connection.ended, plugin.settings.timeout)
    why = f"the stream has ended ({connection.ended})" if connection.ended else "the stream is open and silent"
    require(connection.lists, f"no list after {plugin.settings.timeout:g} seconds: {why}")
    took = connection.list_times[0] - connection.opened
    return f"a list of {len(connection.lists[0].devices)} devices after {took:.2f} seconds"


@check(
    MUST,
    expected="every id is there once",
    clause="Device.ID: A unique ID assigned by the device plugin used to identify devices during the communication "
    "(api.proto)",
)
def lists_unique_ids(plugin: Subject) -> str:
    """The ids of the list are compared."""
    ids = [device.ID for device in plugin.devices]
    twice = sorted({id_ for id_ in ids if ids.count(id_) > 1}) if len(set(ids)) < len(ids) else []
    require(not twice, f"listed more than once: {some(twice)}")
    return f"{len(ids)} ids, all different"


@check(
    MUST,
    expected=f"every id has 1 to {MAX_DEVICE_ID_LENGTH} characters",
    clause=f"Device.ID: Max length of this field is {MAX_DEVICE_ID_LENGTH} characters (api.proto)",
)
def lists_short_ids(plugin: Subject) -> str:
    """The ids of the list are measured."""
    ids = [device.ID for device in plugin.devices]
    require("" not in ids, "an id is empty")
    long = [f"{id_} ({len(id_)})" for id_ in ids if len(id_) > MAX_DEVICE_ID_LENGTH]
    require(not long, f"too long: {some(long)}")
    return f"the longest id has {max(map(len, ids), default=0)} characters"


@check(
    SHOULD,
    expected="Healthy or Unhealthy, spelled like that",
    clause="Device.health: Health of the device, can be Healthy or Unhealthy, see constants.go (api.proto). A kubelet "
    "takes everything else for unhealthy.",
)
def lists_known_health(plugin: Subject) -> str:
    """The health of each device is read."""
    health = health_of(plugin.devices)
    odd = [f"{id_} is {said!r}" for id_, said in health.items() if said not in HEALTHS]
    require(not odd, some(odd))
    return f"{sum(said == HEALTHS[0] for said in health.values())} of {len(health)} devices are healthy"


@check(
    MUST,
    expected=f"at most {MESSAGE_LIMIT} bytes",
    clause="A kubelet's gRPC connection has the default limits: a message of more than 4 MiB ends it, and with it the "
    "resource.",
)
def lists_fit_into_a_message(plugin: Subject) -> str:
    """The longest list so far is measured."""
    plugin.first_list()
    size = max(message.ByteSize() for message in plugin.connected().lists)
    devices = len(plugin.devices)
    require(size <= MESSAGE_LIMIT, f"the list of {devices} devices has {size} bytes")
    room = f", room for about {devices * MESSAGE_LIMIT // size}" if size else ""
    return f"{size} bytes for {devices} devices{room}"


@check(
    MUST,
    expected="the stream stays open",
    clause="Whenever a Device state change or a Device disappears, ListAndWatch returns the new list. (api.proto) A "
    "kubelet takes the end of the stream for the end of the plugin.",
)
def keeps_its_stream_open(plugin: Subject) -> str:
    """The stream of lists is watched for a second after its first list."""
    connection = plugin.connected()
    plugin.settle(connection)
    open_for = time.monotonic() - connection.opened
    require(not connection.ended, f"it ended ({connection.ended})")
    return f"it is open since {open_for:.1f} seconds, {len(connection.lists)} lists came"


# --- Allocate ---------------------------------------------------------------------------------------------------------

ALLOCATE = (
    "Allocate is called during container creation so that the Device Plugin can run device specific operations and "
    "instruct Kubelet of the steps to make the Device available in the container. (api.proto)"
)


@check(MUST, expected="an answer for each", clause=ALLOCATE)
def allocates_each_device(plugin: Subject) -> str:
    """Allocate is called for each healthy device alone, for up to 64 of them."""
    refused = []
    for device in plugin.healthy:
        try:
            answers = plugin.allocate([device])
        except CallFailedError as error:
            refused.append(f"{device}: {error}")
        else:
            if not answers:
                refused.append(f"{device}: an answer for no container")
    require(not refused, some(refused))
    return f"{len(plugin.healthy)} devices, one by one"


@check(
    SHOULD,
    expected="an answer",
    clause=f"{ALLOCATE} A container may ask for as many as there are, and most plugins have no reason to refuse that. "
    "Those that share a device among containers may have one.",
)
def allocates_all_devices(plugin: Subject) -> str:
    """Allocate is called for one container with all healthy devices, or 64 of them."""
    ids = plugin.healthy
    try:
        plugin.allocate(ids)
    except CallFailedError as error:
        came = f"for {len(ids)} devices: {error}"
        raise Failure(came) from None
    return f"{len(ids)} devices together"


@check(
    MUST,
    expected="one answer, however many devices the container has",
    clause="AllocateResponse.container_responses is one ContainerAllocateResponse for each of "
    "AllocateRequest.container_requests (api.proto). A kubelet reads the first.",
)
def answers_once_per_container(plugin: Subject) -> str:
    """Allocate is called for one container with two devices."""
    first, second = plugin.two_devices()
    answers = _allocate_or_skip(plugin, [first, second])
    require(len(answers) == 1, f"{len(answers)} answers for one container with 2 devices")
    return "one answer"


@check(
    SHOULD,
    expected="two answers, the first for the first container, the second for the second",
    clause="AllocateRequest.container_requests is repeated (api.proto). Kubelets of today ask for one container in a "
    "call, but need not.",
)
def answers_each_of_two_containers(plugin: Subject) -> str:
    """Allocate is called for two containers at once, with one device each."""
    first, second = plugin.two_devices()
    one, other = plugin.alone(first), plugin.alone(second)
    try:
        answers = plugin.allocate([first], [second])
    except CallFailedError as error:
        raise Failure(str(error)) from None
    require(len(answers) == 2, f"{len(answers)} answers for 2 containers")  # noqa: PLR2004 - it says so
    require(
        one == other or answers[1] != one,
        f"the second container, with {second}, is given what {first} gives: its answer repeats the first one's",
    )
    return "two answers, each for its own container"


@check(
    SHOULD,
    expected="an empty answer or an error, and a plugin that is there as before",
    clause="ContainerAllocateRequest.devices_ids is repeated (api.proto), so it may be empty, even though no kubelet "
    "sends it so.",
)
def survives_a_request_for_no_devices(plugin: Subject) -> str:
    """Allocate is called for one container without devices, and then GetDevicePluginOptions."""
    connection = plugin.connected()
    try:
        came = f"{len(plugin.allocate([]))} answers"
    except CallFailedError as error:
        came = str(error)
    try:
        connection.call(rpc.GET_DEVICE_PLUGIN_OPTIONS, deviceplugin.Empty(), plugin.settings.timeout)
    except CallFailedError as error:
        after = f"{came}, and after that {error}"
        raise Failure(after) from None
    return came


@check(
    MUST,
    expected="an error: the container must not start",
    clause="Failure Handling: [...] The Device plugin should send a ListAndWatch update and fail the Allocation "
    "request (api.proto). A kubelet that has not yet heard that a device has gone does ask for it. Many plugins answer "
    "all the same.",
)
def refuses_an_unknown_device(plugin: Subject) -> str:
    """Allocate is called for an id that was never listed."""
    plugin.connected()
    try:
        (*_,) = answers = plugin.allocate([UNKNOWN_DEVICE])
    except CallFailedError as error:
        require(error.code not in {"DEADLINE_EXCEEDED", "UNAVAILABLE"}, f"it does not refuse it, it fails: {error}")
        return str(error)
    given = ", ".join(_given(answer) for answer in answers) or "no answer"
    came = f"it gives {UNKNOWN_DEVICE!r} away, with {given}"
    raise Failure(came)


@check(
    MUST,
    expected="all of them together come with no node that none has alone",
    clause=f"{ALLOCATE} The node of a device follows from its id. Whoever takes the first node for the first id of a "
    "request gives two containers the same device.",
)
def gives_nodes_by_id(plugin: Subject) -> str:
    """The host paths of the device nodes in the answer for all devices are looked for in those for single devices."""
    nodes = _nodes_of_each(plugin)
    together = frozenset(node for answer in _allocate_or_skip(plugin, list(nodes)) for node in _nodes(answer))
    strange = sorted(together - frozenset().union(*nodes.values()))
    require(
        not strange,
        f"all devices together come with {some(strange)}, which no device has alone: the node depends on the position "
        "in the request, not on the id",
    )
    return f"{len(together)} nodes come with {len(nodes)} devices, and each of them with one of these alone"


@check(
    SHOULD,
    expected="every device has a node that no other has, or, where devices are shared on purpose, none has",
    clause=f"{ALLOCATE} The kubelet gives each device to one container, so its node is for that container alone.",
)
def gives_each_device_its_own_nodes(plugin: Subject) -> str:
    """The host paths of the device nodes in the answers for single devices are compared."""
    nodes = _nodes_of_each(plugin)
    owners = Counter(node for given in nodes.values() for node in given)
    alone = [id_ for id_, given in nodes.items() if any(owners[node] == 1 for node in given)]
    others = [id_ for id_ in nodes if id_ not in alone]
    if not alone:
        return f"none has: {len(nodes)} devices share {len(owners)} nodes"
    came = f"{some(alone)} has one, and {some(others)} has none: what comes with it, comes with another one too"
    require(not others, came)
    return f"each of {len(nodes)} devices has its own"


@check(
    MUST,
    expected="an answer, with the same device nodes and CDI devices as the first time",
    clause=f"{ALLOCATE} A kubelet asks again for the same container when its start has failed, and when it has lost "
    "its checkpoint, and for the next container that is given the device.",
)
def allocates_again_in_the_same_way(plugin: Subject) -> str:
    """Allocate is called a second time for the same device."""
    device = plugin.healthy[0]
    before = plugin.alone(device)
    try:
        again = plugin.allocate([device])[0]
    except (CallFailedError, IndexError) as error:
        came = f"the second time: {error}"
        raise Failure(came) from None
    _require_same(device, before, again, "devices", "cdi_devices")
    return "the same"


@check(
    INFO,
    expected="the same mounts as the first time",
    clause="Mount.host_path: Path of the mount on the host (api.proto). Who makes a new one for every call has to know "
    "when it is no longer needed, and no kubelet says so.",
)
def mounts_the_same_again(plugin: Subject) -> str:
    """Allocate is called a second time for the same device, and the mounts are compared."""
    device = plugin.healthy[0]
    before = plugin.alone(device)
    for again in _allocate_or_skip(plugin, [device]):
        _require_same(device, before, again, "mounts")
    return "the same"


# --- preferences ------------------------------------------------------------------------------------------------------

PREFERENCE = (
    "GetPreferredAllocation returns a preferred set of devices to allocate from a list of available ones. (api.proto)"
)


ADVICE = f"{PREFERENCE} It is advice: a kubelet takes of it what it can use."


@check(
    MUST,
    expected="an answer with one set of ids, since the plugin has announced it",
    clause=f"{PREFERENCE} A pod is refused if the plugin answers with an error.",
)
def answers_get_preferred_allocation(plugin: Subject) -> str:
    """GetPreferredAllocation, if announced, is called for one device, for two, and for all."""
    ids = plugin.healthy
    preferred = [_ask_for_preferred(plugin, ids, [], size) for size in sorted({1, min(2, len(ids)), len(ids)})]
    return f"{len(preferred)} times"


@check(
    SHOULD,
    expected="as many ids as were asked for",
    clause=f"ContainerPreferredAllocationRequest.allocation_size: Number of devices to include in the preferred "
    f"allocation. {ADVICE}",
)
def prefers_as_many_as_asked(plugin: Subject) -> str:
    """GetPreferredAllocation, if announced, is called for one device, for two, and for all."""
    ids = plugin.healthy
    for size in sorted({1, min(2, len(ids)), len(ids)}):
        preferred = _preferred(plugin, ids, [], size)
        require(
            len(preferred) == len(set(preferred)) == size,
            f"asked for {size} of {len(ids)} devices, it prefers {some(preferred) or 'none'}",
        )
    return f"1, 2 and {len(ids)} of {len(ids)}, as asked"


@check(
    SHOULD,
    expected="no id but those that are available",
    clause=f"ContainerPreferredAllocationRequest.available_deviceIDs: List of available deviceIDs from which to choose "
    f"a preferred allocation. {ADVICE}",
)
def prefers_only_what_is_available(plugin: Subject) -> str:
    """GetPreferredAllocation, if announced, is called when all devices but the first are available."""
    ids = plugin.healthy
    available = ids[1:] or ids
    strange = sorted(set(_preferred(plugin, available, [], len(available))) - set(available))
    require(not strange, f"it prefers {some(strange)}, which was not available")
    return f"{len(available)} of {len(ids)} devices were available, and it chose among them"


@check(
    SHOULD,
    expected="the ids that must be included are included",
    clause=f"ContainerPreferredAllocationRequest.must_include_deviceIDs: List of deviceIDs that must be included in "
    f"the preferred allocation. {ADVICE}",
)
def prefers_what_it_must_include(plugin: Subject) -> str:
    """GetPreferredAllocation, if announced, is called with each device as the one that must be included."""
    ids = plugin.healthy
    for must in ids[-_SHOWN:]:
        preferred = _preferred(plugin, ids, [must], min(2, len(ids)))
        require(must in preferred, f"{must} must be included, and it prefers {some(preferred) or 'none'}")
    return "included"


# --- PreStartContainer ------------------------------------------------------------------------------------------------


@check(
    MUST,
    expected="an answer, within the 30 seconds that a kubelet waits",
    clause="PreStartContainer is called, if indicated by Device Plugin during registration phase, before each "
    "container start. (api.proto)",
)
def answers_pre_start_container(plugin: Subject) -> str:
    """PreStartContainer, if announced, is called twice for a device that was allocated."""
    if not plugin.connected().options.pre_start_required:
        why = "the plugin does not require it"
        raise Skip(why)
    device = plugin.healthy[0]
    plugin.alone(device)
    for time_ in ("first", "second"):
        try:
            plugin.call(rpc.PRE_START_CONTAINER, deviceplugin.PreStartContainerRequest(devices_ids=[device]))
        except CallFailedError as error:
            came = f"the {time_} time: {error}"
            raise Failure(came) from None
    return "it answers"


# --- health -----------------------------------------------------------------------------------------------------------


@check(
    MUST,
    expected="a new list, in which the health of a device has changed, or a device has gone or come",
    clause="Whenever a Device state change or a Device disappears, ListAndWatch returns the new list. (api.proto)",
)
def reports_a_change_of_health(plugin: Subject) -> str:
    """The command of --provoke-health is run, and the stream of lists watched."""
    before = health_of(plugin.devices)
    connection = plugin.connected()
    seen = len(connection.lists)
    plugin.provoke_health()

    def changed() -> dict[str, str]:
        for message in connection.lists[seen:]:
            now = health_of(message.devices)
            if now != before:
                return {id_: now.get(id_, "gone") for id_ in {*before, *now} if now.get(id_) != before.get(id_)}
        return {}

    changes = plugin.wait(changed, plugin.settings.timeout) or {}
    came = (
        f"{len(connection.lists) - seen} lists in {plugin.settings.timeout:g} seconds, and nothing has changed in them"
    )
    require(changes, came)
    return some([f"{id_} is {health}" for id_, health in sorted(changes.items())])


# --- the life of a kubelet --------------------------------------------------------------------------------------------

RESTARTS = (
    "A device plugin is expected to detect kubelet restarts and re-register itself with the new kubelet instance. "
    "(kubernetes.io, Device Plugins)"
)


@check(
    MUST,
    expected="Register is called again, the plugin can be reached, and it lists its devices",
    clause=f"{RESTARTS} A new kubelet instance deletes all the existing Unix sockets under "
    "/var/lib/kubelet/device-plugins when it starts.",
)
def returns_after_the_directory_is_emptied(plugin: Subject) -> str:
    """The kubelet restarts: streams end, all sockets in the directory are deleted, kubelet.sock is made anew."""
    return plugin.restart_kubelet(wipe=True)


@check(
    SHOULD,
    expected="Register is called again, the plugin can be reached, and it lists its devices",
    clause=f"{RESTARTS} A plugin that only watches its own socket does not notice one that deletes nothing.",
)
def returns_after_kubelet_sock_is_recreated(plugin: Subject) -> str:
    """Streams end and kubelet.sock is made anew; the plugin's own socket is left alone."""
    return plugin.restart_kubelet(wipe=False)


@check(
    SHOULD,
    expected="Register is called again, the plugin can be reached, and it lists its devices",
    clause="A kubelet does not call ListAndWatch a second time: once the stream has ended, the devices are unhealthy "
    "until the plugin registers again.",
)
def returns_after_its_stream_is_cut(plugin: Subject) -> str:
    """The connection is cut; both sockets stay."""
    connection = plugin.streaming()
    number = len(plugin.peer.registrations)
    connection.close()
    return plugin.see_it_return(number)


@check(MUST, expected="Register is called again as soon as the kubelet is back", clause=RESTARTS)
def returns_to_a_kubelet_that_was_away(plugin: Subject) -> str:
    """The kubelet is away for some seconds, nobody listens on kubelet.sock; then it is back and deletes all sockets."""
    absence = plugin.be_away()
    require(absence.returned_after is not None, absence.problem)
    return f"{plugin.settings.away:g} seconds away, back {absence.returned_after:.1f} seconds after the kubelet"


@check(
    SHOULD,
    expected=f"less than {BUSY:.0%} of one processor",
    clause=f"{RESTARTS} Nothing says how long a kubelet may be away; whoever waits for it must not waste the "
    "node's time.",
)
def is_quiet_while_the_kubelet_is_away(plugin: Subject) -> str:
    """The processor time of the plugin's processes is measured while the kubelet is away."""
    if not plugin.ours:
        why = "the plugin's process was not started here"
        raise Skip(why)
    share = plugin.be_away().cpu
    if share is None:
        why = "the plugin's process has changed meanwhile"
        raise Skip(why)
    require(share < BUSY, f"it used {share:.0%} of one processor")
    return f"it used {share:.1%} of one processor"


@check(
    SHOULD,
    expected=f"at most {FAST:g} calls of Register a second, after {BURST} at once",
    clause="Device plugin is expected to terminate upon registration failure (api.proto). Whether it does or tries "
    "again, a kubelet that cannot take it must not be flooded.",
)
def is_patient_with_a_kubelet_that_refuses(plugin: Subject) -> str:
    """The kubelet restarts, and refuses every registration for some seconds."""
    attempts = plugin.refuse()
    allowed = BURST + FAST * plugin.settings.refusing
    require(attempts <= allowed, f"{attempts} calls of Register in {plugin.settings.refusing:g} seconds")
    return f"{attempts} calls of Register in {plugin.settings.refusing:g} seconds"


@check(
    SHOULD,
    expected="Register is called, the plugin can be reached, and it lists its devices",
    clause="A socket outlives a process that is killed, and until a kubelet starts nobody deletes it. bind(2) fails "
    "where there is a file. No plugin is told of its end by SIGKILL, which kubelets send after the grace period.",
)
def starts_where_it_was_killed(plugin: Subject) -> str:
    """The plugin is killed and started again; its socket is left where it is."""
    if not plugin.ours:
        why = "the plugin's process was not started here"
        raise Skip(why)
    plugin.streaming()
    number = len(plugin.peer.registrations)
    plugin.kill()
    plugin.start()
    return plugin.see_it_return(number)


@check(
    INFO,
    expected="the process lives as long as it is not ended",
    clause="Device plugin is expected to terminate upon registration failure (api.proto), and for nothing else.",
)
def stays_up(plugin: Subject) -> str:
    """The exits of the plugin during all checks before this one are counted."""
    if not plugin.ours:
        why = "the plugin's process was not started here"
        raise Skip(why)
    require(not plugin.exits, f"{len(plugin.exits)} times, and was started again; first: {(plugin.exits or [''])[0]}")
    return "it never ended"


# --- its end ----------------------------------------------------------------------------------------------------------

ENDS = (
    "Kubernetes ends a pod with SIGTERM, and with SIGKILL when its grace period is over. (kubernetes.io, Pod Lifecycle)"
)


@check(SHOULD, expected="it ends before the usual grace period of 30 seconds, whatever its exit status", clause=ENDS)
def ends_on_sigterm(plugin: Subject) -> str:
    """SIGTERM is sent, while the stream of lists is open."""
    if not plugin.ours:
        why = "the plugin's process was not started here"
        raise Skip(why)
    plugin.connected()
    process = plugin.process
    assert process is not None, "it is ours"  # noqa: S101 - for mypy
    process.terminate()
    began = time.monotonic()
    plugin.wait(lambda: process.status is not None, plugin.settings.grace)
    status = process.status
    require(status is not None, f"it still runs after {plugin.settings.grace:g} seconds")
    require(
        not process.descendants,
        "it ended, but what it had started still runs: a shell or `go run` does not pass signals on, so give the "
        "plugin itself as the command",
    )
    return f"it ended after {time.monotonic() - began:.1f} seconds, with status {status}"


@check(
    SHOULD,
    expected="its socket is gone",
    clause=f"{ENDS} A socket that nobody serves is dialled in vain by whoever finds it.",
)
def removes_its_socket(plugin: Subject) -> str:
    """The directory is looked at after the plugin's end."""
    process = plugin.process
    if process is None or process.status is None:
        why = "the plugin has not ended"
        raise Skip(why)
    left = sorted(plugin.peer.plugin_sockets())
    require(not left, f"{', '.join(left)} is left behind")
    return "nothing is left behind"


CHECKS: tuple[Check, ...] = (
    serves_before_it_registers,
    registers_a_supported_version,
    registers_an_endpoint_in_the_directory,
    registers_an_extended_resource_name,
    answers_options,
    answers_notify_registration_status,
    registers_the_options_it_answers,
    lists_devices_in_time,
    lists_unique_ids,
    lists_short_ids,
    lists_known_health,
    lists_fit_into_a_message,
    allocates_each_device,
    allocates_all_devices,
    answers_once_per_container,
    answers_each_of_two_containers,
    survives_a_request_for_no_devices,
    refuses_an_unknown_device,
    gives_nodes_by_id,
    gives_each_device_its_own_nodes,
    allocates_again_in_the_same_way,
    mounts_the_same_again,
    answers_get_preferred_allocation,
    prefers_as_many_as_asked,
    prefers_only_what_is_available,
    prefers_what_it_must_include,
    answers_pre_start_container,
    reports_a_change_of_health,
    keeps_its_stream_open,
    returns_after_the_directory_is_emptied,
    returns_after_kubelet_sock_is_recreated,
    returns_after_its_stream_is_cut,
    returns_to_a_kubelet_that_was_away,
    is_quiet_while_the_kubelet_is_away,
    is_patient_with_a_kubelet_that_refuses,
    starts_where_it_was_killed,
    stays_up,
    ends_on_sigterm,
    removes_its_socket,
)
"""All of them. Later ones change more: those of a kubelet's life end streams, the last ones the plugin."""


# --- what several of them need ----------------------------------------------------------------------------------------


def _ask_for_preferred(plugin: Subject, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
    if not plugin.connected().options.get_preferred_allocation_available:
        why = "the plugin does not offer it"
        raise Skip(why)
    container = deviceplugin.ContainerPreferredAllocationRequest(
        available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
    )
    request = deviceplugin.PreferredAllocationRequest(container_requests=[container])
    try:
        answer = plugin.call(rpc.GET_PREFERRED_ALLOCATION, request)
    except CallFailedError as error:
        raise Failure(str(error)) from None
    require(len(answer.container_responses) == 1, f"{len(answer.container_responses)} answers for 1 container")
    return list(answer.container_responses[0].deviceIDs)


def _preferred(plugin: Subject, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
    """Ask where it is another check's business whether that works at all."""
    try:
        return _ask_for_preferred(plugin, available, must, size)
    except Failure as failure:
        raise Skip(str(failure)) from None


def _nodes_of_each(plugin: Subject) -> dict[str, frozenset[str]]:
    """The device nodes that come with each healthy device alone."""
    plugin.two_devices()
    nodes = {device: _nodes(plugin.alone(device)) for device in plugin.healthy}
    if not any(nodes.values()):
        why = "the plugin gives no device nodes"
        raise Skip(why)
    return nodes


def _require_same(
    device: str,
    before: deviceplugin.ContainerAllocateResponse,
    again: deviceplugin.ContainerAllocateResponse,
    *fields: str,
) -> None:
    """See that two answers for a device say the same in these fields."""
    for what in fields:
        came = (
            f"the {what} of {device} were {_listed(before, what)} at first, and {_listed(again, what)} the second time"
        )
        require(_listed(before, what) == _listed(again, what), came)


def _allocate_or_skip(plugin: Subject, devices: Sequence[str]) -> list[deviceplugin.ContainerAllocateResponse]:
    """Allocate where it is another check's business whether that works at all."""
    try:
        return plugin.allocate(devices)
    except CallFailedError as error:
        raise Skip(str(error)) from None


def _nodes(answer: deviceplugin.ContainerAllocateResponse) -> frozenset[str]:
    return frozenset(node.host_path for node in answer.devices)


def _listed(answer: deviceplugin.ContainerAllocateResponse, what: str) -> list[str]:
    return sorted(str(each).replace("\n", " ").strip() for each in getattr(answer, what))


def _given(answer: deviceplugin.ContainerAllocateResponse) -> str:
    envs = [f"{name}={value}" for name, value in sorted(answer.envs.items())]
    return some([*envs, *sorted(_nodes(answer)), *(device.name for device in answer.cdi_devices)]) or "an empty answer"


def _options(options: deviceplugin.DevicePluginOptions) -> str:
    return (
        f"pre-start {'yes' if options.pre_start_required else 'no'}, "
        f"preferred allocation {'yes' if options.get_preferred_allocation_available else 'no'}"
    )
