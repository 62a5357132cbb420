"""What the scheduler says of a pod that it cannot place: its sentence, taken apart and explained.

Law: a reason that is not known is repeated as it is, never guessed at. For a taint that Kubernetes sets because of a
trouble of the node, the trouble is named and never a toleration.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from attrs import frozen

from devicecore.domain.model import is_extended_resource
from devicecore.domain.text import counted, foreign_text
from devicecore_tools.doctor.pod.pasted import records

NEXT = (
    "No kubelet has seen the pod. The scheduler tries again when something changes that could help: a pod ends, a "
    "Node, a claim or a ResourceSlice changes; at the latest after five minutes."
)
"""What the scheduler does next."""

NodesSeen = Mapping[str, Mapping[str, tuple[int, int]]]
"""The Nodes by name, each with capacity and allocatable of its extended resources."""

_MAX_REASONS = 20
_MAX_NODES = 3  # that are named
_SENTENCE = re.compile(r"\b(\d{1,7})/(\d{1,7}) nodes are available: (.{1,8000})", re.DOTALL)
_END = re.compile(r"\.(?:[\s\"'`}|<]|$)|,? preemption: |,? still not schedulable|,? no new claims to deallocate")
_PART = re.compile(r"(?:^|, )(?:(\d{1,7}) )(.+?)(?=, \d{1,7} |$)|^(.+)", re.DOTALL)  # the last is said of all nodes
_INSUFFICIENT = re.compile(r"Insufficient (\S{1,400})", re.IGNORECASE)
_TAINT = re.compile(r"node\(s\) had (?:untolerated )?taints?(?:\(s\))?(?: \{([^}:]{1,400})(?::[^}]*)?\})?")

_CLASS_MISSING = re.compile(r"device class (\S{1,300}) does not exist")
_NO_NODES = "no nodes available to schedule pods"
_CLAIM_MISSING = re.compile(r'resourceclaims?(?:\.resource\.k8s\.io)? "([^"]{1,300})" not found')
_DEVICE_TAINT = re.compile(r"Device Taint manager: [^\n]{1,400}", re.IGNORECASE)
_OF_OTHERS = (
    (re.compile(r"nvidia\.com/(gpumem|gpumem-percentage|gpucores)"), "HAMi"),
    (re.compile(r"volcano\.sh/(vgpu|gpu)-\S+"), "Volcano"),
    (re.compile(r"aliyun\.com/gpu-(mem|count)|aliyun\.com/gpu-core.*"), "gpushare of Aliyun"),
    (re.compile(r"tencent\.com/vcuda-(core|memory)"), "gpu-manager of Tencent"),
    (re.compile(r"koordinator\.sh/\S+"), "Koordinator"),
)
"""Resources that no Node has, because another scheduler counts them."""


@cache
def _table(kind: str, key: str) -> Mapping[str, tuple[str, str]]:
    """Return the rows of a kind of `scheduler.toml` by one of their fields, each with `means` and `change`."""
    document = tomllib.loads(files(__package__).joinpath("scheduler.toml").read_text(encoding="utf-8"))
    return {one[key]: (one["means"], one["change"]) for one in document[kind]}


@frozen
class Unscheduled:
    """A sentence of the scheduler: why, what would have to change, and the resources of which there is too little."""

    text: str
    because: str
    change: str
    resources: tuple[str, ...] = ()


def find_unscheduled(
    text: str, nodes: NodesSeen | None = None, absent: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Unscheduled]:
    """Find each sentence of the scheduler, or of the controller of device taints, in what users paste.

    Args:
        text: what users paste.
        nodes: the Nodes that were read, if some were.
        absent: why there is nothing of a resource, if the sources of its node were read.
    """
    for record in records(text):
        yield from _in_record(" ".join(record.split()), nodes, absent)


def _in_record(text: str, nodes: NodesSeen | None, absent: Mapping[str, str]) -> Iterator[Unscheduled]:
    for found in _DEVICE_TAINT.finditer(text):
        yield Unscheduled(
            found[0],
            "A device of the pod's ResourceClaim has a taint with the effect NoExecute that the claim does not "
            "tolerate, so the pod was deleted.",
            "Repair the device, remove its taint (ResourceSlice or DeviceTaintRule), or add a toleration to the claim.",
        )
    for missing in _CLAIM_MISSING.finditer(text):
        name = foreign_text(missing[1], 300)
        yield Unscheduled(missing[0], f"ResourceClaim {name} does not exist.", f"Make ResourceClaim {name}.")
    if _NO_NODES in text:
        yield Unscheduled(
            _NO_NODES, "The cluster has no Node at all.", "Add a node; kubectl get nodes lists those that there are."
        )
    for found in _SENTENCE.finditer(text):
        if text[: found.start()].rstrip().endswith("preemption:"):
            continue  # it repeats the nodes
        yield _explained(found, nodes, absent)


def _explained(found: re.Match[str], nodes: NodesSeen | None, absent: Mapping[str, str]) -> Unscheduled:
    reasons = _END.split(found[3], maxsplit=1)[0]
    because, changes, resources = [], [], []
    for part in list(_PART.finditer(reasons))[:_MAX_REASONS]:
        count, reason = int(part[1] or found[2]), (part[2] or part[3]).strip()
        insufficient = _INSUFFICIENT.fullmatch(reason)
        resources += [insufficient[1]] if insufficient else []
        meaning, change = _insufficient(insufficient[1], nodes, absent) if insufficient else _meaning(reason)
        because.append(f"{counted(count, 'node')}: {meaning}")
        changes.append(change)
    of_all = f"The scheduler found no node for the pod, of {counted(int(found[2]), 'node')}. "
    return Unscheduled(
        f"{found[1]}/{found[2]} nodes are available: {reasons}",
        of_all + ("; ".join(because) or "The sentence gives no reason") + ".",
        " ".join(dict.fromkeys(filter(None, changes))) or "No advice is known for this reason.",
        tuple(dict.fromkeys(resources)),
    )


def _meaning(reason: str) -> tuple[str, str]:
    """Return what a reason means, and what to do. A reason that is not known is repeated."""
    if taint := _TAINT.match(reason):
        return _of_taint((taint[1] or "").strip())
    if missing := _CLASS_MISSING.search(reason):
        name = foreign_text(missing[1], 300)
        return f"there is no DeviceClass {name}", f"Make the DeviceClass {name}, which is installed with the driver."
    known = next((row for part, row in _table("reason", "contains").items() if part in reason), None)
    return known or (foreign_text(reason, 300), "")


def _of_taint(key: str) -> tuple[str, str]:
    if not key:
        which = "kubectl describe node NODE lists its taints."
        return "it has a taint that the pod does not tolerate", (
            f"{which} If one begins with node.kubernetes.io/, Kubernetes has set it for a trouble of the node: remove "
            "the trouble. For another one, add a toleration to the pod, or remove the taint."
        )
    if key in (troubles := _table("trouble", "taint")):
        trouble, change = troubles[key]
        return f"{trouble} (taint {key})", change
    key = foreign_text(key, 400)
    if key.startswith(("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")):
        return f"Kubernetes has tainted it with {key}, because it has a trouble", "kubectl describe node NODE shows it."
    if key.startswith("node-role.kubernetes.io/"):
        return f"it is kept for the control plane (taint {key})", ""
    return f"it has the taint {key}, which the pod does not tolerate", (
        f"If the pod should run on that node, add a toleration for {key} to it."
    )


def _insufficient(resource: str, nodes: NodesSeen | None, absent: Mapping[str, str]) -> tuple[str, str]:
    """Return what `Insufficient` means. It begins with Nodes that have none of the resource."""
    name = foreign_text(resource, 330)
    if not is_extended_resource(resource):
        return f"the pods there leave less {name} than this pod requests", (
            f"End pods that request {name}, or request less."
        )
    for pattern, scheduler in _OF_OTHERS:
        if pattern.fullmatch(resource):
            run = f"See whether the webhook and the scheduler of {scheduler} run, so that the pod names that scheduler."
            of_other = f"it is a resource that {scheduler} counts, and this scheduler knows nothing of it"
            return f"no Node has {name}: {of_other}", run
    request = f"End pods that request {name}, or request fewer."
    if nodes:
        return _of_nodes(resource, nodes, absent.get(resource, ""), request)
    none = (
        f"the Node has none of {name} (its plugin was never there, is gone or has no healthy device, or the name is "
        "misspelt), or the pods there leave fewer than this pod requests"
    )
    change = (
        f"kubectl describe node NODE shows first whether {name} is under Allocatable. If it is not, or 0: start the "
        f"plugin of {name} there, and compare the name. Otherwise: {request}"
    )
    return none, change


def _of_nodes(resource: str, nodes: NodesSeen, absent: str, request: str) -> tuple[str, str]:
    name = foreign_text(resource, 330)
    never = [node for node, of in nodes.items() if resource not in of]
    none = [node for node, of in nodes.items() if of.get(resource, (0, 1))[1] == 0]
    some = {node: of[resource][1] for node, of in nodes.items() if of.get(resource, (0, 0))[1]}
    parts, changes = [], []
    if never:
        parts.append(f"{_nodes(never)} never had any {name}: no plugin of it has registered there, or it is misspelt")
        known = sorted({other for of in nodes.values() for other in of})
        has = f" The Nodes have {', '.join(foreign_text(one, 100) for one in known[:5])}." if known and not some else ""
        changes.append(f"Start the plugin of {name} there, or compare the name.{has}")
    if none:
        capacity = max(nodes[node][resource][0] for node in none)
        gone = "its plugin is gone, or reports all as unhealthy" if capacity else "its plugin is gone, or lists none"
        parts.append(f"{_nodes(none)} has 0 of {name} now: {absent or gone}")
        changes.append(f"Restart the plugin of {name} there; devicecore doctor on the node says what is wrong.")
    if some:
        has = ", ".join(f"{foreign_text(node, 100)} has {count:,}" for node, count in list(some.items())[:_MAX_NODES])
        parts.append(f"{has} of {name}, and the pods there leave fewer than this pod requests")
        changes.append(request)
    return "; ".join(parts), " ".join(changes)


def _nodes(names: list[str]) -> str:
    named = ", ".join(foreign_text(one, 100) for one in names[:_MAX_NODES])
    more = f" and {len(names) - _MAX_NODES:,} more" if len(names) > _MAX_NODES else ""
    return f"Node {named}{more}" if len(names) == 1 else f"each of the Nodes {named}{more}"
