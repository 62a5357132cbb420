"""The contract of `PluginTransport`.

Law: what a plugin says and what it is asked passes through unchanged, in its order, and never from one instance to
another.
"""

import threading
from collections.abc import Callable
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
from devicecore.domain.model import PluginOptions, Receipt
from devicecore.testing.contracts.connected import (
    ANSWER,
    BOTH_OPTIONS,
    DEVICES,
    IDS,
    Heard,
    MakeTransport,
    Probe,
    TransportHarness,
    calls_to,
    started,
)
from devicecore.testing.contracts.expecting import GPU, PATIENCE, RDMA, a_check, expect, expect_error


@a_check
def tells_of_every_registration_before_it_is_checked(make: MakeTransport) -> None:
    """`RegistrationRequested` comes first, with whatever name; a plugin with an invalid one is not registered."""
    with started(make) as running:
        running.connect(Probe())
        expect("the first event", running.heard.events[0], RegistrationRequested(GPU))
        expect_error(
            "a plugin with an invalid name", DeviceCoreError, lambda: running.harness.connect(Probe("no name"))
        )
        if RegistrationRequested("no name") not in running.heard.events:
            message = f"expected RegistrationRequested('no name'), and these events came: {running.heard.events!r}"
            raise AssertionError(message)
        expect("registered resources", [plugin.resource for plugin in running.heard.registered()], [GPU])


@a_check
def tells_what_a_plugin_can_do(make: MakeTransport) -> None:
    """`PluginRegistered` names the resource and has the plugin's options."""
    for options in (PluginOptions(), BOTH_OPTIONS, evolve(BOTH_OPTIONS, pre_start_required=False)):
        plugin = Probe()
        plugin.options = options
        with started(make) as running:
            id_, _ = running.connect(plugin)
            expect("the resource", id_.resource, GPU)
            expect("the first event of the plugin", running.heard.of(id_)[0], PluginRegistered(id_, options))


@a_check
def tells_the_complete_list_in_its_order(make: MakeTransport) -> None:
    """`DevicesReported` has every device as the plugin has it: health, NUMA nodes, and no topology or an empty one."""
    for listed in (DEVICES, tuple(reversed(DEVICES)), ()):
        with started(make) as running:
            id_, _ = running.connect(Probe(listed=listed))
            expect("the first list of the plugin", running.heard.of(id_)[1], DevicesReported(id_, listed))


@a_check
def tells_of_every_change_of_the_list(make: MakeTransport) -> None:
    """What the plugin lists anew replaces what it listed before."""
    with started(make) as running:
        plugin = Probe()
        id_, _ = running.connect(plugin)
        for listed in (DEVICES[:1], (), DEVICES):
            plugin.list(listed)
            running.heard.wait_for_last(DevicesReported(id_, listed))


@a_check
def tells_of_a_loss_once_and_last(make: MakeTransport) -> None:
    """When a plugin goes there is one `PluginLost`, and no event of this instance after it."""
    with started(make) as running:
        id_, connection = running.connect(Probe())
        connection.disconnect()
        running.heard.wait("PluginLost", lambda: PluginLost(id_) in running.heard.events)
        running.wait_until_quiet()
        kinds = [type(event) for event in running.heard.of(id_)]
        expect("how often the loss was told", kinds.count(PluginLost), 1)
        expect("the last event of a plugin that is lost", kinds[-1], PluginLost)


@a_check
def gives_every_instance_an_identity_of_its_own(make: MakeTransport) -> None:
    """Who comes back is another instance, with a larger generation, whatever its resource."""
    with started(make) as running:
        ids = []
        for resource in (GPU, GPU, RDMA):
            id_, connection = running.connect(Probe(resource))
            ids.append(id_)
            connection.disconnect()
        generations = [id_.generation for id_ in ids]
        if len(set(ids)) != len(ids) or generations != sorted(set(generations)):
            message = f"three instances in turn: expected three ids with growing generations, and {ids!r} came"
            raise AssertionError(message)


