"""NodeUnprepareResources: whether the driver undoes everything, even if it does not know the claim.

Law: a driver needs only the UID of a claim to unprepare it, so any claim can be unprepared at any time.
"""

import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from devicecore.domain.text import counted
from devicecore_tools.conformance.connection import CallFailedError
from devicecore_tools.conformance.dra.calls import devices_in, require_unprepared
from devicecore_tools.conformance.dra.checks.cdi import read_only, require_nothing_left, require_undone
from devicecore_tools.conformance.dra.checks.events import KILL, KILL_ALONE, LOSS, REBOOT
from devicecore_tools.conformance.dra.checks.prepare import (
    FOREIGN,
    OTHER_DRIVER,
    OVERLAP,
    ROUNDS,
    TWO_DEVICES,
    Rows,
    all_at_once,
    answers_for_each,
    claim_with,
    delayed_reads,
    difference,
    prepared_rows,
    require_alive,
    require_free,
    require_resolvable,
    rows,
)
from devicecore_tools.conformance.dra.claims import Claim
from devicecore_tools.conformance.dra.driver import DriverUnderTest
from devicecore_tools.conformance.dra.steps import Parts, across, at_start, check
from devicecore_tools.conformance.model import (
    Failure,
    Severity,
    Skip,
    does_not_apply_if,
    in_context,
    needed,
    require,
    skip_if,
    some,
)

MUST, SHOULD = Severity.MUST, Severity.SHOULD

CONTRACT = (
    "NodeUnprepareResources is the opposite of NodePrepareResources. The same error handling rules apply. (dra/v1, "
    "api.proto)"
)
UNKNOWN = (
    "UnprepareResourceClaims must be idempotent. It is also called for claims that were never prepared, because a "
    "kubelet records a claim before it calls the driver; this is not an error. (kubeletplugin, "
    "DRAPlugin.UnprepareResourceClaims)"
)
GONE = (
    "The claim object may be gone when NodeUnprepareResources is called, so the driver cannot read it. (kubeletplugin, "
    "DRAPlugin.UnprepareResourceClaims)"
)
_OF_A_POD = 3  # claims
_FOR_AN_EVENT = 6  # how many devices a driver needs so that one of several claims can have two
_REQUESTED = 2.0  # seconds after which a call for a device in use is canceled
_OVERLAPS = 5  # overlapping calls to prepare and unprepare one claim


def own_cdi_names(driver: DriverUnderTest, claim: Claim) -> list[str]:
    """Prepare a claim, and return the names of its new CDI devices."""
    before = driver.environment.cdi_names()
    driver.calls.ready_devices(claim)
    return sorted(driver.environment.cdi_names() - before)


def require_free_devices(driver: DriverUnderTest, *claims: Claim) -> str:
    """Delete claims, and check that their devices can be prepared for another claim. Return a sentence that says so."""
    # one device represents all devices if claims request all
    usable = {device.key for device in driver.claims.usable}
    devices = [device for claim in claims for device in claim.devices if device.key in usable]
    for claim in claims:
        driver.claims.forget(claim)
    return require_free(driver, devices, *claims)


def require_freeing(driver: DriverUnderTest) -> None:
    """Check that a device of an unprepared claim can be prepared for another claim.

    Raises Skip if the device cannot be prepared; another check reports that.
    """
    if not driver.calls.habits.frees:
        with driver.claims.owning([]), needed("a driver that frees its devices"):
            claim = driver.calls.ready(1)
            driver.calls.unprepared(claim)
            require_free_devices(driver, claim)
            driver.calls.clean_up()
        driver.calls.habits.frees = True


def require_tolerance(driver: DriverUnderTest) -> None:
    """Raise Skip unless the driver unprepares a claim that it does not know."""
    with needed("a driver that unprepares an unknown claim"):
        driver.calls.unprepared(Claim("conformance-unknown", str(uuid.uuid4()), ()))


