"""If a driver is killed at any change to a file, the next driver finds the existing files and can undo everything."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from attrs import define

from devicecore.adapters.memory_dra import MemoryClaims
from devicecore.domain.dra.answers import UnprepareResult
from devicecore.domain.dra.model import AllocatedDevice, ClaimKey, ClaimRef, ClaimUid, DriverName, ResourceClaim
from devicecore.plugins.simulated_driver import SimulatedDriver
from devicecore.system import files

DRIVER = DriverName("gpu.example.com")
FIRST, SECOND = (ClaimRef(ClaimKey("default", name), ClaimUid(f"uid-{name}")) for name in ("first", "second"))


class KilledError(BaseException):
    """Raised at the point where the process would be killed."""


@define
class Process:
    """A simulated process that changes files until it is killed."""

    dies_at: int
    dies_after: bool
    changes: int = 0
    is_dead: bool = False

    def change(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function`, wrapped so that this process may be killed at the call."""

        def changing(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - as the function has it
            if self.is_dead:
                raise KilledError  # code that runs while the stack unwinds does not run in a killed process
            self.is_dead = self.changes == self.dies_at
            if self.is_dead and not self.dies_after:
                raise KilledError
            result = function(*arguments, **options)
            self.changes += 1
            if self.is_dead:
                raise KilledError
            return result

        return changing


@contextmanager
def killed_at(number: int, *, after: bool) -> Iterator[Process]:
    """Yield a process that is killed before or after the file change with this number."""
    process = Process(number, after)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_write_new", process.change(files._write_new))  # noqa: SLF001 - the one place of new files
        patch.setattr(os, "replace", process.change(os.replace))
        patch.setattr(os, "unlink", process.change(os.unlink))
        yield process


def driver_at(place: Path) -> SimulatedDriver:
    claims = MemoryClaims()
    for claim, device in ((FIRST, "dev-0"), (SECOND, "dev-1")):
        claims.put(ResourceClaim(claim.key, claim.uid, "", (AllocatedDevice(DRIVER, "node", device, "r"),)))
    places = {"state_directory": place / "state", "cdi_directory": place / "cdi"}
    return SimulatedDriver(DRIVER, "node", ["dev-0", "dev-1"], claims, **places)


def left(place: Path) -> list[str]:
    """Return the names of the remaining files, without the lock file."""
    return sorted(path.name for path in place.rglob("*") if path.is_file() and path.name != "lock")


def history(driver: SimulatedDriver) -> None:
    driver.prepare([FIRST])
    driver.prepare([SECOND])
    driver.unprepare([FIRST])
    driver.prepare([FIRST])
    driver.unprepare([FIRST, SECOND])


def changes_of(place: Path) -> int:
    with killed_at(-1, after=False) as process:
        history(driver_at(place))
    return process.changes


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("is_prepared_again", [False, True])
def test_a_driver_that_is_killed_at_any_change_leaves_nothing_that_stays(
    tmp_path: Path, *, after: bool, is_prepared_again: bool
) -> None:
    count = changes_of(tmp_path / "count")
    assert count > 10
    for number in range(count):
        place = tmp_path / str(number)
        with killed_at(number, after=after), pytest.raises(KilledError):
            history(driver_at(place))
        driver = driver_at(place)
        with driver.running():
            if is_prepared_again:
                answer = driver.prepare([FIRST, SECOND])
                assert [result.error for result in answer.values()] == ["", ""], number
                assert driver_at(place).prepare([FIRST, SECOND]) == answer
            known = {path.stem for path in (place / "state").glob("*.json")}
            resolvable = {path.stem.removeprefix(f"{DRIVER}-device-") for path in (place / "cdi").glob("*.json")}
            assert known <= resolvable, number  # each recorded claim has its CDI file again
            released = driver.unprepare([FIRST, SECOND])
        assert released == {FIRST.uid: UnprepareResult(), SECOND.uid: UnprepareResult()}
        assert left(place) == [], number
