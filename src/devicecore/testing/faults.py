"""Adapters that wrap other adapters and fail when a script says so.

Law: without an entry in its script, a faulty adapter changes nothing. An entry changes only the calls that it names.
Time passes only on a `ManualClock`. Nothing here waits except a `Gate`, which the test opens.

A fault is called in place of the adapter: any function that takes a `Call` and answers it. Faults can be combined: the
first fault is called, and if it proceeds, the next one is called.
"""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn, Protocol, TypeVar

from attrs import define, evolve, field, frozen

from devicecore.domain.capacity import NodeStatus
from devicecore.domain.checks import (
    check_adapter,
    check_callables,
    check_seconds,
    checked,
    expected,
    is_seconds,
)
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
from devicecore.domain.model import Device, DeviceId, PluginId, PluginOptions, Receipt, ResourceName
from devicecore.ports.plugin import DevicePlugin
from devicecore.ports.sink import NodeStatusSink
from devicecore.ports.store import CheckpointStore
from devicecore.ports.transport import Listener, PluginTransport
from devicecore.system.arguments import checks_arguments, checks_fields

__all__ = [
    "DISK_FULL",
    "Answer",
    "AnswersForeign",
    "AnswersLate",
    "AnswersNothing",
    "AnswersRepeated",
    "AnswersShort",
    "AnswersTooLong",
    "Call",
    "Delayed",
    "DeliveredTwice",
    "Fails",
    "FailsAfterwards",
    "Fault",
    "FaultyPlugin",
    "FaultySink",
    "FaultyStore",
    "FaultyTransport",
    "Gate",
    "Loses",
    "ManualClock",
    "Meanwhile",
    "NeverAnswers",
    "Script",
    "TakesTime",
    "Tears",
]

ALLOCATE = "Allocate"
GET_PREFERRED_ALLOCATION = "GetPreferredAllocation"
PRE_START_CONTAINER = "PreStartContainer"
LIST_AND_WATCH = "ListAndWatch"

_PORTS = "save", "load", "set_aside", "publish"
_EVENTS = "RegistrationRequested", "PluginRegistered", "DevicesReported", "PluginLost"

CALL_LIMIT = 30.0
"""The maximum number of seconds for a call to a plugin, unless the caller gives a shorter timeout."""

_DEADLINE_EXCEEDED = "rpc error: code = DeadlineExceeded desc = context deadline exceeded"

T = TypeVar("T")
Answer = Any  # the answer of any method of any port


