"""What an API server does with Pods that it does not do with other kinds.

Law: a function has the rules and the words of kube-apiserver 1.36. It changes nothing but the pod that it is given to
complete.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta

from devicecore.domain.errors import InvalidQuantityError
from devicecore.domain.quantity import whole_quantity
from devicecore_tools.testing.api_server.causes import (
    duplicate,
    forbidden,
    immutable,
    invalid_value,
    is_same,
    is_whole,
    label_causes,
    list_of,
    mapping_of,
    objects_of,
    quantity_causes,
    required,
    subdomain_causes,
    unsupported,
)
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


def complete(pod: Json) -> None:
    """Set the defaults of a pod that is created, and its first status."""
    given = {name: value for name, value in mapping_of(pod.get("spec")).items() if value is not None}
    spec = pod["spec"] = {**_DEFAULTS, **given}
    for part in _CONTAINERS:
        for _, container in objects_of(spec.get(part), part):
            resources = container.setdefault("resources", {})
            if limits := mapping_of(mapping_of(resources).get("limits")):
                resources["requests"] = {**limits, **mapping_of(resources.get("requests"))}
    pod["status"] = {"phase": "Pending", "qosClass": _qos_class(spec)}


def _qos_class(spec: Json) -> str:
    containers = [one for part in _CONTAINERS for _, one in objects_of(spec.get(part), part)]
    asked = [
        [{name: mapping_of(mapping_of(one["resources"]).get(part)).get(name) for name in _NATIVE} for one in containers]
        for part in ("requests", "limits")
    ]
    if not any(value for part in asked for one in part for value in one.values()):
        return "BestEffort"
    requests, limits = asked
    return "Guaranteed" if requests == limits and all(all(one.values()) for one in limits) else "Burstable"


def pod_causes(new: Json, old: Json | None) -> Iterator[Cause]:
    """What is wrong with a pod that is created or changed."""
    spec = mapping_of(new.get("spec"))
    if old is None:
        yield from _spec_causes(spec)
        return
    before = mapping_of(old.get("spec"))
    if not is_same(_fixed(spec), _fixed(before)):
        yield forbidden("spec", _MAY_ONLY)


def _fixed(spec: Json) -> Json:
    """The part of a spec that may not change."""
    containers = {part: [{**one, "image": None} for _, one in objects_of(spec.get(part), part)] for part in _CONTAINERS}
    return {name: value for name, value in spec.items() if name not in _MAY_CHANGE} | containers


def _spec_causes(spec: Json) -> Iterator[Cause]:
    if not list_of(spec.get("containers")):
        yield required("spec.containers")
    claims = [claim.get("name") for _, claim in objects_of(spec.get("resourceClaims"), "")]
    seen: set[object] = set()
    for part in _CONTAINERS:
        for field, container in objects_of(spec.get(part), f"spec.{part}"):
            name = container.get("name")
            yield from label_causes(name, f"{field}.name")
            if name in seen:
                yield duplicate(f"{field}.name", name)
            seen.add(name)
            if not container.get("image"):
                yield required(f"{field}.image")
            yield from _resource_causes(mapping_of(container.get("resources")), f"{field}.resources", claims)
    if spec["restartPolicy"] not in ("Always", "OnFailure", "Never"):
        yield unsupported("spec.restartPolicy", spec["restartPolicy"], ("Always", "OnFailure", "Never"))
    if spec.get("nodeName"):
        yield from subdomain_causes(spec["nodeName"], "spec.nodeName")


def _resource_causes(resources: Json, field: str, claims: list[object]) -> Iterator[Cause]:
    limits, requests = (mapping_of(resources.get(part)) for part in ("limits", "requests"))
    for part, sizes in (("limits", limits), ("requests", requests)):
        for name, size in sizes.items():
            yield from quantity_causes(size, f"{field}.{part}[{name}]") if "/" in name else ()
    for name, size in requests.items():
        if "/" in name and name not in limits:
            yield required(f"{field}.limits", "Limit must be set for non overcommitable resources")
        elif "/" in name and not _is_equal(size, limits[name]):
            yield invalid_value(f"{field}.requests", str(size), f"must be equal to {name} limit of {limits[name]}")
    for path, claim in objects_of(resources.get("claims"), f"{field}.claims"):
        if claim.get("name") not in claims:
            yield Cause(f"{path}.name", f'Not found: "{claim.get("name")}"')


def _is_equal(one: object, other: object) -> bool:
    try:
        return whole_quantity(str(one)) == whole_quantity(str(other))
    except InvalidQuantityError:  # the field has a cause of its own
        return True


def pod_status_causes(new: Json, old: Json) -> Iterator[Cause]:
    """What is wrong with a status that a kubelet or a scheduler has written."""
    status, before = mapping_of(new.get("status")), mapping_of(old.get("status"))
    spec = mapping_of(new.get("spec"))
    if status.get("qosClass") != before.get("qosClass"):
        yield immutable("status.qosClass", status.get("qosClass"))
    for field, condition in objects_of(status.get("conditions"), "status.conditions"):
        generation = condition.get("observedGeneration", 0)
        if not is_whole(generation) or generation < 0:
            yield invalid_value(f"{field}.observedGeneration", generation, "must be non-negative")
    ended = {
        one["name"]: mapping_of(one["state"])["terminated"]
        for _, one in objects_of(before.get("containerStatuses"), "")
        if mapping_of(one.get("state")).get("terminated")
    }
    for field, one in objects_of(status.get("containerStatuses"), "status.containerStatuses"):
        for name in ("name", "image", "imageID", "ready", "restartCount"):
            if name not in one:
                yield required(f"{field}.{name}")
        is_last = spec.get("restartPolicy") == "Never" or (
            spec.get("restartPolicy") == "OnFailure" and mapping_of(ended.get(one.get("name"))).get("exitCode") == 0
        )
        if is_last and one.get("name") in ended and not mapping_of(one.get("state")).get("terminated"):
            yield forbidden(f"{field}.state", "may not be transitioned to non-terminated state")
        yield from _health_causes(one, spec, field)


def _health_causes(status: Json, spec: Json, field: str) -> Iterator[Cause]:
    """What is wrong with the health of the resources of one container."""
    containers = [one for part in _CONTAINERS for _, one in objects_of(spec.get(part), part)]
    resources = next((mapping_of(one.get("resources")) for one in containers if one["name"] == status.get("name")), {})
    claims = [one for _, one in objects_of(resources.get("claims"), "")]
    known = {
        *mapping_of(resources.get("requests")),
        *("/".join(filter(None, (f"claim:{claim['name']}", claim.get("request")))) for claim in claims),
    }
    for path, of in objects_of(status.get("allocatedResourcesStatus"), f"{field}.allocatedResourcesStatus"):
        if of.get("name") not in known:
            yield invalid_value(f"{path}.name", of.get("name"), "must match one of the container's resource requests")
        seen: set[object] = set()
        for below, device in objects_of(of.get("resources"), f"{path}.resources"):
            if device.get("health", "Healthy") not in _HEALTHS:
                yield unsupported(f"{below}.health", device["health"], _HEALTHS)
            if device.get("resourceID") in seen:
                yield duplicate(f"{below}.resourceID", device.get("resourceID"))
            seen.add(device.get("resourceID"))


def bound(pod: Json, binding: Json, now: datetime) -> Json:
    """Return the pod after a scheduler has bound it.

    Raises:
        ApiError: the pod is bound, is being deleted, or is another one.
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
    """Return the pod after a deletion has begun or was made shorter. Return None if nothing changes.

    `wanted` is the grace period that the client asks for, in seconds.
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
