"""Parses and explains the scheduler's message about a pod that it cannot place.

Law: an unknown reason is repeated unchanged, never guessed. For a taint that Kubernetes adds because of a node problem,
the explanation names the problem and never suggests a toleration.
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
    "No kubelet has seen the pod. The scheduler tries again when a relevant change occurs, such as the end of a pod or "
    "a new version of a Node, a claim or a ResourceSlice, and at the latest after five minutes."
)
"""What the scheduler does next."""

NodesSeen = Mapping[str, Mapping[str, tuple[int, int]]]
"""The Nodes by name, each with the capacity and allocatable of its extended resources."""

_MAX_REASONS = 20
_MAX_SHOWN = 600  # how many characters of an error are shown
_MAX_NODES = 3  # how many Nodes are named
_SENTENCE = re.compile(r"\b(\d{1,7})/(\d{1,7}) nodes are available: (.{1,8000})", re.DOTALL)
_END = re.compile(
    r"\.(?:[\s\"'`}|<]|$)|,? preemption: |,? still not schedulable|,? no new claims to deallocate"
    r"|,? de(?:allocation|letion) of ResourceClaim completed"
)
# a part without a count is about all nodes
_PART = re.compile(r"(?:^|, )(?:(\d{1,7}) )(.+?)(?=, \d{1,7} |$)|^(.+)", re.DOTALL)
_INSUFFICIENT = re.compile(r"Insufficient (\S{1,400})", re.IGNORECASE)
_TAINT = re.compile(r"node\(s\) had (?:untolerated )?taints?(?:\(s\))?(?: \{([^}:]{1,400})(?::[^}]*)?\})?")

_RUNNING = re.compile(
    r'\brunning (?:"(?P<plugin>\w{1,60})" (?P<point>\w{1,30}) plugin|(?P<point_>\w{1,30}) plugin '
    r'"(?P<plugin_>\w{1,60})"): (?P<problem>.{1,4000})'
)
"""How the scheduler reports an error of one of its plugins (Kubernetes: `RunFilterPlugins`, `RunPreBindPlugins`)."""

_SELECTOR = re.compile(
    r"(?P<owner>claim|class) (?P<name>[^\s:,]{1,300})(?:, request [^\s:,]{1,130})?[:,] selector #(?P<number>\d{1,4})"
    r"(?: on device (?P<device>[^\s:]{1,300}))?: (?P<error>CEL (?:compile|runtime) error: .{1,2000})"
)
_NO_KEY = re.compile(r"no such key: ([\w./-]{1,200}?)(?=\.? |\.?$)")
_HINT = re.compile(r"\.? consider using CEL optional chaining.*", re.DOTALL)
_POOL = re.compile(r"asks for all devices, but resource pool (\S{1,300}) is currently (being updated|invalid)")
_BINDING = re.compile(r"waiting for binding conditions for device on node ([\w.-]{1,253})")
_BINDING_ENDED = re.compile(r"device binding (timeout|failed): claim=([^\s,]{1,253})[^\n]{0,600}")
_RELEASED = re.compile(r"(deallocation|deletion) of ResourceClaim completed")
_PLACEMENT = re.compile(r"found a potential placement for \S+ on node ([\w.-]{1,253}), preempting (\d{1,6}) victims")
_PREEMPTED = re.compile(r"Preempted by (\S{1,60}) ([\w-]{1,100}) on node ([\w.-]{1,253})")
_CLASS_MISSING = re.compile(r"device class (\S{1,300}) does not exist")
_NO_NODES = "no nodes available to schedule pods"
_CLAIM_MISSING = re.compile(r'resourceclaims?(?:\.resource\.k8s\.io)? "([^"]{1,300})" not found')
_DEVICE_TAINT = re.compile(r"Device Taint manager: [^\n]{1,400}", re.IGNORECASE)
_OF_OTHERS = (
    (re.compile(r"nvidia\.com/(gpumem|gpumem-percentage|gpucores)"), "HAMi"),
    (re.compile(r"volcano\.sh/(vgpu|gpu)-\S+"), "Volcano"),
    (re.compile(r"aliyun\.com/gpu-(mem|count)|aliyun\.com/gpu-core.*"), "gpushare of Aliyun"),
    (re.compile(r"tencent\.com/vcuda-(core|memory)"), "Tencent's gpu-manager"),
    (re.compile(r"koordinator\.sh/\S+"), "Koordinator"),
)
"""Resources that no Node has because a different scheduler counts them."""


@cache
def _table(kind: str, key: str) -> Mapping[str, tuple[str, str]]:
    """Return `means` and `change` of each row of this kind in `scheduler.toml`, by the value of the field `key`."""
    document = tomllib.loads(files(__package__).joinpath("scheduler.toml").read_text(encoding="utf-8"))
    return {one[key]: (one["means"], one["change"]) for one in document[kind]}


@frozen
class Unscheduled:
    """A message from the scheduler: the reason, the necessary change, and the scarce resources."""

    text: str
    because: str
    change: str
    resources: tuple[str, ...] = ()
    id: str = "SC-01"
    next: str = NEXT


def find_unscheduled(
    text: str, nodes: NodesSeen | None = None, absent: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Unscheduled]:
    """Yield each message from the scheduler or the device taint controller in pasted text.

    Args:
        text: the pasted text.
        nodes: the Nodes, if some were read.
        absent: why a resource has no devices, if the sources of its node were read.
    """
    for record in records(text):
        yield from _in_record(" ".join(record.split()), nodes, absent)


def _in_record(text: str, nodes: NodesSeen | None, absent: Mapping[str, str]) -> Iterator[Unscheduled]:
    for found in _DEVICE_TAINT.finditer(text):
        yield Unscheduled(
            found[0],
            "A device of the pod's ResourceClaim has a NoExecute taint that the claim does not "
            "tolerate, so the taint controller deleted the pod.",
            "Repair the device, remove its taint (ResourceSlice or DeviceTaintRule), or add a toleration to the claim.",
        )
    yield from _errors(text)
    yield from _said_besides(text)
    for missing in _CLAIM_MISSING.finditer(text):
        name = foreign_text(missing[1], 300)
        yield Unscheduled(missing[0], f"ResourceClaim {name} does not exist.", f"Create ResourceClaim {name}.")
    if _NO_NODES in text:
        yield Unscheduled(
            _NO_NODES, "The cluster has no Nodes.", "Add a node; kubectl get nodes lists the existing ones."
        )
    sentences = list(_SENTENCE.finditer(text))
    for found in sentences:
        if text[: found.start()].rstrip().endswith("preemption:"):
            continue  # the sentence about preemption lists the same nodes again
        yield _explained(found, nodes, absent)
    because, change = ("", "") if sentences else _after(text)
    if because:
        yield Unscheduled(foreign_text(text, _MAX_SHOWN), because, change, id="SC-04")


def _errors(text: str) -> Iterator[Unscheduled]:
    """Yield the meaning of errors from the scheduler's plugins."""
    for found in _RUNNING.finditer(text):
        plugin, point = found["plugin"] or found["plugin_"], (found["point"] or found["point_"])
        problem = foreign_text(_HINT.sub("", found["problem"]).strip("\"'` "), _MAX_SHOWN)
        ended = "so the pod is not bound to the chosen node"
        if point == "filter":
            ended = "so the scheduler tries no other node, even if one has free devices"
        because, change = _of_problem(found["problem"])
        yield Unscheduled(
            f"{found[0][: found.start('problem') - found.start()]}{problem}",
            f"The scheduler's plugin {plugin} failed, {ended}. {because or f'{problem}.'}",
            change or "Read the scheduler's log around this error.",
            id="SC-02",
            next="The scheduler retries the pod every few seconds, and gets the same error until the cause is removed.",
        )


