"""The checks of the health of devices.

Law: without a command that changes the health of a device, a check fails only for what the plugin does by itself.
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from devicecore.domain.text import counted
from devicecore.wire import deviceplugin
from devicecore_tools.conformance.connection import CallFailedError
from devicecore_tools.conformance.device_plugin.checks.common import (
    ALLOCATE,
    CHANGES,
    HEALTHS,
    IDLE,
    INFO,
    MAX_PRINTED_IDLE,
    MUST,
    ONE_BY_ONE,
    PREFERENCE,
    SHOULD,
    WAITING,
    all_hardware,
    allocate_or_skip,
    ask_for_preferred,
    hardware,
    nodes_in,
    owners_of,
    paths_in,
    preference_calls,
    problem_of_node,
    quiet_during,
    require_quiet,
)
from devicecore_tools.conformance.device_plugin.checks.restarts import calls_in_progress
from devicecore_tools.conformance.device_plugin.devices import (
    PATIENCE,
    health_changes,
    health_of,
)
from devicecore_tools.conformance.device_plugin.kubelet import ENDED_BY_PLUGIN, PluginConnection
from devicecore_tools.conformance.device_plugin.plugin import PluginUnderTest, SickStart
from devicecore_tools.conformance.model import (
    DoesNotApply,
    Failure,
    NotYet,
    Skip,
    TookTooLong,
    check,
    does_not_apply_if,
    in_context,
    require,
    reworded,
    skip_if,
    some,
)
from devicecore_tools.conformance.processes import (
    MAX_CPU,
    problem_of_command,
)

_MAX_SICK_REPEATS = 2  # lists
_REFILLING = 3.0  # seconds for a list with devices to follow an empty one
_NO_CHANGE = "no change of health was listed as it should be (reports-a-change-of-health)"


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
        for device in plugin.lists.healthy[:ONE_BY_ONE]:
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
        plugin.seen.sick = quiet_during(plugin, partial(plugin.process.pause, IDLE))
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
    calls = preference_calls(ids)
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
    # While a kubelet waits, it admits no other pod, so a plugin that answers quickly must keep doing so.
    patience, slowest = plugin.settings.timeout if plugin.lists.is_quick else PATIENCE, plugin.lists.slowest
    for device in left:
        with in_context(f"for {device}, which is healthy (no earlier call took more than {slowest:.1f} seconds)"):
            answers = plugin.lists.allocate([device], patience=patience)
            require(answers, "the answer has no container response")
            others = [f"{one}, which belongs to {owner[one]}" for one in all_hardware(answers[0]) if one in owner]
            wrong = [text for text in others if not text.endswith(f" {device}")]
            require(not wrong, f"the answer contains {some(wrong)}")
            lost = paths_in(former[device]) - paths_in(answers[0])
            require(not lost, f"the answer lacks {some(sorted(lost))}")
    return len(left)


def _still_healthy(plugin: PluginUnderTest, former: Mapping[str, deviceplugin.ContainerAllocateResponse]) -> list[str]:
    """Return up to eight of the devices in `former` that are healthy, or two if the plugin is slow."""
    ids = [device for device in plugin.lists.every_healthy if device in former]
    return ids[: 2 if plugin.lists.needs_few else ONE_BY_ONE]


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
    expected="the same device nodes as before, and an answer in time if earlier calls were quick",
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

    Raises NotYet otherwise: once the device has recovered, it is allocated, and its health is changed again.
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
    nodes = {id_: nodes_in(one) for id_, one in former.items()}
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

    plugin.process.wait(lambda: not left(), WAITING)
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
    text = require_quiet(plugin.seen.sick)
    lists = f"{counted(plugin.seen.repeats_while_sick, 'list')} in {IDLE:g} seconds said nothing new"
    require(plugin.seen.repeats_while_sick <= _MAX_SICK_REPEATS, lists)
    return f"{text}; {lists}"


def _exists(answer: deviceplugin.ContainerAllocateResponse) -> bool:
    """Return whether this machine has all device nodes in an answer, and there are some."""
    return bool(answer.devices) and not any(problem_of_node(path) for path in nodes_in(answer))


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
    former = {id_: plugin.lists.alone(id_) for id_ in plugin.lists.healthy[:ONE_BY_ONE] if id_ not in changed}
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
    ids = [device for device in plugin.seen.recovered if health.get(device) == HEALTHS[0]][:ONE_BY_ONE]
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


def _require_provocation(plugin: PluginUnderTest) -> None:
    does_not_apply_if(
        not plugin.settings.provoke_health, "there is no command to provoke a change of health (--provoke-health)"
    )
    skip_if(plugin.seen.provocation, f"--provoke-health: {plugin.seen.provocation}")


def _changed(changes: Mapping[str, str]) -> str:
    return some([f"{id_} is {health}" for id_, health in changes.items()])
