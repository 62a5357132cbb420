"""Which sources of a node a command reads, and how: the options of `doctor`, which its sister commands share.

Law: a source that cannot be read is named with the reason, and the others are read all the same.
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click
from attrs import define, field

if TYPE_CHECKING:
    from devicecore.adapters.node_sources import KubeletDirectory
    from devicecore.node_report import (
        CdiSeen,
        CheckpointSeen,
        ClaimsSeen,
        Look,
        NodeSeen,
        PluginSeen,
        PodResourcesSeen,
        PodSeen,
        PublishedDeviceSeen,
        Reading,
        SocketsSeen,
    )

    _Objects = tuple[Reading[tuple[PodSeen, ...]], Reading[NodeSeen], Reading[tuple[PublishedDeviceSeen, ...]]]

DEFAULT_ROOT = "/var/lib/kubelet"

P = ParamSpec("P")
R = TypeVar("R")

_OPTIONS = (
    click.option(
        "--root",
        metavar="DIR",
        help=f"The kubelet's root directory, or its device-plugins directory. Default: {DEFAULT_ROOT}, unless "
        "--checkpoint or --pod-resources is given.",
    ),
    click.option("--checkpoint", metavar="FILE", help="The checkpoint, if it is not in --root."),
    click.option("--pod-resources", metavar="SOCKET", help="The pod-resources socket, if it is not in --root."),
    click.option(
        "--pods",
        metavar="FILE",
        help="The pods: what the kubelet's /pods or `kubectl get pods -A -o json` prints. - is standard input.",
    ),
    click.option("--node", metavar="FILE", help="The Node: what `kubectl get node NAME -o json` prints."),
    click.option("--claims", metavar="FILE", help="The file of ResourceClaims, dra_manager_state, if not in --root."),
    click.option(
        "--slices",
        metavar="FILE",
        help="What DRA drivers publish: what `kubectl get resourceslices -o json` prints.",
    ),
    click.option(
        "--kubeconfig", metavar="FILE", help="Read pods, Node, slices from this API server; needs --node-name."
    ),
    click.option("--in-cluster", is_flag=True, help="Read pods and Node with the service account of this pod."),
    click.option("--node-name", metavar="NAME", help="The Node object's name at the API server."),
    click.option("--plugins", is_flag=True, help="Ask each plugin for its options and one list. Never Allocate."),
    click.option(
        "--plugin-timeout",
        metavar="SECONDS",
        type=click.FloatRange(min=0.1),
        default=10.0,
        show_default=True,
        help="How long a plugin or the kubelet may take for one answer.",
    ),
    click.option(
        "--cdi-dir",
        "cdi_directories",
        metavar="DIR",
        multiple=True,
        help="A directory of CDI files. Default: /etc/cdi and /var/run/cdi, unless only --checkpoint is given.",
    ),
)


def source_options(command: Callable[P, R]) -> Callable[P, R]:
    """Give a command the options that say what to read; `NodeSources` takes their values."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@define
