"""Realistic pods, for both a real kubelet and a devicecore node.

A container whose name starts with `init-` exits at once in the runtime of the real kubelet (`peers/cri`), as every init
container does on a devicecore node; one whose name starts with `side-` runs until it is stopped.
"""

import os
from typing import Any

from attrs import field, frozen

from tests.real_cluster.node import GPU

Json = Any

CLASS, CLAIMED = "gpu.example.com", "claimed.example.com/gpu"
"""A DeviceClass for the drivers' devices, and the extended resource name of another class."""

RUN_FOR, STOP_AFTER, DO = "devicecore.io/run-for", "devicecore.io/stop-after", "devicecore.io/containers"
RUNTIME_CLASS = "with-overhead"
OLD = "claim-that-is-old"


@frozen
class Case:
    """A pod, and the phase to wait for. With `is_deleted`, the pod is then deleted, but a finalizer keeps it visible.

    If `waits` is a reason, one of the pod's containers must be waiting with that reason. `size` is the number of
    devices that the pod's container requests, unless `spec` has containers.
    """

    name: str
    until: str = "Running"
    size: Json = None
    spec: Json = field(factory=dict)
    annotations: Json = field(factory=dict)
    is_deleted: bool = False
    waits: str = ""

    def restarts(self, pod: Json) -> int | None:
        """Return the restart count of the container that waits as expected, or None if no container does.

        Between restarts, a kubelet may show a container as terminated until the container is started again.
        """
        for one in pod["status"].get("containerStatuses") or []:
            crashed = self.waits == _BACK_OFF and "terminated" in one["state"] and one["restartCount"]
            if crashed or one["state"].get("waiting", {}).get("reason") == self.waits:
                return int(one["restartCount"])
        return None

    @property
    def turn(self) -> int:
        """The turn in which the pod is created, which is 0 for most pods.

        In turn 1, the node rejects the pod because of the pods from turn 0. A pod in turn 2 must not affect these
        results. In turn 3, a kubelet has stopped trusting a silent driver's last health report.
        """
        if self.name == OLD:
            return 3
        if "runtimeClassName" in self.spec:
            return 2  # a kubelet counts the pod's overhead twice
        return int(self.until == "Failed" and "activeDeadlineSeconds" not in self.spec)

    @property
    def is_scheduled(self) -> bool:
        """Whether the scheduler assigns the pod to its node, because claims must be allocated or the pod is gated."""
        containers = [*self.spec.get("containers", ()), {"resources": {"limits": self.size or {}}}]
        limits = [one.get("resources", {}).get("limits") or {} for one in containers]
        if "schedulingGates" in self.spec or "resourceClaims" in self.spec:
            return True
        return any(CLAIMED in one for one in limits)

    def pod(self, namespace: str, node: str) -> Json:
        """Return the pod's manifest for a node."""
        meta = {"name": self.name, "namespace": namespace, "annotations": self.annotations}
        if self.is_deleted:
            meta["finalizers"] = ["devicecore.io/test"]
        sizes = {"resources": {"limits": self.size, "requests": self.size}} if self.size else {}
        spec = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 5,
            "containers": [_container("main", **sizes)],
        }
        # A pod that the scheduler would reject can only be bound by node name.
        where = {"nodeSelector": {"kubernetes.io/hostname": node}} if self.is_scheduled else {"nodeName": node}
        return {"kind": "Pod", "metadata": meta, "spec": {**spec, **self.spec, **where}}


def _container(name: str, **fields: Json) -> Json:
    return {"name": name, "image": f"registry.example/{name}:1", **fields}


def _asking(**requests: str) -> Json:
    return {"resources": {"requests": requests}}


def _limited(**limits: str) -> Json:
    return {"resources": {"limits": limits}}


def _claiming(*claims: Json, init: Json = ()) -> Json:
    used = [{"name": one["name"]} for one in claims]
    return {
        "resourceClaims": list(claims),
        "containers": [_container("main", resources={"claims": used})],
        **({"initContainers": [_container(init, resources={"claims": used})]} if init else {}),
    }


