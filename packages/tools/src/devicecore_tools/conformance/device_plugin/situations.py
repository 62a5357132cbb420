"""Situations for device plugins: events that happen to a plugin, and what is observed after each of them.

Law: each check is a cell in a table of events by observations. All cells of an event share one occurrence of the event.
For every other cell, `OTHER_CELLS` or `WHY_NOT` contains the check that covers it, or the reason why the cell is empty.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from attrs import define, field, frozen

from devicecore.adapters.grpc_unix import rpc
from devicecore.domain.text import counted
from devicecore.wire import deviceplugin
from devicecore_tools.conformance.connection import CallFailedError
from devicecore_tools.conformance.device_plugin.checks.allocate import strange
from devicecore_tools.conformance.device_plugin.checks.common import (
    ALLOCATE,
    MUST,
    PREFERENCE,
    all_hardware,
    allocate_or_skip,
    ask_for_preferred,
    owners_of,
)
from devicecore_tools.conformance.device_plugin.checks.restarts import RESTARTS, calls_in_progress, others_left_alone
from devicecore_tools.conformance.device_plugin.plugin import PluginUnderTest
from devicecore_tools.conformance.model import (
    Check,
    DoesNotApply,
    Failure,
    Skip,
    TookTooLong,
    does_not_apply_if,
    in_context,
    require,
    skip_if,
    some,
)
from devicecore_tools.testing.process import StillRunningError

Answer = deviceplugin.ContainerAllocateResponse

_EACH = 8  # devices that are allocated one by one
_TERM = 3.0  # seconds to exit after SIGTERM; another check allows more


@frozen
class Event:
    """An event that happens to a plugin.

    Attributes:
        name: what happens, in a few words.
        ending: how the names of the event's checks end.
        happens: triggers the event, and returns a sentence when the plugin is registered again. Raises Failure or Skip
            if the plugin is not registered again.
    """

    name: str
    ending: str
    happens: Callable[[PluginUnderTest], str]


@define(eq=False)
class Situation:
    """What was observed before and after an event.

    Attributes:
        calls: for each form of call before the event, the ids and the responses to two calls.
    """

    calls: dict[str, tuple[Sequence[str], tuple[Answer, Answer]]] = field(factory=dict)
    problem: Skip | None = None
    unable: Skip | None = None  # why the calls before the event could not be made
    actual: str = ""  # how the plugin came back
    failure: Failure | None = None  # why it did not
    stayed_away: Failure | None = None  # set only if the same process had already come back once before
    silence: Failure | None = None  # set if a process that has registered several times no longer answers
    deleted: list[str] | None = None  # files of others, or None if these were not created
    not_started: set[str] = field(factory=set)  # PreStartContainer failed, which a different check covers
    prefers: bool = False

    def begin(self, plugin: PluginUnderTest, event: Event) -> None:
        """Make the calls before the event, then trigger the event."""
        in_this_life = [one for one in plugin.kubelet.registrations if one.at >= plugin.process.started_at]
        if len(in_this_life) > 1 and plugin.lists.was_allocated:
            self.silence = _silence(plugin, len(in_this_life))
        plugin.registration.connected()
        plugin.lists.wait_for_devices()
        try:
            self._call(plugin, plugin.lists.healthy)
        except Skip as skip:  # the event happens all the same
            self.unable = skip
        with others_left_alone(plugin) as noted:
            try:
                self.actual = event.happens(plugin)
            except Failure as failure:
                self.failure, self.problem = failure, Skip(f"the plugin did not come back: {failure}")
                self.stayed_away = failure if len(in_this_life) > 1 else None
            self.deleted = noted()

    def _call(self, plugin: PluginUnderTest, ids: Sequence[str]) -> None:
        """Make the calls before the event. Raises Skip if a call that other checks cover fails."""
        wanted = {f"{device} alone": [device] for device in ids[:_EACH]}
        if len(ids) > 1:  # as when an app container reuses an init container's device and gets more devices
            wanted["two devices, one of them as before"] = [ids[-1], ids[0]]
        forms = [*wanted.items()][::-1] if plugin.lists.starts_slowly else wanted.items()
        for form, devices in forms:
            if self.calls and plugin.lists.starts_slowly:
                break
            try:
                answers = [allocate_or_skip(plugin, devices)[0] for _ in range(2)]
            except DoesNotApply:
                continue
            self.calls[form] = devices, (answers[0], answers[1])
            request = deviceplugin.PreStartContainerRequest(devices_ids=devices)
            if not _answers(_pre_start, plugin, devices) and not plugin.lists.has_answered(
                rpc.PRE_START_CONTAINER, request
            ):
                self.not_started.add(form)
        self.prefers = _answers(_prefer, plugin, ids)


def _silence(plugin: PluginUnderTest, number: int) -> Failure | None:
    """Return a failure if the plugin, which has answered before, does not answer in time, otherwise None."""
    connection = plugin.registration.streaming()
    try:
        connection.call(rpc.GET_DEVICE_PLUGIN_OPTIONS, deviceplugin.Empty(), plugin.settings.timeout)
    except CallFailedError as error:
        if error.is_late:
            return TookTooLong(f"after {counted(number, 'registration')} of one process, {error}")
    return None


def _restart_kubelet(plugin: PluginUnderTest) -> str:
    actual = plugin.registration.see_it_return(plugin.registration.restart_kubelet(wipe=True))
    plugin.seen.returned = plugin.kubelet.connection
    return actual


def _kill(plugin: PluginUnderTest) -> str:
    number = len(plugin.kubelet.registrations)
    with calls_in_progress(plugin):
        plugin.process.kill_and_start()
    return plugin.registration.see_it_return(number)


def _terminate(plugin: PluginUnderTest) -> str:
    process, number = plugin.process.require_process(), len(plugin.kubelet.registrations)
    process.terminate()
    with suppress(StillRunningError):
        process.wait(_TERM)
    plugin.process.kill_and_start()
    return plugin.registration.see_it_return(number)


KUBELET_RESTART = Event("the kubelet restarts and deletes all sockets", "after-a-kubelet-restart", _restart_kubelet)
KILL = Event("the plugin is killed during calls and started again", "after-a-kill", _kill)
TERM = Event("the plugin is stopped with SIGTERM and started again", "after-sigterm", _terminate)


@frozen
class Observation:
    """An observation after an event. An observation has the attributes of a check, with `{}` for the event."""

    name: str
    done: str
    expected: str
    clause: str
    look: Callable[[PluginUnderTest, Situation], str]


def _pre_start(plugin: PluginUnderTest, devices: Sequence[str]) -> None:
    if plugin.registration.connected().options.pre_start_required:
        plugin.lists.pre_start(devices)


def _prefer(plugin: PluginUnderTest, ids: Sequence[str]) -> None:
    if plugin.registration.connected().options.get_preferred_allocation_available:
        for must in ([], ids[-1:]):
            ask_for_preferred(plugin, ids, must, 1)


def _answers(
    call: Callable[[PluginUnderTest, Sequence[str]], None], plugin: PluginUnderTest, devices: Sequence[str]
) -> bool:
    """Return whether a call succeeds."""
    try:
        call(plugin, devices)
    except Failure:
        return False
    return True


def _pre_starts(plugin: PluginUnderTest, before: Situation) -> str:
    plugin.registration.require_pre_start()
    calls = {form: devices for form, (devices, _) in before.calls.items() if form not in before.not_started}
    skip_if(not calls, "PreStartContainer failed before, too")
    for form, devices in calls.items():
        with in_context(f"for {form}"):
            _pre_start(plugin, devices)
    return f"the plugin answers {counted(len(calls), 'call')}"


def _allocates(plugin: PluginUnderTest, before: Situation) -> str:
    skip_if(not before.calls, "no call was answered before")
    owner = owners_of({devices[0]: answers[0] for devices, answers in before.calls.values() if len(devices) == 1})
    for form, (devices, answers) in reversed(before.calls.items()):  # a new process may repeat its first answer
        with in_context(f"for {form}"):
            again = plugin.lists.allocate(devices)
            require(again, "the answer has no container response")
            given = sorted(all_hardware(again[0]))
            moved = [
                f"{one}, which belonged to {owner[one]}" for one in given if owner.get(one, devices[0]) not in devices
            ]
            require(not moved, f"the answer contains {some(moved)}")
            others = [others[0] for ids, others in before.calls.values() if not set(ids) & set(devices)]
            more = strange(again[0], own=answers[0], others=others)
            require(not more, f"the answer contains {some(more)}")
            missing = sorted((_names(answers[0]) & _names(answers[1])) - _names(again[0]))
            require(not missing, f"the answer lacks {some(missing)}")
            left = len(again[0].cdi_devices) - min(len(one.cdi_devices) for one in answers)
            require(left >= 0, f"the answer has {len(again[0].cdi_devices)} CDI devices, {-left} fewer than before")
    return f"{counted(len(before.calls), 'call')} answered as before"


def _names(answer: Answer) -> frozenset[str]:
    """Return the parts of an answer that have stable names."""
    found = [f"device node {one.host_path}" for one in answer.devices]
    found += [f"container path {one.container_path}" for one in answer.devices]
    found += [f"mount {one.container_path}" for one in answer.mounts]
    return frozenset([*found, *(f"variable {one}" for one in answer.envs)])


def _prefers(plugin: PluginUnderTest, before: Situation) -> str:
    plugin.registration.require_preferences()
    # The call may have been failing since an earlier event in the run, but that is no excuse.
    answered = any(path == rpc.GET_PREFERRED_ALLOCATION.path for path, _ in plugin.lists.answered)
    skip_if(not before.prefers and not answered, "GetPreferredAllocation failed before, too")
    _prefer(plugin, plugin.lists.healthy)
    return "the plugin answers"


def _returns(plugin: PluginUnderTest, seen: Situation) -> str:
    if seen.failure is not None:
        raise seen.failure
    if seen.problem is not None:
        plugin.registration.require_return()
    if seen.problem is not None:
        raise seen.problem
    return seen.actual


def _returns_again(_: PluginUnderTest, seen: Situation) -> str:
    if seen.silence is not None:
        raise seen.silence
    if seen.stayed_away is not None:
        raise seen.stayed_away
    if seen.problem is not None:
        raise seen.problem
    return "the plugin is back"


def _leaves_others(_: PluginUnderTest, seen: Situation) -> str:
    skip_if(seen.deleted is None, "another plugin's socket could not be created in the directory")
    require(not seen.deleted, f"the plugin has deleted {some(seen.deleted or [])}")
    return "the sockets and the checkpoint are still there"


RETURNS = Observation(
    "returns-{}",
    "{}.",
    "the plugin registers again, can be reached, and lists its devices",
    f"{RESTARTS} A new kubelet instance deletes all the existing Unix sockets under "
    "/var/lib/kubelet/device-plugins when it starts. A killed plugin leaves its socket behind, and bind(2) fails if "
    "the file exists.",
    _returns,
)
RETURNS_AGAIN = Observation(
    "returns-again-{}",
    "{} again, after the plugin's process had already come back once.",
    "the plugin registers again, can be reached, lists its devices, and still answers calls",
    f"{RESTARTS} A plugin has to survive more than one restart, even if a stream that has ended still occupies a "
    "thread.",
    _returns_again,
)
PRE_STARTS = Observation(
    "pre-starts-{}",
    "Allocate is called, {}, and PreStartContainer, if announced, is called for these devices.",
    "an answer",
    "PreStartContainer is called before each container start (api.proto), and therefore also when a running pod's "
    "container is restarted. Allocate, which is called once for the container, is not called again. (kubelet)",
    _pre_starts,
)
ALLOCATES = Observation(
    "allocates-{}",
    "Allocate is called, {}, and Allocate is called again for the same devices.",
    "answers with the same device nodes and everything else that was given before",
    f"{RESTARTS} Containers start as before, and the kubelet remembers which ids they have. {ALLOCATE}",
    _allocates,
)
PREFERS = Observation(
    "prefers-{}",
    "{}, and then GetPreferredAllocation, if announced, is called.",
    "an answer",
    f"{PREFERENCE} If the plugin answers with an error, the kubelet refuses the pod.",
    _prefers,
)
LEAVES = Observation(
    "leaves-sockets-of-others-alone-{}",
    "Another plugin's socket and a kubelet checkpoint are put into the directory, and {}.",
    "the socket, the checkpoint and the kubelet's own socket are still there",
    "The directory belongs to the kubelet and to all plugins on the node. A kubelet connects to the socket of each "
    "plugin, and records in the directory which container has which device. (kubernetes.io, Device Plugins)",
    _leaves_others,
)

CELLS: Mapping[Event, Sequence[Observation]] = {
    KUBELET_RESTART: (RETURNS, RETURNS_AGAIN, PRE_STARTS, ALLOCATES, PREFERS),
    KILL: (RETURNS, PRE_STARTS, ALLOCATES, PREFERS, LEAVES),
    TERM: (PRE_STARTS, ALLOCATES, LEAVES),
}
"""The observations after each event.

