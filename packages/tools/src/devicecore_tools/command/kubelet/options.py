"""The options of `devicecore kubelet`.

Law: each option is a field of `NodeSettings`, which refuses those that contradict each other.
"""

from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import click

from devicecore_tools.command.options import ExistingDirectory, address, numbers, seconds_option, with_options

P = ParamSpec("P")
R = TypeVar("R")

_directory = ExistingDirectory()

_OPTIONS = (
    click.option(
        "--root", required=True, type=_directory, help="Where sockets and checkpoint are, as in /var/lib/kubelet."
    ),
    click.option(
        "--manifests",
        type=_directory,
        help="A directory of pods and ResourceClaims, YAML or JSON, watched as for static pods.",
    ),
    click.option("--numa-nodes", metavar="N,N", default="0", callback=numbers, help="The machine's NUMA nodes."),
    click.option(
        "--topology-manager-policy",
        "policy",
        type=click.Choice(["none", "best-effort", "restricted", "single-numa-node"]),
        default="none",
        show_default=True,
        help="How NUMA nodes are used.",
    ),
    click.option(
        "--topology-manager-scope",
        "scope",
        type=click.Choice(["container", "pod"]),
        default="container",
        show_default=True,
        help="For each container, or for the pod as a whole.",
    ),
    click.option(
        "--policy",
        "allocation_policy",
        type=click.Choice(["kubelet", "packed", "spread", "distributed", "aligned"]),
        default="kubelet",
        show_default=True,
        help="Which of the possible devices a container gets.",
    ),
    click.option(
        "--allow-shared-directory",
        "shared",
        is_flag=True,
        help="Start even if other users may write to DIR or a directory in it, and so could pass for a plugin.",
    ),
    click.option("--metrics-port", type=click.IntRange(0, 65535), help="Serve metrics there, for Prometheus."),
    click.option("--node-name", help="The Node object; by default this machine's name."),
    click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path),
        help="Publish to the API server of this kubeconfig, and read ResourceClaims there.",
    ),
    click.option("--context", metavar="NAME", help="With --kubeconfig: the context, if not the current one."),
    click.option("--in-cluster", is_flag=True, help="Publish to the API server of this pod's cluster."),
    click.option(
        "--beside-kubelet",
        is_flag=True,
        help="A kubelet also writes this Node: capacity and allocatable both are the healthy devices.",
    ),
    click.option(
        "--patch",
        type=click.Choice(["json-patch", "strategic-merge", "apply"]),
        default="json-patch",
        show_default=True,
        help="How the Node is changed, which decides who owns the values there.",
    ),
    click.option(
        "--keep-removed/--delete-removed",
        default=True,
        show_default=True,
        help="Whether a resource without a plugin stays on the Node with 0.",
    ),
    seconds_option("--resync", 300.0, "How often to compare the Node, even if the watch shows no change.", least=1),
    click.option(
        "--pods-from-server",
        "from_server",
        is_flag=True,
        help="Run the pods that the API server has bound to this node, and report them there.",
    ),
    click.option(
        "--register-node",
        "register",
        is_flag=True,
        help="Also make the Node and renew its Lease, so that a scheduler sends pods. No container runs.",
    ),
    click.option("--cpu", metavar="QUANTITY", default="8", show_default=True, help="With --register-node: the CPUs."),
    click.option(
        "--memory", metavar="QUANTITY", default="16Gi", show_default=True, help="With --register-node: the memory."
    ),
    click.option(
        "--max-pods",
        type=click.IntRange(0, 100_000),
        default=110,
        show_default=True,
        help="With --register-node: how many pods the scheduler may send.",
    ),
    click.option("--node-label", "labels", metavar="KEY=VALUE", multiple=True, help="With --register-node: a label."),
    click.option(
        "--taint", "taints", metavar="KEY=VALUE:EFFECT", multiple=True, help="With --register-node: a further taint."
    ),
    click.option(
        "--tainted/--no-default-taint",
        "is_tainted",
        default=True,
        show_default=True,
        help="Whether devicecore.io/virtual=true:NoSchedule keeps away pods that do not tolerate it.",
    ),
    click.option(
        "--node-ip",
        metavar="ADDRESS",
        callback=address,
        help="With --register-node: the address of the Node; by default this machine's, on its default route.",
    ),
    click.option(
        "--port",
        type=click.IntRange(0, 65535),
        default=0,
        help="With --register-node: where kubectl logs and exec are refused; by default any free port.",
    ),
    click.option(
        "--topology-objects",
        is_flag=True,
        help="Publish a NodeResourceTopology of this node, for schedulers that know NUMA nodes.",
    ),
    seconds_option("--status-period", 10.0, "How often to look for resources and claims whose time is over."),
    click.option("--once", is_flag=True, help="Print the state when nothing more changes, and exit."),
    seconds_option("--wait", 15.0, "With --once: how long to wait for plugins and pods.", least=0),
    click.option(
        "--json", "as_json", is_flag=True, help="Print JSON: one document with --once, else one line per change."
    ),
)


def kubelet_options(command: Callable[P, R]) -> Callable[P, R]:
    """Give a command the options that are the fields of `NodeSettings`."""
    return with_options(command, _OPTIONS)