def unprepare_across_event(driver: DriverUnderTest) -> Parts:
    """Run the two parts of a check that a claim can be unprepared after an event, leaving no CDI devices."""
    claim = driver.claims.new(driver.claims.several_of(_FOR_AN_EVENT))
    names = own_cdi_names(driver, claim)
    yield
    driver.calls.unprepared(claim)
    try:
        require_undone(driver, names)
    except Failure:
        if len(claim.devices) > 1:
            _require_undoing(driver, len(claim.devices))
        raise
    return "the claim was unprepared"


def _require_undoing(driver: DriverUnderTest, count: int) -> None:
    """Raise Skip if a claim with this many devices leaves CDI devices behind; another check reports that."""
    with needed("a driver that removes the CDI devices of several devices"):
        claim = driver.claims.new(count)
        names = own_cdi_names(driver, claim)
        driver.calls.unprepared(claim)
        require_undone(driver, names)


# --- one claim --------------------------------------------------------------------------------------------------------


@at_start(MUST, expected="an entry for the claim, without an error", clause=CONTRACT)
def unprepares_a_claim(driver: DriverUnderTest) -> str:
    """A claim is prepared and unprepared."""
    claim = driver.calls.ready()
    answer = driver.calls.unprepare(claim)
    skip_if(claim.uid not in answer, "the answer has no entry for the claim")
    require(not answer[claim.uid].error, f"the error is: {answer[claim.uid].error}")
    return "the claim was unprepared"


@check(
    MUST,
    expected="exactly one entry for each claim, with the UID of the claim as its key",
    clause="The ResourceClaims for which preparation was reverted, with claim_uid as key. It is an error if some claim "
    "listed in NodeUnprepareResourcesRequest does not get unprepared. (dra/v1, api.proto)",
    found=("drivers that answer only for failed claims",),
)
def answers_for_each_unprepared_claim(driver: DriverUnderTest) -> str:
    """Up to three claims are unprepared with one request."""
    return answers_for_each(driver, [_OF_A_POD], driver.calls.prepare, driver.calls.unprepare)


@check(
    MUST,
    expected="success for each claim; no CDI device or file of a claim is left, and other claims can get the devices",
    clause=f"{CONTRACT} A kubelet unprepares all claims of a pod with one request. (kubelet, DRA manager)",
)
def unprepares_the_claims_of_a_pod(driver: DriverUnderTest) -> str:
    """Up to three claims are prepared with one request, and unprepared with another."""
    driver.claims.require_two()
    driver.calls.require_unpreparing()
    require_freeing(driver)
    before = driver.environment.cdi_names()
    claims = [driver.claims.new(1) for _ in driver.claims.allocatable[:_OF_A_POD]]
    with needed("prepared claims"):
        answer = driver.calls.prepare(*claims)
        for claim in claims:
            devices_in(answer, claim)
    names = driver.environment.cdi_names() - before
    answer = driver.calls.unprepare(*claims)
    skip_if({claim.uid for claim in claims} - set(answer), "the answer has no entry for a claim")
    for claim in claims:
        require_unprepared(answer, claim)
    require_nothing_left(driver, claims, names)
    return f"{counted(len(claims), 'claim')} unprepared; {require_free_devices(driver, *claims)}"


@check(
    MUST,
    expected="success; no CDI device or file of the claim is left, and each device can be prepared for another claim",
    clause=f"{CONTRACT} A request can ask for several devices, and a claim can have several requests. (ResourceClaim, "
    "API reference, spec.devices.requests)",
)
def unprepares_a_claim_of_two_devices(driver: DriverUnderTest) -> str:
    """A claim with one request for two devices, and a claim with two requests, are prepared and unprepared."""
    driver.claims.require_two()
    driver.calls.require_unpreparing()
    require_freeing(driver)
    for counts, what in TWO_DEVICES:
        claim = driver.claims.new(spec=driver.claims.request(*counts))
        names = own_cdi_names(driver, claim)
        with in_context(f"with {what}"):
            driver.calls.unprepared(claim)
            require_nothing_left(driver, [claim], names)
            require_free_devices(driver, claim)
        driver.calls.clean_up()
    return "success both times, and nothing of the claim is left"