def _of_problem(problem: str) -> tuple[str, str]:
    """Return the meaning of the claim plugin's problem, and the remedy, or empty strings if the problem is unknown."""
    if wrong := _SELECTOR.search(problem):
        return _of_selector(wrong)
    if pool := _POOL.search(problem):
        name, driver = foreign_text(pool[1], 300), foreign_text(pool[1].partition("/")[0], 253)
        if pool[2] == "invalid":
            why = f"A request asks for all devices, and the ResourceSlices of pool {name} contradict each other."
            return why, f"Fix driver {driver}, which publishes pool {name}: devicecore why CLAIM.yaml names the fault."
        why = f"A request asks for all devices, and not all ResourceSlices of pool {name} are published."
        return why, (
            f"Check whether the pod of driver {driver} is running for that pool, and read its log: it must publish as "
            "many slices as resourceSliceCount states. A request with a count does not wait for all slices."
        )
    if ended := _BINDING_ENDED.search(problem):
        return _binding_ended(ended)
    if "field cannot be modified once set" in problem or "the object has been modified" in problem:
        error = foreign_text(problem, _MAX_SHOWN)
        why = f"Another client changed the ResourceClaim in the meantime, so the API server refused a write: {error}."
        return why, (
            "Wait: the scheduler retries with the current claim. If this persists, find out who else writes the "
            "claim's status: kubectl get resourceclaim NAME -o yaml --show-managed-fields."
        )
    return "", ""


