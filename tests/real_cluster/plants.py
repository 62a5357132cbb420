"""Injected faults that `make cluster` must find: `make cluster PLANT=all`, or `PLANT=NAME`.

Each fault was found by hand in an earlier version, or is similar to such a fault. An injected fault replaces a
devicecore function, in the test process and in each devicecore command that the tests start. If a check misses its
fault, the check has a gap.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen
from devicecore_fleet.cluster import registration, writer
from devicecore_fleet.cluster.pods import ClusterPods
from devicecore_fleet.cluster.records import PodRecord
from devicecore_fleet.cluster.registration import RegisteredNode
from devicecore_fleet.cluster.words import pods as words_of_pods
from devicecore_fleet.cluster.words.leases import Held, seconds_left
from devicecore_fleet.fleet import virtual_node
from devicecore_fleet.fleet.virtual_node import VirtualNode
from devicecore_numa.domain import cpu_policy
from devicecore_tools.doctor.findings import report as report_of_doctor
from devicecore_tools.doctor.pod.scheduling import PodAsks
from devicecore_tools.testing.api_server import http

from devicecore.adapters.kube_api import Backoff, KubeApiSink
from devicecore.domain.capacity import NodeStatus
from devicecore.plugins.simulated import SimulatedPlugin

Json = Any

ROOT = Path(__file__).parents[2]
VARIABLE = "PLANT"
"""The environment variable that names the fault to inject into a process."""


@frozen
class Plant:
    """A fault, and the check that has to find it.

    Attributes:
        part: the part that the check belongs to, such as `doctor`.
        check: the expression that selects the check in the part's file (pytest: `-k`).
        says: a string that the check's report must contain, which shows that the check failed because of the fault.
        grow: injects the fault.
    """

    part: str
    check: str
    says: str
    grow: Callable[[], None]


PLANTS: dict[str, Plant] = {}
"""All injected faults, by name."""


def plant(part: str, check: str, says: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Return a decorator that registers a function as a fault. The arguments are attributes of `Plant`."""

    def register(grow: Callable[[], None]) -> Callable[[], None]:
        PLANTS[grow.__name__.removeprefix("_")] = Plant(part, check, says, grow)
        return grow

    return register


def grow_planted() -> None:
    """Inject the fault that the environment variable names, if any."""
    if name := os.environ.get(VARIABLE, ""):
        PLANTS[name].grow()


def _around(owner: object, name: str, wrapped: Callable[..., object]) -> None:
    """Replace a function with one that calls `wrapped` with the original function and the arguments."""
    original = getattr(owner, name)

    def planted(*arguments: object, **named: object) -> object:
        return wrapped(original, *arguments, **named)

    setattr(owner, name, planted)


# --- nodes ------------------------------------------------------------------------------------------------------------

_PODS = "test_a_pod_is_the_same and fleet"


@plant("nodes", _PODS, "claim-that-is-old status.containerStatuses[main].allocatedResourcesStatus")
def _health_of_claims_is_forgotten() -> None:
    """Kubelets and devicecore nodes trust a silent driver's last health report for only 30 seconds."""
    told = set[tuple[int, str]]()

    def report(original: Callable[..., Any], node: VirtualNode, driver: str) -> object:
        if (id(node), driver) in told:
            return None
        told.add((id(node), driver))
        return original(node, driver)

    _around(VirtualNode, "_report_health", report)


@plant("nodes", _PODS, "pod-level status.allocatedResources")
def _sizes_of_a_whole_pod_do_not_count() -> None:
    def asked(original: Callable[..., Any], spec: Json, part: str) -> object:
        return original({key: value for key, value in spec.items() if key not in ("resources", "overhead")}, part)

    _around(words_of_pods, "asked_of", asked)


@plant("nodes", _PODS, "overhead status.allocatedResources")
def _one_phase_is_wrong_and_so_are_sizes() -> None:
    """A pod that never reaches its phase must not hide the differences in other pods."""
    _sizes_of_a_whole_pod_do_not_count()

    def facts(original: Callable[..., Any], record: PodRecord, *rest: object) -> object:
        return None if record.name == "guaranteed" else original(record, *rest)

    _around(PodRecord, "facts", facts)


@plant("nodes", "test_the_events_of_pods_are_the_same and fleet", "only in Kubernetes: deleted")
def _the_end_of_containers_is_not_told() -> None:
    def leave(original: Callable[..., Any], record: PodRecord, *rest: object) -> object:
        original(record, *rest)
        return []

    _around(PodRecord, "leave", leave)


# --- fleet ------------------------------------------------------------------------------------------------------------


@plant("fleet", "is_left_alone and stopped", "is refused")
def _a_node_is_taken_when_its_lease_is_over() -> None:
    def held(original: Callable[..., Any], found: Json, *rest: Any) -> object:  # noqa: ANN401 - as in the original
        return original(found, *rest) if seconds_left(found, rest[-1]) else Held.BY_US

    _around(registration, "held", held)
    _around(registration, "foreign_node", lambda *_: "")


def _not_listed(is_missed: Callable[[Json], bool]) -> None:
    def listed(original: Callable[..., Any], pods: ClusterPods, found: Sequence[Json]) -> object:
        return original(pods, [one for one in found if not is_missed(one)])

    _around(ClusterPods, "listed", listed)


