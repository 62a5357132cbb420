"""A DRA manager in a fork of the process that started it.

Law: its use there is a clear error, and never a hang.
"""

import os
from collections.abc import Callable

import pytest

from devicecore.adapters.memory import MemoryPods
from devicecore.adapters.memory_dra import MemoryClaims, MemoryDriverTransport
from devicecore.domain.dra.model import ClaimKey, ClaimUid, ResourceClaim
from devicecore.domain.errors import ForkedError
from devicecore.domain.model import Container, Pod, PodClaim, PodUid
from devicecore.dra_manager import DraManager
from devicecore.testing.faults import Gate
from tests.reliability.test_life_cycle import LIMIT, Store, in_fork, in_thread

KEY = ClaimKey("default", "claim")


def pod(name: str) -> Pod:
    return Pod(PodUid(name), name=name, claims=(PodClaim("mine", KEY.name),), containers=(Container("main"),))


def claims() -> MemoryClaims:
    found = MemoryClaims()
    found.put(ResourceClaim(KEY, ClaimUid("c"), "", (), frozenset({"p", "slow"})))  # no driver has to be asked
    return found


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize(
    "call",
    [
        lambda manager: manager.start(),
        lambda manager: manager.stop(),
        lambda manager: manager.prepare(pod("slow")),
        lambda manager: manager.unprepare(PodUid("slow")),
        lambda manager: manager.tick(),
        lambda manager: manager.reconcile(),
        lambda manager: manager.wipe_slices(),
    ],
    ids=["start", "stop", "prepare", "unprepare", "tick", "reconcile", "wipe_slices"],
)
def test_use_after_a_fork_is_an_error(call: Callable[[DraManager], object]) -> None:
    """This holds even if a thread that does not exist in the fork held a lock and the turn of the pod."""
    store, gate = Store(), Gate(LIMIT)
    with DraManager(MemoryDriverTransport(), claims(), store, pods=MemoryPods()) as manager:
        manager.prepare(pod("p"))
        store.before_save = gate.wait
        preparing = in_thread(manager.prepare, pod("slow"))
        assert gate.reached.wait(LIMIT)
        raised = in_fork(lambda: call(manager))
        gate.release()
        preparing.result(LIMIT)
        assert raised.startswith(f"{ForkedError.__name__}: this was started in process {os.getpid()}")
        assert manager.claims.claims[KEY].pods == {"p", "slow"}


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
def test_a_fork_can_read_the_claims_of_its_parent_and_start_a_manager_of_its_own() -> None:
    unused = DraManager(MemoryDriverTransport(), claims(), Store())

    def look() -> None:
        assert manager.claim_devices(pod("p"), "main") == ()
        assert manager.might_need_unprepare(PodUid("p"))
        with unused:
            unused.prepare(pod("p"))

    with DraManager(MemoryDriverTransport(), claims(), Store()) as manager:
        manager.prepare(pod("p"))
        assert in_fork(look) == "nothing was raised"
