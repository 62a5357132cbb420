"""One pod on its node: how the pod starts and ends, although no containers are run.

Laws: unless an annotation or the pod's deadline says otherwise, the containers of an admitted pod count as started at
once, and exit when the pod is deleted. With an annotation, they may start later, as `lives` determines, or exit after a
given time, as in a Job. The pod is shown as finished only when its devices and claims have been released, because the
scheduler then gives these to another pod.
"""

import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from functools import lru_cache
from typing import Any, get_args, get_origin

from attrs import define, field
from devicecore_tools.node.feed import PodReport
from devicecore_tools.node.outcome import OutcomeKind

from devicecore.adapters.kube_api.access import compact
from devicecore.adapters.manifests import ManifestError
from devicecore.domain.errors import DocumentError
from devicecore.domain.model import Pod, PodUid
from devicecore.domain.objects import pod_of
from devicecore.domain.text import foreign_text
from devicecore_fleet.cluster.lives import CONTAINERS, Behavior, BehaviorError, Life, Place, life, parse
from devicecore_fleet.cluster.predicates import REQUIRED
from devicecore_fleet.cluster.words.events import (
    PAST_DEADLINE,
    Said,
    failed_probe,
    killing,
    not_understood,
    unhealthy,
    waits,
)
from devicecore_fleet.cluster.words.patches import Json
from devicecore_fleet.cluster.words.pods import FAILED, FINAL, PENDING, RUNNING, SUCCEEDED, PodFacts, sidecars
from devicecore_fleet.cluster.words.specs import MOST_SHARED, SharedSpec, of_spec

RUN_FOR = "devicecore.io/run-for"
"""The annotation that contains the time after which a pod's containers exit on their own, such as `90s` or `1h30m`."""

STOP_AFTER = "devicecore.io/stop-after"
"""The annotation that says for how long a deleted pod's containers keep running.

The time is at most the pod's grace period, and 0 by default.
"""

MIRROR = "kubernetes.io/config.mirror"
"""The annotation of a mirror pod. A mirror pod only shows a kubelet's static pod, and no kubelet runs it."""

_COMPLETED, _TERMINATED, _KILLED = 0, 143, 137  # exit codes: on its own, after SIGTERM, after SIGKILL
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(h|ms|m|s)", re.ASCII)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_CONTAINER_FIELDS = ("name", "image", "resources", "restartPolicy", "restartPolicyRules", "ports")
_UNUSED = (
    *("affinity", "dnsConfig", "dnsPolicy", "enableServiceLinks", "hostAliases", "imagePullSecrets", "nodeName"),
    *("preemptionPolicy", "priority", "schedulerName", "securityContext", "serviceAccount", "serviceAccountName"),
    *("topologySpreadConstraints", "volumes"),
)
_ALIKE = ("conditions", "containerStatuses", "initContainerStatuses")  # parts of a status that many pods have in common


class Stage(Enum):
    """The stage of a pod in the engine. A pod never returns to an earlier stage."""

    SEEN = 0
    """The engine does not know the pod."""
    GIVEN = 1
    """The engine was told to run the pod."""
    LEAVING = 2
    """The engine was told to release the pod."""
    RELEASED = 3
    """The pod no longer holds anything."""
    REMOVED = 4
    """The server has accepted the final deletion of the pod."""


class Step(Enum):
    """What the engine must do about a pod."""

    NOTHING = "nothing"
    RUN = "run the pod"
    REPLACE = "run the current version of the pod, because more is now known about the pod"
    RELEASE = "release the pod"
    COMPARE = "nothing, but the server may not show the current state yet"


