"""Events of a node and its pods, in a kubelet's words.

Law: an event is named after its object and the nanosecond at which the event was first seen, so two events about an
object at different times have different names. An API server accepts every name that `event` chooses.
"""

from datetime import UTC, datetime
from uuid import NAMESPACE_DNS, uuid5

from attrs import frozen

from devicecore.domain.names import is_dns_subdomain
from devicecore_fleet.cluster.words.patches import Json, written

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@frozen
class Said:
    """The content of an event: the reason, the message, whether the event is a warning, and the container concerned.

    `part` is the spec field that contains the container.
    """

    reason: str
    message: str
    is_warning: bool = False
    container: str = ""
    part: str = "containers"


STARTING = Said("Starting", "Starting kubelet.")
PAST_DEADLINE = Said("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")


def refused(reason: str, message: str) -> Said:
    """Say that the pod was not admitted. `message` is the message in the pod's status, without its prefix."""
    return Said(reason, message, is_warning=True)


def not_prepared(problem: str) -> Said:
    """Say that the pod's claims could not be prepared. `problem` starts with `prepare dynamic resources`."""
    return Said("FailedPrepareDynamicResources", f"Failed to prepare dynamic resources: {problem}", is_warning=True)


def killing(container: str, part: str = "containers") -> Said:
    """Say that a container is stopped: the pod was deleted or timed out, or its main containers have exited."""
    return Said("Killing", f"Stopping container {container}", container=container, part=part)


def waits(reason: str, message: str, container: str, image: str) -> list[Said]:
    """Say that a container is waiting, with this reason and this message in its status."""
    if reason == "CrashLoopBackOff":
        failed = f"failed container {container} in pod {message.rpartition('pod=')[2]}"
        return [Said("BackOff", f"Back-off restarting {failed}", is_warning=True, container=container)]
    error = Said("Failed", f"Error: {reason}", is_warning=True, container=container)
    if reason == "ErrImagePull":
        pull = f'Failed to pull image "{image}": {message}'
        return [Said("Failed", pull, is_warning=True, container=container), error]
    if reason == "ImagePullBackOff":
        return [Said("BackOff", f'Back-off pulling image "{image}"', container=container), error]
    return []


def unhealthy(probe: str, container: str) -> Said:
    """Say that the `readiness`, `liveness` or `startup` probe of a container fails."""
    return Said("Unhealthy", f"{probe.capitalize()} probe failed: ", is_warning=True, container=container)


def failed_probe(probe: str, container: str, *, restarts: bool) -> list[Said]:
    """Say that a container is stopped, and perhaps restarted, because its `liveness` or `startup` probe fails."""
    why = f"Container {container} failed {probe} probe{', will be restarted' if restarts else ''}"
    return [unhealthy(probe, container), Said("Killing", why, container=container)]


def not_understood(problem: str) -> Said:
    """Say that an annotation is invalid. A kubelet does not send such an event."""
    return Said("NotUnderstood", problem, is_warning=True)


def event(about: Json, node: str, said: Said, now: datetime, nanoseconds: int | None = None) -> Json:
    """Return a new event about a Node or a pod, as an API object.

    Args:
        about: the Node or the pod.
        node: the name of the node, which is the kubelet's host name.
        said: the content of the event.
        now: when the event happened.
        nanoseconds: the same time in nanoseconds since 1970, if it is known that precisely; used in the event's name.
    """
    metadata = about["metadata"]
    since = now - _EPOCH
    exact = nanoseconds or (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000
    name = f"{metadata['name']}.{exact:x}"
    if not is_dns_subdomain(name):  # the name would be too long; a kubelet also uses a UUID then (GenerateEventName)
        name = str(uuid5(NAMESPACE_DNS, name))
    involved = {"kind": about["kind"], "name": metadata["name"], "apiVersion": "v1"}
    if about["kind"] == "Pod":
        involved |= {name: metadata[name] for name in ("namespace", "uid", "resourceVersion") if name in metadata}
    if said.container:
        involved["fieldPath"] = f"spec.{said.part}{{{said.container}}}"
    return {
        "kind": "Event",
        "apiVersion": "v1",
        "metadata": {"name": name, "namespace": metadata.get("namespace", "default")},
        "involvedObject": involved,
        "reason": said.reason,
        "message": said.message,
        "source": {"component": "kubelet", "host": node},
        "firstTimestamp": written(now),
        "lastTimestamp": written(now),
        "count": 1,
        "type": "Warning" if said.is_warning else "Normal",
        "eventTime": None,
        "reportingComponent": "kubelet",
        "reportingInstance": node,
    }