@plant("fleet", "in_each_state", "as if nothing had happened")
def _pods_that_are_deleted_are_forgotten_at_a_start() -> None:
    _not_listed(lambda pod: "deletionTimestamp" in pod["metadata"])


@plant("fleet", "in_each_state", "as if nothing had happened")
def _pods_that_wait_are_forgotten_at_a_start() -> None:
    _not_listed(lambda pod: not (pod.get("status") or {}).get("startTime"))


@plant("fleet", "in_each_state", "")
def _pods_that_run_are_not_known_after_a_start() -> None:
    _around(virtual_node, "_stores", lambda original, _: original(None))


@plant("fleet", "a_hundred_nodes", "nodes are ready")
def _leases_are_renewed_late_after_an_outage() -> None:
    setattr(writer, "_OUTAGE", Backoff(60.0, 120.0))  # noqa: B010 - mypy would refuse to assign a constant


# --- the others -------------------------------------------------------------------------------------------------------


@plant("story", "ours", "")
def _one_device_is_not_published() -> None:
    def publish(original: Callable[..., Any], node: RegisteredNode, status: NodeStatus) -> object:
        counts = {name: max(0, count - 1) for name, count in status.allocatable.items()}
        return original(node, NodeStatus(status.capacity, counts, status.removed))

    _around(RegisteredNode, "publish", publish)


@plant("sink", "", "")
def _only_the_first_status_is_published() -> None:
    published = set[int]()

    def publish(original: Callable[..., Any], sink: KubeApiSink, status: object) -> object:
        if id(sink) in published:
            return None
        published.add(id(sink))
        return original(sink, status)

    _around(KubeApiSink, "publish", publish)


@plant("requests", "answer_the_same", "code: 200 here, 201 in Kubernetes")
def _a_new_object_is_answered_as_an_old_one() -> None:
    def answer(original: Callable[..., Any], *rest: object, **named: object) -> object:
        status, body = original(*rest, **named)
        return min(status, 200) if status < 300 else status, body

    _around(http, "carry_out", answer)


@plant("doctor", "a_plugin_is_stopped_and_removes_its_socket or the_kubelet_is_killed", "doctor did not find")
def _doctor_finds_nothing() -> None:
    _around(report_of_doctor, "check", lambda *_: ())


@plant("pods", "taint", "but the scheduler")
def _taints_of_nodes_do_not_count() -> None:
    _around(PodAsks, "obstacles", lambda *_: iter(()))


@plant("numa", "one-numa-node", "init-reused: devicecore kubelet: cpu_manager_state")
def _cpus_of_init_containers_are_not_used_again() -> None:
    _around(cpu_policy, "_with_reuse", lambda _original, state, *_: state)


@plant("numa", "one-numa-node", "but the kubelet refuses it")
def _whole_cores_are_not_asked_for() -> None:
    _around(cpu_policy.StaticCpuPolicy, "_check_whole_cores", lambda *_: None)


@plant("kind", "", "to have 8 nvidia.com/gpu")
def _a_simulated_plugin_has_one_device_less() -> None:
    def begin(original: Callable[..., Any], plugin: SimulatedPlugin, resource: str, devices: Iterable[object]) -> None:
        original(plugin, resource, [*devices][1:])

    _around(SimulatedPlugin, "__init__", begin)


# --- running them -----------------------------------------------------------------------------------------------------


def find(name: str) -> str:
    """Run the check that must find an injected fault.

    Return why the fault counts as not found, or an empty string if it was found.
    """
    one = PLANTS[name]
    checks = next((ROOT / "tests" / "real_cluster").glob(f"checks_{one.part}.py"))
    command = [sys.executable, "-m", "pytest", "--tb=short", "-p", "no:cacheprovider", str(checks)]
    command.append("--override-ini=faulthandler_timeout=900")  # as `make cluster` does
    command += ["-k", one.check] if one.check else []
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, VARIABLE: name},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    failed = "\n".join(line for line in ended.stdout.splitlines() if line.startswith(("E ", "FAILED")))
    if ended.returncode == 1 and one.says in ended.stdout and failed:
        return ""
    last = "\n".join(ended.stdout.splitlines()[-40:])
    return f"pytest ended with {ended.returncode}, expected a failure with {one.says!r}:\n{last}"


def main(names: Sequence[str]) -> int:
    """Run the checks that must find these faults, by default all of them.

    The exit status is 1 if a fault is not found.
    """
    chosen = [one for one in PLANTS if not names or one in names]
    if unknown := set(names) - {*PLANTS}:
        sys.stderr.write(f"expected one of {', '.join(PLANTS)}, got {', '.join(sorted(unknown))}\n")
        return 2
    missed = 0
    for name in chosen:
        problem = find(name)
        missed += bool(problem)
        sys.stdout.write(f"{PLANTS[name].part}: {name}: {'NOT FOUND: ' + problem if problem else 'found'}\n")
        sys.stdout.flush()
    parts = {path.stem.removeprefix("checks_") for path in Path(__file__).parent.glob("checks_*.py")}
    without = sorted(parts - {one.part for one in PLANTS.values()})
    sys.stdout.write(
        f"{len(chosen) - missed} of {len(chosen)} injected faults found; parts without any: {without or 'none'}\n"
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main([one for one in sys.argv[1:] if one != "all"]))
