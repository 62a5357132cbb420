"""Options that several commands share.

Law: an option has the same meaning and the same errors in every command.
"""

import errno
import os
import re
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from ipaddress import ip_address
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import click

from devicecore.domain.model import is_extended_resource
from devicecore.domain.text import counted, foreign_text
from devicecore.domain.topology import PolicyOptions

Command = TypeVar("Command", bound=Callable[..., Any] | click.Command)

_RANGE = re.compile("([0-9]{1,9})(?:-([0-9]{1,9}))?")
_MAX_NUMBERS = 10_000
_MAX_SECONDS = 1_000_000_000

MAX_DEVICES = 1_000_000
"""The maximum number of devices for a simulated plugin or driver.

A list of more devices would be larger than a kubelet accepts.
"""


def option_group(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Return a decorator that gives a command these options. `--help` lists the options in this order."""

    def give(command: Command) -> Command:
        return reduce(lambda decorated, option: option(decorated), reversed(options), command)

    return give


def refuse_missing_devices(option: str, devices: Iterable[int], count: int) -> None:
    """Raise click.UsageError if one of these device numbers is not below `count`."""
    if missing := [number for number in devices if number >= count]:
        are = "is only" if count == 1 else "are only"
        raise click.UsageError(f"{option} {missing[0]}: there {are} {counted(count, 'device')}, numbered from 0.")


def numbers(context: click.Context, option: click.Parameter, text: str) -> tuple[int, ...]:
    """Read integers and ranges of integers, separated by commas: `0,2-4` is 0, 2, 3, 4."""
    words = [word.strip() for word in text.split(",")] if text else []
    ranges = [_range(word) for word in words]
    if any(found is None or not found for found in ranges):
        raise click.BadParameter(f"{text!r} is not a list of numbers such as 0,1 or 0-3.", context, option)
    if sum(len(found) for found in ranges if found) > _MAX_NUMBERS:
        raise click.BadParameter(f"{text!r} lists more than {_MAX_NUMBERS} numbers.", context, option)
    return tuple(chain.from_iterable(found for found in ranges if found))


def distances(context: click.Context, option: click.Parameter, text: str) -> tuple[tuple[int, ...], ...]:
    """Read rows of integers, separated by slashes: `10,21/21,10`."""
    rows = tuple(numbers(context, option, row) for row in text.split("/")) if text else ()
    if {len(row) for row in rows} - {len(rows)}:
        raise click.BadParameter(
            f"{text!r:.200} is not a square matrix of numbers such as 10,21/21,10.", context, option
        )
    return rows


def policy_options(context: click.Context, option: click.Parameter, text: str) -> PolicyOptions:
    """Read the topology manager's policy options, written as for the kubelet's flag: `NAME=VALUE,...`."""
    try:
        return policy_options_of(text)
    except ValueError as error:
        raise click.BadParameter(f"{error}.", context, option) from None


def policy_options_of(text: str) -> PolicyOptions:
    """Return the policy options in a string `NAME=VALUE,...`.

    Raises ValueError if a kubelet would not start with these options.
    """
    words = [word.strip().partition("=") for word in text.split(",")] if text else []
    return PolicyOptions.of({name: value for name, _, value in words})


numa_distances_option = click.option(
    "--numa-distances",
    metavar="N,N/N,N",
    default="",
    callback=distances,
    help="The distances between NUMA nodes, one row for each node. Default: this machine's distances.",
)

topology_manager_options = option_group(
    click.option(
        "--topology-manager-policy-options",
        "policy_options",
        metavar="NAME=VALUE,...",
        default="",
        callback=policy_options,
        help="prefer-closest-numa-nodes=true, max-allowable-numa-nodes=N: the kubelet's topologyManagerPolicyOptions.",
    ),
    numa_distances_option,
)


class Place(click.types.StringParamType):
    """The name of a file, a directory or a socket: any non-empty string.

    An empty name, which usually comes from an unset shell variable, is refused.
    """

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return `value`, or fail."""
        if value == "":
            self.fail("expected the name of a file or directory, got an empty string.", param, ctx)
        return super().convert(value, param, ctx)


PLACE = Place()
"""The type of options and arguments that name a file, a directory or a socket."""

SOURCE = Place()
"""The type of options that name what is read for an answer. Unless such an option is `multiple`, it is given once."""


class Target(click.Path):
    """The type of options that name a file to write. No two of them may name the same file."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False)

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """Return `value`, or fail."""
        if value == "-":
            self.fail("expected the name of a file, got '-'.", param, ctx)
        return super().convert(PLACE.convert(value, param, ctx), param, ctx)


def path_option(option: str, metavar: str, text: str, **others: Any) -> Callable[[Command], Command]:  # noqa: ANN401 - as click
    """Return an option that names a file, a directory or a socket. `text` is the help text."""
    return click.option(option, metavar=metavar, help=text, **{"type": PLACE, **others})


def source_option(option: str, metavar: str, text: str, **others: Any) -> Callable[[Command], Command]:  # noqa: ANN401 - as click
    """Return an option that names what is read for an answer. `text` is the help text."""
    return click.option(option, metavar=metavar, type=SOURCE, help=text, **others)


def seconds_option(
    option: str, default: float | None, text: str, *names: str, least: float = 0.1
) -> Callable[[Command], Command]:
    """Return an option for a number of seconds. `text` is the help text, to which click adds the default."""
    kind = Seconds(min=least)
    return click.option(option, *names, metavar="SECONDS", type=kind, default=default, show_default=True, help=text)


def choice_option(option: str, *names: str, choices: Sequence[str], text: str) -> Callable[[Command], Command]:
    """Return an option whose value is one of several words, by default the first. `text` is the help text."""
    kind = click.Choice(choices)
    return click.option(option, *names, type=kind, default=choices[0], show_default=True, help=text)


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead.")
"""Adds the option `--json` to a command, whose function gets the argument `as_json`."""


def missing_file(path: str, wanted: str = "file") -> str | None:
    """Return why `wanted` is not at `path`, or None if something is there or the reason is unknown."""
    try:
        Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        is_link = os.path.islink(path)  # noqa: PTH114 - one call
        return "its target does not exist" if is_link else f"there is no such {wanted}"
    except OSError as error:
        return "it is a symbolic link that leads back to itself" if error.errno == errno.ELOOP else None
    return None


class ExistingDirectory(click.Path):
    """The type of options that name an existing directory. Values are converted to a `Path`."""

    def __init__(self) -> None:
        super().__init__(exists=True, file_okay=False, path_type=Path)

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """Return `value` as a path, or fail."""
        path = os.fspath(value)
        if os.path.islink(path) and (problem := missing_file(path)):  # noqa: PTH114 - as above
            self.fail(f"{path}: {problem}.", param, ctx)
        return super().convert(value, param, ctx)


class Seconds(click.FloatRange):
    """A number of seconds that a process can wait: neither `nan` nor `inf`, and at most a billion (31 years)."""

    def convert(self, value: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return `value` as a number, or fail."""
        seconds = float(super().convert(value, param, ctx))
        if not seconds <= _MAX_SECONDS:
            self.fail(f"expected at most {_MAX_SECONDS:,} seconds, got {value}.", param, ctx)
        return seconds


def address(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """Return an option's IP address after checking it, or None if the option was not given."""
    try:
        return None if text is None else str(ip_address(text))
    except ValueError:
        message = f"expected an IP address, got {foreign_text(text or '', 100)!r}."
        raise click.BadParameter(message, context, option) from None


def extended_resource(context: click.Context, option: click.Parameter, text: str) -> str:
    """Read the name of an extended resource. An empty string is returned unchanged."""
    if text and not is_extended_resource(text):
        message = (
            f"{text!r} is not an extended resource: expected a domain, a slash and a name, such as example.com/gpu, "
            "and not one of Kubernetes' own domains."
        )
        raise click.BadParameter(message, context, option)
    return text


def _range(word: str) -> range | None:
    found = _RANGE.fullmatch(word)
    if found is None:
        return None
    first = int(found[1])
    return range(first, int(found[2] or first) + 1)
