"""The contract of `PluginTransport`.

Law: a transport passes on requests, answers and events unchanged and in order, and never mixes up two plugin instances.
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol

from attrs import evolve

from devicecore.domain.container_options import ContainerAllocateResponse
from devicecore.domain.errors import (
    DeviceCoreError,
    EmptyAllocateResponseError,
    PluginCallError,
    PluginOptionsError,
    PluginStoppedError,
    SetUpError,
    UnreadableReceiptError,
)
from devicecore.domain.events import DevicesReported, Event, PluginLost, PluginRegistered, RegistrationRequested
from devicecore.domain.model import Device, DeviceId, PluginOptions, Receipt
from devicecore.runtime.in_time import in_time
from devicecore.testing.contracts.connected import (
    ANSWER,
    BOTH_OPTIONS,
    DEVICES,
    IDS,
    EventLog,
    MakeTransport,
    Probe,
    TransportHarness,
    calls_to,
    connected,
    started,
)
from devicecore.testing.contracts.expect import EVENT_TIMEOUT, GPU, RDMA, Suite, expect, expect_error, expect_in

PLUGIN_TRANSPORT: Suite[MakeTransport] = Suite()
"""The checks for every transport."""


@PLUGIN_TRANSPORT.check
def reports_every_registration_before_checking_it(make: MakeTransport) -> None:
    """`RegistrationRequested` comes first, even if the resource name is invalid and the plugin is not registered."""
    with started(make) as running:
        running.connect(Probe())
        expect("the first event", running.log.events[0], RegistrationRequested(GPU))
        expect_error(
            "a plugin with an invalid resource name", DeviceCoreError, lambda: running.harness.connect(Probe("no name"))
        )
        expect_in("events", running.log.events, RegistrationRequested("no name"))
        expect("registered resources", [plugin.resource for plugin in running.log.registered()], [GPU])


@PLUGIN_TRANSPORT.check
def reports_the_options_of_a_plugin(make: MakeTransport) -> None:
    """`PluginRegistered` names the resource and contains the plugin's options."""
    for options in (PluginOptions(), BOTH_OPTIONS, evolve(BOTH_OPTIONS, pre_start_required=False)):
        plugin = Probe()
        plugin.options = options
        with started(make) as running:
            id_, _ = running.connect(plugin)
            expect("the resource", id_.resource, GPU)
            expect("the first event of the plugin", running.log.of(id_)[0], PluginRegistered(id_, options))


@PLUGIN_TRANSPORT.check
def reports_the_complete_list_in_its_order(make: MakeTransport) -> None:
    """`DevicesReported` contains every device unchanged: health, NUMA nodes, and a missing or empty topology."""
    for listed in (DEVICES, tuple(reversed(DEVICES)), ()):
        with started(make) as running:
            id_, _ = running.connect(Probe(listed=listed))
            expect("the first list of the plugin", running.log.of(id_)[1], DevicesReported(id_, listed))


@PLUGIN_TRANSPORT.check
def reports_every_change_of_the_list(make: MakeTransport) -> None:
    """Every new list of the plugin is reported and replaces the previous list."""
    with connected(make) as (running, plugin, id_):
        for listed in (DEVICES[:1], (), DEVICES):
            plugin.list(listed)
            running.log.wait_for_last(DevicesReported(id_, listed))


@PLUGIN_TRANSPORT.check
def loses_a_plugin_whose_list_is_too_large(make: MakeTransport) -> None:
    """A list with a device id of more than 4,096 characters is not reported, and the plugin is lost."""
    with connected(make) as (running, plugin, id_):
        plugin.list((Device(DeviceId("d" * 4_096)),))
        running.log.wait_for_last(DevicesReported(id_, plugin.devices()))
        plugin.list((Device(DeviceId("d" * 4_097)),))
        running.log.wait("PluginLost", lambda: PluginLost(id_) in running.log.events)


