"""Health: what the driver reports about its devices, and whether a driver that reports nothing survives the calls.

Law: reports are optional. No pod depends on reports, so a wrong report fails only "should" checks. Anything that
prevents claims from being prepared fails "must" checks.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from devicecore.domain.text import counted
from devicecore_tools.conformance.dra.checks.events import OUTAGE, QUIET
from devicecore_tools.conformance.dra.checks.health_watch import HealthWatch, cut_off
from devicecore_tools.conformance.dra.driver import DriverUnderTest
from devicecore_tools.conformance.dra.steps import Parts, across, check
from devicecore_tools.conformance.model import (
    DoesNotApply,
    Failure,
    Severity,
    Skip,
    TookTooLong,
    does_not_apply_if,
    in_context,
    require,
    skip_if,
    some,
)
from devicecore_tools.conformance.processes import open_files

MUST, SHOULD, INFO = Severity.MUST, Severity.SHOULD, Severity.INFO

FIRST = 5.0
"""Seconds for the first complete report."""
DEFAULT_LIMIT = 30.0
"""Seconds after which a kubelet no longer believes a report that names no limit."""
MAX_MESSAGE = 1024
"""The length, in bytes, at which a kubelet truncates a message."""

SERVICE = "NodeWatchResources: the kubelet watches the health of the devices. (dra-health, api.proto)"
_UNHEALTHY = 2  # dra-health, api.proto
_CALLS = 10
_RECONNECTS = 8  # times two calls, and one that is cut off
_CUT_OFF = 12  # more than the threads of a small pool
_SHORT = 1.0  # seconds for the first report of a stream that is cut off
_OLDEST = 3600.0  # seconds; a time further from the clock is an error, such as one in another unit
_MORE = 10  # how many more open files are allowed
_MARGIN = 2.0  # seconds by which a report may be late


@contextmanager
def watching(driver: DriverUnderTest) -> Iterator[HealthWatch]:
    """Watch the driver's health, and wait for its first report.

    Raises Skip if the driver does not serve health, or if it sends no report (another check reports that).
    """
    with HealthWatch(driver.registration.reachable) as watch:
        watch.wait(lambda: watch.reports, FIRST)
        require_service(watch)
        skip_if(not watch.reports, "the driver sent no report")
        yield watch


def require_service(watch: HealthWatch) -> None:
    """Check that the driver serves health.

    Raises Skip if the driver does not serve health, or if it ends the call with an error (another check reports that).
    """
    does_not_apply_if(not watch.is_served, "the driver does not report health, which is optional")
    if watch.code not in ("", "OK") and not watch.reports:
        raise Skip(f"NodeWatchResources ended with {watch.code} {watch.details}")


@check(
    MUST,
    expected="UNIMPLEMENTED each time, and the driver keeps working",
    clause="Health is optional, but kubelets 1.34 to 1.36 ask every driver for it repeatedly. (kubelet, DRA manager)",
    found=("kubernetes-sigs/dra-driver-nvidia-gpu#1423", "kubernetes-sigs/dra-driver-cpu#249"),
)
def survives_being_asked_for_health(driver: DriverUnderTest) -> str:
    """NodeWatchResources is called ten times on a driver that does not serve health, then NodePrepareResources."""
    process, codes = driver.process.running, []
    for _ in range(_CALLS):
        with HealthWatch(driver.registration.reachable) as watch:
            watch.wait(lambda: watch.reports, FIRST)
            if watch.is_served and (watch.reports or not watch.code):
                raise DoesNotApply("the check does not apply: the driver has the health service")
            codes.append(watch.code)
        if watch.code != "UNIMPLEMENTED":
            break  # the driver may have exited, and cannot be called again
    wrong = sorted({code for code in codes if code != "UNIMPLEMENTED"})
    require(not wrong, f"NodeWatchResources ended with {some(wrong)}")
    require(process is None or process.status is None, "the driver has exited")
    with in_context("afterwards"):
        driver.registration.reachable.prepare((), FIRST)
    return f"{counted(_CALLS, 'call')} ended with UNIMPLEMENTED"


@check(
    SHOULD,
    core=True,
    expected=f"if the driver serves health, each published device is in a report within {FIRST:g} seconds",
    clause=f"{SERVICE} A device that was never reported is Unknown.",
)
def reports_the_health_of_each_device(driver: DriverUnderTest) -> str:
    """NodeWatchResources is called, and the first reports are compared with the published devices."""
    wanted = {device.key for device in driver.slices.devices}
    with HealthWatch(driver.registration.reachable) as watch:
        watch.wait(lambda: wanted <= _named(watch), FIRST)
        # Kubernetes' helper always announces health, and answers UNIMPLEMENTED for drivers that have none.
        require_service(watch)
        missing = sorted(f"{pool}/{device}" for pool, device in wanted - _named(watch))
        ended = f"; the stream ended with {watch.code} {watch.details}".rstrip() if watch.code else ""
        require(not missing, f"no report contained {some(missing)}{ended}", late=not watch.code)
        seconds = watch.reports[0].at - watch.opened_at
    return f"{counted(len(wanted), 'device')}, the first after {seconds:.1f} seconds"


@check(
    MUST,
    expected="an answer within ten seconds while the stream is open, and an answer after the others were cut off",
    clause=(
        "A kubelet leaves NodeWatchResources open while the driver is registered, and calls the driver for claims "
        "in the meantime. (kubelet, DRA manager) When a kubelet is killed, its connection ends without a cancellation."
    ),
)
def answers_while_its_health_is_watched(driver: DriverUnderTest) -> str:
    """NodePrepareResources is called while NodeWatchResources is open, and after twelve such streams were cut off."""
    driver.calls.require_answering()
    with HealthWatch(driver.registration.reachable) as watch, in_context("while the health is watched"):
        watch.wait(lambda: watch.reports, FIRST)
        require_service(watch)  # a driver that sends no report, which another check reports, must answer, too
        driver.calls.timed(lambda seconds: watch.instance.prepare((), seconds), 2 * FIRST)
    for _ in range(_CUT_OFF):
        cut_off(driver.registration.reachable, _SHORT)
    with in_context(f"after {counted(_CUT_OFF, 'stream')} were cut off"):  # threads may notice that only after a while
        driver.calls.timed(lambda seconds: driver.registration.reachable.prepare((), seconds))
    return "the driver answered"


@check(
    SHOULD,
    expected="only pools and devices that are in the driver's slices",
    clause="DeviceIdentifier: pool_name and device_name as in the ResourceSlice. A kubelet finds devices by these "
    "names.",
)
def reports_the_health_of_published_devices(driver: DriverUnderTest) -> str:
    """The pools and devices in the first report are compared with the published ones."""
    known = {device.key for device in driver.slices.devices}
    with watching(driver) as watch:
        strange = sorted(f"{pool!r}/{device!r}" for pool, device in watch.reports[0].keys - known)
        require(not strange, f"no slice contains {some(strange)}")
        return f"{counted(len(watch.reports[0].keys), 'device')}, all published"


@check(
    SHOULD,
    expected="UNKNOWN, HEALTHY or UNHEALTHY",
    clause="HealthStatus has these values. (dra-health, api.proto) A kubelet treats any other value as Unknown.",
)
def reports_known_states_of_health(driver: DriverUnderTest) -> str:
    """The health in the first report is read."""
    with watching(driver) as watch:
        states = [int(one.health) for one in watch.reports[0].devices]
    strange = sorted({state for state in states if state not in range(3)})
    require(not strange, f"the health of {counted(len(states), 'device')} has the values {some([*map(str, strange)])}")
    healthy = states.count(1)
    return f"{healthy} of {counted(len(states), 'device')} {'is' if healthy == 1 else 'are'} healthy"


@check(
    SHOULD,
    core=True,
    expected=f"times that differ from the clock by at most {_OLDEST // 60:.0f} minutes",
    clause="last_updated_time: when the health was last determined, as a Unix timestamp in seconds. Required. "
    "(dra-health, api.proto)",
)
def reports_when_it_looked(driver: DriverUnderTest) -> str:
    """The times in the first report are compared with the clock."""
    with watching(driver) as watch:
        ages = {
            f"{one.device.pool_name}/{one.device.device_name}": time.time() - one.last_updated_time
            for one in watch.reports[0].devices
        }
    odd = sorted(f"{device} was checked {age:.0f} seconds ago" for device, age in ages.items() if abs(age) > _OLDEST)
    require(not odd, some(odd))
    return f"{counted(len(ages), 'device')} checked within the last {max(ages.values(), default=0.0):.0f} seconds"


@check(
    INFO,
    expected="each unhealthy device has a taint with the effect NoSchedule or NoExecute, or is no longer published",
    clause=(
        "A scheduler does not see the health that a driver reports to the kubelet. A scheduler allocates a device with "
        "such a taint to no further claim. (ResourceSlice, API reference, devices.taints; in v1 since Kubernetes 1.37)"
    ),
)
def taints_unhealthy_devices(driver: DriverUnderTest) -> str:
    """The devices that are unhealthy in the first report are looked up in the slices."""
    untainted = {device.key for device in driver.slices.devices if not device.is_tainted}
    with watching(driver) as watch:
        reported = [one for one in watch.reports[0].devices if one.health == _UNHEALTHY]
    keys = sorted((one.device.pool_name, one.device.device_name) for one in reported)
    free = ["/".join(key) for key in keys if key in untainted]
    require(not free, f"claims can still get {some(free)}")
    return f"{counted(len(keys), 'device')} reported as unhealthy"


@check(
    SHOULD,
    expected=f"at most {MAX_MESSAGE:,} bytes",
    clause=f"A kubelet truncates a message after {MAX_MESSAGE:,} bytes, even within a character.",
)
def reports_short_messages(driver: DriverUnderTest) -> str:
    """The length of the messages in the first report is measured."""
    with watching(driver) as watch:
        longest = max((len(one.message.encode()) for one in watch.reports[0].devices), default=0)
    require(longest <= MAX_MESSAGE, f"a message is {longest:,} bytes long")
    return f"the longest message is {counted(longest, 'byte')} long"


@check(
    SHOULD,
    expected="no negative limits",
    clause="health_check_timeout_seconds: 0 or less means 30 seconds. (kubelet, DRA manager)",
)
def reports_limits_that_count(driver: DriverUnderTest) -> str:
    """The limits in the first report are read: the seconds after which a report no longer counts."""
    with watching(driver) as watch:
        limits = sorted({int(one.health_check_timeout_seconds) for one in watch.reports[0].devices})
    require(all(limit >= 0 for limit in limits), f"the limits are {some([*map(str, limits)])}")
    return f"the limits are {some([*map(str, limits)])} seconds"


def require_same_instance(driver: DriverUnderTest, watch: HealthWatch) -> None:
    """Skip a check of the stream if the driver has exited and registered again, which ends every stream."""
    if watch.code and watch.instance is not driver.kubelet.newest:
        raise Skip("the driver has registered again in the meantime")


@across(
    QUIET,
    SHOULD,
    expected="the stream stays open",
    clause=f"{SERVICE} When the stream ends, the kubelet clears the health of all devices.",
    found=("kubernetes/kubernetes#140842",),
)
def keeps_the_health_stream_open(driver: DriverUnderTest) -> Parts:
    """NodeWatchResources is called, and the stream is then left alone for a while."""
    with watching(driver) as watch:
        began = time.monotonic()
        yield
        seconds = time.monotonic() - began
        require_same_instance(driver, watch)
        require(not watch.code, f"the stream ended with {watch.code} {watch.details}".rstrip())
    return f"the stream was open for {seconds:.0f} seconds"


@across(
    OUTAGE,
    SHOULD,
    core=True,
    expected="each device is reported again within the shortest limit in the first report",
    clause=f"A device whose last report is older than its limit ({DEFAULT_LIMIT:g} seconds if the report names no "
    "limit) is Unknown. (kubelet, DRA manager)",
    found=("kubernetes/kubernetes#140819",),
)
def repeats_its_reports_of_health(driver: DriverUnderTest) -> Parts:
    """The time between two reports on each device is measured, while the API server is unavailable."""
    before = driver.process.waits
    with watching(driver) as watch:
        yield
        first = watch.reports[0]
        limits = [float(one.health_check_timeout_seconds) for one in first.devices]
        limit = min((one if one > 0 else DEFAULT_LIMIT for one in limits), default=DEFAULT_LIMIT)
        deadline = first.at + limit + min(_MARGIN, limit / 4)
        if deadline - time.monotonic() > driver.process.time_left:
            raise Skip(f"the limit is {limit:g} seconds, which is longer than the rest of the run")

        def missing() -> list[tuple[str, str]]:
            again = {key for report in watch.reports[1:] if report.at <= deadline for key in report.keys}
            return sorted(first.keys - again)

        watch.wait(lambda: not missing(), max(deadline - time.monotonic(), 0.0))
        require_same_instance(driver, watch)
        if late := missing():
            extra = min(before.until(driver.process.waits), 2 * limit)  # the driver may have been held up
            driver.process.deadline += extra
            is_late = watch.wait(
                lambda: first.keys <= {key for report in watch.reports[1:] for key in report.keys}, extra
            )
            devices = some([f"{pool}/{device}" for pool, device in late])
            text = f"the limit is {limit:g} seconds, and there was no second report of {devices} in that time"
            raise (TookTooLong if is_late else Failure)(text)
        seconds = watch.reports[1].at - first.at if len(watch.reports) > 1 else 0.0
    return f"the second report came after {seconds:.0f} seconds; the limit is {limit:g}"


@across(
    QUIET,
    SHOULD,
    core=True,
    expected="each device has the same health in all reports",
    clause=(
        f"{SERVICE} The kubelet writes the health into the status of the pods that use the devices. Nothing has "
        "happened to the devices."
    ),
)
def reports_no_change_without_a_reason(driver: DriverUnderTest) -> Parts:
    """NodeWatchResources is called, and its reports are compared while nothing happens."""
    with watching(driver) as watch:
        yield
        states: dict[tuple[str, str], set[int]] = {}
        for report in watch.reports:
            for one in report.devices:
                states.setdefault((one.device.pool_name, one.device.device_name), set()).add(int(one.health))
        changed = sorted(f"{pool}/{device}" for (pool, device), found in states.items() if len(found) > 1)
        require(not changed, f"the health of {some(changed)} changed")
    return f"{counted(len(watch.reports), 'report')} with the same health"


@check(
    SHOULD,
    core=True,
    expected="each call gets a report, and nothing stays open",
    clause="A kubelet calls NodeWatchResources again after a restart, and after its call has ended.",
)
def serves_health_again_and_again(driver: DriverUnderTest) -> str:
    """NodeWatchResources is called many times, and the streams are canceled or cut off after their first report."""
    with HealthWatch(driver.registration.reachable) as first:
        first.wait(lambda: first.reports, FIRST)
        require_service(first)
        before = open_files(driver.environment.marker)
    for number in range(_RECONNECTS):
        instance = driver.registration.reachable
        cut_off(instance, _SHORT)
        with HealthWatch(instance) as one, HealthWatch(instance) as other:
            for watch in (one, other):
                got = watch.wait(lambda: watch.reports, FIRST)  # noqa: B023 - it is called before the next iteration
                reason = f": {watch.code}" if watch.code else ""
                require(got, f"call {2 * number + 1} or {2 * number + 2} received no report{reason}")
    driver.process.wait(lambda: open_files(driver.environment.marker) <= before + _MORE, FIRST)
    more = open_files(driver.environment.marker) - before
    require(more <= _MORE, f"the calls left {counted(more, 'more open file')} than before")
    return f"{counted(2 * _RECONNECTS, 'call')} got a report each"


def _named(watch: HealthWatch) -> frozenset[tuple[str, str]]:
    return frozenset(key for report in watch.reports for key in report.keys)
