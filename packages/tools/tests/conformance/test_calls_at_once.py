"""Calls that must overlap do so, no matter how long it takes to make the last call."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from devicecore_tools.conformance.dra import DriverUnderTest, Environment
from devicecore_tools.conformance.faults import DRIVER
from devicecore_tools.conformance.model import Undecided
from devicecore_tools.conformance.processes import orphans_come_here, stopped, with_variable
from tests.conformance.harness import QUICK

LATER = 0.3  # seconds until the second call


@pytest.fixture
def driver() -> Iterator[DriverUnderTest]:
    """The good driver, running and with its devices published."""
    with orphans_come_here(), Environment(QUICK) as environment:
        driver = DriverUnderTest(environment, [sys.executable, str(DRIVER)], QUICK)
        driver.kubelet.start()
        driver.process.start()
        try:
            yield driver
        finally:
            driver.process.stop()


def test_a_driver_answers_no_call_before_the_last_one_is_made(driver: DriverUnderTest) -> None:
    first, second = driver.calls.ready(1), driver.calls.ready(1)

    def at_once() -> float:
        driver.calls.unprepared(first)
        return time.monotonic()

    def later() -> float:
        time.sleep(LATER)
        began = time.monotonic()
        driver.calls.unprepared(second)
        return began

    ended, began = driver.calls.at_once([at_once, later])
    assert isinstance(ended, float)
    assert isinstance(began, float)
    assert ended > began


def test_calls_that_do_not_overlap_decide_nothing(driver: DriverUnderTest) -> None:
    with pytest.raises(Undecided, match="the 2 calls did not overlap"):
        driver.calls.at_once([lambda: None, lambda: None])  # each of these calls ends at once


def test_no_thread_of_a_frozen_driver_runs(driver: DriverUnderTest) -> None:
    driver.calls.ready(1)
    marker, allowed = driver.environment.marker, os.sched_getaffinity(0)
    threads = [path for pid in with_variable(marker) for path in Path(f"/proc/{pid}/task").iterdir()]
    for thread in (0, *(int(path.name) for path in threads)):  # on one CPU, no thread of the driver stops at once
        os.sched_setaffinity(thread, {min(allowed)})
    states: set[str] = set()
    try:
        for _ in range(20):
            with stopped(marker):
                states |= {(path / "stat").read_text("utf-8").rpartition(")")[2].split()[0] for path in threads}
    finally:
        os.sched_setaffinity(0, allowed)
    assert states == {"T"}
