"""A kubelet's calls to prepare and unprepare claims, and what they revealed about the driver.

Laws: a check's claims are unprepared and deleted after the check. A call takes at most the time that is left for the
run. If a plain call has succeeded once, no check reports that the driver does not support that call.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from attrs import define, field

from devicecore.domain.text import counted, foreign_text
from devicecore_tools.conformance.connection import CallFailedError
from devicecore_tools.conformance.dra.claims import Claim, Claims
from devicecore_tools.conformance.dra.environment import Environment
from devicecore_tools.conformance.dra.kubelet import DriverInstance
from devicecore_tools.conformance.dra.process import CUT_GRACE, DriverProcess
from devicecore_tools.conformance.dra.registration import DriverRegistration
from devicecore_tools.conformance.dra.settings import DriverTestSettings
from devicecore_tools.conformance.model import DevicesInUse, Failure, OutOfTime, Skip, Undecided, needed, skip_if
from devicecore_tools.conformance.processes import stopped

T = TypeVar("T")

_ANSWER = 10.0  # seconds for a call without claims
_CLEAN_UP = 5.0  # seconds for a call after a check
_CLEAN_UP_AGAIN = 1.0  # seconds for a call after a check, if the driver has not answered such calls in time before
_SLACK = 2.0  # a claim may take this many times as long as the fastest one
_QUICK = 0.1  # seconds to prepare and unprepare a claim; client-side rate limiting may delay a request by 0.2 s
_GATHERING = 30.0  # seconds for starting calls that must overlap
_SENT = 0.05  # seconds that are enough to send a call
_CONVINCING = 10.0  # seconds without an answer that count as a failure, even if less time than usual was left


@define
class Habits:
    """What calls have revealed about the driver. None means that something is not known yet.

    Attributes:
        prepares: whether the driver has prepared a claim.
        why_not: the error for a plain claim, if the driver has not prepared any.
        unprepares: whether the driver has unprepared a claim.
        repeats: whether the driver prepares an already prepared claim.
        removes_cdi: whether a claim's CDI devices are gone after the claim is unprepared.
        frees: whether a device was prepared for a second claim after the first claim was unprepared.
        silence: the number of seconds after which an unanswered call was abandoned, if there was one.
    """

    prepares: bool | None = None
    why_not: str = ""
    unprepares: bool | None = None
    repeats: bool | None = None
    removes_cdi: bool | None = None
    frees: bool = False
    silence: int = 0


class CallObserver:
    """Observes all calls of a run. This base class ignores them.

    Attributes:
        is_paused: whether the driver's state is damaged on purpose, so that nothing is noted.
    """

    is_paused: bool = False

    def begins(self, claims: Sequence[Claim], *, is_unprepare: bool) -> None:
        """Note that a call for these claims is about to be made."""

    def ends(self, claims: Sequence[Claim], answer: Mapping[str, Any], *, is_unprepare: bool) -> None:
        """Note that the call has ended with these answers by UID. If the call failed as a whole, `answer` is empty."""

    def drops(self) -> None:
        """Note that the driver has lost all of its files."""

    def keeps_devices(self, claims: Sequence[Claim], why: str) -> None:
        """Note that the driver has not released the devices of these claims."""

    def happens(self, what: str, *, keeps_claims: bool) -> None:
        """Note that an event has happened, and whether it leaves prepared claims as they are."""

    def lacks_devices(self, before: Mapping[tuple[str, str], object], what: str) -> None:
        """Note which of the devices that were published before an event are not published afterwards."""

    def begins_check(self, name: str, group: str) -> None:
        """Note which check runs from now on."""

    def ends_check(self, *, is_failed: bool) -> None:
        """Note how the check ended."""


SLOW_CLAIM = 1.0
"""A driver that takes longer than this to prepare a claim, in seconds, is slow."""


@define(eq=False)
class Calls:
    """The calls to the driver.

    Attributes:
        habits: what the calls have revealed.
        used: the claims of the current check that were sent to the driver and deleted.
        are_quick: whether a claim is prepared and unprepared within a tenth of a second, as far as known.
        fastest: the duration of the fastest successful NodePrepareResources call for new claims, in seconds.
        renew: starts the driver with fresh directories if a plain claim cannot be prepared; returns whether the driver
            is registered again with complete pools.
        observer: observes all calls.
        why_not: why the last trial in `works` failed.
    """

    environment: Environment
    registration: DriverRegistration
    process: DriverProcess
    claims: Claims
    settings: DriverTestSettings
    renew: Callable[[], bool]
    habits: Habits = field(factory=Habits)
    used: list[Claim] = field(factory=list)
    are_quick: bool = True
    fastest: float = math.inf
    observer: CallObserver = field(factory=CallObserver)
    why_not: Failure | None = None
    _left: list[Claim] = field(factory=list)
    _late: list[Claim] = field(factory=list)  # after a check, the driver did not answer in time for these claims
    _is_silent: bool = False  # whether the driver was late again for the same claims
    _at_once: int = 1  # the number of calls that `at_once` makes
    _allowed_until: float = 0.0  # the end of the last call for which the run's time was extended
    _under_way: int = 0  # the number of calls that are under way
    _most: int = 0  # the largest number of calls that were under way at the same time
    _counting: threading.Lock = field(factory=threading.Lock)

    @property
    def are_slow(self) -> bool:
        """Whether even the fastest claim took so long that only 'must' checks use claims."""
        return SLOW_CLAIM < self.fastest < math.inf

    def in_time_for(self, number: int) -> int:
        """Return how many claims, from two to this number, can be prepared one by one in half a call's timeout."""
        return max(2, min(number, int(self.settings.call / max(self._slowly(1), 0.02))))

    def limit_for(self, number: int, at_least: float) -> float:
        """Return how many seconds a call may take if the driver prepares this many claims one by one."""
        return min(max(at_least, self._slowly(number)), self.settings.call)

    def _slowly(self, number: int) -> float:
        """Return how many seconds a call for this many claims may take, if the driver prepares them one by one."""
        return 0.0 if math.isinf(self.fastest) else _SLACK * self.fastest * number  # infinite: no claim is prepared yet

    # --- the end of a check -------------------------------------------------------------------------------------------

    def clean_up(self) -> None:
        """Unprepare and delete the claims of the current check."""
        claims = self.claims.take()
        self.used += (claim for claim in claims if claim.was_sent)
        self._unprepare_all([*self._left, *(claim for claim in claims if claim.was_sent)])
        for claim in claims:
            self.claims.forget(claim)

    def unprepare_later(self, claims: Sequence[Claim]) -> None:
        """Unprepare these claims before the next check."""
        self._left = [*self._left, *claims]

    def catch_up(self) -> None:
        """Unprepare the claims passed to `unprepare_later`, and try once more those for which the driver was late."""
        self._unprepare_all(self._left)
        late, self._late = self._late, []
        if late and not self._is_silent:
            self._unprepare_all(late, were_late=True)
            self._is_silent, self._late = bool(self._late), []

    def drop(self) -> None:
        """Forget which claims are prepared, because the driver has lost all of its files."""
        self._left, self._late = [], []
        self.claims.held.clear()
        self.observer.drops()
        for claim in self.claims.prepared:
            claim.is_prepared = claim.was_sent = False

    def _unprepare_all(self, claims: Sequence[Claim], *, were_late: bool = False) -> None:
        """Unprepare claims. If the driver is unreachable or late, the claims are unprepared before the next check.

        If the driver was late for a claim, no other claim gets its devices, because the driver may still hold them.
        """
        instance, self._left = self.registration.kubelet.newest, list(claims)
        if not claims or instance is None:
            return
        limit = _CLEAN_UP_AGAIN if self._is_silent else max(_CLEAN_UP, self._slowly(1))
        for number, claim in enumerate(claims):  # one by one, because a check tests calls with several claims
            keys = {device.key for device in claim.devices}
            try:
                with self._observed([claim], is_unprepare=True) as answer:
                    answer.update(instance.unprepare([claim.ref], limit))
            except CallFailedError as error:  # other checks test the driver's responses to such calls
                if error.code == "UNAVAILABLE":
                    self.process.is_leaving = instance.connection.has_no_listener()
                    return
                if error.code == "DEADLINE_EXCEEDED":
                    self._late += claims[number:]
                    self.claims.held.update(device.key for one in claims[number:] for device in one.devices)
                    break
            else:
                self._is_silent = False
                if claim.is_prepared and claim.uid in answer and answer[claim.uid].error:
                    self.claims.held |= keys
                    self.observer.keeps_devices([claim], f"the error is: {foreign_text(answer[claim.uid].error)}")
                elif were_late:
                    self.claims.held -= keys
        self._left = []

    # --- what is known about its behavior ---------------------------------------------------------------------------

    def require_preparing(self) -> None:
        """Check that the driver prepares plain claims.

        Raises Skip if the driver prepares no plain claim; another check reports that.
        """
        self._learn_once()
        if self.habits.prepares is False:
            raise self._prepares_none()

    def _prepares_none(self) -> Skip:
        return Skip(f"the driver prepares no claims for one device: {self.habits.why_not}")

    def _learn_once(self) -> None:
        if None in (self.habits.prepares, self.habits.unprepares):
            with suppress(DevicesInUse):
                self._learn()

    def _learn(self) -> None:
        """Find out whether the driver can prepare and unprepare a plain claim at all."""
        _ = self.registration.reachable, self.claims.allocatable  # without a claim, this cannot be determined
        habits = self.habits
        with self.claims.owning([]):
            before = self.environment.cdi_names()
            claim = self.claims.new(1)
            try:
                devices_in(self.prepare(claim), claim)
            except Failure as failure:
                habits.prepares, habits.why_not = bool(habits.prepares), str(failure)
            try:
                require_unprepared(self.unprepare(claim), claim)
            except Failure as failure:
                is_served = not isinstance(failure, CallFailedError) or failure.code != "UNIMPLEMENTED"
                habits.unprepares = bool(habits.unprepares) or (is_served and not habits.prepares)
            habits.unprepares = habits.unprepares is not False
            habits.removes_cdi = self.environment.cdi_names() <= before
            self.clean_up()

    def works(self, claim: Claim | None = None) -> bool:
        """Return whether the driver now prepares and unprepares a plain claim, or one for the devices of `claim`.

        Also return True if this cannot be determined, or if the driver has never prepared and unprepared a claim.
        """
        self.why_not = None
        if not self.habits.prepares or not self.habits.unprepares:
            return True
        began = time.monotonic()
        with self.claims.owning([]), suppress(Skip):
            try:
                trial = (
                    self.claims.new(1) if claim is None else self.claims.new(devices=claim.devices, shares=claim.shares)
                )
                devices_in(self.prepare(trial), trial)
                require_unprepared(self.unprepare(trial), trial)
            except Failure as failure:
                self.why_not = failure
                return False
            finally:
                self.clean_up()
        self.are_quick = time.monotonic() - began < _QUICK
        return True

    @property
    def repeats(self) -> bool:
        """Whether the driver prepares an already prepared claim. The first use finds this out."""
        if self.habits.repeats is None:
            with self.claims.owning([]):
                claim, self.habits.repeats = self.ready(1), False
                with suppress(Failure):
                    _ = self.prepared(claim)
                    self.habits.repeats = True
                self.clean_up()
        return bool(self.habits.repeats)

    def require_repeating(self) -> None:
        """Check that the driver prepares a claim a second time.

        Raises Skip if the driver refuses the second call; another check reports that.
        """
        skip_if(not self.repeats, "the driver prepares no claim twice")

    def require_unpreparing(self) -> None:
        """Check that the driver unprepares claims.

        Raises Skip if the driver unprepares no claims; another check reports that.
        """
        self._learn_once()
        skip_if(self.habits.unprepares is False, "the driver unprepares no claims")

    def require_answering(self) -> DriverInstance:
        """Return the instance that a kubelet calls.

        Raises Skip if the instance does not answer a call without claims; another check reports that.
        """
        found = self.registration.reachable
        try:
            self.timed(lambda seconds: found.prepare((), seconds), _ANSWER)
        except CallFailedError as error:
            raise Skip(f"a call without claims is not answered: {error}") from None
        return found

    @property
    def removes_cdi_devices(self) -> bool:
        """Whether a claim's CDI devices are gone after the claim is unprepared. The first use finds this out."""
        if self.habits.removes_cdi is None:
            self._learn()
        return bool(self.habits.removes_cdi)

    # --- calls --------------------------------------------------------------------------------------------------------

    def prepare(
        self,
        *claims: Claim,
        timeout: float | None = None,
        instance: DriverInstance | None = None,
        must_be_published: bool = True,
    ) -> Mapping[str, Any]:
        """Call NodePrepareResources once for these claims. Return the answers by UID, as messages.

        Args:
            claims: the claims to prepare.
            timeout: seconds that the call may take; by default as many as a kubelet allows.
            instance: which instance of the driver to call; by default the one that a kubelet calls.
            must_be_published: whether to skip instead of preparing devices that are no longer published.

        Raises:
            CallFailedError: the call failed as a whole.
            Skip: a device is no longer published.
        """
        if instance is None:
            _ = self.registration.reachable  # a restarted driver must publish its devices first
        if must_be_published:
            self.claims.require_published(claims)
        are_new = not any(claim.was_sent for claim in claims)
        for claim in claims:
            claim.was_sent = True
        refs = [claim.ref for claim in claims]
        began = time.monotonic()
        with self._observed(claims) as answer:
            made = self.timed(
                lambda seconds: (instance or self.registration.reachable).prepare(refs, seconds), timeout, len(claims)
            )
            answer.update(made)
        for claim in _done(answer, claims):
            claim.is_prepared = self.habits.prepares = True
            if are_new:  # a driver may answer for a claim that is already prepared without doing anything
                self.fastest = min(self.fastest, time.monotonic() - began)
        if self.are_slow:
            self.process.allow_for_call(time.monotonic() - max(began, self._allowed_until))
            self._allowed_until = time.monotonic()
        return answer

    def unprepare(
        self, *claims: Claim, timeout: float | None = None, instance: DriverInstance | None = None
    ) -> Mapping[str, Any]:
        """Call NodeUnprepareResources once for these claims. Return the answers by UID, as messages.

        The arguments are as for `prepare`. Raises CallFailedError if the call failed as a whole.
        """
        refs = [claim.ref for claim in claims]
        with self._observed(claims, is_unprepare=True) as answer:
            made = self.timed(
                lambda seconds: (instance or self.registration.reachable).unprepare(refs, seconds), timeout, len(claims)
            )
            answer.update(made)
        for claim in _done(answer, claims):
            self.habits.unprepares = claim.is_prepared or self.habits.unprepares
            claim.is_prepared = False
        return answer

    @contextmanager
    def _observed(self, claims: Sequence[Claim], *, is_unprepare: bool = False) -> Iterator[dict[str, Any]]:
        """Report the call in this block to the observer. The block adds the answers to the yielded dictionary."""
        answer: dict[str, Any] = {}
        self.observer.begins(claims, is_unprepare=is_unprepare)
        try:
            yield answer
        finally:
            self.observer.ends(claims, answer, is_unprepare=is_unprepare)

    def prepared(self, claim: Claim) -> tuple[Any, ...]:
        """Prepare one claim. Return the devices in the answer, as messages.

        Raises Failure if the driver did not prepare the claim. Raises Skip if the driver prepares no claim at all;
        another check reports that.
        """
        self._learn_once()
        try:
            return devices_in(self.prepare(claim), claim)
        except Failure:
            if self.habits.prepares is not False:
                raise
            raise self._prepares_none() from None

    def unprepared(self, claim: Claim) -> None:
        """Unprepare one claim.

        Raises Failure if the driver did not unprepare the claim. Raises Skip if the driver unprepares no claim at all;
        another check reports that.
        """
        self._learn_once()
        try:
            require_unprepared(self.unprepare(claim), claim)
        except Failure as failure:
            if self.habits.unprepares is not False:
                raise
            raise Skip(f"the driver unprepares no claims: {failure}") from None

    def ready(self, *counts: int, **arguments: Any) -> Claim:  # noqa: ANN401 - the arguments of `Claims.new`
        """Return a new prepared claim, for a check that tests something else.

        Raises Skip if the driver did not prepare the claim; other checks report that.
        """
        claim = self.claims.new(*counts, **arguments)
        self.ready_devices(claim)
        return claim

    def ready_devices(self, claim: Claim) -> tuple[Any, ...]:
        """Prepare a claim for a check that tests something else, and return the devices in the answer.

        If the driver has prepared claims before, and now only claims for reserved devices are prepared, or none, the
        call is tried once more with fresh directories, because another check may have left devices in use. Raises Skip
        if the driver did not prepare the claim; other checks report that.
        """
        with needed("a prepared claim"):
            try:
                return self.prepared(claim)
            except Failure:
                if not self.habits.prepares or self.claims.are_in_use or not self.renew():
                    raise
                return self.prepared(claim)

    def at_once(self, acts: Sequence[Callable[[], T]]) -> list[T | Failure]:
        """Run all functions, each of which makes one call, concurrently. Return the results or the failures.

        The driver is frozen until all calls have been made, so that they overlap even on a busy machine. Raises Skip if
        the driver is unreachable before the calls. Raises Undecided if the calls did not overlap and none failed.
        """

        def result_of(act: Callable[[], T]) -> T | Failure:
            try:
                return act()
            except Failure as failure:
                return failure
            except OutOfTime:
                raise
            except Skip as skip:  # the driver has exited in the meantime
                return Failure(str(skip))

        self._learn_once()
        with self.registration.held(), ThreadPoolExecutor(len(acts)) as pool:
            self._most, self._at_once = 0, len(acts)
            try:
                with stopped(self.environment.marker):
                    made = [pool.submit(result_of, act) for act in acts]
                    self.process.wait(lambda: self._most >= len(acts) or all(one.done() for one in made), _GATHERING)
                    self.process.pause(_SENT)
                results = [one.result() for one in made]
            finally:
                self._at_once = 1
        if self._most < len(acts) and not any(isinstance(one, Failure) for one in results):
            raise Undecided(f"the {counted(len(acts), 'call')} did not overlap")
        return results

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count the call in this block as in progress."""
        with self._counting:
            self._under_way += 1
            self._most = max(self._most, self._under_way)
        try:
            yield
        finally:
            with self._counting:
                self._under_way -= 1

    def _call_timeout(self, claims: int) -> float:
        """Return how many seconds a call with this many claims may take, which is less once a call has timed out."""
        again = max(self.settings.call_again, self._slowly(claims * self._at_once))
        return min(again, self.settings.call) if self.habits.silence else self.settings.call

    def timed(self, call: Callable[[float], T], timeout: float | None = None, claims: int = 1) -> T:
        """Make a call with a time limit, which is passed to the function as an argument.

        The default is the limit for preparing this number of claims.

        If more than 20 seconds are left for the run, a call takes at most half of them, so that a driver that hangs can
        fail other checks, too. Raises CallFailedError if the call failed. Raises Skip if no time is left for the run.
        """
        self.process.require_time()
        wanted, left = self._call_timeout(claims) if timeout is None else timeout, self.process.time_left
        limit = min(wanted, max(left / 2, _CONVINCING), max(left - CUT_GRACE, 0.1))
        try:
            with self._counted():
                return call(limit)
        except CallFailedError as error:
            if error.code == "UNAVAILABLE" and (instance := self.registration.kubelet.newest) is not None:
                self.process.is_leaving = instance.connection.has_no_listener()
            needed_at_most = max(_CONVINCING, self._slowly(claims * self._at_once))
            if limit < min(wanted, needed_at_most):  # a driver that sees so short a deadline may refuse the call
                self.process.skip_for_time()
            if error.code == "DEADLINE_EXCEEDED" and timeout is None:
                silence = self.habits.silence
                before = f", and an earlier call got none within {counted(silence, 'second')}" if silence else ""
                message = f"there was no answer within {counted(round(limit), 'second')}{before}"
                self.habits.silence = silence or round(limit)
                raise CallFailedError(error.method, error.code, message) from None
            raise


def _done(answer: Mapping[str, Any], claims: Sequence[Claim]) -> list[Claim]:
    """Return the claims that an answer reports as successful."""
    return [claim for claim in claims if claim.uid in answer and not answer[claim.uid].error]


def devices_in(answer: Mapping[str, Any], claim: Claim) -> tuple[Any, ...]:
    """Return the devices that a NodePrepareResources response lists for a claim.

    Raises Failure if the response reports an error for the claim or leaves it out.
    """
    return tuple(_success("NodePrepareResources", answer, claim).devices)


def require_unprepared(answer: Mapping[str, Any], claim: Claim) -> None:
    """Check that an answer to NodeUnprepareResources reports success for a claim.

    Raises Failure if the response reports an error for the claim or leaves it out.
    """
    _success("NodeUnprepareResources", answer, claim)


def _success(call: str, answer: Mapping[str, Any], claim: Claim) -> Any:  # noqa: ANN401 - a message of either version
    if claim.uid not in answer:
        found = f"the keys {', '.join(sorted(map(foreign_text, answer)))}" if answer else "no entries"
        raise Failure(f"{call} left the claim out of its answer, which contains {found}")
    if error := answer[claim.uid].error:
        raise Failure(f"{call} failed for the claim: {foreign_text(error)}")
    return answer[claim.uid]
