"""The options of `doctor` and related commands that say which sources of a node to read.

Law: each source has one option, with the same meaning in every command.
"""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devicecore.domain.errors import DocumentError
from devicecore_tools.command.options import PLACE, missing_file, option_group, seconds_option, source_option
from devicecore_tools.doctor import DEFAULT_ROOT

if TYPE_CHECKING:
    from devicecore.domain.documents import Value
    from devicecore_tools.doctor.look.values import PodSeen, Reading
    from devicecore_tools.doctor.reading.node import NodeSources

_BEFORE = (
    source_option(
        "--root",
        "DIR",
        "The kubelet's root directory, its device-plugins directory, or a record that `doctor --save` wrote. "
        f"Default: {DEFAULT_ROOT}, unless --checkpoint or --pod-resources is given.",
    ),
    source_option("--checkpoint", "FILE", "The checkpoint, if it is not in --root."),
    source_option("--pod-resources", "SOCKET", "The pod-resources socket, if it is not in --root."),
    source_option(
        "--pods",
        "FILE",
        "The pods: what the kubelet's /pods or `kubectl get pods -A -o json` prints. - is standard input.",
    ),
    source_option("--node", "FILE", "The Node: what `kubectl get node NAME -o json` prints."),
    source_option("--events", "FILE", "Events: what `kubectl get events -A -o json` prints."),
    source_option(
        "--claims",
        "FILE",
        "The kubelet's claims file, dra_manager_state, if it is not in --root. For `why` about a claim or a waiting "
        "pod: `kubectl get resourceclaims,resourceclaimtemplates -A -o json`.",
    ),
    source_option("--resourceclaims", "FILE", "ResourceClaims: what `kubectl get resourceclaims -A -o json` prints."),
)
_SLICES = "What DRA drivers publish: what `kubectl get resourceslices -o json` prints."
_AFTER = (
    source_option(
        "--kubeconfig",
        "FILE",
        "Read pods, Node, events, claims and slices from this API server; for a single node, add --node-name.",
    ),
    click.option(
        "--in-cluster",
        is_flag=True,
        help="Read the same objects with the service account of this pod; for a single node, add --node-name.",
    ),
    click.option("--node-name", metavar="NAME", help="The name of the Node object on the API server."),
    click.option(
        "--plugins/--no-plugins",
        default=None,
        help="Ask each plugin for its list, or do not query plugins at all. Default: only ask each plugin to identify "
        "itself. Allocate is never called.",
    ),
    seconds_option("--plugin-timeout", 10.0, "How long a plugin or the kubelet may take to answer."),
    click.option(
        "--cdi-dir",
        "cdi_directories",
        metavar="DIR",
        type=PLACE,
        multiple=True,
        help="A directory of CDI files. Default: /etc/cdi and /var/run/cdi, unless only --checkpoint is given.",
    ),
)
source_options = option_group(*_BEFORE, source_option("--slices", "FILE", _SLICES), *_AFTER)
"""Adds to a command the options that say what to read; `node_sources` takes their values."""

question_options = option_group(
    *_BEFORE,
    source_option(
        "--slices",
        "FILE",
        f"{_SLICES} About a claim or a waiting pod, as with --claims: `kubectl get resourceslices,deviceclasses,nodes "
        "-o json`, and other objects that matter to a scheduler. May be repeated.",
        multiple=True,
    ),
    *_AFTER,
)
"""Adds the same options to a command that also answers questions about a cluster, for which it reads several files."""


_FILES = {  # the options that name a location, and what a user who named a directory should name instead
    "root": "",
    "checkpoint": ", such as {0}/kubelet_internal_checkpoint. To read all of a kubelet's directory, use --root {0}",
    "pods": "",
    "node": "",
    "events": "",
    "claims": ", such as {0}/dra_manager_state",
    "resourceclaims": "",
    "slices": "",
    "kubeconfig": "",
}


