"""The shared parts of commands that try a pod on a node: the pod's file, and the topology manager's options.

Law: the options have a kubelet's defaults.
"""

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, NoReturn, TypeVar

import click
from attrs import frozen

from devicecore.domain.documents import Value, described
from devicecore.domain.model import NumaNode, Pod, is_extended_resource
from devicecore.domain.text import foreign_text, listed
from devicecore_tools.command.inputs import read_input
from devicecore_tools.command.options import choice_option, numbers, option_group, topology_manager_options

if TYPE_CHECKING:
    from devicecore.domain.allocation.model import Toleration
    from devicecore.domain.topology import PolicyOptions
    from devicecore_tools.doctor.pod.trial import TrialNode

_MAX_POD = 1024 * 1024  # bytes

R = TypeVar("R")

_options = option_group(
    choice_option(
        "--topology-policy",
        "--topology-manager-policy",
        "topology_policy",
        choices=("none", "best-effort", "restricted", "single-numa-node"),
        text="The kubelet's topologyManagerPolicy.",
    ),
    choice_option(
        "--topology-scope",
        "--topology-manager-scope",
        "topology_scope",
        choices=("container", "pod"),
        text="The kubelet's topologyManagerScope.",
    ),
    click.option(
        "--numa-nodes",
        metavar="N,N-N",
        default="",
        callback=numbers,
        help="The machine's NUMA nodes. Default: the nodes that devices are attached to.",
    ),
    topology_manager_options,
)


def topology_options(command: Callable[..., R]) -> Callable[..., R]:
    """Add the topology options to a command. The command receives their values as `topology`, a `TopologySettings`."""

    @wraps(command)
    def bundled(
        *,
        topology_policy: str,
        topology_scope: str,
        numa_nodes: tuple[int, ...],
        policy_options: "PolicyOptions",
        numa_distances: tuple[tuple[int, ...], ...],
        **others: object,
    ) -> R:
        from devicecore.domain.topology import Policy, Scope
        from devicecore_tools.doctor.look.topology_settings import TopologySettings

        nodes = tuple(map(NumaNode, numa_nodes))
        given = click.get_current_context().get_parameter_source("topology_policy")
        settings = TopologySettings(
            Policy(topology_policy),
            Scope(topology_scope),
            nodes,
            is_given=given is click.core.ParameterSource.COMMANDLINE,
            options=policy_options,
            distances=numa_distances,
        )
        return command(topology=settings, **others)

    return _options(bundled)


@frozen
class GivenPod:
    """The pod in a file, and the other objects in the file.

    Attributes:
        pod: the pod.
        tolerations: the pod's tolerations.
        manifest: the pod as an API object.
        others: the documents in the file that contain objects of other kinds, such as the pod's ResourceClaimTemplate.
    """

    pod: Pod
    tolerations: "tuple[Toleration, ...]"
    manifest: Value
    others: Sequence[Value] = ()


def given_pod(place: str) -> GivenPod:
    """Return the only pod in a file or in kubectl's output.

    A workload, such as a Deployment, stands for the first pod that is created from its template. The file may also
    contain objects of other kinds.

    `-` is standard input. Raises OSError if the file cannot be read, RefusedPodError if an API server would refuse the
    pod, and ValueError if the file does not contain exactly one pod.
    """
    from devicecore.adapters.manifests import ManifestError
    from devicecore.adapters.manifests.pods import objects_in, read_pod, template_hint
    from devicecore.system.documents import read_documents, why_not_text
    from devicecore_tools.command.claims import (
        CLAIM_KINDS,
        pod_of_workload,
        refuse_misspelled_request,
    )
    from devicecore_tools.doctor.reading.cluster_nodes import tolerations_of

    data = sys.stdin.buffer.read(_MAX_POD + 1) if place == "-" else read_input(place, _MAX_POD)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{place}: {why_not_text(data)}") from None
    objects: list[tuple[str, Value]] = []
    pods: list[Value] = []
    others: list[Value] = []
    for document in read_documents(text, place, error=ManifestError, unique_keys=True):
        found = [*objects_in(document)]
        created = [one if kind == "Pod" else pod_of_workload(one) for kind, one in found]
        for (kind, one), made in zip(found, created, strict=True):
            if kind in CLAIM_KINDS:
                refuse_misspelled_request(one)
            if kind != "Pod" and made is not None and not made["spec"]["containers"].data:
                one["kind"].refuse(f"expected a pod template with containers, got none{template_hint(kind)}")
        objects += found
        pods += filter(None, created)
        if None in created:
            others.append(document)
    if not pods:
        _refuse_without_pod(place, objects)
    if len(pods) > 1:
        names = listed([foreign_text(str(one["metadata"]["name"].data)) for one in pods], 3)
        raise ValueError(f"{place}: expected one pod, got {len(pods)}: {names}. Write each pod to a separate file")
    (manifest,) = pods
    try:
        pod = read_pod(manifest)
    except ValueError:
        # If an API server would refuse the pod, for example because a request is not a number, report the refusal.
        _check(manifest)
        raise
    _check(manifest)
    return GivenPod(pod, tolerations_of(manifest), manifest, others)


def _refuse_without_pod(place: str, objects: Sequence[tuple[str, Value]]) -> NoReturn:
    """Raise ValueError for a file that contains no pod."""
    from devicecore.adapters.manifests.pods import template_hint
    from devicecore_tools.command.claims import CLAIM_KINDS

    expected = "expected a pod, or a workload such as a Deployment"
    if not objects:
        raise ValueError(f"{place}: {expected}, got nothing")
    # The message names the first claim, wherever it is in the file, because it also says how to try a claim.
    kind, first = next((one for one in objects if one[0] in CLAIM_KINDS), objects[0])
    hint = f"; to try a claim, run: devicecore why {place} --slices FILE" if kind in CLAIM_KINDS else ""
    first["kind"].refuse(f"{expected}, got {described(kind)}{hint}{template_hint(kind)}")


def _check(manifest: Value) -> None:
    from devicecore_tools.command.claims import refuse_misspelled_pod
    from devicecore_tools.doctor.pod.admission import why_invalid

    refuse_misspelled_pod(manifest)
    if refused := why_invalid(manifest):
        raise RefusedPodError(refused)


class RefusedPodError(ValueError):
    """An API server would refuse the pod. The message says why."""


def check_numa_nodes(node: "TrialNode", given: Sequence[int]) -> None:
    """Raise click.UsageError if devices are attached to NUMA nodes, but none of them to a node in --numa-nodes.

    The user may have given the number of nodes instead of a list of nodes.
    """
    if click.get_current_context().get_parameter_source("numa_nodes") is click.core.ParameterSource.DEFAULT:
        return
    of_devices = {numa for listed in node.devices.values() for one in listed for numa in one.topology or ()}
    if given and of_devices and of_devices.isdisjoint(given):
        shown, theirs = (",".join(map(str, sorted(numbers))) for numbers in (given, of_devices))
        raise click.UsageError(
            f"--numa-nodes {shown}: the devices of {node.name} are attached to {theirs}. Expected the numbers of all "
            "the machine's NUMA nodes, such as 0,1."
        )


def wants_devices(pod: Pod) -> bool:
    """Return whether a container of the pod requests a resource that device plugins serve."""
    return any(is_extended_resource(name) for one in pod.in_start_order for name in one.limits)
