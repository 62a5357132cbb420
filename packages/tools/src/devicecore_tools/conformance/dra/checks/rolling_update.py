"""Rolling update: two instances of the driver at the same time, as during the update of a DaemonSet with maxSurge.

Law: these checks apply only to drivers whose command or environment contains `{pod_uid}`, because each instance needs
its own sockets.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from attrs import frozen

from devicecore.domain.text import counted
from devicecore_tools.conformance.connection import CallFailedError
from devicecore_tools.conformance.dra.calls import devices_in, require_unprepared
from devicecore_tools.conformance.dra.checks.cdi import require_edits
from devicecore_tools.conformance.dra.checks.process import own_process
from devicecore_tools.conformance.dra.claims import Claim
from devicecore_tools.conformance.dra.driver import DriverUnderTest
from devicecore_tools.conformance.dra.kubelet import DriverInstance
from devicecore_tools.conformance.dra.steps import at_the_end, check
from devicecore_tools.conformance.model import (
    DoesNotApply,
    Failure,
    Severity,
    Skip,
    does_not_apply_if,
    in_context,
    require,
    some,
)
from devicecore_tools.testing.process import PluginProcess, StillRunningError

MUST, SHOULD = Severity.MUST, Severity.SHOULD

NEWER_POD = "22222222-2222-4222-8222-222222222222"
"""The UID of the pod in which the newer instance supposedly runs."""
MAX_WRITES = 10
"""The maximum number of slice writes while two instances run."""

INSTANCES = "A kubelet keeps all instances of a driver and calls the newest connected one. (kubelet, DRA manager)"
_ROUNDS, _CLAIMS = 2, 4
_OVERLAP = 2.0  # seconds
_ANSWER = 10.0  # seconds for a call
_NOT_REGISTERED = "the second instance was not registered"


@frozen
class Two:
    """The existing instance, and a newer one with its process."""

    old: DriverInstance
    new: DriverInstance
    process: PluginProcess


def require_instances(driver: DriverUnderTest) -> None:
    """Raise Skip if two instances of the driver would use the same sockets."""
    if not driver.process.has_instances:
        raise DoesNotApply("{pod_uid} is in neither the command nor the environment, so there can be no rolling update")


@contextmanager
def two_instances(
    driver: DriverUnderTest, not_registered: Callable[[str], Exception] = lambda _: Skip(_NOT_REGISTERED)
) -> Iterator[Two]:
    """Run a newer instance alongside the driver in this block.

    If the newer instance was not registered, the block is not run, and what `not_registered` returns for that
    instance's last output is raised: by default Skip, because a separate check reports that.
    """
    old = driver.registration.reachable
    driver.process.versions.append(driver.api.store.version)  # the newer instance may publish an empty pool first
    process = driver.process.spawn(NEWER_POD)
    paths = {old.path, old.endpoint}

    def find() -> DriverInstance | None:
        return next((one for one in driver.kubelet.registered if one.path not in paths), None)

    try:
        new = driver.process.wait(find, driver.settings.returning)
        if new is None:
            raise not_registered(process.last_output)
        driver.process.wait(lambda: _knows_its_devices(driver, new), _ANSWER)
        yield Two(old, new, process)
    finally:
        process.stop(grace=2.0)
        for one in driver.kubelet.registered:
            for path in {one.path, one.endpoint} - paths:
                if driver.environment.contains(path):
                    Path(path).unlink(missing_ok=True)
        driver.process.wait(lambda: all(one.path in paths for one in driver.kubelet.registered), _ANSWER)


def prepare(driver: DriverUnderTest, instance: DriverInstance, claim: Claim) -> tuple[str, ...]:
    """Prepare a claim with one instance.

    Return the CDI names in the instance's answer. Raises Failure if the claim was not prepared.
    """
    devices = devices_in(driver.calls.prepare(claim, timeout=_limit(driver), instance=instance), claim)
    return tuple(name for device in devices for name in device.cdi_device_ids)


def _knows_its_devices(driver: DriverUnderTest, instance: DriverInstance) -> bool:
    """Return whether a newly started instance prepares a claim, or True if that cannot be tried."""
    with suppress(Skip), driver.claims.owning([]):
        claim = driver.claims.new(1)
        try:
            prepare(driver, instance, claim)
            unprepare(driver, instance, claim)
        except Failure:
            return False
        finally:
            driver.calls.clean_up()
    return True


def unprepare(driver: DriverUnderTest, instance: DriverInstance, claim: Claim) -> None:
    """Unprepare a claim with one instance. Raises Failure if the claim was not unprepared."""
    require_unprepared(driver.calls.unprepare(claim, timeout=_limit(driver), instance=instance), claim)


def _limit(driver: DriverUnderTest) -> float:
    """Return how many seconds a call may take while both instances are called for several claims."""
    return driver.calls.limit_for(2 * _CLAIMS, _ANSWER)


# --- two instances ----------------------------------------------------------------------------------------------------


@check(
    MUST,
    expected="both instances are registered with their own sockets, and answer",
    clause=INSTANCES,
    found=("kubernetes-sigs/dra-example-driver#107", "kubernetes-sigs/dra-example-driver#113"),
    needs=require_instances,
)
def runs_beside_a_newer_instance(driver: DriverUnderTest) -> str:
    """A second instance is started with a different {pod_uid}, and both are called without claims."""
    with two_instances(driver, lambda output: Failure(": ".join(filter(None, (_NOT_REGISTERED, output))))) as two:
        for which, instance in (("older", two.old), ("newer", two.new)):
            require(instance.is_registered, f"the {which} instance is no longer registered")
            with in_context(f"the {which} instance does not answer"):
                instance.prepare((), _ANSWER)
    return "both instances answer"


@check(
    MUST,
    expected="each instance can unprepare what the other prepared",
    clause=f"{INSTANCES} Therefore, the instance that unprepares a claim may not be the one that prepared it.",
    found=("kubernetes-sigs/dra-example-driver#107",),
    needs=require_instances,
)
def shares_its_claims_between_instances(driver: DriverUnderTest) -> str:
    """A claim is prepared with one instance and unprepared with the other; then its device goes to another claim."""
    with two_instances(driver) as two:
        for first, second in ((two.old, two.new), (two.new, two.old)):
            claim = driver.claims.new(1)
            prepare(driver, first, claim)
            unprepare(driver, second, claim)
            driver.claims.forget(claim)
            other = driver.claims.new(devices=claim.devices, shares=claim.shares)
            try:
                prepare(driver, first, other)
            except CallFailedError:
                raise
            except Failure as failure:
                message = f"the first instance did not notice that the other had unprepared a claim: {failure}"
                raise Failure(message) from None
            unprepare(driver, first, other)
            driver.claims.forget(other)
    return "each instance knows what the other did"


@check(
    MUST,
    expected="no call fails, and the claims that are prepared at the end have their CDI devices",
    clause=(
        f"{INSTANCES} The newer instance may unprepare claims of pods that started with the older one, while the "
        "older one is still running."
    ),
    needs=require_instances,
)
def serializes_the_calls_of_two_instances(driver: DriverUnderTest) -> str:
    """Claims are prepared and unprepared concurrently with both instances, several times."""
    with two_instances(driver) as two:
        claims = [driver.claims.new(1) for _ in driver.claims.allocatable[:_CLAIMS]]

        def work(number: int) -> None:
            claim = claims[number % len(claims)]
            one, other = (two.old, two.new) if number < len(claims) else (two.new, two.old)
            for _ in range(_ROUNDS):
                prepare(driver, one, claim)
                unprepare(driver, other, claim)

        with ThreadPoolExecutor(2 * len(claims)) as pool:
            for done in [pool.submit(work, number) for number in range(2 * len(claims))]:
                done.result()
        names = {claim.uid: prepare(driver, two.old, claim) for claim in claims}
        for claim in claims:
            require_edits(driver, names[claim.uid], "afterwards a claim is prepared, but ")
            unprepare(driver, two.new, claim)
    return f"{counted(2 * len(claims) * _ROUNDS, 'claim')} were prepared and unprepared"


@at_the_end(
    MUST,
    expected="the newer instance is still registered and answers, and the slices are complete",
    clause=f"{INSTANCES} In a rolling update, the older instance is stopped when the newer one is ready.",
    found=("kubernetes/kubernetes#129832",),
    needs=require_instances,
)
def leaves_a_newer_instance_alone_when_it_ends(driver: DriverUnderTest) -> str:
    """The older of two instances is stopped with SIGTERM, and the newer one is called."""
    _ = driver.slices.catalogue  # another check reports slices that are never complete
    process = own_process(driver)
    with two_instances(driver) as two:
        try:
            process.terminate()
            with suppress(StillRunningError):
                process.wait(driver.settings.grace)
            driver.process.wait(lambda: not two.new.is_registered, 0.5)
            require(two.new.is_registered, "the socket of the newer instance is gone")
            with in_context("the newer instance does not answer"):
                two.new.prepare((), _ANSWER)
            require(driver.slices.wait_complete(), "the pools are not complete afterwards")
        finally:
            two.process.stop(grace=2.0)
            driver.process.start()
    return "the newer instance keeps working"


@at_the_end(
    MUST,
    expected=(
        "the same edits to a container as before, after the newer instance has started and after either has exited"
    ),
    clause=(
        "A running container may be restarted at any time. Its runtime then resolves the CDI devices again, "
        "without a call to the driver. (kubelet, DRA manager; CDI specification)"
    ),
    needs=require_instances,
)
def keeps_cdi_devices_in_a_rolling_update(driver: DriverUnderTest) -> str:
    """A claim's CDI devices are resolved while a newer instance starts and exits, and then replaces the older one."""
    process = own_process(driver)
    claim = driver.calls.ready(1)
    names = prepare(driver, driver.registration.reachable, claim)
    does_not_apply_if(not names, "the driver returns no CDI devices")
    before = require_edits(driver, names, "")

    def observe(when: str) -> None:
        edits = require_edits(driver, names, f"{when}, ")
        require(edits == before, f"{when}, the edits differ in {some(sorted(edits ^ before))}")

    with two_instances(driver) as two:
        observe("after the newer instance started")
        two.process.terminate()
        with suppress(StillRunningError):
            two.process.wait(driver.settings.grace)
        observe("after the newer instance exited")
    with two_instances(driver) as two:
        try:
            process.terminate()
            with suppress(StillRunningError):
                process.wait(driver.settings.grace)
            observe("after the older instance exited")
            with in_context("the newer instance, after the older one exited"):
                unprepare(driver, two.new, claim)
        finally:
            two.process.stop(grace=2.0)
            driver.process.start()
    return "the edits were unchanged"