def _of_selector(wrong: re.Match[str]) -> tuple[str, str]:
    """Return the error in an expression of a claim or a class, and the correction."""
    kind = "ResourceClaim" if wrong["owner"] == "claim" else "DeviceClass"
    owner = f"selector #{wrong['number']} of {kind} {foreign_text(wrong['name'], 300)}"
    error, device = foreign_text(_HINT.sub("", wrong["error"]), _MAX_SHOWN), foreign_text(wrong["device"] or "", 300)
    edit = "A claim cannot be edited: delete it, and create it again." if kind == "ResourceClaim" else ""
    if not device:
        change = f"Correct the expression. {edit}".strip()
        return f"The expression is not valid CEL: {owner}: {error}.", change
    pool = device.split("/")[1] if device.count("/") == 2 else ""
    where = f" of pool {pool}, often named after its node" if pool else ""
    because = (
        f"An expression has no value for device {device}{where}, which is an error even if other devices match: "
        f"{owner}: {error}."
    )
    if key := _NO_KEY.search(wrong["error"]):
        change = (
            f"The device has no {key[1]}, which the expression reads. If other devices have it, write "
            f'device.attributes["DOMAIN"].?{key[1]}.orValue(VALUE), so that devices without it are skipped; otherwise '
            "correct the name or the domain."
        )
    elif "overload" in wrong["error"]:
        change = (
            'Compare each value with another of the same type: quantity("40Gi") for capacities, semver("8.0.0") for '
            "versions, strings in quotes, numbers and booleans without quotes."
        )
    else:
        change = f"Correct the expression, so that it can be evaluated for devices such as {device}."
    return because, f"{change} {edit}".strip()


