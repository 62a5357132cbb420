"""Checks in two parts: one before an event, such as a reboot, and one after it.

Law: if several of the chosen checks need the same event, the event happens only once for all of them, and once more for
a check for which the others left no free device. The checks' first parts run, then the event happens, then each second
part runs when its check's turn comes.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import suppress
from enum import Enum
from functools import partial

from attrs import evolve, field, frozen

from devicecore_tools.conformance.dra.allocator import AllocationError
from devicecore_tools.conformance.dra.claims import Claim
from devicecore_tools.conformance.dra.driver import DriverUnderTest
from devicecore_tools.conformance.model import Check, DevicesInUse, Failure, Severity, Skip, applies_always, impossible
from devicecore_tools.testing.api_server import ApiError

IMPOSSIBLE = (AllocationError, ApiError, OSError)
"""Errors that prevent a check from running, such as the API server refusing one of the check's objects."""


Parts = Generator[None, None, str]
"""The two parts of a check: the generator yields once and returns the check's sentence."""


@frozen
class Occurrence:
    """An event that happens between the two parts of a check.

    Attributes:
        name: what happens, in a few words.
        begin: triggers the event.
        end: waits until the event is over; may do nothing.
        undo: called after the last of the event's checks; may do nothing.
        before: called before the first parts; may do nothing.
        keeps_claims: whether the event leaves everything that the driver created for prepared claims unchanged.
        damages_state: whether the driver's state is damaged until `undo` was called. The driver may then refuse claims
            that have nothing to do with the check.
    """

    name: str
    begin: Callable[[DriverUnderTest], object]
    end: Callable[[DriverUnderTest], object] = lambda _: None
    undo: Callable[[DriverUnderTest], object] = lambda _: None
    before: Callable[[DriverUnderTest], object] = lambda _: None
    keeps_claims: bool = True
    damages_state: bool = False


@frozen(eq=False)
class TwoParts:
    """The `look` of a two-part check."""

    event: Occurrence
    parts: Callable[[DriverUnderTest], Parts]

    def __call__(self, driver: DriverUnderTest) -> str:
        """Run this check alone: the event happens now, just for this check. `Steps` lets checks share an event."""
        return Steps(driver, (self,)).finish(self)

    @property
    def check(self) -> str:
        """The name of the check."""
        return name_of(self.parts)


@frozen(eq=False)
class _Begun:
    parts: Parts
    claims: list[Claim]
    ended: Exception | None = None


