"""The CDI files of a node: which devices a container runtime can resolve.

Law: a file that cannot be read is named, and makes the reading incomplete. What all files add up to is bounded.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from attrs import define

from devicecore.domain.errors import DocumentError
from devicecore.domain.text import counted
from devicecore.system.files import read_file
from devicecore_tools.doctor.look.values import CdiSeen, CdiSpec, Reading
from devicecore_tools.doctor.reading.large_documents import parse_document

CDI_DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
"""Where runtimes look; a file in a later directory replaces devices of the earlier ones."""

MAX_FILES = 1_000
"""Files of a directory that are read."""

MAX_BYTES = 4 * 1024 * 1024
"""Bytes of a file. One for eight large devices has some 200 KiB."""

MAX_BYTES_OF_ALL = 64 * 1024 * 1024
"""Bytes of the files of all directories."""

MAX_DEVICES = 100_000
"""Devices in the files of all directories."""

_ENDINGS = (".json", ".yaml", ".yml")


def read_cdi(directories: Iterable[str] = CDI_DIRECTORIES) -> Reading[CdiSeen]:
    """Return the CDI files in `directories`. One that does not exist has no files, unless none exists."""
    listed = tuple(directories)
    place = ", ".join(listed)
    rest = _Rest()
    specs: list[CdiSpec] = []
    notes: list[str] = []
    missing = 0
    for directory in listed:
        try:
            files = _files(directory, notes)
        except FileNotFoundError:
            missing += 1
            continue
        except OSError as error:
            notes.append(f"{directory}: {error.strerror}")
            continue
        specs += _specs(directory, files, rest, notes)
    if missing == len(listed):
        return Reading(place, problem="none of these directories exists")
    return Reading.of(place, CdiSeen(tuple(specs), is_complete=not notes), tuple(notes))


def _files(directory: str, notes: list[str]) -> list[str]:
    with os.scandir(directory) as entries:
        found = sorted(entry.name for entry in entries if entry.name.endswith(_ENDINGS))
    if len(found) > MAX_FILES:
        notes.append(f"{directory}: expected at most {counted(MAX_FILES, 'file')}, got {len(found):,}")
    return found[:MAX_FILES]


@define
class _Rest:
    """How much may still be read."""

    bytes: int = MAX_BYTES_OF_ALL
    devices: int = MAX_DEVICES


def _specs(directory: str, files: list[str], rest: _Rest, notes: list[str]) -> Iterator[CdiSpec]:
    for number, file in enumerate(files):
        path = Path(directory) / file
        if rest.bytes < 0:
            unread, limit = counted(len(files) - number, "file"), f"{MAX_BYTES_OF_ALL:,} bytes"
            notes.append(f"{directory}: {unread} not read, because all CDI files have more than {limit}")
            return
        try:
            if stat.S_ISDIR(path.stat().st_mode):
                continue
            yield _spec(directory, file, read_file(path, MAX_BYTES, follow_links=True), rest)
        except OSError as error:
            notes.append(f"{path}: {error.strerror}")
        except DocumentError as error:
            notes.append(str(error))


def _spec(directory: str, file: str, data: bytes, rest: _Rest) -> CdiSpec:
    rest.bytes -= len(data)
    document = parse_document(data, f"{directory}/{file}")
    document["cdiVersion"].text()
    kind = document["kind"].text()
    devices = document["devices"]
    if isinstance(devices.data, list):
        rest.devices -= len(devices.data)
        if rest.devices < 0:
            devices.refuse(f"expected at most {MAX_DEVICES:,} devices in all CDI files, got more")
    return CdiSpec(directory, file, kind, tuple(device["name"].text() for device in devices.sequence()))
