"""The state of `devicecore kubelet` at one point in time, as values and as JSON.

Law: every string from outside is bounded. Messages are also escaped. Names and values are exact up to the bound,
because JSON escapes the characters that a terminal would interpret.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from itertools import islice

from attrs import field, frozen

from devicecore.adapters.manifests import ManifestError
from devicecore.domain import container_options
from devicecore.domain.model import Container, ContainerKey, DeviceId, NumaNode, Pod, PodUid, ResourceName
from devicecore.domain.node_state import NodeState
from devicecore.domain.text import foreign_text
from devicecore.wire.conversion import read_receipt

RUNNING, PENDING, FAILED = "Running", "Pending", "Failed"

MAX_VALUE = 4_096
"""The maximum length of an environment variable, path or name."""

MAX_VALUES = 1_000
"""The maximum number of environment variables, mounts, device nodes or CDI devices of one container."""

JsonObject = dict[str, object]


@frozen
class PodState:
    """A pod and its phase: `Running`, or `Pending` or `Failed` with a reason."""

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
    later container in the pod reuses an init container's device.
    """

    id: DeviceId
    health: str
    numa_nodes: tuple[NumaNode, ...]
    owners: tuple[ContainerKey, ...]


@frozen
class ClaimedDevice:
    """A claim's device as its driver returned it, with the health that the driver reports."""

    driver: str
    pool: str
    name: str
    share_id: str | None
    requests: tuple[str, ...]
    cdi_devices: tuple[str, ...]
    health: str
    message: str

    @property
    def path(self) -> str:
        """Driver, pool and device."""
        return f"{self.driver}/{self.pool}/{self.name}"


class ClaimStage(StrEnum):
    """The stage of a claim. `ClaimState.reason` may say why the claim is not prepared or not released."""

    PENDING = "pending"
    PREPARED = "prepared"
    RELEASING = "releasing"


@frozen
class ClaimState:
    """A ResourceClaim that pods reference or use. `uid` is None if no pod is recorded in the claim yet."""

    namespace: str
    name: str
    uid: str | None
    phase: ClaimStage
    reason: str
    pods: tuple[PodUid, ...]
    devices: tuple[ClaimedDevice, ...] = ()

    @property
    def key(self) -> str:
        """The claim's namespace and name."""
        return f"{self.namespace}/{self.name}"


@frozen
class DriverState:
    """A registered DRA driver. `instances` lists each endpoint and service, and whether it is connected."""

    name: str
    instances: tuple[tuple[str, str, bool], ...]

    @property
    def is_connected(self) -> bool:
        """Whether any instance is connected."""
        return any(is_connected for _, _, is_connected in self.instances)


@frozen
class ContainerClaimState:
    """The devices that a container gets through one claim."""

    claim: str
    devices: tuple[ClaimedDevice, ...]


@frozen
class ClaimsState:
    """The state of dynamic resource allocation; empty if neither pods nor drivers use it.

    `containers` are the containers of pods with claims.
    """

    claims: tuple[ClaimState, ...] = ()
    drivers: tuple[DriverState, ...] = ()
    containers: Mapping[PodUid, Mapping[str, tuple[ContainerClaimState, ...]]] = field(factory=dict)

    def of_container(self, key: ContainerKey) -> tuple[ContainerClaimState, ...]:
        """Return the claims of a container."""
        return self.containers.get(key.pod, {}).get(key.container, ())


