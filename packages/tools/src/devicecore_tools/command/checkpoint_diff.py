"""`devicecore checkpoint diff`: what differs between two files.

Law: the exit status is 0 only if both files say the same.
"""

import click

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

    Says which devices containers hold in AFTER only (added), in BEFORE only (removed), or in both but another
    container (moved); where NUMA nodes, the plugin's answer or the registered devices differ; and whether format and
    checksum do. NUMA nodes are compared if both files have format 2, because the older formats have none. If only the
    checksum differs, the entries are in another order, or a file was changed by hand.

    Of two files dra_manager_state, says which claims only one has, and which have other pods or devices.

    BEFORE and AFTER are files for `checkpoint verify`. A file with a wrong checksum is compared, with a warning. The
    exit status is 0 if nothing differs, 1 if something does, and 2 if a file cannot be read.

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
            f"{first.file} and {second.file} cannot be compared: one has devices of plugins, one has ResourceClaims."
        )
        raise click.UsageError(message)
    for one in files:
        if not one.is_ok:
            complain(_COMMAND, f"{'warning: ' if one.is_readable else ''}{one.file}: {one.report.problem}")
    is_readable = first.is_readable and second.is_readable
    if as_json:
        from devicecore.system.json_values import to_json  # cattrs takes long to import

        print_json({"files": documents, **(to_json(found) if is_readable else {})})
    for line in lines if is_readable and not as_json else ():
        click.echo(foreign_text(line, MAX_VALUE))
    return UNUSABLE if not is_readable else _DIFFERENT if lines else 0
