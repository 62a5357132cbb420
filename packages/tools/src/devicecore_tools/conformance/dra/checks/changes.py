"""Checks for devices that appear and disappear. These checks need the user's command that changes devices.

Law: the command runs once, and the command that undoes the change runs after the last of these checks.
"""

from devicecore.domain.text import counted
from devicecore_tools.conformance.connection import CallFailedError
from devicecore_tools.conformance.dra.checks.slices import bare, require_unique_names, require_valid
from devicecore_tools.conformance.dra.claims import Claim
from devicecore_tools.conformance.dra.driver import ChangeOfDevices, DriverUnderTest
from devicecore_tools.conformance.dra.steps import Occurrence, Parts, across
from devicecore_tools.conformance.model import (
    Severity,
    Undecided,
    does_not_apply_if,
    needed,
    require,
    skip_if,
    some,
)
from devicecore_tools.conformance.processes import problem_of_command
from devicecore_tools.testing.dra_pools import PublishedPool, bodies_in

MUST, SHOULD = Severity.MUST, Severity.SHOULD

_SEVERAL = 8  # devices that are allocated to claims when devices change
_OTHERS = f"only devices after the first {_SEVERAL} have changed, which are in no claim (--provoke-devices)"
_COMMAND = 30.0  # seconds
POOL = (
    "Whenever a driver changes something about one or more of the resources in a pool, it must change the generation "
    "in all ResourceSlices which are part of that pool. Consumers of ResourceSlices should only consider resources "
    "from the pool with the highest generation number. (ResourceSlice, API reference, spec.pool.generation)"
)


def _run(driver: DriverUnderTest, command: str) -> str:
    return problem_of_command(driver.environment.expand(command), driver.environment.plugins, _COMMAND)


def _provoke(driver: DriverUnderTest) -> None:
    """Run the --provoke-devices command, and wait until the published devices have changed."""
    if not driver.settings.provoke_devices:
        return
    change = driver.seen.change = ChangeOfDevices(driver.slices.catalogue)
    driver.slices.follow()
    driver.slices.expects_changes = True
    change.problem = _run(driver, driver.settings.provoke_devices)

    def has_changed() -> bool:
        pools = driver.slices.pools()
        return bodies_in(pools) != change.before and all(pool.is_complete for pool in pools)

    if not change.problem:
        change.was_published = driver.process.wait_fairly(has_changed, driver.settings.republishing)
        driver.slices.refresh()


def _undo(driver: DriverUnderTest) -> str:
    """Run the command that undoes the change, unless it was already run.

    Return why the command failed, or an empty string.
    """
    if driver.seen.change.is_undone or not driver.settings.undo_devices:
        return ""
    driver.seen.change.is_undone = True
    return _run(driver, driver.settings.undo_devices)


CHANGE = Occurrence("devices come or go", _provoke, undo=_undo, keeps_claims=False)


def _change(driver: DriverUnderTest) -> ChangeOfDevices:
    """Return the observed change. Raises Undecided if the command failed."""
    if driver.seen.change.problem:
        raise Undecided(f"--provoke-devices: {driver.seen.change.problem}")
    return driver.seen.change


def _pools(driver: DriverUnderTest) -> tuple[PublishedPool, ...]:
    """Return the pools once all of them are complete, or in their current state after the timeout."""
    driver.slices.wait_complete()
    return driver.slices.pools()


def _gone(driver: DriverUnderTest) -> set[tuple[str, str]]:
    """Return the keys of the devices that are no longer published, or that have been tainted since the change."""
    former = [device for pool in _change(driver).pools for device in pool.devices]
    now = {device.key: device for pool in _pools(driver) for device in pool.devices}
    return {one.key for one in former if one.key not in now or (now[one.key].is_tainted and not one.is_tainted)}


def _require_command(driver: DriverUnderTest) -> None:
    does_not_apply_if(not driver.settings.provoke_devices, "there is no command to change devices (--provoke-devices)")


