"""NodePrepareResources: whether the driver gives each claim its allocated devices, and no others.

Law: only the allocation in a claim's status decides which devices the answer must contain.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from devicecore.adapters.grpc_unix.dra import calls
from devicecore.domain.dra.answers import is_cdi_name
from devicecore.domain.text import counted, foreign_text
from devicecore_tools.conformance.connection import CallFailedError
from devicecore_tools.conformance.dra.calls import devices_in
from devicecore_tools.conformance.dra.checks.cdi import (
    edits_of,
    neutral,
    own_files,
    require_edits,
    require_separate,
    require_undone,
    valid_files,
)
from devicecore_tools.conformance.dra.checks.events import KILL, REBOOT
from devicecore_tools.conformance.dra.claims import NAMESPACE, Claim, Shares
from devicecore_tools.conformance.dra.driver import DriverUnderTest
from devicecore_tools.conformance.dra.steps import Parts, across, at_start, check
from devicecore_tools.conformance.model import (
    DoesNotApply,
    Failure,
    Severity,
    Skip,
    does_not_apply_if,
    in_context,
    needed,
    require,
    reworded,
    skip_if,
    some,
)
from devicecore_tools.testing.api_server import Answer, ApiError, Delay, Json
from devicecore_tools.testing.dra_pools import SliceDevice

T = TypeVar("T")

MUST, SHOULD = Severity.MUST, Severity.SHOULD

_HIDDEN = "swordfish-of-the-conformance-run"
_PRINTING = 0.2  # seconds until output has been read
OTHER_DRIVER, OTHER_NAMESPACE = "other.example.com", "conformance-other"
FOREIGN: Json = {"driver": OTHER_DRIVER, "pool": "elsewhere", "device": "device-of-others"}
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MANY = 8  # claims in one request
ROUNDS = (16, 2)
"""The maximum number of claims in each round. Each claim has its own call, and the calls of a round are concurrent."""
OVERLAP = 0.2
"""Seconds by which the API server delays reads of claims, so that calls overlap."""
TWO_DEVICES = (((2,), "one request for two devices"), ((1, 1), "two requests"))
"""The forms of a claim for two devices: how many devices each request has, and a description."""
_SAMPLE = 32  # devices that are prepared one by one
_CANCELLED = 10  # calls
_BINDING = 10.0  # seconds
_FIRST_STATUS = 1.0  # seconds from the answer to the first entry in status.devices
_AFTER_PREPARE = 2.0  # seconds for the conditions of a prepared claim
_STATUS = 2.0  # seconds from the first entry in status.devices to the last
_NAME_MAX = 255  # bytes in a file name
METADATA_DIRECTORY = "/dra-device-metadata/"
"""The directory in which Kubernetes' kubeletplugin keeps one directory for each claim, `NAMESPACE_NAME`."""
_LATE = 1.0  # seconds by which the API server delays a read of a claim
_WORKS = 0.3  # seconds for a claim; a driver that is quicker can hardly be interrupted
_GIVES_UP = 0.3  # seconds after which the kubelet cancels a call that is delayed
_SLOW = 4.0  # seconds that a slow API server takes to answer a read of a claim
_NOTICES = 0.5  # seconds in which a driver that watches claims notices that a claim has changed
_PROTECTION = "resource.kubernetes.io/delete-protection"

CONTRACT = (
    "NodePrepareResources prepares several ResourceClaims for use on the node. If an error is returned, the response "
    "is ignored. Failures for individual claims can be reported inside NodePrepareResourcesResponse. (dra/v1, "
    "api.proto)"
)
IDEMPOTENT = (
    "NodePrepareResources is called again for a prepared claim after the kubelet or the node has restarted, and after "
    "a lost answer. The call must be idempotent. (kubeletplugin, DRAPlugin.PrepareResourceClaims)"
)
ADMIN_ACCESS = (
    "adminAccess: the claim is for monitoring and management; other claims for the device stay as they are. "
    "(ResourceClaim, API reference)"
)
SERVICES_WITH_SHARES = ("v1.DRAPlugin",)
CLAIM_IS_READ = (
    "The request contains only the name, namespace and UID of a claim. The driver reads the claim from the API server "
    "and compares the UID, because the claim may have been replaced. (kubeletplugin helper)"
)


class Row(NamedTuple):
    """A device in a response, reduced to what checks compare."""

    pool: str
    device: str
    requests: tuple[str, ...]
    cdi: tuple[str, ...]
    share: str


Rows = Counter[Row]
"""A response's devices. The order of the devices makes no difference."""


def rows(devices: Sequence[Any]) -> Rows:
    """Return a response's devices, each with the number of times that it occurs."""
    return Counter(
        Row(
            one.pool_name,
            one.device_name,
            tuple(sorted(one.request_names)),
            tuple(sorted(one.cdi_device_ids)),
            share(one),
        )
        for one in devices
    )


def share(device: Any) -> str:  # noqa: ANN401 - a message of one of two versions
    """Return the share ID of a device in a response. The ID is empty in v1beta1, which has no share IDs."""
    return str(getattr(device, "share_id", ""))


def names(devices: Sequence[Any]) -> list[tuple[str, str]]:
    """Return the pool and name of each device in a response, without duplicates."""
    return sorted({(one.pool_name, one.device_name) for one in devices})


def answered_devices(driver: DriverUnderTest, claim: Claim) -> tuple[Any, ...]:
    """Prepare a claim, and return the devices in the response.

    Raises Skip if the driver did not prepare the claim (other checks report that) or if the response contains no
    devices.
    """
    devices = driver.calls.ready_devices(claim)
    does_not_apply_if(not devices, "the answer has no devices, so the driver does not use CDI devices")
    return devices


def try_to_prepare(driver: DriverUnderTest, claim: Claim) -> tuple[bool, str]:
    """Prepare a claim that the driver may refuse.

    Return whether the driver refused the claim, and a sentence that gives the error or the devices.

    Raises CallFailedError if the driver did not respond.
    """
    try:
        answer = driver.calls.prepare(claim)
    except CallFailedError as error:
        if error.code in {"DEADLINE_EXCEEDED", "UNAVAILABLE"}:
            raise
        return True, f"the error is: {error}"
    if claim.uid in answer and answer[claim.uid].error:
        return True, f"the error is: {foreign_text(answer[claim.uid].error)}"
    try:
        devices = [f"{pool}/{name}" for pool, name in names(devices_in(answer, claim))]
    except Failure as failure:  # the answer has no entry for the claim
        return False, str(failure)
    return False, f"the claim was prepared, with {some(devices) or 'no devices'}"


def require_refusal(driver: DriverUnderTest, claim: Claim) -> str:
    """Check that the driver refuses a claim. Return a sentence that gives the error."""
    is_refused, sentence = try_to_prepare(driver, claim)
    require(is_refused, sentence)
    return sentence


def require_refusal_alive(driver: DriverUnderTest, claim: Claim) -> str:
    """Check that the driver refuses a claim and keeps working. Return a sentence that gives the error."""
    exits = len(driver.process.exits)
    sentence = require_refusal(driver, claim)
    require_alive(driver, exits)
    return sentence


def require_alive(driver: DriverUnderTest, exits: int) -> None:
    """Check that the driver's process has not exited again since `exits` exits were counted."""
    driver.process.wait(lambda: driver.process.has_exited, 0.2)
    driver.process.wait(lambda: not driver.process.has_exited, 1.0)  # the driver is started again
    ended = driver.process.exits_since(exits)
    require(not ended, f"the driver exited: {some(ended)}")


def require_free(driver: DriverUnderTest, devices: Sequence[SliceDevice], *claims: Claim) -> str:
    """Check that these devices can be prepared for another claim, unprepare that claim, and return a sentence.

    Of shared devices, the other claim gets the shares that `claims` had, because other shares might be free even if the
    driver had kept these.

    A single claim gets all the devices, because a driver's client may be limited to a few reads of claims per second.
    Only if that claim is not prepared does each device get a claim of its own, because a driver may refuse a claim for
    so many devices.
    """
    skip_if(not devices, "the claim's devices can no longer be allocated")
    shares = {key: share for claim in claims for key, share in claim.shares.items()}
    problem = _refused(driver, devices, shares)
    if problem is not None and len(devices) > 1 and not problem.is_late:
        alone = [one for device in devices if (one := _refused(driver, [device], shares))]
        problem = alone[0] if alone else None if _refused(driver, devices, shares) else problem
    if problem is not None:
        raise problem
    return f"another claim for {some(list(map(str, devices)))} was prepared"


def _refused(driver: DriverUnderTest, devices: Sequence[SliceDevice], shares: Shares) -> Failure | None:
    """Prepare a claim for these devices and shares, and unprepare it.

    Return why the claim was not prepared, or None if it was prepared.
    """
    with driver.claims.owning([]):
        try:
            with in_context(f"preparing {some(list(map(str, devices)))} for another claim"):
                driver.calls.prepared(driver.claims.on(*devices, shares=shares))
        except Failure as failure:
            return failure
        except DoesNotApply as reason:
            if len(devices) == 1:
                raise
            return Failure(str(reason))
        finally:  # otherwise, a refused claim may hold its devices until the end of the run
            driver.calls.clean_up()
    return None


def delayed_reads(driver: DriverUnderTest, seconds: float, times: int | None = None) -> AbstractContextManager[None]:
    """Make the API server delay reads of claims."""
    return driver.faults(Delay(seconds), verb="get", resource="resourceclaims", times=times)


# --- one claim --------------------------------------------------------------------------------------------------------


