"""The kubelet's file of health, `dra_health_state`, both ways (kubelet-dra.md 10.5).

Law: any bytes give the health that a kubelet would read. If it could not read the file, `decode` raises an error, and
the manager starts without the file.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

from attrs import define

from devicecore.domain.checkpoint.go_json import Json, Literal, parse
from devicecore.domain.checkpoint.go_text import json_text
from devicecore.domain.checkpoint.go_values import (
    INT64,
    Fields,
    RefusedError,
    fields_of,
    integer,
    into_map,
    into_string,
    into_struct,
    refuse,
)
from devicecore.domain.dra.health import DEFAULT_LIMIT, SECOND, DeviceHealth, DraHealth, HealthCache
from devicecore.domain.dra.model import DriverName
from devicecore.domain.errors import MalformedCheckpointError

_HEALTHS = {health.value: health for health in DraHealth}
_NEVER = "0001-01-01T00:00:00Z"


def encode(cache: HealthCache) -> bytes:
    """The file that a kubelet would write."""
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
    """Read a file.

    Raises:
        MalformedCheckpointError: it is not a file of health.
    """
    try:
        drivers = into_map(None, parse(blob), DriverName, _new_driver, "map[string]DriverHealthState") or {}
    except RefusedError as refusal:
        raise MalformedCheckpointError(problem=str(refusal)) from None
    return HealthCache(
        {driver: {key: item.frozen() for key, item in state.items()} for driver, state in drivers.items()}
    )


def _time_text(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, SECOND)
    whole = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f".{rest:09}".rstrip("0") if rest else ""
    return f"{whole.rjust(19, '0')}{fraction}Z"


def _time_of(text: str) -> int:
    """Nanoseconds since 1970 of a text as RFC 3339 has it.

    Raises:
        ValueError: it is no such text.
    """
    whole, dot, rest = text.partition(".")
    digits = rest.rstrip("Z") if rest.endswith("Z") else rest.partition("+")[0].partition("-")[0]
    if dot and not (digits.isascii() and digits.isdigit()):
        raise ValueError(text)
    zone = rest[len(digits) :]
    moment = datetime.fromisoformat(whole + zone)
    if moment.tzinfo is None or "T" not in whole:
        raise ValueError(text)
    return int(moment.timestamp()) * SECOND + int(digits[:9].ljust(9, "0") or "0")


@define
class _Device:
    pool: str = ""
    device: str = ""
    health: str = ""
    updated: str = _NEVER
    limit: int = 0
    message: str = ""

    def frozen(self) -> DeviceHealth:
        health = _HEALTHS.get(self.health, DraHealth.UNKNOWN)
        # A file of a kubelet before 1.35 has no limits.
        limit = self.limit or DEFAULT_LIMIT
        return DeviceHealth(self.pool, self.device, health, _time_of(self.updated), limit, self.message)


@define
class _DriverHealth:
    devices: dict[str, _Device] | None = None


def _into_time(old: str, value: Json) -> str:
    text = into_string(old, value)
    try:
        _time_of(text)
    except (ValueError, OverflowError):
        raise RefusedError(why="expected a time such as 2026-01-31T12:00:00Z") from None
    return text


def _into_int64(old: int, value: Json) -> int:
    if value is None:
        return old
    number = integer(value.text) if isinstance(value, Literal) else None
    return number if number in INT64 and number is not None else refuse(value, "int64")


_DEVICE_FIELDS: Fields = fields_of(
    {
        "PoolName": ("pool", into_string),
        "DeviceName": ("device", into_string),
        "Health": ("health", into_string),
        "LastUpdated": ("updated", _into_time),
        "HealthCheckTimeout": ("limit", _into_int64),
        "Message": ("message", into_string),
    }
)


def _new_device(value: Json) -> _Device:
    return into_struct(_Device(), value, _DEVICE_FIELDS)


_into_devices: Callable[..., object] = partial(into_map, key=str, new=_new_device, wanted="map[string]DeviceHealth")
_DRIVER_FIELDS: Fields = fields_of({"Devices": ("devices", _into_devices)})


def _new_driver(value: Json) -> dict[str, _Device]:
    return into_struct(_DriverHealth(), value, _DRIVER_FIELDS).devices or {}
