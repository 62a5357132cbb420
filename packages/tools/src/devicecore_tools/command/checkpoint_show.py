"""The output of `devicecore checkpoint show`: for people, and as JSON.

Law: without `--free`, both forms show the same entries, and say which plugin answers cannot be read.
"""

import itertools
from collections.abc import Iterator

import click
from attrs import evolve, frozen

from devicecore.domain.checkpoint import CheckpointData, FileReport, PodDevicesEntry
from devicecore.domain.container_options import ContainerAllocateResponse
from devicecore.domain.errors import UnreadableReceiptError
from devicecore.domain.model import NO_TOPOLOGY, Receipt
from devicecore.domain.text import foreign_text
from devicecore.system.json_values import to_json
from devicecore.wire.conversion import read_receipt
from devicecore_tools.command.checkpoint_devices import DevicesFile
from devicecore_tools.command.checkpoint_holders import free_devices
from devicecore_tools.command.output import MAX_SENTENCE, print_json, print_pairs

_WITH_NUMA_NODES = 2  # the format that records NUMA nodes; for older formats, a kubelet assumes node 0


@frozen
class Filter:
    """Which resources and pods are shown.

    By default, all resources and pods are shown. With `free_only`, the text shows only free devices.
    """

    resources: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()
    free_only: bool = False

    def has_resource(self, resource: str) -> bool:
        """Return whether a resource is shown."""
        return not self.resources or resource in self.resources

    def entries(self, data: CheckpointData) -> tuple[PodDevicesEntry, ...]:
        """Return the entries that are shown."""
        return tuple(
            entry
            for entry in data.entries or ()
            if self.has_resource(entry.resource_name) and (not self.pods or entry.pod_uid in self.pods)
        )


def show_checkpoint(found: DevicesFile, shown: Filter, *, as_json: bool) -> None:
    """Print the selected parts of a file. An unreadable file is shown only as JSON."""
    report, data = found.report, found.data or CheckpointData()
    registered = data.registered_devices
    if as_json:
        verdict = {name: value for name, value in found.compared.items() if name != "resources"}
        entries = None if data.entries is None else [_entry(entry) for entry in shown.entries(data)]
        document = {
            **verdict,
            "entries": entries,
            "registered": registered and {name: ids for name, ids in registered.items() if shown.has_resource(name)},
            "free": {name: ids for name, ids in free_devices(data).items() if shown.has_resource(name)},
            "warnings": found.warnings,
        }
        print_json(document)
        return
    if not found.is_readable:
        return
    said = "ok" if found.is_ok else "the checksum is wrong"
    click.echo(foreign_text(f"{found.file}: {said} {found.facts}", MAX_SENTENCE))
    if not shown.free_only:
        _print_entries(report, evolve(data, entries=shown.entries(data)))
    if not shown.free_only and not shown.pods:
        _print_devices("registered", {name: list(ids or ()) for name, ids in (registered or {}).items()}, shown)
    if shown.free_only:
        _print_devices("free", free_devices(data), shown)


def _print_devices(title: str, devices: dict[str, list[str]], shown: Filter) -> None:
    listed = [(f"{len(ids)} {name}", ", ".join(ids)) for name, ids in devices.items() if shown.has_resource(name)]
    if listed:
        click.echo()
        print_pairs(title, listed)


def _print_entries(report: FileReport, data: CheckpointData) -> None:
    by_container = itertools.groupby(data.entries or (), lambda entry: (entry.pod_uid, entry.container_name))
    for (pod, container), entries in by_container:
        click.echo()
        rows = [*entries]
        held = (pair for entry in rows for pair in _devices(entry, with_numa=report.format == _WITH_NUMA_NODES))
        given = (pair for entry in rows for pair in _given_things(entry))
        print_pairs(f"pod {pod}, container {container}", itertools.chain(held, given))


def _devices(entry: PodDevicesEntry, *, with_numa: bool) -> Iterator[tuple[str, str]]:
    for numa_node, ids in sorted((entry.device_ids or {}).items()):
        where = f" NUMA {numa_node}" if with_numa and numa_node != NO_TOPOLOGY else ""
        yield f"{len(ids or ())} {entry.resource_name}{where}", ", ".join(ids or ())


def _given_things(entry: PodDevicesEntry) -> Iterator[tuple[str, str]]:
    given = _given(entry)
    if given is None:
        yield "given", f"the plugin's answer for {entry.resource_name} cannot be read"
        return
    yield from (("env", f"{name}={value}") for name, value in given.envs.items())
    for mount in given.mounts:
        yield "mount", f"{mount.host_path} on {mount.container_path} {'read-only' if mount.read_only else 'writable'}"
    for spec in given.devices:
        yield "device", f"{spec.host_path} as {spec.container_path} {spec.permissions}"
    yield from (("annotation", f"{name}={value}") for name, value in given.annotations.items())
    yield from (("CDI device", name) for name in given.cdi_devices)


def _entry(entry: PodDevicesEntry) -> dict[str, object]:
    """Return one entry as JSON. `given` is None if the plugin's answer is unreadable.

    A kubelet writes -1 for a device without a NUMA node.
    """
    given = _given(entry)
    return {
        "pod": entry.pod_uid,
        "container": entry.container_name,
        "resource": entry.resource_name,
        "devices": entry.device_ids,
        "given": None if given is None else to_json(given),
    }


def _given(entry: PodDevicesEntry) -> ContainerAllocateResponse | None:
    try:
        return read_receipt(Receipt(entry.alloc_resp or b""))
    except UnreadableReceiptError:
        return None
