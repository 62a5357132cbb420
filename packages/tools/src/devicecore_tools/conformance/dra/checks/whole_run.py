"""The whole run: what must be true of every call and every event, regardless of what other checks compare.

Law: these checks run last, and fail only if no other check has reported the same.
"""

from devicecore.domain.text import counted
from devicecore_tools.conformance.dra.checks.call_watch import (
    CHANGED,
    HELD,
    LOST,
    WRITTEN,
    WRONG,
    report,
    skip_if_reported,
    watch_of,
)
from devicecore_tools.conformance.dra.checks.cdi import own_files
from devicecore_tools.conformance.dra.driver import DriverUnderTest
from devicecore_tools.conformance.dra.steps import at_the_end
from devicecore_tools.conformance.model import Severity, require, skip_if, some

MUST, SHOULD = Severity.MUST, Severity.SHOULD

_MEASURED, _COMPARED, _FEWEST = 40, 10, 6  # claims
_SLOWER, _TOLERATED = 3, 0.03  # times, and seconds

_CLAIMS = ("cdi", "prepare", "unprepare", "situations", "state", "rolling update")
"""The groups of checks that compare claims in the same way."""


@at_the_end(
    MUST,
    expected="the same answer, CDI devices and mounted files as long as a claim is prepared",
    clause="A container that uses the claim may be restarted at any time. Its runtime then resolves the CDI devices "
    "again, without a call to the driver. (kubelet, DRA manager; CDI specification)",
)
def keeps_prepared_claims_as_they_are(driver: DriverUnderTest) -> str:
    """After each call and each event of the run, all prepared claims are compared with what they were before."""
    number = report(driver, CHANGED, *_CLAIMS)
    return f"no claim changed in {counted(number, 'successful call')}"


@at_the_end(
    MUST,
    expected="only devices and requests that are allocated, and CDI devices and mounted files that exist",
    clause="It does not matter which devices a claim has, how it asks for them, or what has happened before. "
    "(dra/v1, api.proto, Device; ResourceClaim, API reference)",
)
def answers_correctly_each_time(driver: DriverUnderTest) -> str:
    """Each successful answer of the run is compared with the claim's allocation, and its CDI devices are resolved."""
    number = report(driver, WRONG, *_CLAIMS)
    return f"{counted(number, 'answer')}, all correct"


@at_the_end(
    MUST,
    expected="success each time, and other claims can get the devices",
    clause="When the call has succeeded, the scheduler may give the devices to another claim. (kubeletplugin, "
    "DRAPlugin.UnprepareResourceClaims) A device that is not released is lost to the node.",
)
def releases_the_devices_of_each_claim(driver: DriverUnderTest) -> str:
    """After each check, its claims are unprepared, and their devices are prepared for another claim."""
    number = report(driver, HELD, *_CLAIMS)
    return f"all devices of {counted(number, 'successful call')} were released"


@at_the_end(
    MUST,
    expected="no CDI file contains the UID of such a claim",
    clause="NodeUnprepareResources undoes what NodePrepareResources did. (dra, api.proto) A CDI file that remains can "
    "be used by another container.",
)
def leaves_nothing_of_unprepared_claims(driver: DriverUnderTest) -> str:
    """All claims of the run that were prepared and unprepared are searched for in the driver's CDI files."""
    watch, own = watch_of(driver), set(own_files(driver))
    files = {path: data for path, data in driver.environment.cdi_files().items() if path in own}
    left = sorted(
        path.name
        for path, data in files.items()
        if any(uid in path.name or uid.encode() in data for uid in watch.ended)
    )
    sentence = f"{some(left)} contains the UID of an unprepared claim"
    if left:
        skip_if_reported(watch, sentence, *_CLAIMS)
    require(not left, sentence)
    return f"nothing is left of {counted(len(watch.ended), 'claim')}"


@at_the_end(
    SHOULD,
    core=True,
    expected=f"at most {_SLOWER} times as many seconds as for the first claims",
    clause="A driver runs for months, and pods come and go. A kubelet waits 45 seconds for all claims of a pod. "
    "(kubelet, DRA manager)",
)
def prepares_later_claims_as_fast(driver: DriverUnderTest) -> str:
    """The time for a claim for one device is compared for the first and last claims of each process of the driver."""
    found = [took for took in watch_of(driver).took.values() if len(took) >= _MEASURED]
    skip_if(not found, f"no process has prepared {_MEASURED} claims for one device")
    text = ""
    for took in found:
        pairs = [([one.after for one in took[:_COMPARED]], [one.after for one in took[-_COMPARED:]])]
        free = [one.whole for one in took[len(took) // 2 :] if one.is_free]
        if len(free) >= _FEWEST:
            pairs.append(([one.whole for one in took[:_COMPARED]], free))
        for early, late in pairs:
            # A busy machine slows down some of the calls, but not all of them.
            first, last = min(early), min(late)
            text = f"of {len(took)} claims, the first took at least {first:.3f} seconds, and the last {last:.3f}"
            require(last <= _SLOWER * first + _TOLERATED, text, late=True)
    return text


@at_the_end(
    MUST,
    expected="no call changes what belongs to the user, the scheduler or another driver",
    clause=(
        "A claim belongs to its user; its allocation and consumers belong to the scheduler. A driver may only write "
        "the entries for its own devices in status.devices. (ResourceClaim, API reference; KEP-4817)"
    ),
)
def writes_only_its_part_of_claims(driver: DriverUnderTest) -> str:
    """The claims that were written during each call of the run are compared with what they were before."""
    number = report(driver, WRITTEN, "prepare")
    return f"no such change in {counted(number, 'successful call')}"


@at_the_end(
    MUST,
    expected="no device is missing afterwards, unless the driver gives its devices new names",
    clause="The scheduler allocates the devices that are in ResourceSlices. (kubernetes.io, Dynamic Resource "
    "Allocation) A claim stays allocated across restarts of the driver. (ResourceClaim, API reference)",
)
def publishes_its_devices_after_each_event(driver: DriverUnderTest) -> str:
    """The devices that are published before and after each kill, restart and reboot of the run are compared."""
    report(driver, LOST, "slices", "registration")
    return "no device was missing"
