"""Finds problems on a node that may keep a pod from running although devices are free for it.

Law: each sentence is a finding of `doctor` about a resource that the pod requests, or a problem that `doctor` could
not rule out.
"""

import re
from collections.abc import Iterable, Iterator

from devicecore.domain.allocation.search import Taken
from devicecore.domain.model import Pod
from devicecore.domain.text import foreign_text
from devicecore.domain.topology import Policy
from devicecore_tools.doctor.account.entries import Kind, entries, without_sandbox
from devicecore_tools.doctor.account.facts import Facts
from devicecore_tools.doctor.look.values import ClaimsSeen
from devicecore_tools.doctor.pod.explanation import concerning

_TELLING = frozenset({"pod-refused", "container-cannot-start", "cdi-unresolvable"})
"""The codes of findings about other pods that also affect a pod that requests the same resource."""

_ADMITTED = "request-without-device"
"""The code of a finding that does not stop a kubelet from admitting the pod. A separate warning says that other pods
may use the pod's devices."""

_OF_THAT_MOMENT = re.compile(r"devices unavailable|no healthy devices|Topology locality|didn't have enough|OutOf")
"""Refusals that depend on which devices were free when the kubelet refused the pod.

Such refusals raise no doubt, because the trial uses the devices that are free now.
"""

_ALIGNING = (Policy.SINGLE_NUMA_NODE, Policy.RESTRICTED)


def doubts(pod: Pod, facts: Facts, policy: Policy) -> Iterator[str]:
    """Yield a sentence for each problem that may keep the pod from running although devices are free."""
    wanted = {name for one in pod.in_start_order for name, size in one.limits.items() if size}
    for one in concerning(pod, facts, wanted, _TELLING):
        is_past = one.code in _TELLING and _OF_THAT_MOMENT.search(one.sentence)
        if not is_past and one.code != _ADMITTED:
            yield one.sentence
    given = dict.fromkeys((one.resource, one.hole) for one in entries(facts) if one.kind is Kind.CDI and one.hole)
    for resource, hole in given:
        if resource in wanted:
            # The plugin will return the CDI device again, and a runtime does not start a container with an undefined
            # CDI device.
            yield f"a container got {resource} as a CDI device before, and this problem was not ruled out: {hole}"
    for other, failed in without_sandbox(facts):
        said = foreign_text(failed.message, 300).rstrip(".")
        yield f"the runtime cannot create the sandbox of pod {foreign_text(other.identity)} here: {said}"
    if facts.look.machine is not None or policy not in _ALIGNING:
        return
    for resource in sorted(wanted & facts.numa_nodes.keys()):
        nodes = {node for of in facts.numa_nodes[resource].values() for node in of}
        named = {node for devices in facts.numa_nodes.values() for of in devices.values() for node in of}
        if odd := sorted(node for node in nodes if node > len(named)):
            yield (
                f"devices of {resource} are on NUMA node {', '.join(map(str, odd[:8]))}, which the machine may not "
                "have: if it does not, the kubelet refuses the pod (TopologyAffinityError)"
            )


def still_prepared(chosen: Iterable[Taken], facts: Facts) -> Iterator[str]:
    """Yield a sentence for each of the pod's devices that is still prepared here for a different ResourceClaim.

    The scheduler knows only what the API server says about claims. Once a claim is deleted or changed by force, the
    scheduler considers its devices free, but the driver may still hold them and refuse to prepare them again.
    """
    prepared = {one.key: one.claim for one in (facts.look.claims.value or ClaimsSeen()).devices}
    for one in chosen:
        if one.key in prepared and not one.consumed and not one.request.admin_access:
            device, claim = foreign_text(str(one.key), 200), foreign_text(prepared[one.key], 200)
            yield (
                f"device {device} is prepared here for ResourceClaim {claim}, so the driver may refuse to prepare it "
                "again"
            )
