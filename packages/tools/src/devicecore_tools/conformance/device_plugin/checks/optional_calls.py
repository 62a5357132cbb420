"""The checks of GetPreferredAllocation and PreStartContainer.

Law: if the plugin does not announce a call, the checks of that call do not apply.
"""

import time
from concurrent.futures import ThreadPoolExecutor

from devicecore.adapters.grpc_unix import rpc
from devicecore.domain.text import counted
from devicecore.wire import deviceplugin
from devicecore_tools.conformance.device_plugin.checks.common import (
    ADVICE,
    MUST,
    PREFERENCE,
    SHOULD,
    allocate_or_skip,
    ask_for_preferred,
    preference_calls,
    preferred_or_skip,
    request_sizes,
)
from devicecore_tools.conformance.device_plugin.plugin import PluginUnderTest
from devicecore_tools.conformance.model import (
    Failure,
    Skip,
    check,
    does_not_apply_if,
    in_context,
    require,
    skipping,
    some,
)

_NOTICEABLE = 0.5  # seconds; calls that take less time may well wait for each other
_ALMOST_TWICE = 1.6  # times the usual time


# --- preferences ------------------------------------------------------------------------------------------------------


@check(
    MUST,
    expected="an answer with one set of ids, because the plugin has announced the method",
    clause=f"{PREFERENCE} If the plugin answers with an error, the kubelet refuses the pod.",
)
def answers_get_preferred_allocation(plugin: PluginUnderTest) -> str:
    """GetPreferredAllocation, if announced, is called for various sizes, required devices and available devices."""
    ids = plugin.lists.healthy
    calls = [(ids, must, size) for size, must in preference_calls(ids)]
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
    for size, must in preference_calls(ids):
        preferred = preferred_or_skip(plugin, ids, must, size)
        required = f" with {some(must)}" if must else ""
        require(
            len(preferred) == len(set(preferred)) == size,
            f"{size} of {counted(len(ids), 'device')} requested{required}, but the preferred devices are "
            f"{some(preferred) or 'none'}",
        )
    return f"{', '.join(map(str, request_sizes(ids)))} of {counted(len(ids), 'device')}, as requested"


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
    unavailable = sorted(set(preferred_or_skip(plugin, available, [], len(available))) - set(available))
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
    calls = [*((min(2, len(ids)), [must]) for must in ids[-5:]), *preference_calls(ids)]
    for size, must in calls:
        preferred = preferred_or_skip(plugin, ids, must, size)
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