@check(MUST, expected="success, twice", clause=UNKNOWN, found=("kubernetes-sigs/dra-driver-cpu#169",))
def unprepare_is_idempotent(driver: DriverUnderTest) -> str:
    """A claim is prepared, and unprepared twice."""
    claim = driver.calls.ready()
    with needed("an unprepared claim"):
        driver.calls.unprepared(claim)
    driver.calls.unprepared(claim)
    return "the second call succeeded, too"


@check(
    SHOULD,
    core=True,
    expected="no file name contains the UID",
    clause=f"{CONTRACT} A node has thousands of claims in its lifetime, and a disk of limited size.",
)
def leaves_no_files_of_a_claim(driver: DriverUnderTest) -> str:
    """A claim is prepared and unprepared. Afterwards, no file name of the driver may contain the claim's UID."""
    claim = driver.calls.ready()
    with needed("an unprepared claim"):
        driver.calls.unprepared(claim)
    left = sorted(
        str(path)
        for path in driver.environment.files()
        if claim.uid in str(path) and not path.is_relative_to(driver.environment.cdi)  # reported by another check
    )
    require(not left, f"the driver left behind {some(left)}")
    return "no file name contains the claim's UID"


@check(MUST, expected="success", clause=UNKNOWN, found=("NVIDIA/k8s-dra-driver-gpu#1162",))
def unprepares_an_unknown_claim(driver: DriverUnderTest) -> str:
    """A claim that was never prepared is unprepared, alone, and before and after a prepared claim in the same call."""
    driver.calls.unprepared(driver.claims.new(1))
    for is_first in (True, False):
        known, unknown = driver.calls.ready(1), Claim("conformance-unknown", str(uuid.uuid4()), ())
        claims = (known, unknown) if is_first else (unknown, known)
        with in_context("with a prepared claim in the same call"):
            answer = driver.calls.unprepare(*claims)
            skip_if(len(answer) < len(claims), "the answer has no entry for a claim")
            for claim in claims:
                require_unprepared(answer, claim)
        driver.calls.clean_up()
    return "unpreparing the claim succeeded"


@check(
    MUST,
    expected="success, and the claim's CDI devices are gone",
    clause=GONE,
    found=("NVIDIA/k8s-dra-driver-gpu#340", "NVIDIA/k8s-dra-driver-gpu#342"),
)
def unprepares_a_deleted_claim(driver: DriverUnderTest) -> str:
    """A claim is prepared, deleted from the API server, and unprepared."""
    claim = driver.claims.new()
    names = own_cdi_names(driver, claim)
    driver.claims.delete_object(claim)
    driver.calls.unprepared(claim)
    require_undone(driver, names)
    return "the claim was unprepared"


@check(
    MUST,
    expected="success, and the prepared claim stays unchanged",
    clause=(
        "uid: The UID of the ResourceClaim. Required. (dra/v1, api.proto) A claim with the same name but a different "
        "UID is a different claim."
    ),
)
def unprepares_by_uid(driver: DriverUnderTest) -> str:
    """A claim is prepared, and another one with the same name but a different UID is unprepared."""
    require_tolerance(driver)
    claim = driver.claims.new()
    before = rows(driver.calls.ready_devices(claim))
    files = driver.environment.cdi_files()
    driver.calls.unprepared(driver.claims.stranger(claim))
    gone = [path.name for path in files if path not in driver.environment.cdi_files()]
    require(not gone, f"the CDI files of the prepared claim are gone: {some(gone)}")
    after = rows(driver.calls.ready_devices(claim))
    require(before == after, f"the prepared claim has changed: {difference(before, after)}")
    return "the prepared claim is unchanged"


@at_start(
    MUST,
    expected="the device can be prepared for another claim at once",
    clause="When the call has succeeded, the scheduler may give the devices to another claim. (kubeletplugin, "
    "DRAPlugin.UnprepareResourceClaims)",
    found=("NVIDIA/k8s-dra-driver-gpu#840",),
)
def frees_the_device(driver: DriverUnderTest) -> str:
    """A device is prepared for a claim, which is then unprepared, and the device is prepared for another claim."""
    device = driver.claims.free_device()
    first = driver.calls.ready(devices=[device])
    with needed("an unprepared claim"):
        driver.calls.unprepared(first)
    return require_free_devices(driver, first)


