"""This machine, read from `/sys` as cAdvisor reads it.

Law: a missing file is ignored, and an invalid file is named in the error.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from devicecore.system.files import read_file
from devicecore_numa.domain.cpus import cpu_ids, parse_cpus
from devicecore_numa.domain.errors import NumaConfigError
from devicecore_numa.domain.machine import Core, Machine, NumaCell

_NODE, _PAGES = re.compile(r"node([0-9]{1,6})"), re.compile(r"hugepages-([0-9]{1,12})kB")
_UNCORE_LEVEL = 3
_MAX_BYTES = 64 * 1024
_NO_NUMBERS: tuple[int, ...] = ()
_Value = TypeVar("_Value")


class SysfsMachine:
    """The machine that a directory such as `/sys` describes. As in cAdvisor, CPUs that are offline are left out."""

    def __init__(self, root: Path = Path("/sys")) -> None:
        self._root = root

    def machine(self) -> Machine:
        """Return the machine. If a file is invalid, raises a NumaConfigError that names the file."""
        nodes = self._root / "devices/system/node"
        found = sorted((int(matched[1]), path) for path in _listed(nodes) if (matched := _NODE.fullmatch(path.name)))
        if not found:
            raise NumaConfigError(f"expected the directories node0, node1, ... in {nodes}, but there are none")
        online = _read(self._root / "devices/system/cpu/online", parse_cpus, -1)
        return Machine([self._cell(number, path, online) for number, path in found])

    def _cell(self, number: int, path: Path, online: int) -> NumaCell:
        threads: dict[tuple[int, int], list[int]] = {}
        caches: dict[tuple[int, int], int] = {}
        for cpu in cpu_ids(_read(path / "cpulist", parse_cpus, 0) & online):
            topology = self._root / f"devices/system/cpu/cpu{cpu}/topology"
            key = max(_read(topology / "physical_package_id", int, 0), 0), _read(topology / "core_id", int, cpu)
            threads.setdefault(key, []).append(cpu)
            caches.setdefault(key, self._cache(cpu))
        cores = [Core(cpus, key[0], None if caches[key] < 0 else caches[key]) for key, cpus in sorted(threads.items())]
        pages = {
            int(matched[1]): _read(folder / "nr_hugepages", int, 0)
            for folder in sorted(_listed(path / "hugepages"))
            if (matched := _PAGES.fullmatch(folder.name))
        }
        memory, distances = _read(path / "meminfo", _total_bytes, 0), _read(path / "distance", _numbers, _NO_NUMBERS)
        return NumaCell(number, cores, memory, pages, distances)

    def _cache(self, cpu: int) -> int:
        for folder in sorted(_listed(self._root / f"devices/system/cpu/cpu{cpu}/cache")):
            if folder.name.startswith("index") and _read(folder / "level", int, 0) == _UNCORE_LEVEL:
                return _read(folder / "id", int, -1)
        return -1


def _read(path: Path, parse: Callable[[str], _Value], absent: _Value) -> _Value:
    """Return the content of a file, or `absent` if the file does not exist."""
    try:
        return parse(read_file(path, _MAX_BYTES, follow_links=True).decode().strip())
    except FileNotFoundError:
        return absent
    except (OSError, ValueError) as error:
        raise NumaConfigError(f"{path}: {error}") from None


def _listed(path: Path) -> list[Path]:
    return list(path.iterdir()) if path.is_dir() else []


def _total_bytes(text: str) -> int:
    matched = re.search(r"MemTotal:\s*([0-9]{1,18}) kB", text)
    return int(matched[1]) * 1024 if matched else 0


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split()))
