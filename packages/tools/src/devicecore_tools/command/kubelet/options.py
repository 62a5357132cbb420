"""The options of `devicecore kubelet`, and the node settings that result.

Law: options that contradict each other, or the machine, are refused before anything starts.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from attrs import evolve

from devicecore.domain.errors import DeviceCoreError, DocumentError
from devicecore.domain.names import is_label_value, is_qualified_name
from devicecore.domain.policies import POLICIES
from devicecore.domain.quantity import Quantity
from devicecore.domain.text import foreign_text
from devicecore.domain.topology import MAX_ALLOWABLE_NUMA_NODES, Topology
from devicecore_tools.command.options import (
    ExistingDirectory,
    address,
    choice_option,
    numa_distances_option,
    numbers,
    option_group,
    policy_options_of,
    seconds_option,
)
from devicecore_tools.node.settings import (
    TAINT_EFFECTS,
    ClusterSettings,
    ManagerSettings,
    NewNode,
    NodeSettings,
    ServerSettings,
    all_taints,
    taint,
    this_machine,
)
from devicecore_tools.numa import FLAGS, NumaError, fields_of_flags, node_sizes, read_policies

_directory = ExistingDirectory()

kubelet_options = option_group(
    click.option(
        "--root",
        required=True,
        type=_directory,
        help="The directory for sockets and the checkpoint, like /var/lib/kubelet.",
    ),
    click.option(
        "--manifests",
        type=_directory,
        help="A directory of pods and ResourceClaims in YAML or JSON, watched like a kubelet's static pods.",
    ),
    click.option("--numa-nodes", metavar="N,N", default="0", callback=numbers, help="The machine's NUMA nodes."),
    choice_option(
        "--topology-manager-policy",
        "policy",
        choices=("none", "best-effort", "restricted", "single-numa-node"),
        text="How strictly devices are aligned to NUMA nodes.",
    ),
    choice_option(
        "--topology-manager-scope",
        "scope",
        choices=("container", "pod"),
        text="Whether NUMA nodes are chosen for each container, or for the pod as a whole.",
    ),
    *(
        click.option(f"--{flag}", flag.replace("-", "_"), metavar=metavar, help=text)
        for flag, metavar, text in (
            (
                "topology-manager-policy-options",
                "NAME=VALUE,...",
                "The options of that policy: prefer-closest-numa-nodes and max-allowable-numa-nodes.",
            ),
            ("cpu-manager-policy", "POLICY", "static gives Guaranteed pods exclusive CPUs; needs devicecore-numa."),
            ("cpu-manager-policy-options", "NAME=VALUE,...", "Options of that policy, such as full-pcpus-only=true."),
            ("reserved-cpus", "N-N,N", "The CPUs that no pod gets exclusively."),
            ("memory-manager-policy", "POLICY", "Static gives Guaranteed pods memory from specific NUMA nodes."),
            ("reserved-memory", "NODE:memory=QUANTITY;...", "How much of each NUMA node's memory is reserved."),
            ("kube-reserved", "NAME=QUANTITY,...", "CPUs and memory that are reserved for the kubelet."),
            ("system-reserved", "NAME=QUANTITY,...", "CPUs and memory that are reserved for the system."),
            ("eviction-hard", "SIGNAL<QUANTITY,...", "memory.available counts as reserved; 100Mi by default."),
            ("feature-gates", "NAME=BOOL,...", "Feature gates, such as CPUManagerPolicyAlphaOptions=true."),
        )
    ),
    click.option(
        "--machine",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="A description of CPUs and memory: sockets, coresPerNumaNode, ..., or cAdvisor's description. Default: "
        "this machine.",
    ),
    numa_distances_option,
    choice_option(
        "--policy",
        "allocation_policy",
        choices=("kubelet", "packed", "spread", "distributed", "aligned"),
        text="How the devices of a container are chosen.",
    ),
    click.option(
        "--allow-shared-directory",
        "shared",
        is_flag=True,
        help="Start even if other users can write to DIR or a directory in it, and so could impersonate a plugin.",
    ),
    click.option("--metrics-port", type=click.IntRange(0, 65535), help="Serve metrics for Prometheus on this port."),
    click.option("--node-name", help="The name of the Node object; by default this machine's name."),
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
        help="A kubelet also writes this Node: publish the healthy devices as both capacity and allocatable.",
    ),
    choice_option(
        "--patch",
        choices=("strategic-merge", "apply"),
        text="How the Node is patched, which decides who owns its values.",
    ),
    click.option(
        "--keep-removed/--delete-removed",
        default=True,
        show_default=True,
        help="Whether a resource whose plugin is gone stays on the Node, with the value 0.",
    ),
    seconds_option("--resync", 300.0, "How often to read the Node even if the watch shows no change.", least=1),
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
        help="Also create the Node and renew its Lease, so that the scheduler sends pods. The node runs no containers.",
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
        "--taint", "taints", metavar="KEY=VALUE:EFFECT", multiple=True, help="With --register-node: an extra taint."
    ),
    click.option(
        "--tainted/--no-default-taint",
        "is_tainted",
        default=True,
        show_default=True,
        help="With --register-node: whether the Node has the taint devicecore.io/virtual=true:NoSchedule, which repels "
        "pods that do not tolerate it.",
    ),
    click.option(
        "--node-ip",
        metavar="ADDRESS",
        callback=address,
        help="With --register-node: the address of the Node; by default, this machine's address on its default route.",
    ),
    click.option(
        "--adopt",
        "adopts",
        is_flag=True,
        help="With --register-node: take over an existing Node that devicecore did not create.",
    ),
    click.option(
        "--topology-objects",
        is_flag=True,
        help="Publish a NodeResourceTopology of this node, for NUMA-aware schedulers.",
    ),
    seconds_option("--status-period", 10.0, "How often to check for expired resources and claims."),
    click.option("--once", is_flag=True, help="Print the state once it no longer changes, and exit."),
    seconds_option("--wait", 15.0, "With --once: how long to wait for plugins and pods.", least=0),
    click.option(
        "--json", "as_json", is_flag=True, help="Print JSON: one document with --once, else one line per change."
    ),
)
"""Adds to a command the options of `node_settings` and of the main loop."""


_OF_SERVER = {"beside_kubelet", "patch", "keep_removed", "resync"}


def joins_cluster(options: Mapping[str, Any]) -> bool:
    """Return whether the node takes part in a cluster, which needs devicecore-fleet."""
    return _runs_pods(options) or bool(options["topology_objects"])


def _runs_pods(options: Mapping[str, Any]) -> bool:
    return bool(options["from_server"] or options["register"])


def node_settings(**options: Any) -> NodeSettings:  # noqa: ANN401 - click passes the value of each option
    """Return the settings of the node that these options describe.

    Raises click.UsageError if the options contradict each other or the machine, or are malformed.
    """
    name, manifests, numa_nodes = options["node_name"] or this_machine(), options["manifests"], options["numa_nodes"]
    server = _server(options)
    if _runs_pods(options) and manifests is not None:
        raise click.UsageError("pods come from --manifests or from the API server, not from both.")
    if manifests is not None and manifests.samefile(options["root"]):
        raise click.UsageError(
            "--manifests: name a directory other than --root, which is for this command's own files."
        )
    if len(set(numa_nodes)) != len(numa_nodes) or not numa_nodes:
        raise click.UsageError("--numa-nodes: name at least one node, and each node once.")
    managers = _managers(options)
    if managers is None:
        topology = _topology(numa_nodes, options)
    else:
        topology = Topology(numa_nodes, options["policy"], options["scope"])
        try:
            found = read_policies(managers.configuration, managers.machine).topology
        except NumaError as error:
            raise _numa_problem(error, options) from None
        given = click.get_current_context().get_parameter_source("numa_nodes")
        if given is click.core.ParameterSource.COMMANDLINE and topology.numa_nodes != found.numa_nodes:
            named = ",".join(map(str, found.numa_nodes))
            raise click.UsageError(f"--numa-nodes: the machine has the NUMA nodes {named}.")
        topology = evolve(found, policy=topology.policy, scope=topology.scope)
    return NodeSettings(
        name=name,
        root=options["root"],
        manifests=manifests,
        topology=topology,
        policy=POLICIES.get(options["allocation_policy"]),
        allow_shared_directory=options["shared"],
        metrics_port=options["metrics_port"],
        server=server,
        managers=managers,
    )


def _managers(options: Mapping[str, Any]) -> ManagerSettings | None:
    """Return the settings of the CPU and memory managers, or None if no option names any."""
    given = {flag: str(text) for flag in FLAGS if (text := options.get(flag.replace("-", "_"))) is not None}
    if not given.keys() - {"topology-manager-policy-options"} and options["machine"] is None:
        return None
    flags = {**given, "topology-manager-policy": options["policy"], "topology-manager-scope": options["scope"]}
    machine = None
    try:
        if options["machine"] is not None:
            from devicecore_tools.doctor.reading.large_documents import read_document_file

            machine = read_document_file(str(options["machine"])).data
        return ManagerSettings(configuration=fields_of_flags(flags), machine=machine)
    except DocumentError as error:
        raise click.UsageError(f"--machine: {error}") from None
    except NumaError as error:
        raise _numa_problem(error, options) from None


def _numa_problem(error: NumaError, options: Mapping[str, Any]) -> click.UsageError:
    """Return an error of the CPU or memory manager, in a kubelet's words, with the options to correct."""
    text = str(error)
    if options["machine"] is not None:
        text = text.replace("the machine:", f"--machine: {foreign_text(str(options['machine']))}:", 1)
    advice = next((hint for said, hint in _OF_POLICIES.items() if said in text), "")
    return click.UsageError(f"{text}{advice}")


