"""`devicecore doctor`: read a node, and say what is wrong with its devices.

Law: nothing on the node is changed, and a finding is printed only if later readings of the node confirm it.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click
from attrs import frozen

from devicecore.adapters.file import CHECKPOINT_NAME
from devicecore.domain.text import listed
from devicecore.system.files import DurableFile
from devicecore_tools.budget import Budget
from devicecore_tools.command.collector import without_collector
from devicecore_tools.command.node_report import document_of, says_something, show, where
from devicecore_tools.command.node_sources import node_sources, source_options
from devicecore_tools.command.options import Target, json_option, path_option, seconds_option
from devicecore_tools.command.output import complain, console_on, writing
from devicecore_tools.command.signals import Signals
from devicecore_tools.doctor import DEFAULT_ROOT
from devicecore_tools.doctor.account.entries import seconds_to_settle
from devicecore_tools.doctor.account.facts import Facts
from devicecore_tools.doctor.findings.finding import NodeFinding
from devicecore_tools.doctor.findings.report import NodeReport, SourceLine, Watched, check, report, still_wrong
from devicecore_tools.doctor.findings.report import patience as patience_of
from devicecore_tools.doctor.look.values import Look
from devicecore_tools.doctor.pod.refusals import explained
from devicecore_tools.doctor.reading.cluster import PLACE
from devicecore_tools.doctor.show.drawing import svg as drawn
from devicecore_tools.doctor.show.metrics import metrics_text
from devicecore_tools.doctor.show.page import page
from devicecore_tools.doctor.show.picture import picture

if TYPE_CHECKING:
    from devicecore_tools.doctor.reading.node import NodeSources

_LOOK_INTERVAL = 1.0  # seconds between two readings of the node
_LOOKS = 3  # how long to wait if a finding keeps changing, in multiples of the finding's required duration
_SETTLE = 20.0  # the maximum number of seconds to watch a plugin that has just started
_TICK = 1e-6  # the minimum number of seconds between two readings, whatever the clock says
_NEGATIVE, _UNUSABLE, _NOT_ALL_SEEN = 1, 2, 3
_MODE = 0o644  # the mode of pages and pictures, which are meant to be shared
_OF_ALL_NODES = ("all_nodes", "kubeconfig", "in_cluster", "as_json", "patience")  # options that apply to all nodes
_CLEAR = "\x1b[H\x1b[2J"

Wait = Callable[[float], bool]
"""Wait for a few seconds. Return whether a signal ended the wait."""


# Extra arguments are allowed, so that the command's own error can say what to write instead.
@click.command(context_settings={"allow_extra_args": True})
@source_options
@json_option
@click.option("--metrics", is_flag=True, help="Print metrics for Prometheus' textfile collector instead.")
@path_option(
    "--html",
    "FILE",
    "Also write the report as a web page: a picture of the devices by NUMA node, the findings, and tables. The "
    "page is a single file that loads no others.",
    type=Target(),
)
@path_option("--svg", "FILE", "Also write the picture alone, as SVG.", type=Target())
@path_option(
    "--save",
    "DIR",
    "Also save in this directory what was read, as a record for --root. The environment, annotations and volumes of "
    "pods are left out. The saved checkpoint includes what plugins answered for containers, such as environment "
    "variables.",
)
@click.option(
    "--all-nodes",
    is_flag=True,
    help="Report on every node, from the API server alone; needs --kubeconfig or --in-cluster.",
)
@click.option("--watch", is_flag=True, help="Repeat the report until SIGINT or SIGTERM.")
@seconds_option("--interval", 10.0, "With --watch: the pause between two reports.")
@seconds_option(
    "--patience",
    None,
    "How long a finding must stay the same before it is reported. Default: 1 to 40, depending on the kind; "
    "0 if only files are read.",
    least=0,
)
@click.pass_context
def doctor(
    context: click.Context,
    /,
    *,
    as_json: bool,
    metrics: bool,
    html: str | None,
    svg: str | None,
    save: str | None,
    all_nodes: bool,
    watch: bool,
    interval: float,
    patience: float | None,
    **sources: object,
) -> int:
    """Read a node, and say what is wrong with its devices. Nothing is changed.

    The command reads the kubelet's checkpoint and sockets and the node's CDI files, queries the kubelet's pod-resources
    API, and asks each plugin for its identity. On request, the command also reads pods, the Node and the plugins'
    lists. The command prints a one-line verdict, then numbered findings with the evidence, what the kubelet will do
    next, what to do about the finding, and how to confirm it. Next come the devices that are held or unusual, and last
    the sources, with the reason if one was not read. A device whose owner is not certain is "unknown", never "free".

    \b
    $ devicecore doctor
    $ kubectl get pods -A -o json | devicecore doctor --pods - --plugins
    $ devicecore doctor --checkpoint /backup/kubelet_internal_checkpoint --json
    $ devicecore doctor --html node.html
    $ devicecore doctor --save record; devicecore doctor --root record

    --html and --svg write files in addition to the printed report. An existing file is replaced. With --watch, each
    report replaces the files. If a resource has more than 400 devices on a NUMA node, or there are more than 2,000 in
    total, the picture leaves some out and says how many.

    Sources are read one after another, so a finding is reported only if later readings show it again with the same
    evidence. docs/read-a-node.md explains each finding.

    Before it judges anything, the command lists everything there is to judge: plugins, drivers, resources, pods, held
    devices, CDI devices, state files, conditions. Whatever cannot be judged is printed as "not ruled out", with the
    reason.

    Exit status: 0 if nothing is wrong and everything was judged, 1 if there are findings, 3 if nothing is wrong but not
    everything could be judged. The status is 2 if a file that you named does not exist. If there are no findings, the
    status is also 2 if nothing, or not every file that you named, could be read.
    """
    if context.args:
        _refuse_word(context.args[0], watch=watch)
    output = _Output(as_json=as_json, metrics=metrics, html=html, svg=svg)
    for option, target in (("--html", html), ("--svg", svg)):
        _refuse_an_input(option, target, sources)
    if save is not None and Path(save).is_file():
        raise click.UsageError(f"--save: {save} is a file; expected the name of a directory.")
    if all_nodes:
        return _all_nodes(context, sources["kubeconfig"], patience, as_json=as_json)
    read = node_sources(**sources)
    read.begin(patience)
    if save is not None and read.reads_in(save):
        raise click.UsageError(f"--save: {save} is an input directory; name a different one.")
    if not watch:
        report = report_on(read, patience, _sleep, save=save)
        return _finish(report, output, sources)
    with Signals() as signals:
        while True:
            report = report_on(read, patience, signals.wait_for_end, save=save)
            if report is None:
                return 0
            output.put(report, others_follow=True)
            if signals.wait_for_end(interval):
                return _status([report], ())
            read.begin(patience)


def _refuse_word(word: str, *, watch: bool) -> NoReturn:
    """Raise click.UsageError for a word that is not an option, with the option that was probably meant."""
    if watch and word.replace(".", "", 1).isdigit():
        advice = f"To set the time between reports, write --interval {word}."
    elif word == "help":
        advice = "To show the help, run: devicecore doctor --help"
    elif not Path(word).exists():
        advice = f"To read a Node from an API server, write --node-name {word} --kubeconfig FILE."
    else:
        advice = f"To read it, write {'--checkpoint' if Path(word).is_file() else '--root'} {word}."
    raise click.UsageError(f"expected options only, got {word!r}. {advice}")


@without_collector()
def _all_nodes(context: click.Context, kubeconfig: object, patience: float | None, *, as_json: bool) -> int:
    """Print what is wrong on each node, according to one or two readings of the API server. Return the exit status.

    The nodes with findings are read a second time. Raises click.UsageError if no API server is named, or if an option
    is given that does not apply to all nodes.
    """
    if not (kubeconfig or context.params["in_cluster"]):
        raise click.UsageError("--all-nodes needs --kubeconfig or --in-cluster.")
    for option in context.command.params:
        is_given = context.get_parameter_source(option.name or "") is click.core.ParameterSource.COMMANDLINE
        if is_given and option.name not in _OF_ALL_NODES:
            raise click.UsageError(f"--all-nodes and {option.opts[0]} cannot be used together.")
    from devicecore_tools.command.doctor_all_nodes import document_of_all, lines_of_all
    from devicecore_tools.doctor.reading.cluster import NO_NODE, looks_at_all_nodes

    assert kubeconfig is None or isinstance(kubeconfig, str)  # noqa: S101 - for mypy: click has checked it
    try:
        budget = Budget()
        looks = looks_at_all_nodes(kubeconfig, budget=budget)
        wrong = _wrong_nodes(looks, budget)
        looks_again = bool(wrong) and not budget.spent(budget.used)
        if looks_again:
            time.sleep(patience_of(chain(*wrong.values())) if patience is None else patience)
            again = looks_at_all_nodes(kubeconfig, lambda node: node.name in wrong, budget=Budget())
            gone = wrong.keys() - again.keys()  # nodes that were deleted in the meantime
            looks = {name: again.get(name, look) for name, look in looks.items() if name not in gone}
    except ValueError as error:
        complain("devicecore doctor", str(error))
        return _UNUSABLE
    of_several = looks.pop(NO_NODE, Look())
    reports = []
    for name, look in looks.items():
        facts, found = Facts(look), wrong.get(name, ())
        lasting = still_wrong(found, check(facts)) if found and looks_again else ()
        reports.append(explained(report(facts, lasting, () if looks_again else found, budget)))
    if as_json:
        document = document_of_all(reports, report(Facts(of_several), ()))
        sys.stdout.write(f"{json.dumps(document, indent=1)}\n")
    else:
        sys.stdout.write("\n".join([*lines_of_all(reports, console_on(sys.stdout).width), ""]))
    return _status(reports, ())


def _wrong_nodes(looks: dict[str, Look], budget: Budget) -> dict[str, tuple[NodeFinding, ...]]:
    """Return the findings on each node that has any.

    If the budget does not allow checking a node's `Look`, replace the `Look` with one that says so.
    """
    from devicecore_tools.doctor.reading.cluster import given_up

    found: dict[str, tuple[NodeFinding, ...]] = {}
    for name, look in looks.items():
        if why := budget.spent():
            looks[name] = given_up(why)
        elif of_node := check(Facts(look)):
            found[name] = of_node
    return found


def _save(sources: "NodeSources", directory: str, look: Look) -> None:
    """Write a record of the node. Raises click.ClickException if the directory cannot be written."""
    try:
        sources.save(directory, look)
    except OSError as error:
        message = f"--save: {directory} cannot be written: {error.strerror}"
        raise click.ClickException(message) from error


@without_collector()
def _finish(report: NodeReport | None, output: "_Output", sources: Mapping[str, object]) -> int:
    assert report is not None, "only a signal ends a report early"  # noqa: S101 - for mypy: `_sleep` is never interrupted
    if report.no_node:
        complain("devicecore doctor", f"--node-name: {report.no_node}")
        return _UNUSABLE
    output.put(report)
    if not report.is_enough and not report.findings:
        complain(
            "devicecore doctor",
            "nothing could be read: run the command as root"
            if report.is_forbidden
            else f"no device was seen: {_why_no_device(sources['root'])}",
        )
    named = {name for name in sources if isinstance(sources[name], str)}
    unread = [one for one in report.sources if not one.was_read and one.source.value in named]
    for one in unread:
        complain("devicecore doctor", f"--{one.source.value} was not read: {where(one.problem, one.place)}")
    of_server = [one for one in report.sources if one.place.startswith(PLACE)]
    if of_server and not any(one.was_read for one in of_server):  # for example, the kubeconfig cannot be used
        option = "--kubeconfig" if "kubeconfig" in named else "--in-cluster"
        complain("devicecore doctor", f"{option}: {where(of_server[0].problem, of_server[0].place)}")
    return _status([report], unread)


def _why_no_device(root: object) -> str:
    """Return why no source names a device. The user may have named the parent of several nodes' directories."""
    nodes = []
    if isinstance(root, str):
        with suppress(OSError):
            below = [one for one in Path(root).iterdir() if one.is_dir()]
            nodes = sorted(one.name for one in below if any((one / name).exists() for name in _OF_A_KUBELET))
    if not nodes:
        return "neither a checkpoint nor the pod-resources API nor a plugin could be read"
    which = f"the directories {listed(nodes)} do" if len(nodes) > 1 else f"the directory {nodes[0]} does"
    first = Path(str(root), nodes[0])
    return f"{root} contains no files of a kubelet, but {which}. To read one of them, use --root {first}"