@checks_fields
@define
class ManualClock:
    """A clock that moves only when `advance` is called.

    Give the same clock to the manager and to the faulty adapters.
    """

    now: float = 0.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Move the clock forward. Raises TypeError or ValueError unless `seconds` is a number of at least 0."""
        check_seconds("ManualClock.advance", seconds)
        self.now += seconds


# --- scripts ---------------------------------------------------------------------------------------------------------


@frozen
class Call:
    """A call to a method, to be answered by a fault.

    `arguments` are the arguments of the port's method, except the plugin instance and the timeout, which are in
    `plugin` and `timeout`. `adapter` is the wrapped adapter. A transport's event is also a call; its method is the
    event's name.
    """

    method: str
    arguments: tuple[Any, ...]
    adapter: object
    clock: ManualClock
    timeout: float = CALL_LIMIT
    plugin: PluginId | None = None
    _answer: Callable[..., Answer] = field(kw_only=True)
    _nothing: Callable[[], Answer] = field(kw_only=True)
    _failure: Callable[[str], Exception] = field(kw_only=True)

    def proceed(self, *arguments: object) -> Answer:
        """Call the wrapped adapter, with different arguments if any are given, and return its answer."""
        return self._answer(*(arguments or self.arguments))

    def answer_nothing(self) -> Answer:
        """Return an empty answer.

        Raises:
            EmptyAllocateResponseError: the call is a transport's Allocate, which reports an empty answer in this way.
        """
        return self._nothing()

    def fail(self, cause: str) -> NoReturn:
        """Fail in the way that the port documents for this method, with `cause` as the reason.

        Raises:
            DeviceCoreError: the error that the port documents, or `RuntimeError` for a plugin's method.
        """
        raise self._failure(cause)

    def answer_with(self, faults: Sequence["Fault"]) -> Answer:
        """Answer the call with `faults`.

        The first fault is called. If that fault proceeds, the next one is called, and after the last one the adapter.
        """
        if not faults:
            return self.proceed()
        first, *others = faults
        return first(evolve(self, answer=lambda *changed: evolve(self, arguments=changed).answer_with(others)))


class Fault(Protocol):
    """A function that is called in place of the adapter."""

    def __call__(self, call: Call) -> Answer:
        """Answer `call`, or raise an error."""


class Script:
    """Defines which calls have which faults. Several adapters may share one script.

    Methods have the names that they have in the ports (`save`, `load`, `set_aside`, `publish`). Calls to plugins have
    the names in the device plugin API (`Allocate`, `ListAndWatch`, ...), and events have the names of their classes
    (`PluginLost`, ...). Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._standing: dict[str, tuple[Fault, ...]] = {}
        self._due: list[tuple[str, int, tuple[Fault, ...]]] = []
        self._calls: dict[str, int] = {}

    @checks_arguments("faults", "nth")
    def on(self, method: str, *faults: Fault, nth: int = 1) -> None:
        """Use `faults` for the `nth` call to `method` from now on. Other calls are not affected.

        Raises ValueError if `method` differs from the name of a call only in capitalization or underscores, as
        `allocate` differs from `Allocate`. Raises TypeError if a fault is a class, or cannot be called with one
        argument.
        """
        _check(method, faults)
        checked(nth, int, "Script.on: nth")
        with self._lock:
            self._due.append((method, self._calls.get(method, 0) + nth, faults))

    @checks_arguments("faults")
    def always(self, method: str, *faults: Fault) -> None:
        """Use `faults` for every call to `method`, before the faults of `on`. Raises errors as `on` does."""
        _check(method, faults)
        with self._lock:
            self._standing[method] = (*self._standing.get(method, ()), *faults)

    @checks_arguments()
    def clear(self, *methods: str) -> None:
        """Remove the faults of `methods`, or of all methods if `methods` is empty."""
        with self._lock:
            self._due = [entry for entry in self._due if methods and entry[0] not in methods]
            for method in methods or tuple(self._standing):
                self._standing.pop(method, None)

    def run(self, call: Call) -> Answer:
        """Answer `call` with the faults that this script defines for it."""
        return call.answer_with(self._next(call.method))

    def _next(self, method: str) -> list[Fault]:
        with self._lock:
            if not self._standing and not self._due:
                return []
            self._calls[method] = number = self._calls.get(method, 0) + 1
            now = [entry for entry in self._due if entry[:2] == (method, number)]
            self._due = [entry for entry in self._due if entry not in now]
            return [*self._standing.get(method, ()), *(fault for entry in now for fault in entry[2])]


def _check(method: str, faults: Sequence[Fault]) -> None:
    _check_method(method)
    check_callables("Script: fault", faults, "the call")


def _check_method(method: str) -> None:
    """Refuse a name that no call will ever have. Third-party adapters may have calls whose names are unknown here."""
    for known in (ALLOCATE, GET_PREFERRED_ALLOCATION, PRE_START_CONTAINER, LIST_AND_WATCH, *_PORTS, *_EVENTS):
        if method != known and method.replace("_", "").casefold() == known.replace("_", "").casefold():
            raise ValueError(expected("Script", f"the name of a call, such as {known!r}", method))


# --- faults of any call ----------------------------------------------------------------------------------------------


@checks_fields
@frozen
class Fails:
    """The call fails, and the adapter is not called."""

    cause: str = "Input/output error"

    def __call__(self, call: Call) -> NoReturn:
        """Fail."""
        call.fail(self.cause)


@checks_fields
@frozen
class FailsAfterwards:
    """The call fails although the adapter does what is requested."""

    cause: str = "Input/output error"

    def __call__(self, call: Call) -> NoReturn:
        """Proceed, then fail."""
        call.proceed()
        call.fail(self.cause)


@frozen
class NeverAnswers:
    """The call gets no response: the adapter is not called, and the caller's timeout expires."""

    def __call__(self, call: Call) -> NoReturn:
        """Wait for the timeout to pass, then fail."""
        call.clock.advance(call.timeout)
        call.fail(_DEADLINE_EXCEEDED)


@checks_fields
@frozen
class AnswersLate:
    """The adapter does what is requested, but responds `by` seconds after the caller's timeout."""

    by: float = field(default=1.0, validator=is_seconds)

    def __call__(self, call: Call) -> NoReturn:
        """Proceed, wait for the timeout and `by` more seconds to pass, then fail."""
        call.proceed()
        call.clock.advance(call.timeout + self.by)
        call.fail(_DEADLINE_EXCEEDED)


