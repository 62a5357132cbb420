"""Runs the checks over a plugin.

Law: whatever comes of it, the plugin's process has ended and the directory is as free as before.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from devicecore.adapters.grpc_unix.directory import SocketDirectory
from devicecore.conformance.checks import CHECKS
from devicecore.conformance.model import Check, Failure, Report, Result, Skip, Verdict
from devicecore.conformance.peer import CallFailedError, Peer
from devicecore.conformance.subject import Settings, Subject
from devicecore.conformance.watching import WatchingPeer
from devicecore.system.temporary import short_directory
from devicecore.testing.process import PluginProcess


def run(
    command: Sequence[str | os.PathLike[str]] | None = None,
    *,
    settings: Settings | None = None,
    directory: str | os.PathLike[str] | None = None,
    registry: bool = False,
    checks: Iterable[Check] = CHECKS,
    ready: Callable[[Path], None] = lambda _: None,
    told: Callable[[Result], None] = lambda _: None,
) -> Report:
    """Put a plugin to the checks.

    Args:
        command: starts it, with `{dir}` and `{socket}` filled in; without one, it is waited for.
        settings: how to test it.
        directory: where it looks for kubelet.sock; by default a new one. All sockets in it are deleted. It is made if
            there is none.
        registry: the directory is one in which a kubelet's plugin watcher looks for plugins: they do not register, and
            no socket in it is deleted.
        checks: which checks, in their order.
        ready: told the directory, when plugins can register there.
        told: told of each result as it comes.

    Raises:
        SetUpError: the directory cannot be used, for example because a kubelet serves it.
        CannotRunError: there is no such program, or it may not be run.
    """
    if directory is None:
        with short_directory() as temporary:
            return run(
                command,
                settings=settings,
                directory=temporary,
                registry=registry,
                checks=checks,
                ready=ready,
                told=told,
            )
    settings = settings or Settings()
    place = Path(directory).absolute()
    changed = threading.Condition()

    def ring() -> None:
        with changed:
            changed.notify_all()

    def start() -> PluginProcess:
        return PluginProcess(command or (), place, changed=ring)

    with suppress(OSError):  # whose sentence follows
        place.mkdir(mode=0o750, parents=True, exist_ok=True)
    claim = SocketDirectory(place, "kubelet.sock", wipe=not registry)
    claim.claim()
    peer = (WatchingPeer if registry else Peer)(place, ring, settings.timeout, settings.resource)
    subject = Subject(peer, start if command else None, settings, changed)
    began = time.monotonic()
    results = []
    try:
        peer.serve()
        ready(place)
        subject.start()
        for each in checks:
            results.append(_look(each, subject))
            told(results[-1])
    finally:
        subject.stop()
        peer.leave()
        peer.wipe()
        claim.release()
    took = time.monotonic() - began
    return Report(peer.resource, tuple(sorted(peer.others)), subject.counted, tuple(results), took, subject.output)


def _look(check: Check, subject: Subject) -> Result:
    began = time.monotonic()
    try:
        verdict, came = Verdict.PASSED, check.look(subject)
    except Failure as failure:
        verdict, came = Verdict.FAILED, str(failure)
    except Skip as skip:
        verdict, came = Verdict.SKIPPED, str(skip)
    except CallFailedError as error:
        verdict, came = Verdict.FAILED, str(error)
    if verdict is Verdict.FAILED:
        subject.breathe()  # perhaps it dies of it, and the next check must not be blamed for that
    return Result(check, verdict, came, time.monotonic() - began)
