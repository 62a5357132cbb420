"""What an API server does only for Pods.

Law: the functions use kube-apiserver 1.36's rules and wording, and only `set_defaults` and `complete` change a pod.
"""

from datetime import datetime, timedelta

from devicecore.domain.errors import InvalidQuantityError
from devicecore.domain.quantity import Quantity
from devicecore_tools.testing.api_server.causes import Field, is_same, mapping_of, objects_in
from devicecore_tools.testing.api_server.status import Cause, Json, conflict

_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
_ENDED = ("Failed", "Succeeded")
_CONTAINERS = ("initContainers", "containers")
_HEALTHS = ("Healthy", "Unhealthy", "Unknown")
_NATIVE = ("cpu", "memory")
_MAY_CHANGE = ("activeDeadlineSeconds", "terminationGracePeriodSeconds", "tolerations", *_CONTAINERS)
_MAY_ONLY = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
_DEFAULTS: Json = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
}


def set_defaults(pod: Json) -> None:
    """Set a pod's defaults."""
    given = {name: value for name, value in mapping_of(pod.get("spec")).items() if value is not None}
    spec = pod["spec"] = {**_DEFAULTS, **given}
    for part in _CONTAINERS:
        for container in objects_in(spec.get(part)):
            resources = container.setdefault("resources", {})
            if limits := mapping_of(mapping_of(resources).get("limits")):
                resources["requests"] = {**limits, **mapping_of(resources.get("requests"))}


def complete(pod: Json) -> None:
    """Set the first status of a new pod."""
    pod["status"] = {"phase": "Pending", "qosClass": _qos_class(pod["spec"])}


def _qos_class(spec: Json) -> str:
    containers = [one for part in _CONTAINERS for one in objects_in(spec.get(part))]
    asked = [
        [{name: mapping_of(mapping_of(one["resources"]).get(part)).get(name) for name in _NATIVE} for one in containers]
        for part in ("requests", "limits")
    ]
    if not any(value for part in asked for one in part for value in one.values()):
        return "BestEffort"
    requests, limits = asked
    return "Guaranteed" if requests == limits and all(all(one.values()) for one in limits) else "Burstable"


def pod_causes(new: Json, old: Json | None) -> list[Cause]:
    """Return what is wrong with a created or changed pod."""
    spec = Field("", new)["spec"]
    if old is None:
        _check_spec(spec)
    elif not is_same(_fixed(mapping_of(spec.value)), _fixed(mapping_of(old.get("spec")))):
        spec.forbidden(_MAY_ONLY)
    return spec.causes


def _fixed(spec: Json) -> Json:
    """Return the immutable part of a spec."""
    containers = {part: [{**one, "image": None} for one in objects_in(spec.get(part))] for part in _CONTAINERS}
    return {name: value for name, value in spec.items() if name not in _MAY_CHANGE} | containers


def _check_spec(spec: Field) -> None:
    spec["containers"].require()
    claims = [claim["name"].value for claim in spec["resourceClaims"]]
    seen: set[object] = set()
    for container in (one for part in _CONTAINERS for one in spec[part]):
        name = container["name"]
        name.label()
        if name.value in seen:
            name.duplicate()
        seen.add(name.value)
        container["image"].require()
        _check_resources(container["resources"], claims)
    spec["restartPolicy"].one_of(("Always", "OnFailure", "Never"))
    if spec["nodeName"].value:
        spec["nodeName"].subdomain()


def _check_resources(resources: Field, claims: list[object]) -> None:
    limits = mapping_of(resources["limits"].value)
    for name, size in (*resources["limits"].entries(), *resources["requests"].entries()):
        if "/" in name:
            size.quantity()
    for name, size in resources["requests"].entries():
        if "/" in name and name not in limits:
            resources["limits"].required("Limit must be set for non overcommitable resources")
        elif "/" in name and not _is_equal(size.value, limits[name]):
            resources["requests"].invalid(f"must be equal to {name} limit of {limits[name]}", str(size.value))
    for claim in resources["claims"]:
        if claim["name"].value not in claims:
            claim["name"].add(f'Not found: "{claim["name"].value}"')


def _is_equal(one: object, other: object) -> bool:
    try:
        return Quantity.parse(str(one)).nanos == Quantity.parse(str(other)).nanos
    except InvalidQuantityError:  # a separate cause is recorded for this field
        return True