@checks_fields
@frozen
class TakesTime:
    """The response takes `seconds` and is always returned, as with an in-memory adapter, which has no timeouts."""

    seconds: float = field(validator=is_seconds)

    def __call__(self, call: Call) -> Answer:
        """Proceed, and wait for `seconds` to pass."""
        answer = call.proceed()
        call.clock.advance(self.seconds)
        return answer


@checks_fields
@frozen
class Meanwhile:
    """`action` is called while the call is in progress, before the adapter is called."""

    action: Callable[[], object]

    def __call__(self, call: Call) -> Answer:
        """Call `action`, then proceed."""
        self.action()
        return call.proceed()


@frozen
class Loses:
    """The adapter is not called, and a call without a result returns normally, so a write or an event is lost."""

    def __call__(self, call: Call) -> Answer:
        """Return an empty answer without proceeding."""
        return call.answer_nothing()


class Gate:
    """Suspends a call in its own thread until the test releases it: `gate.reached.wait(); ...; gate.release()`.

    Args:
        timeout: seconds of real time after which a waiting call raises `TimeoutError`, so that no test hangs.
        after: whether to suspend the call after the adapter has been called, rather than before.
    """

    @checks_arguments()
    def __init__(self, timeout: float = 60.0, *, after: bool = False) -> None:
        self.reached: threading.Event = threading.Event()
        self._released = threading.Event()
        self._timeout = timeout
        self._after = after

    def release(self) -> None:
        """Resume the suspended call, and let all later calls pass."""
        self._released.set()

    def wait(self) -> None:
        """Wait until `release` is called.

        Raises:
            TimeoutError: `release` was not called in time.
        """
        self.reached.set()
        if not self._released.wait(self._timeout):
            problem = f"expected Gate.release() within {self._timeout:g} s, but it was not called"
            raise TimeoutError(problem)

    def __call__(self, call: Call) -> Answer:
        """Wait and proceed, or with `after` proceed and wait."""
        if not self._after:
            self.wait()
            return call.proceed()
        answer = call.proceed()
        self.wait()
        return answer


# --- faults of some calls --------------------------------------------------------------------------------------------


@frozen
class AnswersNothing:
    """A plugin's answer or list is empty."""

    def __call__(self, call: Call) -> Answer:
        """Proceed, and return an empty answer."""
        call.proceed()
        return call.answer_nothing()


@frozen
class AnswersShort:
    """A plugin prefers one device fewer than requested."""

    def __call__(self, call: Call) -> tuple[DeviceId, ...]:
        """Proceed, and remove the last id from the answer."""
        return tuple(call.proceed())[:-1]


@frozen
class AnswersTooLong:
    """A plugin prefers more devices than requested: all available devices."""

    def __call__(self, call: Call) -> tuple[DeviceId, ...]:
        """Proceed, and add all available ids to the end of the answer."""
        return (*call.proceed(), *call.arguments[0])


@checks_fields
@frozen
class AnswersForeign:
    """A plugin prefers devices that are not available: `ids`, by default ids that no plugin has."""

    ids: tuple[str, ...] = ("foreign-0", "foreign-1", "foreign-2", "foreign-3")

    def __call__(self, call: Call) -> tuple[DeviceId, ...]:
        """Proceed, and return as many of `ids` as the answer has, but at least one."""
        return tuple(DeviceId(id_) for id_ in self.ids[: max(1, len(call.proceed()))])


@frozen
class AnswersRepeated:
    """A plugin names the same device several times."""

    def __call__(self, call: Call) -> tuple[DeviceId, ...]:
        """Proceed, and replace the answer with one that repeats its first id."""
        answer = tuple(call.proceed())
        return answer[:1] * len(answer)


@checks_fields
@frozen
class Tears:
    """A write reports success, but only the first part of the blob is new, and the rest is old.

    A correct store never leaves such a mixture. `fraction` is the part of the new blob that is written, from 0 to 1.
    """

    fraction: float = field(default=0.5)

    @fraction.validator
    def _is_a_part(self, _: object, fraction: float) -> None:
        if not 0 <= fraction <= 1:
            raise ValueError(expected("Tears.fraction", "a number from 0 to 1", fraction))

    def __call__(self, call: Call) -> Answer:
        """Write the first part of the new blob and the rest of the old one."""
        (new,) = call.arguments
        old = call.adapter.load() or b""  # type: ignore[attr-defined]  # only a store has the method `save`
        cut = int(len(new) * self.fraction)
        return call.proceed(new[:cut] + old[cut:])


