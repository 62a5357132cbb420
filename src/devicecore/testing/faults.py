"""Adapters that wrap adapters and misbehave on cue.

Law: without a cue they change nothing. With one, the call that it names goes wrong in the way it names, and no other.
Time passes on a `ManualClock` only: nothing here waits, but for a `Gate`, which a test opens.

A fault stands in for the adapter: it is given the `Call`, and answers it. So faults combine by standing behind each
other, and a function of your own is a fault too.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol

from attrs import define, evolve, field, frozen

from devicecore.domain.capacity import NodeStatus
from devicecore.domain.container_options import ContainerAllocateResponse
from devicecore.domain.errors import (
    EmptyAllocateResponseError,
    PluginCallError,
    PluginOptionsError,
    PluginStoppedError,
    SinkError,
    StoreError,
)
from devicecore.domain.events import Event, PluginLost, RegistrationRequested
from devicecore.domain.model import Device, DeviceId, PluginId, Receipt, ResourceName
from devicecore.ports.plugin import DevicePlugin
from devicecore.ports.sink import NodeStatusSink
from devicecore.ports.store import CheckpointStore
from devicecore.ports.transport import Listener, PluginTransport

ALLOCATE = "Allocate"
GET_PREFERRED_ALLOCATION = "GetPreferredAllocation"
PRE_START_CONTAINER = "PreStartContainer"
LIST_AND_WATCH = "ListAndWatch"

CALL_LIMIT = 30.0
"""Seconds that a call to a plugin may take where the caller names no shorter time."""

_DEADLINE_EXCEEDED = "rpc error: code = DeadlineExceeded desc = context deadline exceeded"

Answer = Any  # of whatever method is called


@define
class ManualClock:
    """A clock that goes only when it is told to. Give it to the manager and to what is faulty."""

    now: float = 0.0

    def __call__(self) -> float:
        """Tell the time, in seconds."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


# --- cues ------------------------------------------------------------------------------------------------------------


@frozen
class Call:
    """One call of one method, for a fault to answer.

    `arguments` are those of the method in the port, but for the plugin instance and the timeout: these are `about` and
    `timeout`. `adapter` is what is wrapped. A transport's events are calls too, of a method with the event's name.
    """

    method: str
    arguments: tuple[Any, ...]
    adapter: object
    clock: ManualClock
    timeout: float = CALL_LIMIT
    about: PluginId | None = None
    _answer: Callable[..., Answer] = field(kw_only=True)
    _nothing: Callable[[], Answer] = field(kw_only=True)
    _failure: Callable[[str], Exception] = field(kw_only=True)

    def proceed(self, *arguments: object) -> Answer:
        """Do what the caller wants, with other arguments if there are any; what the wrapped adapter answers."""
        return self._answer(*(arguments or self.arguments))

    def answer_nothing(self) -> Answer:
        """Answer without saying anything.

        Raises:
            EmptyAllocateResponseError: so a transport puts it, if that is the answer to Allocate.
        """
        return self._nothing()

    def fail(self, cause: str) -> NoReturn:
        """Fail as this method fails, for `cause`.

        Raises:
            DeviceCoreError: the one that its port names; from a plugin, any other exception.
        """
        raise self._failure(cause)

    def behind(self, faults: Sequence["Fault"]) -> Answer:
        """Answer with `faults` standing in for the adapter, the first in front."""
        if not faults:
            return self.proceed()
        first, *others = faults
        return first(evolve(self, answer=lambda *changed: evolve(self, arguments=changed).behind(others)))


class Fault(Protocol):
    """What goes wrong: called in place of the adapter."""

    def __call__(self, call: Call) -> Answer:
        """Answer `call`, or raise."""