@check(
    MUST,
    expected="success for the first claim, and then for the second one",
    clause="Nothing in a kubelet serializes the calls for different pods. If a prepare call that waits for a device "
    "delays the unprepare call that would release the device, neither ends, and no other pod can use the driver. "
    "(kubelet, pod workers)",
)
def unprepares_while_its_device_is_requested(driver: DriverUnderTest) -> str:
    """A device in use is requested for a second claim, in a call that is canceled. Then the first is unprepared."""
    driver.calls.require_preparing()
    require_freeing(driver)
    device = driver.claims.free_device(shared=False)
    first = driver.calls.ready(devices=[device])
    second = driver.claims.on(device)
    try:
        driver.calls.prepare(second, timeout=_REQUESTED)
        outcome = "was answered"
    except CallFailedError as error:
        outcome = "was canceled" if error.code == "DEADLINE_EXCEEDED" else "failed"
    with in_context(f"when the call for the second claim {outcome}"):
        driver.calls.unprepared(first)
    if not second.is_prepared:
        driver.calls.prepared(second)
    return f"the call for the second claim {outcome}, and both claims got what they needed"


@check(
    MUST,
    expected="success; no CDI device or file of the claim is left, and the device can be prepared for another claim",
    clause=(
        "A claim whose preparation failed is unprepared when its pod ends, because the kubelet has already recorded "
        "it. (kubelet, DRA manager)"
    ),
    found=("NVIDIA/k8s-dra-driver-gpu#840",),
)
def unprepares_after_a_failed_prepare(driver: DriverUnderTest) -> str:
    """The preparation of a claim fails because one of its devices does not exist, and the claim is unprepared."""
    require_tolerance(driver)
    require_freeing(driver)
    before = driver.environment.cdi_names()
    free = driver.claims.free_device()
    claim = claim_with(driver, free, {"device": driver.claims.missing_device(free.pool).name})
    with suppress(CallFailedError):  # another check tests the failure
        driver.calls.prepare(claim)
    names = driver.environment.cdi_names() - before
    driver.calls.unprepared(claim)
    require_nothing_left(driver, [claim], names)
    return f"the claim was unprepared, and then {require_free_devices(driver, claim)}"


@check(
    MUST,
    expected="success, and the other driver's CDI file for the claim still exists",
    clause="Devices of several drivers can be allocated to a claim; each driver unprepares its own. "
    "(ResourceClaim, API reference, status.allocation.devices.results)",
)
def unprepares_a_claim_of_several_drivers(driver: DriverUnderTest) -> str:
    """A claim with one device of this driver and one of another driver is prepared and unprepared."""
    claim = claim_with(driver, driver.claims.free_device(), FOREIGN)
    driver.calls.ready_devices(claim)
    text = f'{{"cdiVersion": "0.3.0", "kind": "{OTHER_DRIVER}/x", "devices": [{{"name": "{claim.uid}", '
    path = driver.environment.plant_cdi(
        f"{OTHER_DRIVER}_{claim.uid}.json", text + '"containerEdits": {"env": ["X=1"]}}]}\n'
    )
    try:
        driver.calls.unprepared(claim)
        require(path.exists(), f"the other driver's file {path.name} was removed")
    finally:
        path.unlink(missing_ok=True)
    return "the claim was unprepared"


