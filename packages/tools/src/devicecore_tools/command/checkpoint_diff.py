"""`devicecore checkpoint diff`: how two files differ.

Law: the exit status is 0 only if both files have the same content.
"""

import click
from attrs import asdict

from devicecore.domain.text import foreign_text
from devicecore_tools.checkpoint.claims import StateDifference
from devicecore_tools.checkpoint.difference import Difference
from devicecore_tools.command.checkpoint_claims import ClaimsFile
from devicecore_tools.command.checkpoint_devices import DevicesFile, examined
from devicecore_tools.command.checkpoint_files import UNUSABLE, path_of
from devicecore_tools.command.options import PLACE, json_option
from devicecore_tools.command.output import MAX_VALUE, complain, print_json

_COMMAND = "devicecore checkpoint diff"
_DIFFERENT = 1


@click.command()
@json_option
@click.argument("before", type=PLACE)
@click.argument("after", type=PLACE)
def diff(*, as_json: bool, before: str, after: str) -> int:
    """Compare two checkpoints by pod, container, resource and device.

    The output lists the devices that containers hold only in AFTER (added), only in BEFORE (removed), or in both but in
    different containers (moved). The output also lists differences in NUMA nodes, in plugins' answers and in the
    registered devices, and says whether the format or the checksum differs. NUMA nodes are compared only if both files
    have format 2, because older formats have none. If only the checksum differs, the entries are in a different order,
    or one of the files was edited by hand.

    For two dra_manager_state files, the output lists the claims that only one file contains, and the claims whose pods
    or devices differ.

    BEFORE and AFTER are the same as for `checkpoint verify`. A file with a wrong checksum is also compared, with a
    warning. The exit status is 0 if nothing differs, 1 if something does, and 2 if a file cannot be read.

    \b
    $ devicecore checkpoint diff /backup/kubelet_internal_checkpoint /var/lib/kubelet/device-plugins
    """
    first, second = files = [examined(path_of(file)) for file in (before, after)]
    found: Difference | StateDifference
    if isinstance(first, DevicesFile) and isinstance(second, DevicesFile):
        found, lines = first.difference(second)
        documents = [first.compared, second.compared]
    elif isinstance(first, ClaimsFile) and isinstance(second, ClaimsFile):
        found, lines = first.difference(second)
        documents = [first.document, second.document]
    else:
        message = (
            f"{first.file} and {second.file} cannot be compared: one contains plugin devices, the other ResourceClaims."
        )
        raise click.UsageError(message)
    for one in files:
        if not one.is_ok:
            complain(_COMMAND, f"{'warning: ' if one.is_readable else ''}{one.file}: {one.problem}")
    is_readable = first.is_readable and second.is_readable
    if as_json:
        print_json({"files": documents, **(asdict(found, recurse=False) if is_readable else {})})
    if is_readable and not as_json:
        for line in lines:
            click.echo(foreign_text(line, MAX_VALUE))
    return UNUSABLE if not is_readable else _DIFFERENT if lines else 0