class Script:
    """Which fault comes at which call; one script may serve several adapters.

    Methods are named as the ports name them (`save`, `load`, `set_aside`, `publish`), calls to plugins as the device
    plugin API does (`Allocate`, `ListAndWatch`, ...), and events by their class (`PluginLost`, ...). Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._standing: dict[str, tuple[Fault, ...]] = {}
        self._due: list[tuple[str, int, tuple[Fault, ...]]] = []
        self._calls: dict[str, int] = {}

    def on(self, method: str, *faults: Fault, nth: int = 1) -> None:
        """Have `faults` at the `nth` call of `method` from now, the first in front; the others are as ever."""
        with self._lock:
            self._due.append((method, self._calls.get(method, 0) + nth, faults))

    def always(self, method: str, *faults: Fault) -> None:
        """Have `faults` at every call of `method`, in front of those of `on`."""
        with self._lock:
            self._standing[method] = (*self._standing.get(method, ()), *faults)

    def clear(self, *methods: str) -> None:
        """Forget what is to come at calls of `methods`, or of all there are."""
        with self._lock:
            self._due = [cue for cue in self._due if methods and cue[0] not in methods]
            for method in methods or tuple(self._standing):
                self._standing.pop(method, None)

    def play(self, call: Call) -> Answer:
        """Answer `call` with what is due."""
        return call.behind(self._next(call.method))

    def _next(self, method: str) -> list[Fault]:
        with self._lock:
            if not self._standing and not self._due:
                return []
            self._calls[method] = number = self._calls.get(method, 0) + 1
            now = [cue for cue in self._due if cue[:2] == (method, number)]
            self._due = [cue for cue in self._due if cue not in now]
            return [*self._standing.get(method, ()), *(fault for cue in now for fault in cue[2])]


# --- faults of any call ----------------------------------------------------------------------------------------------


@frozen
class Fails:
    """The call fails, and nothing was done."""

    cause: str = "Input/output error"

    def __call__(self, call: Call) -> NoReturn:
        """Fail."""
        call.fail(self.cause)


@frozen
class FailsAfterwards:
    """The call fails, although all was done."""

    cause: str = "Input/output error"

    def __call__(self, call: Call) -> NoReturn:
        """Proceed, then fail."""
        call.proceed()
        call.fail(self.cause)


@frozen
class NeverAnswers:
    """Nobody answers, and the caller gives up when its time is over."""

    def __call__(self, call: Call) -> NoReturn:
        """Let the time pass, then fail."""
        call.clock.advance(call.timeout)
        call.fail(_DEADLINE_EXCEEDED)


@frozen
class AnswersLate:
    """All is done, and the answer comes `by` seconds after the caller has given up."""

    by: float = 1.0

    def __call__(self, call: Call) -> NoReturn:
        """Proceed, let more than the time pass, then fail."""
        call.proceed()
        call.clock.advance(call.timeout + self.by)
        call.fail(_DEADLINE_EXCEEDED)


@frozen
class TakesTime:
    """The answer takes `seconds`, and is given however late: by an adapter that keeps no deadline, such as memory's."""

    seconds: float

    def __call__(self, call: Call) -> Answer:
        """Proceed, and let the time pass."""
        answer = call.proceed()
        call.clock.advance(self.seconds)
        return answer


@frozen
class Meanwhile:
    """`action` happens while the call is under way, before it is answered."""

    action: Callable[[], object]

    def __call__(self, call: Call) -> Answer:
        """Act, then proceed."""
        self.action()
        return call.proceed()


@frozen
class Loses:
    """The call is answered as if all were well, and nothing was done: a write, or an event, is lost."""

    def __call__(self, call: Call) -> Answer:
        """Answer without proceeding."""
        return call.answer_nothing()


class Gate:
    """Suspends a call, in its own thread, until it is released: `gate.reached.wait(); ...; gate.release()`.

    The call stands there before anything is done; or, with `after`, when all is done and the answer is on its way. A
    gate that nobody opens within `patience` seconds of real time raises, so that no test hangs.
    """

    def __init__(self, patience: float = 60.0, *, after: bool = False) -> None:
        self.reached = threading.Event()
        self._released = threading.Event()
        self._patience = patience
        self._after = after

    def release(self) -> None:
        """Let the call go on, and all that come after it."""
        self._released.set()

    def wait(self) -> None:
        """Stand at the gate.

        Raises:
            TimeoutError: nobody opened it.
        """
        self.reached.set()
        if not self._released.wait(self._patience):
            problem = f"nobody opened a gate within {self._patience:g} seconds"
            raise TimeoutError(problem)

    def __call__(self, call: Call) -> Answer:
        """Wait, then proceed; or the other way round."""
        if not self._after:
            self.wait()
            return call.proceed()
        answer = call.proceed()
        self.wait()
        return answer


# --- faults of some calls --------------------------------------------------------------------------------------------


@frozen
class AnswersNothing:
    """A plugin answers, for no container at all, or lists no device."""

    def __call__(self, call: Call) -> Answer:
        """Proceed, and drop the answer."""
        call.proceed()
        return call.answer_nothing()


@frozen
class AnswersShort:
    """A plugin prefers one device fewer than it was asked for."""

    def __call__(self, call: Call) -> tuple[DeviceId, ...]:
        """Drop the last id."""
        return tuple(call.proceed())[:-1]


@frozen
class AnswersTooLong:
    """A plugin prefers everything that it was offered."""

    def __call__(self, call: Call) -> tuple[DeviceId, ...]:
        """Add all that is available behind what was preferred."""
        return (*call.proceed(), *call.arguments[0])