@check(
    MUST,
    expected="an error, and success once the driver can remove files again; then no CDI device or file of the claim is "
    "left, and the device can be prepared for another claim",
    clause=f"{CONTRACT} A kubelet repeats a call that failed, but not one that succeeded. (kubelet, DRA manager) A CDI "
    "file that remains can be used by another container.",
)
def reports_that_it_cannot_remove(driver: DriverUnderTest) -> str:
    """A claim is unprepared while nothing can be removed from the CDI directory, and again afterwards."""
    does_not_apply_if(not driver.environment.owns_cdi, "--cdi-dir names a directory that is not the run's own")
    require_freeing(driver)
    does_not_apply_if(not driver.calls.removes_cdi_devices, "no CDI device belongs to the claim")
    claim = driver.claims.new(1)
    names = own_cdi_names(driver, claim)
    does_not_apply_if(not names, "no CDI device belongs to the claim")
    is_done = False
    with read_only(driver, driver.environment.cdi), suppress(Failure):
        driver.calls.unprepared(claim)
        is_done = True
    with in_context(
        "once files could be removed again, " + ("without another call" if is_done else "in the next call")
    ):
        if not is_done:
            driver.calls.unprepared(claim)
        require_nothing_left(driver, [claim], names)
        require_free_devices(driver, claim)
    return "nothing is left of the claim" if is_done else "the first call failed, and the second one succeeded"


# --- several calls ----------------------------------------------------------------------------------------------------


@check(
    MUST,
    expected="success for all claims; no CDI device or file of a claim is left, and other claims can get the devices",
    clause="A kubelet terminates pods independently of each other, so the calls for different pods overlap. (kubelet, "
    "pod workers)",
)
def unprepares_at_the_same_time(driver: DriverUnderTest) -> str:
    """Up to sixteen claims are unprepared by concurrent calls, then one is unprepared while another is prepared."""
    driver.claims.require_two()
    driver.calls.require_unpreparing()
    before = driver.environment.cdi_names()
    claims = [driver.calls.ready(1) for _ in driver.claims.allocatable[: driver.calls.in_time_for(ROUNDS[0])]]
    names = driver.environment.cdi_names() - before
    all_at_once(driver, [partial(driver.calls.unprepared, claim) for claim in claims])
    require_nothing_left(driver, claims, names)
    with in_context("afterwards"):  # a lost write may leave the devices in use
        require_free_devices(driver, *claims)
    first, second = driver.claims.new(1), driver.claims.new(1)
    names = set(own_cdi_names(driver, first))
    with delayed_reads(driver, OVERLAP):
        _, answer = all_at_once(
            driver, [partial(unprepared_rows, driver, first), partial(prepared_rows, driver, second)]
        )
    require_nothing_left(driver, [first], names)
    require_resolvable(driver, answer)
    return f"{counted(len(claims), 'call')} concurrently, and one during a prepare call"


def unprepared_rows(driver: DriverUnderTest, claim: Claim) -> Rows:
    """Unprepare a claim, and return empty `Rows`. Raises Failure if the driver did not unprepare the claim."""
    driver.calls.unprepared(claim)
    return Rows()


@check(
    MUST,
    expected="no crash, and nothing is left after a final unprepare call",
    clause="Nothing in a kubelet serializes a canceled prepare call and the unprepare call that follows. (kubelet, DRA "
    "manager)",
    found=("NVIDIA/k8s-dra-driver-gpu#1162", "NVIDIA/k8s-dra-driver-gpu#1205"),
)
def survives_prepare_and_unprepare_at_the_same_time(driver: DriverUnderTest) -> str:
    """A claim is prepared and unprepared by overlapping calls five times, and finally unprepared."""
    driver.calls.require_preparing()
    exits = len(driver.process.exits)
    before = driver.environment.cdi_names()
    claim = driver.claims.new(1)

    def call(act: Any) -> None:  # noqa: ANN401 - one of two methods
        with suppress(CallFailedError, Skip):  # any answer will do while the calls overlap
            act(claim)

    with ThreadPoolExecutor(2) as pool:
        for _number in range(_OVERLAPS):
            list(pool.map(call, (driver.calls.prepare, driver.calls.unprepare)))
    require_alive(driver, exits)
    driver.calls.prepared(claim)
    driver.calls.unprepared(claim)
    require_undone(driver, driver.environment.cdi_names() - before)
    return "nothing is left"


@check(SHOULD, expected="success", clause=GONE, found=("NVIDIA/k8s-dra-driver-gpu#340",))
def unprepares_without_the_api_server(driver: DriverUnderTest) -> str:
    """A claim is unprepared while the API server is down."""
    claim = driver.calls.ready()
    with driver.without_api_server():
        driver.calls.unprepared(claim)
    return "the claim was unprepared"