@across(
    CHANGE,
    MUST,
    expected="slices with changed devices, attributes or taints, within the time allowed for slices to come back",
    clause="The scheduler allocates the devices that are in ResourceSlices. (kubernetes.io, Dynamic Resource "
    "Allocation)",
)
def publishes_a_change_of_devices(driver: DriverUnderTest) -> Parts:
    """The --provoke-devices command is run, and the slices before and after it are compared."""
    _require_command(driver)
    yield
    change = _change(driver)
    limit = counted(driver.settings.republishing, "second")
    require(change.was_published, f"no complete pools with changed devices appeared within {limit}")
    now = bodies_in(_pools(driver))
    gone, new = change.before.keys() - now.keys(), now.keys() - change.before.keys()
    changed = [key for key, body in now.items() if key in change.before and change.before[key] != body]
    return f"{counted(len(gone), 'device')} gone, {len(new)} new, {len(changed)} changed"


@across(
    CHANGE,
    MUST,
    expected="no slice is refused",
    clause=(
        "The API server refuses a ResourceSlice that breaks the limits of its fields, such as a taint whose value "
        "is not a valid label value. The slices then stay unchanged. (ResourceSlice, API reference)"
    ),
)
def publishes_a_valid_change(driver: DriverUnderTest) -> Parts:
    """The --provoke-devices command is run, and the slices that the driver then sends are validated."""
    _require_command(driver)
    asked = len(driver.api.requests)
    yield
    _ = _change(driver)
    return require_valid(driver, asked)


@across(
    CHANGE,
    MUST,
    expected="complete pools, each device only once, and a higher generation if more than one slice has changed",
    clause=(
        f"{POOL} Kubernetes' helper keeps the generation if a single update suffices, because no consumer can see only "
        "part of such an update."
    ),
)
def keeps_a_changed_pool_whole(driver: DriverUnderTest) -> Parts:
    """The --provoke-devices command is run, and the pools are read afterwards."""
    _require_command(driver)
    yield
    change = _change(driver)
    pools = _pools(driver)
    skip_if(bodies_in(pools) == change.before, "the slices have not changed")
    incomplete = [pool.name for pool in pools if not pool.is_complete]
    require(not incomplete, f"there are slices of several generations, or too few slices, in {some(incomplete)}")
    require_unique_names(pools)
    for pool in pools:
        former = next((one for one in change.pools if one.name == pool.name), pool)
        generation = f"the generation of the pool {pool.name} is {pool.generation}"
        require(pool.generation >= former.generation, f"{generation}, but was {former.generation}")
        specs = [one["spec"] for one in former.slices]
        number = sum(one["spec"] not in specs for one in pool.slices)
        is_told = number < 2 or pool.generation > former.generation
        require(is_told, f"{counted(number, 'slice')} changed, but {generation}, as before")
    return f"{counted(len(pools), 'pool')}, all complete"


@across(
    CHANGE,
    MUST,
    expected="every device that is still there has attributes and capacity if it had some before",
    clause=(
        "The selectors of claims and classes see the attributes and the capacity of a device, and select no device "
        "without them. (ResourceSlice, API reference, devices.attributes; KEP-4381)"
    ),
)
def keeps_the_attributes_of_its_devices(driver: DriverUnderTest) -> Parts:
    """The --provoke-devices command is run, and the attributes and capacity of each device are read."""
    _require_command(driver)
    yield
    now = bodies_in(_pools(driver))
    lost = bare(_change(driver).before, now)
    require(not lost, some(lost))
    return f"{counted(len(now), 'device')} as before"


