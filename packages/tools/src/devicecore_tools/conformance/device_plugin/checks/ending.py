"""The checks that review the whole run, and those that stop the plugin.

Law: the checks of the whole run compare what all earlier checks have seen, and make no calls of their own.
"""

import signal

from devicecore.domain.text import counted
from devicecore_tools.conformance.device_plugin.checks.common import (
    ADVICE,
    ALLOCATE,
    CHANGES,
    ENDS,
    HEALTHS,
    MUST,
    SHOULD,
)
from devicecore_tools.conformance.device_plugin.devices import REFUSAL
from devicecore_tools.conformance.device_plugin.plugin import PluginUnderTest
from devicecore_tools.conformance.model import (
    Skip,
    check,
    does_not_apply_if,
    require,
    skip_if,
    some,
)
from devicecore_tools.conformance.processes import has_panicked

LATER = 2.0  # seconds by which a child process may outlive the plugin
_STOPPED = (0, -signal.SIGTERM, 128 + signal.SIGTERM)  # a shell adds 128


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