@frozen
class AnswersForeign:
    """A plugin prefers devices that it was not offered: those of `ids`, or such as nobody has."""

    ids: tuple[str, ...] = ("foreign-0", "foreign-1", "foreign-2", "foreign-3")

    def __call__(self, call: Call) -> tuple[DeviceId, ...]:
        """Give other ids."""
        return tuple(DeviceId(id_) for id_ in self.ids[: max(1, len(call.proceed()))])


@frozen
class AnswersRepeated:
    """A plugin prefers one device, again and again."""

    def __call__(self, call: Call) -> tuple[DeviceId, ...]:
        """Repeat the first id."""
        answer = tuple(call.proceed())
        return answer[:1] * len(answer)


@frozen
class Tears:
    """A write leaves a file of which the beginning is new and the rest is old, and reports success.

    No store that keeps its promise does this. `fraction` of the new blob is written.
    """

    fraction: float = 0.5

    def __call__(self, call: Call) -> Answer:
        """Write the mixture."""
        (new,) = call.arguments
        old = call.adapter.load() or b""  # type: ignore[attr-defined]  # only a store is asked to save
        cut = int(len(new) * self.fraction)
        return call.proceed(new[:cut] + old[cut:])


DISK_FULL = Fails("No space left on device")
"""Every write fails until there is room again: `script.always("save", DISK_FULL)`, then `script.clear("save")`."""


@frozen
class Twice:
    """An event is told two times."""

    def __call__(self, call: Call) -> Answer:
        """Proceed again and again."""
        call.proceed()
        return call.proceed()


class Held:
    """An event is on its way until it is released, and others overtake it: a goodbye arrives after the next hello."""

    def __init__(self) -> None:
        self._calls: list[Call] = []

    def __call__(self, call: Call) -> Answer:
        """Keep the event back."""
        self._calls.append(call)
        return call.answer_nothing()

    def release(self) -> None:
        """Deliver what was kept back, in its order."""
        calls, self._calls = self._calls, []
        for call in calls:
            call.proceed()


# --- adapters --------------------------------------------------------------------------------------------------------


class FaultyTransport(PluginTransport):
    """Another transport, whose calls and events go wrong as `script` says.

    `timeout` is what a call may take, in seconds of `clock`, where its caller gives it no less.
    """

    def __init__(
        self,
        transport: PluginTransport,
        script: Script,
        clock: ManualClock | None = None,
        *,
        timeout: float = CALL_LIMIT,
    ) -> None:
        self._transport = transport
        self._script = script
        self._clock = ManualClock() if clock is None else clock
        self._timeout = timeout
        self._listener: Listener | None = None
        self._dropped: set[PluginId] = set()

    def start(self, listener: Listener) -> None:
        """Start the wrapped transport."""
        self._listener = listener
        self._transport.start(self.tell)

    def stop(self) -> None:
        """Stop the wrapped transport."""
        self._listener = None
        self._transport.stop()

    def tell(self, event: Event) -> None:
        """Deliver an event now: one of the wrapped transport, or one that it never had."""
        about = None if isinstance(event, RegistrationRequested) else event.plugin
        if self._listener is None or about in self._dropped:
            return
        call = Call(
            type(event).__name__,
            (event,),
            self._transport,
            self._clock,
            about=about,
            answer=self._listener,
            nothing=lambda: None,
            failure=lambda cause: PluginOptionsError(about.resource if about else "", cause),
        )
        self._script.play(call)

    def drop(self, plugin: PluginId) -> None:
        """End the stream of `plugin`: it says goodbye, is never heard again, and cannot be called."""
        self.tell(PluginLost(plugin))
        self._dropped.add(plugin)

    def allocate(self, plugin: PluginId, devices: Sequence[DeviceId], *, timeout: float | None = None) -> Receipt:
        """Ask `plugin` to prepare `devices`."""
        answer: Receipt = self._call(ALLOCATE, plugin, self._transport.allocate, (devices,), timeout)
        return answer

    def get_preferred_allocation(
        self,
        plugin: PluginId,
        available: Sequence[DeviceId],
        must_include: Sequence[DeviceId],
        size: int,
        *,
        timeout: float | None = None,
    ) -> tuple[DeviceId, ...]:
        """Ask `plugin` which devices it would give away."""
        question = (available, must_include, size)
        ask = self._transport.get_preferred_allocation
        answer: tuple[DeviceId, ...] = self._call(GET_PREFERRED_ALLOCATION, plugin, ask, question, timeout)
        return answer

    def pre_start_container(
        self, plugin: PluginId, devices: Sequence[DeviceId], *, timeout: float | None = None
    ) -> None:
        """Tell `plugin` of a start."""
        self._call(PRE_START_CONTAINER, plugin, self._transport.pre_start_container, (devices,), timeout)

    def read(self, receipt: Receipt) -> ContainerAllocateResponse:
        """What a receipt says."""
        return self._transport.read(receipt)

    def _call(
        self,
        method: str,
        plugin: PluginId,
        ask: Callable[..., Answer],
        arguments: tuple[object, ...],
        timeout: float | None,
    ) -> Answer:
        if plugin in self._dropped:
            raise PluginStoppedError(plugin.resource)
        limit = self._timeout if timeout is None else min(self._timeout, timeout)

        def nothing() -> Answer:
            if method == ALLOCATE:
                raise EmptyAllocateResponseError(plugin.resource)
            return () if method == GET_PREFERRED_ALLOCATION else None

        call = Call(
            method,
            arguments,
            self._transport,
            self._clock,
            limit,
            plugin,
            answer=lambda *changed: ask(plugin, *changed, timeout=limit),
            nothing=nothing,
            failure=lambda cause: PluginCallError(plugin.resource, method, cause),
        )
        return self._script.play(call)