@PLUGIN_TRANSPORT.check
def reports_a_loss_once_and_last(make: MakeTransport) -> None:
    """When a plugin disconnects, `PluginLost` is reported once, and is the last event of this instance."""
    with started(make) as running:
        id_, connection = running.connect(Probe())
        connection.disconnect()
        running.log.wait("PluginLost", lambda: PluginLost(id_) in running.log.events)
        running.wait_until_quiet()
        kinds = [type(event) for event in running.log.of(id_)]
        expect("the number of PluginLost events", kinds.count(PluginLost), 1)
        expect("the last event of a plugin that is lost", kinds[-1], PluginLost)


@PLUGIN_TRANSPORT.check
def gives_every_instance_an_identity_of_its_own(make: MakeTransport) -> None:
    """Each registration is a new instance with a larger generation, for the same resource and for a different one."""
    with started(make) as running:
        ids = []
        for resource in (GPU, GPU, RDMA):
            id_, connection = running.connect(Probe(resource))
            ids.append(id_)
            connection.disconnect()
        generations = [id_.generation for id_ in ids]
        if len(set(ids)) != len(ids) or generations != sorted(set(generations)):
            message = f"three instances in turn: expected three ids with growing generations, got {ids!r}"
            raise AssertionError(message)


@PLUGIN_TRANSPORT.check
def keeps_two_instances_of_one_resource_apart(make: MakeTransport) -> None:
    """One instance's events and calls never reach another instance of the same resource."""
    with started(make) as running:
        plugins = [Probe(), Probe(listed=DEVICES[:1])]
        (first, connection), (second, _) = (running.connect(plugin) for plugin in plugins)
        running.transport.allocate(first, IDS[:1])
        running.transport.allocate(second, IDS[1:2])
        calls = [plugin.calls for plugin in plugins]
        expect("the calls of each plugin", calls, [[("allocate", IDS[:1])], [("allocate", IDS[1:2])]])
        connection.disconnect()
        running.log.wait("PluginLost for the first plugin", lambda: PluginLost(first) in running.log.events)
        running.transport.allocate(second, IDS[2:3])
        expect("later calls of the second plugin", plugins[1].calls[1:], [("allocate", IDS[2:3])])
        expect("whether the second plugin is lost", PluginLost(second) in running.log.events, expected=False)


@PLUGIN_TRANSPORT.check
def refuses_a_plugin_with_the_listeners_reason(make: MakeTransport) -> None:
    """If the listener raises an error on `PluginRegistered`, the plugin gets the reason, and no more events follow."""
    refusal = PluginOptionsError(GPU, "not today")
    with started(make, {GPU: refusal}) as running:
        error = expect_error("a plugin that is refused", DeviceCoreError, lambda: running.harness.connect(Probe()))
        expect_in("the reason given to the refused plugin", str(error), str(refusal))
        running.wait_until_quiet()
        refused = [plugin for plugin in running.log.registered() if plugin.resource == GPU]
        later = [event for plugin in refused for event in running.log.of(plugin)[1:]]
        expect("events of a plugin that was refused", later, [])


@PLUGIN_TRANSPORT.check
def reports_one_event_of_an_instance_at_a_time(make: MakeTransport) -> None:
    """The listener is never called from two threads at once for one plugin instance."""
    plugin = Probe()
    busy = threading.Lock()
    overlapped = threading.Event()
    changes: list[threading.Thread] = []

    def listen(event: Event) -> None:
        if not isinstance(event, DevicesReported):
            return
        if not busy.acquire(blocking=False):
            overlapped.set()
            return
        try:
            if not changes:  # the plugin sends another list while the first is being handled
                changes.append(threading.Thread(target=plugin.list, args=(DEVICES[:1],)))
                changes[0].start()
                overlapped.wait(0.2)
        finally:
            busy.release()

    with make() as harness:
        harness.transport.start(listen)
        harness.connect(plugin)
        expect("whether the second list came while the first was being handled", overlapped.is_set(), expected=False)
        harness.transport.stop()
    for change in changes:
        change.join(EVENT_TIMEOUT)


@PLUGIN_TRANSPORT.check
def hands_devices_to_the_plugin_in_their_order(make: MakeTransport) -> None:
    """Allocate is called with exactly the requested devices, in order."""
    with connected(make) as (running, plugin, id_):
        for devices in (IDS, tuple(reversed(IDS)), IDS[:1]):
            running.transport.allocate(id_, devices)
            expect("the call that the plugin got", plugin.calls[-1], ("allocate", devices))