@at_start(
    MUST,
    expected="an entry without an error, with devices unless the driver created no CDI devices for the claim",
    clause=f"{CONTRACT} A driver that is also an NRI plugin may answer without devices.",
)
def prepares_a_claim(driver: DriverUnderTest) -> str:
    """A claim with published devices is prepared."""
    claim, before = driver.claims.new(), driver.environment.cdi_names()
    try:
        answer = driver.calls.prepare(claim)
    except CallFailedError as error:
        if error.code != "UNIMPLEMENTED":
            raise
        raise Skip(str(error)) from None
    skip_if(claim.uid not in answer, "the answer has no entry for the claim")
    devices = devices_in(answer, claim)
    made = sorted(driver.environment.cdi_names() - before)
    require(devices or not made, f"the answer for the claim has no devices, so no container gets {some(made)}")
    return f"{counted(len(devices), 'device')} for {counted(len(claim.devices), 'allocated device')}"


@check(
    MUST,
    expected="exactly one entry for each claim, with the UID of the claim as its key",
    clause="The ResourceClaims for which preparation was done or attempted, with claim_uid as key. It is an error if "
    "some claim listed in NodePrepareResourcesRequest does not get prepared. (dra/v1, api.proto)",
    found=("FluxBind",),
)
def answers_for_each_prepared_claim(driver: DriverUnderTest) -> str:
    """Up to eight claims are prepared with one request, then a claim together with one for an unknown device."""
    sentence = answers_for_each(driver, (1, _MANY), driver.calls.prepare)
    for is_bad_first in (False, True):
        good = driver.claims.new(1)
        bad = driver.claims.on(driver.claims.missing_device(good.devices[0].pool))
        claims = (bad, good) if is_bad_first else (good, bad)
        try:
            answer = driver.calls.prepare(*claims)
        except CallFailedError as error:
            if error.code in {"DEADLINE_EXCEEDED", "UNAVAILABLE"}:
                raise
            return f"{sentence}; with a claim for an unknown device, the call failed as a whole: {error}"
        with in_context(f"the claim for an unknown device was the {'first' if is_bad_first else 'second'}"):
            require_keys(answer, claims)
        driver.calls.clean_up()
    return sentence


def answers_for_each(
    driver: DriverUnderTest, numbers: Iterable[int], *methods: Callable[..., Mapping[str, Any]]
) -> str:
    """For each of `numbers`, call the methods with up to that many claims, and check the keys in the last response."""
    number, made = len(driver.claims.allocatable), 0
    for most in numbers:
        # evaluated in each round, because only prepared claims show how long one takes
        count = min(most if most <= 2 else driver.calls.in_time_for(most), number)
        if count == made:
            continue
        made = count
        claims = [driver.claims.new(1) for _ in range(count)]
        with needed("an answer"):
            answers = [method(*claims) for method in methods]
        require_keys(answers[-1], claims)
        driver.calls.clean_up()
    return f"answers to requests with up to {counted(made, 'claim')} had one entry for each"


def require_keys(answer: Mapping[str, Any], claims: Sequence[Claim]) -> None:
    """Check that a response's keys are the claims' UIDs."""
    uids = {claim.uid for claim in claims}
    missing, extra = sorted(uids - set(answer)), sorted(set(answer) - uids)
    parts = [f"no entry for {some(missing)}"] if missing else []
    parts += [f"entries for {some([foreign_text(key) for key in extra])}"] if extra else []
    require(not parts, f"for {counted(len(claims), 'claim')}: {'; '.join(parts)}")


@check(
    MUST,
    expected="each entry has the pool and name of an allocated device, spelled as in the slice",
    clause="pool_name: The pool which contains the device. Required. device_name: The device itself. Required. "
    "(dra/v1, api.proto)",
    found=("pydra, which sent no pool name",),
)
def answers_with_pool_and_device_names(driver: DriverUnderTest) -> str:
    """The pools and names of the devices in the answer are compared with the claim's allocation."""
    claim = driver.claims.new()
    devices = driver.calls.ready_devices(claim)
    nameless = [one for one in devices if not one.pool_name or not one.device_name]
    shown = [f"pool {one.pool_name!r}, device {one.device_name!r}" for one in nameless]
    require(not nameless, f"the answer has devices without pool or name: {some(shown)}")
    allocated = {device.key for device in claim.devices}
    other = [f"{pool}/{name}" for pool, name in names(devices) if (pool, name) not in allocated]
    require(not other, f"the answer has {some(other)}, but the claim has {some(list(map(str, claim.devices)))}")
    return f"{counted(len(devices), 'device')} with pool and name"


@check(
    MUST,
    expected="success",
    clause=(
        "A request can ask for several devices, and a claim can have several requests. (ResourceClaim, API "
        "reference, spec.devices.requests)"
    ),
)
def prepares_a_claim_of_two_devices(driver: DriverUnderTest) -> str:
    """A claim with one request for two devices, and a claim with two requests, are prepared."""
    driver.claims.require_two()
    driver.calls.require_preparing()
    for counts, what in TWO_DEVICES:
        with in_context(f"with {what}"):
            driver.calls.prepared(driver.claims.new(spec=driver.claims.request(*counts)))
        driver.calls.clean_up()
    return "both claims were prepared"


@check(
    MUST,
    expected=(
        "success for both claims, each with its own devices, and the same answers in reverse order and in separate "
        "calls"
    ),
    clause=f"{CONTRACT} A kubelet prepares all claims of a pod with one request. (kubelet, DRA manager)",
)
def prepares_the_claims_of_a_pod(driver: DriverUnderTest) -> str:
    """Two claims are prepared with one request, then again in the opposite order, and then in separate calls."""
    driver.claims.require_two()
    driver.calls.require_preparing()
    is_repeated = driver.calls.repeats
    claims = [driver.claims.new(1), driver.claims.new(1)]
    before = _rows_of_each(driver, claims)
    after = _rows_of_each(driver, claims[::-1]) if is_repeated else before
    for claim, other in zip(claims, claims[::-1], strict=True):
        foreign = foreign_devices(before[claim.uid], claim, [other])
        require(not foreign, f"the entry of a claim for {claim.devices[0]} has {some(foreign)} from the other claim")
        alone = prepared_rows(driver, claim) if is_repeated else before[claim.uid]
        for answer, when in ((after[claim.uid], "in the other order"), (alone, "in a separate call")):
            changes = difference(before[claim.uid], answer)
            require(before[claim.uid] == answer, f"{when} the answer differs: {changes}")
    return "both claims were prepared, in either order"


def _rows_of_each(driver: DriverUnderTest, claims: Sequence[Claim]) -> dict[str, Rows]:
    """Prepare claims with one request, and return the devices in the response by claim UID.

    Raises Failure if a claim was not prepared. Raises Skip if a claim is missing from the response; another check
    reports that.
    """
    answer = driver.calls.prepare(*claims)
    skip_if({claim.uid for claim in claims} - set(answer), "the answer has no entry for a claim")
    return {claim.uid: rows(devices_in(answer, claim)) for claim in claims}


def foreign_devices(answer: Rows, own: Claim, others: Iterable[Claim]) -> list[str]:
    """Return the other claims' devices in a claim's response, except devices of which the claim also has a share."""
    keys = {device.key for other in others for device in other.devices} - {device.key for device in own.devices}
    return [f"{row.pool}/{row.device}" for row in answer if (row.pool, row.device) in keys]


@check(
    MUST,
    expected="success for both claims, each with its own device and with CDI devices that the other claim does not "
    "change",
    clause="The name of a ResourceClaim is unique only in its namespace. (Kubernetes, object names)",
)
def separates_claims_of_the_same_name(driver: DriverUnderTest) -> str:
    """Claims with equal names, or equal joined namespaces and names, are prepared, and one of them is unprepared."""
    driver.claims.require_two()
    driver.calls.require_preparing()
    first = driver.claims.new(1)
    word, _, number = first.name.partition("-")
    before = rows(driver.calls.ready_devices(first))
    edits = require_resolvable(driver, before)
    for namespace, name in (
        (OTHER_NAMESPACE, first.name),
        (f"{first.namespace}-{word}", number),  # a driver may join the two with a hyphen, or without any separator
        (first.namespace[:-1], first.namespace[-1] + first.name),
    ):
        with suppress(ApiError):  # the namespace exists
            driver.api.create({"kind": "Namespace", "metadata": {"name": namespace}})
        second = driver.claims.new(1, name=name, namespace=namespace)
        what = f"the claim {name} in the namespace {namespace}"
        with in_context(f"for {what}, after {first.name} in {first.namespace}"):
            after = prepared_rows(driver, second)
            foreign = foreign_devices(after, second, [first])
            require(not foreign, f"the answer for {second.devices[0]} has {some(foreign)} from the other claim")
            kept = require_resolvable(driver, before)
            require(kept == edits, "the first claim's CDI devices changed when the second claim was prepared")
            driver.calls.unprepare(second)
            kept = require_resolvable(driver, before)
            require(kept == edits, "the first claim's CDI devices changed when the second claim was unprepared")
        driver.claims.forget(second)
    return "each claim has its own device"


@check(
    SHOULD,
    core=True,
    expected="every allocated device is in the answer",
    clause=(
        "A container that uses the claim gets the CDI devices in the answer, so it does not get a device that is "
        "missing from the answer. (kubelet, DRA manager)"
    ),
)
def answers_with_all_allocated_devices(driver: DriverUnderTest) -> str:
    """A claim for two devices, or for one if there is only one, is prepared."""
    claim = driver.claims.new(min(2, len(driver.claims.allocatable)))
    found = set(names(answered_devices(driver, claim)))
    # Another check reports devices without names.
    missing = [str(device) for device in claim.devices if device.key not in found and ("", "") not in found]
    missing = [] if any(not pool for pool, _ in found) else missing
    require(not missing, f"{some(missing)} is missing")
    return f"{counted(len(claim.devices), 'device')} allocated and in the answer"


