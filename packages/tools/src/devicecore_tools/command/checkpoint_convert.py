"""`devicecore checkpoint convert`: the same data in another format.

Law: a damaged file is not converted, and the command prints what the new format cannot hold.
"""

import sys

import click

from devicecore.domain.checkpoint import Decoded, FileReport, FileVerdict, decode, encode
from devicecore.domain.text import foreign_text
from devicecore_tools.command.checkpoint_claims import is_claims_file
from devicecore_tools.command.checkpoint_files import (
    NEGATIVE,
    UNUSABLE,
    load,
    lost_fields,
    path_of,
    refuse_to_overwrite,
    write_new,
)
from devicecore_tools.command.options import PLACE, json_option
from devicecore_tools.command.output import complain, print_json
from devicecore_tools.doctor.look.formats import examine

_COMMAND = "devicecore checkpoint convert"
_WITH_NUMA_NODES = 2  # the format that records NUMA nodes


@click.command()
@json_option
@click.option("--to", "wanted", required=True, type=click.Choice(["1", "2"]), help="The format to write.")
@click.option("-o", "--output", metavar="NEWFILE", type=PLACE, help="Write to this file instead of standard output.")
@click.option("--force", is_flag=True, help="Overwrite NEWFILE if it exists. FILE itself is never overwritten.")
@click.argument("file", type=PLACE)
def convert(*, as_json: bool, wanted: str, output: str | None, force: bool, file: str) -> int:
    """Write the same data in a different format, and say what is lost.

    Kubelets since 1.20 write format 2, which lists devices by NUMA node. Older kubelets write format 1, which has a
    single list of devices; kubelets up to 1.29 read both formats. Format 0 has no checksum. Format 0 can be read but
    not written, because no recent kubelet reads it.

    Whatever is lost or assumed is printed on stderr, or is part of the --json document. FILE is the same as for
    `checkpoint verify`. If FILE is malformed or its checksum is wrong, nothing is written, and the exit status is 1:
    see `checkpoint repair`. The exit status is 2 if FILE does not exist or cannot be read.

    \b
    $ devicecore checkpoint convert --to 1 -o old-format /var/lib/kubelet/device-plugins
    """
    if as_json and output is None:
        raise click.UsageError("--json needs --output, because the file itself goes to standard output otherwise.")
    file = path_of(file)
    if output is not None:
        refuse_to_overwrite(file, output, force=force)
    blob = load(file)
    if is_claims_file(file, blob):
        raise click.UsageError(f"{file} contains ResourceClaims. Such a file has only one format.")
    report = examine(blob)[0]
    if report.verdict is not FileVerdict.OK or blob is None:
        return _refused(file, report, as_json=as_json)
    found = decode(blob)
    notes = [*_notes(found, int(wanted)), *(f"lost: {field}" for field in lost_fields(blob))]
    converted = encode(found.data, int(wanted))
    if output is None:
        sys.stdout.buffer.write(converted)
    else:
        write_new(output, converted)
    if as_json:
        print_json({"file": file, "from": found.format, "to": int(wanted), "written": output, "notes": notes})
    elif output is not None:
        count = len(found.data.entries or ())
        click.echo(foreign_text(f"wrote {output}: {count} entr{'y' if count == 1 else 'ies'}, in format {wanted}"))
    for note in () if as_json else notes:
        complain(_COMMAND, note)
    return 0


def _refused(file: str, report: FileReport, *, as_json: bool) -> int:
    problem = f"{report.problem}; nothing is written"
    if as_json:
        print_json({"file": file, "from": report.format, "written": None, "problem": problem})
    else:
        complain(_COMMAND, f"{file}: {problem}")
    return UNUSABLE if report.verdict is FileVerdict.ABSENT else NEGATIVE


def _notes(found: Decoded, wanted: int) -> list[str]:
    """Return sentences about what the new file lacks, and about what it contains that the old file does not."""
    notes = []
    if found.format == _WITH_NUMA_NODES and wanted < _WITH_NUMA_NODES:
        devices = [
            (entry.resource_name, id_, numa_node)
            for entry in found.data.entries or ()
            for numa_node, ids in (entry.device_ids or {}).items()
            for id_ in ids or ()
            if numa_node
        ]
        count = len({(resource, id_) for resource, id_, _ in devices})
        if count:
            have = "1 device that is" if count == 1 else f"{count} devices that are"
            notes.append(
                f"lost: the NUMA nodes of {have} not only on NUMA node 0. Format 1 has no NUMA nodes, so a "
                "kubelet assumes that all devices are on node 0"
            )
    if found.format < _WITH_NUMA_NODES and wanted == _WITH_NUMA_NODES and found.data.entries:
        notes.append(
            f"assumed: NUMA node 0 for all devices, because format {found.format} has no NUMA nodes (a kubelet assumes "
            "the same)"
        )
    if not found.format:
        notes.append("assumed: no registered devices, because format 0 does not list them")
    return notes