def _said_besides(text: str) -> Iterator[Unscheduled]:
    """Yield the scheduler's messages about a pod that it has placed, or preempted for another pod."""
    for found in _BINDING.finditer(text):
        node = foreign_text(found[1], 253)
        yield Unscheduled(
            found[0],
            f"The scheduler has chosen node {node} and allocated the pod's claims. One of the devices has "
            "bindingConditions, such as attachment to the node, that are not met yet.",
            "Read the log of the driver, or of the controller that attaches the device. The claim's status.devices "
            "shows the conditions: kubectl get resourceclaim NAME -o yaml.",
            id="SC-03",
            next="The scheduler waits for at most ten minutes. Then it releases the devices and tries again.",
        )
    for found in _BINDING_ENDED.finditer("" if _RUNNING.search(text) else text):
        yield Unscheduled(foreign_text(found[0], _MAX_SHOWN), *_binding_ended(found), id="SC-03")
    for found in _PREEMPTED.finditer(text):
        who, node = f"{foreign_text(found[1], 60)} {foreign_text(found[2], 100)}", foreign_text(found[3], 253)
        yield Unscheduled(
            found[0],
            f"The scheduler has preempted this pod because {who}, whose priority is higher, needs this pod's place on "
            f"{node}.",
            "Give the pod a priorityClassName with a higher priority, or add nodes. kubectl get pods -A -o "
            "custom-columns=NAME:.metadata.name,UID:.metadata.uid shows the name of the pod with that UID.",
            id="SC-05",
            next="The pod's owner, such as its Deployment, creates a new pod. A pod without an owner is gone.",
        )


def _binding_ended(found: re.Match[str]) -> tuple[str, str]:
    what = "its driver reported that a device cannot be attached"
    if found[1] == "timeout":
        what = "the bindingConditions of a device were not met in time"
    claim, error = foreign_text(found[2], 253), foreign_text(found[0], _MAX_SHOWN)
    because = f"ResourceClaim {claim}: {what}: {error}. The scheduler releases the devices and tries again."
    return because, "Read the log of the driver, or of the controller that attaches the device."


def _after(text: str) -> tuple[str, str]:
    """Return what the scheduler did because no node accepted the pod, and advice, or empty strings."""
    if placement := _PLACEMENT.search(text):
        ended, node = counted(int(placement[2]), "pod"), foreign_text(placement[1], 253)
        done = f"The scheduler preempts {ended} of lower priority on node {node}, and reserves the place for this pod."
        return done, "Wait until the preempted pods have ended."
    if released := _RELEASED.search(text):
        done = "released an unused ResourceClaim of the pod, because its devices did not fit"
        if released[1] == "deletion":
            done = "deleted the ResourceClaim that it had created for the pod's extended resources"
        wait = "Wait: the scheduler tries again within seconds, and only its next message counts."
        return f"The scheduler has {done}: the pod may get different devices.", wait
    return "", ""


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
    then, wait = _after(found[3][len(reasons) :])
    changes = [wait] if _PLACEMENT.search(then and found[3]) else [wait, *changes]
    of_all = f"The scheduler found no node for the pod among {counted(int(found[2]), 'node')}. "
    return Unscheduled(
        f"{found[1]}/{found[2]} nodes are available: {reasons}",
        of_all + ("; ".join(because) or "The message gives no reason") + "." + f" {then}".rstrip(),
        " ".join(dict.fromkeys(filter(None, changes))) or "No advice is known for this reason.",
        tuple(dict.fromkeys(resources)),
    )


def _meaning(reason: str) -> tuple[str, str]:
    """Return the meaning of a reason, and the remedy. An unknown reason is repeated."""
    if taint := _TAINT.match(reason):
        return _of_taint((taint[1] or "").strip())
    if missing := _CLASS_MISSING.search(reason):
        name = foreign_text(missing[1], 300)
        return f"there is no DeviceClass {name}", f"Create DeviceClass {name}, which is installed with the driver."
    known = next((row for part, row in _table("reason", "contains").items() if part in reason), None)
    return known or (foreign_text(reason, 300), "")


