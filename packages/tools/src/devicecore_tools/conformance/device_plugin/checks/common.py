"""What the checks of several modules share.

Law: nothing here is a check.
"""

import stat
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from devicecore.adapters.grpc_unix import rpc
from devicecore.domain.text import counted
from devicecore.wire import deviceplugin
from devicecore_tools.conformance.connection import CallFailedError
from devicecore_tools.conformance.device_plugin.devices import PATIENCE
from devicecore_tools.conformance.device_plugin.plugin import PluginUnderTest, Quiet
from devicecore_tools.conformance.model import (
    DoesNotApply,
    Failure,
    Severity,
    Skip,
    require,
    skip_if,
    skipping,
    some,
)
from devicecore_tools.conformance.processes import ProcessorUse
from devicecore_tools.testing.process import PluginProcess

IDLE = 1.5  # seconds
MAX_PRINTED_IDLE = 2000  # bytes per second; a plugin may print that it tries to register again
ONE_BY_ONE = 8  # the maximum number of devices that some checks allocate one by one
SHORT_PAUSE = 0.3  # seconds
WAITING = 1.0  # seconds for a started plugin to look for the kubelet
HEALTHS = ("Healthy", "Unhealthy")
MUST, SHOULD, INFO = Severity.MUST, Severity.SHOULD, Severity.INFO
ALLOCATE = (
    "Allocate is called during container creation so that the Device Plugin can run device specific operations and "
    "instruct Kubelet of the steps to make the Device available in the container. (api.proto)"
)
PREFERENCE = (
    "GetPreferredAllocation returns a preferred set of devices to allocate from a list of available ones. (api.proto)"
)
ADVICE = f"{PREFERENCE} The answer is advice: a kubelet uses the part that fits."
CHANGES = "Whenever a Device state change or a Device disappears, ListAndWatch returns the new list. (api.proto)"
ENDS = (
    "Kubernetes ends a pod with SIGTERM, and with SIGKILL when its grace period is over. (kubernetes.io, Pod Lifecycle)"
)


def problem_of_node(path: str) -> str:
    """Return why a container runtime cannot take a device from this path, or an empty string."""
    try:
        mode = Path(path).stat().st_mode
    except OSError as error:
        return f"{path}: {error.strerror}"
    is_one = stat.S_ISCHR(mode) or stat.S_ISBLK(mode) or stat.S_ISDIR(mode)
    return "" if is_one else f"{path} is not a device node"


def succeeds(call: Callable[[], object]) -> bool:
    """Make a call, and return whether it succeeded."""
    try:
        call()
    except Failure:  # another check reports this
        return False
    return True


def quiet_during(plugin: PluginUnderTest, wait: Callable[[], object]) -> Quiet | None:
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


def require_quiet(quiet: Quiet | None) -> str:
    """Return what the plugin has used and printed.

    Raises Failure if that is too much for a plugin that has nothing to do, and Skip if it is unknown.
    """
    if quiet is None:
        raise Skip("the plugin's process exited in the meantime")
    share = quiet.before.require_little_until(quiet.after, "plugin")
    rate = quiet.printed / quiet.seconds
    require(rate <= MAX_PRINTED_IDLE, f"the plugin printed {rate:.0f} bytes per second")
    return f"the plugin used {share:.1%} of one processor, and printed {rate:.0f} bytes per second"


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


def request_sizes(ids: Sequence[str]) -> list[int]:
    """Return the request sizes to try: one, two, half, and all of these devices."""
    return sorted({1, min(2, len(ids)), -(-len(ids) // 2), len(ids)})


def preference_calls(ids: Sequence[str]) -> list[tuple[int, Sequence[str]]]:
    """Return, for each request, the size and the devices that must be included."""
    calls: list[tuple[int, Sequence[str]]] = [(size, []) for size in request_sizes(ids)]
    return [*calls, *((size, ids[-number:]) for size in request_sizes(ids) for number in sorted({1, size}))]


def preferred_or_skip(plugin: PluginUnderTest, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
    """Call GetPreferredAllocation. Raises Skip if the call fails; another check reports that."""
    with skipping(Failure):
        return ask_for_preferred(plugin, available, must, size)


def owners_of(answers: Mapping[str, deviceplugin.ContainerAllocateResponse]) -> Mapping[str, str]:
    """Return the owner of each device node and CDI device that only one of these devices has."""
    owners = Counter(one for answer in answers.values() for one in all_hardware(answer))
    return {one: device for device, answer in answers.items() for one in all_hardware(answer) if owners[one] == 1}


def allocate_or_skip(plugin: PluginUnderTest, devices: Sequence[str]) -> list[deviceplugin.ContainerAllocateResponse]:
    """Call Allocate. Raises Skip if the call fails or the response is empty; another check reports that."""
    return allocated_to(plugin, devices, plugin.lists.allocate)


def allocated_to(
    plugin: PluginUnderTest,
    devices: Sequence[str],
    allocate: Callable[[Sequence[str]], list[deviceplugin.ContainerAllocateResponse]],
) -> list[deviceplugin.ContainerAllocateResponse]:
    """Call `allocate`. Raises Skip if the call fails or the response is empty; another check reports that."""
    try:
        answers = allocate(devices)
    except CallFailedError as error:
        is_refused = len(devices) > 1 and is_refusal(plugin, error)
        raise (DoesNotApply if is_refused else Skip)(f"{some(devices)} together: {error}") from None
    skip_if(not answers, f"the answer to Allocate for {some(devices)} has no container response")
    return answers


def is_refusal(plugin: PluginUnderTest, error: CallFailedError) -> bool:
    """Return whether an error is the plugin's answer, and not the result of a lost connection or of a lack of time.

    A plugin may itself answer with UNAVAILABLE, and then it answers the next call, too.
    """
    if error.is_late or error.code != "UNAVAILABLE":
        return not error.is_late
    process, connection = plugin.process.running, plugin.registration.connected()
    is_up = succeeds(lambda: connection.call(rpc.GET_DEVICE_PLUGIN_OPTIONS, deviceplugin.Empty(), PATIENCE))
    return is_up and process is plugin.process.running and (process is None or process.status is None)


def nodes_in(answer: deviceplugin.ContainerAllocateResponse) -> frozenset[str]:
    """Return the paths of the device nodes on the host."""
    return frozenset(node.host_path for node in answer.devices)


def paths_in(answer: deviceplugin.ContainerAllocateResponse) -> frozenset[str]:
    """Return the paths of the device nodes on the host and in the container."""
    return frozenset(path for node in answer.devices for path in (node.host_path, node.container_path))


def hardware(answer: deviceplugin.ContainerAllocateResponse) -> tuple[frozenset[str], frozenset[str]]:
    """Return the device nodes and the CDI devices in an answer."""
    return nodes_in(answer), frozenset(one.name for one in answer.cdi_devices)


def all_hardware(answer: deviceplugin.ContainerAllocateResponse) -> frozenset[str]:
    """Return a set of all device nodes and CDI devices in an answer."""
    return frozenset().union(*hardware(answer))