_OF_POLICIES = {
    "unknown policy": ". Write none or static for --cpu-manager-policy, and None or Static for --memory-manager-policy",
    "unable to determine reserved CPU": ". Add --reserved-cpus, or cpu to --kube-reserved or --system-reserved",
    "unsupported options": ". Add --cpu-manager-policy static",
    "the total amount": ". Change --reserved-memory: the amounts of all NUMA nodes must add up to this value",
}


def _topology(numa_nodes: tuple[int, ...], options: Mapping[str, Any]) -> Topology:
    from devicecore_tools.doctor.reading.machine import numa_distances

    rows = options["numa_distances"]
    try:
        chosen = policy_options_of(options["topology_manager_policy_options"] or "")
    except ValueError as error:
        raise click.UsageError(f"--topology-manager-policy-options: {error}.") from None
    if chosen.prefer_closest_numa_nodes and not rows and not (rows := numa_distances(numa_nodes)):
        names = ",".join(map(str, numa_nodes))
        raise click.UsageError(
            f"This machine does not say how far apart NUMA nodes {names} are: give --numa-distances."
        )
    given = rows if chosen.prefer_closest_numa_nodes else ()
    most = chosen.max_allowable_numa_nodes or MAX_ALLOWABLE_NUMA_NODES
    try:
        return Topology(numa_nodes, options["policy"], options["scope"], distances=given, max_numa_nodes=most)
    except ValueError as error:
        raise click.UsageError(f"{error}.") from None


