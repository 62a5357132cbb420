"""Reads and writes the kubelet's health file, `dra_health_state` (kubelet-dra.md 10.5).

Laws: any bytes within the limits of `go_json` are read as the health that a kubelet would read. If a kubelet could not
read the file, `decode` raises an error, and the manager starts without the file. Everything that `decode` returns can
be encoded again.
"""

import re
from datetime import UTC, datetime, timedelta

from attrs import define

from devicecore.domain.checkpoint import go_values as go
from devicecore.domain.checkpoint.go_json import Json, Literal, parse
from devicecore.domain.dra.health import DEFAULT_LIMIT, SECOND, DeviceHealth, DraHealth, HealthCache
from devicecore.domain.dra.model import DriverName
from devicecore.domain.errors import MalformedCheckpointError
from devicecore.domain.go_text import json_text

_HEALTHS = {health.value: health for health in DraHealth}
_NEVER = "0001-01-01T00:00:00Z"
_TIME = re.compile(
    r"([0-9]{4})(-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]+))?(Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(seconds=1)
_LAST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(seconds=1)
_SECONDS_OF_400_YEARS = 146_097 * 24 * 3600


def encode(cache: HealthCache) -> bytes:
    """Return the file that a kubelet would write."""
    return json_text(
        {
            driver: {"Devices": {key: _json(device) for key, device in sorted(devices.items())}}
            for driver, devices in sorted(cache.drivers.items())
        }
    )


def _json(device: DeviceHealth) -> dict[str, object]:
    return {
        "PoolName": device.pool,
        "DeviceName": device.device,
        "Health": device.health.value,
        "LastUpdated": _time_text(device.updated),
        "HealthCheckTimeout": device.limit,
        "Message": device.message,
    }


def decode(blob: bytes) -> HealthCache:
    """Read a file. Raises MalformedCheckpointError if the bytes are not a health file."""
    try:
        drivers = _into_drivers(None, parse(blob)) or {}
    except go.RefusedError as refusal:
        raise MalformedCheckpointError(problem=str(refusal)) from None
    return HealthCache(
        {
            DriverName(driver): {key: item.frozen() for key, item in (state.devices or {}).items()}
            for driver, state in drivers.items()
        }
    )


def _time_text(nanoseconds: int) -> str:
    """Return a time in RFC 3339 format in UTC.

    A time outside the years 1 to 9999 becomes the nearest time within these years.
    """
    seconds, rest = divmod(nanoseconds, SECOND)
    if (bounded := min(max(seconds, _FIRST), _LAST)) != seconds:
        seconds, rest = bounded, 0
    whole = (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f".{rest:09}".rstrip("0") if rest else ""
    return f"{whole.rjust(19, '0')}{fraction}Z"


def _time_of(text: str) -> int:
    """Return an RFC 3339 time as nanoseconds since 1970. Raises ValueError for other text.

    Because of its time zone, the time may be outside the years 1 to 9999.
    """
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(text)
    year, rest, fraction, zone = found.groups(default="")
    # Go has a year 0, but Python does not. The calendar repeats every 400 years.
    moment = datetime.fromisoformat(f"{'0400' if year == '0000' else year}{rest}{zone}")
    seconds = (moment - _EPOCH) // timedelta(seconds=1) - (_SECONDS_OF_400_YEARS if year == "0000" else 0)
    return seconds * SECOND + int(fraction[:9].ljust(9, "0"))


def _into_time(old: str, value: Json) -> str:
    text = go.into_string(old, value)
    try:
        _time_of(text)
    except ValueError:
        raise go.RefusedError(why="expected a time such as 2026-01-31T12:00:00Z") from None
    return text


def _into_int64(old: int, value: Json) -> int:
    if value is None:
        return old
    number = go.integer(value.text) if isinstance(value, Literal) else None
    # None is checked first, because a range would compare None with all of its numbers.
    return number if number is not None and number in go.INT64 else go.refuse(value, "int64")


@define
class _Device:
    pool: str = go.member("PoolName", go.into_string, "")
    device: str = go.member("DeviceName", go.into_string, "")
    health: str = go.member("Health", go.into_string, "")
    updated: str = go.member("LastUpdated", _into_time, _NEVER)
    limit: int = go.member("HealthCheckTimeout", _into_int64, 0)
    message: str = go.member("Message", go.into_string, "")

    def frozen(self) -> DeviceHealth:
        health = _HEALTHS.get(self.health, DraHealth.UNKNOWN)
        # A file written by a kubelet before 1.35 has no limits.
        limit = self.limit or DEFAULT_LIMIT
        return DeviceHealth(self.pool, self.device, health, _time_of(self.updated), limit, self.message)


@define
class _DriverHealth:
    devices: dict[str, _Device] | None = go.member("Devices", go.into_map_of(_Device, "map[string]DeviceHealth"), None)


_into_drivers = go.into_map_of(_DriverHealth, "map[string]DriverHealthState")
