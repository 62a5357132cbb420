"""A faulty adapter changes only the calls that have an entry in its script."""

import threading
from collections.abc import Callable, Sequence

import pytest

from devicecore import ContainerAllocateResponse, DeviceId, NodeStatus, PluginOptions, ResourceName
from devicecore.adapters.memory import MemorySink, MemoryStore, MemoryTransport
from devicecore.domain.errors import (
    EmptyAllocateResponseError,
    PluginCallError,
    PluginOptionsError,
    PluginStoppedError,
    SinkError,
    StoreError,
)
from devicecore.domain.events import DevicesReported, Event, PluginLost, PluginRegistered, RegistrationRequested
from devicecore.domain.model import PluginId
from devicecore.plugins.simulated import SimulatedPlugin, simulated_devices
from devicecore.testing import faults

GPU = ResourceName("example.com/gpu")
IDS = tuple(DeviceId(f"gpu-{number}") for number in range(4))


class NotingPlugin(SimulatedPlugin):
    """A plugin that records its requests and prefers the first devices."""

    def __init__(self) -> None:
        super().__init__(GPU, simulated_devices("gpu", 4))
        self.options = PluginOptions(pre_start_required=True, get_preferred_allocation_available=True)
        self.asked: list[object] = []

    def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
        self.asked.append(devices)
        return super().allocate(devices)

    def get_preferred_allocation(
        self, available: Sequence[DeviceId], must_include: Sequence[DeviceId], size: int
    ) -> Sequence[DeviceId]:
        self.asked.append((available, must_include, size))
        return tuple(available)[:size]

    def pre_start_container(self, devices: Sequence[DeviceId]) -> None:
        self.asked.append(devices)


class Rig:
    """A plugin behind a faulty transport."""

    def __init__(self) -> None:
        self.script = faults.Script()
        self.clock = faults.ManualClock()
        self.plugin = NotingPlugin()
        self.events: list[Event] = []
        self.network = MemoryTransport()
        self.transport = faults.FaultyTransport(self.network, self.script, self.clock)
        self.transport.start(self.events.append)
        self.connection = self.network.connect(self.plugin, "gpu.sock")
        self.id: PluginId = self.connection.id

    def allocate(self, timeout: float | None = None) -> str:
        receipt = self.transport.allocate(self.id, IDS[:1], timeout=timeout)
        return ",".join(self.transport.read(receipt).envs.values())

    def prefer(self) -> tuple[DeviceId, ...]:
        return self.transport.get_preferred_allocation(self.id, IDS, (), 2)


# --- without an entry -------------------------------------------------------------------------------------------------


def test_without_an_entry_a_transport_is_unchanged() -> None:
    rig = Rig()
    registered = [RegistrationRequested(GPU), PluginRegistered(rig.id, rig.plugin.options)]
    assert rig.events == [*registered, DevicesReported(rig.id, tuple(rig.plugin.devices()))]
    assert rig.allocate() == "gpu-0"
    assert rig.prefer() == ("gpu-0", "gpu-1")
    rig.transport.pre_start_container(rig.id, IDS)
    assert rig.plugin.asked == [IDS[:1], (IDS, (), 2), IDS]
    rig.connection.disconnect()
    assert rig.events[-1] == PluginLost(rig.id)
    with pytest.raises(PluginStoppedError):
        rig.allocate()
    rig.transport.stop()


def test_without_an_entry_a_store_and_a_sink_are_unchanged() -> None:
    store, sink = faults.FaultyStore(MemoryStore(), faults.Script()), MemorySink()
    assert store.load() is None
    store.save(b"1")
    assert store.load() == b"1"
    assert store.set_aside() == "aside[0]"
    assert store.set_aside() is None
    faults.FaultySink(sink, faults.Script()).publish(NodeStatus({GPU: 1}, {GPU: 1}))
    assert sink.capacity == {GPU: 1}