@across(
    CHANGE,
    MUST,
    expected="success",
    clause=(
        "The kubelet unprepares the claims of a terminating pod even if a device has disappeared. The kubelet retries "
        "until the call succeeds, and the pod stays until then. (kubelet, DRA manager)"
    ),
)
def unprepares_a_claim_of_a_gone_device(driver: DriverUnderTest) -> Parts:
    """Claims are prepared, --provoke-devices is run, and claims for lost or newly tainted devices are unprepared."""
    _require_command(driver)
    claims = [driver.calls.ready(devices=[device]) for device in driver.claims.allocatable[:_SEVERAL]]
    yield
    gone = _gone(driver)
    mine = [claim for claim in claims if any(device.key in gone for device in claim.devices)]
    skip_if(gone and not mine, _OTHERS)
    does_not_apply_if(not mine, "no claim's device is gone or has a new taint")
    for claim in mine:
        driver.calls.unprepared(claim)
    return f"{counted(len(mine), 'claim')} unprepared"


@across(
    CHANGE,
    SHOULD,
    expected="an error for the claim",
    clause=(
        "A device may have disappeared since the scheduler allocated it. If the claim is prepared anyway, a "
        "container starts without its device."
    ),
)
def refuses_a_device_that_has_gone(driver: DriverUnderTest) -> Parts:
    """Claims are allocated, --provoke-devices is run, and the driver is asked to prepare claims for lost devices."""
    _require_command(driver)
    claims: list[Claim] = [driver.claims.on(device) for device in driver.claims.allocatable[:_SEVERAL]]
    yield
    now = bodies_in(_pools(driver))
    mine = [claim for claim in claims if any(device.key not in now for device in claim.devices)]
    change = _change(driver)
    are_gone = any(one.key not in now for pool in change.pools for one in pool.devices)
    skip_if(are_gone and not mine, _OTHERS)
    does_not_apply_if(not mine, "no device is gone")
    with needed("an answer"):
        driver.calls.require_answering()
    texts = [_error_for(driver, claim) for claim in mine]
    return f"the error is: {some(texts)}"


def _error_for(driver: DriverUnderTest, claim: Claim) -> str:
    """Ask the driver to prepare a claim for a removed device, and return the error."""
    try:
        answer = driver.calls.prepare(claim, must_be_published=False)
    except CallFailedError as error:
        if error.code in {"UNAVAILABLE", "DEADLINE_EXCEEDED"}:
            raise
        return str(error)
    skip_if(claim.uid not in answer, "the answer has no entry for the claim")
    require(answer[claim.uid].error, f"{claim.devices[0]} is gone, but was prepared")
    return str(answer[claim.uid].error)


@across(
    CHANGE,
    MUST,
    expected="complete pools with all previous devices, without new taints",
    clause="The scheduler allocates the devices that are in ResourceSlices. (kubernetes.io, Dynamic Resource "
    "Allocation) A device that is not published again is lost until the driver is restarted.",
)
def publishes_devices_that_come_back(driver: DriverUnderTest) -> Parts:
    """The --undo-devices command is run, and the slices are compared with those before the change."""
    _require_command(driver)
    does_not_apply_if(not driver.settings.undo_devices, "there is no command to undo the change (--undo-devices)")
    yield
    change = _change(driver)
    skip_if(not change.was_published, "the slices have not changed")
    if problem := _undo(driver):
        raise Undecided(f"--undo-devices: {problem}")

    former = [device for pool in change.pools for device in pool.devices]

    def problems() -> list[str]:
        pools = driver.slices.pools()
        now = {device.key: device for pool in pools for device in pool.devices}
        tainted = [one for one in former if one.key in now and now[one.key].is_tainted and not one.is_tainted]
        return [
            *(f"the pool {pool.name} is incomplete" for pool in pools if not pool.is_complete),
            *(f"{one} is gone" for one in former if one.key not in now),
            *(f"{one} has a taint" for one in tainted),
        ]

    are_back = driver.process.wait_fairly(lambda: not problems(), driver.settings.republishing)
    limit = counted(driver.settings.republishing, "second")
    require(are_back, f"{limit} after the --undo-devices command, {some(problems())}")
    return f"{counted(len(change.before), 'device')} published again"
