"""The CDI files of a node: which devices a container runtime can resolve.

Law: an unreadable file is named and makes the reading incomplete. A file that runtimes ignore is kept with the reason.
The number and the total size of all files are bounded.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from attrs import define

from devicecore.domain.text import counted
from devicecore.system.cdi import CDI_DIRECTORIES, MAX_BYTES, cdi_files, problems_of, spec_in
from devicecore.system.files import read_file
from devicecore_tools.doctor.look.values import NO_DIRECTORY, CdiSeen, CdiSpec, Reading

MAX_FILES = 1_000
"""The maximum number of files that are read in a directory."""

MAX_BYTES_OF_ALL = 64 * 1024 * 1024
"""The maximum total size of the files in all directories, in bytes."""

MAX_DEVICES = 100_000
"""The maximum number of devices in the files of all directories."""

_NOT_READ = ".yml"
_OTHER_ENDING = "its name ends in .yml, but runtimes read only .json and .yaml"


def read_cdi(directories: Iterable[str] = CDI_DIRECTORIES, most_devices: int = MAX_DEVICES) -> Reading[CdiSeen]:
    """Return the CDI files in `directories`. A missing directory has no files.

    Reading stops once the files have more than `most_devices` devices.
    """
    listed = tuple(directories)
    place = ", ".join(listed)
    rest = _Rest(devices=most_devices)
    specs: list[CdiSpec] = []
    notes: list[str] = []
    for directory in listed:
        try:
            files = _files(directory, notes)
        except OSError as error:
            notes.append(f"{directory}: {error.strerror}")
            continue
        specs += _specs(directory, files, rest, notes)
    is_complete = not notes
    if not any(map(os.path.lexists, listed)):
        notes.append(NO_DIRECTORY)
    return Reading.of(place, CdiSeen(tuple(specs), is_complete), tuple(notes))


def _files(directory: str, notes: list[str]) -> list[Path]:
    path = Path(directory)
    found = cdi_files(path)
    if os.path.lexists(path):
        found = sorted([*found, *path.glob(f"*{_NOT_READ}")])
    if len(found) > MAX_FILES:
        notes.append(f"{directory}: expected at most {counted(MAX_FILES, 'file')}, got {len(found):,}")
    return found[:MAX_FILES]


@define
class _Rest:
    """How many devices and bytes may still be read."""

    devices: int
    bytes: int = MAX_BYTES_OF_ALL


def _specs(directory: str, files: list[Path], rest: _Rest, notes: list[str]) -> Iterator[CdiSpec]:
    for number, path in enumerate(files):
        if rest.bytes < 0 or rest.devices < 0:
            what = f"than {MAX_BYTES_OF_ALL:,} bytes" if rest.bytes < 0 else "devices than doctor reads"
            unread = counted(len(files) - number, "file")
            notes.append(f"{directory}: the CDI files together contain more {what}, so doctor skipped {unread}")
            return
        try:
            if not stat.S_ISDIR(path.stat().st_mode):
                yield _spec(directory, path.name, read_file(path, MAX_BYTES, follow_links=True), rest)
        except OSError as error:
            notes.append(f"{path}: {error.strerror}")


def _spec(directory: str, file: str, data: bytes, rest: _Rest) -> CdiSpec:
    rest.bytes -= len(data)
    try:
        spec = spec_in(data, file)
    except ModuleNotFoundError as error:
        raise OSError(0, f"it is YAML, and PyYAML is not installed ({error.name} is missing)") from error
    except ValueError as error:
        return CdiSpec(directory, file, "", (), str(error))
    rest.devices -= len(spec.devices)
    problem = _OTHER_ENDING if file.endswith(_NOT_READ) else next(problems_of(spec), "")
    return CdiSpec(directory, file, spec.kind, tuple(device.name for device in spec.devices), problem)
