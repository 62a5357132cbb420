"""Every pod source meets the contract, and broken ones are caught."""

import json
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path

import pytest
from attrs import define, field

from devicecore.adapters.manifests import ManifestPods
from devicecore.adapters.memory import MemoryPods
from devicecore.domain.model import ContainerKey, Pod, PodUid
from devicecore.testing.contracts import POD_SOURCE, MakePods, PodsHarness
from devicecore.testing.contracts import pods as contract

Check = Callable[[MakePods], None]


@define
class InMemory:
    """A pod source in memory, to which pods are delivered directly."""

    source: MemoryPods

    def deliver(self, pods: Sequence[Pod]) -> None:
        self.source.active = {pod.uid for pod in pods}
        self.source.ready = True


def keys(pods: Collection[Pod]) -> set[ContainerKey]:
    return {pod.key(container) for pod in pods for container in pod.containers}


def in_memory(running: Collection[Pod], kind: type[MemoryPods] = MemoryPods) -> AbstractContextManager[PodsHarness]:
    return nullcontext(InMemory(kind(ready=False, running=keys(running))))


class InDirectory:
    """A directory of manifests, and the source that reads it."""

    def __init__(self, directory: Path, state: Path) -> None:
        self._directory = directory
        self.source = ManifestPods(directory, state, boot_id="this boot")

    def deliver(self, pods: Sequence[Pod]) -> None:
        for path in self._directory.iterdir():
            path.unlink()
        for pod in pods:
            containers = [{"name": container.name, "image": "pause"} for container in pod.containers]
            manifest = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": pod.name, "uid": pod.uid},
                "spec": {"containers": containers},
            }
            (self._directory / f"{pod.name}.json").write_text(json.dumps(manifest))
        problems = self.source.poll().problems
        assert not problems
        self.source.mark_ready()


@contextmanager
def in_directory(running: Collection[Pod]) -> Iterator[PodsHarness]:
    """Yield a directory of manifests, with a state file in which an earlier source recorded that these pods ran."""
    with tempfile.TemporaryDirectory() as directory:
        manifests, state = Path(directory) / "manifests", Path(directory) / "state"
        manifests.mkdir()
        before = InDirectory(manifests, state)
        before.deliver(tuple(running))
        for pod in running:
            before.source.mark_running(pod.uid)
        yield InDirectory(manifests, state)


@pytest.mark.parametrize("make", [in_memory, in_directory])
@pytest.mark.parametrize("check", POD_SOURCE)
def test_a_pod_source_keeps_the_contract(check: Check, make: MakePods) -> None:
    """MemoryPods and ManifestPods meet every sentence of the port."""
    check(make)


# --- the contract can fail -------------------------------------------------------------------------------------------


class ListsOne(MemoryPods):
    def active_pods(self) -> tuple[PodUid, ...]:
        return super().active_pods()[:1]


@define
class ForgetsNothing(MemoryPods):
    ever: set[PodUid] = field(factory=set)

    def active_pods(self) -> tuple[PodUid, ...]:
        self.ever |= self.active
        return tuple(self.ever)


class IsAlwaysReady(MemoryPods):
    def sources_ready(self) -> bool:
        return True


class IsReadyOncePodsAreThere(MemoryPods):
    def sources_ready(self) -> bool:
        return bool(self.active)


class NothingEverRan(MemoryPods):
    def running_containers(self) -> tuple[ContainerKey, ...]:
        return ()


BROKEN: dict[Check, type[MemoryPods]] = {
    contract.lists_the_pods_that_are_active: ListsOne,
    contract.forgets_pods_that_have_gone: ForgetsNothing,
    contract.is_not_ready_before_every_source_has_delivered: IsAlwaysReady,
    contract.is_ready_once_every_source_has_delivered: IsReadyOncePodsAreThere,
    contract.names_the_containers_that_were_running_at_start: NothingEverRan,
}


@pytest.mark.parametrize("check", POD_SOURCE)
def test_each_check_catches_a_pod_source_that_breaks_its_sentence(check: Check) -> None:
    """A check that cannot fail tests nothing."""
    with pytest.raises(AssertionError):
        check(partial(in_memory, kind=BROKEN[check]))