@check(
    SHOULD,
    core=True,
    expected="no device is repeated, unless it is allocated to the claim several times",
    clause="A container gets the CDI devices of each device in the answer, and a client of the pod resources API "
    "counts these devices. (kubelet, DRA manager)",
)
def answers_with_each_device_once(driver: DriverUnderTest) -> str:
    """A claim for at most two devices is prepared, and the devices in the answer are counted."""
    claim = driver.claims.new(min(2, len(driver.claims.allocatable)))
    allocated = Counter(device.key for device in claim.devices)
    answered = Counter((one.pool_name, one.device_name) for one in answered_devices(driver, claim))
    # another check reports unexpected devices
    known = {key: number for key, number in answered.items() if key in allocated}
    often = [
        f"{pool}/{name} appears {number} times"
        for (pool, name), number in known.items()
        if number > allocated[pool, name]
    ]
    require(not often, some(often))
    return f"{counted(sum(answered.values()), 'row')} for {counted(sum(allocated.values()), 'allocated device')}"


@check(
    SHOULD,
    expected="each device has request names",
    clause=(
        "request_names: If empty, the device is associated with all requests. (dra/v1, api.proto) Then a container "
        "that uses one request of the claim also gets the devices of the other requests."
    ),
)
def names_the_requests_of_each_device(driver: DriverUnderTest) -> str:
    """A claim with two requests, or one if there is only one device, is prepared."""
    claim = driver.claims.new(spec=driver.claims.request(*[1] * min(2, len(driver.claims.allocatable))))
    devices = answered_devices(driver, claim)
    without = [f"{one.pool_name}/{one.device_name}" for one in devices if not one.request_names]
    require(not without, f"there are no request names for {some(without)}")
    return f"{counted(len(devices), 'device')} with request names"


@check(
    MUST,
    expected="each device has the name of the request that it was allocated for, or no device has request names",
    clause="request_names: The requests in the claim that this device is associated with. (dra/v1, api.proto) A "
    "container that uses one request of the claim gets only devices of that request.",
)
def answers_with_the_requests_of_each_device(driver: DriverUnderTest) -> str:
    """A claim with two requests is prepared."""
    driver.claims.require_two()
    claim = driver.claims.new(spec=driver.claims.request(1, 1))
    devices = driver.calls.ready_devices(claim)
    wanted = {device.key: f"r{number}" for number, device in enumerate(claim.devices)}
    wrong = [
        f"{row.device} has {some(row.requests)}, expected {request}"
        for row in rows(devices)
        if (request := wanted.get((row.pool, row.device))) and set(row.requests) - {request}
    ]
    require(not wrong, some(wrong))
    return "each device has its own request"


@check(
    MUST,
    expected="the name of the request, without the alternative",
    clause=(
        "The result of an allocation names an alternative as `request/alternative`. Containers name only the "
        "request, so a kubelet finds no device under the longer name. (kubelet, DRA manager)"
    ),
)
def answers_with_requests_without_alternatives(driver: DriverUnderTest) -> str:
    """A claim with alternatives (firstAvailable) is prepared."""
    alternative = {"name": "first", "deviceClassName": driver.claims.device_class, "count": 1}
    claim = driver.claims.new(spec={"devices": {"requests": [{"name": "r0", "firstAvailable": [alternative]}]}})
    driver.calls.require_preparing()
    found = {name for one in driver.calls.prepared(claim) for name in one.request_names}
    require(found <= {"r0"}, f"the requests in the answer are {some(sorted(found))}, expected r0")
    return "the request is r0"


@check(
    MUST,
    expected="the devices of this driver, and no error",
    clause=(
        "Devices of several drivers can be allocated to a claim; each driver prepares its own. (ResourceClaim, API "
        "reference, status.allocation.devices.results)"
    ),
)
def ignores_devices_of_other_drivers(driver: DriverUnderTest) -> str:
    """A claim with one device of this driver and one of another driver is prepared."""
    driver.calls.require_preparing()
    own = driver.claims.free_device()
    others = [device for device in driver.claims.allocatable if device.key != own.key]
    # Other drivers' pools are also named after the node, and their devices may have the same names as this driver's.
    twins = [{"driver": OTHER_DRIVER, "pool": one.pool, "device": one.name} for one in others[-1:]]
    for one in others[-1:]:
        driver.calls.ready(devices=[one])  # the twin is a different device, although this one is in use
    found = names(driver.calls.prepared(claim_with(driver, own, FOREIGN, *twins)))
    for foreign in (FOREIGN, *twins):
        is_there = (foreign["pool"], foreign["device"]) in found
        require(not is_there, f"the answer contains the other driver's {foreign['pool']}/{foreign['device']}")
    return f"{counted(len(found), 'device')} of this driver"


def claim_with(driver: DriverUnderTest, device: SliceDevice, *others: Json) -> Claim:
    """Create a claim that is allocated a device for request r0, and whatever `others` say for r1, r2 and so on.

    Fields that are missing from one of `others` are copied from r0, unless that element names a driver.
    """
    allocation = driver.claims.allocation_of(device)
    results = allocation["devices"]["results"]
    for number, other in enumerate(others, 1):
        results.append({**({} if "driver" in other else results[0]), "request": f"r{number}", **other})
    return driver.claims.create(driver.claims.request(*[1] * (1 + len(others))), allocation)


@check(
    MUST,
    expected="the same devices, and unchanged CDI files",
    clause=IDEMPOTENT,
    found=("kubernetes-sigs/dra-driver-cpu#165", "kubernetes-sigs/dra-driver-cpu#175"),
)
def prepare_is_idempotent(driver: DriverUnderTest) -> str:
    """A claim is prepared twice, and the answers and the CDI files are compared."""
    claim = driver.claims.new(driver.claims.several)
    before = rows(driver.calls.ready_devices(claim))
    files = driver.environment.cdi_files()
    after = rows(driver.calls.prepared(claim))
    require(before == after, f"the second answer differs: {difference(before, after)}")
    changed = [path.name for path, data in files.items() if driver.environment.cdi_files().get(path) != data]
    require(not changed, f"the second call changed {some(changed)}")
    return "both answers are the same"


def difference(before: Rows, after: Rows) -> str:
    """Describe the devices that are in only one of two responses."""

    def listed(answer: Rows) -> str:
        return some([f"{row.pool}/{row.device} with {', '.join(row.cdi) or 'no CDI device'}" for row in answer])

    return f"first {listed(before - after) or 'nothing more'}, then {listed(after - before) or 'nothing more'}"


@at_start(
    MUST,
    expected="every device can be prepared and unprepared",
    clause="The scheduler may allocate each device in a ResourceSlice. (ResourceSlice, API reference)",
)
def prepares_each_device(driver: DriverUnderTest) -> str:
    """Each published device, up to 32 in a tenth of the run's time, is prepared for a claim and unprepared."""
    devices = driver.claims.usable[:_SAMPLE]
    failed: dict[str, Failure] = {}
    tried, until = 0, time.monotonic() + driver.settings.budget / 10
    for device in devices:
        if time.monotonic() > until:
            break
        tried += 1
        claim = driver.claims.new(devices=[device])
        try:
            driver.calls.prepared(claim)
            driver.calls.unprepared(claim)
        except Failure as failure:
            failed[str(device)] = failure
        driver.calls.clean_up()
    if len(failed) < tried:
        driver.claims.broken.update(device.key for device in devices if str(device) in failed)
    if failed:
        raise reworded(some([f"{device}: {failure}" for device, failure in failed.items()]), *failed.values())
    return f"{counted(tried, 'device')} prepared and unprepared"


@at_start(
    MUST,
    expected="success within 45 seconds, with every device in the answer if the answer for two devices had both",
    clause=(
        "32 devices can be allocated to a claim. (ResourceClaim, API reference, status.allocation.devices.results) A "
        "kubelet waits 45 seconds for all devices of a claim, and its next call starts over. (kubelet, DRA manager)"
    ),
)
def prepares_many_devices_in_one_claim(driver: DriverUnderTest) -> str:
    """A claim for all devices that can be allocated together, up to 32, is prepared."""
    driver.claims.require_two()
    driver.calls.require_preparing()
    two = driver.claims.new(2)
    has_all = names(driver.calls.ready_devices(two)) == sorted(device.key for device in two.devices)
    driver.calls.clean_up()
    claim, began = driver.claims.new(devices=driver.claims.allocatable[:_SAMPLE]), time.monotonic()
    if driver.calls.are_slow:
        driver.process.deadline += driver.settings.call  # otherwise, the call would get half of the remaining time
    answer = driver.calls.prepared(claim)
    found = set(names(answer))
    missing = [str(device) for device in claim.devices if has_all and device.key not in found]
    require(not missing, f"the answer for {counted(len(claim.devices), 'device')} lacks {some(missing)}")
    return f"{counted(len(claim.devices), 'device')} in {time.monotonic() - began:.1f} seconds"


@across(
    KILL,
    MUST,
    expected="the same devices as before",
    clause=IDEMPOTENT,
    found=("NVIDIA/k8s-dra-driver-gpu#729", "NVIDIA/k8s-dra-driver-gpu#754"),
)
def prepares_the_same_after_a_restart(driver: DriverUnderTest) -> Parts:
    """A claim is prepared, the driver is killed and restarted, and the claim is prepared again."""
    claim = driver.claims.new(driver.claims.several)
    before = rows(driver.calls.ready_devices(claim))
    yield
    after = rows(driver.calls.prepared(claim))
    require(before == after, f"the answer after the restart differs: {difference(before, after)}")
    return "both answers are the same"


@across(
    KILL,
    SHOULD,
    expected="an error for the second claim",
    clause="A driver should check that a device is not in use by another claim. (kubeletplugin, "
    "DRAPlugin.PrepareResourceClaims) Claims stay prepared across a restart of the driver.",
)
def refuses_a_device_in_use_after_a_restart(driver: DriverUnderTest) -> Parts:
    """The driver prepares a device, is killed and restarted, and is asked to prepare the device for another claim."""
    device = driver.claims.free_device(shared=False)
    driver.calls.ready(devices=[device])
    second = driver.claims.on(device)
    with needed("a driver that refuses a device in use"):
        require_refusal(driver, second)
    yield
    return require_refusal(driver, second)


