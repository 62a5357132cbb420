"""The events that happen to a driver between the two parts of a check.

Law: an event that stops the driver or the kubelet ends when the driver is registered again, or when the time for that
is up.
"""

import time
from collections.abc import Mapping
from pathlib import Path

from devicecore_tools.conformance.dra.checks.health_watch import HealthWatch
from devicecore_tools.conformance.dra.driver import DeletionOfSlices, DriverUnderTest, Ending
from devicecore_tools.conformance.dra.kubelet import identity_of
from devicecore_tools.conformance.dra.steps import Occurrence

_SETTLING = 10.0  # seconds for a started driver to publish
_READY = 0.3  # seconds without a request for slices, after which a process counts as started
_SETTLED = 1.0  # seconds without a request for slices
_LATER = 1.0  # seconds from the start of a driver to that of the API server
_WATCHING = 5.0  # seconds for a driver to watch its slices again
_STEADY = 1.4  # a multiple of the race time, after which a driver is assumed to write all the time


def _corrupt(driver: DriverUnderTest) -> None:
    """Stop the driver, damage its state files, and start it. If the driver does not come back, restore the files."""
    claims = driver.claims.prepared

    def damage() -> None:  # the files are read only now, because a running process may be writing them
        files = driver.environment.state_files()
        driver.seen.intact = files, claims
        for path, data in files.items():
            path.write_bytes(data[: len(data) // 2])

    if driver.registration.restart("corrupted", damage).problem:
        restore(driver, driver.seen.intact[0])


def _mend(driver: DriverUnderTest) -> None:
    """Restore the driver's state files, because a damaged file may cause failures only in a later check."""
    files, claims = driver.seen.intact
    if files:
        restore(driver, files)
        # While its state was damaged, the driver may have refused to unprepare these claims.
        driver.claims.held.difference_update(device.key for claim in claims for device in claim.devices)
        driver.calls.unprepare_later(claims)


def restore(driver: DriverUnderTest, files: Mapping[Path, bytes]) -> None:
    """Restart the driver with these state files and no others."""
    driver.process.kill()
    driver.environment.delete_state_files()
    for path, data in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    driver.registration.after(driver.process.start)


def _terminate(driver: DriverUnderTest) -> None:
    """End the driver with SIGTERM, record what it left behind, start it, and record how it came back."""
    instance, process = driver.registration.instance, driver.process.running
    if process is None:
        return
    driver.slices.settle(_READY, _SETTLING)  # Kubernetes' Go helper panics if it is stopped while it starts
    had_slices = bool(driver.slices.now())
    # A kubelet keeps its call for health open, and some servers wait for the end of all calls.
    with HealthWatch(instance) as watch:
        watch.wait(lambda: watch.reports, _READY)
        status, seconds = driver.process.terminate()
    left = sorted(path for path in {instance.path, instance.endpoint} if identity_of(path) is not None)
    crash = process.crash if status is not None else ""
    driver.seen.ending = Ending(status, seconds, crash, tuple(left), had_slices, bool(driver.slices.now()))
    driver.registration.returns["terminated"] = driver.registration.after(driver.process.start)


def _wait_until_calm(driver: DriverUnderTest) -> None:
    """Wait until the driver would notice that its slices were deleted. If it would not, start a new process first."""
    if driver.kubelet.newest is None:  # another check reports that the driver is not registered
        return
    settle(driver)
    if not _is_calm(driver):
        driver.process.start()  # a new process writes nothing unless its slices have changed
        settle(driver)
    left = driver.settings.race - (time.monotonic() - driver.slices.last_write)
    if left > 0:
        driver.process.deadline += left  # without this time, a few drivers could not be judged
        driver.process.wait(lambda: _is_calm(driver), _STEADY * driver.settings.race)


def _restart_kubelet(driver: DriverUnderTest) -> None:
    """Restart the kubelet, which forgets all drivers and deletes the node's slices."""
    _ = driver.registration.instance
    driver.slices.refresh()
    _end_watches(driver)
    driver.kubelet.stop()
    wipe(driver)
    driver.registration.returns["kubelet"] = driver.registration.after(driver.kubelet.start)


def _end_watches(driver: DriverUnderTest) -> None:
    """End all watches, as an API server does after some minutes, and wait for the driver to watch its slices again."""
    watches = driver.slices.watches()
    if watches:
        driver.api.cut_watches()
        driver.process.wait(lambda: driver.slices.watches() > watches, _WATCHING)
        driver.slices.settle(_READY, _WATCHING)


def _register_again(driver: DriverUnderTest) -> None:
    """Restart the kubelet, which finds the existing sockets."""
    driver.kubelet.stop()
    driver.registration.after(driver.kubelet.start)


def _take_api_server_away(driver: DriverUnderTest) -> None:
    with driver.without_api_server():
        driver.process.pause(driver.settings.outage)
    driver.slices.wait_complete()


def _leave_alone(driver: DriverUnderTest) -> None:
    driver.process.pause(driver.settings.quiet)
    driver.seen.requests_when_idle = len(driver.api.requests)


def _start_before_the_api_server(driver: DriverUnderTest) -> None:
    """Restart the driver, without slices, while the API server is down. The API server is back a little later."""
    driver.process.kill()
    driver.slices.wipe()
    with driver.without_api_server():
        driver.process.start()
        driver.process.pause(_LATER)
    if driver.process.running is None or driver.process.running.status is not None:
        driver.process.start()


def _is_calm(driver: DriverUnderTest) -> bool:
    """Return whether the driver would now notice that its slices were deleted."""
    return time.monotonic() - driver.slices.last_write > driver.settings.race


def wipe(driver: DriverUnderTest) -> None:
    """Delete the slices, as a kubelet does, and record the time."""
    now, process = time.monotonic(), driver.process.running
    driver.seen.wipe = DeletionOfSlices(
        at=now,
        process=0 if process is None else process.pid,
        calm=now - driver.slices.last_write,
        waits=driver.process.waits,
    )
    driver.slices.wipe()


def settle(driver: DriverUnderTest) -> None:
    """Give a new driver process time to publish, so that its first slices are not mistaken for republished ones."""
    driver.slices.settle(_SETTLED, _SETTLING)


def wait_republished(driver: DriverUnderTest, limit: float) -> None:
    """Wait at most `limit` seconds after a wipe for the pools to become complete again.

    The time for which the driver had to wait for processors and disks does not count.

    If another check has restarted the driver in the meantime, the driver published on startup, so the slices are wiped
    again.
    """
    running = driver.process.running
    if driver.seen.wipe.republished_after is None and running is not None and running.pid != driver.seen.wipe.process:
        settle(driver)
        wipe(driver)
    seen = driver.seen.wipe
    left = max(seen.at + limit - time.monotonic(), 0.0)
    if not driver.process.wait_fairly(driver.slices.is_complete, left, seen.waits):
        driver.slices.was_late = True
        return
    seen.republished_after = time.monotonic() - seen.at


KILL = Occurrence("the driver is killed and restarted", lambda driver: driver.registration.restart("killed"))
# A driver may fail to start while a claim is gone, so the other checks must not share this event.
KILL_ALONE = Occurrence(
    "the driver is killed and restarted while a claim is gone",
    lambda driver: driver.registration.restart("killed alone"),
)
REBOOT = Occurrence(
    "the node reboots",
    lambda driver: driver.registration.restart("rebooted", driver.environment.reboot),
    keeps_claims=False,
)
CORRUPTION = Occurrence(
    "the driver is started with corrupt state files", _corrupt, undo=_mend, keeps_claims=False, damages_state=True
)
# A driver may refuse all devices while it cannot read the record of one claim, which may be another check's claim.
CORRUPTION_ALONE = Occurrence(
    "the driver is started with one check's state files corrupt",
    _corrupt,
    undo=_mend,
    keeps_claims=False,
    damages_state=True,
)
LOSS = Occurrence(
    "the driver is started without its state files",
    lambda driver: driver.registration.restart("lost", driver.environment.delete_state_files),
    keeps_claims=False,
    damages_state=True,
)
TERM = Occurrence("the driver is stopped with SIGTERM and restarted", _terminate)
REGISTRATION = Occurrence("the kubelet restarts and registers the driver again", _register_again)
KUBELET_RESTART = Occurrence(
    "the kubelet restarts and deletes the slices",
    _restart_kubelet,
    before=_wait_until_calm,  # after the first parts of the event's checks, the process must keep running
    end=lambda driver: wait_republished(driver, driver.settings.republishing),
)
# A client pauses longer after each failure, so that it may be late in later checks. A restart resets the pauses.
OUTAGE = Occurrence(
    "the API server is unavailable for a while",
    _take_api_server_away,
    undo=lambda driver: driver.registration.after(driver.process.start),
)
LATE_API_SERVER = Occurrence("the driver is restarted before the API server", _start_before_the_api_server)
QUIET = Occurrence("nothing happens", _leave_alone, before=settle)
