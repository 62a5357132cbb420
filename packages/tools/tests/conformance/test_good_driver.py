"""A good driver passes the checks, with our stubs and with generated ones. Each check has a driver that fails it."""

import shlex
import sys
from pathlib import Path

import pytest
from attrs import evolve
from devicecore_tools.conformance import Check, Verdict
from devicecore_tools.conformance.dra import CHECKS, CORE, DriverUnderTest, run
from devicecore_tools.conformance.dra.environment import DEVICE_CLASS
from devicecore_tools.conformance.dra.run import RENEWED
from devicecore_tools.conformance.faults import DRIVER, GROUPS
from devicecore_tools.conformance.faults.drivers import habits
from devicecore_tools.conformance.faults.drivers.changes import HotPlugs, TaintsUnpluggedDevices
from devicecore_tools.conformance.faults.drivers.slices import PublishesOnce
from devicecore_tools.conformance.reports import summary
from tests.conformance.harness import BY_NAME, QUICK, TRIES_ALL_FAULTS, Fault, assert_all_pass, faults_of, run_on

OTHERS = {
    "survives-being-asked-for-health",
    "mounts-what-it-has-made",
    "names-absolute-paths-in-cdi-files",
    "describes-its-devices-in-metadata",
    "mounts-metadata-read-only",
    "sets-the-binding-conditions-of-its-devices",
    "sets-the-binding-conditions-before-it-prepares",
    "reports-the-status-of-each-device",
    "survives-a-half-written-file",
    "refuses-a-device-that-is-partly-in-use",
    "applies-parameters-to-the-requests-they-name",
    "prefers-the-parameters-of-a-claim",
    *(check.name for check in CHECKS if check.group == "changes"),
    *(check.name for check in CHECKS if check.group == "rolling update" and check.name != "survives-a-second-start"),
}
"""Checks that do not apply to the good driver, such as those for drivers with mounts; other tests cover these."""

HABITS: list[tuple[Fault, set[str]]] = [
    (
        habits.WorksThroughTheRuntime,
        {
            "answers-with-all-allocated-devices",
            "answers-valid-cdi-names",
            "keeps-the-cdi-devices-of-other-claims",
            "separates-a-claim-from-its-namesake",
        },
    ),
    (habits.SharesCapacity, {"separates-a-claim-from-its-namesake"}),
    (
        habits.HasOneDevice,
        {
            "keeps-the-cdi-devices-of-other-claims",
            "separates-shares-of-a-device",
            "separates-a-claim-from-its-namesake",
        },
    ),
]
"""Drivers that behave like real drivers, each with the checks that do not apply to it."""
AROUND_HABITS = {
    "prepares-a-claim",
    "unprepares-a-claim",
    "answers-with-all-allocated-devices",
    "keeps-the-cdi-devices-of-other-claims",
    "separates-shares-of-a-device",
    "answers-valid-cdi-names",
    "ignores-devices-of-other-drivers",
    "frees-the-device",
    "numbers-numa-nodes-from-zero",
    "spells-standard-attributes-as-others-do",
    "refuses-a-replaced-claim",
    "separates-a-claim-from-its-namesake",
    "refuses-senseless-names",
    "separates-good-claims-from-bad-ones",
    "survives-an-unknown-configuration",
}


@pytest.mark.apart  # takes as long as half of the other tests together
def test_a_good_driver_passes_every_check() -> None:
    report = run_on(None, list(CHECKS), None, QUICK)
    assert_all_pass(report, *OTHERS)
    assert {result.name for result in report.results if not result.applies} == OTHERS
    assert f"0 not decided, {len(OTHERS)} not applicable" in summary(report)


def test_a_good_driver_with_generated_stubs_passes_the_default_run(stubs: Path) -> None:
    """In `make faults`, this test runs all checks of the default run; otherwise, it runs only some of them."""
    checks = [check for check in CORE if TRIES_ALL_FAULTS or check.name in AROUND_HABITS]
    assert_all_pass(run_on(None, checks, stubs, QUICK), *(OTHERS & {check.name for check in checks}))


@pytest.mark.parametrize(("habit", "skipped"), HABITS, ids=[habit.__name__ for habit, _ in HABITS])
def test_the_behavior_of_real_drivers_is_not_a_fault(habit: Fault, skipped: set[str]) -> None:
    report = run_on(habit, [check for check in CHECKS if check.name in AROUND_HABITS], None, QUICK)
    assert_all_pass(report, *skipped)
    assert not report.exits


