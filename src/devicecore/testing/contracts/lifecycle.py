"""The contract of every object that starts and stops (docs/maintain/managers.md, "Starting and stopping").

Law: an object uses threads, descriptors, processes and files only between its start and its stop.
"""

import gc
import os
import sys
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Protocol

from attrs import frozen

from devicecore.domain.errors import CalledFromInsideError, DeviceCoreError
from devicecore.ports.context import Runs
from devicecore.runtime import lifecycle
from devicecore.testing.contracts.expect import EVENT_TIMEOUT, Suite, expect, expect_error
from devicecore.testing.interrupts import Interrupts

_PAUSE = 0.005  # seconds between two checks for leftovers
_MOST_PLACES = 12  # about how many places in a start or stop are tried for nested calls
_STEP = 1  # the step from one interrupted place to the next; a test with little time uses a larger odd number
_SOON = 2.0  # if a call left something, it is repeated after this many seconds, to see whether it leaves as much again
_STILL = 20  # after this many checks without progress, a thread counts as waiting


class LifecycleHarness(Protocol):
    """Creates objects of a class that can be started and stopped."""

    @property
    def directory(self) -> Path | None:
        """The directory for the objects' files, which exist only during a run, or None if the objects have no files."""

    def new(self) -> Runs:
        """Create an object that is not started."""

    @property
    def modules(self) -> Sequence[ModuleType]:
        """The modules in which starts and stops are interrupted."""

    def use(self, subject: Runs) -> bool:
        """Use `subject` in a way that works only between its start and its stop.

        Return False if the object cannot be used in such a way.
        """

    def broken(self) -> AbstractContextManager[object] | None:
        """Return a context manager in which each start fails, or None if a start cannot fail."""

    def call_back(self, subject: Runs, action: Callable[[], object]) -> None:
        """Call `action` from inside each function that the running `subject` was given.

        If `subject` was given no functions, do nothing.
        """


MakeLifecycle = Callable[[], AbstractContextManager[LifecycleHarness]]
"""Creates a harness. When the harness's context ends, all its objects are stopped."""

LIFECYCLE: Suite[MakeLifecycle] = Suite()
"""The checks for every object that starts and stops."""


@LIFECYCLE.check
def a_constructor_starts_nothing(make: MakeLifecycle) -> None:
    """Creating an object uses no thread, descriptor, process or file."""
    with make() as harness:
        _warm_up(harness)
        before = _Taken.now(harness)
        subject = harness.new()
        expect("resources that the constructor acquired", _Taken.now(harness).beyond(before), {})
        subject.stop()


@LIFECYCLE.check
def a_second_start_does_nothing(make: MakeLifecycle) -> None:
    """Starting a running object acquires nothing that one stop would not release, and the object keeps running."""
    with make() as harness:
        before = _warm_up(harness)
        subject = harness.new()
        for _ in range(2):
            subject.start()
            harness.use(subject)
        subject.stop()
        _expect_nothing_left("after two starts and one stop", harness, before)


@LIFECYCLE.check
def starts_in_many_threads_are_one_start(make: MakeLifecycle) -> None:
    """Once any of several concurrent starts has returned, the object is running, and one stop ends the run."""
    with make() as harness:
        before = _warm_up(harness)
        subject = harness.new()
        for start in [_Call(subject.start).begin() for _ in range(4)]:
            start.result()
            harness.use(subject)
        subject.stop()
        _expect_nothing_left("after one stop", harness, before)


@LIFECYCLE.check
def a_start_inside_a_start_does_not_hang(make: MakeLifecycle) -> None:
    """A start from inside a start or a stop of the same object works or raises `CalledFromInsideError`."""
    _call_inside(make, _start)


@LIFECYCLE.check
def a_stop_inside_a_start_does_not_hang(make: MakeLifecycle) -> None:
    """A stop from inside a start or a stop of the same object works or raises `CalledFromInsideError`."""
    _call_inside(make, _stop)


