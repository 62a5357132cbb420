"""`devicecore checkpoint`: examine the file in which a kubelet keeps who has which device."""

import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devicecore.cli.output import complain, json_option, print_json, print_pairs
from devicecore.domain.text import foreign_text

if TYPE_CHECKING:
    from devicecore.domain.checkpoint import CheckpointData, Finding, PodDevicesEntry
    from devicecore.domain.container_options import ContainerAllocateResponse

_PLUGINS = "device-plugins"
_NEGATIVE = 1
_UNUSABLE = 2
_WITH_NODES = 2  # the format that tells NUMA nodes; of one that does not, a kubelet takes everything to be on node 0


@click.group()
def checkpoint() -> None:
    """Examine a kubelet's checkpoint of who has which devices.

    $ devicecore checkpoint verify /var/lib/kubelet/device-plugins
    """


@checkpoint.command()
@json_option
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
def verify(*, as_json: bool, files: tuple[str, ...]) -> int:
    """Say whether a kubelet can use a checkpoint.

    The verdict on each FILE is ok, checksum (it is not what was written), malformed or absent. A directory stands for
    the kubelet_internal_checkpoint in it or in its device-plugins, and - for standard input. Exit status 1 if one of
    them is not ok.

    $ devicecore checkpoint verify --json /backup/*/kubelet_internal_checkpoint
    """
    from devicecore.domain.checkpoint import FileVerdict, judge
    from devicecore.domain.errors import StoreError
    from devicecore.system.json_values import to_json

    status = 0
    findings = []
    for file in files:
        path = _path(file)
        try:
            findings.append((path, judge(_load(path))))
        except StoreError as error:
            complain("devicecore checkpoint verify", str(error))
            status = _UNUSABLE
    if as_json:
        print_json([{"file": file, **to_json(found)} for file, found in findings])
    else:
        for file, found in findings:
            click.echo(foreign_text(f"{file}: {_sentence(found)}"))
    return status or (_NEGATIVE if any(found.verdict is not FileVerdict.OK for _, found in findings) else 0)


@checkpoint.command()
@json_option
@click.argument("file")
def show(*, as_json: bool, file: str) -> int:
    """Show who has which devices.

    Shows for each container its devices, by NUMA node, and what else its plugins gave it; then the devices that are
    registered. FILE is one for `checkpoint verify`. If it is not ok, what can be read is shown, with exit status 1.

    $ devicecore checkpoint show /var/lib/kubelet/device-plugins
    """
    from devicecore.domain.checkpoint import CheckpointData, FileVerdict, decode, judge

    file = _path(file)
    blob = _load(file)
    found = judge(blob)
    readable = blob is not None and found.verdict in {FileVerdict.OK, FileVerdict.CHECKSUM}
    data = decode(blob or b"").data if readable else CheckpointData()
    if as_json:
        print_json(_document(file, found, data))
    elif readable:
        click.echo(foreign_text(f"{file}: {found.verdict.value} {_facts(found)}"))
        _print(found, data)
    if found.verdict is FileVerdict.OK:
        return 0
    complain("devicecore checkpoint show", f"{file}: {found.problem}")
    return _NEGATIVE


def _path(file: str) -> str:
    """The file that is meant: a directory is one of plugins, or a kubelet's root directory."""
    from devicecore.adapters.file import CHECKPOINT_NAME

    if not os.path.isdir(file):  # noqa: PTH112 - raises nothing
        return file
    here, below = Path(file) / CHECKPOINT_NAME, Path(file) / _PLUGINS / CHECKPOINT_NAME
    return str(below if os.path.lexists(below) and not os.path.lexists(here) else here)