def _of_taint(key: str) -> tuple[str, str]:
    if not key:
        which = "kubectl describe node NODE lists its taints."
        return "the pod does not tolerate a taint there", (
            f"{which} If a taint starts with node.kubernetes.io/, Kubernetes set it because of a problem on the "
            "node: fix the problem. For any other taint, add a toleration to the pod, or remove the taint."
        )
    if key in (troubles := _table("trouble", "taint")):
        trouble, change = troubles[key]
        return f"{trouble} (taint {key})", change
    key = foreign_text(key, 400)
    if key.startswith(("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")):
        return (
            f"tainted by Kubernetes with {key} because of a problem",
            "kubectl describe node NODE shows the problem.",
        )
    if key.startswith("node-role.kubernetes.io/"):
        return f"reserved for the control plane (taint {key})", ""
    return f"the pod does not tolerate the taint {key}", (
        f"If the pod should run there, add a toleration for {key} to the pod."
    )


def _insufficient(resource: str, nodes: NodesSeen | None, absent: Mapping[str, str]) -> tuple[str, str]:
    """Return the meaning of `Insufficient` and the remedy, starting with Nodes that have none of the resource."""
    name = foreign_text(resource, 330)
    if not is_extended_resource(resource):
        return f"other pods there leave less {name} than this pod requests", (
            f"Delete pods that request {name}, or request less."
        )
    for pattern, scheduler in _OF_OTHERS:
        if pattern.fullmatch(resource):
            run = (
                f"Check that the webhook and the scheduler of {scheduler} are running; the pod must use that scheduler."
            )
            of_other = f"it is a resource that {scheduler} counts and this scheduler does not know"
            return f"no Node has {name}: {of_other}", run
    request = f"Delete pods that request {name}, or request fewer."
    if nodes:
        return _of_nodes(resource, nodes, absent.get(resource, ""), request)
    none = (
        f"there is none of {name} there (its plugin was never installed, is gone or has no healthy device, or the name "
        "is misspelled), or other pods there leave fewer than this pod requests"
    )
    change = (
        f"kubectl describe node NODE shows whether {name} is under Allocatable. If it is missing or 0: "
        f"start the plugin for {name} there, and check the spelling of the name. Otherwise: {request}"
    )
    return none, change


def _of_nodes(resource: str, nodes: NodesSeen, absent: str, request: str) -> tuple[str, str]:
    name = foreign_text(resource, 330)
    never = [node for node, of in nodes.items() if resource not in of]
    none = [node for node, of in nodes.items() if of.get(resource, (0, 1))[1] == 0]
    some = {node: of[resource][1] for node, of in nodes.items() if of.get(resource, (0, 0))[1]}
    parts, changes = [], []
    if never:
        parts.append(
            f"{_nodes(never, never=True)} had any {name}: no plugin has registered it there, or the name is misspelled"
        )
        known = sorted({other for of in nodes.values() for other in of})
        has = f" The Nodes have {', '.join(foreign_text(one, 100) for one in known[:5])}." if known and not some else ""
        changes.append(f"Start the plugin for {name} there, or correct the name.{has}")
    if none:
        capacity = max(nodes[node][resource][0] for node in none)
        gone = (
            "its plugin is gone, or reports all devices as unhealthy"
            if capacity
            else "its plugin is gone, or lists no devices"
        )
        parts.append(f"{_nodes(none)} has 0 of {name} now: {absent or gone}")
        changes.append(f"Restart the plugin for {name} there; devicecore doctor on the node shows what is wrong.")
    if some:
        has = ", ".join(f"{foreign_text(node, 100)} has {count:,}" for node, count in list(some.items())[:_MAX_NODES])
        parts.append(f"{has} of {name}, and other pods there leave fewer than this pod requests")
        changes.append(request)
    return "; ".join(parts), " ".join(changes)


def _nodes(names: list[str], *, never: bool = False) -> str:
    shown = [foreign_text(one, 100) for one in names[:_MAX_NODES]]
    if len(names) == 1:
        return f"Node {shown[0]}{' never' if never else ''}"
    last = f"{len(names) - _MAX_NODES:,} more" if len(names) > _MAX_NODES else shown.pop()
    named = f"{', '.join(shown)} and {last}"
    return f"none of the Nodes {named} ever" if never else f"each of the Nodes {named}"
