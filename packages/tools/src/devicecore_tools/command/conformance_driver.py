"""`devicecore conformance driver`: run the conformance checks on a DRA driver.

Law: after SIGHUP, SIGINT or SIGTERM, none of the run's processes or temporary files remain.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from attrs import evolve

from devicecore_tools.command.conformance_options import (
    choice_options,
    driver_options,
    refuse_misspelled,
    report_options,
)

if TYPE_CHECKING:
    from devicecore_tools.conformance.dra import DriverTestSettings

_MOST_LONGER = 4.0  # on a busy machine, a run may take at most this many times longer
_OWN_START = 5.0  # at most this many seconds of this program's start count toward the time for the run


@click.command(context_settings={"allow_interspersed_args": False})  # options of COMMAND need no --
@driver_options
@choice_options
@report_options
@click.argument("command", nargs=-1)
def driver(
    *,
    command: tuple[str, ...],
    full: bool,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    list_only: bool,
    as_json: bool,
    junit: str | None,
    card: str | None,
    release: str,
    **options: Any,  # noqa: ANN401 - click passes the value of each option
) -> int:
    """Test a DRA driver written in any language.

    COMMAND starts the driver. The run provides a small API server, and the directories of a kubelet and of CDI files.
    {kubeconfig}, {node}, {registry}, {plugins}, {cdi} and {pod_uid} in COMMAND are replaced; KUBECONFIG, NODE_NAME,
    CDI_ROOT, KUBELET_REGISTRAR_DIRECTORY_PATH and KUBELET_PLUGINS_DIRECTORY_PATH are set:

    \b
    $ devicecore conformance driver -- ./my-driver --kubeconfig {kubeconfig} --cdi-root {cdi}

    For a driver whose data directory must exist:

    \b
    $ devicecore conformance driver --data-dir my -- ./my-driver --data {plugins}/my

    The exit status is 0 if no "must" check failed, 1 if one failed or was not decided, or if no check was run, and 2 if
    the driver cannot be run or a directory cannot be used.
    """
    from devicecore_tools.command.conformance_report import Reporting, choose, print_list
    from devicecore_tools.conformance.dra import CHECKS, CORE, run
    from devicecore_tools.conformance.processes import own_age

    checks = choose(CHECKS if full or only else CORE, only, skip)
    if list_only:
        print_list(checks, as_json=as_json)
        return 0
    if not command:
        message = "expected the command that starts the driver: devicecore conformance driver -- ./my-driver ..."
        raise click.UsageError(message)
    refuse_misspelled((*command, *options["env"]), PLACEHOLDERS)
    if options["undo_devices"] and not options["provoke_devices"]:
        raise click.UsageError("--undo-devices needs --provoke-devices.")
    settings = _settings_of(options, full=full)
    settings = evolve(settings, elapsed=min(own_age(), _OWN_START, settings.budget / 2))
    reporting = Reporting(as_json=as_json, junit=junit, card=card, release=release, command=command)
    reporting.begin()
    return reporting.run(
        "DRA driver", checks, lambda: run(command, settings=settings, checks=checks, on_result=reporting.show)
    )


_OF_RUN = ("run", "boot_id", "api", "dir", "socket")  # placeholders that `--help` does not list
PLACEHOLDERS = ("kubeconfig", "node", "registry", "plugins", "cdi", "pod_uid", *_OF_RUN)


def _settings_of(options: Mapping[str, Any], *, full: bool) -> "DriverTestSettings":
    from devicecore_tools.conformance.dra import FULL, DriverTestSettings
    from devicecore_tools.conformance.runner import load_of_a_processor

    settings = FULL if full else DriverTestSettings()
    return evolve(
        settings,
        node=options["node"],
        registry=options["registry_dir"],
        plugins=options["plugins_dir"],
        cdi=options["cdi_dir"],
        data=options["data_dir"],
        environment=dict(map(_variable, options["env"])),
        objects=_objects(options["claims"]) if options["claims"] else (),
        device_class=options["device_class"],
        provoke_devices=options["provoke_devices"],
        undo_devices=options["undo_devices"],
        owns_children=True,
        excuses_load=True,
        starting=options["starting"],
        returning=options["returning"],
        call=options["timeout"],
        grace=options["grace"],
        budget=options["budget"] or settings.budget * min(max(load_of_a_processor(), 1.0), _MOST_LONGER),
    )


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.UsageError(f"--env {text}: expected NAME=VALUE")
    return name, value


def _objects(path: Path) -> list[Mapping[str, Any]]:
    from devicecore.system.documents import MAX_DOCUMENT_SIZE, read_documents, text_of
    from devicecore_tools.command.inputs import read_input
    from devicecore_tools.conformance.dra.environment import CLAIM_KINDS
    from devicecore_tools.testing.api_server.shapes import wrong_types

    found = []
    data = read_input(path, MAX_DOCUMENT_SIZE)
    for document in read_documents(text_of(data, str(path)), str(path), unique_keys=True):
        kind = document["kind"].text()
        document["spec"].mapping()
        document["status"].mapping()
        body: Any = document.data
        for problem in wrong_types(kind, body):
            raise click.UsageError(f"--claims {path}: {problem}")
        found.append(body)
    if not any(one["kind"] in CLAIM_KINDS for one in found):
        kinds = ", ".join(sorted({str(one["kind"]) for one in found})) or "nothing"
        raise click.UsageError(f"--claims {path}: expected a ResourceClaim or ResourceClaimTemplate, got {kinds}")
    return found