PreStartContainer comes before Allocate, because calls to Allocate could hide its failure.
"""

KEPT_NAMES: Mapping[str, str] = {
    "returns-after-a-kubelet-restart": "returns-after-the-directory-is-emptied",
    "returns-after-a-kill": "starts-where-it-was-killed",
    "allocates-after-a-kill": "gives-the-same-nodes-after-a-restart",
    "leaves-sockets-of-others-alone-after-a-kill": "leaves-sockets-of-others-alone",
}
"""The names of cells whose checks are older than the table."""

SICK, AWAY, LATE = "a device is unhealthy", "the kubelet is down", "the kubelet starts after the plugin"
AT_ONCE, MANY = "concurrent calls are made", "two hundred calls are made"
TWICE, LOST = "the kubelet restarts twice within a second", "the plugin's state is lost"
OTHER_CELLS: Mapping[str, tuple[str, str, str, str, str, str]] = {
    SICK: (
        "`starts-while-a-device-is-sick`",
        "nothing happens to the plugin",
        "`pre-starts-while-a-device-is-sick`",
        "`allocates-while-a-device-is-sick`, `allocates-a-device-that-has-recovered`",
        "`prefers-while-a-device-is-sick`",
        "nothing happens to the plugin",
    ),
    AWAY: (
        "`returns-to-a-kubelet-that-was-away`",
        "as after a kubelet restart",
        "no kubelet makes calls then",
        "`reports-a-change-while-the-kubelet-was-away`",
        "no kubelet makes calls then",
        "nothing happens to the plugin",
    ),
    LATE: ("`waits-for-a-late-kubelet`", *("as after a kill",) * 5),
    TWICE: ("`returns-after-two-restarts`", *("the same as after one restart",) * 5),
    AT_ONCE: (
        "nothing happens to the plugin",
        "nothing happens to the plugin",
        "`starts-containers-at-the-same-time`",
        "`answers-calls-at-once`",
        "the preference is only advice",
        "nothing happens to the plugin",
    ),
    MANY: (
        *("nothing happens to the plugin",) * 2,
        *("`answers-many-calls`, `grows-with-no-call`",) * 3,
        "as after one call",
    ),
    LOST: (*("neither the kubelet nor Kubernetes knows where a plugin keeps its own state",) * 6,),
}
"""For other events: the check for each of `COLUMNS`, or why there is none."""

COLUMNS: Sequence[Observation] = (RETURNS, RETURNS_AGAIN, PRE_STARTS, ALLOCATES, PREFERS, LEAVES)

WHY_NOT: Mapping[tuple[Event, Observation], str] = {
    (KUBELET_RESTART, LEAVES): "the kubelet itself deletes all sockets then",
    (KILL, RETURNS_AGAIN): "no process comes back twice",
    (TERM, RETURNS): "`starts-where-it-was-killed`: a killed process cleans up less",
    (TERM, RETURNS_AGAIN): "no process comes back twice",
    (TERM, PREFERS): "`prefers-after-a-kill`: a killed process saves less",
}
"""Why a cell is empty, or the check that covers it."""


def _cell(event: Event, seen: Observation) -> Check[PluginUnderTest]:
    def look(plugin: PluginUnderTest) -> str:
        if event is not KUBELET_RESTART:
            plugin.process.require_process()
        situations = plugin.seen.situations
        situation = situations.get(event.name)
        if situation is None:
            situation = situations[event.name] = Situation()
            try:
                situation.begin(plugin, event)
            except Skip as skip:
                situation.problem = skip
        # A plugin that has deleted the kubelet's socket cannot come back.
        if (
            situation.problem is not None
            and seen not in {RETURNS, RETURNS_AGAIN}
            and not (seen is LEAVES and situation.deleted)
        ):
            raise situation.problem
        if situation.unable is not None and seen in {PRE_STARTS, ALLOCATES, PREFERS}:
            raise situation.unable
        if seen is LEAVES:
            does_not_apply_if(plugin.kubelet.is_watcher, "a kubelet would mistake the socket for a plugin (--registry)")
        return seen.look(plugin, situation)

    name = seen.name.format(event.ending)
    done = seen.done.format(event.name)
    done = done[0].upper() + done[1:]
    return Check(KEPT_NAMES.get(name, name), MUST, done, seen.expected, seen.clause, look)


CHECKS: Mapping[Event, tuple[Check[PluginUnderTest], ...]] = {
    event: tuple(_cell(event, seen) for seen in observations) for event, observations in CELLS.items()
}
"""The checks in the cells of each event."""
