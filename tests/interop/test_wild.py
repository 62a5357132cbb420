"""Plugins with the habits of those in the wild, put to the checks: what kubelets put up with is no failure."""

import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from attrs import evolve

from devicecore import conformance
from devicecore.conformance import CHECKS, Report, Settings, Verdict

PLUGIN = Path(__file__).with_name("wild_plugin.py")
QUICK = Settings(timeout=5, restarting=0.3, away=0.5, refusing=0.3, returning=30)

# The resource under test, and what fails; never a must-check.
HABITS = {
    "nvidia": (
        "nvidia.com/gpu.shared",
        {"allocates-all-devices", "mounts-the-same-again", "removes-its-socket"},
    ),
    "fatal": ("vendor.example/qat", {"mounts-the-same-again", "stays-up", "removes-its-socket"}),
    "several": ("vendor.example/kind-1", {"mounts-the-same-again", "removes-its-socket"}),
    "empty": ("vendor.example/none", {"removes-its-socket"}),
    "alpha": ("", {"serves-before-it-registers", "stays-up"}),
}


@pytest.fixture(scope="module")
def reports(stubs: Path) -> Iterator[Mapping[str, Report]]:
    """What came of each; they are waiting most of the time, so they do it together."""

    def run(habit: str) -> Report:
        settings = evolve(QUICK, resource=HABITS[habit][0])
        # One of them waits for a new kubelet.sock and for nothing else, and would be waited for in vain.
        checks = [check for check in CHECKS if habit != "nvidia" or check.name != "returns-after-its-stream-is-cut"]
        return conformance.run([sys.executable, PLUGIN, habit, "{dir}"], settings=settings, checks=checks)

    with pytest.MonkeyPatch.context() as patched, ThreadPoolExecutor(len(HABITS)) as pool:
        patched.setenv("PYTHONPATH", str(stubs))
        yield dict(zip(HABITS, pool.map(run, HABITS), strict=True))


@pytest.mark.parametrize("habit", HABITS)
def test_a_habit_fails_only_what_it_should(habit: str, reports: Mapping[str, Report]) -> None:
    report = reports[habit]
    came = {result.check.name: result.came for result in report.results if result.failed}
    assert came.keys() == HABITS[habit][1], came
    assert report.passed == (habit != "alpha"), came


def test_of_several_resources_the_others_are_named(reports: Mapping[str, Report]) -> None:
    assert reports["several"].others == ("vendor.example/kind-0", "vendor.example/kind-2")


def test_devices_of_several_containers_are_no_fault(reports: Mapping[str, Report]) -> None:
    assert reports["nvidia"].result("gives-each-device-its-own-nodes").came == "none has: 4 devices share 2 nodes"


def test_who_exits_with_its_kubelet_is_started_again(reports: Mapping[str, Report]) -> None:
    came = reports["fatal"].result("returns-after-its-stream-is-cut").came
    assert "exited early with status 2, last output: panic: the kubelet has gone" in came


def test_who_has_nothing_is_asked_for_nothing(reports: Mapping[str, Report]) -> None:
    report = reports["empty"]
    assert (report.devices, report.result("allocates-each-device").verdict) == (0, Verdict.SKIPPED)


def test_who_speaks_another_version_is_told_so(reports: Mapping[str, Report]) -> None:
    came = reports["alpha"].result("serves-before-it-registers").came
    assert "but /deviceplugin.Registration/Register was called, which is no method of this API" in came
    assert "last output: cannot register: StatusCode.UNIMPLEMENTED" in came