def _with_volume(**source: Json) -> Json:
    mounts = [{"name": "data", "mountPath": "/data"}]
    return {"volumes": [{"name": "data", **source}], "containers": [_container("main", volumeMounts=mounts)]}


def _probe(*fields: str, command: str = "true", tries: int = 3) -> Json:
    probe = {"exec": {"command": [command]}, "periodSeconds": 1, "failureThreshold": tries}
    return {"containers": [_container("main", **dict.fromkeys(fields, probe))]}


def _own(**fields: Json) -> Json:
    return {"restartPolicy": "Always", "containers": [_container("main", **fields)]}


def _always(**spec: Json) -> Json:
    return {"restartPolicy": "Always", **spec}


_BACK_OFF, _NO_IMAGE = "CrashLoopBackOff", "ImagePullBackOff"
_LIVE, _STARTED = _probe("livenessProbe", command="live", tries=1), _probe("startupProbe", command="started", tries=2)
_LIVE_OF_TWO = {"containers": [*_LIVE["containers"], _container("second")]}
_RULES = {
    "restartPolicy": "Never",
    "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}],
}
_OWN_OF_TWO = {"containers": [_container("main", restartPolicy="Never"), _container("second")]}
_CLAIM = {"name": "device", "resourceClaimName": "claim"}
_TEMPLATE = {"name": "device", "resourceClaimTemplateName": "template"}
_PORT = {"containers": [_container("main", ports=[{"containerPort": 80, "hostPort": 8080}])]}
_UDP = {"containers": [_container("main", ports=[{"containerPort": 80, "hostPort": 8080, "protocol": "UDP"}])]}
_TWO = {"containers": [_container("main", **_asking(cpu="10m")), _container("second")]}
_PULLED = {"containers": [{**_container("main"), "image": "registry.example/none/main:1"}]}
_TWO_PULLED = {"containers": [_container("main"), {**_container("second"), "image": "registry.example/none/second:1"}]}
_SIDE = {"initContainers": [_container("side-car", restartPolicy="Always", **_asking(cpu="20m"))]}
_INIT = {"initContainers": [_container("init-one", **_asking(cpu="40m")), _container("init-two")]}
_BOTH = {"initContainers": [*_SIDE["initContainers"], *_INIT["initContainers"]]}
_OF_POD = {"resources": {"requests": {"cpu": "30m", "memory": "32Mi"}, "limits": {"cpu": "50m", "memory": "64Mi"}}}
_AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "example.com/none", "operator": "Exists"}]}]
        }
    }
}
_DEVICES_OF_INIT = {
    "initContainers": [_container("init-one", **_limited(**{GPU: "2"}))],
    "containers": [_container("main", **_limited(**{GPU: "1"}))],
}
_DEVICES_OF_SIDE = {
    "initContainers": [_container("side-car", restartPolicy="Always", **_limited(**{GPU: "1"}))],
    "containers": [_container("main", **_limited(**{GPU: "1"}))],
}

