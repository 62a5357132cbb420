"""Runs the tests in several processes (`-n 6`), forked from one that has imported and collected all tests.

Law: each test runs once. The tests of a file run in one process, one after another. A test with the mark `apart` may
run in any of the processes, as if it were the only test in its file.

pytest-xdist starts new workers, each of which imports and collects all tests. This takes six seconds of CPU time for
each worker, or 24 if Python has not compiled the tests yet.
"""

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import groupby
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest

_FORKS = get_context("fork")
_NUMBER = 4  # bytes per number of a unit in the pipe


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `-n`, which has the same names as in pytest-xdist."""
    group = parser.getgroup("workers")
    group._addoption(  # noqa: SLF001 - the only way to a short option in lower case
        "-n", "--numprocesses", dest="workers", metavar="N", type=_count, help="run the tests in N processes, or auto"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark `apart`."""
    config.addinivalue_line(
        "markers", "apart: with `-n`, the test need not run in the same process as the rest of its file"
    )


def _unit(test: pytest.Item) -> object:
    """Return a key that is the same for all tests that must run in one process."""
    return test.nodeid if test.get_closest_marker("apart") else test.path


def _count(text: str) -> int:
    return len(os.sched_getaffinity(0)) if text == "auto" else int(text)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run all tests in worker processes or, if no workers are requested, leave the loop to pytest."""
    if not session.config.option.workers or session.config.option.collectonly or session.testsfailed:
        return None
    units = [list(tests) for _, tests in groupby(session.items, _unit)]
    queue, numbers = os.pipe()
    os.write(numbers, b"".join(number.to_bytes(_NUMBER) for number in range(len(units))))
    os.close(numbers)
    factory = session.config._tmp_path_factory  # type: ignore[attr-defined]  # noqa: SLF001 - each worker needs a directory in one that pytest removes
    directory = factory.getbasetemp()
    results: dict[Connection, Any] = {}
    try:
        for number in range(min(session.config.option.workers, len(units))):
            factory._basetemp = directory / f"worker{number}"  # noqa: SLF001 - as above
            factory.getbasetemp().mkdir()
            result, reports = _FORKS.Pipe(duplex=False)
            results[result] = _FORKS.Process(target=_work, args=(session, units, queue, reports))
            results[result].start()
            reports.close()
        _report(session, dict(results))
    finally:
        os.close(queue)
        for result, worker in results.items():
            if session.shouldfail or session.shouldstop:
                worker.terminate()
            result.close()
            worker.join()
    return True


def _report(session: pytest.Session, working: dict[Connection, Any]) -> None:
    """Pass the workers' reports on to pytest until the last worker has ended."""
    hook, running = session.config.hook, dict.fromkeys(working, "no test")
    while working:
        for result in wait(list(working)):
            assert isinstance(result, Connection)
            try:
                message = result.recv()
            except EOFError:
                pytest.exit(f"a worker died while running {running[result]}", returncode=pytest.ExitCode.INTERNAL_ERROR)
            if message is None:
                del working[result]
            elif isinstance(message, str):
                running[result] = message
            else:
                report = hook.pytest_report_from_serializable(config=session.config, data=message)
                hook.pytest_runtest_logreport(report=report)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)


class _Reports:
    """Sends pytest's reports to the process that prints them."""

    def __init__(self, config: pytest.Config, results: Connection) -> None:
        self._config = config
        self._results = results
        # Without these options, nothing reads the reports of successful setups and teardowns, which are two of the
        # three reports on each test.
        self._needs_all = config.option.durations is not None or config.option.xmlpath is not None

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._results.send(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed and not self._needs_all:
            return
        hook = self._config.hook
        self._results.send(hook.pytest_report_to_serializable(config=self._config, report=report))


class _Following:
    """Stands for the next test, which pytest needs to decide which fixtures to tear down.

    The next test is taken only when pytest asks for it, after the call of the current test. Otherwise, no other process
    could take a file while the process that runs it next is busy with a long test.
    """

    def __init__(self, tests: Iterator[pytest.Item]) -> None:
        self._tests = tests

    @cached_property
    def test(self) -> pytest.Item | None:
        return next(self._tests, None)

    def listchain(self) -> list[Any]:
        return self.test.listchain() if self.test else []


def _work(session: pytest.Session, units: Sequence[Sequence[pytest.Item]], queue: int, results: Connection) -> None:
    """Run one unit of tests after another until none are left."""
    plugins = session.config.pluginmanager
    for name in ("terminalreporter", "lfplugin", "nfplugin", "stepwiseplugin"):  # for the first process only
        plugins.unregister(name=name)
    plugins.register(_Reports(session.config, results))
    capture = plugins.getplugin("capturemanager")
    assert capture is not None
    capture.stop_global_capturing()  # the capture file of the first process
    capture.start_global_capturing()
    tests = _tests(units, queue)
    test = next(tests, None)
    while test is not None and not session.shouldfail:
        following = _Following(tests)
        test.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
        test = following.test
    coverage = plugins.getplugin("_cov")
    if coverage is not None and coverage.cov_controller is not None:
        coverage.cov_controller.cov.stop()
        coverage.cov_controller.cov.save()
    results.send(None)


def _tests(units: Sequence[Sequence[pytest.Item]], queue: int) -> Iterator[pytest.Item]:
    """Take one unit after another, until none are left, and yield its tests."""
    while number := os.read(queue, _NUMBER):
        yield from units[int.from_bytes(number)]