DISK_FULL = Fails("No space left on device")
"""The error that a full disk causes: `script.always("save", DISK_FULL)`, and later `script.clear("save")`."""


@frozen
class DeliveredTwice:
    """An event is delivered twice."""

    def __call__(self, call: Call) -> Answer:
        """Proceed twice."""
        call.proceed()
        return call.proceed()


class Delayed:
    """An event is delayed until `release`, so later events overtake it.

    For example, a plugin's loss is delivered only after its next registration.
    """

    def __init__(self) -> None:
        self._calls: list[Call] = []

    def __call__(self, call: Call) -> Answer:
        """Delay the event."""
        self._calls.append(call)
        return call.answer_nothing()

    def release(self) -> None:
        """Deliver the delayed events in order."""
        calls, self._calls = self._calls, []
        for call in calls:
            call.proceed()


# --- adapters --------------------------------------------------------------------------------------------------------


class _Faulty:
    """The base of the adapters below: a wrapped adapter, a script, and a clock.

    Raises TypeError if an argument has the wrong type, or if the adapter is a class.
    """

    def __init__(self, adapter: object, port: type, script: Script, clock: ManualClock | None) -> None:
        name = type(self).__name__
        checked(script, Script, f"{name}: script")
        if clock is not None:
            checked(clock, ManualClock, f"{name}: clock")
        check_adapter(f"{name}: the first argument", adapter, port)
        self._adapter = adapter
        self._script = script
        self._clock = ManualClock() if clock is None else clock

    def _run(
        self,
        method: str,
        answer: Callable[..., T],
        arguments: tuple[object, ...],
        failure: Callable[[str], Exception],
        *,
        nothing: Callable[[], Answer] = lambda: None,
        timeout: float = CALL_LIMIT,
        plugin: PluginId | None = None,
    ) -> T:
        given = method, arguments, self._adapter, self._clock, timeout, plugin
        answered: T = self._script.run(Call(*given, answer=answer, nothing=nothing, failure=failure))
        return answered


class FaultyTransport(_Faulty, PluginTransport):
    """Wraps a transport; `script` says which calls and events have faults.

    A call may take `CALL_LIMIT` seconds of `clock`, unless its caller gives a shorter timeout.
    """

    def __init__(self, transport: PluginTransport, script: Script, clock: ManualClock | None = None) -> None:
        super().__init__(transport, PluginTransport, script, clock)
        self._transport = transport
        self._listener: Listener | None = None
        self._dropped: set[PluginId] = set()

    def start(self, listener: Listener) -> None:
        """Start the wrapped transport."""
        self._listener = listener
        self._transport.start(self.notify)

    def stop(self) -> None:
        """Stop the wrapped transport."""
        self._listener = None
        self._transport.stop()

    def notify(self, event: Event) -> None:
        """Deliver an event to the listener, from the wrapped transport or from the test."""
        plugin = None if isinstance(event, RegistrationRequested) else event.plugin
        if self._listener is None or plugin in self._dropped:
            return

        def failure(cause: str) -> Exception:
            return PluginOptionsError(plugin.resource if plugin else "", cause)

        self._run(type(event).__name__, self._listener, (event,), failure, plugin=plugin)

    def drop(self, plugin: PluginId) -> None:
        """Disconnect `plugin`: the listener gets `PluginLost` and no later event, and calls to the plugin fail."""
        self.notify(PluginLost(plugin))
        self._dropped.add(plugin)

    def allocate(self, plugin: PluginId, devices: Sequence[DeviceId], *, timeout: float | None = None) -> Receipt:
        """Call Allocate for `plugin`."""
        return self._call(ALLOCATE, plugin, self._transport.allocate, (devices,), timeout)

    def get_preferred_allocation(
        self,
        plugin: PluginId,
        available: Sequence[DeviceId],
        must_include: Sequence[DeviceId],
        size: int,
        *,
        timeout: float | None = None,
    ) -> tuple[DeviceId, ...]:
        """Call GetPreferredAllocation for `plugin`."""
        question = (available, must_include, size)
        ask = self._transport.get_preferred_allocation
        return self._call(GET_PREFERRED_ALLOCATION, plugin, ask, question, timeout)

    def pre_start_container(
        self, plugin: PluginId, devices: Sequence[DeviceId], *, timeout: float | None = None
    ) -> None:
        """Call PreStartContainer for `plugin`."""
        self._call(PRE_START_CONTAINER, plugin, self._transport.pre_start_container, (devices,), timeout)

    def read(self, receipt: Receipt) -> ContainerAllocateResponse:
        """Read a receipt with the wrapped transport."""
        return self._transport.read(receipt)

    def _call(
        self, method: str, plugin: PluginId, ask: Callable[..., T], arguments: tuple[object, ...], timeout: float | None
    ) -> T:
        if plugin in self._dropped:
            raise PluginStoppedError(plugin.resource)
        limit = CALL_LIMIT if timeout is None else min(CALL_LIMIT, timeout)

        def answer(*changed: object) -> T:
            return ask(plugin, *changed, timeout=limit)

        def nothing() -> Answer:
            if method == ALLOCATE:
                raise EmptyAllocateResponseError(plugin.resource)
            return () if method == GET_PREFERRED_ALLOCATION else None

        failure = partial(PluginCallError, plugin.resource, method)
        return self._run(method, answer, arguments, failure, nothing=nothing, timeout=limit, plugin=plugin)


