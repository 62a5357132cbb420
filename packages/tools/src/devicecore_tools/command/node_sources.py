"""Which sources of a node a command reads, and how: the options of `doctor`, which its sister commands share.

Law: a source that cannot be read is named with the reason, and the others are read all the same.
"""

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click
from attrs import define, field

from devicecore_tools.command.options import PLACE, Seconds, missing_file, with_options

if TYPE_CHECKING:
    from devicecore_tools.doctor import (
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
    from devicecore_tools.doctor.sources.kubelet_directory import KubeletDirectory

    _Objects = tuple[Reading[tuple[PodSeen, ...]], Reading[NodeSeen], Reading[tuple[PublishedDeviceSeen, ...]]]

DEFAULT_ROOT = "/var/lib/kubelet"

P = ParamSpec("P")
R = TypeVar("R")

_OPTIONS = (
    click.option(
        "--root",
        metavar="DIR",
        type=PLACE,
        help=f"The kubelet's root directory, or its device-plugins directory. Default: {DEFAULT_ROOT}, unless "
        "--checkpoint or --pod-resources is given.",
    ),
    click.option("--checkpoint", metavar="FILE", type=PLACE, help="The checkpoint, if it is not in --root."),
    click.option(
        "--pod-resources", metavar="SOCKET", type=PLACE, help="The pod-resources socket, if it is not in --root."
    ),
    click.option(
        "--pods",
        metavar="FILE",
        type=PLACE,
        help="The pods: what the kubelet's /pods or `kubectl get pods -A -o json` prints. - is standard input.",
    ),
    click.option("--node", metavar="FILE", type=PLACE, help="The Node: what `kubectl get node NAME -o json` prints."),
    click.option(
        "--claims", metavar="FILE", type=PLACE, help="The file of ResourceClaims, dra_manager_state, if not in --root."
    ),
    click.option(
        "--slices",
        metavar="FILE",
        type=PLACE,
        help="What DRA drivers publish: what `kubectl get resourceslices -o json` prints.",
    ),
    click.option(
        "--kubeconfig",
        metavar="FILE",
        type=PLACE,
        help="Read pods, Node, slices from this API server; needs --node-name.",
    ),
    click.option(
        "--in-cluster",
        is_flag=True,
        help="Read pods, Node and slices with the service account of this pod; needs --node-name.",
    ),
    click.option("--node-name", metavar="NAME", help="The Node object's name at the API server."),
    click.option("--plugins", is_flag=True, help="Ask each plugin for its options and one list. Never Allocate."),
    click.option(
        "--plugin-timeout",
        metavar="SECONDS",
        type=Seconds(min=0.1),
        default=10.0,
        show_default=True,
        help="How long a plugin or the kubelet may take for one answer.",
    ),
    click.option(
        "--cdi-dir",
        "cdi_directories",
        metavar="DIR",
        type=PLACE,
        multiple=True,
        help="A directory of CDI files. Default: /etc/cdi and /var/run/cdi, unless only --checkpoint is given.",
    ),
)


def source_options(command: Callable[P, R]) -> Callable[P, R]:
    """Give a command the options that say what to read; `NodeSources` takes their values."""
    return with_options(command, _OPTIONS)


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
    _piped_pods: "Reading[tuple[PodSeen, ...]] | None" = field(default=None, init=False)
    _last_checkpoint: "Reading[CheckpointSeen] | None" = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        """Complete what was not given.

        Raises:
            click.UsageError: options contradict each other.
        """
        from devicecore_tools.doctor.sources.cdi import CDI_DIRECTORIES
        from devicecore_tools.doctor.sources.kubelet_directory import KubeletDirectory

        if self.kubeconfig is not None and self.in_cluster:
            message = "--kubeconfig and --in-cluster exclude each other."
            raise click.UsageError(message)
        if self.uses_api and not self.node_name:
            message = "--kubeconfig and --in-cluster need --node-name, the name of the Node object."
            raise click.UsageError(message)
        self._refuse_what_is_no_file()
        if self.root is None and self.checkpoint is None and self.pod_resources is None:
            self.root = DEFAULT_ROOT
        if self.root is not None:
            self._directory = KubeletDirectory.at(self.root)
        if self.plugins and self._directory is None:
            message = "--plugins needs --root, the directory of the plugins' sockets."
            raise click.UsageError(message)
        if not self.cdi_directories and (self._directory is not None or self.pod_resources is not None):
            self.cdi_directories = CDI_DIRECTORIES

    def _refuse_what_is_no_file(self) -> None:
        for option, what_to_name in _FILES.items():
            file = getattr(self, option)
            if file is None or (option, file) == ("pods", "-"):
                continue
            problem = missing_file(file)
            if problem is None and os.path.isdir(file):  # noqa: PTH112 - it says False if it cannot look
                problem = f"it is a directory, expected a file{what_to_name.format(file.rstrip('/'))}"
            if problem is not None:  # otherwise the report says why the file cannot be read
                message = f"--{option}: {file}: {problem}."
                raise click.UsageError(message)

    @property
    def uses_api(self) -> bool:
        """Whether pods and Node are read from an API server."""
        return self.in_cluster or self.kubeconfig is not None

    @property
    def is_live(self) -> bool:
        """Whether a second look can say something else than the first, although no file was replaced."""
        return self._directory is not None or self.pod_resources is not None or self.uses_api

    def look(self) -> "Look":
        """Read every source once, one after the other."""
        from devicecore_tools.doctor import Look

        checkpoint = self._read_checkpoint()
        sockets = self._read_sockets()
        pod_resources = self._read_pod_resources()
        pods, node, slices = self._read_objects()
        plugins = self._read_plugins(sockets)
        return Look(
            checkpoint, sockets, pod_resources, pods, node, plugins, self._read_cdi(), self._read_claims(), slices
        )

    def _read_claims(self) -> "Reading[ClaimsSeen]":
        from devicecore_tools.doctor import Reading
        from devicecore_tools.doctor.sources.claims import read_claims

        if self.claims:
            return read_claims(self.claims, may_be_absent=False)
        if self._directory is None:
            return Reading(problem=_add("--claims", "--root"))
        return read_claims(self._directory.claims, may_be_absent=self._directory.has_root)

    def _read_checkpoint(self) -> "Reading[CheckpointSeen]":
        from devicecore_tools.doctor import Reading
        from devicecore_tools.doctor.sources.kubelet_directory import read_checkpoint

        path = self.checkpoint or (self._directory.checkpoint if self._directory else None)
        if path is None:
            return Reading(problem=_add("--checkpoint", "--root"))
        self._last_checkpoint = read_checkpoint(path, self._last_checkpoint)
        return self._last_checkpoint

    def _read_sockets(self) -> "Reading[SocketsSeen]":
        from devicecore_tools.doctor import Reading
        from devicecore_tools.doctor.sources.kubelet_directory import read_sockets

        return read_sockets(self._directory) if self._directory else Reading(problem=_add("--root"))

    def _read_pod_resources(self) -> "Reading[PodResourcesSeen]":
        from devicecore_tools.doctor import Reading

        socket = self.pod_resources or (self._directory.pod_resources if self._directory else None)
        if socket is None:
            return Reading(problem=_add("--pod-resources", "--root"))
        try:
            from devicecore_tools.doctor.sources.pod_resources import read_pod_resources
        except ModuleNotFoundError as error:
            return Reading(socket, problem=_needs(error, "grpcio"))
        return read_pod_resources(socket, self.plugin_timeout)

    def _read_plugins(self, sockets: "Reading[SocketsSeen]") -> "Reading[tuple[PluginSeen, ...]]":
        from devicecore_tools.doctor import Reading

        if not self.plugins or self._directory is None:
            return Reading(problem=_add("--plugins"))
        if sockets.value is None:
            return Reading(sockets.place, problem=sockets.problem)
        try:
            from devicecore_tools.doctor.sources.plugin_sockets import read_plugins
        except ModuleNotFoundError as error:
            return Reading(sockets.place, problem=_needs(error, "grpcio"))
        found, directory = sockets.value, self._directory
        return read_plugins(directory.plugins, found.plugins, directory.registry, found.registry, self.plugin_timeout)

    def _read_objects(self) -> "_Objects":
        from devicecore_tools.doctor import Reading
        from devicecore_tools.doctor.sources.claims import read_slices
        from devicecore_tools.doctor.sources.objects import read_node

        pods: Reading[tuple[PodSeen, ...]] = Reading(problem=_add("--pods", "--kubeconfig"))
        node: Reading[NodeSeen] = Reading(problem=_add("--node", "--kubeconfig"))
        slices: Reading[tuple[PublishedDeviceSeen, ...]] = Reading(problem=_add("--slices", "--kubeconfig"))
        if self.uses_api:
            pods, node, slices = self._read_api()
        if self.pods is not None:
            pods = self._piped_pods or pods_at(self.pods)
            self._piped_pods = pods if self.pods == "-" else None
        if self.node is not None:
            node = read_node(self.node)
        if self.slices is not None:
            slices = read_slices(self.slices, self.node_name or (node.value.name if node.value else ""))
        return pods, node, slices

    def _read_api(self) -> "_Objects":
        from devicecore.domain.documents import Value
        from devicecore_tools.doctor import Reading
        from devicecore_tools.doctor.sources.claims import slices_in
        from devicecore_tools.doctor.sources.objects import node_in, pods_in

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
        from devicecore_tools.doctor import Reading
        from devicecore_tools.doctor.sources.cdi import read_cdi

        return read_cdi(self.cdi_directories) if self.cdi_directories else Reading(problem=_add("--cdi-dir", "--root"))


_FILES = {  # the options that name files, and what to name instead of a directory
    "checkpoint": ", such as {0}/kubelet_internal_checkpoint. To read all of a kubelet's directory, use --root {0}",
    "pods": "",
    "node": "",
    "claims": ", such as {0}/dra_manager_state",
    "slices": "",
    "kubeconfig": "",
}
MAX_INPUT = 64 * 1024 * 1024 + 1
"""Bytes that are read of a document; a longer one is refused when it is parsed."""


def pods_at(place: str) -> "Reading[tuple[PodSeen, ...]]":
    """The pods in a file, or on standard input if `place` is `-`."""
    from devicecore_tools.doctor.sources.objects import pods_of_bytes, read_pods

    return pods_of_bytes(sys.stdin.buffer.read(MAX_INPUT), "standard input") if place == "-" else read_pods(place)


def given_pods(place: str) -> "Reading[tuple[PodSeen, ...]]":
    """The pods that a command needs and `--pods` names.

    Raises:
        click.ClickException: it is not a list of pods.
    """
    reading = pods_at(place)
    if reading.value is None:
        message = f"--pods: {reading.problem}"
        raise click.ClickException(message)
    return reading


def _read_as(place: str, answer: object, read: Callable[[], R]) -> "Reading[R]":
    """What `read` makes of an answer, unless that is a sentence that says why there is none."""
    from devicecore.domain.errors import DocumentError
    from devicecore_tools.doctor import Reading

    if isinstance(answer, str):
        return Reading(place, problem=answer)
    try:
        return Reading.of(place, read())
    except DocumentError as error:
        return Reading(place, problem=str(error))


def _add(*options: str) -> str:
    """Why a source has no value if no option names it."""
    return f"add {' or '.join(options)}"


def _needs(error: ModuleNotFoundError, package: str) -> str:
    return f"it is skipped, because {package} is not installed ({error.name} is missing)"
