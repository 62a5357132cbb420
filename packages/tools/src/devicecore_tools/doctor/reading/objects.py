"""Reads pods and the Node from a kubelet's `/pods`, `kubectl get -o json` or an API server.

Law: a list of pods is read completely or not at all, because a missing pod would look like a pod that is gone.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import TypeVar

from attrs import evolve

from devicecore.domain.documents import Value, described
from devicecore.domain.errors import DocumentError
from devicecore.domain.json_size import MAX_BYTES
from devicecore.domain.model import is_extended_resource
from devicecore.domain.objects import pod_of
from devicecore.domain.text import foreign_text
from devicecore.system.files import read_file
from devicecore_tools.doctor.look.values import (
    EventSeen,
    NodeSeen,
    PodSeen,
    Reading,
)
from devicecore_tools.doctor.reading.cluster_nodes import ClusterNode, Sizes, labels_of, tolerations_of
from devicecore_tools.doctor.reading.large_documents import read_document_file

OF_NODES = ("Node", "Pod", "Event", "ResourceSlice", "ResourceClaim", "DeviceClass")
"""The kinds that show what happens on nodes."""

STATIC_UIDS = ("kubernetes.io/config.mirror", "kubernetes.io/config.hash")
"""Annotations with the UID under which the kubelet knows a static pod (kubelet: `ConfigMirrorAnnotationKey`)."""

_LABELS_OF_CONTROLLERS = {"controller-revision-hash", "pod-template-generation", "pod-template-hash"}
Seen = TypeVar("Seen")


def read_pods(path: str) -> Reading[tuple[PodSeen, ...]]:
    """Return the pods in a file."""
    return reading(path, lambda: pods_in(read_document_file(path)))


def read_running_pods(path: str) -> Reading[tuple[PodSeen, ...]]:
    """Return the pods that `devicecore kubelet --manifests` runs, from the file that it reads when it next starts."""
    try:
        from devicecore.adapters.manifests.pods import read_manifest
        from devicecore.adapters.manifests.pods_file import state_in, this_boot
    except ModuleNotFoundError as error:
        return Reading(path, problem=f"it is skipped, because PyYAML is not installed ({error.name} is missing)")
    try:
        files, running = state_in(read_file(path, MAX_BYTES), this_boot())
        pods = [pod for name, text in files.items() for pod in read_manifest(text, name).pods]
    except OSError as error:
        return Reading(path, problem=error.strerror or str(error))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        return Reading(path, problem=foreign_text(str(error)))
    seen = tuple(PodSeen(pod, "Running" if pod.uid in running else "Pending") for pod in pods)
    # No user chose the pods in this file, so an empty file is believed if the kubelet also lists no pods.
    return evolve(Reading.of(path, seen), is_recorded=not seen)


def reading(place: str, read: Callable[[], Seen]) -> Reading[Seen]:
    """Return the result of `read`, or why the document cannot be used."""
    try:
        return Reading.of(place, read())
    except DocumentError as error:
        return Reading(place, problem=str(error))


def pods_in(document: Value) -> tuple[PodSeen, ...]:
    """Return the pods in a list. Raises DocumentError if the document is not a complete list of pods."""
    return tuple([_pod(item) for item in items_of(document, "pods", "PodList")])


def events_in(document: Value) -> tuple[EventSeen, ...]:
    """Return the events about pods in a list, or in one event.

    Raises DocumentError if the document is neither an Event nor a complete list of events.
    """
    if document["kind"].text("") == "Event":
        return tuple(_event(document))
    events = tuple(items_of(document, "events", "EventList"))
    if events and (kind := events[0]["kind"].text("Event")) != "Event":
        events[0]["kind"].refuse(f"expected an Event, got {described(kind)}")
    return tuple(about for event in events for about in _event(event))


def _event(item: Value) -> Iterator[EventSeen]:
    about = item["involvedObject"] if item["regarding"].data is None else item["regarding"]
    if about["kind"].text("") != "Pod":
        return
    series = item["series"]["lastObservedTime"].text("")
    times = (item[key].text("") for key in ("lastTimestamp", "deprecatedLastTimestamp", "eventTime", "firstTimestamp"))
    yield EventSeen(
        about["namespace"].text(""),
        about["name"].text(""),
        about["uid"].text(""),
        item["reason"].text(""),
        item["message"].text("") or item["note"].text(""),
        _in_utc(series or next(filter(None, times), "")),
    )


def _in_utc(text: str) -> str:
    """Return a time in UTC, so that the strings sort like the times. An invalid time stays unchanged."""
    with suppress(ValueError, OverflowError):
        moment = datetime.fromisoformat(text)
        return text if moment.tzinfo is None else moment.astimezone(UTC).isoformat(timespec="microseconds")
    return text


def items_of(document: Value, what: str, kind: str) -> Iterator[Value]:
    """Yield the items of a list of this kind, or the items of this kind in a generic List.

    A List without items of this kind yields its other items, so that the caller refuses the first of them. `kind` may
    be `List` if the items may be of any kind.

    Raises DocumentError if the document is not such a list, or is only part of one.
    """
    actual = document["kind"].text("")
    if actual not in {"List", kind}:
        document["kind"].refuse(f"expected a list of {what} ({kind} or List), got {described(actual)}")
    if rest := document["metadata"]["continue"].text(""):
        document["metadata"]["continue"].refuse(f"the list is not complete: it continues with {described(rest)}")
    if (lacking := document["metadata"]["remainingItemCount"]).integer(0) > 0:
        lacking.refuse(f"the list is not complete: {described(lacking.data)} more {what} follow")
    items, of_item = document["items"].sequence(), kind.removesuffix("List")
    # `kubectl get pods,nodes` prints one List
    yield from [item for item in items if of_item and item["kind"].text(of_item) == of_item] or items


def node_in(document: Value) -> NodeSeen:
    """Return the parts of a Node that concern devices. Raises DocumentError if the document is not a Node."""
    kind = document["kind"].text("")
    status = document["status"]
    if not kind and document["capacity"].data is not None:
        status = document
    elif kind != "Node":
        document["kind"].refuse(f"expected a Node, got {described(kind)}")
    machine = ClusterNode.of(document, status)
    ready = next((one for one in status["conditions"].sequence() if one["type"].data == "Ready"), None)
    info = status["nodeInfo"]
    why = ": ".join(filter(None, (ready["reason"].text(""), ready["message"].text("")))) if ready else ""
    return NodeSeen(
        machine.target.name,
        info["kubeletVersion"].text(""),
        _counts(machine.capacity),
        _counts(machine.allocatable),
        ready["status"].text("") if ready else "",
        why,
        (info["machineID"].text(""), info["bootID"].text("")),
        machine.all_taints,
        {
            one["type"].text(): one["message"].text("")
            for one in status["conditions"].sequence()
            if one["status"].data == "True" and one["type"].text("").endswith("Pressure")
        },
        pods.whole if (pods := machine.allocatable.get("pods")) is not None else None,
        dict(_unsettled(document)),
        seconds_of(ready["lastHeartbeatTime"].text("")) if ready else None,
    )


_GOOD = ("Ready", "Healthy", "Available", "IsVoter")  # suffixes of the conditions that are true on a healthy node


def _unsettled(node: Value) -> Iterator[tuple[str, str]]:
    """Yield a note if the Node is being deleted, and its abnormal conditions other than Ready and pressure.

    If another program's condition is true, something is wrong, unless the condition's name says the opposite.
    """
    if node["metadata"]["deletionTimestamp"].data is not None:
        yield "deletionTimestamp", "the Node is being deleted"
    conditions = {one["type"].text(""): one for one in node["status"]["conditions"].sequence()}
    if conditions and "Ready" not in conditions:
        yield "Ready", "the Node has no such condition"
    is_heard = "Ready" in conditions and conditions["Ready"]["status"].data != "Unknown"
    for name, one in conditions.items():
        status = one["status"].text("")
        if name == "Ready" or (name.endswith("Pressure") and status == "True"):
            continue
        if status != ("True" if name.endswith(_GOOD) else "False") and (status != "Unknown" or is_heard):
            yield name, ": ".join(filter(None, (status, one["reason"].text(""), one["message"].text(""))))


def _pod(item: Value) -> PodSeen:
    if (kind := item["kind"].text("Pod")) != "Pod":
        item["kind"].refuse(f"expected a Pod, got {described(kind)}")
    metadata, status = item["metadata"], item["status"]
    conditions = {(one["type"].data, one["status"].data): one for one in status["conditions"].sequence()}
    scheduled = conditions.get(("PodScheduled", "True"))
    pod, annotations = pod_of(item), metadata["annotations"]
    known = (annotations[key].data for key in STATIC_UIDS)
    others = tuple(dict.fromkeys(uid for uid in known if isinstance(uid, str) and uid and uid != pod.uid))
    return PodSeen(
        pod,
        status["phase"].text(""),
        others,
        item["spec"]["nodeName"].text(""),
        status["startTime"].data is not None or bool(status["containerStatuses"].data),
        metadata["deletionTimestamp"].data is not None,
        ("PodReadyToStartContainers", "True") in conditions,
        dict(_statuses(status)),
        tolerations_of(item),
        frozenset((name, value) for name, value in labels_of(metadata).items() if name not in _LABELS_OF_CONTROLLERS),
        seconds_of(metadata["deletionTimestamp"].text("")),
        None if scheduled is None else seconds_of(scheduled["lastTransitionTime"].text("")),
        seconds_of(metadata["creationTimestamp"].text("")),
        (status["reason"].text(""), status["message"].text("")),
        {
            one["name"].text(): (waits["reason"].text(""), waits["message"].text(""))
            for kind in ("initContainerStatuses", "containerStatuses")
            for one in status[kind].sequence()
            if (waits := _waiting(one)) is not None
        },
        ("PodReadyToStartContainers", "False") in conditions,
    )


_NOT_STARTED = ("StartError", "ContainerCannotRun")
"""The reasons that runtimes give for a container that they could not start. The kubelet then waits and retries."""


def _waiting(container: Value) -> Value | None:
    """Return why a container could not be started or is waiting, or None if neither is the case."""
    if container["state"]["running"].data is not None:
        return None
    ended = (container["state"]["terminated"], container["lastState"]["terminated"])
    failed = next((one for one in ended if one["reason"].data in _NOT_STARTED), None)
    if failed is not None:
        return failed
    waiting = container["state"]["waiting"]
    return None if waiting.data is None else waiting


def seconds_of(text: str) -> float | None:
    """Return a time in seconds since 1970, or None if the string is not a time with a time zone."""
    with suppress(ValueError, OverflowError):
        moment = datetime.fromisoformat(text)
        return None if moment.tzinfo is None else moment.timestamp()
    return None


def _statuses(status: Value) -> Iterator[tuple[tuple[str, str], dict[str, str]]]:
    """Yield the health of each container's devices, by resource, from a pod's status."""
    for container in status["containerStatuses"].sequence():
        for one in container["allocatedResourcesStatus"].sequence():
            devices = {device["resourceID"].text(): device["health"].text("") for device in one["resources"].sequence()}
            yield (container["name"].text(), one["name"].text()), devices


def _counts(sizes: Sizes) -> dict[str, int]:
    """Return the extended resources in a section of a Node's status, with their counts."""
    return {name: size.whole for name, size in sizes.items() if is_extended_resource(name)}