@LIFECYCLE.check
def a_stop_in_a_callback_does_not_hang(make: MakeLifecycle) -> None:
    """A stop from inside a function that the object was given works or raises `CalledFromInsideError`."""
    with make() as harness:
        before = _warm_up(harness)
        subject = harness.new()
        subject.start()
        _Call(partial(harness.call_back, subject, partial(_works_or_is_refused, subject.stop))).begin().result()
        _Call(subject.stop).begin().result()
        _expect_nothing_left("after the stop", harness, before)


@LIFECYCLE.check
def a_failed_start_leaves_nothing(make: MakeLifecycle) -> None:
    """A start that fails leaves nothing running, and the object may be started again."""
    with make() as harness:
        before = _warm_up(harness)
        subject = harness.new()
        broken = harness.broken()
        if broken is not None:
            with broken:
                before_it = _Taken.now(harness)
                for _ in range(2):
                    expect_error("a start that cannot succeed", (DeviceCoreError, OSError), subject.start)
                    _expect_nothing_left("after a start that failed", harness, before_it)
        subject.start()
        harness.use(subject)
        subject.stop()
        _expect_nothing_left("after the stop", harness, before)


@LIFECYCLE.check
def a_stop_releases_everything(make: MakeLifecycle) -> None:
    """After a stop, this process has the same threads, descriptors, processes and files as before the start."""
    with make() as harness:
        before = _warm_up(harness)
        subject = harness.new()
        for _ in range(3):
            subject.start()
            harness.use(subject)
            subject.stop()
            _expect_nothing_left("after the stop", harness, before)


@LIFECYCLE.check
def a_second_stop_is_no_error(make: MakeLifecycle) -> None:
    """A stop before the start does nothing, and so does a second stop."""
    with make() as harness:
        subject = harness.new()
        subject.stop()
        subject.start()
        harness.use(subject)
        subject.stop()
        subject.stop()


@LIFECYCLE.check
def a_stop_during_a_start_makes_it_fail(make: MakeLifecycle) -> None:
    """If another thread stops the object during a start, the start fails and nothing is left."""
    with make() as harness:
        before = _warm_up(harness)
        failed = 0
        for at in _places(harness, _start):
            subject = harness.new()
            stop = _Call(subject.stop)
            point = Interrupts(at, *_modules(harness), then=stop.begin_and_wait)
            start = _Call(partial(point.interrupt, subject.start)).begin()
            failed += isinstance(start.error(), DeviceCoreError)
            stop.result()
            subject.stop()
            _expect_nothing_left("after a stop during a start", harness, before)
        expect("the state after a stop during a start", "failed" if failed else "succeeded", "failed")


@LIFECYCLE.check
def use_without_a_start_is_an_error(make: MakeLifecycle) -> None:
    """Before the first start and after a stop, methods that need a run raise an error that says that there is none."""
    with make() as harness:
        subject = harness.new()
        for when in ("before the start", "after the stop"):
            try:
                is_used = harness.use(subject)
            except DeviceCoreError as error:
                says_so = "not started" in str(error) or "not running" in str(error)
                expect(f"the error from a call {when}", error, error if says_so else "an error that says `not started`")
            else:
                expect(f"a use {when}", "no error" if is_used else "no use", "no use")
            subject.start()
            harness.use(subject)
            subject.stop()


@LIFECYCLE.check
def a_context_starts_and_stops(make: MakeLifecycle) -> None:
    """Entering the context starts the object, and leaving it stops the object, even if the block has failed."""
    with make() as harness:
        before = _warm_up(harness)
        for _ in range(2):
            with suppress(LookupError), harness.new() as subject:
                harness.use(subject)
                raise LookupError
            _expect_nothing_left("after the context", harness, before)


@LIFECYCLE.check
def an_interrupted_start_leaves_nothing(make: MakeLifecycle) -> None:
    """After a start is interrupted at any place, a stop releases everything, and a new start works."""
    _interrupt(make, _start)


