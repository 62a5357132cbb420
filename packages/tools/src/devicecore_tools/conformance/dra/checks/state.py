"""The driver's state on disk: whether it survives a kill at any time, and whether it survives damaged files.

Law: an unshared device is never in two claims, even after files have been damaged or lost.
"""

import threading
import time
from contextlib import ExitStack, suppress

from devicecore.domain.text import counted
from devicecore_tools.conformance.connection import CallFailedError
from devicecore_tools.conformance.dra.checks.cdi import read_only, require_undone
from devicecore_tools.conformance.dra.checks.directory_watch import written_in
from devicecore_tools.conformance.dra.checks.events import CORRUPTION
from devicecore_tools.conformance.dra.checks.prepare import try_to_prepare
from devicecore_tools.conformance.dra.checks.unprepare import own_cdi_names
from devicecore_tools.conformance.dra.claims import Claim
from devicecore_tools.conformance.dra.driver import DriverUnderTest
from devicecore_tools.conformance.dra.steps import Parts, across, check
from devicecore_tools.conformance.model import (
    DoesNotApply,
    Failure,
    Severity,
    Skip,
    does_not_apply_if,
    in_context,
    require,
    skip_if,
    skipping,
    some,
)

MUST, SHOULD = Severity.MUST, Severity.SHOULD


@check(
    MUST,
    expected="after each restart, the claim can be prepared and unprepared, and nothing is left of it",
    clause="PrepareResourceClaims and UnprepareResourceClaims must be idempotent, even across restarts of the driver. "
    "(kubeletplugin, DRAPlugin)",
    found=("kubernetes-sigs/dra-driver-cpu#175", "NVIDIA/k8s-dra-driver-gpu#840"),
)
def survives_a_kill_at_any_moment(driver: DriverUnderTest) -> str:
    """The driver is killed at several points during a prepare call, restarted, and called again."""
    began = time.monotonic()
    _ = driver.calls.ready(1)
    took = time.monotonic() - began
    driver.calls.clean_up()
    for number in range(driver.settings.kills):
        before = driver.environment.cdi_names()
        claim = driver.claims.new(1)
        kill_during_prepare(driver, claim, took * (number + 0.5) / driver.settings.kills)
        with in_context(f"after kill {number + 1}"):
            driver.calls.prepared(claim)
            driver.calls.unprepared(claim)
        require_undone(driver, driver.environment.cdi_names() - before)
        driver.calls.clean_up()
    return f"{counted(driver.settings.kills, 'kill')} survived"


def kill_during_prepare(driver: DriverUnderTest, claim: Claim, seconds: float) -> None:
    """Kill the driver this many seconds after a prepare call starts, then start it.

    Raises Failure if the driver now exits at every start, although it came back after a kill while idle. Raises Skip if
    there is another reason why the driver did not come back.
    """
    instance, claim.was_sent = driver.registration.reachable, True
    exits = len(driver.process.exits)

    def call() -> None:
        with suppress(CallFailedError):  # the driver is killed during the call
            instance.prepare([claim.ref], driver.settings.call)

    caller = threading.Thread(target=call, name="conformance-prepare")
    caller.start()
    driver.process.pause(seconds)
    back = driver.registration.restart("killed at any moment")
    caller.join()
    if back.problem:
        reason = f"the driver did not come back: {back.problem}"
        at_rest = driver.registration.returns.get("killed")
        ends_now = len(driver.process.exits) > exits and not (at_rest and at_rest.problem)
        driver.renew()  # so that later checks find a working driver
        require(not ends_now, reason)
        raise Skip(reason)


@check(
    MUST,
    expected="an error, or a claim that the driver still knows after a restart",
    clause="A claim is prepared when the driver says so. (dra, api.proto) The answer must be the same after a restart "
    "of the driver, and a kubelet repeats only a call that failed. (kubeletplugin, DRAPlugin; kubelet, DRA manager)",
    found=("NVIDIA/k8s-dra-driver-gpu#840",),
)
def records_what_it_prepares(driver: DriverUnderTest) -> str:
    """A claim is prepared while the data directory is read-only. After a restart, another claim asks for its device."""
    does_not_apply_if(not driver.environment.owns_plugins, "--plugins-dir names a directory that is not the run's own")
    device = driver.claims.free_device(shared=False)
    other = driver.calls.ready(devices=[driver.claims.free_device(shared=False, other_than=device)])
    claim = driver.claims.new(devices=[device])
    before, is_prepared = driver.environment.cdi_names(), False
    with read_only(driver, driver.environment.plugins), suppress(Failure):
        driver.calls.prepared(claim)
        is_prepared = True
    if not is_prepared:  # the driver may remember the claim, and answer from its memory
        with in_context("once the data directory could be written again"):
            driver.calls.prepared(claim)
    names = driver.environment.cdi_names() - before
    back = driver.registration.restart("killed without its data directory")
    skip_if(back.problem, back.problem)
    refuses, _ = try_to_prepare(driver, driver.claims.on(*other.devices))
    is_refused, sentence = try_to_prepare(driver, driver.claims.on(device))
    require(
        is_refused or not refuses,
        f"when the driver could not write, it forgot that {device} is in use, unlike {other.devices[0]}: {sentence}",
    )
    driver.calls.unprepared(claim)
    require_undone(driver, names)
    return f"the claim was {'prepared' if is_prepared else 'refused'} at first, and still known after a restart"