def node_sources(**options: object) -> "NodeSources":
    """Return the sources that the options name.

    `more_slices` are the files for --slices after the first one.

    Raises click.UsageError if options contradict each other, or name nothing, or something of the wrong kind.
    """
    from devicecore_tools.doctor.reading.node import NodeSources, SourcesError

    if options.get("kubeconfig") is not None and options.get("in_cluster"):
        raise click.UsageError("--kubeconfig and --in-cluster cannot be used together.")
    if options.get("pods") == options.get("events") == "-":
        raise click.UsageError("--pods and --events cannot both be standard input.")
    check_places(options)
    if options.pop("more_slices", ()):
        raise click.UsageError("--slices can be repeated only for a claim or a pod that waits for a node.")
    named = options.get("cdi_directories")
    for place in named if isinstance(named, tuple) else ():
        _refuse_missing_directory(place)
    claims = options.get("claims")
    if isinstance(claims, str) and _begins_with(_API_OBJECT, claims):
        expected = "expected the kubelet's dra_manager_state. Use --resourceclaims for ResourceClaims"
        raise click.UsageError(f"--claims: {claims}: it contains API objects; {expected}.")
    try:
        return NodeSources(**options)  # type: ignore[arg-type]  # click has checked what each option holds
    except SourcesError as error:
        raise click.UsageError(str(error)) from error


def check_places(options: Mapping[str, object]) -> None:
    """Raise click.UsageError for options that name nothing, or something of the wrong kind.

    If a file cannot be read for any other reason, its reader reports this.
    """
    more = options.get("more_slices")
    named = [(option, options.get(option), what) for option, what in _FILES.items()]
    named += [("slices", place, _FILES["slices"]) for place in (more if isinstance(more, tuple) else ())]
    for option, place, what_to_name in named:
        if not isinstance(place, str) or (option in {"pods", "events"} and place == "-"):
            continue
        problem = missing_file(place, "directory" if option == "root" else "file")
        if place == "-" and problem:
            problem = "only --pods and --events can be standard input; name a file"
        # Unlike the methods of Path, these functions of os.path return False if access is denied.
        if option == "root":
            is_wrong = os.path.isfile(place)  # noqa: PTH113 - see above
            wanted = f"it is a file; expected a directory. To read a checkpoint, use --checkpoint {place}"
        else:
            is_wrong = os.path.isdir(place)  # noqa: PTH112 - see above
            wanted = f"it is a directory; expected a file{what_to_name.format(place.rstrip('/'))}"
        if option == "checkpoint" and not (problem or is_wrong):
            if _begins_with(_API_OBJECT, place):
                problem = (
                    "it contains API objects; expected a kubelet's checkpoint. Use --pods for pods, --node for a Node"
                )
            elif _begins_with(_REPORT, place):
                problem = "it is what doctor --json prints; expected a kubelet's checkpoint"
        if option == "claims" and not (problem or is_wrong) and _begins_with(_PODS, place):
            problem = "it contains pods or events, not claims. Use --pods for pods, --events for events"
        if problem or is_wrong:
            raise click.UsageError(f"--{option}: {place}: {problem or wanted}.")


def _refuse_missing_directory(place: str) -> None:
    if not os.path.isdir(place):  # noqa: PTH112 - as in `check_places`
        problem = missing_file(place, "directory") or "it is a file; expected a directory"
        raise click.UsageError(f"--cdi-dir: {place}: {problem}.")


def _begins_with(pattern: re.Pattern[bytes], file: str) -> bool:
    """Return whether a regular file begins with this pattern. A pipe is not read here."""
    if not os.path.isfile(file):  # noqa: PTH113 - as in `check_places`
        return False
    try:
        with Path(file).open("rb") as opened:
            return pattern.match(opened.read(1_000)) is not None
    except OSError:  # the reader of the checkpoint reports the error
        return False


_PODS = re.compile(rb"""(?s)\s*\{(?:(?!"kind").)*"kind"\s*:\s*"(?:Pod|Event)(?:List)?\"""")
_REPORT = re.compile(rb"""\s*\{\s*"format"\s*:\s*\d+,\s*"verdict"\s*:""")
_API_OBJECT = re.compile(
    rb"""\s*\{\s*"(?:apiVersion|kind|items|metadata)"\s*:|\s*(?:---\s*)?(?:apiVersion|kind|items):"""
)


def given_pods(place: str) -> "tuple[Reading[tuple[PodSeen, ...]], Value]":
    """Return the pods that `--pods` names, and the document that contains them; `-` is standard input.

    Raises click.ClickException if the pods cannot be read.
    """
    from devicecore_tools.doctor.look.values import Reading
    from devicecore_tools.doctor.reading.large_documents import MAX_INPUT, parse_document, read_document_file
    from devicecore_tools.doctor.reading.objects import pods_in

    try:
        if place == "-":
            place = "standard input"
            document = parse_document(sys.stdin.buffer.read(MAX_INPUT), place)
        else:
            document = read_document_file(place)
        return Reading.of(place, pods_in(document)), document
    except DocumentError as error:
        raise click.ClickException(f"--pods: {error}") from error