@frozen(eq=False)
class KubeletState:
    """The state at one point in time.

    `waits_for` names what may still happen without a change of manifests or devices. `sink_problem` is the reason why
    the node's status cannot be published, or None.
    """

    node: NodeState
    pods: tuple[PodState, ...] = ()
    problems: tuple[ManifestError, ...] = ()
    waits_for: tuple[str, ...] = ()
    sink_problem: str | None = None
    dra: ClaimsState = ClaimsState()

    @property
    def is_settled(self) -> bool:
        """Whether nothing more will happen without an outside change."""
        return not self.waits_for

    @property
    def is_good(self) -> bool:
        """Whether every pod is running, every manifest is usable, and the node's status is published."""
        return not self.problems and not self.sink_problem and all(pod.phase == RUNNING for pod in self.pods)

    @property
    def resources(self) -> list[ResourceName]:
        """The resources that plugins have registered or containers hold, sorted."""
        return sorted({*self.node.inventory.resources, *self.node.ledger.resources})

    def devices(self, name: ResourceName) -> Sequence[DeviceState]:
        """Return the devices of a resource, including those that containers hold but no plugin lists."""
        if name not in self._devices:
            self._devices[name] = self._read_devices(name)
        return self._devices[name]

    def _read_devices(self, name: ResourceName) -> tuple[DeviceState, ...]:
        resource = self.node.inventory.resources.get(name)
        report = resource.report if resource else None
        owners = {device: tuple(keys) for device, keys in self._owners.get(name, {}).items()}
        listed: list[DeviceState] = []
        if report:
            healthy = frozenset(report.healthy)  # looking up each id in a large `DeviceSet` is slow
            for id_ in report.healthy | report.unhealthy:
                health = "Healthy" if id_ in healthy else "Unhealthy"
                listed.append(DeviceState(id_, health, report.devices.numa_nodes(id_), owners.pop(id_, ())))
        return (*listed, *(DeviceState(id_, "Unknown", (), keys) for id_, keys in owners.items()))

    @cached_property
    def _devices(self) -> dict[ResourceName, tuple[DeviceState, ...]]:
        return {}  # filled by `devices`

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
        """Return the state as a JSON string with one line per pod. `pods` caches earlier results."""
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
            "drivers": [_driver(driver) for driver in self.dra.drivers],
            "claims": [_claim(claim, pods) for claim in self.dra.claims],
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
                    "owners": [
                        {**_user(key.pod, pods.get(key.pod)), "container": _bounded(key.container)}
                        for key in device.owners
                    ],
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
        claims = self.dra.of_container(pod.key(container))
        given = container_options.with_claims(
            container_options.merge({one.resource: read_receipt(one.receipt) for one in held}),
            (name for claim in claims for device in claim.devices for name in device.cdi_devices),
        )
        return {
            "devices": {one.resource: list(map(_bounded, one.devices)) for one in held},
            "claims": {
                _bounded(claim.claim): [_bounded(device.path) for device in claim.devices[:MAX_VALUES]]
                for claim in claims
            },
            "environment": {_bounded(name): _bounded(value) for name, value in islice(given.envs.items(), MAX_VALUES)},
            "mounts": _joined((mount.host_path, mount.container_path) for mount in given.mounts),
            "device_nodes": _joined((spec.host_path, spec.container_path) for spec in given.devices),
            "cdi_devices": list(map(_bounded, given.cdi_devices[:MAX_VALUES])),
        }


class PodTexts:
    """The JSON for pods. A pod's string is rendered again only if the pod has changed."""

    def __init__(self) -> None:
        self._texts: dict[PodUid, tuple[tuple[object, ...], str]] = {}

    def of(self, state: KubeletState) -> list[str]:
        """Return the JSON for each pod in a state."""
        before, self._texts = self._texts, {}
        for one in state.pods:
            uid = one.pod.uid
            allocations = state.node.ledger.of_pod(uid)
            facts = one.phase, one.reason, state.dra.containers.get(uid), one.pod, allocations
            known = before.get(uid)
            # Pods and allocations are the same objects as long as they do not change.
            if (
                known is None
                or known[0][:3] != facts[:3]
                or known[0][3] is not one.pod
                or known[0][4] is not allocations
            ):
                known = facts, json.dumps(state.pod_json(one))
            self._texts[uid] = known
        return [text for _, text in self._texts.values()]


def _bounded(text: str) -> str:
    """Return the string, or its start and its length if it is very long."""
    if len(text) <= MAX_VALUE:
        return text
    return f"{text[:MAX_VALUE]}... ({len(text)} characters)"


def _driver(driver: DriverState) -> JsonObject:
    return {
        "name": _bounded(driver.name),
        "instances": [
            {"endpoint": _bounded(endpoint), "service": service, "connected": is_connected}
            for endpoint, service, is_connected in driver.instances
        ],
    }


def _claim(claim: ClaimState, pods: Mapping[PodUid, Pod]) -> JsonObject:
    return {
        "namespace": _bounded(claim.namespace),
        "name": _bounded(claim.name),
        "uid": claim.uid and _bounded(claim.uid),
        "phase": claim.phase,
        "reason": foreign_text(claim.reason) or None,
        "pods": [_user(uid, pods.get(uid)) for uid in claim.pods],
        "devices": [
            {
                "driver": _bounded(device.driver),
                "pool": _bounded(device.pool),
                "device": _bounded(device.name),
                "share_id": device.share_id and _bounded(device.share_id),
                "requests": list(map(_bounded, device.requests[:MAX_VALUES])),
                "cdi_devices": list(map(_bounded, device.cdi_devices[:MAX_VALUES])),
                "health": device.health,
                "message": foreign_text(device.message) or None,
            }
            for device in claim.devices[:MAX_VALUES]
        ],
    }


def _user(uid: PodUid, pod: Pod | None) -> JsonObject:
    namespace, name = (_bounded(pod.namespace), _bounded(pod.name)) if pod else (None, None)
    return {"namespace": namespace, "pod": name, "uid": _bounded(uid)}


def _joined(pairs: Iterable[tuple[str, str]]) -> list[str]:
    return [_bounded(f"{host}:{container}") for host, container in islice(pairs, MAX_VALUES)]
