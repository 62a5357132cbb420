"""`devicecore conformance faults`: plugins and drivers with one fault each, which test the checks.

Law: the list says for each program which checks fail on it, and whether these checks run by default.
"""

import click
from attrs import asdict

from devicecore_tools.command.options import json_option
from devicecore_tools.command.output import print_json

_NAME_WIDTH = 40
_KINDS = {"plugin": "device plugin", "driver": "DRA driver"}


@click.command()
@click.option("--list", "list_only", is_flag=True, help="List the plugins and drivers. This is the default.")
@click.option("--kind", type=click.Choice(sorted(_KINDS)), help="List only plugins, or only drivers.")
@click.option("--run", "name", metavar="NAME", help="Run the plugin or driver with this name.")
@json_option
def faults(*, list_only: bool, kind: str | None, name: str | None, as_json: bool) -> int:
    """List or run plugins and drivers with one fault each.

    These programs test the checks of `devicecore conformance`, and are also meant for authors of other test kits. Each
    program is correct except for one fault. The list says which checks fail on the program, and whether these checks
    run by default. A program on which no check fails does something unusual but correct.

    --run NAME runs the program with this name. A driver reads its settings from NODE_NAME, KUBECONFIG, CDI_ROOT,
    KUBELET_PLUGINS_DIRECTORY_PATH and KUBELET_REGISTRAR_DIRECTORY_PATH, and a plugin from DEVICE_PLUGIN_PATH.
    `conformance` sets these variables:

    \b
    $ devicecore conformance driver -- devicecore conformance faults --run takes-one-device
    """
    from devicecore_tools.conformance.faults import find, planted

    if name is not None:
        if list_only or kind or as_json:
            raise click.UsageError("--run NAME cannot be used with other options.")
        try:
            found = find(name)
        except KeyError:
            raise click.UsageError(f"--run {name!r}: there is no such fault; --list shows them.") from None
        try:
            found.run()
        except KeyError as error:
            raise click.UsageError(
                f"expected {error.args[0]} in the environment; run the fault as the command of a test kit: "
                f"devicecore conformance {'plugin' if found.kind == _KINDS['plugin'] else 'driver'} -- devicecore "
                f"conformance faults --run {name}"
            ) from None
        return 0
    rows: list[dict[str, object]] = []
    core = _checks_by_default()
    for one in planted():
        if kind is None or one.kind == _KINDS[kind]:
            by_default = set(one.checks) <= core
            rows.append({**asdict(one, filter=lambda field, _: field.name != "place"), "by_default": by_default})
            if not as_json:
                found_by = ", ".join(one.checks) or "no check should fail"
                click.echo(f"{one.kind:<13}  {one.name:<{_NAME_WIDTH}}  {found_by}{'' if by_default else ' (--full)'}")
    if as_json:
        print_json(rows)
    return 0


def _checks_by_default() -> set[str]:
    from devicecore_tools.conformance.device_plugin import CHECKS
    from devicecore_tools.conformance.dra import CORE

    return {check.name for check in CHECKS} | {check.name for check in CORE}