def _server(options: Mapping[str, Any]) -> ServerSettings | None:
    kubeconfig, in_cluster = options["kubeconfig"], options["in_cluster"]
    message = ""
    if kubeconfig is not None and in_cluster:
        message = "--kubeconfig and --in-cluster cannot be used together."
    elif kubeconfig is None and not in_cluster and joins_cluster(options):
        message = "--pods-from-server, --register-node and --topology-objects need --kubeconfig or --in-cluster."
    elif _runs_pods(options) and options["beside_kubelet"]:
        message = "--beside-kubelet: the kubelet already runs the pods on this node and has registered it."
    if message:
        raise click.UsageError(message)
    _refuse_useless(options)
    if kubeconfig is None and not in_cluster:
        return None
    from devicecore.adapters.kube_api import SERVICE_ACCOUNT, Access, Pace, PatchStrategy

    if in_cluster and not Path(SERVICE_ACCOUNT).is_dir():  # the library would otherwise look for a kubeconfig
        raise click.UsageError(f"--in-cluster: there is no service account in {SERVICE_ACCOUNT}.")
    return ServerSettings(
        access=Access(kubeconfig, options["context"]),
        strategy=PatchStrategy(options["patch"]),
        keep_removed=options["keep_removed"],
        beside_kubelet=options["beside_kubelet"],
        pace=Pace(resync=options["resync"]),
    )