class FaultyPlugin(_Faulty, DevicePlugin):
    """Wraps a plugin; `script` says which answers have faults.

    Callers of the plugin wait for `CALL_LIMIT` seconds of `clock`.
    """

    def __init__(self, plugin: DevicePlugin, script: Script, clock: ManualClock | None = None) -> None:
        super().__init__(plugin, DevicePlugin, script, clock)
        self.resource: ResourceName = plugin.resource
        self.options: PluginOptions = plugin.options
        self._plugin = plugin

    def devices(self) -> tuple[Device, ...]:
        """List the devices of the wrapped plugin."""
        return tuple(self._call(LIST_AND_WATCH, self._plugin.devices, nothing=()))

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Subscribe to changes of the wrapped plugin's list."""
        return self._plugin.subscribe(changed)

    def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
        """Call the wrapped plugin's `allocate`."""
        nothing = ContainerAllocateResponse()
        return self._call(ALLOCATE, self._plugin.allocate, devices, nothing=nothing)

    def get_preferred_allocation(
        self, available: Sequence[DeviceId], must_include: Sequence[DeviceId], size: int
    ) -> tuple[DeviceId, ...]:
        """Call the wrapped plugin's `get_preferred_allocation`."""
        choose = self._plugin.get_preferred_allocation
        return tuple(self._call(GET_PREFERRED_ALLOCATION, choose, available, must_include, size, nothing=()))

    def pre_start_container(self, devices: Sequence[DeviceId]) -> None:
        """Call the wrapped plugin's `pre_start_container`."""
        self._call(PRE_START_CONTAINER, self._plugin.pre_start_container, devices, nothing=None)

    def _call(self, method: str, answer: Callable[..., T], *arguments: object, nothing: Answer) -> T:
        return self._run(method, answer, arguments, RuntimeError, nothing=lambda: nothing)


class FaultyStore(_Faulty, CheckpointStore):
    """Wraps a store. `script` says which calls to `load`, `save` and `set_aside` have faults."""

    def __init__(self, store: CheckpointStore, script: Script, clock: ManualClock | None = None) -> None:
        super().__init__(store, CheckpointStore, script, clock)
        self._store = store

    def load(self) -> bytes | None:
        """Load the blob."""
        return self._run("load", self._store.load, (), partial(StoreError, "checkpoint", "read"))

    def save(self, blob: bytes) -> None:
        """Save the blob."""
        self._run("save", self._store.save, (blob,), partial(StoreError, "checkpoint", "write"))

    def set_aside(self) -> str | None:
        """Set the blob aside."""
        return self._run("set_aside", self._store.set_aside, (), partial(StoreError, "checkpoint", "set aside"))


class FaultySink(_Faulty, NodeStatusSink):
    """Wraps a sink. `script` says which calls to `publish` have faults."""

    def __init__(self, sink: NodeStatusSink, script: Script, clock: ManualClock | None = None) -> None:
        super().__init__(sink, NodeStatusSink, script, clock)
        self._sink = sink

    def publish(self, status: NodeStatus) -> None:
        """Publish to the wrapped sink."""
        self._run("publish", self._sink.publish, (status,), partial(SinkError, "a faulty sink"))
