"""The checks with restarts of the kubelet and of the plugin.

Law: a plugin has as much time to return from a restart as its user allows (--returning).
"""

import posixpath
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from devicecore.adapters.grpc_unix import rpc
from devicecore.domain.text import counted, foreign_text
from devicecore_tools.conformance.connection import CallFailedError
from devicecore_tools.conformance.device_plugin.checks.common import (
    CHANGES,
    ENDS,
    IDLE,
    INFO,
    MAX_PRINTED_IDLE,
    MUST,
    SHORT_PAUSE,
    SHOULD,
    WAITING,
    quiet_during,
    require_quiet,
)
from devicecore_tools.conformance.device_plugin.devices import allocate_request
from devicecore_tools.conformance.device_plugin.kubelet import PluginConnection
from devicecore_tools.conformance.device_plugin.plugin import Absence, PluginUnderTest
from devicecore_tools.conformance.model import (
    Failure,
    NotYet,
    Skip,
    check,
    does_not_apply_if,
    in_context,
    require,
    skip_if,
    some,
)
from devicecore_tools.conformance.processes import MAX_CPU

_AFTER_REFUSAL = 40.0  # seconds; some plugins try again after half a minute
MAX_RATE = 10.0  # registrations per second, after the first `MAX_BURST`
MAX_BURST = 10  # registrations at once
MAX_LISTS = 10.0  # lists per second
MAX_REPEATS = 0.4  # lists per second without a change; some plugins send one every few seconds
SOON = 3.0  # seconds for the first list of a stream
TWICE = 0.5  # seconds within which some plugins register twice
_ALONE_AGAIN = 3.0  # seconds; a plugin that keeps registering does so several times in this time
_LATE_KUBELET = 1.5  # seconds; `Settings.away` may be shorter
_OTHER_SOCKET, _CHECKPOINT = "conformance-other.sock", "kubelet_internal_checkpoint"
_FIRST_WORD = re.compile(r"[A-Za-z0-9]+")
_WITH_SOCKET = 0.75  # of the kubelet's absence; a plugin may try to register only while there is a socket
_AT_LEAST, _RESTARTS, _RESTARTING, _BRIEF = 3, 12, 1.5, 0.1  # restarts, seconds for all of them and for one
_KILLED_DURING, _UNDER_LOAD = 4, 0.2  # concurrent calls, and for how many seconds


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
    if left < IDLE:
        plugin.registration.wait_for_stream(connection)
        return
    quiet = quiet_during(plugin, partial(plugin.registration.wait_for_stream, connection))
    if quiet is not None and quiet.seconds >= IDLE:
        plugin.seen.idle = quiet


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
        plugin.seen.idle = quiet_during(plugin, partial(plugin.process.pause, IDLE))
    return require_quiet(plugin.seen.idle)


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

        quiet = quiet_during(plugin, wait)
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
    return require_quiet(_absence(plugin).quiet)


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

    The name of one socket begins with the first word in the name of the plugin's own socket. Yield a function that
    returns which of these files and the kubelet's own socket are gone, or None if the sockets could not be created.
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
        plugin.process.pause(WAITING)
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
        plugin.process.pause(SHORT_PAUSE)
        plugin.kubelet.serve()
        first, number = number, len(plugin.kubelet.registrations)
        plugin.process.pause(SHORT_PAUSE)
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