def test_a_claim_that_stays_prepared_does_not_make_other_checks_undecided() -> None:
    names = "keeps-a-claim-beside-many-others", "separates-shares-of-a-device"
    report = run_on(habits.HasNoSharedDevice, checks_of(*names), None, QUICK)
    assert_all_pass(report, names[1])
    assert not report.undecided


def test_only_must_checks_run_on_a_driver_with_slow_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devicecore_tools.conformance.dra.calls.SLOW_CLAIM", 0.2)
    names = "prepares-a-claim", "frees-the-device", "refuses-a-device-in-use", "prints-little"
    report = run_on(habits.PreparesSlowly, checks_of(*names), None, QUICK)
    assert [result.name for result in report.undecided] == ["refuses-a-device-in-use"]
    assert "only 'must' checks use claims; --budget" in report.notes[0]
    assert report.passed


@pytest.mark.slow
def test_a_slow_driver_has_time_for_several_claims_even_after_a_call_without_an_answer() -> None:
    names = "prepares-a-claim-with-a-long-name", "prepares-claims-at-the-same-time"
    report = run_on(habits.PreparesOneByOne, checks_of(*names), None, evolve(QUICK, call=4.0, call_again=0.5))
    assert [one.name for one in report.failures] == [names[0]]
    assert not report.undecided


def test_a_slow_driver_may_finish_a_canceled_call_before_the_next_one() -> None:
    assert_all_pass(run_on(habits.PreparesOneByOne, checks_of("late-prepare-leaves-nothing"), None, QUICK))


@pytest.mark.slow
def test_device_metadata_is_not_a_fault() -> None:
    checks = [check for check in CHECKS if check.group == "cdi" or check.name == "prepare-is-idempotent"]
    report = run_on(habits.WritesMetadata, checks, None, QUICK)
    parameters = "applies-parameters-to-the-requests-they-name", "prefers-the-parameters-of-a-claim"
    assert_all_pass(report, "keeps-a-claim-beside-many-others", *parameters)


def test_a_directory_name_too_long_for_kubeletplugin_is_not_the_drivers_fault() -> None:
    name = "prepares-a-claim-with-a-long-name"
    report = run_on(habits.NamesMetadataByClaims, checks_of(name, "frees-the-device"), None, QUICK)
    assert_all_pass(report)
    assert (
        "the claim was prepared with a name of 247 characters; with a longer name, kubeletplugin"
        in report.result(name).actual
    )
    assert RENEWED not in report.result(name).actual


def test_kubeletplugin_may_remove_the_metadata_of_a_claim_with_another_claim_of_the_same_name() -> None:
    names = "unprepares-by-uid", "keeps-prepared-claims-as-they-are"
    assert_all_pass(run_on(habits.NamesMetadataByClaims, checks_of(*names), None, QUICK))


def test_permanent_cdi_devices_are_not_a_fault() -> None:
    checks = [check for check in CHECKS if check.name in {"frees-devices-after-a-kill", "frees-devices-after-a-reboot"}]
    assert_all_pass(run_on(habits.DescribesDevicesOnce, checks, None, QUICK))


def checks_of(*names: str) -> list[Check[DriverUnderTest]]:
    return [BY_NAME[name] for name in names]


def test_damaged_files_are_put_back_before_the_next_check() -> None:
    names = "survives-a-corrupt-checkpoint", "survives-a-kill-at-any-moment"
    assert_all_pass(run_on(habits.KeepsADamagedFile, checks_of(*names), None, QUICK))


def test_a_driver_may_refuse_all_claims_while_its_state_is_damaged() -> None:
    names = "survives-a-corrupt-checkpoint", "gives-no-device-twice-after-a-corruption"
    report = run_on(
        habits.RefusesAllWithADamagedFile, checks_of(*names, "releases-the-devices-of-each-claim"), None, QUICK
    )
    assert_all_pass(report)
    assert "so it is unknown" in report.result(names[1]).actual


def test_a_driver_with_two_devices_is_judged_after_its_state_was_damaged() -> None:
    """The state was damaged a second time before it was restored, so no later check found a free device."""
    half = "survives-a-half-written-file"
    names = "survives-a-corrupt-checkpoint", half, "keeps-cdi-devices-after-a-corruption", "frees-the-device"
    assert_all_pass(run_on(habits.HasTwoDevices, checks_of(*names), None, QUICK), half)


def test_a_driver_may_publish_only_once_it_is_registered() -> None:
    assert_all_pass(run_on(habits.PublishesOnceRegistered, checks_of("keeps-nodes-apart"), None, QUICK))