_OF_A_KUBELET = ("device-plugins", CHECKPOINT_NAME)


@frozen(kw_only=True)
class _Output:
    """Which parts of a report are printed, and which files are written.

    Raises click.UsageError if the options contradict each other, or a file cannot be written.
    """

    as_json: bool
    metrics: bool
    html: str | None
    svg: str | None

    def __attrs_post_init__(self) -> None:
        if self.as_json and self.metrics:
            raise click.UsageError("--json and --metrics cannot be used together.")
        _check_target("--html", self.html)
        _check_target("--svg", self.svg)

    def put(self, report: NodeReport, *, others_follow: bool = False) -> None:
        """Write the files and print the report.

        If more reports follow, JSON is printed on one line, and a terminal is cleared before a report for people.

        Raises OSError if a file cannot be written.
        """
        self._write_files(report)
        if self.metrics:
            sys.stdout.write(metrics_text(report))
        elif not self.as_json:
            sys.stdout.write(_CLEAR if others_follow and sys.stdout.isatty() else "")
            show(report)
        elif others_follow:
            sys.stdout.write(f"{json.dumps(document_of(report))}\n")
        else:
            _show_json(report)
        if others_follow:
            sys.stdout.flush()

    def _write_files(self, report: NodeReport) -> None:
        if self.html is None and self.svg is None:
            return
        shown = picture(report)
        if self.html is not None:
            _replace(self.html, page(report, shown))
        if self.svg is not None:
            _replace(self.svg, drawn(report, shown))


