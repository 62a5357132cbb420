"""Checks of pods that are bound to the node: refused pods, and pods whose containers cannot start.

Law: these checks find only problems that the statuses of pods report.
"""

import re
from collections.abc import Iterator

from devicecore.domain.text import counted, foreign_text
from devicecore_tools.doctor.account.precedence import Pods
from devicecore_tools.doctor.findings.finding import Evidence, Found
from devicecore_tools.doctor.look.names import name, names
from devicecore_tools.doctor.look.values import NOT_STARTED, Look, PodSeen, Source, grouped

_MAX_MESSAGE = 1_000  # how many characters of a kubelet's message are shown
_VARIES = re.compile(r"\.\d{6,}|\d+")  # the suffix of a temporary file, or a count: both differ from pod to pod
_ERRORS = NOT_STARTED | {"CreateContainerConfigError"}
_OF_DEVICES = re.compile(
    r"CDI|device|PreStartContainer|endpoint|claim|allocat|/dev/|driver|hook|NRI\b|nvidia|nvml|habana|neuron|vfio|rdma",
    re.IGNORECASE,
)


def pods_refused(look: Look, pods: Pods) -> Iterator[Found]:
    """Find pods that the kubelet has refused."""
    node = look.node.value
    refused = [
        one for one in pods.by_name.values() if one.was_refused and (node is None or one.node in ("", node.name))
    ]
    for alike in grouped((_VARIES.sub("", ": ".join(one.said)), one) for one in refused).values():
        first = alike[0]
        said = foreign_text(": ".join(filter(None, first.said)), _MAX_MESSAGE)
        who = names([one.identity for one in alike])
        sentence = f"The kubelet has refused {counted(len(alike), 'pod')} here ({who}): {said.rstrip('.')}."
        evidence = (Evidence(Source.PODS, f"{name(first.identity)} is Failed: {said}"),)
        yield Found(sentence, evidence, _resource(first), pods=tuple(one.identity for one in alike), says=first.said[1])


def container_cannot_start(pods: Pods) -> Iterator[Found]:
    """Find containers that wait because the kubelet or the runtime cannot provide their devices."""
    for pod in (*pods.here, *pods.perhaps_here):
        for container, (reason, message) in pod.waiting.items():
            if reason in _ERRORS and pod.asks_for_devices and _OF_DEVICES.search(message):
                said = foreign_text(f"{reason}: {message}", _MAX_MESSAGE)
                sentence = f"Container {name(container)} of pod {name(pod.identity)} cannot start: {said.rstrip('.')}."
                evidence = (Evidence(Source.PODS, f"{name(pod.identity)}, {name(container)} waits: {said}"),)
                yield Found(sentence, evidence, _resource(pod), pods=(pod.identity,), says=message)


def _resource(pod: PodSeen) -> str:
    """Return the resource in a pod's limits, or an empty string if the limits name none or several."""
    wanted = {resource for one in pod.pod.in_start_order for resource in one.limits}
    return wanted.pop() if len(wanted) == 1 else ""
