"""What happens to a driver between the two parts of a check.

Law: after each event the driver is registered again, or `DriverUnderTest.returns` says why not.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from attrs import evolve

from devicecore_tools.conformance.dra.driver import DriverUnderTest
from devicecore_tools.conformance.dra.kubelet import identity_of
from devicecore_tools.conformance.dra.steps import Occurrence
from devicecore_tools.testing.process import StillRunningError

_SETTLING = 10.0  # seconds for a driver that was started to publish
_SETTLED = 1.0  # seconds without a request about slices


def _kill(driver: DriverUnderTest) -> None:
    driver.restart("killed")


def _reboot(driver: DriverUnderTest) -> None:
    driver.restart("rebooted", driver.environment.reboot)


def _lose(driver: DriverUnderTest) -> None:
    driver.restart("lost", driver.environment.delete_state_files)


def _corrupt(driver: DriverUnderTest) -> None:
    """Kill the driver, damage its state files, and start it. If it does not come back, restore the files."""
    before = driver.environment.state_files()
    driver.intact = before, driver.prepared_claims

    def damage() -> None:
        for path, data in before.items():
            path.write_bytes(data[: len(data) // 2])

    exits = len(driver.exits)
    driver.restart("corrupted", damage)
    if driver.returns["corrupted"].problem or len(driver.exits) > exits:
        driver.kill()
        _write(before)


def _mend(driver: DriverUnderTest) -> None:
    """Give the driver its state files back if it cannot work with damaged ones, because other checks follow."""
    files, claims = driver.intact
    if not files or driver.works():
        return
    restore(driver, files)
    driver.unprepare_later(claims)


def restore(driver: DriverUnderTest, files: Mapping[Path, bytes]) -> None:
    """Start the driver again with its former state files."""
    driver.kill()
    _write(files)
    driver.start()


def _write(files: Mapping[Path, bytes]) -> None:
    for path, data in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _terminate(driver: DriverUnderTest) -> None:
    """End the driver with SIGTERM, look at what it left, start it, and note in `returns` how it came back."""
    instance, process = driver.instance, driver.process
    if process is None:
        return
    began = time.monotonic()
    process.terminate()
    with suppress(StillRunningError):
        process.wait(driver.settings.grace)
    status, took = process.status, time.monotonic() - began
    left = tuple(path for path in {instance.path, instance.endpoint} if identity_of(path) is not None)
    kept = bool(driver.slices())
    began = time.monotonic()
    driver.start()
    found = driver.wait_registered(began)
    driver.returns["terminated"] = evolve(
        found, status=status, ended_after=took, left=tuple(sorted(left)), kept_slices=kept
    )


def _restart_kubelet(driver: DriverUnderTest) -> None:
    """Restart the kubelet: it forgets all drivers, and deletes the node's slices."""
    _ = driver.instance
    _settle(driver)
    driver.refresh()
    driver.kubelet.stop()
    driver.wiped_at = time.monotonic()
    driver.wrote_before_wipe = driver.slice_age < min(
        driver.settings.settled, driver.wiped_at - driver.started_at + 1.0
    )
    driver.wipe()
    began = time.monotonic()
    driver.kubelet.start()
    driver.returns["kubelet"] = driver.wait_registered(began)


def _settle(driver: DriverUnderTest) -> None:
    """Let a driver that was started just now publish, so that it is not taken for one that publishes again."""
    asked, since = -1, 0.0
    deadline = time.monotonic() + _SETTLING
    while time.monotonic() < deadline:
        made = [one for one in driver.api.requests[driver.asked_before :] if one.resource == "resourceslices"]
        if len(made) != asked:
            asked, since = len(made), time.monotonic()
        elif made and time.monotonic() - since > _SETTLED:
            return
        driver.wait(lambda: None, 0.1)


def _wait_republished(driver: DriverUnderTest) -> None:
    """Wait until the pools are complete again after a wipe."""
    left = driver.wiped_at + driver.settings.republishing - time.monotonic()
    if driver.wait(driver.is_complete, max(left, 0.0)):
        driver.republished_after = time.monotonic() - driver.wiped_at


def _be_quiet(driver: DriverUnderTest) -> None:
    driver.wait(lambda: None, driver.settings.quiet)


KILL = Occurrence("the driver is killed and started again", _kill)
REBOOT = Occurrence("the node reboots", _reboot)
CORRUPTION = Occurrence("the driver is started with corrupt state files", _corrupt, undo=_mend)
LOSS = Occurrence("the driver is started without its state files", _lose)
TERM = Occurrence("the driver is ended with SIGTERM and started again", _terminate)
KUBELET_RESTART = Occurrence("the kubelet restarts and deletes the slices", _restart_kubelet, _wait_republished)
QUIET = Occurrence("nothing happens", _be_quiet)
