"""A stand-in for a kubelet: what happens between pods that come and go and the device manager.

Law: a pod that cannot be admitted changes nothing, and is tried again when anything has changed. There this differs
from a kubelet, which leaves a refused static pod Failed, and starts one whose resource nobody has registered without
its devices: in a cluster a scheduler stands before the kubelet, and here there is none.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

from attrs import define, frozen

from devicecore.adapters.manifests import ManifestError, ManifestPods
from devicecore.adapters.pod_resources import Snapshot
from devicecore.domain import container_options
from devicecore.domain.admission import Admitted, NotReady
from devicecore.domain.capacity import NodeStatus
from devicecore.domain.errors import DeviceCoreError
from devicecore.domain.inventory import Phase
from devicecore.domain.model import Container, ContainerKey, DeviceId, NumaNode, Pod, PodUid, ResourceName
from devicecore.domain.node_state import NodeState
from devicecore.manager import DeviceManager
from devicecore.ports.sink import NodeStatusSink
from devicecore.wire.conversion import read_receipt

RUNNING, PENDING = "Running", "Pending"

_ADMISSIONS = 16  # at once: a plugin that does not answer must not hold up the pods of others
_IN_TURN = 0.5  # seconds of one turn that are spent waiting, so that pods are admitted in their order

_log = logging.getLogger(__name__)

JsonObject = dict[str, object]


@frozen
class _Outcome:
    """What came of one attempt to start a pod."""

    phase: str
    reason: str = ""
    waits: bool = False
    """Whether it may come about without anybody doing anything."""


@define(eq=False)
class _Entry:
    """One pod, and where it stands."""

    pod: Pod
    phase: str = PENDING
    reason: str = "it has not had its turn yet"
    waits: bool = True
    flight: "Future[_Outcome] | None" = None


class StandIn:
    """Starts the pods of `pods` on the node of `manager`. Only one thread uses it, but for `snapshot`."""

    def __init__(self, manager: DeviceManager, pods: ManifestPods | None) -> None:
        self._manager = manager
        self._pods = pods
        self._entries: dict[PodUid, _Entry] = {}
        self._admissions = ThreadPoolExecutor(_ADMISSIONS, thread_name_prefix="devicecore-admission")
        self._ran = frozenset(key.pod for key in pods.running_containers()) if pods else frozenset[PodUid]()
        self._tried_on: NodeState | None = None
        self._leaving: dict[PodUid, Future[_Outcome]] = {}
        self._active: tuple[Pod, ...] = ()

    def stop(self) -> None:
        """Wait for the admissions under way. Stop the manager first, so that they end."""
        self._admissions.shutdown(cancel_futures=True)

    def snapshot(self) -> Snapshot:
        """What the pod-resources API tells of: the pods that run, or are about to."""
        return Snapshot(self._manager.state, self._active)

    @property
    def problems(self) -> tuple[ManifestError, ...]:
        """What is wrong with manifests."""
        return self._pods.problems if self._pods else ()

    @property
    def all_is_well(self) -> bool:
        """Whether every pod runs, and every manifest can be read."""
        return not self.problems and all(entry.phase == RUNNING for entry in self._entries.values())

    def turn(self, *, anew: bool = False) -> bool:
        """Look at the manifests and admit and release their pods. With `anew`, try again even if nothing has changed.

        Returns:
            Whether all manifests are read. Otherwise the next turn need not wait.
        """
        if self._pods is None:
            return True
        changes = self._pods.poll()
        for problem in changes.problems:
            _log.error("%s", problem)
        for file in changes.mended:
            _log.info("%s can be used again", file)
        self._harvest()
        self._release(changes.removed)
        for pod in changes.added:
            self._entries[pod.uid] = _Entry(pod)
        self._start_pending(anew=anew or bool(changes.added))
        holders = (
            self._manager.state.ledger.allocations
        )  # a pod whose containers cannot start has its devices all the same
        self._active = tuple(
            entry.pod for entry in self._entries.values() if entry.phase == RUNNING or entry.pod.uid in holders
        )
        if not self._pods.sources_ready() and not any(entry.flight for entry in self._entries.values()):
            self._pods.mark_ready()
            self._manager.update_allocated_devices()
        return changes.is_complete

    def _release(self, removed: Iterable[Pod]) -> None:
        gone = tuple(removed)
        for pod in gone:
            entry = self._entries.pop(pod.uid)
            if entry.flight is not None:
                self._leaving[pod.uid] = entry.flight
            _log.info("pod %s is gone", _name(pod))
        if gone:
            self._active = tuple(pod for pod in self._active if pod not in gone)
            self._manager.evict(pod.uid for pod in gone)

    def _start_pending(self, *, anew: bool) -> None:
        node = self._manager.state
        if not anew and is_same(self._tried_on, node):
            return
        until = time.monotonic() + _IN_TURN
        for entry in self._entries.values():
            if entry.phase == RUNNING or entry.flight is not None or entry.pod.uid in self._leaving:
                continue
            entry.flight = self._admissions.submit(self._start, entry.pod)
            wait([entry.flight], max(0.0, until - time.monotonic()))
        self._harvest()
        self._tried_on = self._manager.state

    def _harvest(self) -> None:
        """See what has become of the pods whose admission was under way."""
        for uid in [uid for uid, flight in self._leaving.items() if flight.done()]:
            self._manager.evict([uid])  # what it was given meanwhile, nobody wants any more
            del self._leaving[uid]
            self._tried_on = None
        for entry in self._entries.values():
            if entry.flight is None or not entry.flight.done():
                continue
            outcome = entry.flight.result()
            entry.flight = None
            if (entry.phase, entry.reason) != (outcome.phase, outcome.reason):
                _log.info("pod %s: %s%s", _name(entry.pod), outcome.phase, outcome.reason and f", {outcome.reason}")
            entry.phase, entry.reason, entry.waits = outcome.phase, outcome.reason, outcome.waits
            if outcome.phase == RUNNING and self._pods is not None:
                self._pods.mark_running(entry.pod.uid)

    def _start(self, pod: Pod) -> _Outcome:
        """Admit a pod, and ask what its containers are to be given, as a kubelet does before it starts them."""
        assert self._pods is not None, "it is where the pod comes from"  # noqa: S101 - for mypy
        runs = pod.uid in self._ran and not self._pods.sources_ready()
        lacking = sorted({resource for _, resource in self._manager.state.unhandled(pod)})
        if lacking and not runs:
            return _Outcome(PENDING, f"no plugin has registered {', '.join(lacking)}", waits=True)
        verdict = self._manager.admit(pod)
        if not isinstance(verdict, Admitted):
            return _Outcome(PENDING, str(verdict), waits=isinstance(verdict, NotReady))
        for container in () if runs else pod.in_start_order:
            try:
                self._manager.start_container(pod, container.name)
            except DeviceCoreError as error:
                return _Outcome(PENDING, f"container {container.name} cannot start: {error}")
        return _Outcome(RUNNING)

    # --- what there is to see -----------------------------------------------------------------------------------------

    def state(self) -> "State":
        """All there is to see now."""
        entries = tuple(PodState(entry.pod, entry.phase, entry.reason) for entry in self._entries.values())
        return State(self._manager.state, entries, self.problems, tuple(self._waits_for()))

    def _waits_for(self) -> Iterator[str]:
        """What will come about, or may, without anybody doing anything."""
        for name, resource in sorted(self._manager.state.inventory.resources.items()):
            if resource.phase is Phase.AWAITED:
                yield f"the plugin of {name}, which was there before"
            elif resource.phase is Phase.REGISTERED:
                yield f"the devices of {name}"
        for entry in self._entries.values():
            if entry.flight:
                yield f"pod {_name(entry.pod)}, whose admission is under way"
            elif entry.waits:
                yield f"pod {_name(entry.pod)}: {entry.reason}"
        if self._leaving:
            yield "pods that are gone, and whose admission is under way"
        elif self._pods is not None and not self._pods.sources_ready():
            yield "the manifests, which have not been read"


@frozen
class PodState:
    """A pod, and where it stands: `Running`, or `Pending` and why."""

    pod: Pod
    phase: str
    reason: str


@frozen(eq=False)
class State:
    """All there is to see at one moment. `waits_for` says what may still come of it by itself."""

    node: NodeState
    pods: tuple[PodState, ...] = ()
    problems: tuple[ManifestError, ...] = ()
    waits_for: tuple[str, ...] = ()

    @property
    def settled(self) -> bool:
        """Whether nothing more comes of it by itself."""
        return not self.waits_for

    def is_like(self, other: "State | None") -> bool:
        """Whether there is nothing to see in this that was not to be seen in `other`."""
        return (
            other is not None
            and is_same(other.node, self.node)
            and (other.pods, other.problems, other.waits_for) == (self.pods, self.problems, self.waits_for)
        )

    def owners(self, resource: ResourceName) -> dict[DeviceId, list[ContainerKey]]:
        """Who holds each device of a resource that anybody holds; more than one where a pod lends it to itself."""
        owners: dict[DeviceId, list[ContainerKey]] = {}
        for held in self.node.ledger:
            if held.resource == resource:
                for device in held.devices:
                    owners.setdefault(device, []).append(held.key)
        return owners

    def to_json(self, name: str) -> JsonObject:
        """The whole of it."""
        status = self.node.inventory.status()
        names = sorted({*self.node.inventory.resources, *self.node.ledger.resources})
        return {
            "node": name,
            "settled": self.settled,
            "capacity": status.capacity,
            "allocatable": status.allocatable,
            "resources": {name: self._resource(name) for name in names},
            "pods": [self._pod(state) for state in self.pods],
            "problems": [
                {"file": problem.file, "line": problem.line, "field": problem.field, "problem": problem.problem}
                for problem in self.problems
            ],
        }

    def _resource(self, name: ResourceName) -> JsonObject:
        resource = self.node.inventory.resources.get(name)
        pods = {state.pod.uid: state.pod for state in self.pods}
        return {
            "plugin": resource.plugins[-1].id.socket if resource and resource.plugins else None,
            "devices": [
                {
                    "id": id_,
                    "health": health,
                    "numa": list(nodes),
                    "owners": [_owner(key, pods.get(key.pod)) for key in owners],
                }
                for id_, health, nodes, owners in self.devices(name)
            ],
        }

    def devices(self, name: ResourceName) -> "list[tuple[DeviceId, str, tuple[NumaNode, ...], list[ContainerKey]]]":
        """The devices of a resource with their health, NUMA nodes and owners, those included that only owners know."""
        resource = self.node.inventory.resources.get(name)
        report = resource.report if resource else None
        owners = self.owners(name)
        found = [
            (
                id_,
                "Healthy" if id_ in report.healthy else "Unhealthy",
                report.devices[id_].numa_nodes,
                owners.pop(id_, []),
            )
            for id_ in (report.healthy | report.unhealthy if report else ())
            if report
        ]
        return found + [(id_, "Unknown", (), owner) for id_, owner in owners.items()]

    def _pod(self, state: PodState) -> JsonObject:
        pod = state.pod
        return {
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
            "phase": state.phase,
            "reason": state.reason or None,
            "containers": {container.name: self._container(pod, container) for container in pod.in_start_order},
        }

    def _container(self, pod: Pod, container: Container) -> JsonObject:
        held = self.node.ledger.of_container(pod.key(container))
        given = container_options.merge({one.resource: read_receipt(one.receipt) for one in held})
        return {
            "devices": {one.resource: list(one.devices) for one in held},
            "environment": dict(given.envs),
            "mounts": [f"{mount.host_path}:{mount.container_path}" for mount in given.mounts],
            "device_nodes": [f"{spec.host_path}:{spec.container_path}" for spec in given.devices],
            "cdi_devices": list(given.cdi_devices),
        }


def is_same(one: NodeState | None, other: NodeState) -> bool:
    """Whether two nodes are one: equal is not enough, and would be slow to find out."""
    return one is not None and one.inventory is other.inventory and one.ledger is other.ledger


def _owner(key: ContainerKey, pod: Pod | None) -> JsonObject:
    namespace, name = (pod.namespace, pod.name) if pod else (None, None)
    return {"namespace": namespace, "pod": name, "uid": key.pod, "container": key.container}


def _name(pod: Pod) -> str:
    return f"{pod.namespace}/{pod.name}"


class LoggedSink(NodeStatusSink):
    """Another sink, a line in the log for every resource of which something else is published, and then a `ring`."""

    def __init__(self, sink: NodeStatusSink, ring: Callable[[], None]) -> None:
        self._sink = sink
        self._ring = ring
        self._last = NodeStatus()

    def publish(self, status: NodeStatus) -> None:
        """Hand it on."""
        for resource, count in status.capacity.items():
            now = count, status.allocatable[resource]
            if now != (self._last.capacity.get(resource), self._last.allocatable.get(resource)):
                _log.info("%s: %d of %d devices are allocatable", resource, now[1], now[0])
        for resource in status.removed:
            _log.info("%s: removed, for nobody has served it for too long", resource)
        self._last = status
        try:
            self._sink.publish(status)
        finally:
            self._ring()
