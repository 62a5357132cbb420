"""The driver under test, and everything that a check may do to it.

Laws: the claims of a check are unprepared and deleted after it. A call takes at most the time that is left for the run.

`DriverUnderTest` is written in four modules, each of which builds on the one before: `running`, `publishing`, `claims`
and this one, which calls the driver.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from devicecore.domain.text import counted, foreign_text
from devicecore_tools.conformance.connection import CallFailedError
from devicecore_tools.conformance.dra.claims import Claim, DriverWithClaims
from devicecore_tools.conformance.dra.environment import Environment
from devicecore_tools.conformance.dra.kubelet import DriverInstance
from devicecore_tools.conformance.dra.running import CUT_GRACE
from devicecore_tools.conformance.dra.settings import DriverTestSettings
from devicecore_tools.conformance.dra.steps import Steps, TwoParts
from devicecore_tools.conformance.model import Failure, Skip, needed
from devicecore_tools.testing.api_server import Json

T = TypeVar("T")

_ANSWER = 10.0  # seconds for a call without claims
_CLEAN_UP = 5.0  # seconds for the calls after a check
_CONVINCING = 10.0  # seconds without an answer that are a failure, even if less time than usual was left


class DriverUnderTest(DriverWithClaims):
    """The driver under test.

    Args:
        environment: its surroundings, entered.
        command: starts it; placeholders are replaced.
        settings: how it is tested.
        looks: the checks in two parts of this run.
    """

    def __init__(
        self,
        environment: Environment,
        command: Sequence[str],
        settings: DriverTestSettings,
        looks: tuple[TwoParts, ...] = (),
    ) -> None:
        super().__init__(environment, command, settings)
        self.steps: Steps = Steps(self, looks)
        self.wiped_at: float = 0.0
        """When a restarted kubelet deleted the slices, in seconds of `time.monotonic`."""
        self.wrote_before_wipe: bool = False
        """Whether the process that is running has changed a slice less than a minute before the wipe."""
        self.republished_after: float | None = None
        """Seconds from the wipe until all pools were complete again; None if they were not."""
        self.intact: tuple[Mapping[Path, bytes], Sequence[Claim]] = {}, ()
        """The driver's state files before they were damaged, and the claims that it had prepared then."""
        self._silence: int = 0
        self._left: list[Claim] = []
        self._prepares: bool | None = None
        self._repeats: bool | None = None
        self._unprepares: bool | None = None
        self._removes_cdi: bool | None = None
        self._refuses_used: bool | None = None

    def create_claim(self, spec: Json, allocation: Json | None, *, name: str = "") -> Claim:
        """Create a ResourceClaim. Before the first one, find out whether the driver prepares claims at all."""
        if self._prepares is None:
            self._learn()
        self._unprepare_all(self._left)
        return super().create_claim(spec, allocation, name=name)

    def clean_up(self) -> None:
        """Unprepare and delete the claims of the present check."""
        claims = list(self._claims)
        self._claims.clear()
        self._unprepare_all([*self._left, *(claim for claim in claims if claim.was_sent)])
        for claim in claims:
            self.delete_object(claim)
            self._all_claims.remove(claim)

    def unprepare_later(self, claims: Sequence[Claim]) -> None:
        """Unprepare claims before the next one is made."""
        self._left = [*self._left, *claims]

    def _unprepare_all(self, claims: Sequence[Claim]) -> None:
        """Unprepare claims. If the driver cannot be reached, that is done before the next claim is made."""
        instance, self._left = self.kubelet.newest, list(claims)
        if not claims or instance is None:
            return
        try:
            answer = instance.unprepare([claim.ref for claim in claims], min(_CLEAN_UP, self._call_timeout()))
        except CallFailedError as error:  # what it says of such calls is the subject of other checks
            if error.code == "UNAVAILABLE":
                return
        else:
            for claim in claims:
                if claim.is_prepared and claim.uid in answer and answer[claim.uid].error:
                    self._held.update(device.key for device in claim.devices)
        self._left = []

    # --- what is known of its habits ----------------------------------------------------------------------------------

    def require_preparing(self) -> None:
        """Do nothing if the driver prepares plain claims.

        Raises:
            Skip: it does not, which another check reports.
        """
        if self._prepares is None:
            self._learn()
        if not self._prepares:
            reason = "the driver prepares no claims"
            raise Skip(reason)

    def _learn(self) -> None:
        """Find out whether the driver prepares and unprepares a plain claim at all."""
        _ = self.reachable, self.allocatable_devices  # without which this cannot be found out
        self._prepares = self._unprepares = self._removes_cdi = True  # so that the claim below can be made
        with self.owning([]):
            before = self.environment.cdi_names()
            claim = self.claim(1)
            try:
                devices_in(self.prepare(claim), claim)
            except Failure:
                self._prepares = False
            try:
                require_unprepared(self.unprepare(claim), claim)
            except Failure as failure:
                is_served = not isinstance(failure, CallFailedError) or failure.code != "UNIMPLEMENTED"
                self._unprepares = is_served and not self._prepares
            self._removes_cdi = self.environment.cdi_names() <= before
            self.clean_up()

    def works(self) -> bool:
        """Whether the driver prepares and unprepares a plain claim now; True if that cannot be found out."""
        if not self._prepares or not self._unprepares:
            return True
        with self.owning([]), suppress(Skip):
            try:
                claim = self.claim(1)
                devices_in(self.prepare(claim), claim)
                require_unprepared(self.unprepare(claim), claim)
            except Failure:
                return False
            finally:
                self.clean_up()
        return True

    def require_repeating(self) -> None:
        """Do nothing if the driver prepares a claim a second time.

        Raises:
            Skip: it does not, which another check reports.
        """
        if self._repeats is None:
            with self.owning([]):
                claim = self.ready(1)
                try:
                    self.prepared(claim)
                except Failure:
                    self._repeats = False
                else:
                    self._repeats = True
                self.clean_up()
        if not self._repeats:
            reason = "the driver prepares no claim twice"
            raise Skip(reason)

    def require_answering(self) -> DriverInstance:
        """Return the instance that a kubelet calls, which answers a call without claims.

        Raises:
            Skip: it does not, which another check reports.
        """
        found = self.reachable
        try:
            self.timed(lambda seconds: found.prepare((), seconds), _ANSWER)
        except CallFailedError as error:
            reason = f"a call without claims is not answered: {error}"
            raise Skip(reason) from None
        return found

    @property
    def removes_cdi_devices(self) -> bool:
        """Whether the CDI devices of a claim are gone when it is unprepared; found out at the first use."""
        if self._removes_cdi is None:
            self._learn()
        return bool(self._removes_cdi)

    @property
    def refuses_devices_in_use(self) -> bool:
        """Whether a device is refused that another claim has; found out at the first use."""
        if self._refuses_used is None:
            with self.owning([]):
                device = self.free_device(shared=False)
                self.ready(devices=[device])
                second = self.create_claim(self.request(1), self.allocation_of(device))
                try:
                    self.prepared(second)
                except Failure:
                    self._refuses_used = True
                else:
                    self._refuses_used = False
                self.clean_up()
        return self._refuses_used

    # --- calls --------------------------------------------------------------------------------------------------------

    def prepare(self, *claims: Claim, timeout: float | None = None) -> Mapping[str, Any]:
        """Call NodePrepareResources once for these claims; the answers by UID, as messages.

        Raises:
            CallFailedError: the call failed as a whole.
        """
        for claim in claims:
            claim.was_sent = True
        refs = [claim.ref for claim in claims]
        answer = self.timed(lambda seconds: self.reachable.prepare(refs, seconds), timeout)
        for claim in claims:
            claim.is_prepared |= claim.uid in answer and not answer[claim.uid].error
        return answer

    def unprepare(self, *claims: Claim, timeout: float | None = None) -> Mapping[str, Any]:
        """Call NodeUnprepareResources once for these claims; the answers by UID, as messages.

        Raises:
            CallFailedError: the call failed as a whole.
        """
        refs = [claim.ref for claim in claims]
        answer = self.timed(lambda seconds: self.reachable.unprepare(refs, seconds), timeout)
        for claim in claims:
            claim.is_prepared &= claim.uid not in answer or bool(answer[claim.uid].error)
        return answer

    def prepared(self, claim: Claim) -> tuple[Any, ...]:
        """Prepare one claim; the devices in the answer, as messages.

        Raises:
            Failure: the driver did not prepare it.
            Skip: the driver prepares no claim at all, which another check reports.
        """
        try:
            return devices_in(self.prepare(claim), claim)
        except Failure as failure:
            if self._prepares:
                raise
            reason = f"the driver prepares no claims: {failure}"
            raise Skip(reason) from None

    def unprepared(self, claim: Claim) -> None:
        """Unprepare one claim.

        Raises:
            Failure: the driver did not unprepare it.
            Skip: the driver unprepares no claim at all, which another check reports.
        """
        try:
            require_unprepared(self.unprepare(claim), claim)
        except Failure as failure:
            if self._unprepares:
                raise
            reason = f"the driver unprepares no claims: {failure}"
            raise Skip(reason) from None

    def ready(self, *counts: int, **arguments: Any) -> Claim:  # noqa: ANN401 - the arguments of `claim`
        """Return a new claim that is prepared, for a check of something else.

        Raises:
            Skip: the driver did not prepare it, which other checks report.
        """
        claim = self.claim(*counts, **arguments)
        with needed("a prepared claim"):
            self.prepared(claim)
        return claim

    def _call_timeout(self) -> float:
        return self.settings.call_again if self._silence else self.settings.call

    def timed(self, call: Callable[[float], T], timeout: float | None = None) -> T:
        """Make a call that gets the seconds it may take: `timeout`, by default those of a call to prepare claims.

        A call takes at most half of the time that is left, so that a driver that hangs can fail other checks, too.

        Raises:
            CallFailedError: the call failed.
            Skip: no time is left for the run.
        """
        self.require_time()
        wanted = self._call_timeout() if timeout is None else timeout
        limit = min(wanted, max(self.time_left / 2, _CONVINCING), max(self.time_left - CUT_GRACE, 0.1))
        try:
            return call(limit)
        except CallFailedError as error:
            if error.code == "DEADLINE_EXCEEDED" and limit < min(wanted, _CONVINCING):
                self.skip_for_time()
            if error.code == "DEADLINE_EXCEEDED" and timeout is None:
                before = f", and before that none within {counted(self._silence, 'second')}" if self._silence else ""
                message = f"there was no answer within {counted(round(limit), 'second')}{before}"
                self._silence = self._silence or round(limit)
                raise CallFailedError(error.method, error.code, message) from None
            raise


def devices_in(answer: Mapping[str, Any], claim: Claim) -> tuple[Any, ...]:
    """Return the devices that an answer to NodePrepareResources has for a claim.

    Raises:
        Failure: it has an error or nothing for the claim.
    """
    return tuple(_success("NodePrepareResources", answer, claim).devices)


def require_unprepared(answer: Mapping[str, Any], claim: Claim) -> None:
    """Check that an answer to NodeUnprepareResources has success for a claim.

    Raises:
        Failure: it has an error or nothing for the claim.
    """
    _success("NodeUnprepareResources", answer, claim)


def _success(call: str, answer: Mapping[str, Any], claim: Claim) -> Any:  # noqa: ANN401 - a message of either version
    if claim.uid not in answer:
        found = f"the keys {', '.join(sorted(map(foreign_text, answer)))}" if answer else "no entries"
        message = f"{call} left the claim out of its answer, which has {found}"
        raise Failure(message)
    if error := answer[claim.uid].error:
        message = f"{call} failed for the claim: {foreign_text(error)}"
        raise Failure(message)
    return answer[claim.uid]
