"""Saves a look as a file in a record, so that the record gives the same report on any machine.

Laws: `look_in(text_of(look)) == look`. What the file says about a source counts only if the source's other files in the
    record are unchanged: after someone removes a file from a record, the look must not reveal its contents.
"""

import json
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args, get_origin

from cattrs import BaseValidationError
from cattrs.preconf.json import make_converter

from devicecore.domain.device_list import DeviceList
from devicecore.domain.model import Device
from devicecore_tools.doctor.look.values import Look, Reading, Source

FORMAT = 1
"""The version of the file."""

MAX_BYTES = 64 * 1024 * 1024
"""The size limit of the file, in bytes. The file for a node with 10,000 devices and 250 pods is about 4 MiB."""

_CONVERTER = make_converter()


def _is(cls: object, of: type) -> bool:
    origin = get_origin(cls)
    return isinstance(origin, type) and issubclass(origin, of)


def _has_other_keys(cls: object) -> bool:
    return _is(cls, Mapping) and get_args(cls)[0] is not str


def _pairs(cls: Any) -> Callable[[Any], list[Any]]:  # noqa: ANN401 - a type with type arguments
    key, value = get_args(cls)
    write = _CONVERTER.unstructure
    return lambda found: [[write(one, key), write(of, value)] for one, of in found.items()]


def _from_pairs(cls: Any) -> Callable[[Any, Any], dict[Any, Any]]:  # noqa: ANN401 - as above
    key, value = get_args(cls)
    read = _CONVERTER.structure
    return lambda found, _: {read(one, key): read(of, value) for one, of in found}


def _sorted(found: AbstractSet[Any]) -> list[Any]:
    return sorted((_CONVERTER.unstructure(one) for one in found), key=json.dumps)


_CONVERTER.register_unstructure_hook_factory(_has_other_keys, _pairs)
_CONVERTER.register_structure_hook_factory(_has_other_keys, _from_pairs)
_CONVERTER.register_unstructure_hook_func(lambda cls: _is(cls, AbstractSet), _sorted)
_CONVERTER.register_unstructure_hook(DeviceList, lambda found: [_CONVERTER.unstructure(one) for one in found])
_CONVERTER.register_structure_hook(
    DeviceList, lambda found, _: DeviceList.of([_CONVERTER.structure(one, Device) for one in found])
)


def text_of(look: Look, files: Mapping[Source, Mapping[str, str]] = {}) -> bytes:
    """Return the contents of the file for a look. `files` contains the digests of each source's other files."""
    document = {
        "format": FORMAT,
        "files": {source.value: dict(of) for source, of in files.items()},
        "look": _CONVERTER.unstructure(look, Look),
    }
    return json.dumps(document).encode() + b"\n"


def look_in(data: bytes) -> tuple[Look, dict[str, dict[str, str]]]:
    """Read a look, and return it with the digests of each source's other files.

    Raises ValueError if a later release wrote the file, or if the file is damaged.
    """
    try:
        document = json.loads(data)
        if document["format"] != FORMAT:
            message = f"expected format {FORMAT}, got {document['format']!r:.20}: a later release wrote it"
            raise ValueError(message)
        return _CONVERTER.structure(document["look"], Look), _CONVERTER.structure(
            document["files"], dict[str, dict[str, str]]
        )
    except (BaseValidationError, LookupError, TypeError, RecursionError, AttributeError) as error:
        raise ValueError(f"it is not a look: {type(error).__name__}") from error


def digest(path: Path) -> str:
    """Return a digest of a file, or an empty string if the file cannot be read."""
    try:
        return sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def unchanged(look: Look, files: Mapping[str, Mapping[str, str]], root: Path) -> dict[Source, Reading[Any]]:
    """Return the readings of the sources whose files in a record are unchanged."""
    return {
        source: reading
        for source, reading in look.readings.items()
        if all(digest(root / name) == was for name, was in files.get(source.value, {}).items())
    }
