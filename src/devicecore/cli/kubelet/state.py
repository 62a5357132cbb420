"""The state of `devicecore kubelet` at one time, as values and as JSON.

Law: every text from outside is bounded. Messages are escaped as well; names and values are exact up to the bound,
because JSON escapes the characters that a terminal would act on.
"""

import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import islice

from attrs import frozen

from devicecore.adapters.manifests import ManifestError
from devicecore.domain import container_options
from devicecore.domain.model import Container, ContainerKey, DeviceId, NumaNode, Pod, PodUid, ResourceName
from devicecore.domain.node_state import NodeState
from devicecore.domain.text import foreign_text
from devicecore.wire.conversion import read_receipt

RUNNING, PENDING = "Running", "Pending"

MAX_VALUE = 4_096
"""Characters of one environment variable, path or name."""

MAX_VALUES = 1_000
"""Environment variables, mounts, device nodes or CDI devices of one container."""

JsonObject = dict[str, object]


@frozen
class PodState:
    """A pod and its phase: `Running`, or `Pending` with a reason."""

    pod: Pod
    phase: str
    reason: str

    @property
    def name(self) -> str:
        """The pod's namespace and name."""
        return f"{self.pod.namespace}/{self.pod.name}"


@frozen
class DeviceState:
    """A device: its health, its NUMA nodes, and the containers that hold it.

    `health` is `Unknown` if a container holds the device and no plugin lists it. There is more than one owner if a
    later container of the pod reuses the device of an init container.
    """

    id: DeviceId
    health: str
    numa_nodes: tuple[NumaNode, ...]
    owners: tuple[ContainerKey, ...]