@define(eq=False)
class PodRecord:
    """One pod: what the server and the engine report about the pod, and the progress of its termination."""

    object: Json
    pod: Pod | None = None
    problem: ManifestError | None = None
    report: PodReport | None = None
    start_time: datetime | None = None
    started: datetime | None = None
    ended: datetime | None = None
    exit_code: int = 0
    end_at: float = math.inf
    """When the pod's containers exit (monotonic seconds)."""
    deleted_at: float = math.inf
    """When the pod's deletion was seen (monotonic seconds)."""
    _stop_code: int = _TERMINATED
    stage: Stage = Stage.SEEN
    awaits_node: bool = False  # the pod may not run on the known version of the Node, so the Node is read again
    is_gone: bool = False  # according to the server's last report
    events: list[tuple[Said, datetime]] = field(factory=list)
    last_wanted: int | None = None  # the hash of the last sent status, which many pods have in common
    repeats: int = 0
    """How many times the same status was resent because another writer had undone it."""
    conflicts: int = 0  # the number of conflicts in a row
    is_patching: bool = False
    batch: int = 0  # the number of the batch: the pods that were seen between two reads of the Node
    says: str = ""
    """The containers' behavior according to the fleet's file. A `CONTAINERS` annotation takes precedence."""
    change_at: float = math.inf
    """When the state of one of the pod's containers changes (monotonic seconds)."""
    _read_from: tuple[str, ...] = ()  # the strings from which the behaviors were parsed
    _behaviors: Mapping[str, Behavior] = field(factory=dict)
    _lives: Mapping[str, Life] = field(factory=dict)  # the containers' states at the last update

    @property
    def name(self) -> str:
        """The name of the pod."""
        return str(self.object["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """The namespace of the pod."""
        return str(self.object["metadata"].get("namespace") or "default")

    @property
    def phase(self) -> str:
        """The phase that the server shows."""
        return str((self.object.get("status") or {}).get("phase") or PENDING)

    @property
    def is_deleting(self) -> bool:
        """Whether the deletion of the pod was requested from the server."""
        return bool(self.object["metadata"].get("deletionTimestamp"))

    @property
    def is_given(self) -> bool:
        """Whether the engine was told to run the pod."""
        return self.stage is Stage.GIVEN

    @property
    def is_leaving(self) -> bool:
        """Whether the engine was told to release the pod."""
        return self.stage.value >= Stage.LEAVING.value

    @property
    def is_released(self) -> bool:
        """Whether the pod no longer holds anything."""
        return self.stage.value >= Stage.RELEASED.value

    @property
    def is_refused(self) -> bool:
        """Whether the engine has refused the pod."""
        return self.report is not None and self.report.outcome.is_refusal

    @property
    def containers(self) -> list[str]:
        """The names of the pod's containers."""
        return [str(one.get("name")) for one in self.object["spec"].get("containers") or []]

    def take(self, pod: Json) -> bool:
        """Take the current pod from the server.

        Return whether the result of `next_step` may have changed.
        """
        before, self.object = self.object, reduced(pod)
        return _decisive(before) != _decisive(self.object)

    def next_step(self, now: float, wall: datetime) -> Step:
        """Return what the engine must do. `now` is in monotonic seconds, and `wall` is the time."""
        if self.is_gone:
            return Step.NOTHING if self.is_leaving else Step.RELEASE
        if self.is_leaving:
            return Step.COMPARE if self.is_released else Step.NOTHING
        if self.pod is None:
            self._read()
        if self.is_given or self.is_deleting or self.ended is not None:
            step = self._next_of_given(now, wall)
            if step is Step.RELEASE or self.is_given or not self.has_run or self.pod is None:
                return step
            self.stage = Stage.GIVEN  # the pod was running before a restart, so it keeps its devices
            return Step.RUN
        if self.pod is None or self.phase in FINAL or self.awaits_node:
            return Step.NOTHING
        self.stage = Stage.GIVEN
        return Step.RUN

    def _next_of_given(self, now: float, wall: datetime) -> Step:
        if self.ended is None:
            self.plan_end(now, wall)
        is_over = self.ended is not None or (self.phase in FINAL and not self.is_refused)
        if is_over or self.end_at <= now:
            return Step.RELEASE
        before = self.pod
        if self.started is None and not self.is_refused:
            self._read()
        if self.pod != before:
            return Step.REPLACE  # the names of the pod's claims have become known
        return Step.COMPARE if self.change_at <= now else Step.NOTHING

    @property
    def _annotations(self) -> Mapping[str, str]:
        found: Mapping[str, str] = self.object["metadata"].get("annotations") or {}
        return found

    @property
    def _policy(self) -> str:
        return str(self.object["spec"].get("restartPolicy") or "Always")

    def read_behaviors(self) -> list[Said]:
        """Parse the behavior of the pod's containers if it has changed. Return an event if the behavior is invalid."""
        texts = self.says, self._annotations.get(CONTAINERS, "")
        if texts == self._read_from:
            return []
        self._read_from, (of_file, of_pod) = texts, map(str.strip, texts)
        known = {"", *self.containers}  # a file applies to many pods, and not all have the containers that it names
        self._behaviors = {name: one for name, one in parse(of_file).items() if name in known}
        try:
            found = parse(of_pod)
            if unknown := [name for name in found if name not in known]:
                raise BehaviorError(f"there is no container {foreign_text(unknown[0], 100)}")  # noqa: TRY301 - one result
        except BehaviorError as error:
            return [not_understood(f"{CONTAINERS}: {error}")]
        self._behaviors = found or self._behaviors
        return []

    def _restarts(self, name: str, code: int, probe: str = "") -> bool:
        """Return whether a kubelet restarts a container that has exited with this code, or that a probe has stopped."""
        container: Json = next((one for one in self.object["spec"]["containers"] if one.get("name") == name), {})
        own = container.get("restartPolicy")
        if own and not probe:  # Go: `ContainerShouldRestart`, without rules in `computePodActions` if a probe failed
            for rule in container.get("restartPolicyRules") or ():
                on = rule.get("exitCodes") or {}
                if on.get("operator") in ("In", "NotIn") and (code in (on.get("values") or ())) is (
                    on["operator"] == "In"
                ):
                    return True  # the only action of a rule is to restart
        policy = own or self._policy
        return policy == "Always" or (policy == "OnFailure" and code != 0)

    def _behavior(self, name: str) -> Behavior:
        if (found := self._behaviors.get(name) or self._behaviors.get("")) is not None:
            return found
        # A kubelet restarts the containers of a pod with the policy Always, so such a pod never ends on its own.
        lasts = None if self._restarts(name, _COMPLETED) else seconds_of(self._annotations.get(RUN_FOR))
        return Behavior() if lasts is None else Behavior(_COMPLETED, lasts)

    def lives(self, wall: datetime) -> Mapping[str, Life]:
        """Return the states of all of the pod's containers if one of them has a behavior, and none otherwise.

        If the pod has ended, these are the states when it ended.
        """
        if not self._behaviors or self.started is None:
            return {}
        metadata = self.object["metadata"]
        pod, found = f"{self.name}_{self.namespace}({metadata.get('uid')})", {}
        for one in self.object["spec"].get("containers") or []:
            name = str(one["name"])
            would = self._behavior(name)
            place = Place(pod, name, str(one.get("image") or ""), self._restarts(name, would.code or 0, would.probe))
            shown = life(would, place, self.started, self.ended or wall)
            found[place.container] = shown if self.ended is None else shown.stopped(self.ended, self.exit_code)
        return found

    def look(self, now: float, wall: datetime) -> list[Said]:
        """Update the containers' states, and schedule the next update. Return a kubelet's events."""
        said, before = self.read_behaviors(), self._lives
        if not self._behaviors and not before:  # nearly all pods have no containers with a behavior
            self.change_at = math.inf
            return said
        self._lives = {} if self.ended is not None or self.is_refused else self.lives(wall)
        times = [one.until for one in self._lives.values() if one.until is not None]
        self.change_at = now + max(0.0, (min(times) - wall).total_seconds()) if times else math.inf
        images = {str(one["name"]): str(one.get("image") or "") for one in self.object["spec"].get("containers") or []}
        for name, one in self._lives.items():
            said += self._said_of(name, images[name], before.get(name), one)
        return said

    def _said_of(self, name: str, image: str, before: Life | None, now: Life) -> list[Said]:
        """Return a kubelet's events about a container whose state at the last update, if any, was `before`."""
        said, would = list[Said](), self._behavior(name)
        if would.probe and before is not None and now.ends > before.ends:
            said += failed_probe(would.probe, name, restarts=self._restarts(name, would.code or 0, would.probe))
        before = before or Life()
        if now.waiting is not None and now.waiting != before.waiting:
            said += waits(*now.waiting, name, image)
        if would.is_unready and not now.is_starting and now.started is not None and before.started is None:
            said.append(unhealthy("readiness", name))
        return said

    def recall(self) -> None:
        """Restore the progress of an earlier process with this pod from what the server shows."""
        status = self.object.get("status") or {}
        known = status.get("containerStatuses") or []
        states = [one.get("state") or {} for one in known]
        self.start_time = _parsed(status.get("startTime"))
        self.started = min((time for state in states if (time := _time(state, "startedAt"))), default=None)
        if any(one.get("restartCount") for one in known):
            self.started = self.start_time  # the status no longer shows the start of the pod's first containers
        is_over = self.phase in FINAL or self.is_deleting or not any(one.get("restartCount") for one in known)
        if is_over and states and all("terminated" in state for state in states):
            self.ended = max((time for state in states if (time := _time(state, "finishedAt"))), default=self.started)
            self.exit_code = max(int(state["terminated"].get("exitCode") or 0) for state in states)

    @property
    def has_run(self) -> bool:
        """Whether the pod's containers are known to be running."""
        return self.started is not None and self.ended is None

    def leave(self, wall: datetime) -> list[Said]:
        """Start to release the pod. Return the events that a kubelet sends at this point."""
        self.stage = Stage.RELEASED if self.pod is None else Stage.LEAVING  # the engine has never seen the pod
        if self.ended is not None or self.phase in FINAL:
            return []
        runs = [name for name in self.containers if name not in self._lives or self._lives[name].started is not None]
        self.ended = wall
        if self.started is None:
            return [PAST_DEADLINE] if self.is_late else []
        # Sidecars are stopped even if the other containers have exited on their own.
        killed = runs if self.is_deleting or self.is_late else []
        said = [*([PAST_DEADLINE] if self.is_late else []), *map(killing, killed)]
        if not killed:  # the containers have exited on their own, or because of their probes
            ended = {name: self._behavior(name).probe for name in runs}
            # A kubelet stops the pod because all its containers have exited; it reports no reason but failed probes.
            stopped = [(unhealthy(probe, name), killing(name)) for name, probe in ended.items() if probe]
            said += [one for both in stopped for one in both]
        return said + [killing(name, "initContainers") for name in sidecars(self.object["spec"])]

    @property
    def is_late(self) -> bool:
        """Whether the pod was ended because it was active for longer than its `activeDeadlineSeconds`."""
        allowed = self.object["spec"].get("activeDeadlineSeconds")
        if allowed is None or self.ended is None or self.start_time is None or self.exit_code == _COMPLETED:
            return False
        return (self.ended - self.start_time).total_seconds() >= float(allowed)

    def _read(self) -> None:
        """Parse the pod. If the pod cannot be parsed, the previous result stays."""
        try:
            self.pod, self.problem = _pod_of(self.object), None
        except DocumentError as error:
            if self.problem is None or self.problem.problem != error.problem:
                self.problem = ManifestError(f"pod {self.namespace}/{self.name}", None, error.field, error.problem)

    def plan_end(self, now: float, wall: datetime) -> None:
        """Decide when the containers exit and with which exit code."""
        self.read_behaviors()
        end, code = math.inf, _COMPLETED
        would = [self._behavior(name) for name in self.containers]
        goes_on = (
            self._restarts(name, one.code or 0, one.probe) for name, one in zip(self.containers, would, strict=True)
        )
        ends = [one.final_end(restarts=again) for one, again in zip(would, goes_on, strict=True)]
        lasts = [seconds for seconds in ends if seconds is not None]
        if self.started is not None and lasts and len(lasts) == len(would):
            end = now + max(lasts) - (wall - self.started).total_seconds()
            code = next((one.code for one in would if one.code), _COMPLETED)
        allowed = self.object["spec"].get("activeDeadlineSeconds")
        if allowed is not None and self.start_time is not None and not self.is_refused:
            late = now + allowed - (wall - self.start_time).total_seconds()
            end, code = min((end, code), (late, _TERMINATED))
        if (
            self.is_deleting
            and (stop := self._stop_at(now, wall, seconds_of(self._annotations.get(STOP_AFTER)) or 0.0)) < end
        ):
            end, code = stop, self._stop_code
        self.end_at, self.exit_code = end, code

    def _stop_at(self, now: float, wall: datetime, goes_on: float) -> float:
        """Return the time at which a deleted pod's containers stop. A second deletion may shorten the grace period."""
        if self.started is None:
            return now
        grace = float(self.object["metadata"].get("deletionGracePeriodSeconds") or 0)
        ends = None if self.is_given else _parsed(self.object["metadata"].get("deletionTimestamp"))
        # The pod may have been deleted before this process started.
        age = 0.0 if ends is None else max(0.0, grace + (wall - ends).total_seconds())
        self.deleted_at = min(self.deleted_at, now - age)
        self._stop_code = _KILLED if goes_on > grace else _TERMINATED
        return max(now, self.deleted_at + min(goes_on, grace)) if goes_on else now

    def facts(self, now: datetime, host_ips: tuple[str, ...]) -> PodFacts | None:
        """Return what is known about the pod, or None if there is nothing to report."""
        report = self.report
        if self.phase in FINAL or (report is None and self.ended is None):
            return None
        outcome = report.outcome if report is not None else None
        is_over = self.ended is not None
        phase, refusal, waiting = PENDING, None, {}
        if outcome is not None and outcome.refusal is not None:
            phase, refusal = FAILED, (outcome.refusal.reason, outcome.kubelet_message)
        elif is_over:
            phase = SUCCEEDED if self.exit_code == _COMPLETED and self.started is not None else FAILED
        elif self.started is not None:
            is_new = any(one.waiting is not None and one.ended is None for one in self.lives(now).values())
            phase = PENDING if is_new else RUNNING  # the pod is Pending until each container has run once
        elif outcome is not None and outcome.is_start_failure:
            waiting = dict.fromkeys(self.containers, ("CreateContainerConfigError", outcome.kubelet_message))
        prepared = outcome is not None and (outcome.kind is OutcomeKind.RUNS or outcome.is_start_failure)
        return PodFacts(
            phase=phase,
            start_time=self.start_time or self.ended or now,
            # A pod is shown as finished only when nothing of it is left, because from then on its devices can go to
            # another pod.
            has_sandbox=not self.is_released if is_over else prepared,
            started=self.started,
            ended=self.ended,
            exit_code=self.exit_code,
            health=report.health if report is not None else {},
            waiting=waiting,
            lives=self.lives(now),
            refusal=refusal,
            why_ended=(PAST_DEADLINE.reason, PAST_DEADLINE.message) if self.is_late else None,
            host_ips=host_ips,
        )


_TEXTS, _OBJECTS = dict[str, str], list[dict[str, object]]
_TYPES: tuple[tuple[str, str, Any], ...] = (
    ("metadata", "annotations", _TEXTS),
    ("metadata", "labels", _TEXTS),
    ("metadata", "deletionTimestamp", str),
    ("metadata", "deletionGracePeriodSeconds", int),
    ("spec", "nodeName", str),
    ("spec", "restartPolicy", str),
    ("spec", "activeDeadlineSeconds", int),
    ("spec", "containers", _OBJECTS),
    ("spec", "initContainers", _OBJECTS),
    ("spec", "ephemeralContainers", _OBJECTS),
    ("spec", "affinity", dict),
    ("spec", "nodeSelector", _TEXTS),
    ("spec", "tolerations", _OBJECTS),
    ("status", "phase", str),
    ("status", "startTime", str),
    ("status", "conditions", _OBJECTS),
    ("status", "containerStatuses", _OBJECTS),
)
"""The fields of a pod that this module uses, and the type that each field has if it is present."""

_CLASSES = tuple(
    (part, name, get_origin(kind) or kind, *(get_origin(one) or one for one in get_args(kind)[-1:]))
    for part, name, kind in _TYPES
)
"""`_TYPES` as classes for `isinstance`: the class of each field and the classes of its values.

The classes are computed once, because pods are checked often.
"""


def check_types(pod: Json) -> None:
    """Raise TypeError if a field that this module uses has a type that an API server would not accept."""
    for part, name, outer, *inner in _CLASSES:
        found = (pod.get(part) or {}).get(name)
        if found is None:
            continue
        is_right = isinstance(found, outer)
        if is_right and inner:
            values = found.values() if isinstance(found, dict) else found
            is_right = all(isinstance(one, inner[0]) for one in values)
        if not is_right:
            message = f"{part}.{name} has the wrong type"
            raise TypeError(message)
    for part in ("containers", "initContainers", "ephemeralContainers"):
        for one in pod["spec"].get(part) or ():
            if not isinstance(one.get("name"), str) or not isinstance(one.get("resources") or {}, dict):
                message = f"spec.{part} has an item with an invalid name or invalid resources"
                raise TypeError(message)
            for rule in one.get("restartPolicyRules") or ():
                if not isinstance((rule.get("exitCodes") or {}).get("values") or [], list):
                    message = f"spec.{part} has an item with invalid rules"
                    raise TypeError(message)


def uid_of(pod: Json) -> PodUid:
    """Return a pod's UID."""
    return PodUid(str(pod["metadata"].get("uid") or ""))


def _decisive(pod: Json) -> tuple[object, ...]:
    """Return the parts of a pod that `next_step` depends on. The answer to a status patch rarely changes them."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    fields = ("deletionTimestamp", "deletionGracePeriodSeconds", "annotations", "labels")
    claims = (status.get("resourceClaimStatuses"), status.get("extendedResourceClaimStatus"))
    return (*map(metadata.get, fields), pod["spec"], *claims, status.get("phase") in FINAL)


def _time(state: Json, name: str) -> datetime | None:
    """Return a time in a container's state, or None if there is no valid time."""
    return _parsed(next((found.get(name) for key in ("running", "terminated") if (found := state.get(key))), None))


def _parsed(text: object) -> datetime | None:
    """Return the time in UTC that a string represents, or None if the string is not a time."""
    try:
        time = datetime.fromisoformat(text) if isinstance(text, str) else None
        return time if time is None else (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):  # raised if the time zone moves the time out of the calendar
        return None


def seconds_of(text: object) -> float | None:
    """Return the number of seconds in a duration such as `1h30m`, `500ms` or `90`, or None for any other string."""
    whole = text.strip() if isinstance(text, str) else ""
    whole += "s" if whole[-1:].isdecimal() else ""
    parts = _DURATION.findall(whole)
    if not parts or "".join(map("".join, parts)) != whole:
        return None
    return float(sum(float(number) * _UNITS[unit] for number, unit in parts))


def reduced(pod: Json) -> Json:
    """Return a pod without unused fields, because ten thousand complete pods would take a lot of memory.

    The pods of a controller share the objects that they have in common, so these objects must not be changed.
    """
    metadata = {key: value for key, value in pod["metadata"].items() if key not in ("generateName", "ownerReferences")}
    spec = {key: value for key, value in pod["spec"].items() if key not in _UNUSED}
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    if REQUIRED in affinity:
        spec["affinity"] = {"nodeAffinity": {REQUIRED: affinity[REQUIRED]}}
    for part in ("containers", "initContainers", "ephemeralContainers"):
        if part in spec:
            spec[part] = [{key: one[key] for key in _CONTAINER_FIELDS if key in one} for one in spec[part] or []]
    status = pod.get("status") or {}
    alike = {part: _shared(compact(status[part])) for part in _ALIKE if part in status}
    same = {"kind": "Pod", "apiVersion": "v1", "spec": _shared_spec(compact(spec))}
    return {**pod, **same, "metadata": metadata, "status": {**status, **alike}}


@lru_cache(MOST_SHARED)
def _shared(text: bytes) -> Any:  # noqa: ANN401 - JSON
    return json.loads(text)


@lru_cache(MOST_SHARED)
def _shared_spec(text: bytes) -> SharedSpec:
    return SharedSpec(json.loads(text))


def _pod_of(found: Json) -> Pod:
    """Return what `pod_of` returns.

    If possible, the result is copied from a similar pod, because most pods differ only in identity.
    """
    metadata, status = found["metadata"], found.get("status") or {}
    identity = [metadata.get(name) for name in ("uid", "name", "namespace")]
    has_claims = status.get("resourceClaimStatuses") or status.get("extendedResourceClaimStatus")
    if has_claims or not all(isinstance(one, str) and one for one in identity):
        return pod_of(found)
    uid, name, namespace = identity
    like = _any_pod_of(found["spec"])
    return Pod(
        PodUid(uid),
        name=name,
        namespace=namespace,
        containers=like.containers,
        init_containers=like.init_containers,
        claims=like.claims,
    )


@of_spec
def _any_pod_of(spec: Json) -> Pod:
    return pod_of({"metadata": {"uid": "any", "name": "any"}, "spec": spec})