def _load(path: str) -> bytes | None:
    from devicecore.domain.errors import StoreError
    from devicecore.system.files import MAX_FILE_BYTES

    if path == "-":
        return sys.stdin.buffer.read(MAX_FILE_BYTES)
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - waits for a pipe's writer, as in `verify <(ssh node cat ...)`
            return file.read(MAX_FILE_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(os.path.basename(path), "read", f"{path}: {error.strerror}") from error  # noqa: PTH119 - as typed


def _sentence(found: "Finding") -> str:
    verdict = found.verdict.value
    return f"{verdict}: {found.problem}" if found.problem else f"{verdict} {_facts(found)}"


def _facts(found: "Finding") -> str:
    entries = f"{found.entries} entr{'y' if found.entries == 1 else 'ies'}"
    resources = f"{found.resources} resource{'' if found.resources == 1 else 's'}"
    checksum = "no checksum" if found.stored is None else f"checksum {found.stored}"
    return f"(format {found.format}, {entries}, {resources}, {checksum})"


# --- show, for programs -----------------------------------------------------------------------------------------------


def _document(file: str, found: "Finding", data: "CheckpointData") -> dict[str, object]:
    return {
        "file": file,
        "verdict": found.verdict.value,
        "format": found.format,
        "stored": found.stored,
        "computed": found.computed,
        "problem": found.problem,
        "entries": None if data.entries is None else [_entry(entry) for entry in data.entries],
        "registered": data.registered_devices,
    }


def _entry(entry: "PodDevicesEntry") -> dict[str, object]:
    """One entry; `given` is None where the plugin's answer cannot be read. NUMA node -1 is the kubelet's for none."""
    from attrs import asdict

    given = _given(entry)
    return {
        "pod": entry.pod_uid,
        "container": entry.container_name,
        "resource": entry.resource_name,
        "devices": entry.device_ids,
        "given": None if given is None else asdict(given),
    }


def _given(entry: "PodDevicesEntry") -> "ContainerAllocateResponse | None":
    from devicecore.domain.errors import UnreadableReceiptError
    from devicecore.domain.model import Receipt
    from devicecore.wire.conversion import read_receipt

    try:
        return read_receipt(Receipt(entry.alloc_resp or b""))
    except UnreadableReceiptError:
        return None


# --- show, for people -------------------------------------------------------------------------------------------------


def _print(found: "Finding", data: "CheckpointData") -> None:
    by_container = itertools.groupby(data.entries or (), lambda entry: (entry.pod_uid, entry.container_name))
    for (pod, container), entries in by_container:
        click.echo()
        rows = [*entries]
        held = (pair for entry in rows for pair in _devices(entry, with_nodes=found.format == _WITH_NODES))
        given = (pair for entry in rows for pair in _given_things(entry))
        print_pairs(f"pod {pod}, container {container}", itertools.chain(held, given))
    if data.registered_devices:
        registered = data.registered_devices.items()
        click.echo()
        print_pairs("registered", ((f"{len(ids or ())} {name}", ", ".join(ids or ())) for name, ids in registered))


def _devices(entry: "PodDevicesEntry", *, with_nodes: bool) -> Iterator[tuple[str, str]]:
    from devicecore.domain.model import NO_TOPOLOGY

    for node, ids in sorted((entry.device_ids or {}).items()):
        where = f" NUMA {node}" if with_nodes and node != NO_TOPOLOGY else ""
        yield f"{len(ids or ())} {entry.resource_name}{where}", ", ".join(ids or ())


def _given_things(entry: "PodDevicesEntry") -> Iterator[tuple[str, str]]:
    given = _given(entry)
    if given is None:
        yield "given", f"what the plugin of {entry.resource_name} answered cannot be read"
        return
    yield from (("env", f"{name}={value}") for name, value in given.envs.items())
    for mount in given.mounts:
        yield "mount", f"{mount.host_path} on {mount.container_path} {'read-only' if mount.read_only else 'writable'}"
    for spec in given.devices:
        yield "device", f"{spec.host_path} as {spec.container_path} {spec.permissions}"
    yield from (("annotation", f"{name}={value}") for name, value in given.annotations.items())
    yield from (("CDI device", name) for name in given.cdi_devices)