@across(
    CORRUPTION,
    SHOULD,
    core=True,
    expected="the driver registers again, and the claim can be unprepared",
    clause=(
        "A power failure or a full disk leaves truncated files. A driver that no longer starts needs manual repair "
        "on each node, and pods with its claims cannot terminate. (NVIDIA/k8s-dra-driver-gpu#1100, #1259)"
    ),
    found=("NVIDIA/k8s-dra-driver-gpu#1100", "NVIDIA/k8s-dra-driver-gpu#1259"),
)
def survives_a_corrupt_checkpoint(driver: DriverUnderTest) -> Parts:
    """A claim is prepared, the driver is killed, its state files are cut in half, and the driver is restarted."""
    claim = driver.claims.new()
    driver.calls.ready_devices(claim)
    files = driver.environment.state_files()
    does_not_apply_if(not files, f"the driver keeps no files in {driver.environment.plugins}")
    yield
    back = driver.registration.returns["corrupted"]
    require(not back.problem, f"with {counted(len(files), 'file')} cut in half, {back.problem}")
    driver.calls.unprepared(claim)
    return f"the driver kept working with {counted(len(files), 'file')} cut in half"


@across(
    CORRUPTION,
    MUST,
    expected="the driver registers again, if it writes its files in place",
    clause="A process may be killed while it writes a file, which then ends anywhere. Only a file that is replaced by "
    "renaming another one is never half-written. (rename(2); NVIDIA/k8s-dra-driver-gpu#1100)",
    found=("NVIDIA/k8s-dra-driver-gpu#1100",),
)
def survives_a_half_written_file(driver: DriverUnderTest) -> Parts:
    """While claims are prepared, inotify reports writes in place. The files are cut in half, and the driver starts."""
    driver.calls.ready(1)  # so that the directories exist
    before = driver.environment.state_files()
    with ExitStack() as stack:
        with skipping(OSError):  # another user of this machine may have used up the inotify watches
            written = {path: stack.enter_context(written_in(path)) for path in sorted({one.parent for one in before})}
        driver.calls.ready(1)
    after = driver.environment.state_files()
    changed = {path: data for path, data in after.items() if data != before.get(path)}
    whole = [
        path
        for path, data in changed.items()
        if path.name not in written.get(path.parent, ())  # replaced by another file
        or b"\0" in data  # a database, which has its own way to deal with unfinished writes
        or data.startswith(before.get(path, b"\0"))  # a log
    ]
    does_not_apply_if(whole or not changed, "the driver does not write its files in place")
    yield
    back = driver.registration.returns["corrupted"]
    text = some([path.name for path in changed])
    require(not back.problem, f"the driver writes {text} in place; with its files cut in half, {back.problem}")
    return f"the driver writes {text} in place, and kept working with its files cut in half"


@across(
    CORRUPTION,
    SHOULD,
    expected="an error, or the first claim's CDI devices are gone",
    clause=(
        "A driver that starts without its previous state must not give one container's device to another container."
    ),
)
def gives_no_device_twice_after_a_corruption(driver: DriverUnderTest) -> Parts:
    """After state files were truncated, the driver is asked to prepare a device in use for another claim."""
    skip_if(not _refuses_devices_in_use(driver), "the driver does not refuse a device in use")
    device = driver.claims.free_device(shared=False)
    claim = driver.claims.new(devices=[device])
    names = own_cdi_names(driver, claim)
    if not names or not driver.environment.state_files():
        raise DoesNotApply("the driver keeps no files, or its CDI devices do not belong to claims")
    yield
    skip_if(driver.registration.returns["corrupted"].problem, "the driver did not start with damaged files")
    is_refused, sentence = try_to_prepare(driver, driver.claims.on(device))
    if is_refused:
        return sentence
    left = sorted(set(names) & driver.environment.cdi_names())
    require(not left, f"{device} was prepared for another claim, while the first claim still has {', '.join(left)}")
    return "the driver has released the device"


def _refuses_devices_in_use(driver: DriverUnderTest) -> bool:
    with driver.claims.owning([]):
        device = driver.claims.free_device(shared=False)
        _ = driver.calls.ready(devices=[device])
        try:
            driver.calls.prepared(driver.claims.on(device))
        except Failure:
            return True
        finally:
            driver.calls.clean_up()
    return False