@a_check
def keeps_two_instances_of_one_resource_apart(make: MakeTransport) -> None:
    """What happens to one instance, of whatever resource, is not told of another, nor are its calls another's."""
    with started(make) as running:
        plugins = [Probe(), Probe(listed=DEVICES[:1])]
        (first, connection), (second, _) = (running.connect(plugin) for plugin in plugins)
        running.transport.allocate(first, IDS[:1])
        running.transport.allocate(second, IDS[1:2])
        asked = [plugin.calls for plugin in plugins]
        expect("what each was asked", asked, [[("allocate", IDS[:1])], [("allocate", IDS[1:2])]])
        connection.disconnect()
        running.heard.wait("PluginLost of the first", lambda: PluginLost(first) in running.heard.events)
        running.transport.allocate(second, IDS[2:3])
        expect("calls of the one that is left", plugins[1].calls[1:], [("allocate", IDS[2:3])])
        expect("whether the one that is left is lost", PluginLost(second) in running.heard.events, expected=False)


@a_check
def refuses_a_plugin_with_the_listeners_sentence(make: MakeTransport) -> None:
    """When the listener raises on `PluginRegistered`, the plugin is told why, and is not heard of again."""
    refusal = PluginOptionsError(GPU, "not today")
    with started(make, {GPU: refusal}) as running:
        error = expect_error("a plugin that is refused", DeviceCoreError, lambda: running.harness.connect(Probe()))
        if str(refusal) not in str(error):
            message = f"what the refused plugin is told: expected {str(refusal)!r} in it, and {str(error)!r} came"
            raise AssertionError(message)
        running.wait_until_quiet()
        refused = [plugin for plugin in running.heard.registered() if plugin.resource == GPU]
        later = [event for plugin in refused for event in running.heard.of(plugin)[1:]]
        expect("events of a plugin that was refused", later, [])


@a_check
def tells_of_one_instance_one_event_at_a_time(make: MakeTransport) -> None:
    """For one plugin instance the listener is never called from two threads at once."""
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
            if not changes:  # while we are busy with the first list, there is another one
                changes.append(threading.Thread(target=plugin.list, args=(DEVICES[:1],)))
                changes[0].start()
                overlapped.wait(0.2)
        finally:
            busy.release()

    with make() as harness:
        harness.transport.start(listen)
        harness.connect(plugin)
        expect("whether the second list came while the first was heard", overlapped.is_set(), expected=False)
        harness.transport.stop()
    for change in changes:
        change.join(PATIENCE)


@a_check
def hands_devices_to_the_plugin_in_their_order(make: MakeTransport) -> None:
    """A plugin is asked for exactly the devices that were named, as they were named."""
    with started(make) as running:
        plugin = Probe()
        id_, _ = running.connect(plugin)
        for devices in (IDS, tuple(reversed(IDS)), IDS[:1]):
            running.transport.allocate(id_, devices)
            expect("what the plugin was asked", plugin.calls[-1], ("allocate", devices))


@a_check
def reads_what_the_plugin_answered(make: MakeTransport) -> None:
    """A receipt says everything that the plugin said, also if that is nothing."""
    with started(make) as running:
        plugin = Probe()
        id_, _ = running.connect(plugin)
        for answer in (ANSWER, ContainerAllocateResponse()):
            plugin.answers = answer
            expect("what the receipt says", running.transport.read(running.transport.allocate(id_, IDS)), answer)


@a_check
def reads_receipts_of_an_earlier_process(make: MakeTransport) -> None:
    """A receipt may have been written long ago: it needs neither the plugin nor the transport that wrote it."""
    with started(make) as running:
        id_, _ = running.connect(Probe())
        receipt = running.transport.allocate(id_, IDS)
    with make() as harness:
        expect("what the receipt says to another transport", harness.transport.read(Receipt(bytes(receipt))), ANSWER)


@a_check
def refuses_to_read_what_is_no_receipt(make: MakeTransport) -> None:
    """`read` raises `UnreadableReceiptError` for bytes that no plugin's answer could be."""
    with make() as harness:
        for junk in (b"\xff" * 20, b"\x0a\xff"):
            read = partial(harness.transport.read, Receipt(junk))
            expect_error(f"read({junk!r})", UnreadableReceiptError, read)


