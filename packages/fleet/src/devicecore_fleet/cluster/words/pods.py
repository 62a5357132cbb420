"""The status of a pod, as a kubelet reports it.

Law: the status is a function of the pod and of what the node knows about it. Fields that a kubelet does not own, such
as the conditions of other writers, stay unchanged. docs/cluster-node.md lists what is missing from the status because
no containers are run.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from attrs import evolve, field, frozen

from devicecore.domain.health import ResourceHealth
from devicecore.domain.quantity import Quantity
from devicecore_fleet.cluster.lives import Ended, Life
from devicecore_fleet.cluster.words.patches import Json, difference, with_transitions, written
from devicecore_fleet.cluster.words.specs import of_spec

if TYPE_CHECKING:
    from devicecore.domain.dra.health import ClaimHealth

PENDING, RUNNING, SUCCEEDED, FAILED = "Pending", "Running", "Succeeded", "Failed"
FINAL = (SUCCEEDED, FAILED)

REJECTED = "Pod was rejected: "
"""The prefix of the message in a refused pod's status. The message of the pod's event does not have this prefix."""

_OURS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
_CREATING, _INITIALIZING = ("ContainerCreating", ""), ("PodInitializing", "")
_LOST: Json = {
    "terminated": {
        "exitCode": 137,
        "reason": "ContainerStatusUnknown",
        "message": "The container could not be located when the pod was terminated",
    }
}


@frozen
class PodFacts:
    """What a node knows about one of its pods.

    Attributes:
        phase: the pod's phase, which results from the states of its containers. As in a kubelet, a final phase is shown
            only once there is no sandbox.
        start_time: when the node accepted the pod.
        has_sandbox: whether the pod counts as having a sandbox, which a pod that has ended keeps until it is released.
        started: when the containers started, or None.
        ended: when the containers exited, or None.
        exit_code: the exit code of the app containers that are not in `lives`.
        health: the devices and claims of each container, from the managers' `allocated_resources_status`.
        waiting: why a container is waiting, with a message, unless containers are being created.
        lives: the states of the containers, or empty if they simply run from `started` to `ended`.
        refusal: the reason and the message of a pod that was not admitted, or None.
        why_ended: the reason and the message of a pod that its node has ended, or None.
        host_ips: the addresses of the node.
    """

    phase: str
    start_time: datetime
    has_sandbox: bool = False
    started: datetime | None = None
    ended: datetime | None = None
    exit_code: int = 0
    health: "Mapping[str, Sequence[ResourceHealth | ClaimHealth]]" = field(factory=dict)
    waiting: Mapping[str, tuple[str, str]] = field(factory=dict)
    lives: Mapping[str, Life] = field(factory=dict)
    refusal: tuple[str, str] | None = None
    why_ended: tuple[str, str] | None = None
    host_ips: tuple[str, ...] = ()

    @property
    def is_lost(self) -> bool:
        """Whether nothing is left of the pod and no container has started."""
        return self.phase in FINAL and not self.has_sandbox and self.started is None


def pod_status(pod: Json, facts: PodFacts) -> Json:
    """Return the fields of the status that a kubelet owns. A field that is None must be removed.

    Conditions have no `lastTransitionTime`, which `status_patch` adds.
    """
    spec, before = pod["spec"], pod.get("status") or {}
    ends = facts.phase in FINAL and facts.has_sandbox
    reason, message = (None, None) if facts.why_ended is None or ends else facts.why_ended
    status: Json = {
        "observedGeneration": pod["metadata"].get("generation"),
        "phase": (RUNNING if facts.started is not None else PENDING) if ends else facts.phase,
        "reason": reason,
        "message": message,
        "startTime": before.get("startTime") or written(facts.start_time),
    }
    if facts.refusal is not None:
        reason, message = facts.refusal
        status |= {"phase": FAILED, "reason": reason, "message": REJECTED + message}
        return status | (_lost(pod) if before.get("containerStatuses") else {})
    main, init = spec["containers"], spec.get("initContainers") or []
    ephemeral = [_ephemeral(one) for one in spec.get("ephemeralContainers") or []]
    return status | {
        **_addresses(spec, facts),
        "allocatedResources": _allocated(spec),
        "resources": _resources(spec, facts.phase in FINAL or "deletionTimestamp" in pod["metadata"]),
        "conditions": _conditions(pod, facts),
        "containerStatuses": [_container(one, facts, has_init=bool(init)) for one in main],
        **({"initContainerStatuses": [_init_container(one, facts, one is init[0]) for one in init]} if init else {}),
        **({"ephemeralContainerStatuses": ephemeral} if ephemeral else {}),
    }


def status_patch(pod: Json, wanted: Json, now: datetime) -> Json | None:
    """Return the patch for `pods/status` that turns the pod's status into `wanted`, or None if there is no change.

    Args:
        pod: the pod on the API server.
        wanted: the result of `pod_status`.
        now: the time at which conditions change.
    """
    before = pod.get("status") or {}
    if "conditions" in wanted:
        old = before.get("conditions") or []
        others = [one for one in old if one["type"] not in _OURS]
        wanted = {**wanted, "conditions": [*others, *with_transitions(old, wanted["conditions"], now)]}
    patch = difference(before, wanted)
    return {"metadata": {"uid": pod["metadata"]["uid"]}, "status": patch} if patch else None


def _addresses(spec: Json, facts: PodFacts) -> Json:
    if not facts.host_ips:
        return {}
    listed = [{"ip": ip} for ip in facts.host_ips]
    found: Json = {"hostIP": facts.host_ips[0], "hostIPs": listed}
    if spec.get("hostNetwork") and facts.started is not None:
        found |= {"podIP": facts.host_ips[0], "podIPs": listed}
    return found


# --- conditions -------------------------------------------------------------------------------------------------------


def _conditions(pod: Json, facts: PodFacts) -> list[Json]:
    names = [one["name"] for one in pod["spec"]["containers"]]
    init = [one["name"] for one in pod["spec"].get("initContainers") or []]
    initialized = _verdict("ContainersNotInitialized", "containers with incomplete status", init)
    if facts.phase == SUCCEEDED:
        initialized, ready = _condition(is_true=True, reason="PodCompleted"), _condition(reason="PodCompleted")
    elif facts.phase == FAILED and any(one.waiting and one.ended is None for one in facts.lives.values()):
        # In a kubelet, a pod with a container that never ran is Pending until nothing is left of it (Go: `getPhase`).
        initialized = _condition(is_true=True)
        ready = _verdict("ContainersNotReady", "containers with unready status", names)
    elif facts.phase == FAILED:
        initialized, ready = _condition(is_true=True), _condition(reason="PodFailed")
    elif facts.started is not None:
        initialized = _condition(is_true=True)
        unready = [name for name in names if name in facts.lives and not facts.lives[name].is_ready]
        ready = _verdict("ContainersNotReady", "containers with unready status", unready)
    else:
        ready = _verdict("ContainersNotReady", "containers with unready status", [*names, *sidecars(pod["spec"])])
    is_gated = ready["status"] == "True" and (problem := _gate(pod))
    shown = {
        "PodReadyToStartContainers": _sandbox(facts),
        "Initialized": initialized,
        "Ready": _condition(reason="ReadinessGatesNotReady", message=problem) if is_gated else ready,
        "ContainersReady": ready,
        "PodScheduled": _condition(is_true=True),
    }
    same = {"lastProbeTime": None, "observedGeneration": pod["metadata"].get("generation")}
    return [{**same, **condition, "type": name} for name, condition in shown.items()]


def _sandbox(facts: PodFacts) -> Json:
    if facts.has_sandbox:
        return _condition(is_true=True)
    message = "no pod sandbox exists" if facts.started is None else "pod sandbox is not ready"
    return _condition(reason="PodSandboxNotReady", message=message)


def _condition(*, is_true: bool = False, reason: str = "", message: str = "") -> Json:
    told = {"reason": reason, "message": message}
    return {"status": "True" if is_true else "False"} | {name: text for name, text in told.items() if text}


def _verdict(reason: str, message: str, names: Iterable[str]) -> Json:
    shown = " ".join(names)
    return _condition(reason=reason, message=f"{message}: [{shown}]") if shown else _condition(is_true=True)


def _gate(pod: Json) -> str:
    """Return why a pod whose containers are ready is not ready: the condition of a readiness gate is not set."""
    known = {one["type"]: one["status"] for one in (pod.get("status") or {}).get("conditions") or []}
    for gate in (one["conditionType"] for one in pod["spec"].get("readinessGates") or []):
        if gate not in known:
            return f'corresponding condition of pod readiness gate "{gate}" does not exist.'
        if known[gate] != "True":
            return f'the status of pod readiness gate "{gate}" is not "True", but {known[gate]}'
    return ""


# --- containers -------------------------------------------------------------------------------------------------------


def _container(container: Json, facts: PodFacts, *, has_init: bool = False) -> Json:
    name, resources = container["name"], container.get("resources") or {}
    runs, life = facts.started is not None and facts.ended is None, facts.lives.get(name)
    has_run = facts.started is not None
    if life is not None:
        runs, has_run = life.started is not None, life.waiting is None or life.ended is not None
    status: Json = {
        "name": name,
        "image": container.get("image", ""),
        "imageID": "",
        "lastState": _ended(life.last_shown) if life is not None and life.last_shown is not None else {},
        "ready": runs if life is None else life.is_ready,
        "restartCount": 0 if life is None else life.restarts,
        "started": runs and not (life is not None and life.is_starting),
        "state": _state(name, facts, _INITIALIZING if has_init else _CREATING)
        if life is None
        else _state_of(life, facts),
    }
    if has_run:
        shown = {part: resources[part] for part in ("limits", "requests", "claims") if resources.get(part)}
        status["resources"] = shown
        if resources.get("requests"):
            status["allocatedResources"] = resources["requests"]
    known = facts.health.get(name, ())
    if facts.ended is not None and not facts.has_sandbox:  # by this time, a kubelet has unprepared the claims
        known = [one for one in known if isinstance(one, ResourceHealth)]
    if health := [shown for one in known if (shown := _health(one))["resources"]]:
        status["allocatedResourcesStatus"] = health
    return status


def _state(name: str, facts: PodFacts, default: tuple[str, str]) -> Json:
    if facts.is_lost and default is _CREATING:
        return _LOST
    if facts.started is None:
        reason, message = facts.waiting.get(name, default)
        return {"waiting": {"reason": reason, **({"message": message} if message else {})}}
    if facts.ended is None:
        return {"running": {"startedAt": written(facts.started)}}
    reason = "Error" if facts.exit_code else "Completed"
    return _ended(Ended(facts.exit_code, reason, facts.started, facts.ended))


def _state_of(life: Life, facts: PodFacts) -> Json:
    if life.waiting is not None and life.ended is None and facts.phase in FINAL and not facts.has_sandbox:
        return _LOST
    if life.waiting is not None:
        reason, message = life.waiting
        return {"waiting": {"reason": reason, **({"message": message} if message else {})}}
    if life.started is not None:
        return {"running": {"startedAt": written(life.started)}}
    return _ended(life.ended) if life.ended is not None else {}


def _ended(one: Ended) -> Json:
    times = {"startedAt": written(one.started), "finishedAt": written(one.ended)}
    return {"terminated": {"exitCode": one.code, "reason": one.reason, **times}}


def _init_container(container: Json, facts: PodFacts, is_first: bool) -> Json:  # noqa: FBT001 - one line each
    """Return the status of an init container, which exits as soon as it starts, unless it is a sidecar.

    If the pod has ended before anything started, a kubelet reports that the first container could not be located, and
    that the others were never tried.
    """
    if container.get("restartPolicy") == "Always" or facts.started is None:
        if facts.exit_code == 0:
            facts = evolve(facts, exit_code=143)  # a sidecar is stopped after the other containers have exited
        status = _container(container, facts, has_init=True)
        return {**status, "state": _LOST} if is_first and facts.is_lost else status
    status = _container(container, facts)
    times = dict.fromkeys(("startedAt", "finishedAt"), written(facts.started))
    state = {"terminated": {"exitCode": 0, "reason": "Completed", **times}}
    return {**status, "ready": True, "started": False, "state": state}


def _ephemeral(container: Json) -> Json:
    """Return the status of a container from `kubectl debug`.

    The status says that the container could not run, so that no one waits for the container.
    """
    message = "no container runs on a devicecore node"
    return {
        "name": container["name"],
        "image": container.get("image", ""),
        "imageID": "",
        "lastState": {},
        "ready": False,
        "restartCount": 0,
        "state": {"terminated": {"exitCode": 128, "reason": "ContainerCannotRun", "message": message}},
    }


def sidecars(spec: Json) -> Iterator[str]:
    """Yield the names of the init containers that keep running alongside the other containers."""
    return (one["name"] for one in spec.get("initContainers") or [] if one.get("restartPolicy") == "Always")


def _health(one: "ResourceHealth | ClaimHealth") -> Json:
    if isinstance(one, ResourceHealth):
        return {
            "name": one.resource,
            "resources": [{"health": health.value, "resourceID": id_} for id_, health in one.devices.items()],
        }
    return {
        "name": one.name,
        "resources": [
            {
                "health": str(device.health.value),
                "resourceID": device.resource_id,
                **({"message": device.message} if device.message else {}),
            }
            for device in one.resources
        ],
    }


def _lost(pod: Json) -> Json:
    """Return the containers and conditions of a pod that ran before a restart of the node, but was then refused."""
    status = pod["status"]
    failed = {"Ready": "PodFailed", "ContainersReady": "PodFailed", "PodReadyToStartContainers": None}
    statuses = [
        one if "terminated" in one["state"] else {**one, "ready": False, "started": False, "state": _LOST}
        for one in status["containerStatuses"]
    ]
    conditions = [
        {**one, "status": "False", "reason": failed[one["type"]], "message": None} if one["type"] in failed else one
        for one in status.get("conditions") or []
        if one["type"] in _OURS
    ]
    return {"containerStatuses": statuses, "conditions": conditions}


# --- resources --------------------------------------------------------------------------------------------------------

_OF_POD = ("cpu", "memory")  # pods can request these and huge pages as a whole (Go: `IsSupportedPodLevelResource`)


@of_spec
def asked_of(spec: Json, part: str) -> dict[str, Quantity]:
    """Return a pod's total `requests` or `limits` (Go: `PodRequests`, `PodLimits`).

    The requests of containers that run at the same time are added up, and an init container counts if it alone needs
    more. Requests and limits for the whole pod replace these sums. The pod's overhead is added, but only to limits that
    exist.
    """
    asked = _of_containers(spec, part)
    asked |= {
        name: size
        for name, size in _sizes((spec.get("resources") or {}).get(part)).items()
        if name in _OF_POD or name.startswith("hugepages-")
    }
    for name, more in _sizes(spec.get("overhead")).items():
        before = asked.get(name, Quantity(0, more.binary))
        if part == "requests" or before.nanos:
            asked[name] = Quantity(before.nanos + more.nanos, before.binary)
    return asked


@of_spec
def _allocated(spec: Json) -> Json | None:
    return _written(asked_of(spec, "requests")) or None


@of_spec
def _resources(spec: Json, is_over: bool) -> Json:  # noqa: FBT001 - so that it can be cached
    """Return a pod's resources, as a kubelet shows them when it starts the pod (Go: `getEffectiveAllocatedResources`).

    For a pod that has ended, only the requests for the whole pod are left (Go: `convertToAPIPodLevelResourcesStatus`).
    """
    asked = spec.get("resources") or {}
    return {
        part: _written(sizes)
        for part in ("limits", "requests")
        if (sizes := _sizes(asked.get(part)) if is_over else asked_of(spec, part))
    }


def _written(sizes: Mapping[str, Quantity]) -> dict[str, str]:
    return {name: str(size) for name, size in sizes.items()}


def _of_containers(spec: Json, part: str) -> dict[str, Quantity]:
    alone: dict[str, Quantity] = {}
    together: dict[str, Quantity] = {}
    for container in [*(spec.get("initContainers") or []), *spec["containers"]]:
        is_init = container not in spec["containers"]
        for name, size in _sizes((container.get("resources") or {}).get(part)).items():
            before = together.get(name, Quantity(0, size.binary))
            total = Quantity(before.nanos + size.nanos, before.binary)
            if is_init and container.get("restartPolicy") != "Always":
                alone[name] = max(alone.get(name, total), total)
            else:
                together[name] = total
    return {name: max(alone.get(name, size), together.get(name, size)) for name, size in (alone | together).items()}


def _sizes(listed: Json | None) -> dict[str, Quantity]:
    return {name: Quantity.parse(str(text)) for name, text in (listed or {}).items()}