@across(
    REBOOT,
    MUST,
    expected="success, and the CDI devices exist again",
    clause=(
        "A reboot empties /var/run/cdi. The kubelet keeps its claim checkpoint, and prepares the claims of running "
        "pods again, with the same UIDs. (kubernetes/kubernetes#141966)"
    ),
    found=(
        "kubernetes-sigs/dra-example-driver#259",
        "NVIDIA/k8s-dra-driver-gpu#951",
        "NVIDIA/k8s-dra-driver-gpu#1066",
        "ROCm/k8s-gpu-dra-driver#86",
    ),
)
def restores_cdi_devices_after_a_reboot(driver: DriverUnderTest) -> Parts:
    """A claim is prepared, the node reboots, which empties the CDI directory, and the claim is prepared again."""
    claim = driver.claims.new(driver.claims.several)
    before = {name for one in driver.calls.ready_devices(claim) for name in one.cdi_device_ids}
    known = before & driver.environment.cdi_names()
    if not known:
        reason = (
            "the driver's CDI devices are not in the run's CDI directory"
            if before
            else "the driver returns no CDI devices"
        )
        raise DoesNotApply(reason)
    real = _BOOT_ID.read_bytes().strip()
    if any(real in data for data in driver.environment.state_files().values()):
        raise DoesNotApply("the driver compares the boot id of this machine, which the checks cannot change")
    yield
    after = {name for one in driver.calls.prepared(claim) for name in one.cdi_device_ids}
    there = driver.environment.cdi_names()
    wanted = (after - (before - known)) or known
    missing = sorted(wanted - there)
    require(not missing, f"the driver reported success for the claim, but no CDI file contains {some(missing)}")
    return f"{counted(len(wanted), 'CDI device')} restored"


# --- claims that cannot be prepared -----------------------------------------------------------------------------------


@check(MUST, expected="an error for the claim", clause=CLAIM_IS_READ)
def refuses_a_replaced_claim(driver: DriverUnderTest) -> str:
    """A claim is deleted and recreated under the same name, and the driver is asked to prepare the deleted claim."""
    driver.calls.require_preparing()
    former = driver.claims.new(1)
    driver.claims.delete_object(former)
    driver.claims.on(former.devices[0], name=former.name)
    return require_refusal(driver, former)


@check(
    MUST,
    expected="an error, or the devices of the new claim",
    clause=f"{CLAIM_IS_READ} A claim whose pod was deleted by force may not have been unprepared.",
    found=("kubernetes/kubernetes#141471",),
)
def separates_a_claim_from_its_namesake(driver: DriverUnderTest) -> str:
    """A prepared claim is deleted, and a claim with the same name, but for another device, is prepared."""
    driver.claims.require_two()
    driver.calls.require_preparing()
    former = driver.claims.new(1)
    before = rows(answered_devices(driver, former))
    driver.claims.delete_object(former)
    claim = driver.claims.new(1, name=former.name)
    try:
        after = prepared_rows(driver, claim)
    except CallFailedError as error:
        if error.code in {"DEADLINE_EXCEEDED", "UNAVAILABLE"}:
            raise
        return f"the error is: {error}"
    except Failure as failure:
        return str(failure)
    foreign = foreign_devices(after, claim, [former])
    require(not foreign, f"the answer for {claim.devices[0]} has {some(foreign)}, which the former claim had")
    require(before != after, "the answers for both claims are the same")
    return f"the answer has {claim.devices[0]}"


@check(MUST, expected="an error in time, and the driver keeps working", clause=CLAIM_IS_READ)
def refuses_a_missing_claim(driver: DriverUnderTest) -> str:
    """A claim is deleted from the API server, and the driver is asked to prepare it."""
    driver.calls.require_preparing()
    claim = driver.claims.new(1)
    driver.claims.delete_object(claim)
    return require_refusal_alive(driver, claim)


@check(MUST, expected="an error for the claim, and the driver keeps working", clause=CLAIM_IS_READ)
def refuses_a_claim_that_is_not_allocated(driver: DriverUnderTest) -> str:
    """The driver is asked to prepare a claim without an allocation."""
    driver.calls.require_preparing()
    return require_refusal_alive(driver, driver.claims.create(driver.claims.request(1), None))


@check(
    SHOULD,
    core=True,
    expected="an error for the claim, and the driver keeps working",
    clause=(
        "A device may have disappeared since the scheduler allocated it. If the claim is prepared anyway, a "
        "container starts without its device."
    ),
)
def refuses_an_unknown_device(driver: DriverUnderTest) -> str:
    """The driver is asked to prepare claims for a device in an unpublished pool and for an unpublished device."""
    driver.calls.require_preparing()
    free = driver.claims.free_device()
    with in_context("for a device in a pool that was never published"):
        # The counters belong to the device's own pool.
        body = {name: value for name, value in free.body.items() if name != "consumesCounters"}
        require_refusal_alive(driver, driver.claims.on(SliceDevice("no-such-pool", free.name, body)))
    return require_refusal_alive(driver, driver.claims.on(driver.claims.missing_device(free.pool)))


@check(
    MUST,
    expected="an error for the claim, or devices in the answer, as for other claims",
    clause=(
        f"{CONTRACT} If the answer has no error, a kubelet starts the claim's containers, in this case without any "
        "device."
    ),
)
def reports_what_it_cannot_prepare(driver: DriverUnderTest) -> str:
    """If answers normally have devices, the driver is asked to prepare a claim for an unpublished device."""
    pool = answered_devices(driver, driver.claims.new(1))[0].pool_name
    try:
        answer = driver.calls.prepare(driver.claims.on(driver.claims.missing_device(pool)))
    except CallFailedError as error:
        return f"the error is: {error}"
    skip_if(not answer, "the answer has no entry for the claim")
    entry = next(iter(answer.values()))
    require(entry.error or entry.devices, "the claim was prepared, without an error and without devices")
    return f"the error is: {foreign_text(entry.error)}" if entry.error else "the claim was prepared, with devices"


def configured_claim(driver: DriverUnderTest, owner: str, parameters: Json) -> Claim:
    """Create a claim with an opaque configuration for a driver."""
    spec, allocation = driver.claims.request(1), driver.claims.allocation_of(driver.claims.free_device())
    entry: Json = {"opaque": {"driver": owner, "parameters": parameters}}
    spec["devices"]["config"] = [entry]
    allocation["devices"]["config"] = [{"source": "FromClaim", **entry}]
    return driver.claims.create(spec, allocation)


_UNKNOWN: Sequence[Json] = (
    {},
    {"apiVersion": ["v1"], "kind": {"a": None}},
    {"apiVersion": "conformance.example/v9", "kind": "NoSuchKind", "size": [{"much": -1}]},
)
"""Parameters that no driver knows. The last ones look like those of another version."""


def _damaged(driver: DriverUnderTest) -> list[Json]:
    """Return the parameters of the user's claim with values of other types, or nothing if there are none."""
    entries = driver.claims.request(1)["devices"].get("config") or ()
    own = [entry["opaque"]["parameters"] for entry in entries if entry["opaque"].get("driver")]
    return [
        {key: value if key in {"apiVersion", "kind"} else other for key, value in parameters.items()}
        for parameters in own[:1]
        for other in (None, ["x"], "7")
    ]


@check(
    MUST,
    expected="success or an error for the claim; a valid claim can be prepared afterwards",
    clause="config.opaque.parameters can contain arbitrary data. It is the responsibility of the driver developer to "
    "handle validation and versioning. (ResourceClaim, API reference)",
)
def survives_an_unknown_configuration(driver: DriverUnderTest) -> str:
    """The driver is asked to prepare claims with parameters that no driver knows, then a claim without parameters."""
    driver.calls.require_preparing()
    exits = len(driver.process.exits)
    sentence = ""
    for parameters in (*_UNKNOWN, *_damaged(driver)):
        _, sentence = try_to_prepare(driver, configured_claim(driver, driver.registration.name, parameters))
        require_alive(driver, exits)
        driver.calls.clean_up()
    driver.calls.prepared(driver.claims.new(1))
    return f"{sentence}; then a valid claim was prepared"


@check(
    SHOULD,
    core=True,
    expected="neither the driver's output nor an error contains the password",
    clause="Parameters can contain secrets. Anybody who may read a pod's events sees the errors, and the output of "
    "drivers is collected in logs. (kubelet, FailedPrepareDynamicResources)",
)
def keeps_parameters_to_itself(driver: DriverUnderTest) -> str:
    """A claim with a password in parameters for the driver, and one with parameters for another one, are prepared."""
    driver.calls.require_preparing()
    for owner in (driver.registration.name, OTHER_DRIVER):
        parameters: Json = {"apiVersion": "conformance.example/v1", "kind": "Login", "password": _HIDDEN}
        _, sentence = try_to_prepare(driver, configured_claim(driver, owner, parameters))
        require(_HIDDEN not in sentence, f"with parameters for {owner}, {sentence}")
        driver.calls.clean_up()
    is_printed = driver.process.wait(lambda: _HIDDEN in driver.process.output, _PRINTING)
    require(not is_printed, "the driver printed the password")
    return "the password was neither printed nor in an error"


@check(
    MUST,
    expected="success",
    clause="config.opaque.driver: Driver is used to determine which kubelet plugin needs to be passed these "
    "configuration parameters. (ResourceClaim, API reference)",
)
def ignores_the_configuration_of_other_drivers(driver: DriverUnderTest) -> str:
    """A claim with parameters for another driver is prepared."""
    driver.calls.require_preparing()
    driver.calls.prepared(configured_claim(driver, OTHER_DRIVER, {"kind": "ForAnotherDriver"}))
    return "the claim was prepared"