@a_check
def hands_over_what_the_plugin_prefers_unchecked(make: MakeTransport) -> None:
    """What the plugin would give away comes in its order, be it too little, too much, repeated or foreign."""
    with started(make) as running:
        plugin = Probe()
        id_, _ = running.connect(plugin)
        for prefers in (IDS[1::-1], (), ("foreign",), (*IDS, *IDS)):
            plugin.prefers = prefers
            came = running.transport.get_preferred_allocation(id_, IDS, IDS[:1], 2)
            expect("what the plugin prefers", came, tuple(prefers))
            expect("what the plugin was asked", plugin.calls[-1], ("get_preferred_allocation", IDS, IDS[:1], 2))


@a_check
def tells_the_plugin_of_a_start(make: MakeTransport) -> None:
    """`pre_start_container` reaches the plugin, with the container's devices."""
    with started(make) as running:
        plugin = Probe()
        id_, _ = running.connect(plugin)
        running.transport.pre_start_container(id_, IDS)
        expect("what the plugin was told", plugin.calls, [("pre_start_container", IDS)])


@a_check
def sends_nothing_to_a_plugin_that_has_gone(make: MakeTransport) -> None:
    """Every call to an instance that has gone raises `PluginStoppedError`, also if its resource has another one."""
    with started(make) as running:
        gone, heir = Probe(), Probe()
        id_, connection = running.connect(gone)
        running.connect(heir)
        connection.disconnect()
        running.heard.wait("PluginLost", lambda: PluginLost(id_) in running.heard.events)
        for method, call in calls_to(running.transport, id_).items():
            error = expect_error(f"{method} of a plugin that has gone", PluginStoppedError, call)
            expect("the resource it is about", error.resource, GPU)
        expect("calls that were sent all the same", (gone.calls, heir.calls), ([], []))


@a_check
def says_why_a_call_failed(make: MakeTransport) -> None:
    """Whatever a plugin raises becomes `PluginCallError`, with the resource and the plugin's own text."""
    with started(make) as running:
        plugin = Probe()
        id_, _ = running.connect(plugin)
        plugin.error = RuntimeError("the fan is broken")
        for method, call in calls_to(running.transport, id_).items():
            error = expect_error(f"{method} of a plugin that fails", PluginCallError, call)
            expect("the resource it is about", error.resource, GPU)
            if "the fan is broken" not in error.cause:
                message = f"{method}: expected the plugin's text in the cause, and {error.cause!r} came"
                raise AssertionError(message)
        plugin.error = None
        expect("the next answer", running.transport.read(running.transport.allocate(id_, IDS)), ANSWER)


@a_check
def takes_no_answer_for_a_failed_call(make: MakeTransport) -> None:
    """A plugin that answers Allocate without an answer has failed; nothing else is raised for it."""
    with started(make) as running:
        plugin = Probe()
        id_, _ = running.connect(plugin)
        plugin.answers = None
        kinds = (PluginCallError, EmptyAllocateResponseError)
        expect_error("allocate without an answer", kinds, lambda: running.transport.allocate(id_, IDS))


@a_check
def lets_go_of_its_plugins_without_a_word(make: MakeTransport) -> None:
    """After `stop` there are no events, not even of loss, and every call raises `PluginStoppedError`."""
    with started(make) as running:
        plugin = Probe()
        id_, connection = running.connect(plugin)
        running.transport.stop()
        connection.disconnect()
        for method, call in calls_to(running.transport, id_).items():
            expect_error(f"{method} after stop", PluginStoppedError, call)
        expect("calls that were sent all the same", plugin.calls, [])
        expect("events of loss", [event for event in running.heard.events if isinstance(event, PluginLost)], [])


@a_check
def stops_twice_or_unstarted_without_an_error(make: MakeTransport) -> None:
    """Stopping twice, or before the start, is no error."""
    with make() as harness:
        harness.transport.stop()
        harness.transport.start(Heard())
        harness.transport.stop()
        harness.transport.stop()


PLUGIN_TRANSPORT: tuple[Callable[[MakeTransport], None], ...] = (
    tells_of_every_registration_before_it_is_checked,
    tells_what_a_plugin_can_do,
    tells_the_complete_list_in_its_order,
    tells_of_every_change_of_the_list,
    tells_of_a_loss_once_and_last,
    gives_every_instance_an_identity_of_its_own,
    keeps_two_instances_of_one_resource_apart,
    refuses_a_plugin_with_the_listeners_sentence,
    tells_of_one_instance_one_event_at_a_time,
    hands_devices_to_the_plugin_in_their_order,
    reads_what_the_plugin_answered,
    reads_receipts_of_an_earlier_process,
    refuses_to_read_what_is_no_receipt,
    hands_over_what_the_plugin_prefers_unchecked,
    tells_the_plugin_of_a_start,
    sends_nothing_to_a_plugin_that_has_gone,
    says_why_a_call_failed,
    takes_no_answer_for_a_failed_call,
    lets_go_of_its_plugins_without_a_word,
    stops_twice_or_unstarted_without_an_error,
)
"""For every transport."""