@PLUGIN_TRANSPORT.check
def reads_what_the_plugin_answered(make: MakeTransport) -> None:
    """A receipt contains the complete answer of the plugin, even an empty answer."""
    with connected(make) as (running, plugin, id_):
        for answer in (ANSWER, ContainerAllocateResponse()):
            plugin.answers = answer
            expect("the answer in the receipt", running.transport.read(running.transport.allocate(id_, IDS)), answer)


@PLUGIN_TRANSPORT.check
def reads_receipts_of_an_earlier_process(make: MakeTransport) -> None:
    """A new transport can read a receipt from an earlier transport, without the plugin."""
    with connected(make) as (running, _, id_):
        receipt = running.transport.allocate(id_, IDS)
    with make() as harness:
        expect("the receipt read by another transport", harness.transport.read(Receipt(bytes(receipt))), ANSWER)


@PLUGIN_TRANSPORT.check
def refuses_to_read_what_is_no_receipt(make: MakeTransport) -> None:
    """`read` raises `UnreadableReceiptError` for bytes that are not a plugin's answer."""
    with make() as harness:
        for junk in (b"\xff" * 20, b"\x0a\xff"):
            read = partial(harness.transport.read, Receipt(junk))
            expect_error(f"read({junk!r})", UnreadableReceiptError, read)


@PLUGIN_TRANSPORT.check
def passes_on_preferences_unchecked(make: MakeTransport) -> None:
    """Preferred devices are passed on in order, even if they are too few or too many, repeated or unavailable."""
    with connected(make) as (running, plugin, id_):
        for prefers in (IDS[1::-1], (), ("foreign",), (*IDS, *IDS)):
            plugin.prefers = prefers
            actual = running.transport.get_preferred_allocation(id_, IDS, IDS[:1], 2)
            expect("the preferred devices", actual, tuple(prefers))
            expect("the call that the plugin got", plugin.calls[-1], ("get_preferred_allocation", IDS, IDS[:1], 2))


@PLUGIN_TRANSPORT.check
def calls_pre_start_container(make: MakeTransport) -> None:
    """`pre_start_container` calls the plugin with the container's devices."""
    with connected(make) as (running, plugin, id_):
        running.transport.pre_start_container(id_, IDS)
        expect("the calls of the plugin", plugin.calls, [("pre_start_container", IDS)])


@PLUGIN_TRANSPORT.check
def sends_nothing_to_a_disconnected_plugin(make: MakeTransport) -> None:
    """A call to a disconnected instance raises `PluginStoppedError`, even if its resource has another instance."""
    with started(make) as running:
        gone, successor = Probe(), Probe()
        id_, connection = running.connect(gone)
        running.connect(successor)
        connection.disconnect()
        running.log.wait("PluginLost", lambda: PluginLost(id_) in running.log.events)
        for method, call in calls_to(running.transport, id_).items():
            error = expect_error(f"{method} of a disconnected plugin", PluginStoppedError, call)
            expect("the resource in the error", error.resource, GPU)
        expect("calls that were sent to a plugin", (gone.calls, successor.calls), ([], []))


@PLUGIN_TRANSPORT.check
def says_why_a_call_failed(make: MakeTransport) -> None:
    """A plugin's exception becomes a `PluginCallError`, with the resource and the plugin's text."""
    with connected(make) as (running, plugin, id_):
        plugin.error = RuntimeError("the fan is broken")
        for method, call in calls_to(running.transport, id_).items():
            error = expect_error(f"{method} of a plugin that fails", PluginCallError, call)
            expect("the resource in the error", error.resource, GPU)
            expect_in(f"the cause in the error from {method}", error.cause, "the fan is broken")
        plugin.error = None
        expect("the next answer", running.transport.read(running.transport.allocate(id_, IDS)), ANSWER)


@PLUGIN_TRANSPORT.check
def treats_a_missing_answer_as_a_failed_call(make: MakeTransport) -> None:
    """If a plugin returns no answer to Allocate, the call raises an error."""
    with connected(make) as (running, plugin, id_):
        plugin.answers = None
        kinds = (PluginCallError, EmptyAllocateResponseError)
        expect_error("allocate without an answer", kinds, lambda: running.transport.allocate(id_, IDS))


