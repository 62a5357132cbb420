"""`devicecore nodes`: the devices of each node of a cluster, which are free, and who holds them.

Law: an unknown number is `?`, and anything unread is named below the table and affects the exit status.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import click
from attrs import frozen

from devicecore.domain.allocation import TargetNode
from devicecore.domain.device_set import in_natural_order
from devicecore.domain.errors import DocumentError
from devicecore.domain.model import DeviceId
from devicecore.domain.text import counted, foreign_text, listed
from devicecore_tools.budget import Budget
from devicecore_tools.command.collector import without_collector
from devicecore_tools.command.inputs import read_input
from devicecore_tools.command.options import PLACE, json_option, seconds_option, source_option
from devicecore_tools.command.output import complain, print_json
from devicecore_tools.command.signals import Signals
from devicecore_tools.doctor.account.nodes import Counts, DeviceUse, ResourceOnNode, resources_of, totals
from devicecore_tools.doctor.look.values import Look, Source
from devicecore_tools.doctor.reading.cluster import NO_NODE, OF_DEVICES, looks_at_all_nodes, looks_of, objects_in
from devicecore_tools.doctor.reading.label_selectors import label_selector

if TYPE_CHECKING:
    from devicecore.domain.documents import Value

_UNUSABLE, _NOT_ALL_SEEN = 2, 3
_CLEAR = "\x1b[H\x1b[2J"
_NEEDED = {Source.PODS: "pods", Source.SLICES: "ResourceSlices", Source.ALLOCATIONS: "ResourceClaims"}
_OF_SEVERAL = "(several nodes)"
_COLUMNS = ("allocatable", "requested", "held", "free", "unhealthy")
_FORMAT = 1

Looks = Callable[[], dict[str, Look]]


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE]...", type=PLACE)
@source_option("--kubeconfig", "FILE", "Read this cluster. Default: $KUBECONFIG, or ~/.kube/config.")
@click.option("--in-cluster", is_flag=True, help="Read this cluster with the service account of this pod.")
@click.option("--devices", is_flag=True, help="List each device, with the pod and container that hold it.")
@click.option(
    "--resource",
    "wanted",
    metavar="NAME",
    multiple=True,
    help="Only this resource or driver. * stands for any text, and the option may be given several times.",
)
@click.option(
    "--node-selector",
    "-l",
    metavar="LABELS",
    help="Only nodes with these labels, in the form of `kubectl get nodes -l`.",
)
@json_option
@click.option("--watch", is_flag=True, help="Repeat the table until SIGINT or SIGTERM.")
@seconds_option("--interval", 10.0, "With --watch: the pause between two tables.")
def nodes(
    *,
    files: tuple[str, ...],
    kubeconfig: str | None,
    in_cluster: bool,
    devices: bool,
    wanted: tuple[str, ...],
    node_selector: str | None,
    as_json: bool,
    watch: bool,
    interval: float,
) -> int:
    """Show the devices of each node, and which pods hold them.

    Each row is a device plugin's resource, or a DRA driver, on one node. The command reads nodes, pods, ResourceSlices
    and ResourceClaims from a cluster, or from FILEs that kubectl wrote; - is standard input. The command changes
    nothing.

    \b
    $ devicecore nodes
    $ devicecore nodes --resource 'nvidia.com/*' --node-selector pool=gpu
    $ devicecore nodes --devices --json
    $ kubectl get nodes,pods,resourceslices,resourceclaims -A -o json | devicecore nodes -

    ALLOCATABLE is what a scheduler may allocate. REQUESTED is what pods bound to the node request, or what claims have
    allocated. HELD counts the requested devices whose pods have started. FREE is what other pods can get. Of devices
    that share counters, such as a GPU and its partitions, ALLOCATABLE and FREE count as many as pods can get at the
    same time. UNHEALTHY is what no pod can get: for a plugin, capacity minus allocatable; for a driver, the devices
    with a taint that repels pods. A ? stands for a number that was not read, or that depends on the remaining part of a
    shared device or on the choice among devices that share counters.

    --devices does not access the nodes, so it names plugin devices only where a kubelet has written them into a pod's
    status. On a node, `devicecore doctor` names all of its plugin devices.

    Exit status: 0 if everything was read, 3 if pods, slices or claims could not be read, 2 if the nodes could not be
    read.
    """
    read = _source(files, kubeconfig, in_cluster=in_cluster, selector=node_selector)
    show = _Shown(devices=devices, wanted=wanted, as_json=as_json, selector=node_selector)
    if not watch:
        return show.once(read)
    if "-" in files:
        raise click.UsageError("--watch and standard input cannot be used together.")
    with Signals() as signals:
        while True:
            sys.stdout.write(_CLEAR if sys.stdout.isatty() and not as_json else "")
            status = show.once(read)
            sys.stdout.flush()
            if signals.wait_for_end(interval):
                return status


def _source(files: Sequence[str], kubeconfig: str | None, *, in_cluster: bool, selector: str | None) -> Looks:
    """Return a reader of nodes.

    Raises click.UsageError if the options contradict each other, name no source, or cannot be parsed.
    """
    selects: Callable[[TargetNode], bool] | None = None
    if selector is not None:
        try:
            selects = label_selector(selector)
        except (ValueError, DocumentError) as error:
            raise click.UsageError(f"--node-selector: {error}.") from error
    for file in files:
        is_name = file != "-" and not {"/", "."} & {*file}
        if is_name and not Path(file).exists():
            raise click.UsageError(
                f"{foreign_text(file)}: there is no such file. To show one node of the cluster, use --node-selector "
                f"kubernetes.io/hostname={foreign_text(file)}."
            )
    if sum((bool(files), kubeconfig is not None, in_cluster)) > 1:
        raise click.UsageError("expected one of FILE, --kubeconfig and --in-cluster.")
    if files:
        return lambda: _looks_of_files(files, selects)
    place = None if in_cluster else kubeconfig or default_kubeconfig()
    if place is not None and not Path(place).is_file():
        what = f"{place} is a directory" if Path(place).is_dir() else f"there is no kubeconfig {place}"
        raise click.UsageError(
            f"{what}. Name a kubeconfig with --kubeconfig, use --in-cluster in a pod, or give the output"
            " of kubectl get nodes,pods,resourceslices,resourceclaims -A -o json."
        )
    return lambda: looks_at_all_nodes(place, selects, OF_DEVICES, budget=Budget())


def _looks_of_files(files: Sequence[str], selects: Callable[[TargetNode], bool] | None) -> dict[str, Look]:
    budget = Budget()
    return looks_of(objects_in(_documents(files, budget)), selects, budget)


def default_kubeconfig() -> str:
    """Return the user's kubeconfig: the first file in $KUBECONFIG that exists, or the first one if none exists.

    Without $KUBECONFIG, return ~/.kube/config.
    """
    named = [one for one in os.environ.get("KUBECONFIG", "").split(os.pathsep) if one]
    existing = [one for one in named if Path(one).exists()]
    return (existing or named)[0] if named else str(Path.home() / ".kube" / "config")


def _documents(files: Iterable[str], budget: Budget) -> Iterator["Value"]:
    from devicecore_tools.doctor.reading.large_documents import MAX_INPUT, parse_documents

    for file in files:
        if file == "-":
            yield from parse_documents(sys.stdin.buffer.read(MAX_INPUT), "standard input", budget)
        else:
            yield from parse_documents(read_input(file, MAX_INPUT), file, budget)


@frozen
class _Shown:
    """Which parts of the nodes are shown."""

    devices: bool
    wanted: tuple[str, ...]
    as_json: bool
    selector: str | None

    @without_collector()
    def once(self, read: Looks) -> int:
        """Read the nodes, print them, and return the exit status."""
        try:
            looks = read()
        except (ValueError, DocumentError) as error:
            complain("devicecore nodes", str(error))
            return _UNUSABLE
        if not looks.keys() - {NO_NODE}:
            chosen = f" with the labels {self.selector}" if self.selector else ""
            complain("devicecore nodes", f"there is no node{chosen}")
            return _UNUSABLE
        known = [name for name, look in looks.items() if name != NO_NODE and look.node.value is not None]
        names = [*in_natural_order(list(map(DeviceId, known))), *(looks.keys() & {NO_NODE})]
        whole = {name: resources_of(looks[name]) for name in names}
        found = {name: tuple(one for one in of if self._is_wanted(one)) for name, of in whole.items()}
        unread = _unread(looks[name] for name in names)
        if left := [name for name in looks if name not in found]:
            unread["nodes"] = f"{listed(left, 3)}: {looks[left[0]].node.problem}"
        if self.as_json:
            print_json(self._document(found, unread))
        else:
            self._print(found, unread, sorted({one.name for of in whole.values() for one in of}))
        return _NOT_ALL_SEEN if unread else 0

    def _is_wanted(self, one: ResourceOnNode) -> bool:
        return not self.wanted or any(fnmatchcase(one.name, pattern) for pattern in self.wanted)

    def _document(self, found: Mapping[str, tuple[ResourceOnNode, ...]], unread: Mapping[str, str]) -> object:
        of_nodes = [
            {"name": name or None, "resources": [self._resource(one) for one in resources]}
            for name, resources in found.items()
        ]
        sums = [{"name": name, "driver": driver, **_numbers(of)} for (name, driver), of in totals(found).items()]
        return {"format": _FORMAT, "nodes": of_nodes, "totals": sums, "not_read": dict(unread)}

    def _resource(self, one: ResourceOnNode) -> dict[str, object]:
        document: dict[str, object] = {"name": one.name, "driver": one.is_driver, **_numbers(one.counts)}
        if self.devices:
            document["devices"] = [
                {
                    "device": use.device or None,
                    "count": use.count,
                    "state": use.state,
                    "namespace": use.namespace or None,
                    "pod": use.pod or None,
                    "container": use.container or None,
                    "claim": use.claim or None,
                }
                for use in one.devices
            ]
        return document

    def _print(
        self, found: Mapping[str, tuple[ResourceOnNode, ...]], unread: Mapping[str, str], known: Sequence[str]
    ) -> None:
        header = ("NODE", "RESOURCE", *(one.upper() for one in _COLUMNS))
        if self.devices:
            header = ("NODE", "RESOURCE", "DEVICE", "STATE", "NAMESPACE", "POD", "CONTAINER", "CLAIM")
        rows = [
            row
            for name, resources in found.items()
            for one in resources
            for row in self._rows(name or _OF_SEVERAL, one)
        ]
        if not self.devices and len(found) > 1:
            rows += [(_all(found), name, *_cells(of)) for (name, _), of in totals(found).items()]
        if rows:
            _print_table([header, *rows])
        bare = sum(not resources for resources in found.values())
        if bare:
            what = "such devices" if self.wanted else "devices"
            sys.stdout.write(f"{counted(bare, 'node')} of {len(found):,} {'has' if bare == 1 else 'have'} no {what}.\n")
        if self.wanted and not rows and known:
            sys.stdout.write(f"The resources are: {foreign_text(listed(known, 10), 1_000)}\n")
        elif self.wanted and not known:
            sys.stdout.write("No devices of other resources were found either.\n")
        for kind, why in unread.items():
            sys.stdout.write(f"not read: {kind}: {foreign_text(why, 300)}\n")

    def _rows(self, node: str, one: ResourceOnNode) -> Iterator[tuple[str, ...]]:
        if not self.devices:
            yield node, one.name, *_cells(one.counts)
            return
        for use in one.devices:
            yield node, one.name, _name_of(use), use.state, use.namespace, use.pod, use.container, use.claim


def _all(found: Mapping[str, object]) -> str:
    return f"all {len(found.keys() - {NO_NODE}):,} nodes"


def _name_of(use: DeviceUse) -> str:
    return use.device or f"({use.count:,} not named)"


def _numbers(counts: Counts) -> dict[str, int | None]:
    return {one: getattr(counts, one) for one in _COLUMNS}


def _cells(counts: Counts) -> tuple[str, ...]:
    return tuple("?" if number is None else f"{number:,}" for number in _numbers(counts).values())


def _unread(looks: Iterable[Look]) -> dict[str, str]:
    """Return why each kind of object was not read, according to the first node that lacks it."""
    found: dict[str, str] = {}
    for look in looks:
        for source, kind in _NEEDED.items():
            reading = look.readings[source]
            if reading.value is None and not (source is Source.PODS and not look.node.value):
                found.setdefault(kind, reading.problem)
    return found


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    shown = [[foreign_text(cell, 100) or "-" for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for row in shown:
        line = "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        sys.stdout.write(f"{line.rstrip()}\n")