def _check_target(option: str, file: str | None) -> None:
    """Check, before anything is read, that a file can be written.

    Raises click.UsageError if the file is a directory, a pipe or a device, or if its directory does not exist.
    """
    if file is None:
        return
    path = Path(file)
    try:
        is_no_file = path.exists() and not path.is_file()
    except OSError as error:  # for example, the name is too long
        raise click.UsageError(f"{option}: {file}: {error.strerror}.") from error
    if is_no_file:
        raise click.UsageError(f"{option}: {file} is a directory, a pipe or a device; expected the name of a file.")
    if not path.parent.is_dir():
        raise click.UsageError(f"{option}: there is no directory {path.parent}.")


def _refuse_an_input(option: str, target: str | None, sources: Mapping[str, object]) -> None:
    """Refuse to replace input: a file that an option names, or a file in the kubelet's directory or in a record.

    Pages and pictures in these directories may be replaced. Raises click.UsageError if the target is an input.
    """
    if target is None or not Path(target).exists():
        return
    named = [Path(place) for name in _INPUTS if isinstance(place := sources[name], str) and place != "-"]
    root = Path(str(sources["root"] or DEFAULT_ROOT)).resolve()
    is_named = any(place.exists() and place.samefile(target) for place in named)
    is_below = Path(target).resolve().is_relative_to(root) and not Path(target).read_bytes()[:9].startswith(_OURS)
    if is_named or is_below:
        raise click.UsageError(f"{option}: {target} is an input and would be replaced. Name another file.")