def cluster_settings(**options: Any) -> ClusterSettings | None:  # noqa: ANN401 - as above
    """Return how the node takes part in a cluster, or None if it does not. The options are those of `node_settings`.

    Raises click.UsageError if an option is malformed.
    """
    if not joins_cluster(options):
        return None
    from devicecore.adapters.kube_api import Access

    return ClusterSettings(
        access=Access(options["kubeconfig"], options["context"]),
        runs_pods=_runs_pods(options),
        registered=_new_node(options) if options["register"] else None,
        topology_objects=options["topology_objects"],
    )


def _refuse_useless(options: Mapping[str, Any]) -> None:
    """Raise click.UsageError if an option was given that has no effect without an API server."""
    if options["kubeconfig"] is not None or options["in_cluster"]:
        return
    context = click.get_current_context()
    for option in context.command.params:
        is_given = context.get_parameter_source(option.name or "") is click.core.ParameterSource.COMMANDLINE
        if is_given and option.name in _OF_SERVER:
            flag = option.secondary_opts[0] if options[option.name] is False else option.opts[0]
            raise click.UsageError(f"{flag} needs --kubeconfig or --in-cluster.")


def _new_node(options: Mapping[str, Any]) -> NewNode:
    name = options["node_name"] or this_machine()
    if not is_label_value(name):
        raise click.UsageError(
            f"--node-name: expected at most 63 letters, digits, '-' and '.', got {foreign_text(name)!r}"
        )
    own = [_taint(one) for one in options["taints"]]
    if len(all_taints(own, is_tainted=False)) < len(own):
        raise click.UsageError("--taint: name each key once for each effect.")
    capacity = {size: _quantity(f"--{size}", options[size]) for size in ("cpu", "memory")}
    of_machine, allocatable = _sizes(options)
    return NewNode(
        capacity={**capacity, **of_machine, "pods": str(options["max_pods"])},
        allocatable=allocatable,
        labels=dict(map(_label, options["labels"])),
        taints=all_taints(own, is_tainted=options["is_tainted"]),
        address=options["node_ip"],
        adopts=options["adopts"],
    )


def _sizes(options: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Return capacity and allocatable of the machine if its CPUs or memory are pinned, or else two empty dicts."""
    managers = _managers(options)
    if managers is None:
        return {}, {}
    context = click.get_current_context()
    for name in ("cpu", "memory"):
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"--{name}: this follows from the machine, because its CPUs or its memory are pinned."
            )
    try:
        return node_sizes(read_policies(managers.configuration, managers.machine))
    except NumaError as error:
        raise _numa_problem(error, options) from None


def _quantity(option: str, text: str) -> str:
    try:
        size = Quantity.parse(text)
    except DeviceCoreError as error:
        raise click.UsageError(f"{option}: {error}") from None
    if size.nanos < 0:
        raise click.UsageError(f"{option}: expected 0 or more, got {text}")
    return text


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not is_qualified_name(key) or not is_label_value(value):
        raise click.UsageError(f"--node-label: expected KEY=VALUE, got {foreign_text(text)!r}")
    return key, value


def _taint(text: str) -> dict[str, str]:
    pair, colon, effect = text.rpartition(":")
    key, _, value = pair.partition("=")
    if not colon or effect not in TAINT_EFFECTS or not is_qualified_name(key) or not is_label_value(value):
        message = f"--taint: expected KEY[=VALUE]:EFFECT with {', '.join(TAINT_EFFECTS)}, got {foreign_text(text)!r}"
        raise click.UsageError(message)
    return taint(key, value, effect)
