"""The output of `devicecore conformance`: results as they arrive, and then the report in every requested format.

Law: output that does not go to a terminal has no colors and is not wrapped.
"""

import shlex
import shutil
import signal
import stat
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from difflib import get_close_matches
from fnmatch import fnmatchcase
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click
from attrs import evolve, field, frozen

from devicecore.domain.errors import DeviceCoreError
from devicecore.domain.text import counted, foreign_text
from devicecore.system.files import DurableFile
from devicecore_tools.command.output import print_json, writing
from devicecore_tools.conformance.card import as_badge, as_page
from devicecore_tools.conformance.model import Check, Report, Result, Subject, Verdict
from devicecore_tools.conformance.reports import (
    MAX_LINE,
    NAME_WIDTH,
    WORDS,
    as_document,
    as_junit,
    check_document,
    crashes,
    explanation,
    head,
    summary,
)
from devicecore_tools.conformance.runner import INTERRUPTED, result_of

_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
_FAILED = 1
_CANNOT_RUN = 2
_STYLES: dict[str, dict[str, Any]] = {
    "FAIL": {"fg": "red", "bold": True},
    "ok": {"fg": "green"},
    "n/a": {"fg": "yellow"},
    "open": {"fg": "yellow", "bold": True},
}
_INDENT = 14  # columns by which a result's text is indented
_LABEL = 10  # width of `expected: ` in columns


@frozen(kw_only=True)
class Reporting:
    """The formats and files in which the results of a run are reported.

    Attributes:
        as_json: print one JSON document at the end, and nothing before it.
        junit: the file for the report as JUnit XML.
        card: the file for the scorecard, an HTML page; the badge is written next to it.
        release: the version of the subject, shown in the reports.
        command: the command that starts the subject, shown in the reports.

    A reason why checks were not run is printed only once; further checks with the same reason are listed at the end.
    """

    as_json: bool
    junit: str | None
    card: str | None
    release: str
    command: tuple[str, ...] = ()
    _reasons: set[str] = field(factory=set, init=False)
    _folded: list[str] = field(factory=list, init=False)
    _results: list[Result] = field(factory=list, init=False)

    def begin(self) -> None:
        """Create the report files, so that a wrong path is reported before the checks run.

        Raises OSError if a file cannot be written. Raises click.UsageError if the badge would replace the page.
        """
        if self.card is not None and Path(self.card).suffix == ".svg":
            message = (
                f"--card {self.card}: expected the name of an HTML page; the badge next to it gets the extension .svg."
            )
            raise click.UsageError(message)
        for path in self._files():
            path.touch()

    def show(self, result: Result) -> None:
        """Print a result as soon as it is known, unless `as_json` is set."""
        self._results.append(result)
        if self.as_json:
            return
        if result.verdict in {Verdict.SKIPPED, Verdict.UNDECIDED}:
            if result.actual in self._reasons:
                self._folded.append(result.name)
                return
            self._reasons.add(result.actual)
        _print(result)

    def run(self, kind: str, checks: Sequence[Check[Any]], made: Callable[[], Report]) -> int:
        """Execute a run, print and write its report, and return the exit status (after a signal, 128 + its number).

        A signal ends the run, and so does a bug in devicecore outside the checks. The report then covers the checks so
        far. Raises whatever `made` raises because the run could not start or because of a bug.
        """
        began, mistake = time.monotonic(), None
        with ending_cleanly() as signals:
            try:
                report = made()
            except SystemExit:
                report = self._of_what_was_made(kind, checks, INTERRUPTED, began)
            except (OSError, DeviceCoreError):
                raise
            except Exception as error:  # noqa: BLE001 - it is raised again after the report is written
                mistake = error
                reason = f"a bug in devicecore ended the run: {type(error).__name__}: {error}"
                report = self._of_what_was_made(kind, checks, reason, began)
            ignore_signals()  # a second signal would otherwise prevent the report
            status = self.end(report)
        if mistake is not None:
            raise mistake
        return 128 + signals[0] if signals else status

    def _of_what_was_made(self, kind: str, checks: Sequence[Check[Any]], reason: str, began: float) -> Report:
        """Return the report on a run that ended for `reason`."""
        made = {result.name: result for result in self._results}
        not_made = f"not run, because {reason}"
        results = tuple(made.get(one.name) or result_of(one, Verdict.UNDECIDED, not_made) for one in checks)
        seconds = time.monotonic() - began
        return Report(kind=kind, subject="unfinished", results=results, not_made=not_made, seconds=seconds)

    def end(self, report: Report) -> int:
        """Print and write the report.

        Returns:
            The exit status: 0 if no "must" check failed, 1 if one failed or was not decided, or if no check was run,
            and 2 if the subject cannot be run or one of the user's commands failed.

        Raises:
            OSError: a file cannot be written.
        """
        report = evolve(report, release=self.release, command=shlex.join(self.command), tool=_version())
        today = datetime.now(UTC).date()
        # all reports are rendered before any file is changed
        texts = {path: text(report, today) for path, text in self._files().items()}
        for path, made in texts.items():
            _write(path, made)
        if self.as_json:
            print_json(as_document(report))
        else:
            if self._folded:
                others = f"{counted(len(self._folded), 'more check')} not run for the reasons above"
                click.echo("\n" + _fold(f"{others}: {', '.join(self._folded)}", _width()))
            _print_end(report)
        if report.cannot_run or report.wrong_usage:
            return _CANNOT_RUN
        return 0 if report.passed else _FAILED

    def _files(self) -> dict[Path, Callable[[Report, date], str]]:
        files: dict[Path, Callable[[Report, date], str]] = {}
        if self.junit is not None:
            files[Path(self.junit)] = lambda report, _: as_junit(report)
        if self.card is not None:
            files |= {Path(self.card): as_page, Path(self.card).with_suffix(".svg"): as_badge}
        return files