@check(
    SHOULD,
    expected="success within 10 seconds",
    clause="NodeUnprepareResources need not read the claim, so a slow API server should not delay terminating pods. "
    "(kubeletplugin, DRAPlugin.UnprepareResourceClaims)",
)
def unprepares_with_a_slow_api_server(driver: DriverUnderTest) -> str:
    """A claim is unprepared while the API server takes 15 seconds to answer each read of a claim."""
    claim = driver.calls.ready()
    with delayed_reads(driver, 15.0):
        try:
            answer = driver.calls.unprepare(claim, timeout=10.0)
        except CallFailedError as error:
            require(not error.is_late, "there was no answer within 10 seconds", late=True)
            raise Skip(f"the check needs a response from the API server: {error}") from None
    if claim.uid in answer:
        require_unprepared(answer, claim)
    return "the claim was unprepared"


# --- across restarts --------------------------------------------------------------------------------------------------


@across(
    KILL,
    MUST,
    expected="success, and the claim's CDI devices are gone",
    clause="A previous process of the driver may have prepared the claim. (kubeletplugin, "
    "DRAPlugin.UnprepareResourceClaims)",
    found=("NVIDIA/k8s-dra-driver-gpu#840",),
)
def unprepares_after_a_restart(driver: DriverUnderTest) -> Parts:
    """A claim is prepared, the driver is killed and restarted, and the claim is unprepared."""
    return (yield from unprepare_across_event(driver))


@across(
    KILL_ALONE,
    MUST,
    expected="success, and the claim's device can be prepared for another claim",
    clause="While the driver was down, the claim may have been deleted. The kubelet unprepares the claim, and then the "
    "claim's devices are free. (kubelet, DRA manager)",
    found=("NVIDIA/k8s-dra-driver-gpu#840", "NVIDIA/k8s-dra-driver-gpu#1188"),
)
def unprepares_a_claim_that_was_deleted_meanwhile(driver: DriverUnderTest) -> Parts:
    """A claim is prepared and deleted, the driver is killed and restarted, and the claim is unprepared."""
    device = driver.claims.free_device()
    claim = driver.calls.ready(devices=[device])
    driver.claims.delete_object(claim)
    yield
    driver.calls.unprepared(claim)
    return require_free_devices(driver, claim)


@across(
    KILL,
    MUST,
    expected="the device can be prepared for another claim",
    clause="When the call has succeeded, the scheduler may give the devices to another claim. (kubeletplugin, "
    "DRAPlugin.UnprepareResourceClaims) The driver may exit at any time after that.",
)
def keeps_devices_free_after_a_restart(driver: DriverUnderTest) -> Parts:
    """A claim is prepared and unprepared, the driver is killed and restarted, and another claim gets the device."""
    require_freeing(driver)
    claim = driver.calls.ready(devices=[driver.claims.free_device(shared=False)])
    with needed("an unprepared claim"):
        driver.calls.unprepared(claim)
    yield
    return require_free_devices(driver, claim)


@across(
    REBOOT,
    MUST,
    expected="success",
    clause="A pod may be deleted while the node reboots. The kubelet has kept its claim checkpoint, and unprepares "
    "the claims. (kubelet, DRA manager)",
    found=("NVIDIA/k8s-dra-driver-gpu#951",),
)
def unprepares_after_a_reboot(driver: DriverUnderTest) -> Parts:
    """A claim is prepared, the node reboots, which empties the CDI directory, and the claim is unprepared."""
    claim = driver.calls.ready()
    yield
    driver.calls.unprepared(claim)
    return "the claim was unprepared"


@across(
    LOSS,
    SHOULD,
    expected="success, and the claim's CDI devices are gone",
    clause="A claim that the driver does not know is not an error. (kubeletplugin, DRAPlugin.UnprepareResourceClaims) "
    "Such a claim's CDI files can be found by its UID.",
)
def unprepares_after_its_state_was_lost(driver: DriverUnderTest) -> Parts:
    """A claim is prepared, the driver is started without its state files, and the claim is unprepared."""
    return (yield from unprepare_across_event(driver))
