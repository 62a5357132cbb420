"""`devicecore conformance --dra`: run the conformance checks over a DRA driver.

Law: a signal that asks the process to end leaves no process and no file of the run.
"""

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

import click
from attrs import evolve
from click.core import ParameterSource

from devicecore_tools.command.options import with_options

if TYPE_CHECKING:
    from devicecore_tools.command.conformance_report import Reporting
    from devicecore_tools.conformance import Check
    from devicecore_tools.conformance.dra import DriverTestSettings, DriverUnderTest

P = ParamSpec("P")
R = TypeVar("R")

_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
_DIRECTORY = click.Path(file_okay=False, path_type=Path)

OPTIONS = (
    click.option("--dra", is_flag=True, help="Test a DRA driver instead of a device plugin."),
    click.option("--full", is_flag=True, help="With --dra: make all checks, in up to five minutes."),
    click.option(
        "--node", default="conformance-node", show_default=True, help="With --dra: the name of the Node object."
    ),
    click.option(
        "--registry-dir",
        type=_DIRECTORY,
        help="With --dra: where the driver makes its registration socket, if that is fixed; by default a new "
        "directory. What the run adds there is deleted.",
    ),
    click.option("--plugins-dir", type=_DIRECTORY, help="With --dra: the kubelet's directory of plugins, if fixed."),
    click.option("--cdi-dir", type=_DIRECTORY, help="With --dra: where the driver writes CDI files, if that is fixed."),
    click.option(
        "--env",
        multiple=True,
        metavar="NAME=VALUE",
        help="With --dra: an environment variable of the driver, with placeholders. May be repeated.",
    ),
    click.option(
        "--claims",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="With --dra: a file with a ResourceClaim or ResourceClaimTemplate, whose spec is that of the claims in "
        "the checks, and with other objects that the driver needs, such as a DeviceClass or CustomResourceDefinition.",
    ),
    click.option(
        "--device-class",
        default="",
        help="With --dra: the DeviceClass of the claims; by default one that selects all devices of the driver.",
    ),
)
"""The options of `devicecore conformance` that only --dra has."""


DRA_SETTINGS = ("node", "registry_dir", "plugins_dir", "cdi_dir", "env", "claims", "device_class")
"""The names of those that become settings."""

_PLUGIN_SETTINGS = (
    *("resource", "socket_dir", "allow_shared_directory", "registry", "noticing", "away"),
    *("provoke_health", "undo_health", "restart"),
)
"""The names of the options that only a run without --dra has."""

_SECONDS = {"first": "starting", "timeout": "call", "returning": "returning", "grace": "grace", "budget": "budget"}


def dra_options(command: Callable[P, R]) -> Callable[P, R]:
    """Give a command the options of --dra."""
    return with_options(command, OPTIONS)


def refuse_options_of_the_other_kind(*, dra: bool) -> None:
    """Refuse options that a run with or without --dra would ignore.

    Raises:
        click.UsageError: one of them was given.
    """
    context = click.get_current_context()
    others = _PLUGIN_SETTINGS if dra else ("full", *DRA_SETTINGS)
    for option in context.command.params:
        name = option.name or ""
        if name in others and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            message = f"{option.opts[0]} is for device plugins." if dra else f"{option.opts[0]} needs --dra."
            raise click.UsageError(message)


def dra_checks(*, full: bool, named: bool) -> "tuple[Check[DriverUnderTest], ...]":
    """Return the checks of a run by default or of a full one. All are known by name."""
    from devicecore_tools.conformance.dra import CHECKS, CORE

    return CHECKS if full or named else CORE


def dra_run(
    command: tuple[str, ...],
    options: Mapping[str, Any],
    checks: "Sequence[Check[DriverUnderTest]]",
    reporting: "Reporting",
    *,
    full: bool,
) -> int:
    """Run the checks over a driver, and return the exit status.

    SIGINT, SIGTERM and SIGHUP end the run, after everything was ended and removed.

    Raises:
        click.UsageError: there is no command, or an option has a wrong value.
    """
    from devicecore_tools.conformance.dra import run
    from devicecore_tools.conformance.processes import own_age

    if not command:
        message = "--dra needs the command that starts the driver: devicecore conformance --dra -- ./my-driver ..."
        raise click.UsageError(message)
    settings = _settings_of(options, full=full)
    settings = evolve(settings, budget=settings.budget - min(own_age(), settings.budget / 2))
    reporting.begin()
    with ending_cleanly():
        report = run(command, settings=settings, checks=checks, on_result=reporting.show)
    return reporting.end(report)


def _settings_of(options: Mapping[str, Any], *, full: bool) -> "DriverTestSettings":
    from devicecore_tools.conformance.dra import FULL, DriverTestSettings

    context = click.get_current_context()
    seconds = {
        field: context.params[name]
        for name, field in _SECONDS.items()
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT
    }
    return evolve(
        FULL if full else DriverTestSettings(),
        node=options["node"],
        registry=options["registry_dir"],
        plugins=options["plugins_dir"],
        cdi=options["cdi_dir"],
        environment=dict(map(_variable, options["env"])),
        objects=_objects(options["claims"]) if options["claims"] else (),
        device_class=options["device_class"],
        owns_children=True,
        **seconds,
    )


@contextmanager
def ending_cleanly() -> Iterator[None]:
    """Let the first signal that asks the process to end raise SystemExit, and ignore further ones."""

    def end(number: int, _: FrameType | None) -> NoReturn:
        for one in _SIGNALS:
            signal.signal(one, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = {one: signal.signal(one, end) for one in _SIGNALS if signal.getsignal(one) is not signal.SIG_IGN}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        message = f"--env {text}: expected NAME=VALUE"
        raise click.UsageError(message)
    return name, value


def _objects(path: Path) -> list[Mapping[str, Any]]:
    from devicecore.system.documents import read_documents
    from devicecore_tools.testing.api_server.shapes import wrong_types

    found = []
    for document in read_documents(path.read_text(encoding="utf-8"), str(path)):
        plural = f"{document['kind'].text().lower()}s"
        document["spec"].mapping()
        document["status"].mapping()
        body: Any = document.data
        for problem in wrong_types(plural, body):
            message = f"--claims {path}: {problem}"
            raise click.UsageError(message)
        found.append(body)
    return found