def test_without_an_entry_a_plugin_is_unchanged() -> None:
    plugin = NotingPlugin()
    wrapped = faults.FaultyPlugin(plugin, faults.Script())
    changes: list[str] = []
    end = wrapped.subscribe(lambda: changes.append("changed"))
    plugin.set_devices(())
    end()
    plugin.set_devices(simulated_devices("gpu", 4))
    assert changes == ["changed"]
    assert (wrapped.resource, wrapped.options, wrapped.devices()) == (GPU, plugin.options, plugin.devices())
    assert wrapped.allocate(IDS[:2]) == plugin.allocate(IDS[:2])
    assert wrapped.get_preferred_allocation(IDS, (), 1) == IDS[:1]
    wrapped.pre_start_container(IDS)


# --- entries ----------------------------------------------------------------------------------------------------------


def outcomes(action: Callable[[], object], times: int) -> list[str]:
    """Return the outcome of each of several calls: `ok`, or the cause of the failure."""

    def outcome() -> str:
        try:
            action()
        except PluginCallError as error:
            return error.cause
        return "ok"

    return [outcome() for _ in range(times)]


def test_the_nth_call_fails_and_no_other() -> None:
    rig = Rig()
    rig.script.on("Allocate", faults.Fails("third"), nth=3)
    rig.script.on("Allocate", faults.Fails("first"))
    rig.script.on("PreStartContainer", faults.Fails("never"))
    assert outcomes(rig.allocate, 4) == ["first", "ok", "third", "ok"]
    rig.script.on("Allocate", faults.Fails("from now"), nth=2)
    assert outcomes(rig.allocate, 3) == ["ok", "from now", "ok"]


def test_a_permanent_entry_holds_until_it_is_cleared() -> None:
    rig = Rig()
    rig.script.always("Allocate", faults.Fails("always"))
    rig.script.on("Allocate", faults.Fails("second"))
    assert outcomes(rig.allocate, 2) == ["always", "always"]
    rig.script.clear("PreStartContainer")
    assert outcomes(rig.allocate, 1) == ["always"]
    rig.script.clear("Allocate")
    assert outcomes(rig.allocate, 1) == ["ok"]
    rig.script.always("Allocate", faults.Fails("again"))
    rig.script.on("PreStartContainer", faults.Fails("too"))
    rig.script.clear()
    assert outcomes(rig.allocate, 1) == ["ok"]
    assert outcomes(lambda: rig.transport.pre_start_container(rig.id, IDS), 1) == ["ok"]


def test_faults_are_combined_in_their_order() -> None:
    """Each fault decides whether the faults after it are called."""
    rig = Rig()
    rig.script.on("Allocate", faults.TakesTime(1.0), faults.FailsAfterwards("in the end"))
    rig.script.on("Allocate", faults.Fails("at once"), faults.TakesTime(1.0), nth=2)
    assert outcomes(rig.allocate, 2) == ["in the end", "at once"]
    assert (rig.clock.now, len(rig.plugin.asked)) == (0.0, 1)


def test_a_custom_function_is_a_fault() -> None:
    """A custom function can see the call, and change its arguments and its answer."""

    def greedy(call: faults.Call) -> object:
        available, must_include, size = call.arguments
        return call.proceed(available, must_include, size + 1)

    rig = Rig()
    rig.script.on("GetPreferredAllocation", faults.AnswersRepeated(), greedy)
    assert rig.prefer() == ("gpu-0",) * 3


# --- calls to plugins -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "cause", "asked", "passed"),
    [
        (faults.Fails("no"), "no", 0, 0.0),
        (faults.FailsAfterwards("no"), "no", 1, 0.0),
        (faults.NeverAnswers(), "rpc error: code = DeadlineExceeded desc = context deadline exceeded", 0, 5.0),
        (faults.AnswersLate(), "rpc error: code = DeadlineExceeded desc = context deadline exceeded", 1, 6.0),
        (faults.TakesTime(50.0), "ok", 1, 50.0),
    ],
    ids=repr,
)
def test_a_call_fails_or_is_late(fault: faults.Fault, cause: str, asked: int, passed: float) -> None:
    """Check the caller's error, the number of calls that reach the plugin, and how much time passes."""
    rig = Rig()
    rig.script.on("Allocate", fault)
    assert outcomes(lambda: rig.allocate(timeout=5.0), 1) == [cause]
    assert (len(rig.plugin.asked), rig.clock.now) == (asked, passed)


