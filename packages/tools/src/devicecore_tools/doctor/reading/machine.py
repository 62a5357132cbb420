"""Identifies this machine, and checks whether an API server's objects belong to it.

Law: even if a user names the wrong Node, two machines are not mistaken for one.
"""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from devicecore.domain.errors import DocumentError
from devicecore.domain.text import foreign_text
from devicecore_tools.doctor.look.topology_settings import TopologySettings
from devicecore_tools.doctor.look.values import MachineSeen, NodeSeen, PodResourcesSeen, PodSeen
from devicecore_tools.doctor.reading.large_documents import read_document_file
from devicecore_tools.numa import MACHINE_FILE

SYSTEM = Path("/sys/devices/system")
"""The directory in which the machine describes its CPUs and memory."""

_CPU_SET = re.compile(r"(?:\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)?")
_MAX_CPU = 65_536

_MACHINE_FILES = ("/etc/machine-id", "/var/lib/dbus/machine-id")
_BOOT_FILE = "/proc/sys/kernel/random/boot_id"
_MAX_ID = 200


def this_machine(machine_files: Sequence[str] = _MACHINE_FILES, boot_file: str = _BOOT_FILE) -> tuple[str, str]:
    """Return the machineID and bootID of this machine, as a kubelet reads them. An unreadable id is empty."""
    return next(filter(None, map(_content, machine_files)), ""), _content(boot_file)


def cpus_in(text: str) -> set[int]:
    """Return the numbers in a set of CPUs or NUMA nodes such as `0-3,8`, or nothing if the string is invalid."""
    text = text.strip()
    if not text or not _CPU_SET.fullmatch(text):
        return set()
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), min(int(last or first), _MAX_CPU) + 1))
    return found


def numa_distances(numa_nodes: Sequence[int], system: Path = SYSTEM) -> tuple[tuple[int, ...], ...]:
    """Return the distances between this machine's NUMA nodes, row by row, or nothing if they are unknown."""
    with suppress(OSError, ValueError):
        online = sorted(cpus_in((system / "node" / "online").read_text()))
        rows = {node: _distances_from(system / "node" / f"node{node}", online) for node in numa_nodes}
        if all(there in row for row in rows.values() for there in numa_nodes):
            return tuple(tuple(rows[here][there] for there in numa_nodes) for here in numa_nodes)
    return ()


def _distances_from(node: Path, online: Sequence[int]) -> dict[int, int]:
    return dict(zip(online, map(int, (node / "distance").read_text().split()), strict=False))


def numa_nodes_of(root: str) -> tuple[int, ...]:
    """Return the NUMA nodes of the kubelet's machine, or an empty tuple if they are unknown.

    The kubelet's machine is the machine that the root directory describes, or else this machine.
    """
    described = Path(root) / MACHINE_FILE
    with suppress(OSError, DocumentError):
        if os.path.lexists(described):
            nodes = read_document_file(str(described))["topology"].sequence()
            return tuple(sorted(one["node_id"].integer() for one in nodes))
        return tuple(sorted(cpus_in((SYSTEM / "node" / "online").read_text())))
    return ()


def seen_machine(root: str, settings: TopologySettings) -> MachineSeen:
    """Identify this machine, with the NUMA nodes of the kubelet that has this root directory.

    `settings` are the settings of the kubelet's topology manager.
    """
    policy = settings.policy.value if settings.is_given else ""
    return MachineSeen(*this_machine(), numa_nodes_of(root), policy, settings.max_numa_nodes)


def _content(path: str) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return Path(path).read_text()[:_MAX_ID].strip()
    return ""


def why_another_machine(node: NodeSeen, here: tuple[str, str]) -> str:
    """Return why a Node is not the machine `here`, or an empty string if no reason is known.

    When a machine reboots, it keeps its machineID but gets a new bootID. A container may have no machineID.
    """
    (machine, boot), (own_machine, own_boot) = node.machine, here
    if not boot or not own_boot or boot == own_boot or machine == own_machine:
        return ""
    if not (machine and own_machine) and node.ready != "True":
        return ""
    return f"Node {foreign_text(node.name)} is a different machine from this one: its bootID is {foreign_text(boot)}"


def why_other_pods(node: str, pods: tuple[PodSeen, ...], api: PodResourcesSeen | None) -> str:
    """Return why a Node's pods cannot be the pods that a kubelet lists, or an empty string if they can be."""
    theirs = {pod.place: pod for pod in pods}
    if api is None or not api.pods or not theirs or not api.pods.isdisjoint(theirs):
        return ""
    here, there = ("/".join(min(places)) for places in (api.pods, theirs))
    return (
        f"Node {foreign_text(node)} is not the Node of this kubelet, which lists pod {foreign_text(here)} and none of "
        f"that Node's pods, such as {foreign_text(there)}"
    )