def test_a_driver_may_publish_its_devices_late_after_each_start() -> None:
    names = "completes-its-pools", "replaces-stale-sockets", "restores-cdi-devices-after-a-reboot"
    checks = checks_of(*names, "writes-no-slices-without-a-change")
    assert_all_pass(run_on(habits.PublishesLate, checks, None, QUICK))


def test_a_driver_may_taint_its_devices_until_it_is_ready() -> None:
    names = "publishes-devices-for-claims", "evicts-no-pods-at-a-restart", "prepares-the-same-after-a-restart"
    assert_all_pass(run_on(habits.WarmsUp, checks_of(*names, "keeps-nodes-apart"), None, QUICK))


def test_a_correct_drivers_device_may_appear_and_disappear() -> None:
    changes = [check for check in CHECKS if check.group == "changes"]
    report = run_on(HotPlugs, changes, None, QUICK)
    assert_all_pass(report)
    assert_all_pass(run_on(TaintsUnpluggedDevices, changes, None, QUICK), "refuses-a-device-that-has-gone")
    assert "1 device gone, 0 new" in report.result("publishes-a-change-of-devices").actual


def test_a_wrong_command_for_changing_devices_is_not_the_drivers_fault() -> None:
    settings = evolve(QUICK, provoke_devices="exit 3")
    report = run_on(None, checks_of("publishes-a-change-of-devices"), None, settings)
    assert not report.failures
    assert report.wrong_usage
    assert "`exit 3` exited with status 3" in summary(report)


def test_a_driver_may_publish_other_names_after_each_start() -> None:
    again, others = (
        "prepares-the-same-after-a-restart",
        ("prepares-a-claim", "frees-the-device", "prepare-is-idempotent", "keeps-prepared-claims-as-they-are"),
    )
    report = run_on(habits.RenamesItsDevices, checks_of(again, *others), None, QUICK)
    assert_all_pass(report, again)
    assert "the driver no longer publishes" in report.result(again).actual
    assert not report.passed


def test_a_driver_may_know_no_administrators() -> None:
    admin = "allows-admin-access-to-a-device-in-use"
    report = run_on(habits.KnowsNoAdministrators, checks_of(admin, "prepares-a-claim"), None, QUICK)
    assert_all_pass(report, admin)
    assert not report.result(admin).applies


def test_a_driver_that_restarts_itself_is_not_blamed_for_what_the_restart_ends() -> None:
    stream, kubelet = "keeps-the-health-stream-open", "registers-with-a-restarted-kubelet"
    report = run_on(habits.RestartsItself, checks_of(stream, kubelet), None, QUICK)
    assert_all_pass(report, stream)
    assert [one.during for one in report.exits] == [stream, kubelet]


@pytest.mark.slow
def test_a_fluctuating_number_of_open_files_is_not_a_leak() -> None:
    assert_all_pass(run_on(habits.SwingsInOpenFiles, checks_of("closes-its-files"), None, QUICK))


@pytest.mark.slow
def test_a_drivers_data_directory_exists_at_each_start() -> None:
    words = ["sh", "-c", f"test -d {{plugins}}/my/state && exec {shlex.join([sys.executable, str(DRIVER)])}"]
    checks = [BY_NAME["answers-get-info"], BY_NAME["prepares-the-same-after-a-restart"]]
    assert_all_pass(run(words, settings=evolve(QUICK, data="my/state"), checks=checks))


def test_a_claim_of_the_user_for_all_devices_is_that_of_each_check() -> None:
    exactly = {"deviceClassName": DEVICE_CLASS, "allocationMode": "All"}
    claim = {"kind": "ResourceClaim", "spec": {"devices": {"requests": [{"name": "all", "exactly": exactly}]}}}
    names = "prepares-a-claim", "prepare-is-idempotent", "prepares-each-device", "frees-the-device"
    assert_all_pass(run_on(habits.NeedsAllItsDevices, checks_of(*names), None, evolve(QUICK, objects=[claim])))


def test_a_driver_that_refuses_claims_for_one_device_is_reported() -> None:
    report = run_on(habits.NeedsAllItsDevices, checks_of("prepares-a-claim", "frees-the-device"), None, QUICK)
    assert report.result("prepares-a-claim").failed
    assert "no claims for one device: " in report.result("frees-the-device").actual