def test_a_call_without_a_timeout_gets_the_transports_timeout() -> None:
    rig = Rig()
    rig.script.on("Allocate", faults.NeverAnswers())
    outcomes(rig.allocate, 1)
    assert rig.clock() == faults.CALL_LIMIT


def test_an_answer_to_allocate_is_empty() -> None:
    rig = Rig()
    rig.script.on("Allocate", faults.AnswersNothing())
    with pytest.raises(EmptyAllocateResponseError, match="no containers return in allocation response"):
        rig.allocate()
    assert rig.plugin.asked == [IDS[:1]]


@pytest.mark.parametrize(
    ("fault", "answer"),
    [
        (faults.AnswersNothing(), ()),
        (faults.AnswersShort(), IDS[:1]),
        (faults.AnswersTooLong(), (*IDS[:2], *IDS)),
        (faults.AnswersForeign(), ("foreign-0", "foreign-1")),
        (faults.AnswersForeign(("a",)), ("a",)),
        (faults.AnswersRepeated(), ("gpu-0", "gpu-0")),
    ],
    ids=repr,
)
def test_a_preference_is_wrong(fault: faults.Fault, answer: Sequence[str]) -> None:
    """The fault has the same effect in a transport and in a plugin."""
    rig = Rig()
    rig.script.on("GetPreferredAllocation", fault)
    assert rig.prefer() == answer
    script = faults.Script()
    script.on("GetPreferredAllocation", fault)
    assert faults.FaultyPlugin(rig.plugin, script).get_preferred_allocation(IDS, (), 2) == answer


def test_a_gate_suspends_a_call() -> None:
    """The call is suspended before the plugin is called, or after it has answered."""
    for gate, asked in ((faults.Gate(20.0), 0), (faults.Gate(20.0, after=True), 1)):
        rig = Rig()
        rig.script.on("Allocate", gate)
        thread = threading.Thread(target=rig.allocate)
        thread.start()
        assert gate.reached.wait(60.0)
        assert (len(rig.plugin.asked), thread.is_alive()) == (asked, True)
        gate.release()
        thread.join(60.0)
        assert len(rig.plugin.asked) == 1


def test_a_gate_that_is_not_released_raises() -> None:
    rig = Rig()
    rig.script.on("Allocate", faults.Gate(timeout=0.01))
    with pytest.raises(TimeoutError, match=r"expected Gate.release\(\) within 0\.01 s, but it was not called"):
        rig.allocate()


def test_the_caller_gets_the_error_of_a_plugin() -> None:
    """With `MemoryTransport`, the cause is the text of the plugin's exception."""
    script, network = faults.Script(), MemoryTransport()
    network.start(lambda _: None)
    connection = network.connect(faults.FaultyPlugin(NotingPlugin(), script))
    script.on("Allocate", faults.Fails("out of order"))
    with pytest.raises(PluginCallError) as failure:
        network.allocate(connection.id, IDS)
    assert failure.value.cause == "out of order"


def test_a_plugin_lists_and_allocates_nothing() -> None:
    script = faults.Script()
    plugin = faults.FaultyPlugin(NotingPlugin(), script)
    script.on("ListAndWatch", faults.AnswersNothing())
    script.on("Allocate", faults.AnswersNothing())
    script.on("PreStartContainer", faults.AnswersNothing())
    assert plugin.devices() == ()
    assert plugin.allocate(IDS) == ContainerAllocateResponse()
    plugin.pre_start_container(IDS)


# --- events -----------------------------------------------------------------------------------------------------------