@frozen(eq=False)
class Steps:
    """One run's two-part checks, and the events that have happened."""

    driver: DriverUnderTest
    looks: tuple[TwoParts, ...]
    _begun: dict[TwoParts, _Begun] = field(factory=dict)
    _over: set[str] = field(factory=set)
    _finished: set[TwoParts] = field(factory=set)
    _early: dict[TwoParts, str | Failure | Skip] = field(factory=dict)  # what second parts have found before their turn
    _undone: set[str] = field(factory=set)
    _problems: dict[str, Skip] = field(factory=dict)
    _before: dict[str, Mapping[tuple[str, str], object]] = field(factory=dict)  # the devices before each event

    def begin(self, event: Occurrence) -> None:
        """Run the first parts of the event's checks, and trigger the event. Do nothing if no check needs the event."""
        mine = [look for look in self.looks if look.event is event]
        if not mine or mine[0] in self._begun:
            return
        event.before(self.driver)
        for look in mine:
            self._begun[look] = self._first_part(look)
        self._before[event.name] = dict(self.driver.slices.by_key)
        self.driver.calls.observer.is_paused = event.damages_state
        try:
            event.begin(self.driver)
            self.driver.calls.observer.happens(event.name, keeps_claims=event.keeps_claims)
        except Skip as skip:
            self._problems[event.name] = skip
        except OSError as error:  # such as a directory that the driver has deleted
            self._problems[event.name] = Skip(f"the event could not be triggered ({event.name}): {error}")

    def _first_part(self, look: TwoParts) -> _Begun:
        """Run the first part of a check.

        A crash during the first part counts against this check, not against the check whose turn it is.
        """
        parts, process, exits = look.parts(self.driver), self.driver.process, len(self.driver.process.exits)
        claims: list[Claim] = []
        problem: Failure | Skip | None = None
        with self.driver.claims.owning(claims):
            try:
                next(parts)
            except (Failure, Skip) as error:
                problem = error
            except IMPOSSIBLE as error:
                problem = impossible(error)
            if isinstance(problem, DevicesInUse):  # the claims that it does have would keep devices from the others
                self.driver.calls.clean_up()
        if problem is not None and process.is_leaving:
            process.wait_for_exit()
        if len(process.exits) > exits:
            process.blame(look.check)
            problem = None if problem is None else process.with_exits(look.check, problem, exits)
        return _Begun(parts, claims, problem)

    def abandon(self, reason: str) -> None:
        """For all events that have happened, skip the second parts that have not been run yet."""
        for look in self._begun.keys() - self._finished:
            self._problems.setdefault(look.event.name, Skip(reason))

    def finish(self, look: TwoParts) -> str:
        """Run the second part of a check, after the first part and the event if they have not happened yet.

        Raises Failure if the check failed. Raises Skip if the check cannot be run.
        """
        try:
            if self._lacks_devices(look):
                # The event's other checks left no free device, so the event happens once more, just for this check.
                if look.event.damages_state:  # and must not happen to a state that is damaged already
                    self._finish_others(look.event)
                    self._undo(look.event)
                    self.driver.calls.catch_up()
                return look(self.driver)
            known = self._early.pop(look, None)
            if isinstance(known, Exception):
                raise known
            return self._finish(look) if known is None else known
        finally:
            self._finished.add(look)
            if all(one in self._finished for one in self.looks if one.event is look.event):
                if look.event.keeps_claims and look.event.name not in self._problems:
                    self.driver.calls.observer.lacks_devices(self._before[look.event.name], look.event.name)
                self._undo(look.event)

    def _lacks_devices(self, look: TwoParts) -> bool:
        """Return whether a check's first part found no free device."""
        return look in self._begun and isinstance(self._begun[look].ended, DevicesInUse)

    def _finish_others(self, event: Occurrence) -> None:
        """Run the second parts of the event's checks before their turns, and keep what they find."""
        over = self._finished | self._early.keys()
        for look in self.looks:
            if look.event is event and look not in over and not self._lacks_devices(look):
                try:
                    self._early[look] = self._finish(look)
                except (Failure, Skip) as error:
                    self._early[look] = error

    def _undo(self, event: Occurrence) -> None:
        """Undo an event, once."""
        if event.name in self._undone:
            return
        self._undone.add(event.name)
        with suppress(Skip):  # no time is left
            event.undo(self.driver)
        self.driver.calls.observer.is_paused = False
        if not event.keeps_claims:
            self.driver.calls.observer.happens(event.name, keeps_claims=False)

    def _finish(self, look: TwoParts) -> str:
        self.begin(look.event)
        if look.event.name not in self._over:
            self._over.add(look.event.name)
            if look.event.name not in self._problems:
                look.event.end(self.driver)
        begun = self._begun[look]
        with self.driver.claims.owning(begun.claims):
            try:
                if begun.ended is not None:
                    raise begun.ended
                if problem := self._problems.get(look.event.name):
                    raise problem
                next(begun.parts)
            except StopIteration as end:
                return str(end.value)
            finally:
                begun.parts.close()
                self.driver.calls.clean_up()
        raise AssertionError("a two-part check must yield exactly once")


def name_of(look: Callable[..., object]) -> str:
    """Return the check's name for a function."""
    return look.__name__.replace("_", "-")


class Moment(Enum):
    """The stage at which a check that needs no event runs."""

    START = "at the start"
    CALM = "while the driver runs"
    END = "at the end"


@frozen
class DriverCheck(Check[DriverUnderTest]):
    """A check for drivers. `when` is the stage at which the check runs, or the event that the check needs."""

    when: Moment | Occurrence = Moment.CALM


def check(
    severity: Severity,
    *,
    expected: str,
    clause: str,
    core: bool = False,
    found: Iterable[str] = (),
    needs: Callable[[DriverUnderTest], object] = applies_always,
    when: Moment | Occurrence = Moment.CALM,
) -> Callable[[Callable[[DriverUnderTest], str]], DriverCheck]:
    """Return a decorator that turns a function into a check, as `model.check` does.

    The check's group is the name of the function's module.
    """

    def make(look: Callable[[DriverUnderTest], str]) -> DriverCheck:
        name = name_of(look)
        group = look.__module__.rpartition(".")[2].replace("_", " ")
        done = look.__doc__ or name
        is_core = core or severity is Severity.MUST
        return DriverCheck(name, severity, done, expected, clause, look, group, is_core, tuple(found), needs, when)

    return make


at_start = partial(check, when=Moment.START)
at_the_end = partial(check, when=Moment.END)


def across(
    event: Occurrence, severity: Severity, *, expected: str, clause: str, core: bool = False, found: Iterable[str] = ()
) -> Callable[[Callable[[DriverUnderTest], Parts]], DriverCheck]:
    """Return a decorator that turns a generator function into a check. The function yields where `event` happens."""
    named = check(severity, expected=expected, clause=clause, core=core, found=found, when=event)

    def make(parts: Callable[[DriverUnderTest], Parts]) -> DriverCheck:
        return evolve(named(parts), look=TwoParts(event, parts))  # type: ignore[arg-type]  # only its name is read

    return make
