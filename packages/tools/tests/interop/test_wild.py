"""The checks on plugins that behave like well-known ones: no check fails because of behavior that kubelets accept."""

import os
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from attrs import evolve
from devicecore_tools.conformance import Report, Verdict
from devicecore_tools.conformance.device_plugin import CHECKS, Settings, run

PLUGIN = Path(__file__).with_name("wild_plugin.py")
QUICK = Settings(timeout=30, restarting=0.3, away=2, refusing=0.3, returning=60, noticing=60, grace=60)

# By habit: the resource under test, and the checks that fail. If the plugin passes, none of these is a "must" check.
HABITS = {
    "nvidia": ("nvidia.com/gpu.shared", {"allocates-all-devices", "mounts-the-same-again", "removes-its-socket"}),
    "fatal": ("vendor.example/qat", {"mounts-the-same-again", "removes-its-socket"}),
    "several": ("vendor.example/kind-1", {"mounts-the-same-again", "removes-its-socket"}),
    "empty": ("vendor.example/none", {"removes-its-socket"}),
    "alpha": ("", {"serves-before-it-registers"}),
}
COMMON = ["nvidia"]


@pytest.fixture(scope="module")
def reports(stubs: Path) -> Iterator[Mapping[str, Report]]:
    """The report on each habit. The runs spend most of their time waiting, so they are started concurrently."""
    habits = [*HABITS] if os.environ.get("SLOW") else COMMON

    def run_habit(habit: str) -> Report:
        settings = evolve(QUICK, resource=HABITS[habit][0], timeout=5 if habit == "empty" else QUICK.timeout)
        return run([sys.executable, PLUGIN, habit, "{dir}"], settings=settings, checks=CHECKS)

    with pytest.MonkeyPatch.context() as patched, ThreadPoolExecutor(len(habits)) as pool:
        patched.setenv("PYTHONPATH", str(stubs))
        yield dict(zip(habits, pool.map(run_habit, habits), strict=True))


@pytest.mark.parametrize(
    "habit", [habit if habit in COMMON else pytest.param(habit, marks=pytest.mark.slow) for habit in HABITS]
)
def test_a_real_plugins_behavior_fails_only_the_checks_it_should(habit: str, reports: Mapping[str, Report]) -> None:
    report = reports[habit]
    actual = {result.name: result.actual for result in report.results if result.failed}
    assert actual.keys() == HABITS[habit][1], actual
    # "empty" does not pass, because it has no devices that could be allocated.
    assert report.passed == (habit not in {"alpha", "empty"}), actual


@pytest.mark.slow
def test_the_other_resources_of_a_plugin_are_named(reports: Mapping[str, Report]) -> None:
    assert reports["several"].facts["others"] == ["vendor.example/kind-0", "vendor.example/kind-2"]


def test_devices_of_several_containers_are_no_fault(reports: Mapping[str, Report]) -> None:
    assert (
        reports["nvidia"].result("gives-each-device-its-own-nodes").actual
        == "no device has its own node: 4 devices share 2 nodes"
    )


@pytest.mark.slow
def test_a_plugin_that_exits_with_its_kubelet_is_started_again(reports: Mapping[str, Report]) -> None:
    ends = [one.how for one in reports["fatal"].exits]
    assert any("exited early with status 2: panic: the kubelet has gone" in how for how in ends)
    assert "after a kubelet restart" in reports["fatal"].result("stays-up").actual


@pytest.mark.slow
def test_a_plugin_without_devices_gets_no_allocate(reports: Mapping[str, Report]) -> None:
    report = reports["empty"]
    assert (report.facts["devices"], report.result("allocates-each-device").verdict) == (0, Verdict.UNDECIDED)


@pytest.mark.slow
def test_a_call_to_a_different_api_is_named(reports: Mapping[str, Report]) -> None:
    actual = reports["alpha"].result("serves-before-it-registers").actual
    assert "but /deviceplugin.Registration/Register was called, which is not a method of this API" in actual
    assert "cannot register: StatusCode.UNIMPLEMENTED" in actual
