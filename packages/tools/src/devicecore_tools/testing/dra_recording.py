"""A transport of DRA drivers that records every event and every call, and fails when a script says so.

Law: with an empty script, a recording transport changes no call and no event. Entries are in the order of time.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from attrs import field, frozen

from devicecore.domain.dra.answers import PREPARE, UNPREPARE, PrepareResult, UnprepareResult
from devicecore.domain.dra.drivers import DriverEvent, InstanceId
from devicecore.domain.dra.errors import DriverCallError
from devicecore.domain.dra.model import ClaimRef, ClaimUid
from devicecore.ports.drivers import DriverListener, DriverTransport
from devicecore.testing.faults import Call, ManualClock, Script
from devicecore_tools.testing.recording import Recording, recording

Result = TypeVar("Result")

CALL_LIMIT = 45.0
"""Seconds that a kubelet waits for a driver."""


@frozen
class DriverCall:
    """One call to a driver, with its answer or its error.

    `method` is `NodePrepareResources` or `NodeUnprepareResources`. `answer` is empty if the call has failed; `error` is
    None if it has not failed.
    """

    instance: InstanceId
    method: str
    claims: tuple[ClaimRef, ...]
    answer: Mapping[ClaimUid, PrepareResult | UnprepareResult] = field(factory=dict)
    error: DriverCallError | None = None


class RecordingDriverTransport:
    """A `DriverTransport` that records another one. `recorded` is called after each entry.

    In `script`, calls have the names of the API's methods.
    """

    def __init__(
        self,
        transport: DriverTransport,
        record: Recording[DriverEvent, DriverCall],
        script: Script,
        recorded: Callable[[], None],
    ) -> None:
        self._transport = transport
        self._record = record
        self._script = script
        self._clock = ManualClock()
        self._notify = recorded

    def start(self, listener: DriverListener) -> None:
        """Start the recorded transport. An event is recorded after the listener has accepted it."""
        self._transport.start(recording(listener, self._record.events, self._notify))

    def stop(self) -> None:
        """Stop the recorded transport."""
        self._transport.stop()

    def prepare(self, instance: InstanceId, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, PrepareResult]:
        """Call NodePrepareResources and record it."""
        return self._recorded(PREPARE, instance, claims, self._transport.prepare)

    def unprepare(self, instance: InstanceId, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, UnprepareResult]:
        """Call NodeUnprepareResources and record it."""
        return self._recorded(UNPREPARE, instance, claims, self._transport.unprepare)

    def _recorded(
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
        try:
            answer: Mapping[ClaimUid, Any] = self._script.run(call)
        except DriverCallError as error:
            self._record.calls.append(DriverCall(instance, method, tuple(claims), error=error))
            self._notify()
            raise
        self._record.calls.append(DriverCall(instance, method, tuple(claims), answer))
        self._notify()
        return answer