_INPUTS = ("checkpoint", "pods", "node", "events", "claims", "resourceclaims", "slices", "kubeconfig")
_OURS = (b"<!doctype", b"<!DOCTYPE", b"<svg")  # pages and pictures may be rewritten


def _replace(file: str, text: str) -> None:
    """Replace a file atomically, so that a browser never loads a partial file."""
    with writing(file):
        DurableFile(Path(file), _MODE).replace(text.encode())


def _status(reports: Sequence[NodeReport], unread: Sequence[SourceLine]) -> int:
    """Return the exit status, which is 0 only if no node has a finding or anything left undecided."""
    if any(one.findings for one in reports):
        return _NEGATIVE
    if unread or not any(says_something(one) and not one.no_node for one in reports):
        return _UNUSABLE
    return 0 if all(one.is_sound for one in reports) else _NOT_ALL_SEEN


@without_collector()
def report_on(
    sources: "NodeSources",
    patience: float | None,
    wait: Wait,
    *,
    save: str | None = None,
    budget: Budget | None = None,
) -> NodeReport | None:
    """Read the sources until each finding has lasted, has disappeared, or turns out to keep changing.

    Args:
        sources: what to read.
        patience: seconds for which a finding must last, or None for the default of its kind.
        wait: a function that waits for a number of seconds. If `wait` returns True, a signal ended the wait, and there
            is no report.
        save: the directory in which to save a record of the last reading, on which the report is based.
        budget: the budget for all readings. If no time is left for one more reading, the report says which findings are
            not confirmed.

    Raises click.UsageError if the sources belong to a node that the user did not name, and click.ClickException if the
    record cannot be written.
    """
    from devicecore_tools.doctor.reading.node import SourcesError

    budget = budget or Budget()
    try:
        facts = Facts(sources.look())
    except SourcesError as error:
        raise click.UsageError(str(error)) from error
    found = check(facts, budget)
    took = budget.used
    began, looks = time.monotonic(), 1
    watched = Watched.first(found, began, patience if sources.is_live or patience is not None else 0.0)
    while True:
        changing = watched.changing
        unsettled = seconds_to_settle(facts.look) if watched.patience is None and sources.is_live else 0.0
        unsettled = 0.0 if watched.at - began > _SETTLE else unsettled
        if not (changing or unsettled):
            break
        longest = patience_of(found) if watched.patience is None else watched.patience
        if looks >= _LOOKS and watched.at - began >= _LOOKS * longest and not unsettled:
            break
        if budget.spent(took):
            break
        rests = [one for one in (*map(watched.rest, changing), unsettled) if one]
        if looks == 1 and max(rests, default=0.0) > _LOOK_INTERVAL and sys.stderr.isatty():
            click.echo(f"reading the node for {max(rests):.0f} s to confirm what was found ...", err=True)
        rest = min(rests, default=0.0)
        if rest > 0 and wait(min(rest, _LOOK_INTERVAL)):
            return None
        look = sources.look()
        if look != facts.look:  # an equal `Look` has the same findings, and finding them again on a large node is slow
            facts = Facts(look)
            found = check(facts, budget)
        looks += 1
        watched = watched.then(found, max(time.monotonic(), watched.at + _TICK))
    if save is not None:
        _save(sources, save, facts.look)
    return explained(report(facts, watched.confirmed, watched.changing, budget))


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


# --- output --------------------------------------------------------------------------------------------------


def _show_json(report: NodeReport) -> None:
    """Print one line per source, device and finding: indenting 50,000 devices with Python takes a second."""
    members = []
    for name, value in document_of(report).items():
        items = "".join(f"\n    {json.dumps(item)}," for item in value)[:-1] if isinstance(value, list) else None
        text = json.dumps(value) if items is None else f"[{items}\n  ]"
        members.append(f"\n  {json.dumps(name)}: {text}")
    sys.stdout.write(f"{{{','.join(members)}\n}}\n")