@PLUGIN_TRANSPORT.check
def stops_without_further_events(make: MakeTransport) -> None:
    """After `stop` there are no events, not even `PluginLost`, and every call raises `PluginStoppedError`."""
    with started(make) as running:
        plugin = Probe()
        id_, connection = running.connect(plugin)
        running.transport.stop()
        connection.disconnect()
        for method, call in calls_to(running.transport, id_).items():
            expect_error(f"{method} after stop", PluginStoppedError, call)
        expect("calls that were sent to a plugin", plugin.calls, [])
        expect("events of loss", [event for event in running.log.events if isinstance(event, PluginLost)], [])


@PLUGIN_TRANSPORT.check
def can_be_stopped_twice_or_unstarted(make: MakeTransport) -> None:
    """A second `stop`, or a `stop` before the start, does nothing."""
    with make() as harness:
        harness.transport.stop()
        harness.transport.start(EventLog())
        harness.transport.stop()
        harness.transport.stop()


class RemoteTransportHarness(TransportHarness, Protocol):
    """A transport to plugins in other processes, whose sockets or directories can be made unusable."""

    def spoil(self) -> None:
        """Make the sockets or directories of the transport unusable.

        This method is called before the transport is started.
        """

    def contents(self) -> object:
        """Return a value that describes the sockets and directories.

        Two values are equal if nothing has changed in between.
        """


MakeRemoteTransport = Callable[[float], AbstractContextManager[RemoteTransportHarness]]
"""Creates a transport without connected plugins. The argument is the limit for each call, in seconds."""

REMOTE_PLUGIN_TRANSPORT: Suite[MakeRemoteTransport] = Suite()
"""Additional checks for transports to plugins in other processes."""


class _SleepingPlugin(Probe):
    """A plugin that does not answer before `awake` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.awake = threading.Event()

    def _record(self, *call: object) -> None:
        super()._record(*call)
        self.awake.wait(EVENT_TIMEOUT)


@REMOTE_PLUGIN_TRANSPORT.check
def ends_every_call_within_its_limit(make: MakeRemoteTransport) -> None:
    """A call to a plugin that does not answer ends at the limit given to the adapter."""
    plugin = _SleepingPlugin()
    with started(lambda: make(0.2)) as running:
        id_, _ = running.connect(plugin)
        try:
            _expect_no_answer(calls_to(running.transport, id_))
        finally:
            plugin.awake.set()


@REMOTE_PLUGIN_TRANSPORT.check
def ends_a_call_within_its_timeout(make: MakeRemoteTransport) -> None:
    """`timeout` ends a call before the adapter's limit does. A later answer is dropped."""
    plugin = _SleepingPlugin()
    plugin.answers = ContainerAllocateResponse(envs={"ANSWER": "late"})
    with started(lambda: make(EVENT_TIMEOUT * 10)) as running:
        transport = running.transport
        id_, _ = running.connect(plugin)
        try:
            _expect_no_answer(calls_to(transport, id_, timeout=0.1))
        finally:
            plugin.answers = ANSWER
            plugin.awake.set()
        expect("the next answer", transport.read(transport.allocate(id_, IDS)), ANSWER)


@REMOTE_PLUGIN_TRANSPORT.check
def leaves_nothing_behind_when_it_cannot_start(make: MakeRemoteTransport) -> None:
    """If the sockets or directories cannot be used, `start` raises `SetUpError` and changes nothing."""
    with make(EVENT_TIMEOUT) as harness:
        harness.spoil()
        before = harness.contents()
        expect_error("start in an unusable directory", SetUpError, lambda: harness.transport.start(EventLog()))
        expect("the directory after the failed start", harness.contents(), before)
        harness.transport.stop()


def _expect_no_answer(calls: Mapping[str, Callable[[], object]]) -> None:
    """Check that each call fails. If a call never ends, the check fails instead of hanging."""
    for method, call in calls.items():
        watched = partial(in_time, call, EVENT_TIMEOUT / 2)
        expect_error(f"{method} of a plugin that does not answer", PluginCallError, watched)
