"""What the scheduler says of a pod that it cannot place: its sentence, taken apart and explained.

Law: a reason that is not known is repeated as it is, never guessed at.
"""

import re
from collections.abc import Iterator

from attrs import frozen

from devicecore.domain.model import is_extended_resource
from devicecore.domain.text import counted, foreign_text
from devicecore_tools.doctor.pasted import records

NEXT = (
    "No kubelet has seen the pod. The scheduler tries again when something changes that could help: a pod ends, a "
    "Node, a claim or a ResourceSlice changes; at the latest after five minutes."
)
"""What the scheduler does next."""

_MAX_REASONS = 20
_SENTENCE = re.compile(r"\b(\d{1,7})/(\d{1,7}) nodes are available: (.{1,8000})", re.DOTALL)
_END = re.compile(r"\.(?:[\s\"'`}|<]|$)|,? preemption: |,? still not schedulable|,? no new claims to deallocate")
_PART = re.compile(r"(?:^|, )(?:(\d{1,7}) )(.+?)(?=, \d{1,7} |$)|^(.+)", re.DOTALL)  # the last is said of all nodes
_INSUFFICIENT = re.compile(r"Insufficient (\S{1,400})")
_REASONS = (
    (
        "cannot allocate all claims",
        (
            "the ResourceClaims of the pod cannot all have devices there: too few are left, or they do not match the "
            "selectors, or they are tainted and the claim does not tolerate it"
        ),
        (
            "See which devices of the driver are free and untainted (kubectl get resourceslices -o yaml), and what the "
            "claim asks for."
        ),
    ),
    (
        "untolerated taint",
        "it has a taint that the pod does not tolerate",
        "Add a toleration to the pod, or remove the taint from the node.",
    ),
    (
        "node affinity/selector",
        "the pod's nodeSelector or node affinity rules it out",
        "Change the pod's nodeSelector, if it should run there.",
    ),
    ("were unschedulable", "it is cordoned", "kubectl uncordon NODE"),
    ("Too many pods", "it has as many pods as it may have", "End pods there, or raise maxPods."),
    (
        "waiting for resource claim",
        "the ResourceClaim of the pod has not been made yet",
        "See whether its ResourceClaimTemplate exists, and whether the controller manager runs.",
    ),
    ("resourceclaim in use", "the ResourceClaim is reserved for other pods", "Wait for them to end."),
    (
        "resourceclaim not available on the node",
        "the ResourceClaim has devices of another node",
        "Delete the pods that use the claim there, or use another claim.",
    ),
)
_DEVICES = " see whether the plugin runs and its devices are healthy (kubectl describe node NODE),"
_CLAIM_MISSING = re.compile(r'resourceclaims?(?:\.resource\.k8s\.io)? "([^"]{1,300})" not found')
_DEVICE_TAINT = re.compile(r"Device Taint manager: [^\n]{1,400}", re.IGNORECASE)


@frozen
class Unscheduled:
    """A sentence of the scheduler: why, what would have to change, and the resources of which there is too little."""

    text: str
    because: str
    change: str
    resources: tuple[str, ...] = ()


def find_unscheduled(text: str) -> Iterator[Unscheduled]:
    """Find each sentence of the scheduler, or of the controller of device taints, in what users paste."""
    for record in records(text):
        yield from _in_record(" ".join(record.split()))


def _in_record(text: str) -> Iterator[Unscheduled]:
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
    for found in _SENTENCE.finditer(text):
        if text[: found.start()].rstrip().endswith("preemption:"):
            continue  # it repeats the nodes
        yield _explained(found)


def _explained(found: re.Match[str]) -> Unscheduled:
    reasons = _END.split(found[3], maxsplit=1)[0]
    because, changes, resources = [], [], []
    for part in list(_PART.finditer(reasons))[:_MAX_REASONS]:
        count, reason = int(part[1] or found[2]), part[2] or part[3]
        on = f"{counted(count, 'node')}: "
        if insufficient := _INSUFFICIENT.fullmatch(reason.strip()):
            resource = foreign_text(insufficient[1], 330)
            resources.append(insufficient[1])
            less, devices = ("fewer", _DEVICES) if is_extended_resource(insufficient[1]) else ("less", "")
            because.append(f"{on}the pods there leave {less} {resource} than this pod requests")
            changes.append(f"End pods that request {resource},{devices} or request {less}.")
            continue
        for known, meaning, change in _REASONS:
            if known in reason:
                because.append(on + meaning)
                changes.append(change)
                break
        else:
            because.append(on + foreign_text(reason, 300))
    of_all = f"The scheduler found no node for the pod, of {counted(int(found[2]), 'node')}. "
    text = f"{found[1]}/{found[2]} nodes are available: {reasons}"
    return Unscheduled(
        text,
        of_all + "; ".join(because) + ".",
        " ".join(dict.fromkeys(changes)) or "What the reason says.",
        tuple(resources),
    )