@check(
    SHOULD,
    core=True,
    expected="an error for the bad claim and success for the good one; a call that fails as a whole is also accepted",
    clause=CONTRACT,
)
def separates_good_claims_from_bad_ones(driver: DriverUnderTest) -> str:
    """The driver is asked to prepare an existing claim and a deleted one in one call, then again in the other order."""
    driver.calls.require_repeating()
    good = driver.calls.ready()
    bad = driver.claims.on(good.devices[0])
    driver.claims.delete_object(bad)
    for first, second in ((good, bad), (bad, good)):
        try:
            answer = driver.calls.prepare(first, second)
        except CallFailedError as error:
            return f"the call failed as a whole: {error}"
        require(bad.uid not in answer or answer[bad.uid].error, "the deleted claim was prepared")
        with in_context("the deleted claim was the first" if first is bad else "the deleted claim was the second"):
            require_resolvable(driver, rows(devices_in(answer, good)))
    return "one claim has an error, and the other has its devices"


@check(
    SHOULD,
    core=True,
    expected="within 10 seconds, all conditions or a failure condition are true in the claim's status.devices",
    clause=(
        "bindingConditions: a scheduler binds a pod when all of them are true, and tries another node after ten "
        "minutes. (KEP-5007) If a controller that does not run here sets the conditions, exclude this check with "
        "--skip."
    ),
)
def sets_the_binding_conditions_of_its_devices(driver: DriverUnderTest) -> str:
    """If a device has binding conditions, it is allocated to a claim, and the claim's status is watched."""
    binding = _Binding(driver)
    is_told = binding.is_decided_within(_BINDING)
    require(is_told, f"{binding.device} is allocated, but the driver did not set {binding.missing}", late=True)
    return binding.sentence


@check(
    MUST,
    core=True,
    expected="the conditions do not wait for the claim to be prepared",
    clause=(
        "bindingConditions: the scheduler binds a pod only when all of them are true (KEP-5007), and a kubelet "
        "prepares only the claims of pods that are bound. The pods of such a driver never start."
    ),
)
def sets_the_binding_conditions_before_it_prepares(driver: DriverUnderTest) -> str:
    """A device with binding conditions is allocated to a claim. If nobody sets them, the claim is prepared."""
    binding = _Binding(driver)
    if binding.is_decided_within(_BINDING):
        return binding.sentence
    with suppress(Failure):
        driver.calls.prepare(binding.claim)
    does_not_apply_if(not binding.is_decided_within(_AFTER_PREPARE), "nothing that runs here sets the conditions")
    raise Failure(f"only after the claim was prepared, {binding.sentence}")


class _Binding:
    """A claim for a device with binding conditions."""

    def __init__(self, driver: DriverUnderTest) -> None:
        """Create the claim. Raises DoesNotApply if no device has binding conditions."""
        device = next((one for one in driver.slices.devices if one.has_binding_conditions), None)
        if device is None:
            raise DoesNotApply("no device has binding conditions")
        self.claim, self.device, self._driver = driver.claims.on(device), device, driver
        self._met: set[str] = set()
        names = ("bindingConditions", "bindingFailureConditions")
        self._wanted, self._failing = (set(device.body.get(name) or ()) for name in names)

    def is_decided_within(self, seconds: float) -> bool:
        """Wait until all conditions or a failure condition are true, and return whether they are."""
        return bool(self._driver.process.wait(self._is_decided, seconds))

    @property
    def sentence(self) -> str:
        """A sentence that says which conditions are true."""
        return f"{self.device} has {some(sorted(self._met))}"

    @property
    def missing(self) -> str:
        """The conditions that are not true."""
        return some(sorted(self._wanted - self._met))

    def _is_decided(self) -> bool:
        rows = self._driver.api.get("ResourceClaim", self.claim.name)["status"].get("devices") or ()
        mine = [one for one in rows if (one.get("pool"), one.get("device")) == self.device.key]
        conditions = [condition for one in mine for condition in one.get("conditions") or ()]
        self._met.update(str(one["type"]) for one in conditions if one.get("status") == "True")
        return self._wanted <= self._met or bool(self._failing & self._met)


# --- devices in use, several devices, names ---------------------------------------------------------------------------


@check(
    SHOULD,
    core=True,
    expected="an error for the second claim",
    clause="The scheduler may be wrong, for example after a pod was force-deleted. A driver should check that a device "
    "is not in use by another claim. (kubeletplugin, DRAPlugin.PrepareResourceClaims)",
    found=("kubernetes-sigs/dra-example-driver#263", "kubernetes/kubernetes#141471"),
)
def refuses_a_device_in_use(driver: DriverUnderTest) -> str:
    """A device is prepared for a claim, and the driver is asked to prepare it for a second claim."""
    device = driver.claims.free_device(shared=False)
    first = driver.calls.ready(devices=[device])
    second = driver.claims.on(device)
    sentence = require_refusal(driver, second)
    driver.calls.unprepare(second)
    driver.calls.unprepare(first)
    return sentence


@check(
    SHOULD,
    core=True,
    expected="an error for the second claim",
    clause="Devices that compete for counters are parts of the same hardware, for example a whole device and a "
    "partition of it. (KEP-4815) A driver should check that a device is not in use by another claim. (kubeletplugin, "
    "DRAPlugin.PrepareResourceClaims)",
)
def refuses_a_device_that_is_partly_in_use(driver: DriverUnderTest) -> str:
    """If a counter does not suffice for two devices, one is prepared, and the other one is requested."""
    devices = driver.claims.rivals
    driver.calls.ready(devices=devices[1:])  # the driver must not refuse the device for a different reason
    driver.calls.clean_up()
    driver.calls.ready(devices=devices[:1])
    return require_refusal(driver, driver.claims.on(devices[1]))


@check(
    MUST,
    expected="the devices of the new allocation",
    clause=(
        "A deallocated claim can be allocated again with the same UID. The driver must compare its own state with "
        "the claim. (ResourceClaim, API reference, status.allocation)"
    ),
    found=("NVIDIA/k8s-dra-driver-gpu#840", "NVIDIA/k8s-dra-driver-gpu#1188"),
)
def prepares_what_is_allocated_now(driver: DriverUnderTest) -> str:
    """A claim is prepared and unprepared, gets another device, and is prepared again."""
    driver.claims.require_two()
    first = driver.claims.free_device()
    claim = driver.calls.ready(devices=[first])
    with needed("an unprepared claim"):
        driver.calls.unprepared(claim)
    _reallocate(driver, claim, driver.claims.free_device(other_than=first))
    found = names(driver.calls.prepared(claim))
    wrong = [f"{pool}/{name}" for pool, name in found if (pool, name) == first.key]
    require(not wrong, f"the driver returned {some(wrong)}, although {claim.devices[0]} is allocated now")
    return f"the driver returned {claim.devices[0]}"


def _reallocate(driver: DriverUnderTest, claim: Claim, device: SliceDevice) -> None:
    """Allocate a different device to a claim, keeping its UID, as happens after a deallocation."""
    before = driver.api.get("ResourceClaim", claim.name)["status"]
    after = {"allocation": driver.claims.allocation_of(device), "reservedFor": before["reservedFor"]}
    for status in ({}, after):
        driver.api.change("ResourceClaim", claim.name, partial(dict.update, status=status))
    claim.devices = (device,)


@check(
    MUST,
    expected="the same answer as before, and CDI devices that can be resolved until the claim is unprepared",
    clause=(
        "A claim may be deleted while pods use it; its object then has a deletionTimestamp until the pods have ended. "
        "If the object is removed by force, the containers still run until the kubelet unprepares the claim. "
        "(ResourceClaim, protection controller; kubelet, DRA manager)"
    ),
)
def keeps_a_claim_that_is_deleted(driver: DriverUnderTest) -> str:
    """A prepared claim gets a deletionTimestamp and is prepared again. Then the claim's object is removed."""
    driver.calls.require_repeating()
    claim = driver.claims.new(1)
    before = rows(driver.calls.ready_devices(claim))
    names = sorted({name for row in before for name in row.cdi})
    with needed("CDI devices that can be resolved"):
        edits = require_edits(driver, names, "")

    def require_kept() -> None:
        now = require_edits(driver, names, "")
        require(now == edits, f"the edits differ in {some(sorted(now ^ edits))}")

    driver.api.change("ResourceClaim", claim.name, lambda body: body["metadata"].update(finalizers=[_PROTECTION]))
    driver.api.delete("ResourceClaim", claim.name)
    driver.process.pause(_NOTICES)
    with in_context("when the claim had a deletionTimestamp"):
        after = prepared_rows(driver, claim)
        require(before == after, f"the answer differs: {difference(before, after)}")
        require_kept()
    driver.api.change("ResourceClaim", claim.name, lambda body: body["metadata"].pop("finalizers"))
    driver.process.pause(_NOTICES)
    with in_context("when the claim's object was gone, before the claim was unprepared"):
        require_kept()
    return "the claim stayed prepared"


@check(
    MUST,
    expected="success for both claims; the ordinary claim stays prepared when the one with adminAccess is removed",
    clause=ADMIN_ACCESS,
)
def allows_admin_access_to_a_device_in_use(driver: DriverUnderTest) -> str:
    """A device is prepared for an ordinary claim and then for one with adminAccess, which is unprepared."""
    driver.calls.require_repeating()
    owner, admin = _with_an_admin(driver)
    driver.calls.unprepared(admin)
    before = rows(driver.calls.prepared(owner))
    with in_context("a claim with adminAccess after an ordinary one"):
        driver.calls.prepared(admin)
    _unprepare_beside(driver, admin, {name for row in before for name in row.cdi})
    after = rows(driver.calls.prepared(owner))
    require(before == after, f"the other claim has changed: {difference(before, after)}")
    return "the other claim stayed as it was"