def test_a_device_that_stays_in_use_hides_no_other_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devicecore_tools.conformance.dra.calls._QUICK", 60.0)  # whatever a busy machine needs
    names = "prepares-a-claim-with-a-long-name", "prepares-with-a-slow-api-server", "frees-the-device"
    report = run_on(habits.LosesItsOnlyDevice, checks_of(*names), None, QUICK)
    assert_all_pass(report)
    assert RENEWED in report.result("prepares-a-claim-with-a-long-name").actual


def test_a_claim_that_was_unprepared_too_late_is_unprepared_before_the_next_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("devicecore_tools.conformance.dra.calls._CLEAN_UP", 0.2)
    monkeypatch.setattr("devicecore_tools.conformance.dra.calls._CLEAN_UP_AGAIN", 0.2)
    names = "prepares-a-claim", "prepare-is-idempotent", "frees-the-device"
    report = run_on(habits.UnpreparesLate, checks_of(*names), None, QUICK)
    assert_all_pass(report)
    assert not any(RENEWED in result.actual for result in report.results)


def test_a_driver_that_never_unprepares_is_not_blamed_for_devices_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devicecore_tools.conformance.dra.calls._CLEAN_UP", 0.2)
    names = "prepares-a-claim", "prepare-is-idempotent", "unprepares-a-claim"
    report = run_on(habits.NeverUnprepares, checks_of(*names), None, evolve(QUICK, call=2.0))
    assert [one.name for one in report.failures] == ["unprepares-a-claim"]
    assert not report.undecided


def test_a_panic_is_blamed_on_its_check_although_the_driver_is_started_again() -> None:
    names = "survives-a-refused-registration", "answers-get-info-again"
    report = run_on(habits.PanicsWhenItIsRefused, checks_of(*names), None, QUICK)
    assert [one.name for one in report.failures] == ["survives-a-refused-registration"]
    assert "exited early with status 2: panic: assignment to entry in nil map" in report.failures[0].actual
    assert [(one.during, one.output) for one in report.exits] == [("survives-a-refused-registration", habits.PANIC)]


def test_a_panic_before_an_event_is_blamed_on_the_check_that_caused_it() -> None:
    names = "replaces-stale-sockets", "prepares-the-same-after-a-restart"
    report = run_on(habits.PanicsOverTwoDevices, checks_of(*names), None, QUICK)
    assert [one.name for one in report.failures] == ["prepares-the-same-after-a-restart"]
    assert "exited early with status 2: panic: assignment to entry in nil map" in report.failures[0].actual
    assert {one.during for one in report.exits} == {"prepares-the-same-after-a-restart"}


def test_fresh_directories_keep_another_vendors_file() -> None:
    names = "leaves-cdi-files-of-others-alone", "unprepares-after-a-restart"
    report = run_on(habits.PanicsOverTwoDevices, checks_of(*names), None, QUICK)
    assert report.result(names[0]).verdict is Verdict.PASSED


def test_a_check_that_does_not_apply_needs_no_time() -> None:
    names = "shares-its-claims-between-instances", "prepares-a-claim"
    report = run_on(None, checks_of(*names), None, evolve(QUICK, budget=8.0, elapsed=8.0))
    (result,) = report.undecided
    assert result.name == "prepares-a-claim"
    assert result.actual.startswith("the run's 8 seconds are over")


def test_slices_that_were_already_gone_are_not_reported_as_deleted() -> None:
    names = "publishes-again-after-a-wipe", "keeps-its-slices-at-sigterm"
    report = run_on(PublishesOnce, checks_of(*names), None, evolve(QUICK, republishing=5.0, race=0.0))
    assert "there were no slices before the driver exited" in report.result("keeps-its-slices-at-sigterm").actual


def test_every_check_has_a_fault_that_it_finds() -> None:
    found = {name for group in GROUPS for fault in faults_of(group) for name in fault.fails}
    assert found == {check.name for check in CHECKS}


def test_every_check_says_what_it_does_and_why() -> None:
    for check in CHECKS:
        assert check.done.endswith("."), check.name
        assert check.done.count("\n") == 0, check.name
        assert check.expected, check.name
        assert check.clause.endswith((".", ")")), check.name
        assert check.group, check.name


def test_what_a_fault_breaks_too_is_a_check_and_has_a_reason() -> None:
    names = {check.name for check in CHECKS}
    for group in GROUPS:
        for fault in faults_of(group):
            assert set(fault.breaks_too) <= names - set(fault.fails), fault
            assert all(reason.endswith(".") for reason in fault.breaks_too.values()), fault


def test_the_names_of_the_checks_are_unique() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
