"""A running object can be neither started nor stopped in a fork, and keeps running in the parent.

Law: each class that starts threads or processes, or opens sockets or connections, is in a table here or inherits from
`HasLifecycle` the methods `start` and `stop`, which raise an error in a fork. Any other class fails the test, whether
it is public or not.
"""

import importlib
import inspect
import pkgutil
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import devicecore_fleet
import devicecore_numa
import devicecore_tools
import pytest
from devicecore_tools.testing.dra_kubelet import DraKubelet, MemoryDraKubelet
from devicecore_tools.testing.kubelet import Kubelet, MemoryKubelet

import devicecore
from devicecore.domain.errors import ForkedError
from devicecore.ports.context import Runs
from devicecore.runtime.lifecycle import HasLifecycle
from devicecore.testing.contracts.lifecycle import LifecycleHarness, MakeLifecycle
from tests.adapters.test_forks import in_os_fork
from tests.contract.test_lifecycle import CLIENTS, RUNNING, Harness, kubeconfig

__all__ = ["kubeconfig"]  # a fixture

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")

LIMIT = 30  # seconds that a fork may take
HANGS = -signal.SIGALRM


def kubelets(kind: Callable[[], Runs]) -> MakeLifecycle:
    """Return a function that makes harnesses for kubelets of this kind."""

    @contextmanager
    def made() -> Iterator[LifecycleHarness]:
        yield Harness(kind, [])

    return made


MAKERS: dict[str, MakeLifecycle] = {
    **RUNNING,
    "kubelet": kubelets(Kubelet),
    "kubelet in memory": kubelets(MemoryKubelet),
    "DRA kubelet": kubelets(DraKubelet),
    "DRA kubelet in memory": kubelets(MemoryDraKubelet),
}


def in_fork(action: Callable[[], object]) -> int:
    """Call `action` in a fork, and return 0, or 1 if it raises an error, or `HANGS` if it does not end."""

    def limited() -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(LIMIT)
        action()

    return in_os_fork(limited)


def refused(subject: Runs) -> None:
    """Check that an object that another process has started refuses to start and to stop."""
    for call in (subject.stop, subject.start, subject.stop):
        with pytest.raises(ForkedError):
            call()


def check(make: Callable[[], AbstractContextManager[LifecycleHarness]]) -> None:
    """Start an object, check that a fork can neither start nor stop the object, and then use it in this process."""
    with make() as harness:
        subject = harness.new()
        try:
            subject.start()
            assert in_fork(lambda: refused(subject)) == 0
            harness.use(subject)
        finally:
            subject.stop()
            with suppress(AttributeError):
                subject.close()  # type: ignore[attr-defined]  # kubelets for tests have files


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_what_runs_is_refused_in_a_fork(make: MakeLifecycle) -> None:
    check(make)


@pytest.mark.parametrize(("new", "use", "module"), CLIENTS.values(), ids=CLIENTS)
def test_what_talks_to_an_api_server_is_refused_in_a_fork(
    new: Callable[[Path], Runs],
    use: Callable[..., object],
    module: object,  # noqa: ARG001 - of the contract
    kubeconfig: Path,
) -> None:
    @contextmanager
    def made() -> Iterator[LifecycleHarness]:
        yield Harness(lambda: new(kubeconfig), [], use)

    check(made)


def classes_that_run() -> set[type]:
    """Return the concrete classes, from all our distributions, whose instances can be started."""
    for package in (devicecore, devicecore_tools, devicecore_fleet, devicecore_numa):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__") and ".faults" not in module.name:
                importlib.import_module(module.name)
    found, left = set[type](), list[type]([Runs])
    while left:
        kind = left.pop()
        left += kind.__subclasses__()
        if not inspect.isabstract(kind) and kind.__module__.startswith("devicecore"):
            found.add(kind)
    return found


def test_each_class_that_runs_is_in_the_table_or_refuses_by_its_base(kubeconfig: Path) -> None:
    known: set[type] = {type(new(kubeconfig)) for new, _, _ in CLIENTS.values()}
    for make in MAKERS.values():
        with make() as harness:
            known.add(type(harness.new()))
    left = {
        f"{one.__module__}.{one.__qualname__}"
        for one in classes_that_run() - known
        if not (issubclass(one, HasLifecycle) and (one.start, one.stop) == (HasLifecycle.start, HasLifecycle.stop))
    }
    assert not left