@LIFECYCLE.check
def an_interrupted_stop_leaves_nothing(make: MakeLifecycle) -> None:
    """After a stop is interrupted anywhere, another stop releases everything, and a new start works."""
    _interrupt(make, _stop)


# --- resources in use -------------------------------------------------------------------------------------------------


@frozen
class _Taken:
    """The resources that this process has at some point in time."""

    threads: frozenset[threading.Thread]
    descriptors: "Counter[str]"
    processes: frozenset[int]
    files: frozenset[str]

    @classmethod
    def now(cls, harness: LifecycleHarness) -> "_Taken":
        files = () if harness.directory is None else harness.directory.rglob("*")
        return cls(
            frozenset(threading.enumerate()),
            Counter(_descriptors()),
            frozenset(_children()),
            frozenset(str(path) for path in files if not path.is_dir()),
        )

    def beyond(self, before: "_Taken") -> dict[str, list[str]]:
        """Return the resources that are missing from `before`, by kind."""
        more = {
            "threads": sorted(thread.name for thread in self.threads - before.threads),
            "descriptors": sorted((self.descriptors - before.descriptors).elements()),
            "processes": sorted(map(str, self.processes - before.processes)),
            "files": sorted(self.files - before.files),
        }
        return {kind: names for kind, names in more.items() if names}


def _descriptors() -> Iterator[str]:
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the directory's own descriptor, or one that another thread is closing
            yield entry.readlink().name.partition(":[")[0]


def _children() -> Iterator[int]:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # without children, there is no need to check every process on the machine
        return
    threads = list(Path("/proc/self/task").glob("*/children"))
    for of_thread in threads:
        with suppress(OSError):  # the thread has just ended, and its children belong to another thread
            yield from map(int, of_thread.read_bytes().split())
    for entry in () if threads else Path("/proc").glob("[0-9]*/stat"):  # without CONFIG_PROC_CHILDREN
        with suppress(OSError):  # the process has just ended
            if int(entry.read_bytes().rpartition(b")")[2].split()[1]) == os.getpid():
                yield int(entry.parent.name)


def _warm_up(harness: LifecycleHarness) -> _Taken:
    """Run one object, because a library may keep resources from its first use.

    Return the resources that are in use afterwards.
    """
    with harness.new() as subject:
        harness.use(subject)
    del subject  # otherwise, what `subject` still holds after its stop would count as acquired before
    gc.collect()
    return _Taken.now(harness)


def _expect_nothing_left(when: str, harness: LifecycleHarness, before: _Taken) -> None:
    expect(f"resources that are left {when}", _left(harness, before), {})


def _expect_no_growth(when: str, harness: LifecycleHarness, action: Callable[[], None]) -> None:
    """Call `action`. If something is left, call `action` again: resources that a library caches do not grow twice."""
    before = _Taken.now(harness)
    action()
    if _left(harness, before, _SOON):
        before = _Taken.now(harness)
        action()
        _expect_nothing_left(f"{when}, each time", harness, before)


def _left(harness: LifecycleHarness, before: _Taken, timeout: float | None = None) -> dict[str, list[str]]:
    deadline = time.monotonic() + (EVENT_TIMEOUT if timeout is None else timeout)
    while (left := _Taken.now(harness).beyond(before)) and time.monotonic() < deadline:
        gc.collect()  # gRPC releases some resources when its objects are deleted
        time.sleep(_PAUSE)  # a thread that has finished its work may not have ended yet
    return left


# --- calls that may hang, and nested calls ---------------------------------------------------------


