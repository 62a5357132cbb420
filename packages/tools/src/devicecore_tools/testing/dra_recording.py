"""A DRA driver transport that records every event and call, and fails when a script says so.

Law: with an empty script, a recording transport changes no call and no event. Entries are in chronological order.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from attrs import field, frozen

from devicecore.domain.dra.answers import PREPARE, UNPREPARE, PrepareResult, UnprepareResult
from devicecore.domain.dra.drivers import DriverEvent, InstanceId
from devicecore.domain.dra.errors import DriverCallError
from devicecore.domain.dra.model import ClaimRef, ClaimUid
from devicecore.ports.drivers import DriverTransport
from devicecore.testing.faults import Call, ManualClock, Script
from devicecore_tools.testing.recording import Recorder, Recording

Result = TypeVar("Result")

CALL_LIMIT = 45.0
"""The number of seconds a kubelet waits for a driver."""


@frozen
class DriverCall:
    """One call to a driver, with its response or error.

    `method` is `NodePrepareResources` or `NodeUnprepareResources`. `answer` is empty if the call failed; `error` is
    None if the call did not fail.
    """

    instance: InstanceId
    method: str
    claims: tuple[ClaimRef, ...]
    answer: Mapping[ClaimUid, PrepareResult | UnprepareResult] = field(factory=dict)
    error: DriverCallError | None = None


class RecordingDriverTransport(Recorder[DriverTransport, DriverEvent, DriverCall]):
    """A `DriverTransport` that records the events and calls of the transport that it wraps.

    In `script`, calls are named after the API's methods.
    """

    def __init__(
        self,
        transport: DriverTransport,
        record: Recording[DriverEvent, DriverCall],
        script: Script,
        recorded: Callable[[], None],
    ) -> None:
        super().__init__(transport, record, recorded)
        self._script = script
        self._clock = ManualClock()

    def prepare(self, instance: InstanceId, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, PrepareResult]:
        """Call NodePrepareResources and record it."""
        return self._ask(PREPARE, instance, claims, self._transport.prepare)

    def unprepare(self, instance: InstanceId, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, UnprepareResult]:
        """Call NodeUnprepareResources and record it."""
        return self._ask(UNPREPARE, instance, claims, self._transport.unprepare)

    def _ask(
        self,
        method: str,
        instance: InstanceId,
        claims: Sequence[ClaimRef],
        ask: Callable[[InstanceId, Sequence[ClaimRef]], Mapping[ClaimUid, Any]],
    ) -> Mapping[ClaimUid, Any]:
        call = Call(
            method,
            (tuple(claims),),
            self._transport,
            self._clock,
            CALL_LIMIT,
            answer=lambda changed: ask(instance, changed),
            nothing=dict,
            failure=lambda cause: DriverCallError(method, "Unavailable", cause, unanswered=True),
        )
        return self._recorded(
            DriverCallError,
            lambda: self._script.run(call),
            lambda answer, error: DriverCall(instance, method, tuple(claims), answer or {}, error),
        )