class RemoteTransportHarness(TransportHarness, Protocol):
    """A transport to plugins elsewhere, in a place that can be spoilt."""

    def spoil(self) -> None:
        """Have the place of the transport, which is not started, be one that it cannot use."""

    def contents(self) -> object:
        """What lies in that place: something that is equal if nothing was changed."""


MakeRemoteTransport = Callable[[float], AbstractContextManager[RemoteTransportHarness]]
"""Makes a transport to which nothing is connected, and which is told so many seconds as the limit of every call."""


class _Sleeper(Probe):
    """A plugin that does not answer until it is woken."""

    def __init__(self) -> None:
        super().__init__()
        self.awake = threading.Event()

    def _note(self, *call: object) -> None:
        super()._note(*call)
        self.awake.wait(PATIENCE)


@a_check
def ends_every_call_within_its_limit(make: MakeRemoteTransport) -> None:
    """A plugin that does not answer costs the time the adapter was told at construction, and no more."""
    plugin = _Sleeper()
    with started(lambda: make(0.2)) as running:
        id_, _ = running.connect(plugin)
        try:
            for method, call in calls_to(running.transport, id_).items():
                expect_error(f"{method} of a plugin that does not answer", PluginCallError, _in_time(method, call))
        finally:
            plugin.awake.set()


@a_check
def ends_a_call_within_its_timeout(make: MakeRemoteTransport) -> None:
    """`timeout` ends a call that the adapter would give more time; an answer that comes later is lost."""
    plugin = _Sleeper()
    plugin.answers = ContainerAllocateResponse(envs={"ANSWER": "late"})
    with started(lambda: make(PATIENCE * 10)) as running:
        transport = running.transport
        id_, _ = running.connect(plugin)
        calls = {
            "allocate": lambda: transport.allocate(id_, IDS, timeout=0.1),
            "get_preferred_allocation": lambda: transport.get_preferred_allocation(id_, IDS, (), 2, timeout=0.1),
            "pre_start_container": lambda: transport.pre_start_container(id_, IDS, timeout=0.1),
        }
        try:
            for method, call in calls.items():
                expect_error(f"{method} of a plugin that does not answer", PluginCallError, _in_time(method, call))
        finally:
            plugin.answers = ANSWER
            plugin.awake.set()
        expect("the next answer", transport.read(transport.allocate(id_, IDS)), ANSWER)


@a_check
def leaves_nothing_behind_when_it_cannot_start(make: MakeRemoteTransport) -> None:
    """Where the adapter's sockets or directories cannot be used, `start` raises `SetUpError` and changes nothing."""
    with make(PATIENCE) as harness:
        harness.spoil()
        before = harness.contents()
        expect_error("start in a place that cannot be used", SetUpError, lambda: harness.transport.start(Heard()))
        expect("what lies there after it failed", harness.contents(), before)
        harness.transport.stop()


def _in_time(what: str, call: Callable[[], object]) -> Callable[[], object]:
    """`call`, in a thread of its own, so that one that never ends does not keep everybody waiting."""

    def watched() -> object:
        outcome: list[object] = []
        thread = threading.Thread(target=lambda: outcome.append(_outcome(call)), daemon=True)
        thread.start()
        thread.join(PATIENCE / 2)
        if not outcome:
            message = f"{what}: expected an end, and there was none after {PATIENCE / 2:g} seconds"
            raise AssertionError(message)
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0]

    return watched


def _outcome(call: Callable[[], object]) -> object:
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - whoever waits for it raises it
        return error


REMOTE_PLUGIN_TRANSPORT: tuple[Callable[[MakeRemoteTransport], None], ...] = (
    ends_every_call_within_its_limit,
    ends_a_call_within_its_timeout,
    leaves_nothing_behind_when_it_cannot_start,
)
"""Besides, for transports to plugins that are not objects of this process."""