@check(
    SHOULD,
    expected="success for both claims; the ordinary claim stays prepared when the one with adminAccess is removed",
    clause=f"{ADMIN_ACCESS} A monitor may hold claims for all devices for as long as the node runs.",
)
def takes_no_device_for_admin_access(driver: DriverUnderTest) -> str:
    """A device is prepared for a claim with adminAccess, then for an ordinary one. The first one is unprepared."""
    driver.calls.require_repeating()
    owner, admin = _with_an_admin(driver)
    with in_context("an ordinary claim after one with adminAccess"):
        before = rows(driver.calls.prepared(owner))
    _unprepare_beside(driver, admin, {name for row in before for name in row.cdi})
    return "the device was prepared for both claims"


def _with_an_admin(driver: DriverUnderTest) -> tuple[Claim, Claim]:
    """Create an ordinary claim and one with adminAccess for the same device, and prepare the latter.

    Raises DoesNotApply if the driver prepares no claims with adminAccess.
    """
    device = driver.claims.free_device(shared=False)
    labels = {"resource.kubernetes.io/admin-access": "true"}
    driver.api.change("Namespace", NAMESPACE, lambda body: body["metadata"].setdefault("labels", {}).update(labels))
    spec, allocation = driver.claims.request(1), driver.claims.allocation_of(device)
    spec["devices"]["requests"][0]["exactly"]["adminAccess"] = True
    for result in allocation["devices"]["results"]:
        result["adminAccess"] = True
    owner, admin = driver.claims.new(devices=[device]), driver.claims.create(spec, allocation)
    try:
        driver.calls.prepared(admin)
    except CallFailedError:
        raise
    except Failure as failure:
        raise DoesNotApply(f"the driver prepares no claims with adminAccess: {failure}") from None
    return owner, admin


def _unprepare_beside(driver: DriverUnderTest, claim: Claim, cdi: set[str]) -> None:
    """Unprepare a claim, and check that the other claim's CDI devices, `cdi`, still exist."""
    kept = cdi & driver.environment.cdi_names()
    driver.calls.unprepared(claim)
    gone = sorted(kept - driver.environment.cdi_names())
    require(not gone, f"{some(gone)} of the other claim is gone")


@check(
    MUST,
    expected=(
        "CDI names that can be resolved; one share's names stay when the other share is unprepared, and no names are "
        "left once both are unprepared"
    ),
    clause="A device that may be allocated several times is used by several claims, each with its own share. "
    "(KEP-5075; ResourceSlice, API reference, devices.allowMultipleAllocations)",
)
def separates_shares_of_a_device(driver: DriverUnderTest) -> str:
    """If a device can be shared, two claims for parts of it are prepared, and then one of them is unprepared."""
    if driver.registration.reachable.service not in SERVICES_WITH_SHARES:
        raise DoesNotApply(f"{driver.registration.instance.service} has no shares")
    device = driver.claims.free_device(shared=True)
    before = driver.environment.cdi_names()
    claims = [driver.claims.part_of(device) for _ in range(2)]
    driver.calls.require_preparing()
    answers = [driver.calls.prepared(claim) for claim in claims]
    for devices in answers:
        require_resolvable(driver, rows(devices))
    added = driver.environment.cdi_names() - before
    second = {name for one in answers[1] for name in one.cdi_device_ids}  # both may use a permanent CDI device
    _unprepare_beside(driver, claims[0], second)
    driver.calls.unprepared(claims[1])
    require_undone(driver, added)
    return "each claim has its share"


@check(
    MUST,
    expected="valid CDI files, CDI names that can be resolved, and no names left once the claim is unprepared",
    clause="Several requests of a claim may get shares of the same device, which differ only in their share IDs. "
    "(KEP-5075) A container runtime refuses a CDI file with two devices of the same name. (CDI library in Go)",
)
def prepares_two_shares_in_one_claim(driver: DriverUnderTest) -> str:
    """If a device can be shared, a claim that gets two shares of it is prepared and then unprepared."""
    if driver.registration.reachable.service not in SERVICES_WITH_SHARES:
        raise DoesNotApply(f"{driver.registration.instance.service} has no shares")
    device = driver.claims.free_device(shared=True)
    driver.calls.require_preparing()
    before = driver.environment.cdi_names()
    claim = driver.claims.part_of(device, parts=2)
    answer = rows(driver.calls.prepared(claim))
    valid_files(driver, "two shares of a device")
    require_resolvable(driver, answer)
    added = driver.environment.cdi_names() - before
    driver.calls.unprepared(claim)
    require_undone(driver, added)
    return "the claim has both shares"


@check(
    SHOULD,
    core=True,
    expected="every answer has the share of its claim",
    clause="share_id: ShareID uniquely identifies an individual allocation share of the device. (dra/v1, api.proto)",
)
def answers_with_the_share_of_each_claim(driver: DriverUnderTest) -> str:
    """If a device can be shared, two claims for parts of it are prepared."""
    if driver.registration.reachable.service not in SERVICES_WITH_SHARES:
        raise DoesNotApply(f"{driver.registration.instance.service} has no shares")
    device = driver.claims.free_device(shared=True)
    for claim in [driver.claims.part_of(device) for _ in range(2)]:
        devices = driver.calls.ready_devices(claim)
        wrong = [share(one) for one in devices if share(one) not in {*claim.shares.values(), ""}]
        missing = [one.device_name for one in devices if not share(one)]
        require(not wrong and not missing, f"the share in the answer is {some(wrong) or 'missing'}")
    return "each answer has the share of its claim"


@check(
    MUST,
    expected="spec, allocation, consumers, finalizers and owners are unchanged",
    clause=(
        "A claim belongs to its user; its allocation and consumers belong to the scheduler. A driver may only "
        "write status.devices. (ResourceClaim, API reference; KEP-4817)"
    ),
)
def leaves_claims_as_they_are(driver: DriverUnderTest) -> str:
    """A claim is prepared and unprepared, and its object is compared before and after."""
    driver.calls.require_preparing()
    claim = driver.claims.new(1)

    def parts() -> dict[str, object]:
        try:
            body = driver.api.get("ResourceClaim", claim.name, claim.namespace)
        except ApiError:
            raise Failure("the claim is gone") from None
        return parts_of_claim(body, driver.registration.name)

    before = parts()
    for what, call in (("prepared", driver.calls.prepared), ("unprepared", driver.calls.unprepared)):
        call(claim)
        after = parts()
        changed = sorted(name for name, value in before.items() if after[name] != value)
        require(not changed, f"when the claim was {what}, {some(changed)} changed")
    return "the claim is unchanged"


def parts_of_claim(body: Json, driver: str) -> dict[str, object]:
    """Return the parts of a claim that do not belong to this driver, by name."""
    status, metadata = body.get("status") or {}, body["metadata"]
    kept = {"spec": body["spec"]} | {name: status.get(name) for name in ("allocation", "reservedFor")}
    kept |= {"status.devices": [one for one in status.get("devices") or () if one.get("driver") != driver]}
    return kept | {name: metadata.get(name) for name in ("uid", "finalizers", "ownerReferences", "deletionTimestamp")}


@check(
    MUST,
    expected="the entry is unchanged",
    clause="status.devices is a map whose keys are driver, pool, device and share. Each driver writes the entries for "
    "its own devices. (KEP-4817; ResourceClaim, API reference)",
    found=("kubernetes-sigs/dra-example-driver#267",),
)
def leaves_the_device_status_of_others_alone(driver: DriverUnderTest) -> str:
    """A claim that also has a device of another driver, with an entry in status.devices, is prepared and unprepared."""
    driver.calls.require_preparing()
    claim = claim_with(driver, driver.claims.free_device(), FOREIGN)
    driver.calls.ready_devices(claim)  # whether a driver ignores foreign devices is reported by another check
    driver.calls.unprepared(claim)
    entry: Json = {**FOREIGN, "data": {"link": "up"}}
    driver.api.change("ResourceClaim", claim.name, lambda body: body["status"].setdefault("devices", []).append(entry))
    for what, call in (("prepared", driver.calls.prepared), ("unprepared", driver.calls.unprepared)):
        call(claim)
        status = driver.api.get("ResourceClaim", claim.name, claim.namespace).get("status") or {}
        found = [one for one in status.get("devices") or () if one["driver"] == OTHER_DRIVER]
        require(found == [entry], f"when the claim was {what}, the other driver's entry became {found or 'missing'}")
    return "the other driver's entry is unchanged"


@check(
    SHOULD,
    core=True,
    expected="an entry for each device, if there is an entry for any device of this driver",
    clause="status.devices contains the status of each device allocated for this claim, as reported by the driver. "
    "(ResourceClaim, API reference; KEP-4817)",
)
def reports_the_status_of_each_device(driver: DriverUnderTest) -> str:
    """A claim for two devices is prepared, and the entries for this driver in status.devices are read."""
    driver.claims.require_two()
    claim = driver.claims.new(2)
    driver.calls.ready_devices(claim)

    def entries() -> set[tuple[str, str]]:
        status = driver.api.get("ResourceClaim", claim.name).get("status") or {}
        own = driver.registration.name
        return {(one["pool"], one["device"]) for one in status.get("devices") or () if one["driver"] == own}

    driver.process.wait_fairly(entries, _FIRST_STATUS)
    does_not_apply_if(not entries(), "the driver writes no status of devices")
    wanted = {device.key: str(device) for device in claim.devices}
    driver.process.wait_fairly(lambda: wanted.keys() <= entries(), _STATUS)
    missing = [text for key, text in wanted.items() if key not in entries()]
    require(not missing, f"there is an entry for another device, but none for {some(missing)}")
    return f"the status of {counted(len(wanted), 'device')}"


