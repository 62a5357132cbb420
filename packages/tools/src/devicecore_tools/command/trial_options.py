"""The shared parts of commands that try a pod on a node: the pod's file, and the topology manager's options.

Law: the options have a kubelet's defaults.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import TYPE_CHECKING, TypeVar

import click

from devicecore.domain.model import NumaNode, Pod, is_extended_resource
from devicecore_tools.command.inputs import read_input
from devicecore_tools.command.options import choice_option, numbers, option_group, topology_manager_options

if TYPE_CHECKING:
    from devicecore.domain.allocation.model import Toleration
    from devicecore.domain.documents import Value
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
        help="The machine's NUMA nodes. Default: those that devices are attached to.",
    ),
    topology_manager_options,
)


def topology_options(command: Callable[..., R]) -> Callable[..., R]:
    """Add the options above to a command, which gets their values as one argument: `topology`, a `TopologySettings`."""

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


def given_pod(place: str) -> "tuple[Pod, tuple[Toleration, ...], Value]":
    """Return the only pod in a manifest or in kubectl's output, with its tolerations and its parsed object.

    The manifest of a single workload, such as a Deployment, stands for the first pod that is created from its template.

    `-` is standard input. Raises OSError if the file cannot be read, RefusedPodError if an API server would refuse the
    pod, and ValueError if the file is not the manifest of a single pod.
    """
    from devicecore.adapters.manifests import ManifestError, read_pods
    from devicecore.system.documents import read_documents
    from devicecore_tools.command.claims import items_in, pod_of_workload
    from devicecore_tools.doctor.reading.cluster_nodes import tolerations_of

    data = sys.stdin.buffer.read(_MAX_POD + 1) if place == "-" else read_input(place, _MAX_POD)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{place}: expected UTF-8 text, got other bytes") from None
    documents = read_documents(text, place, error=ManifestError, unique_keys=True)
    objects = [one for document in documents for one in items_in(document)]
    created = pod_of_workload(objects[0]) if len(objects) == 1 else None
    if created is not None and created["spec"]["containers"].data:  # without a template, the pod is refused below
        text = json.dumps({"apiVersion": "v1", **{key: one.data for key, one in created.mapping().items()}})
        data = text.encode()
    try:
        pods = read_pods(text, place)
    except ValueError:
        # If an API server would refuse the pod, for example because a request is not a number, report that instead.
        if manifest := next(_pods_in(data, place), None):
            _check(manifest)
        raise
    if len(pods) != 1:
        raise ValueError(f"{place}: expected one pod, got {len(pods)}")
    manifest = next(_pods_in(data, place))
    _check(manifest)
    return pods[0], tolerations_of(manifest), manifest


def _pods_in(data: bytes, place: str) -> "Iterator[Value]":
    from devicecore_tools.doctor.reading.large_documents import parse_documents

    items = (one for document in parse_documents(data, place) for one in (document, *document["items"].sequence()))
    return (one for one in items if one["kind"].data == "Pod")


def _check(manifest: "Value") -> None:
    from devicecore_tools.doctor.pod.admission import why_invalid

    if refused := why_invalid(manifest):
        raise RefusedPodError(refused)


class RefusedPodError(ValueError):
    """An API server would refuse the pod. The message says why."""


def check_numa_nodes(node: "TrialNode", given: Sequence[int]) -> None:
    """Raise click.UsageError if no device is attached to any of the nodes in --numa-nodes.

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