def _write(path: Path, text: str) -> None:
    """Write a file.

    An existing regular file is replaced atomically, so that a full disk never destroys the last report.
    """
    with writing(path):
        if path.is_file() and not path.is_symlink():
            DurableFile(path, stat.S_IMODE(path.stat().st_mode)).replace(text.encode())
        else:  # the path is not a regular file, such as /dev/stdout
            path.write_text(text, encoding="utf-8")


@contextmanager
def ending_cleanly() -> Iterator[list[int]]:
    """Raise SystemExit on the first signal that tells the process to exit, and ignore further ones.

    Yields a list to which the number of the first signal is added.
    """
    received: list[int] = []

    def end(number: int, _: FrameType | None) -> NoReturn:
        ignore_signals()
        received.append(number)
        raise SystemExit(128 + number)

    before = {one: signal.signal(one, end) for one in _SIGNALS if signal.getsignal(one) is not signal.SIG_IGN}
    try:
        yield received
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def ignore_signals() -> None:
    """Ignore the signals that tell the process to exit."""
    for one in _SIGNALS:
        signal.signal(one, signal.SIG_IGN)


def _version() -> str:
    try:
        return metadata.version("devicecore")
    except metadata.PackageNotFoundError:
        return ""


def choose(checks: Sequence[Check[Subject]], only: Sequence[str], skip: Sequence[str]) -> list[Check[Subject]]:
    """Return the checks that `--only` and `--skip` select, in order.

    Args:
        checks: all checks.
        only: names, and patterns such as `gives-*`; empty means all checks.
        skip: names and patterns of checks to leave out.

    Raises:
        click.UsageError: a name or pattern matches no check, or no check is left.
    """
    names = [check.name for check in checks]
    for option, patterns in (("--only", only), ("--skip", skip)):
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise click.UsageError(f"{option} {pattern}: there is no such check{_meant(pattern, names)}")
    chosen = [check for check in checks if not only or _matches(check.name, only)]
    left = [check for check in chosen if not _matches(check.name, skip)]
    if not left:
        raise click.UsageError("--only and --skip leave no check to run.")
    return left


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _meant(pattern: str, names: Sequence[str]) -> str:
    near = get_close_matches(pattern, names) or [name for name in names if pattern in name][:3]
    return f"; did you mean {' or '.join(near)}?" if near else "; --list lists the checks."


def print_list(checks: Sequence[Check[Any]], *, as_json: bool) -> None:
    """Print the checks without running them."""
    if as_json:
        print_json([check_document(check) for check in checks])
        return
    for check in checks:
        click.echo(f"{check.severity.value:<6}  {check.name:<{NAME_WIDTH}}  {check.done}")


def _width() -> int:
    """Return the width of the terminal. Output to files and pipes is not wrapped."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize


def _fold(text: str, width: int) -> str:
    return "\n".join(textwrap.wrap(text, max(width, 20), break_on_hyphens=False) or [""])


def _print(result: Result) -> None:
    word = WORDS[result.verdict]
    start = head(result)
    actual = foreign_text(result.actual, MAX_LINE)
    line = f"{start}  {actual}"
    if len(line) > _width():
        line = f"{start.rstrip()}\n{textwrap.indent(_fold(actual, _width() - _INDENT), ' ' * _INDENT)}"
    click.echo(click.style(word, **_STYLES[word]) + line[len(word) :])
    sys.stdout.flush()  # a reader at the end of a pipe gets each result at once


def _print_end(report: Report) -> None:
    if report.not_made:
        number = sum(result.actual == report.not_made for result in report.results)
        click.echo(f"\n{counted(number, 'more check')} {report.not_made}.")
    for result in () if report.not_made else report.failures:
        click.echo(f"\n{click.style(f'{result.name} ({result.severity.value})', bold=True)}")
        for label, text in explanation(result):
            folded = textwrap.indent(_fold(text, _width() - _LABEL - 3), " " * (_LABEL + 3))
            click.echo(f"  {label:<{_LABEL}} {folded.lstrip()}")
    for sentence, printed in crashes(report):
        click.echo(f"\nThe {report.kind} exited on its own: {_fold(sentence, _width())}")
        click.echo(textwrap.indent(printed, "  "))
    if (report.failures or report.cannot_run) and report.output:
        click.echo(f"\nThe last output of the {report.kind}:")
        for text in report.output.splitlines():
            click.echo(f"  {foreign_text(text)}")
    end = _fold(summary(report), _width())
    click.echo("\n" + (click.style(end, fg="red") if not report.passed else end))