@check(
    MUST,
    expected="success",
    clause="Claims may have several consumers, tolerations, labels, and an allocation for any node; a scheduler "
    "creates claims for extended resources, with its own names and requests. (ResourceClaim, API reference; "
    "KEP-5004; KEP-5055)",
)
def prepares_claims_of_any_form(driver: DriverUnderTest) -> str:
    """Claims are prepared: for two pods, with tolerations, for any node, with labels, and for an extended resource."""
    driver.calls.require_preparing()
    _prepare_form(driver, "a claim for an extended resource", _of_an_extended_resource)
    try:
        _prepare_form(driver, "a claim of all other forms together", *_FORMS.values())
    except Failure:
        for form, change in _FORMS.items():
            _prepare_form(driver, form, change)
        raise
    return f"{counted(1 + len(_FORMS), 'form')} prepared"


def _prepare_form(driver: DriverUnderTest, form: str, *changes: Callable[[Json], None]) -> None:
    """Prepare and unprepare a claim with these changes."""
    spec, allocation = driver.claims.request(1), driver.claims.allocation_of(driver.claims.free_device())
    body: Json = {"spec": spec, "status": {"allocation": allocation}, "metadata": {}}
    for change in changes:
        change(body)
    name = f"{form.replace(' ', '-')}-extended-resources-x7k2p"
    claim = driver.claims.create(spec, allocation, name=name)
    driver.api.change("ResourceClaim", name, partial(_add, more=body))
    try:
        with in_context(form):
            driver.calls.prepared(claim)
            driver.calls.unprepared(claim)
    finally:
        driver.calls.clean_up()


def _add(claim: Json, more: Json) -> None:
    """Add labels, annotations and consumers to a claim."""
    claim["metadata"] |= more["metadata"]
    claim["status"]["reservedFor"] += more["status"].get("reservedFor", [])


def _for_two_pods(body: Json) -> None:
    pod = {"resource": "pods", "name": "another-pod", "uid": "33333333-3333-4333-8333-333333333333"}
    body["status"]["reservedFor"] = [pod]


def _tolerating(body: Json) -> None:
    toleration: Json = {"operator": "Exists"}
    body["spec"]["devices"]["requests"][0]["exactly"]["tolerations"] = [toleration]
    for result in body["status"]["allocation"]["devices"]["results"]:
        result["tolerations"] = [toleration]


def _of_an_extended_resource(body: Json) -> None:
    body["metadata"]["annotations"] = {"resource.kubernetes.io/extended-resource-claim": "true"}
    body["spec"]["devices"]["requests"][0]["name"] = "container-0-request-0"
    for result in body["status"]["allocation"]["devices"]["results"]:
        result["request"] = "container-0-request-0"


def _without_a_node(body: Json) -> None:
    body["status"]["allocation"].pop("nodeSelector", None)


def _labelled(body: Json) -> None:
    body["metadata"] |= {"labels": {"app.kubernetes.io/name": "x"}, "annotations": {"example.org/note": "{}\n"}}


_FORMS: Mapping[str, Callable[[Json], None]] = {
    "a claim for two pods": _for_two_pods,
    "a claim with tolerations": _tolerating,
    "a claim without a node": _without_a_node,
    "a claim with labels": _labelled,
}


@check(
    MUST,
    expected="success",
    clause="The name of a ResourceClaim can have 253 characters, the name of a request 63, and a file name 255. "
    "(Kubernetes, object names)",
)
def prepares_a_claim_with_a_long_name(driver: DriverUnderTest) -> str:
    """A claim with a 253-character name, whose request has a 63-character name, is prepared and unprepared."""
    driver.calls.require_preparing()
    longest = f"{'c' * 60}.{'c' * 63}.{'c' * 63}.{'c' * 64}"[:253]
    try:
        _prepare_and_unprepare(driver, longest)
    except Failure as failure:
        if METADATA_DIRECTORY not in str(failure):
            raise
        shorter = longest[: _NAME_MAX - len(f"{NAMESPACE}_")]
        _prepare_and_unprepare(driver, shorter)
        return (
            f"the claim was prepared with a name of {len(shorter)} characters; with a longer name, kubeletplugin "
            f"cannot name its metadata directory, and the pod never terminates: {failure}"
        )
    return "the claim was prepared"


def _prepare_and_unprepare(driver: DriverUnderTest, name: str) -> None:
    spec, allocation = driver.claims.request(1), driver.claims.allocation_of(driver.claims.free_device())
    spec["devices"]["requests"][0]["name"] = "r" * 63
    for result in allocation["devices"]["results"]:
        result["request"] = "r" * 63
    claim = driver.claims.create(spec, allocation, name=name)
    driver.calls.prepared(claim)
    try:
        driver.calls.unprepared(claim)
    except Failure as failure:
        if METADATA_DIRECTORY in str(failure):
            driver.claims.forget(claim)  # the driver has already released its devices
        raise


# --- while the API server does not answer -----------------------------------------------------------------------------


@check(
    MUST,
    expected="an error or success while the API server fails, and success afterwards",
    clause="A kubelet tries again to prepare a pod's claims 60 to 90 seconds after a failure. (kubelet)",
)
def prepares_after_an_error_of_the_api_server(driver: DriverUnderTest) -> str:
    """The driver is asked to prepare a claim while the API server refuses reads of claims, and again afterwards."""
    driver.calls.require_preparing()
    claim = driver.claims.new(1)
    error = ApiError(500, "InternalError", "Internal error occurred: etcdserver: leader changed")
    fails = driver.faults(Answer(error.code, error.status), verb="get", resource="resourceclaims", times=None)
    with fails, suppress(Failure):  # a driver may or may not need to read the claim
        driver.calls.prepared(claim)
    driver.calls.prepared(claim)
    return "the claim was prepared once the API server answered"


@check(
    SHOULD,
    expected="an error or success in time, and success when the API server is back",
    clause="A kubelet waits 45 seconds for NodePrepareResources, and tries again after a failure. (kubelet)",
)
def prepares_after_the_api_server_was_away(driver: DriverUnderTest) -> str:
    """The driver is asked to prepare a claim while the API server is down, and again when it is back."""
    driver.calls.require_preparing()
    claim = driver.claims.new(1)
    with driver.without_api_server():
        try:
            driver.calls.prepare(claim)
        except CallFailedError as error:
            require(not error.is_late, f"while the API server was down, {error}", late=True)
    driver.calls.prepared(claim)
    return "the claim was prepared when the API server was back"


@check(
    MUST,
    expected="success within 45 seconds, and GetInfo is answered within a second meanwhile",
    clause="A kubelet waits 45 seconds for NodePrepareResources, and a second for GetInfo. (kubelet, DRA manager and "
    "pluginwatcher)",
)
def prepares_with_a_slow_api_server(driver: DriverUnderTest) -> str:
    """A claim is prepared while the API server takes four seconds to answer each read of a claim."""
    driver.calls.require_preparing()
    claim, instance = driver.claims.new(1), driver.registration.reachable
    with needed("an answer to GetInfo"):
        instance.get_info()
    began = time.monotonic()

    def ask() -> None:
        driver.process.pause(_GIVES_UP)
        with in_context("while a claim is prepared"):
            instance.get_info()

    with delayed_reads(driver, _SLOW), ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask)
        driver.calls.prepared(claim)
        asked.result()
    return f"preparing the claim took {time.monotonic() - began:.1f} seconds"


# --- several calls ----------------------------------------------------------------------------------------------------


@check(
    MUST,
    expected="no crash, and exactly one entry, without an error and with the same devices as for a single claim",
    clause="A pod may name a claim twice, and then the kubelet sends it twice. (kubelet, DRA manager)",
)
def prepares_a_claim_that_is_there_twice(driver: DriverUnderTest) -> str:
    """One request contains the same claim twice."""
    driver.calls.require_repeating()
    claim, exits = driver.claims.new(), len(driver.process.exits)
    before = rows(driver.calls.ready_devices(claim))
    answer = driver.calls.prepare(claim, claim)
    require_alive(driver, exits)
    require_keys(answer, [claim])
    found = set(rows(devices_in(answer, claim)))
    require(found == set(before), "the devices differ from those for a single claim")
    return "one entry with the same devices"


def all_at_once(driver: DriverUnderTest, acts: Sequence[Callable[[], T]]) -> list[T]:
    """Make all these calls concurrently, check that each succeeds, and return the results.

    Raises Skip like `Calls.at_once`.
    """
    results = driver.calls.at_once(acts)
    if failed := [one for one in results if isinstance(one, Failure)]:
        raise reworded(f"{len(failed)} of {len(acts)} calls failed: {some(list(map(str, failed)))}", *failed)
    return [one for one in results if not isinstance(one, Failure)]


@check(
    MUST,
    expected=(
        "success for all within 45 seconds, each with its own devices, resolvable CDI names and the edits for its own "
        "device; and nothing is left after the claims are unprepared"
    ),
    clause="A kubelet starts pods independently of each other, so the calls for different pods overlap. (kubelet, pod "
    "workers)",
)
def prepares_claims_at_the_same_time(driver: DriverUnderTest) -> str:
    """Up to sixteen claims are prepared by as many concurrent calls and then unprepared; two more claims follow."""
    driver.claims.require_two()
    driver.calls.require_preparing()
    before = driver.environment.cdi_names()
    for most in ROUNDS:
        claims = [driver.claims.new(1) for _ in driver.claims.allocatable[: driver.calls.in_time_for(most)]]
        with delayed_reads(driver, OVERLAP):
            answers = all_at_once(driver, [partial(prepared_rows, driver, claim) for claim in claims])
        found = []
        for claim, answer in zip(claims, answers, strict=True):
            foreign = foreign_devices(answer, claim, claims)
            require(not foreign, f"the answer for {claim.devices[0]} has {some(foreign)} from another claim")
            found.append(neutral(require_resolvable(driver, answer), claim))
        for claim in claims:
            driver.calls.unprepared(claim)
        driver.calls.clean_up()
        # The driver may have saved the result of only one of the concurrent calls, which becomes visible when the
        # claims are unprepared.
        require_undone(driver, {name for answer in answers for row in answer for name in row.cdi} - before)
    with suppress(DoesNotApply):  # the driver returns no CDI devices
        alone = [edits_of(driver, claim.devices[0]) for claim in claims]
        if alone[0] != alone[1]:
            require_separate(found, alone, "call")
    return f"{counted(min(ROUNDS[0], len(driver.claims.allocatable)), 'call')} at once, and then 2 more"


