"""`devicecore checkpoint`: examine and repair the file in which a kubelet records which pod holds which devices.

Law: no command changes its input file.
"""

from collections.abc import Collection

import click

from devicecore.domain.checkpoint import CheckpointData
from devicecore.domain.errors import StoreError
from devicecore.domain.text import foreign_text
from devicecore_tools.command.checkpoint_claims import ClaimsFile
from devicecore_tools.command.checkpoint_convert import convert
from devicecore_tools.command.checkpoint_devices import DevicesFile, examined
from devicecore_tools.command.checkpoint_diff import diff
from devicecore_tools.command.checkpoint_files import UNUSABLE, path_of
from devicecore_tools.command.checkpoint_repair import repair
from devicecore_tools.command.groups import Group
from devicecore_tools.command.options import PLACE, json_option
from devicecore_tools.command.output import MAX_SENTENCE, complain, print_json

_SHOWN = 8  # the maximum number of names in one sentence

_strict_option = click.option("--strict", is_flag=True, help="Exit with status 1 if there is a warning.")


@click.group(cls=Group, short_help="Examine, repair and compare a kubelet's checkpoints.")
def checkpoint() -> None:
    """Examine, repair and compare a kubelet's checkpoints.

    The checkpoint says which pod has which devices.

    \b
    $ devicecore checkpoint verify /var/lib/kubelet/device-plugins

    verify, show and diff also take dra_manager_state, the kubelet's file of prepared ResourceClaims.

    \b
    $ devicecore checkpoint show /var/lib/kubelet/dra_manager_state

    No command modifies the file that you name: repair and convert write a new file.
    """


checkpoint.add_command(repair)
checkpoint.add_command(diff)
checkpoint.add_command(convert)


@checkpoint.command()
@json_option
@_strict_option
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=PLACE)
def verify(*, as_json: bool, strict: bool, files: tuple[str, ...]) -> int:
    """Say whether a kubelet can use a checkpoint.

    The verdict on each FILE is ok, checksum (the data was changed after it was written), malformed or absent. A
    directory means the kubelet_internal_checkpoint in it or in its device-plugins subdirectory, and - means standard
    input. The exit status is 1 if a verdict is not ok, and 2 if a file is absent or cannot be read.

    A kubelet accepts a file in which two pods hold a device, or a pod holds a device that no plugin has registered as
    healthy, so either case only causes a warning. With --strict, the exit status is 1 if there is a warning.

    FILE may be a dra_manager_state, which is recognized by its content. There is a warning for a device that two claims
    hold, a claim without pods, and a claim with two entries. A dra_manager_state from a kubelet before 1.32 gets the
    verdict checksum, because later kubelets refuse it.

    \b
    $ devicecore checkpoint verify --json /backup/*/kubelet_internal_checkpoint
    """
    status = 0
    found: list[DevicesFile | ClaimsFile] = []
    for file in files:
        try:
            found.append(examined(path_of(file)))
        except StoreError as error:
            complain("devicecore checkpoint verify", str(error))
            status = UNUSABLE
    if as_json:
        print_json([one.document for one in found])
    for one in () if as_json else found:
        for line in (one.sentence, *(f"warning: {warning}" for warning in one.warnings)):
            click.echo(foreign_text(f"{one.file}: {line}", MAX_SENTENCE))
    return max([status, *(one.status(strict=strict) for one in found)])


def _not_in(file: str, what: str, name: str, known: Collection[str]) -> str:
    """Return the error for an option that names something that the file does not contain."""
    shown = sorted(known)[:_SHOWN]
    more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    return foreign_text(f"{file} has no {what} {name}. It has: {', '.join(shown) or 'none'}{more}", MAX_SENTENCE)


@checkpoint.command()
@json_option
@_strict_option
@click.option(
    "--resource", "resources", multiple=True, metavar="NAME", help="Show only this resource. May be repeated."
)
@click.option("--pod", "pods", multiple=True, metavar="UID", help="Show only the pod with this UID. May be repeated.")
@click.option("--free", "free_only", is_flag=True, help="Show only the registered devices that no pod holds.")
@click.argument("file", type=PLACE)
def show(
    *, as_json: bool, strict: bool, resources: tuple[str, ...], pods: tuple[str, ...], free_only: bool, file: str
) -> int:
    """Show which container has which devices.

    The output lists the devices of each container by NUMA node, whatever else the plugins gave to the container, and
    the registered devices. FILE is the same as for `checkpoint verify`, with the same warnings and exit statuses. The
    exit status is also 1 if FILE does not contain a resource or a pod that you name. If the verdict is not ok, the
    readable parts are shown. For a dra_manager_state, the output lists each claim with its pods and devices.

    \b
    $ devicecore checkpoint show /var/lib/kubelet/device-plugins
    $ devicecore checkpoint show --resource example.com/gpu --free /var/lib/kubelet/device-plugins
    """
    if free_only and pods:
        raise click.UsageError("--free and --pod cannot be used together: a free device has no pod.")
    found = examined(path_of(file))
    if isinstance(found, ClaimsFile):
        if resources or free_only:
            message = f"--resource and --free are for plugin devices, but {found.file} contains ResourceClaims."
            raise click.UsageError(message)
        found.show(pods, as_json=as_json)
        held = {"pod": (pods, {pod for one in found.entries or () for pod in one.pods or ()})}
    else:
        from devicecore_tools.command.checkpoint_show import Filter, show_checkpoint  # this import loads protobuf

        show_checkpoint(found, Filter(resources, pods, free_only), as_json=as_json)
        data = found.data or CheckpointData()
        held = {
            "pod": (pods, {one.pod_uid for one in data.entries or ()}),
            "resource": (
                resources,
                {one.resource_name for one in data.entries or ()} | {*(data.registered_devices or ())},
            ),
        }
    status = found.status(strict=strict)
    for what, (wanted, known) in held.items():
        for name in wanted:
            if found.is_readable and name not in known:
                complain("devicecore checkpoint show", _not_in(str(found.file), what, name, known))
                status = max(status, 1)
    for warning in () if as_json else found.warnings:
        complain("devicecore checkpoint show", f"warning: {warning}")
    if not found.is_ok:
        complain("devicecore checkpoint show", f"{found.file}: {found.problem}")
    return status