def pod_status_causes(new: Json, old: Json) -> list[Cause]:
    """Return what is wrong with a status that a kubelet or a scheduler has written."""
    status, before, spec = Field("", new)["status"], Field("", old)["status"], mapping_of(new.get("spec"))
    if status["qosClass"].value != before["qosClass"].value:
        status["qosClass"].unchanged(before["qosClass"].value)
    for condition in status["conditions"]:
        condition["observedGeneration"].at_least(0, "must be non-negative")
    ended = {
        one["name"].value: one["state"]["terminated"]["exitCode"].value
        for one in before["containerStatuses"]
        if one["state"]["terminated"].value
    }
    for one in status["containerStatuses"]:
        for name in ("name", "image", "imageID", "ready", "restartCount"):
            if name not in one.value:
                one[name].required()
        name, policy = one["name"].value, spec.get("restartPolicy")
        is_last = name in ended and (policy == "Never" or (policy == "OnFailure" and ended[name] == 0))
        if is_last and not one["state"]["terminated"].value:
            one["state"].forbidden("may not be transitioned to non-terminated state")
        _check_health(one, spec)
    return status.causes


def _check_health(status: Field, spec: Json) -> None:
    """Check the health of one container's resources."""
    containers = [one for part in _CONTAINERS for one in objects_in(spec.get(part))]
    name = status["name"].value
    resources = next((mapping_of(one.get("resources")) for one in containers if one["name"] == name), {})
    claims = [*objects_in(resources.get("claims"))]
    known = {
        *mapping_of(resources.get("requests")),
        *("/".join(filter(None, (f"claim:{claim['name']}", claim.get("request")))) for claim in claims),
    }
    for resource in status["allocatedResourcesStatus"]:
        if resource["name"].value not in known:
            resource["name"].invalid("must match one of the container's resource requests")
        for device in resource["resources"]:
            if "health" in device.value:
                device["health"].one_of(_HEALTHS)
        resource["resources"].unique("resourceID")


def bound(pod: Json, binding: Json, now: datetime) -> Json:
    """Return the pod after a scheduler has bound it.

    Raises ApiError if the pod is already bound, is being deleted, or is not the pod that the binding names.
    """
    name, spec = pod["metadata"]["name"], pod["spec"]
    node = mapping_of(binding.get("target")).get("name") or ""
    resource, problem = "pods/binding", ""
    if mapping_of(binding.get("metadata")).get("uid") not in (None, pod["metadata"]["uid"]):
        problem = f"Precondition failed: UID in precondition: {binding['metadata']['uid']}"
    elif "deletionTimestamp" in pod["metadata"]:
        problem = f"pod {name} is being deleted, cannot be assigned to a host"
    elif spec.get("nodeName"):
        problem = f'pod {name} is already assigned to node "{spec["nodeName"]}"'
    elif not node:
        problem = "target.name: Required value"
    if problem:
        raise conflict(resource, name, problem)
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": now.strftime(_FORMAT)}
    others = [one for one in pod["status"].get("conditions") or [] if one["type"] != "PodScheduled"]
    status = {**pod["status"], "conditions": [*others, {"lastProbeTime": None, **scheduled}]}
    return {**pod, "spec": {**spec, "nodeName": node}, "status": status}


def ending(pod: Json, wanted: int | None, now: datetime) -> Json | None:
    """Return the pod after its deletion was started or shortened, or None if nothing changes.

    `wanted` is the grace period that the client requests, in seconds.
    """
    metadata, spec = pod["metadata"], pod["spec"]
    grace = spec["terminationGracePeriodSeconds"] if wanted is None else wanted
    if not spec.get("nodeName") or pod["status"].get("phase") in _ENDED:
        grace = 0
    start, generation = now, metadata.get("generation", 0) + 1
    if "deletionTimestamp" in metadata:
        left = metadata.get("deletionGracePeriodSeconds", 0)
        if wanted is None or wanted >= left:
            return None
        grace, generation = wanted, metadata.get("generation", 0)
        start = datetime.strptime(metadata["deletionTimestamp"], _FORMAT).replace(tzinfo=now.tzinfo)
        start -= timedelta(seconds=left)
    end = (start + timedelta(seconds=grace)).strftime(_FORMAT)
    ended = {"deletionTimestamp": end, "deletionGracePeriodSeconds": grace, "generation": generation}
    return {**pod, "metadata": {**metadata, **ended}}
