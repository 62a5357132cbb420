"""Configuration for all tests: our own fixtures, the guides' examples as tests, and the Hypothesis profiles.

The Python blocks of README.md and docs/ run as tests; the blocks of one document share one namespace. The profile
`test` runs the same few examples everywhere, `quick` runs fewer (`make quick`), and `thorough` finds new ones (`make
laws`).
"""

import gc
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Generator, Iterator
from importlib import import_module
from itertools import zip_longest
from pathlib import Path

import pytest
from devicecore_tools.testing.temporary import short_root
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

from tests.guides import forbid_private_modules

# All `tests` folders are parts of this namespace package. If pytest imported it first, it would find only one of them.
import_module("tests")

pytest_plugins = ["devicecore_tools.testing.pytest_plugin", "tests.workers"]

pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser()],
    patterns=["README.md", "docs/*.md", "docs/**/*.md"],  # before Python 3.13, ** matches exactly one folder
    setup=forbid_private_modules,
).pytest()

# No deadlines: under coverage and alongside other workers, the duration of one example is meaningless.
settings.register_profile("test", deadline=None, derandomize=True, print_blob=True, max_examples=10)
settings.register_profile("quick", settings.get_profile("test"), max_examples=5)
settings.register_profile("thorough", deadline=None, print_blob=True, max_examples=1000)
settings.load_profile("test")

# Hypothesis also draws constants from the loaded modules, so a test's examples would depend on which tests the same
# worker ran before. `make laws` keeps them.
_constants_of_modules, _NO_CONSTANTS = providers._get_local_constants, Constants()  # noqa: SLF001 - there is no setting for it
providers._get_local_constants = lambda: (  # noqa: SLF001 - as above
    _constants_of_modules() if settings.get_current_profile_name() == "thorough" else _NO_CONSTANTS
)

# Otherwise, gRPC logs each connection that a stopped server closes, in the middle of pytest's dots.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

# Background jobs of a shell ignore SIGINT, and so would all processes that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


# A unix socket's path has at most 107 bytes, and many tests have sockets in temporary directories.
if root := short_root():
    os.environ["TMPDIR"] = tempfile.tempdir = root

_RUNS_SLOW = bool(os.environ.get("SLOW"))

_WAITING = {"command", "conformance", "e2e", "interop", "kit", "reliability"}
"""The folders whose tests start processes: a file with few of these tests takes longer than one with many."""

_LONGEST = (
    "test_good_driver.py",
    "test_conformance_restarts.py",
    "test_hostile.py",
    "test_wild.py",
    "test_conformance.py",
    "test_dra_kubelet.py",
    "test_kube_api.py",
    "test_kubelet.py",
    "test_conformance_health.py",
    "test_slices.py",
    "test_crash.py",
    "test_prepare.py",
    "test_conformance_attacks.py",
    "test_hostile_manifests.py",
    "test_cluster_pods.py",
    "test_foreign_objects.py",
    "test_written_files.py",
    "test_distribution.py",
    "test_examples.py",
    "test_workers.py",
)
"""The files that take longest although they have many tests, and those in other folders that start processes."""


def _turn(tests: list[pytest.Item]) -> tuple[int, int]:
    """Return the key by which the files that wait are sorted: the longest first."""
    name = tests[0].path.name
    return (_LONGEST.index(name) if name in _LONGEST else len(_LONGEST), len(tests))


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker `slow`, and the marker of pytest-cov even if pytest-cov is not loaded."""
    config.addinivalue_line("markers", "slow: `make slow` runs this test, `make test` does not")
    config.addinivalue_line("markers", "no_cover: measure no coverage")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude the thousands of tests from garbage collection, because each collection would visit all of them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the slow tests unless SLOW is set, and mix the files that wait for processes with the others.

    The workers take one file after another, and the last files should be short.
    """
    for item in items:
        if not _RUNS_SLOW and item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="`make slow` runs this test"))
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    waits = {path: path.parent.name in _WAITING or path.name in _LONGEST for path in files}
    waiting = [tests for path, tests in files.items() if waits[path]]
    computing = [tests for path, tests in files.items() if not waits[path]]
    waiting.sort(key=_turn)
    turns = zip_longest(waiting, sorted(computing, key=len, reverse=True), fillvalue=())
    items[:] = [item for turn in turns for tests in turn for item in tests]


@pytest.fixture(scope="session", autouse=True)
def _no_saver_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After the last test, no manager has a thread. One that was never stopped is collected, and its thread ends."""
    yield
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.funcargs:
            item.funcargs.clear()  # pytest keeps the fixtures of the last test until everything is torn down
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "devicecore-saver" and not request.session.testsfailed:  # a failed test keeps its objects
            thread.join(60)
            if thread.is_alive():
                pytest.fail("a test keeps a manager that it has not stopped, such as one in a global")


@pytest.fixture
def directory() -> Iterator[Path]:
    """Return a new directory whose path is short enough for sockets, which those of pytest are not."""
    path = Path(tempfile.mkdtemp(prefix="dc", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)
