"""Converts values of dynamic resource allocation to and from messages of `v1`, `v1beta1` and the health API.

Laws: the values that a driver sent are read unchanged. An answer that exceeds the limits below is refused with one
short sentence, because every device in an answer is kept in memory and in a file. `v1beta1` has no share ids.
"""

from collections.abc import Iterable, Mapping

from devicecore.domain.dra.answers import PrepareResult, UnprepareResult
from devicecore.domain.dra.health import DraHealth, ReportedHealth
from devicecore.domain.dra.model import ClaimKey, ClaimRef, ClaimUid, PreparedDevice
from devicecore.wire import dra_health_v1alpha1 as health
from devicecore.wire import dra_v1, dra_v1beta1

MAX_CLAIMS = 1_000
"""The maximum number of claims in an answer. A request names claims of one pod."""

MAX_DEVICES = 10_000
"""The maximum number of devices in an answer or in a health report. A claim has at most 32 allocated devices."""

MAX_NAMES = 100_000
"""The maximum number of request names and CDI names in an answer."""

MAX_NAME = 4_096
"""The maximum length of a name. Kubernetes allows at most 253 characters, and CDI names are not limited."""

Claims = Iterable[dra_v1.Claim] | Iterable[dra_v1beta1.Claim]
PrepareAnswer = dra_v1.NodePrepareResourcesResponse | dra_v1beta1.NodePrepareResourcesResponse
UnprepareAnswer = dra_v1.NodeUnprepareResourcesResponse | dra_v1beta1.NodeUnprepareResourcesResponse

_HEALTH = {health.HEALTHY: DraHealth.HEALTHY, health.UNHEALTHY: DraHealth.UNHEALTHY}
_NUMBERS = {value: number for number, value in _HEALTH.items()}


class TooMuchError(ValueError):
    """A message contains more than this module accepts."""


def to_claims(claims: Claims) -> tuple[ClaimRef, ...]:
    """Read the claims of a request."""
    return tuple(ClaimRef(ClaimKey(claim.namespace, claim.name), ClaimUid(claim.uid)) for claim in claims)


def from_claims(claims: Iterable[ClaimRef]) -> list[dict[str, object]]:
    """Write the claims of a request, for any version of the API."""
    return [{"namespace": claim.key.namespace, "uid": claim.uid, "name": claim.key.name} for claim in claims]


def to_prepared(answer: PrepareAnswer) -> dict[ClaimUid, PrepareResult]:
    """Read an answer to NodePrepareResources.

    Raises TooMuchError if the answer has too many items or too long a name.
    """
    _limit("claims", len(answer.claims), MAX_CLAIMS)
    _limit("devices", sum(len(result.devices) for result in answer.claims.values()), MAX_DEVICES)
    devices = [device for result in answer.claims.values() for device in result.devices]
    _limit("names", sum(len(device.request_names) + len(device.cdi_device_ids) for device in devices), MAX_NAMES)
    return {
        ClaimUid(_name(uid)): PrepareResult(tuple(map(_to_device, result.devices)), result.error)
        for uid, result in answer.claims.items()
    }


def from_prepared(results: Mapping[ClaimUid, PrepareResult]) -> dra_v1.NodePrepareResourcesResponse:
    """Write an answer to NodePrepareResources.

    Read as `v1beta1`, the same bytes give the same answer without share ids.
    """
    answer = dra_v1.NodePrepareResourcesResponse()
    for uid, result in results.items():
        entry = answer.claims[uid]  # a claim with an empty entry is also answered
        entry.error = result.error
        entry.devices.extend(map(_from_device, result.devices))
    return answer


def to_unprepared(answer: UnprepareAnswer) -> dict[ClaimUid, UnprepareResult]:
    """Read an answer to NodeUnprepareResources.

    Raises TooMuchError if there are too many claims or a UID is too long.
    """
    _limit("claims", len(answer.claims), MAX_CLAIMS)
    return {ClaimUid(_name(uid)): UnprepareResult(result.error) for uid, result in answer.claims.items()}


def from_unprepared(results: Mapping[ClaimUid, UnprepareResult]) -> dra_v1.NodeUnprepareResourcesResponse:
    """Write an answer to NodeUnprepareResources, for any version of the API."""
    answer = dra_v1.NodeUnprepareResourcesResponse()
    for uid, result in results.items():
        answer.claims[uid].error = result.error
    return answer


def to_report(message: health.NodeWatchResourcesResponse) -> tuple[ReportedHealth, ...]:
    """Read a health report. A device without an identifier gets empty names.

    Raises TooMuchError if the report is too large.
    """
    _limit("devices", len(message.devices), MAX_DEVICES)
    return tuple(
        ReportedHealth(
            _name(item.device.pool_name),
            _name(item.device.device_name),
            _HEALTH.get(item.health, DraHealth.UNKNOWN),
            item.health_check_timeout_seconds,
            item.message,
        )
        for item in message.devices
    )


def from_report(devices: Iterable[ReportedHealth], now: int) -> health.NodeWatchResourcesResponse:
    """Write a health report. `now` is the time in seconds since 1970."""
    return health.NodeWatchResourcesResponse(
        devices=[
            health.DeviceHealth(
                device=health.DeviceIdentifier(pool_name=item.pool, device_name=item.device),
                health=_NUMBERS.get(item.health, health.UNKNOWN),
                last_updated_time=now,
                health_check_timeout_seconds=item.limit,
                message=item.message,
            )
            for item in devices
        ]
    )


def _to_device(device: dra_v1.Device | dra_v1beta1.Device) -> PreparedDevice:
    share = device.share_id if isinstance(device, dra_v1.Device) and device.HasField("share_id") else None
    return PreparedDevice(
        _name(device.pool_name),
        _name(device.device_name),
        share if share is None else _name(share),
        tuple(map(_name, device.request_names)) or None,
        tuple(map(_name, device.cdi_device_ids)) or None,
    )


def _from_device(device: PreparedDevice) -> dra_v1.Device:
    return dra_v1.Device(
        request_names=device.requests or (),
        pool_name=device.pool,
        device_name=device.name,
        cdi_device_ids=device.cdi_ids or (),
        share_id=device.share_id,
    )


def _name(text: str) -> str:
    _limit("characters of a name", len(text), MAX_NAME)
    return text


def _limit(what: str, count: int, limit: int) -> None:
    if count > limit:
        message = f"the driver sent {count} {what}, expected at most {limit}"
        raise TooMuchError(message)
