"""The driver's side of dynamic resource allocation: what a driver author writes.

Law: there is one result for each claim that is passed, and a call may be repeated with the same claims.
"""

from collections.abc import Coroutine, Mapping, Sequence
from typing import Protocol, TypeVar

from attrs import evolve

from devicecore.domain.checks import check_adapter, checked, expected
from devicecore.domain.dra.answers import PrepareResult, UnprepareResult
from devicecore.domain.dra.model import ClaimRef, ClaimUid, DriverName, PreparedDevice

__all__ = ["DraDriver", "prepared"]

Result = TypeVar("Result", PrepareResult, UnprepareResult)


class DraDriver(Protocol):
    """A driver. Methods may be called from several threads at once, and again for the same claims.

    An exception that a method raises becomes the caller's error, with the same text. A `DriverCallError` keeps its
    status code.
    """

    name: DriverName

    def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, PrepareResult]:
        """Prepare the devices of these claims. Return one result for each claim, with its devices."""

    def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, UnprepareResult]:
        """Release these claims. Return one result for each claim. A claim that is not prepared counts as released."""


# --- for adapters: call a driver, and check its response ------------------------------------------------------------


def check_driver(driver: DraDriver, function: str) -> None:
    """Raise TypeError if a value is not a driver. The error names `function`, which received the value."""
    check_adapter(function, driver, DraDriver)
    checked(getattr(driver, "name", None), str, f"{type(driver).__name__}.name")


def prepared(driver: DraDriver, claims: Sequence[ClaimRef]) -> dict[ClaimUid, PrepareResult]:
    """Call a driver's `prepare` and return the result.

    Raises TypeError if the result is not a mapping to PrepareResults.
    """
    results = _results(driver.prepare(claims), PrepareResult, f"{type(driver).__name__}.prepare")
    return {uid: _with_tuples(result) for uid, result in results.items()}


def unprepared(driver: DraDriver, claims: Sequence[ClaimRef]) -> dict[ClaimUid, UnprepareResult]:
    """Call a driver's `unprepare` and return the result.

    Raises TypeError if the result is not a mapping to UnprepareResults.
    """
    return _results(driver.unprepare(claims), UnprepareResult, f"{type(driver).__name__}.unprepare")


def _with_tuples(result: PrepareResult) -> PrepareResult:
    """Return the result with tuples of requests and CDI names. Drivers may pass lists, which are not hashable."""
    given = [names for device in result.devices for names in (device.requests, device.cdi_ids) if names is not None]
    if all(isinstance(names, tuple) for names in given):
        return result
    return evolve(result, devices=tuple(map(_with_tuples_of_names, result.devices)))


def _with_tuples_of_names(device: PreparedDevice) -> PreparedDevice:
    requests, cdi_ids = (None if names is None else tuple(names) for names in (device.requests, device.cdi_ids))
    return evolve(device, requests=requests, cdi_ids=cdi_ids)


def _results(answer: Mapping[ClaimUid, Result], kind: type[Result], what: str) -> dict[ClaimUid, Result]:
    given: object = answer
    if isinstance(given, Coroutine):
        given.close()  # otherwise, Python warns that nothing awaited it
        raise TypeError(expected(what, "a method defined with `def`", "async def"))
    if not isinstance(given, Mapping):
        raise TypeError(expected(what, f"a {kind.__name__} by the UID of each claim", given))
    return {uid: checked(result, kind, what) for uid, result in answer.items()}