def prepared_rows(driver: DriverUnderTest, claim: Claim) -> Rows:
    """Prepare a claim, and return the devices in the response.

    Raises Failure if the driver did not prepare the claim.
    """
    return rows(devices_in(driver.calls.prepare(claim), claim))


def require_resolvable(driver: DriverUnderTest, answer: Rows) -> frozenset[str]:
    """Return the edits of the CDI devices in a response.

    Raises Failure if a runtime would not find the devices. Raises DoesNotApply if the driver has no CDI file in the
    run's directory.
    """
    names = sorted({name for row in answer for name in row.cdi if is_cdi_name(name)})
    does_not_apply_if(names and not own_files(driver), f"the driver has no file in {driver.environment.cdi}")
    return require_edits(driver, names, "")


@check(
    MUST,
    expected="success with the same devices, each time",
    clause="Two pods that use the same claim may start together. Nothing in a kubelet serializes the calls for these "
    "pods. (kubelet, DRA manager)",
    found=("kubernetes-sigs/dra-driver-cpu#175",),
)
def prepares_one_claim_in_several_calls_at_once(driver: DriverUnderTest) -> str:
    """The same claim is prepared by up to four concurrent calls."""
    driver.calls.require_preparing()
    claim = driver.claims.new()
    found: list[Rows] = []
    with delayed_reads(driver, OVERLAP):
        answers = driver.calls.at_once([partial(prepared_rows, driver, claim)] * driver.calls.in_time_for(4))
    for answer in answers:
        if isinstance(answer, Failure):
            raise answer
        found.append(answer)
        require(answer == found[0], f"the answers differ: {difference(found[0], answer)}")
    return f"{counted(len(answers), 'answer')}, all the same"


@check(
    MUST,
    expected="success for both calls",
    clause="Two pods may use the same claims and name them in different orders. Nothing in a kubelet serializes the "
    "calls for these pods. (kubelet, DRA manager)",
)
def prepares_claims_in_different_orders_at_once(driver: DriverUnderTest) -> str:
    """Two claims are prepared by two concurrent calls, which name them in opposite orders, and then unprepared."""
    driver.claims.require_two()
    driver.calls.require_preparing()
    claims = [driver.claims.new(1) for _ in range(2)]
    for call in (driver.calls.prepare, driver.calls.unprepare):
        for answer in all_at_once(driver, [partial(call, *claims), partial(call, *reversed(claims))]):
            failed = sorted(foreign_text(entry.error) for entry in answer.values() if entry.error)
            require(not failed, f"the errors are: {some(failed)}")
    return "both calls succeed"


@check(
    MUST,
    expected="success afterwards",
    clause="A call that takes too long is canceled and repeated later. (kubelet, DRA manager)",
)
def prepares_after_cancelled_calls(driver: DriverUnderTest) -> str:
    """Up to ten calls to prepare a claim are canceled after 50 ms each, and then the claim is prepared."""
    driver.calls.require_repeating()
    claim = driver.claims.new(1)
    number = driver.calls.in_time_for(_CANCELLED)  # a driver may work on canceled calls, too
    with delayed_reads(driver, 0.1, times=number):
        for _number in range(number):
            try:
                driver.calls.prepare(claim, timeout=0.05)
            except CallFailedError:
                continue  # most calls must end with an error
    driver.calls.prepared(claim)
    driver.calls.unprepared(claim)
    return "the claim was prepared"


@check(
    MUST,
    expected="the claim has no CDI file, and its device can be prepared for another claim",
    clause=(
        "A kubelet cancels a call after 45 seconds, and may then unprepare the claim because its pod was deleted. A "
        "prepare call that is still in progress must not take the device. (kubelet, DRA manager)"
    ),
    found=("NVIDIA/k8s-dra-driver-gpu#1162", "NVIDIA/k8s-dra-driver-gpu#1188", "NVIDIA/k8s-dra-driver-gpu#1205"),
)
def late_prepare_leaves_nothing(driver: DriverUnderTest) -> str:
    """Prepare calls are canceled while a claim is read and, if they take long, halfway. The claims are unprepared."""
    driver.calls.require_preparing()
    files, asked = driver.environment.cdi_files(), len(driver.api.requests)
    with delayed_reads(driver, _LATE):
        claim = _canceled(driver, _GIVES_UP, _LATE)
    reads = [one for one in driver.api.requests[asked:] if one.resource == "resourceclaims"]
    _require_nothing_of(driver, claim, files)
    if _WORKS < driver.calls.fastest < _SLOW:  # the driver does more than read the claim
        driver.calls.clean_up()
        files = driver.environment.cdi_files()
        with in_context("halfway"):
            _require_nothing_of(driver, _canceled(driver, driver.calls.fastest / 2, driver.calls.fastest), files)
    return "nothing is left" if reads else "the driver did not read the claim in this call; nothing is left"


def _canceled(driver: DriverUnderTest, seconds: float, duration: float) -> Claim:
    """Cancel a prepare call after this many seconds, unprepare its claim, and return the claim.

    If the call were not canceled, it would take about `duration` seconds.
    """
    claim = driver.claims.new(devices=[driver.claims.free_device()])
    with suppress(CallFailedError):  # the kubelet cancels the call, or the driver gives up at the deadline
        driver.calls.prepare(claim, timeout=seconds)
    with needed("an unprepared claim"):
        driver.calls.unprepared(claim)
    driver.process.pause(duration + 1.0)  # time for the driver to finish what it was doing
    return claim


def _require_nothing_of(driver: DriverUnderTest, claim: Claim, before: Mapping[Path, bytes]) -> None:
    """Check that nothing is left of a canceled prepare call, except the CDI files that were there before."""
    left = sorted(path.name for path in driver.environment.cdi_files() if path not in before)
    require(not left, f"after the claim was unprepared, the canceled prepare call left {some(left)} behind")
    driver.claims.forget(claim)
    try:
        with in_context("the canceled prepare call still holds the device"):
            require_free(driver, claim.devices, claim)
    finally:
        driver.calls.unprepare(claim)  # the device must be free again


# --- other forms of the request ---------------------------------------------------------------------------------------


@check(
    SHOULD,
    expected="the unknown fields are ignored",
    clause="Unknown fields are ignored, so that the API can grow. (Protocol Buffers, proto3)",
)
def ignores_unknown_fields(driver: DriverUnderTest) -> str:
    """A request with fields that are in no version of the API is sent."""
    driver.calls.require_repeating()
    claim = driver.calls.ready()
    method = calls.PREPARE_METHODS[driver.registration.instance.service]
    row = {"namespace": NAMESPACE, "uid": claim.uid, "name": claim.name}
    request = method.request(claims=[row])
    extra = b"\xf2\x3f\x03new"  # field 1022, a string
    request.MergeFromString(extra)
    answer = driver.calls.timed(lambda seconds: driver.registration.reachable.connection.call(method, request, seconds))
    devices_in(dict(answer.claims), claim)
    return "the claim was prepared"


@check(
    SHOULD,
    expected="errors, and no file outside the driver's directories",
    clause="uid, name and namespace are required. (dra/v1, api.proto) Drivers use these fields in file names.",
)
def refuses_senseless_names(driver: DriverUnderTest) -> str:
    """The driver is asked to prepare claims with an empty UID and with a UID that is a path."""
    driver.calls.require_preparing()
    exits = len(driver.process.exits)
    before, claim = driver.environment.files(), driver.claims.new(1)
    accepted = []
    for uid in ("", "../../conformance-escape"):
        stranger = driver.claims.stranger(claim, uid)
        is_refused, sentence = try_to_prepare(driver, stranger)
        if not is_refused:
            accepted.append(f"for the UID {uid!r}: {sentence}")
            driver.calls.unprepare_later([stranger])  # otherwise the claim's device stays in use
    require_alive(driver, exits)
    new = [str(path) for path in driver.environment.files() - before if "escape" in path.name]
    require(not new, f"the driver created {some(new)}")
    require(not accepted, some(accepted))
    return "each claim was refused"


@check(
    SHOULD,
    expected="the same devices through both services",
    clause="A 1.32 or 1.33 kubelet calls only v1beta1.DRAPlugin. (kubelet, DRA manager)",
)
def answers_the_same_through_v1beta1(driver: DriverUnderTest) -> str:
    """A claim is prepared through both v1.DRAPlugin and v1beta1.DRAPlugin, if both are announced."""
    instance = driver.registration.instance
    info = instance.info
    announced = [] if info is None else list(info.supported_versions)
    does_not_apply_if(not set(calls.PREPARE_METHODS) <= set(announced), "the driver does not announce both services")
    driver.calls.require_repeating()
    claim = driver.claims.new()
    before = rows(driver.calls.ready_devices(claim))
    answer = driver.calls.timed(
        lambda seconds: driver.registration.instance.prepare([claim.ref], seconds, "v1beta1.DRAPlugin")
    )
    after = rows(devices_in(answer, claim))
    without_shares = Counter(row._replace(share="") for row in before.elements())
    require(without_shares == after, f"v1beta1 differs: {difference(without_shares, after)}")
    return "both answers are the same"