class _Call:
    """A call in a daemon thread, so that a hanging call fails only the check."""

    def __init__(self, action: Callable[[], object]) -> None:
        self._action = action
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin(self) -> "_Call":
        """Begin the call."""
        self._thread.start()
        return self

    def begin_and_wait(self) -> None:
        """Begin the call, and wait until it has ended or is waiting for something."""
        self.begin()
        seen, still = "", 0
        while self._thread.is_alive() and still < _STILL:
            now = _state_of(self._thread)
            seen, still = now, still + 1 if now == seen and now.startswith("S") else 0
            time.sleep(_PAUSE)

    def error(self) -> BaseException | None:
        """Return the error that the call raised, or None. Raises AssertionError if the call has not ended in time."""
        if self._thread.ident is None:
            return None
        self._thread.join(EVENT_TIMEOUT)
        if self._thread.is_alive():
            frame = sys._current_frames().get(self._thread.ident)  # noqa: SLF001 - documented
            where = "".join(traceback.format_stack(frame))
            message = f"expected the call to end within {EVENT_TIMEOUT:g} s; it is at\n{where}"
            raise AssertionError(message)
        return self._error

    def result(self) -> None:
        """Wait until the call ends, and raise whatever it raised."""
        error = self.error()
        if error is not None:
            raise error

    def _run(self) -> None:
        try:
            self._action()
        except BaseException as error:  # noqa: BLE001 - the caller raises it again
            self._error = error


def _state_of(thread: threading.Thread) -> str:
    """Return the state of a thread, such as `S` for sleeping, and its context switches, or "" if it has ended."""
    try:
        lines = Path(f"/proc/self/task/{thread.native_id}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    values = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return f"{values['State']} {values['voluntary_ctxt_switches']} {values['nonvoluntary_ctxt_switches']}"


def _start(subject: Runs) -> None:
    subject.start()


def _stop(subject: Runs) -> None:
    subject.stop()


def _modules(harness: LifecycleHarness) -> tuple[ModuleType, ...]:
    return (lifecycle, *harness.modules)


def _places(harness: LifecycleHarness, method: Callable[[Runs], None]) -> Sequence[int]:
    """Return the numbers of a few evenly spaced places in a start or stop."""
    point = Interrupts(sys.maxsize, *_modules(harness))
    with _prepared(harness, method) as subject:
        point.interrupt(partial(method, subject))
    step = max(1, point.passed // _MOST_PLACES)
    return range(1, point.passed + 1, step)


@contextmanager
def _prepared(harness: LifecycleHarness, method: Callable[[Runs], None]) -> Iterator[Runs]:
    """Create an object on which `method` can be called, and stop it at the end."""
    subject = harness.new()
    if method is _stop:
        subject.start()
    try:
        yield subject
    finally:
        _Call(subject.stop).begin().result()


def _call_inside(make: MakeLifecycle, inner: Callable[[Runs], None]) -> None:
    with make() as harness:
        _warm_up(harness)

        def call(outer: Callable[[Runs], None], at: int) -> None:
            with _prepared(harness, outer) as subject:
                point = Interrupts(at, *_modules(harness), then=partial(_works_or_is_refused, partial(inner, subject)))
                _Call(partial(point.interrupt, partial(outer, subject))).begin().result()

        for outer in (_start, _stop):
            for at in _places(harness, outer):
                _expect_no_growth(f"after a call inside a {outer.__name__[1:]}", harness, partial(call, outer, at))


def _works_or_is_refused(action: Callable[[], object]) -> None:
    with suppress(CalledFromInsideError):
        action()


def _interrupt(make: MakeLifecycle, method: Callable[[Runs], None]) -> None:
    with make() as harness, warnings.catch_warnings():
        for kind in (ResourceWarning, RuntimeWarning):  # an object that was lost in an interrupt is closed late
            warnings.simplefilter("ignore", kind)
        _warm_up(harness)
        point = Interrupts(0)

        def interrupt(*, is_started_again: bool) -> None:
            nonlocal point
            with _prepared(harness, method) as subject:
                point = Interrupts(at, *_modules(harness))
                _Call(partial(point.interrupt, partial(method, subject))).begin().result()
                if is_started_again:
                    _Call(subject.start).begin().result()
                    harness.use(subject)

        for at in count(1, _STEP):
            when = f"after an interrupt of a {method.__name__[1:]} at place {at} and a stop"
            _expect_no_growth(when, harness, partial(interrupt, is_started_again=at % 2 == 0))
            if not point.is_reached:
                break