class FaultyPlugin(DevicePlugin):
    """Another plugin, whose answers go wrong as `script` says; whoever calls it is taken to wait `timeout` seconds."""

    def __init__(
        self,
        plugin: DevicePlugin,
        script: Script,
        clock: ManualClock | None = None,
        *,
        timeout: float = CALL_LIMIT,
    ) -> None:
        self.resource: ResourceName = plugin.resource
        self.options = plugin.options
        self._plugin = plugin
        self._script = script
        self._clock = ManualClock() if clock is None else clock
        self._timeout = timeout

    def devices(self) -> tuple[Device, ...]:
        """What the wrapped plugin lists."""
        return tuple(self._call(LIST_AND_WATCH, self._plugin.devices, nothing=()))

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Hear of the wrapped plugin's changes."""
        return self._plugin.subscribe(changed)

    def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
        """Prepare devices."""
        nothing = ContainerAllocateResponse()
        answer: ContainerAllocateResponse = self._call(ALLOCATE, self._plugin.allocate, devices, nothing=nothing)
        return answer

    def get_preferred_allocation(
        self, available: Sequence[DeviceId], must_include: Sequence[DeviceId], size: int
    ) -> tuple[DeviceId, ...]:
        """Choose among devices."""
        choose = self._plugin.get_preferred_allocation
        return tuple(self._call(GET_PREFERRED_ALLOCATION, choose, available, must_include, size, nothing=()))

    def pre_start_container(self, devices: Sequence[DeviceId]) -> None:
        """Hear of a start."""
        self._call(PRE_START_CONTAINER, self._plugin.pre_start_container, devices, nothing=None)

    def _call(self, method: str, answer: Callable[..., Answer], *arguments: object, nothing: Answer) -> Answer:
        call = Call(
            method,
            arguments,
            self._plugin,
            self._clock,
            self._timeout,
            answer=answer,
            nothing=lambda: nothing,
            failure=RuntimeError,
        )
        return self._script.play(call)


class FaultyStore(CheckpointStore):
    """Another store, on a disk that fails as `script` says. Methods: `load`, `save` and `set_aside`."""

    def __init__(self, store: CheckpointStore, script: Script, clock: ManualClock | None = None) -> None:
        self._store = store
        self._script = script
        self._clock = ManualClock() if clock is None else clock

    def load(self) -> bytes | None:
        """The blob."""
        blob: bytes | None = self._call("load", "read", self._store.load)
        return blob

    def save(self, blob: bytes) -> None:
        """Replace the blob."""
        self._call("save", "write", self._store.save, blob)

    def set_aside(self) -> str | None:
        """Move the blob out of the way."""
        place: str | None = self._call("set_aside", "set aside", self._store.set_aside)
        return place

    def _call(self, method: str, action: str, answer: Callable[..., Answer], *arguments: object) -> Answer:
        call = Call(
            method,
            arguments,
            self._store,
            self._clock,
            answer=answer,
            nothing=lambda: None,
            failure=lambda cause: StoreError("checkpoint", action, cause),
        )
        return self._script.play(call)


class FaultySink(NodeStatusSink):
    """Another sink, which cannot always be reached: `script` says when. Method: `publish`."""

    def __init__(self, sink: NodeStatusSink, script: Script, clock: ManualClock | None = None) -> None:
        self._sink = sink
        self._script = script
        self._clock = ManualClock() if clock is None else clock

    def publish(self, status: NodeStatus) -> None:
        """Tell the wrapped sink."""
        call = Call(
            "publish",
            (status,),
            self._sink,
            self._clock,
            answer=self._sink.publish,
            nothing=lambda: None,
            failure=lambda cause: SinkError("a faulty sink", cause),
        )
        self._script.play(call)
