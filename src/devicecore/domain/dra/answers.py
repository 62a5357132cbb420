"""The answers of drivers, and checks of whether the answers are usable (kubelet-dra.md 4.5, 4.7, 6.3).

Law: an answer must have one result for each claim in the request, and no other result. Results are read in the order of
their UIDs, and the first error in this order is the answer's error. When claims are prepared, only the results before
the first error count.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from attrs import field, frozen

from devicecore.domain.checks import tuple_of
from devicecore.domain.dra.errors import ClaimFailedError, DraError, SkippedClaimsError, UnknownClaimError
from devicecore.domain.dra.model import AllocatedDevice, ClaimKey, ClaimRef, ClaimUid, DriverName, PreparedDevice

PREPARE = "NodePrepareResources"
UNPREPARE = "NodeUnprepareResources"

# A vendor or a class: at least two characters, because runtimes with Go's CDI library crash on a single letter.
_PART = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]")
_DEVICE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")


def _devices(value: Iterable[PreparedDevice]) -> tuple[PreparedDevice, ...]:
    return tuple_of(value, PreparedDevice, "PrepareResult.devices")


@frozen
class PrepareResult:
    """A driver's answer when it is asked to prepare a claim. A non-empty `error` says why the driver failed.

    Raises:
        TypeError: `devices` is not an iterable of devices.
    """

    devices: tuple[PreparedDevice, ...] = field(default=(), converter=_devices)
    error: str = ""


@frozen
class UnprepareResult:
    """A driver's answer when it is asked to release a claim. A non-empty `error` says why the driver failed."""

    error: str = ""


class _Result(Protocol):
    @property
    def error(self) -> str: ...


@frozen
class CheckedDevices:
    """The devices of an answer, each once, and the answer's error."""

    devices: Mapping[ClaimKey, tuple[PreparedDevice, ...]] = field(factory=dict)
    error: DraError | None = None


@frozen
class CheckedRelease:
    """The claims that a driver reports as released, the claims that it reports as not released, and the answer's error.

    A claim that the answer omits is in neither list: some drivers answer only for claims that failed.
    """

    released: tuple[ClaimKey, ...] = ()
    kept: tuple[ClaimKey, ...] = ()
    error: DraError | None = None


def check_prepared(asked: Sequence[ClaimRef], answer: Mapping[ClaimUid, PrepareResult]) -> CheckedDevices:
    """Return the usable part and the error of an answer to NodePrepareResources."""
    good, error = _check(PREPARE, asked, answer)
    return CheckedDevices({claim.key: tuple(dict.fromkeys(answer[claim.uid].devices)) for claim in good}, error)


def check_unprepared(asked: Sequence[ClaimRef], answer: Mapping[ClaimUid, UnprepareResult]) -> CheckedRelease:
    """Return the usable part and the error of an answer to NodeUnprepareResources."""
    _, error = _check(UNPREPARE, asked, answer)
    answered = [claim for claim in asked if claim.uid in answer]
    released = tuple(claim.key for claim in answered if not answer[claim.uid].error)
    kept = tuple(claim.key for claim in answered if answer[claim.uid].error)
    return CheckedRelease(released, kept, error)


def _check(
    method: str, asked: Sequence[ClaimRef], answer: Mapping[ClaimUid, _Result]
) -> tuple[list[ClaimRef], DraError | None]:
    """Return the claims whose results come before the first error, and that error."""
    by_uid = {claim.uid: claim for claim in asked}
    good: list[ClaimRef] = []
    for uid, result in sorted(answer.items(), key=lambda item: item[0]):
        if uid not in by_uid:
            return good, UnknownClaimError(method, uid)
        if result.error:
            return good, ClaimFailedError(method, by_uid[uid].key.name, result.error)
        good.append(by_uid[uid])
    skipped = len(by_uid) - len(good)
    return good, SkippedClaimsError(method, skipped) if skipped else None


def is_cdi_name(text: str) -> bool:
    """Return whether the text is a fully qualified CDI name, `vendor/class=device`, such as `example.com/gpu=0`."""
    kind, equals, device = text.partition("=")
    vendor, slash, class_ = kind.partition("/")
    parts = ((_PART, vendor), (_PART, class_), (_DEVICE, device))
    return bool(equals and slash) and all(pattern.fullmatch(part) for pattern, part in parts)


def answer_warnings(
    driver: DriverName, allocation: Iterable[AllocatedDevice], devices: Iterable[PreparedDevice]
) -> tuple[str, ...]:
    """Return one sentence for each problem with the devices in a driver's answer.

    A kubelet accepts such devices, and so does the manager unless its caller sets `fail_on_warnings`. An accepted
    malformed CDI name is noticed only when the container runtime refuses to create the container.
    """
    own = [result for result in allocation if result.driver == driver]
    places = {(result.pool, result.device) for result in own}
    requests = {result.request.partition("/")[0] for result in own}
    found: list[str] = []
    for device in devices:
        where = f"{driver} returned device {device.pool!r}/{device.name!r}"
        if (device.pool, device.name) not in places:
            found.append(f"{where}, which is not allocated to the claim")
        found += [
            f"{where} with the CDI name {id_!r}: expected vendor/class=device"
            for id_ in device.cdi_ids or ()
            if not is_cdi_name(id_)
        ]
        found += [
            f"{where} for the request {name!r}, which the claim does not have"
            for name in device.requests or ()
            if name not in requests
        ]
    return tuple(found)
