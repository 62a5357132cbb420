"""Recorded histories of a kubelet, replayed through `DeviceManager` with in-memory adapters."""

import pytest

from devicecore.domain.model import NumaNode
from devicecore.domain.policies import kubelet_order
from devicecore.domain.topology import Topology
from tests import recorded
from tests.histories import Json, Replay

HISTORIES = list(recorded.lines("histories*.jsonl"))
SHARE = recorded.share(HISTORIES, 4)


@pytest.mark.parametrize("history", HISTORIES, ids=[history["id"] for history in HISTORIES])
def test_a_history_gives_the_same_results_as_on_a_kubelet(history: Json) -> None:
    """Every step of every recorded history has the recorded outcome."""
    check(Replay(Topology(history["numa_nodes"])), history)


@pytest.mark.parametrize("history", SHARE, ids=[history["id"] for history in SHARE])
def test_the_policy_of_the_kubelet_is_what_a_manager_does_without_one(history: Json) -> None:
    """The policy chooses the recorded devices, which depend on the natural order of ids and on preferences."""
    check(Replay(Topology(history["numa_nodes"]), policy=kubelet_order), history)


def check(replay: Replay, history: Json) -> None:
    """Play a history, and compare the outcome of each step with the recorded one."""
    for number, step in enumerate(history["steps"]):
        carrying = carrying_nodes(replay)
        outcome = replay.play(step)
        expected = step["expect"]
        if step["op"] == "hints":
            expected = {name: without_bare_nodes(hints, carrying.get(name, set())) for name, hints in expected.items()}
        if step["op"] in ("allocate", "allocate_again") and not expected["ok"]:
            failed = expected["containers"][-1]
            expected = {"ok": False, "container": failed["name"], "error": failed["error"]}
        if step["op"] in ("allocate", "allocate_again"):
            outcome = {key: outcome[key] for key in expected}
        assert outcome == expected, f"step {number}: {step['op']}"


def carrying_nodes(replay: Replay) -> dict[str, set[NumaNode]]:
    """Return the machine's NUMA nodes that have devices of each resource."""
    machine = set(replay.topology.numa_nodes)
    inventory = replay.manager.state.inventory
    reports = {name: inventory.last_report(name) for name in (*inventory.resources, *inventory.former)}
    return {name: set(report.by_numa_node) & machine for name, report in reports.items() if report}


def without_bare_nodes(hints: Json, carrying: set[NumaNode]) -> Json:
    """Return recorded hints except for nodes without devices, which kubelets have not listed since 1.36."""
    if not hints or not carrying:
        return hints
    return [[mask, preferred] for mask, preferred in hints if set(mask) <= carrying]
