"""Runs the checks against a device plugin.

Law: after a run, no process of the plugin is running, and the socket directory contains neither a lock nor a
kubelet.sock from the run. This holds even if the run is interrupted, at any point up to its end.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path

from attrs import evolve

from devicecore.adapters.grpc_unix.directory import SocketDirectory
from devicecore.domain.text import counted, foreign_text
from devicecore.system.arguments import checks_arguments
from devicecore_tools.conformance.device_plugin.kubelet import BareKubelet
from devicecore_tools.conformance.device_plugin.plugin import PluginUnderTest
from devicecore_tools.conformance.device_plugin.settings import Settings
from devicecore_tools.conformance.device_plugin.suite import CHECKS, LAST
from devicecore_tools.conformance.device_plugin.watcher import WatchingKubelet
from devicecore_tools.conformance.model import Check, Failure, Report, Result, Skip, some
from devicecore_tools.conformance.processes import (
    adopted,
    as_environment,
    end_all,
    guarded,
    new_marker,
    note_of_wrong_command,
    orphans_come_here,
)
from devicecore_tools.conformance.runner import run_checks
from devicecore_tools.testing.process import PluginProcess
from devicecore_tools.testing.temporary import short_directory

_LATE = 20.0  # seconds for the first healthy device, after all checks that need none


@checks_arguments("checks")
def run(
    command: Sequence[str | os.PathLike[str]] | None = None,
    *,
    settings: Settings | None = None,
    directory: str | os.PathLike[str] | None = None,
    allow_shared_directory: bool = False,
    registry: bool = False,
    checks: Iterable[Check[PluginUnderTest]] = CHECKS,
    on_ready: Callable[[Path], None] = lambda _: None,
    on_result: Callable[[Result], None] = lambda _: None,
) -> Report:
    """Run checks against a device plugin and return the report.

    Args:
        command: the command that starts the plugin. `{dir}` and `{socket}` in the command are replaced by the socket
            directory and the kubelet's socket. Without a command, the user starts the plugin.
        settings: how to test the plugin.
        directory: where the plugin looks for kubelet.sock; by default a new directory. The directory is created if
            missing. All sockets in the directory are deleted.
        allow_shared_directory: whether to accept a directory with any owner and mode.
        registry: whether the plugin waits in the directory for the kubelet's plugin watcher instead of calling
            Register. In that case, no socket in the directory is deleted.
        checks: the checks to run. The report lists them in this order, but those in `LAST` run last.
        on_ready: called with the directory when plugins can register there.
        on_result: called with each result, except those of checks that were never started.

    Raises:
        SetUpError: the directory cannot be used, for example because a kubelet uses it.
        CannotRunError: the program does not exist or is not executable.
    """
    began = time.monotonic()
    place = short_directory() if directory is None else nullcontext(directory)
    with (
        orphans_come_here(),
        place as path,
        _claimed(Path(path).absolute(), allow_shared=allow_shared_directory, wipe=not registry) as claimed,
        _running(command, claimed, settings or Settings(), registry=registry, on_ready=on_ready) as plugin,
    ):
        guarded_checks = [evolve(check, look=partial(_look, check)) for check in checks]
        make = partial(
            run_checks,
            subject=plugin,
            on_result=on_result,
            excuses_load=plugin.settings.excuses_load,
            waits=lambda: plugin.process.waits,
        )
        later: list[Check[PluginUnderTest]] = []
        results, not_made = make([one for one in guarded_checks if one.name not in LAST], later=later)
        if later and not not_made:
            plugin.lists.wait_for_healthy(_LATE)
        for rest in (later, [one for one in guarded_checks if one.name in LAST]):
            more, not_made = make(rest, not_made=not_made)
            results += more
        order = [one.name for one in guarded_checks]
        results = tuple(sorted(results, key=lambda one: order.index(one.name)))
    return _report(plugin, results, not_made, time.monotonic() - began)


def _look(check: Check[PluginUnderTest], plugin: PluginUnderTest) -> str:
    """Run a check. A plugin exit is reported by the check that failed because of it, otherwise by `stays-up`."""
    exits, sentence = len(plugin.process.exits), ""
    plugin.lists.begin(check.name)
    problem: Failure | Skip | None = None
    try:
        try:
            sentence = check.look(plugin)
        except (Failure, Skip) as error:
            problem = error
        if isinstance(problem, Failure):
            plugin.process.wait_for_exit()
        if plugin.process.has_exited:
            plugin.process.notice_exit()
        plugin.note_usage()
        plugin.note_ended_streams(are_reported=isinstance(problem, Failure))
        plugin.lists.look_for_sources()
        plugin.lists.look_for_secrets()
    finally:
        plugin.process.blame(check.name)
    if problem is not None:
        # If a check could not run because of a crash, the check fails, and the crash counts as reported by that check.
        problem = plugin.process.with_exits(check.name, problem, exits)
        if isinstance(problem, Failure):
            plugin.process.reported.update(one.pid for one in plugin.process.exits[exits:])
        raise problem
    return sentence  # a crash alone is no failure: a plugin may exit in any way when its kubelet does


@contextmanager
def _claimed(directory: Path, *, allow_shared: bool, wipe: bool) -> Iterator[Path]:
    """Lock the directory, so that no kubelet uses it during the run."""
    claim = SocketDirectory(directory, "kubelet.sock", allow_shared=allow_shared, wipe=wipe)
    claim.claim()
    try:
        yield directory
    finally:
        claim.release()


@contextmanager
def _running(
    command: Sequence[str | os.PathLike[str]] | None,
    directory: Path,
    settings: Settings,
    *,
    registry: bool,
    on_ready: Callable[[Path], None],
) -> Iterator[PluginUnderTest]:
    """Serve the kubelet's side and run the plugin. At the end, stop both and remove their sockets."""
    marker = new_marker()
    others = adopted() if settings.owns_children else None

    def start() -> PluginProcess:
        process = PluginProcess(command or (), directory, environment=as_environment(marker))
        process.start()
        return process

    kubelet = (WatchingKubelet if registry else BareKubelet)(directory, settings.timeout, settings.resource)
    plugin = PluginUnderTest(kubelet, start if command else None, settings, partial(end_all, marker))
    with guarded(marker), ExitStack() as stack:  # each cleanup runs even if the previous one was interrupted
        stack.callback(kubelet.wipe)
        stack.callback(kubelet.leave)
        stack.callback(plugin.lists.close)
        stack.callback(end_all, marker, but_not=others)
        stack.callback(plugin.process.stop)
        kubelet.serve()
        on_ready(directory)
        plugin.process.start()
        yield plugin