CASES: tuple[Case, ...] = (
    Case("plain"),
    Case("without-a-token", spec={"automountServiceAccountToken": False}),
    Case("devices", size={GPU: "2"}),
    Case("devices-of-two", spec={"containers": [_container(one, **_limited(**{GPU: "1"})) for one in ("main", "b")]}),
    Case("devices-of-an-init-container", spec=_DEVICES_OF_INIT),
    Case("devices-of-a-sidecar", spec=_DEVICES_OF_SIDE),
    Case("guaranteed", size={"cpu": "100m", "memory": "64Mi"}),
    Case("burstable", spec=_TWO),
    Case("limits-alone", spec={"containers": [_container("main", **_limited(cpu="100m", memory="64Mi"))]}),
    Case("odd-numbers", spec={"containers": [_container("main", **_asking(cpu="0.05", memory="65536k"))]}),
    Case("nothing-asked", spec={"containers": [_container("main", **_asking(cpu="0"))]}),
    Case("many-containers", spec={"containers": [_container(f"c-{number}") for number in range(9, 0, -1)]}),
    Case("pod-level", spec={**_TWO, **_OF_POD}),
    Case("pod-level-requests", spec={**_TWO, "resources": {"requests": {"cpu": "40m"}}}),
    Case("pod-level-limits", spec={"resources": {"limits": {"cpu": "50m", "memory": "64Mi"}}}),
    Case("pod-level-sidecar", spec={**_SIDE, **_OF_POD}),
    Case("overhead", spec={**_TWO, "runtimeClassName": RUNTIME_CLASS}),
    Case("overhead-of-a-pod-level", spec={**_OF_POD, "runtimeClassName": RUNTIME_CLASS}),
    Case("overhead-of-devices", size={GPU: "1"}, spec={"runtimeClassName": RUNTIME_CLASS}),
    Case("init", spec=_INIT),
    Case("sidecar", spec=_SIDE),
    Case("sidecar-and-init", spec=_BOTH),
    Case("always", spec={"restartPolicy": "Always"}),
    Case("on-failure", spec={"restartPolicy": "OnFailure"}),
    Case("gate", spec={"readinessGates": [{"conditionType": "example.com/gate"}]}),
    Case("probes", spec=_probe("readinessProbe", "livenessProbe", "startupProbe")),
    Case("scheduling-gate", spec={"schedulingGates": [{"name": "example.com/wait"}]}),
    Case("scheduling-gate-and-devices", size={GPU: "1"}, spec={"schedulingGates": [{"name": "example.com/wait"}]}),
    Case("host-users", spec={"hostUsers": True}),
    Case("no-host-users", spec={"hostUsers": False}),
    Case("host-network", spec={"hostNetwork": True}),
    Case("host-port", spec=_PORT),
    Case("host-port-taken", "Failed", spec=_PORT),
    Case("host-port-of-another-protocol", spec=_UDP),
    Case("empty-dir", spec=_with_volume(emptyDir={})),
    Case("config-map", spec=_with_volume(configMap={"name": "kube-root-ca.crt"})),
    Case("host-path", spec=_with_volume(hostPath={"path": "/etc"})),
    Case(
        "downward",
        spec=_with_volume(downwardAPI={"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]}),
    ),
    Case(
        "named-host",
        spec={"hostname": "a", "subdomain": "b", "dnsPolicy": "None", "dnsConfig": {"nameservers": ["10.0.0.1"]}},
    ),
    Case("job", "Succeeded", annotations={RUN_FOR: "1s"}),
    Case("job-on-failure", "Succeeded", spec={"restartPolicy": "OnFailure"}, annotations={RUN_FOR: "1s"}),
    Case("job-with-init", "Succeeded", spec=_INIT, annotations={RUN_FOR: "1s"}),
    Case("job-with-a-sidecar", "Succeeded", spec=_SIDE, annotations={RUN_FOR: "1s"}),
    Case("job-with-devices", "Succeeded", {GPU: "1"}, annotations={RUN_FOR: "1s"}),
    Case("deadline", "Failed", spec={"activeDeadlineSeconds": 2}),
    Case("too-many-devices", "Failed", {GPU: "99"}),
    Case("too-much-cpu", "Failed", {"cpu": "999"}),
    Case("too-much-memory", "Failed", {"memory": "999Ti"}),
    Case("too-much-for-a-pod", "Failed", spec={"resources": {"requests": {"cpu": "999"}}}),
    Case("huge-pages", "Failed", {"hugepages-2Mi": "4Mi", "cpu": "10m"}),
    Case("other-labels", "Failed", spec={"nodeSelector": {"example.com/none": "there"}}),
    Case("other-affinity", "Failed", spec={"affinity": _AFFINITY}),
    Case("other-system", "Failed", spec={"os": {"name": "windows"}}),
    Case("claim", spec=_claiming(_CLAIM)),
    Case(OLD, spec=_claiming(_CLAIM)),
    Case("claim-of-a-template", spec=_claiming(_TEMPLATE)),
    Case("claim-of-an-init-container", spec=_claiming(_TEMPLATE, init="init-one")),
    Case("claim-by-a-resource", size={CLAIMED: "1"}),
    Case("deleted", size={GPU: "1"}, is_deleted=True),
    Case("deleted-with-a-claim", spec=_claiming(_TEMPLATE), is_deleted=True),
    Case("deleted-with-a-sidecar", spec=_SIDE, is_deleted=True),
    Case("deleted-pod-level", spec=_OF_POD, is_deleted=True),
    Case("deleted-slowly", annotations={STOP_AFTER: "1s"}, is_deleted=True),
    Case("killed", annotations={STOP_AFTER: "1h"}, is_deleted=True),
    Case("exit-code", "Failed", annotations={DO: "exit 3 after 1s"}),
    Case("exit-codes-of-two", "Failed", spec=_TWO, annotations={DO: "main: exit 0 after 2s; second: exit 3 after 1s"}),
    Case("exit-of-one", spec=_TWO, annotations={DO: "second: exit 3 after 1s"}),
    Case("exit-with-devices", "Failed", {GPU: "1"}, annotations={DO: "exit 1 after 1s"}),
    Case("out-of-memory", "Failed", annotations={DO: "oom after 1s"}),
    Case("crash", spec=_always(), annotations={DO: "exit 1 after 1s"}, waits=_BACK_OFF),
    Case("crash-on-failure", spec={"restartPolicy": "OnFailure"}, annotations={DO: "exit 1 after 1s"}, waits=_BACK_OFF),
    Case("crash-of-one", spec=_always(**_TWO), annotations={DO: "second: exit 1 after 1s"}, waits=_BACK_OFF),
    Case("crash-with-devices", size={GPU: "1"}, spec=_always(), annotations={DO: "oom after 1s"}, waits=_BACK_OFF),
    Case("crash-with-a-claim", spec={**_claiming(_TEMPLATE), **_always()}, annotations={DO: "exit 1"}, waits=_BACK_OFF),
    Case("ends-well-again", spec=_always(), annotations={DO: "exit 0 after 1s"}, waits=_BACK_OFF),
    Case("own-policy", spec=_own(restartPolicy="Never"), annotations={DO: "exit 3 after 1s"}, until="Failed"),
    Case("own-policy-of-one", spec=_OWN_OF_TWO, annotations={DO: "main: exit 3 after 1s"}),
    Case("own-rules", spec=_own(**_RULES), annotations={DO: "exit 42 after 1s"}, waits=_BACK_OFF),
    Case("own-rules-that-do-not-match", spec=_own(**_RULES), annotations={DO: "exit 3 after 1s"}, until="Failed"),
    Case("not-live", spec=_always(**_LIVE), annotations={DO: "not-live after 1s"}, waits=_BACK_OFF),
    Case("not-live-and-not-restarted", "Failed", spec=_LIVE, annotations={DO: "not-live after 1s"}),
    Case("not-live-of-one", spec=_LIVE_OF_TWO, annotations={DO: "main: not-live after 1s"}),
    Case("not-started", spec=_always(**_STARTED), annotations={DO: "not-started after 2s"}, waits=_BACK_OFF),
    Case("not-started-and-not-restarted", "Failed", spec=_STARTED, annotations={DO: "not-started after 2s"}),
    Case("unready", spec=_probe("readinessProbe"), annotations={DO: "not-ready"}),
    Case("no-image", "Pending", spec=_PULLED, annotations={DO: "no-image"}, waits=_NO_IMAGE),
    Case("no-image-of-one", "Pending", spec=_TWO_PULLED, annotations={DO: "second: no-image"}, waits=_NO_IMAGE),
    Case("starts-slowly", annotations={DO: "start after 2s"}),
    Case("starts-never", "Pending", annotations={DO: "start after 1h"}),
    Case("deleted-while-it-crashes", spec=_always(), annotations={DO: "exit 1"}, waits=_BACK_OFF, is_deleted=True),
    Case(
        *("deleted-without-an-image", "Pending"),
        spec=_PULLED,
        annotations={DO: "no-image"},
        waits=_NO_IMAGE,
        is_deleted=True,
    ),
)
"""The pods."""

if os.environ.get("SHARE"):  # the cases that CI has time for
    CASES = tuple(one for one in CASES if one.name in ("devices", "pod-level", "sidecar", "claim", OLD))