def test_events_are_lost_delivered_twice_and_delayed() -> None:
    rig = Rig()
    del rig.events[:]
    beat = DevicesReported(rig.id, tuple(rig.plugin.devices()))
    rig.script.on("DevicesReported", faults.DeliveredTwice())
    rig.connection.report()
    rig.script.on("DevicesReported", faults.Loses())
    rig.connection.report()
    assert rig.events == [beat, beat]
    disconnect = faults.Delayed()
    rig.script.on("PluginLost", disconnect)
    rig.connection.disconnect()
    new = rig.network.connect(rig.plugin, "gpu.sock")
    disconnect.release()
    disconnect.release()
    registered = PluginRegistered(new.id, rig.plugin.options)
    assert rig.events[3:] == [registered, DevicesReported(new.id, beat.devices), PluginLost(rig.id)]


def test_a_registration_fails_at_the_options() -> None:
    rig = Rig()
    rig.script.on("PluginRegistered", faults.Fails("connection reset"))
    with pytest.raises(PluginOptionsError, match="failed to get device plugin options: connection reset"):
        rig.network.connect(rig.plugin)
    rig.script.on("RegistrationRequested", faults.Fails("rate limit"))
    with pytest.raises(PluginOptionsError):
        rig.network.connect(rig.plugin)


def test_a_stream_is_dropped_in_the_middle_of_a_call() -> None:
    """`PluginLost` is delivered once. Later events are dropped, and later calls fail."""
    rig = Rig()
    rig.script.on("Allocate", faults.Meanwhile(lambda: rig.transport.drop(rig.id)))
    assert rig.allocate() == "gpu-0"
    assert rig.events[-1] == PluginLost(rig.id)
    count = len(rig.events)
    rig.connection.report()
    rig.connection.disconnect()
    assert len(rig.events) == count
    with pytest.raises(PluginStoppedError):
        rig.allocate()


def test_a_stopped_transport_delivers_no_event() -> None:
    rig = Rig()
    rig.transport.stop()
    count = len(rig.events)
    rig.transport.notify(PluginLost(rig.id))
    assert len(rig.events) == count


# --- disk and sink ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "left", "raises"),
    [
        (faults.DISK_FULL, b"old old!", True),
        (faults.FailsAfterwards(), b"new new!", True),
        (faults.Loses(), b"old old!", False),
        (faults.Tears(), b"new old!", False),
        (faults.Tears(0.0), b"old old!", False),
        (faults.Tears(1.0), b"new new!", False),
    ],
    ids=repr,
)
def test_a_write_fails_is_lost_or_torn(fault: faults.Fault, left: bytes, raises: bool) -> None:
    """Check whether the save raises an error, and what is on the disk afterwards."""
    script, inner = faults.Script(), MemoryStore(b"old old!")
    store = faults.FaultyStore(inner, script)
    script.on("save", fault)
    if raises:
        with pytest.raises(StoreError, match='failed to write checkpoint file "checkpoint": '):
            store.save(b"new new!")
    else:
        store.save(b"new new!")
    assert inner.blob == left
    store.save(b"next")
    assert inner.blob == b"next"


def test_the_first_write_is_torn() -> None:
    script, inner = faults.Script(), MemoryStore()
    script.on("save", faults.Tears())
    faults.FaultyStore(inner, script).save(b"half gone")
    assert inner.blob == b"half"


def test_a_store_cannot_be_read_nor_moved() -> None:
    script = faults.Script()
    store = faults.FaultyStore(MemoryStore(b"1"), script)
    script.on("load", faults.Fails())
    script.on("set_aside", faults.Fails("Read-only file system"))
    with pytest.raises(StoreError, match='failed to read checkpoint file "checkpoint": Input/output error'):
        store.load()
    with pytest.raises(StoreError, match='failed to set aside checkpoint file "checkpoint": Read-only file system'):
        store.set_aside()
    script.on("load", faults.Loses())
    assert store.load() is None


def test_a_sink_cannot_be_reached() -> None:
    script, sink = faults.Script(), MemorySink()
    script.on("publish", faults.Fails("connection refused"))
    script.on("publish", faults.Loses(), nth=2)
    faulty = faults.FaultySink(sink, script)
    with pytest.raises(SinkError, match="connection refused"):
        faulty.publish(NodeStatus())
    faulty.publish(NodeStatus())
    assert sink.published == []