def _report(plugin: PluginUnderTest, results: tuple[Result, ...], not_made: str, seconds: float) -> Report:
    kubelet = plugin.kubelet
    resource = foreign_text(kubelet.resource)
    devices = plugin.lists.known
    subject = resource or "no resource"
    others = sorted(kubelet.others)
    version = next((foreign_text(each.request.version) for each in kubelet.registrations), "")
    notes = []
    if others:
        notes.append(f"not tested (name one with --resource): {some(others)}")
    if (
        any(one.name == "allocates-each-device" and not one.failed for one in results)
        and not plugin.lists.was_allocated
    ):
        notes.append("nothing was allocated, so most checks could not be run")
    problem = plugin.seen.provocation
    if problem:
        notes.append(note_of_wrong_command("--provoke-health", problem))
    elif problem is not None and not plugin.settings.undo_health:
        notes.append("the provoked change of health was not undone (no --undo-health)")
    return Report(
        subject=subject if devices is None else f"{subject}, {counted(len(devices), 'device')}",
        facts={"resource": resource, "api_version": version, "devices": len(devices or ()), "others": others},
        notes=tuple(notes),
        results=results,
        not_made=not_made,
        cannot_run=bool(plugin.process.exits) and not kubelet.was_called,
        wrong_usage=bool(problem),
        seconds=seconds,
        output=plugin.process.output,
        exits=tuple(plugin.process.exits),
    )