@frozen(eq=False)
class KubeletState:
    """The state at one time.

    `waits_for` names what may still happen without a change of manifests or devices. `sink_problem` is the reason why
    the node's status cannot be published, or None.
    """

    node: NodeState
    pods: tuple[PodState, ...] = ()
    problems: tuple[ManifestError, ...] = ()
    waits_for: tuple[str, ...] = ()
    sink_problem: str | None = None

    @property
    def is_settled(self) -> bool:
        """Whether nothing more happens without a change from outside."""
        return not self.waits_for

    @property
    def is_good(self) -> bool:
        """Whether every pod runs, every manifest can be used, and the node's status is published."""
        return not self.problems and not self.sink_problem and all(pod.phase == RUNNING for pod in self.pods)

    @property
    def resources(self) -> list[ResourceName]:
        """The resources that plugins have registered or containers hold, sorted."""
        return sorted({*self.node.inventory.resources, *self.node.ledger.resources})

    def devices(self, name: ResourceName) -> list[DeviceState]:
        """Return the devices of a resource, including those that containers hold and no plugin lists."""
        resource = self.node.inventory.resources.get(name)
        report = resource.report if resource else None
        owners = {device: tuple(keys) for device, keys in self._owners.get(name, {}).items()}
        listed = [
            DeviceState(
                id_,
                "Healthy" if id_ in report.healthy else "Unhealthy",
                report.devices[id_].numa_nodes,
                owners.pop(id_, ()),
            )
            for id_ in (report.healthy | report.unhealthy if report else ())
            if report
        ]
        return listed + [DeviceState(id_, "Unknown", (), keys) for id_, keys in owners.items()]

    @cached_property
    def _owners(self) -> Mapping[ResourceName, Mapping[DeviceId, list[ContainerKey]]]:
        owners: dict[ResourceName, dict[DeviceId, list[ContainerKey]]] = {}
        for allocation in self.node.ledger:
            of_resource = owners.setdefault(allocation.resource, {})
            for device in allocation.devices:
                of_resource.setdefault(device, []).append(allocation.key)
        return owners

    def to_json(self, node_name: str) -> JsonObject:
        """Return the state as `--json` prints it."""
        return self._document(node_name, [self.pod_json(state) for state in self.pods])

    def to_text(self, node_name: str, pods: "PodTexts") -> str:
        """Return the same as a JSON text with a line for each pod. `pods` remembers what it gave before."""
        parts = {key: json.dumps(value) for key, value in self._document(node_name, []).items()}
        parts["pods"] = "[" + ",".join(f"\n  {text}" for text in pods.of(self)) + "]"
        return "{\n" + ",\n".join(f" {json.dumps(key)}: {text}" for key, text in parts.items()) + "\n}"

    def _document(self, node_name: str, pod_objects: list[JsonObject]) -> JsonObject:
        status = self.node.inventory.status()
        pods = {state.pod.uid: state.pod for state in self.pods}
        return {
            "node": node_name,
            "settled": self.is_settled,
            "capacity": status.capacity,
            "allocatable": status.allocatable,
            "resources": {name: self._resource(name, pods) for name in self.resources},
            "pods": pod_objects,
            "problems": [
                {
                    "file": foreign_text(problem.file),
                    "line": problem.line,
                    "field": foreign_text(problem.field),
                    "problem": foreign_text(problem.problem),
                }
                for problem in self.problems
            ],
            "sink_problem": self.sink_problem,
        }

    def _resource(self, name: ResourceName, pods: Mapping[PodUid, Pod]) -> JsonObject:
        resource = self.node.inventory.resources.get(name)
        return {
            "plugin": resource.plugins[-1].id.socket if resource and resource.plugins else None,
            "devices": [
                {
                    "id": _bounded(device.id),
                    "health": device.health,
                    "numa": list(device.numa_nodes),
                    "owners": [_owner(key, pods.get(key.pod)) for key in device.owners],
                }
                for device in self.devices(name)
            ],
        }

    def pod_json(self, state: PodState) -> JsonObject:
        """Return one pod as `--json` prints it."""
        pod = state.pod
        return {
            "namespace": _bounded(pod.namespace),
            "name": _bounded(pod.name),
            "uid": _bounded(pod.uid),
            "phase": state.phase,
            "reason": foreign_text(state.reason) or None,
            "containers": {
                _bounded(container.name): self._container(pod, container) for container in pod.in_start_order
            },
        }

    def _container(self, pod: Pod, container: Container) -> JsonObject:
        held = self.node.ledger.of_container(pod.key(container))
        given = container_options.merge({one.resource: read_receipt(one.receipt) for one in held})
        return {
            "devices": {one.resource: list(map(_bounded, one.devices)) for one in held},
            "environment": {_bounded(name): _bounded(value) for name, value in islice(given.envs.items(), MAX_VALUES)},
            "mounts": _joined((mount.host_path, mount.container_path) for mount in given.mounts),
            "device_nodes": _joined((spec.host_path, spec.container_path) for spec in given.devices),
            "cdi_devices": list(map(_bounded, given.cdi_devices[:MAX_VALUES])),
        }


class PodTexts:
    """The JSON texts of pods. A text is made again only if something has changed that is in it."""

    def __init__(self) -> None:
        self._texts: dict[PodUid, tuple[tuple[object, ...], str]] = {}

    def of(self, state: KubeletState) -> list[str]:
        """Return the text of each pod of a state."""
        before, self._texts = self._texts, {}
        for one in state.pods:
            uid = one.pod.uid
            allocations = state.node.ledger.of_pod(uid)
            facts = one.phase, one.reason, one.pod, allocations
            known = before.get(uid)
            # Pods and allocations are the same objects as long as nothing about them changes.
            if (
                known is None
                or known[0][:2] != facts[:2]
                or known[0][2] is not one.pod
                or known[0][3] is not allocations
            ):
                known = facts, json.dumps(state.pod_json(one))
            self._texts[uid] = known
        return [text for _, text in self._texts.values()]


def _bounded(text: str) -> str:
    """Return the text, or the beginning of a very long one with a note of its length."""
    if len(text) <= MAX_VALUE:
        return text
    return f"{text[:MAX_VALUE]}... ({len(text)} characters)"


def _joined(pairs: Iterable[tuple[str, str]]) -> list[str]:
    return [_bounded(f"{host}:{container}") for host, container in islice(pairs, MAX_VALUES)]


def _owner(key: ContainerKey, pod: Pod | None) -> JsonObject:
    namespace, name = (_bounded(pod.namespace), _bounded(pod.name)) if pod else (None, None)
    return {"namespace": namespace, "pod": name, "uid": _bounded(key.pod), "container": _bounded(key.container)}