class NodeSources:
    """What to read of a node. Each call of `look` reads everything once more."""

    root: str | None = None
    checkpoint: str | None = None
    pod_resources: str | None = None
    pods: str | None = None
    node: str | None = None
    claims: str | None = None
    slices: str | None = None
    kubeconfig: str | None = None
    in_cluster: bool = False
    node_name: str | None = None
    plugins: bool = False
    plugin_timeout: float = 10.0
    cdi_directories: tuple[str, ...] = ()
    _directory: "KubeletDirectory | None" = field(default=None, init=False)
    _standard_input: bytes | None = field(default=None, init=False)
    _last_checkpoint: "Reading[CheckpointSeen] | None" = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        """Complete what was not given.

        Raises:
            click.UsageError: options contradict each other.
        """
        from devicecore.adapters.node_sources import CDI_DIRECTORIES, KubeletDirectory

        if self.kubeconfig is not None and self.in_cluster:
            message = "--kubeconfig and --in-cluster exclude each other."
            raise click.UsageError(message)
        if self.uses_api and not self.node_name:
            message = "--kubeconfig and --in-cluster need --node-name, the name of the Node object."
            raise click.UsageError(message)
        if self.root is None and self.checkpoint is None and self.pod_resources is None:
            self.root = DEFAULT_ROOT
        if self.root is not None:
            self._directory = KubeletDirectory.at(self.root)
        if self.plugins and self._directory is None:
            message = "--plugins needs --root, the directory of the plugins' sockets."
            raise click.UsageError(message)
        if not self.cdi_directories and (self._directory is not None or self.pod_resources is not None):
            self.cdi_directories = CDI_DIRECTORIES

    @property
    def uses_api(self) -> bool:
        """Whether pods and Node come from an API server."""
        return self.in_cluster or self.kubeconfig is not None

    @property
    def is_live(self) -> bool:
        """Whether a second look can say something else than the first, without anybody replacing files."""
        return self._directory is not None or self.pod_resources is not None or self.uses_api

    def look(self) -> "Look":
        """Read every source once, one after the other."""
        from devicecore.node_report import Look

        checkpoint = self._read_checkpoint()
        sockets = self._read_sockets()
        pod_resources = self._read_pod_resources()
        pods, node, slices = self._read_objects()
        plugins = self._read_plugins(sockets)
        return Look(
            checkpoint, sockets, pod_resources, pods, node, plugins, self._read_cdi(), self._read_claims(), slices
        )

    def _read_claims(self) -> "Reading[ClaimsSeen]":
        from devicecore.adapters.node_sources import read_claims
        from devicecore.node_report import Reading

        if self.claims:
            return read_claims(self.claims, may_be_absent=False)
        if self._directory is None:
            return Reading()
        return read_claims(self._directory.claims, may_be_absent=self._directory.has_root)

    def _read_checkpoint(self) -> "Reading[CheckpointSeen]":
        from devicecore.adapters.node_sources import read_checkpoint
        from devicecore.node_report import Reading

        path = self.checkpoint or (self._directory.checkpoint if self._directory else None)
        if path is None:
            return Reading()
        self._last_checkpoint = read_checkpoint(path, self._last_checkpoint)
        return self._last_checkpoint

    def _read_sockets(self) -> "Reading[SocketsSeen]":
        from devicecore.adapters.node_sources import read_sockets
        from devicecore.node_report import Reading

        return read_sockets(self._directory) if self._directory else Reading()

    def _read_pod_resources(self) -> "Reading[PodResourcesSeen]":
        from devicecore.node_report import Reading

        socket = self.pod_resources or (self._directory.pod_resources if self._directory else None)
        if socket is None:
            return Reading()
        try:
            from devicecore.adapters.pod_resources.reading import read_pod_resources
        except ModuleNotFoundError as error:
            return Reading(socket, problem=_needs(error, "grpcio"))
        return read_pod_resources(socket, self.plugin_timeout)

    def _read_plugins(self, sockets: "Reading[SocketsSeen]") -> "Reading[tuple[PluginSeen, ...]]":
        from devicecore.node_report import Reading

        if not self.plugins or self._directory is None:
            return Reading(problem="it was not asked for: --plugins")
        if sockets.value is None:
            return Reading(sockets.place, problem=sockets.problem)
        try:
            from devicecore.adapters.grpc_unix.reading import read_plugins
        except ModuleNotFoundError as error:
            return Reading(sockets.place, problem=_needs(error, "grpcio"))
        found, directory = sockets.value, self._directory
        return read_plugins(directory.plugins, found.plugins, directory.registry, found.registry, self.plugin_timeout)

    def _read_objects(self) -> "_Objects":
        from devicecore.adapters.node_sources import read_node, read_pods, read_slices
        from devicecore.adapters.node_sources.objects import pods_of_bytes
        from devicecore.node_report import Reading

        pods: Reading[tuple[PodSeen, ...]] = Reading(problem="it was not asked for: --pods, --kubeconfig")
        node: Reading[NodeSeen] = Reading(problem="it was not asked for: --node, --kubeconfig")
        slices: Reading[tuple[PublishedDeviceSeen, ...]] = Reading(
            problem="it was not asked for: --slices, --kubeconfig"
        )
        if self.uses_api:
            pods, node, slices = self._read_api()
        if self.pods == "-":
            if self._standard_input is None:
                self._standard_input = sys.stdin.buffer.read(_MAX_INPUT)
            pods = pods_of_bytes(self._standard_input, "standard input")
        elif self.pods is not None:
            pods = read_pods(self.pods)
        if self.node is not None:
            node = read_node(self.node)
        if self.slices is not None:
            slices = read_slices(self.slices, self.node_name or (node.value.name if node.value else ""))
        return pods, node, slices

    def _read_api(self) -> "_Objects":
        from devicecore.adapters.node_sources import node_in, pods_in, slices_in
        from devicecore.node_report import Reading
        from devicecore.system.documents import Value

        name = self.node_name or ""
        place = f"API server, node {name}"
        try:
            from devicecore.adapters.kube_api.reading import read_objects
        except ModuleNotFoundError as error:
            missing = _needs(error, "lightkube")
            return Reading(place, problem=missing), Reading(place, problem=missing), Reading(place, problem=missing)
        answers: tuple[Any, Any, Any] = read_objects(name, self.kubeconfig)
        node, pods, slices = answers
        return (
            _read_as(place, pods, lambda: pods_in(Value({"kind": "PodList", "items": pods}, place))),
            _read_as(place, node, lambda: node_in(Value({**node, "kind": "Node"}, place))),
            _read_as(place, slices, lambda: slices_in(Value({"kind": "ResourceSliceList", "items": slices}, place))),
        )

    def _read_cdi(self) -> "Reading[CdiSeen]":
        from devicecore.adapters.node_sources import read_cdi
        from devicecore.node_report import Reading

        return read_cdi(self.cdi_directories) if self.cdi_directories else Reading()


_MAX_INPUT = 64 * 1024 * 1024 + 1  # bytes; what is longer is refused when it is parsed


def _read_as(place: str, answer: object, read: Callable[[], R]) -> "Reading[R]":
    """What `read` makes of an answer, unless that is a sentence that says why there is none."""
    from devicecore.node_report import Reading
    from devicecore.system.documents import DocumentError

    if isinstance(answer, str):
        return Reading(place, problem=answer)
    try:
        return Reading.of(place, read())
    except DocumentError as error:
        return Reading(place, problem=str(error))


def _needs(error: ModuleNotFoundError, package: str) -> str:
    return f"it is skipped, because {package} is not installed ({error.name} is missing)"