@check(
    MUST,
    expected=f"at most {MAX_WRITES} slice writes",
    clause="Both instances publish the same pool. Each write reaches all schedulers and drivers that watch slices.",
    needs=require_instances,
)
def does_not_fight_over_slices(driver: DriverUnderTest) -> str:
    """Two instances run for a few seconds, and their slice writes are counted."""
    with two_instances(driver):
        before = len(driver.api.requests)
        driver.process.pause(_OVERLAP)
        made = driver.slices.writes(before)
    text = f"{counted(len(made), 'write')} in {counted(_OVERLAP, 'second')}"
    require(len(made) <= MAX_WRITES, text)
    return text


@check(
    SHOULD,
    expected="the older instance answers, and the slices are complete",
    clause=f"{INSTANCES} If an update fails, only the older one remains.",
    needs=require_instances,
)
def survives_the_crash_of_a_newer_instance(driver: DriverUnderTest) -> str:
    """The newer of two instances is killed, and the older one is called to prepare a claim."""
    _ = driver.slices.catalogue  # another check reports slices that are never complete
    process = own_process(driver)
    with two_instances(driver) as two:
        two.process.kill()
        driver.process.wait(lambda: process.status is not None, 0.5)
        require(process.status is None, f"the older instance exited with status {process.status}")
        claim = driver.claims.new(1)
        prepare(driver, two.old, claim)
        unprepare(driver, two.old, claim)
        require(driver.slices.wait_complete(), "the pools are not complete afterwards")
    return "the older instance keeps working"


@at_the_end(
    SHOULD,
    expected="a call is answered, by the first process or by the second",
    clause=(
        "A force-deleted pod may still be running when the next one starts. Either instance may exit, but one must "
        "work."
    ),
)
def survives_a_second_start(driver: DriverUnderTest) -> str:
    """The driver is started a second time with the same {pod_uid}, and called after the second process has settled."""
    own_process(driver)
    driver.calls.require_answering()
    sockets = {one.identity for one in driver.kubelet.registered}
    second = driver.process.spawn()
    try:
        driver.process.wait(
            lambda: second.status is not None or {one.identity for one in driver.kubelet.registered} - sockets,
            min(driver.settings.returning, _ANSWER),
        )
        ended = "" if second.status is None else f", which exited with status {second.status}"
        found = driver.process.wait(lambda: driver.kubelet.newest, _ANSWER)
        require(found is not None, f"no instance is registered after the second start{ended}")
        assert found is not None  # noqa: S101 - for mypy
        with in_context(f"after the second start{ended}"):
            found.prepare((), _ANSWER)
    finally:
        second.stop(grace=2.0)
        driver.process.start()
    return (
        f"the first process keeps running{ended.replace(', which', ', and the second has')}"
        if ended
        else "a call is answered"
    )
