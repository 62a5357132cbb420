"""Runs the steps of a scenario. Each step checks its expectations, shows what happens, and records it as JSON.

Law: a step passes if all its checks pass. No step runs after one that failed.
"""

from collections.abc import Callable, Sequence

from attrs import frozen
from rich.console import Console
from rich.text import Text

from devicecore.domain.errors import DeviceCoreError
from devicecore.domain.text import foreign_text
from devicecore_tools.command.demo.cluster import Cluster
from devicecore_tools.command.output import fold

Record = dict[str, object]
"""A step as JSON: `name`, `title`, `ok`, the `checks` that passed, and the facts that the step records.

A step that failed also has `what`, `expected` and `actual`.
"""

_INDENT = "       "
_COLUMN = 37
_WIDTH = 80  # the maximum width of the output, in columns


@frozen
class CheckFailedError(Exception):
    """A step found something other than what it expected."""

    what: str
    expected: object
    actual: object

    def __str__(self) -> str:
        return f"{self.what}: expected {self.expected!r}, got {self.actual!r}"


class StepRun:
    """One run of one step: the cluster, and ways to show, record and check.

    `console` is for people. With `silent`, what a step shows is not printed.
    """

    def __init__(self, cluster: Cluster, console: Console, *, silent: bool = False) -> None:
        self.cluster = cluster
        self.facts: Record = {}
        self.passed: list[str] = []
        self._console = console
        self._silent = silent
        self._width = min(_WIDTH, console.width) - len(_INDENT)

    def show(self, text: str, style: str = "") -> None:
        """Print a string for people, folded to at most 80 columns."""
        if not self._silent:
            for line in text.splitlines():
                folded = fold(foreign_text(line), self._width)
                self.print(*(_INDENT + part for part in folded.splitlines()), style=style)

    def show_both(self, left: str, right: str) -> None:
        """Print two strings with the same number of lines side by side, or below each other on a narrow terminal."""
        lines = [f"{one:{_COLUMN}}{other}" for one, other in zip(left.splitlines(), right.splitlines(), strict=True)]
        self.show("\n".join(lines) if max(map(len, lines)) <= self._width else f"{left}\n{right}")

    def record(self, **facts: object) -> None:
        """Add facts to the step's JSON."""
        self.facts.update(facts)

    def check(self, what: str, actual: object, expected: object) -> None:
        """Compare two values. `what` is a sentence that is true if they are equal.

        Raises CheckFailedError if they differ.
        """
        if actual != expected:
            raise CheckFailedError(what, expected, actual)
        self.passed.append(what)

    def wait(self, what: str, look: Callable[[], object], expected: object) -> None:
        """Wait as `Cluster.wait_for` does, and then `check` the last value."""
        self.check(what, self.cluster.wait_for(look, expected), expected)

    def print_checks(self, failure: Record) -> None:
        """Print the checks that passed, unless the run is silent, and the check that failed, if any."""
        if not self._silent:
            self.print(*(Text.assemble(("   ok  ", "green"), what) for what in self.passed))
        if failure:
            self.print(Text.assemble(("   failed  ", "bold red"), str(failure["what"])))
            self.print(f"{_INDENT}expected: {failure['expected']}", f"{_INDENT}got: {failure['actual']}")

    def print(self, *lines: str | Text, style: str = "") -> None:
        """Print lines as they are."""
        for line in lines:
            self._console.print(line, style=style, soft_wrap=True)


Step = Callable[[StepRun], None]
"""One step. A step's name is the name of its function, and its title is the function's docstring."""


def run_steps(steps: Sequence[Step], cluster: Cluster, console: Console, *, silent: bool = False) -> list[Record]:
    """Run the steps in order until one fails. Return a record of each step."""
    records: list[Record] = []
    for number, step in enumerate(steps, 1):
        cluster.check_signals()
        name = step.__name__
        title = step.__doc__ or name  # Python can be run without docstrings
        run = StepRun(cluster, console, silent=silent)
        if not silent:
            run.print("")
        run.print(Text.assemble(f"{number:>2}/{len(steps)}  ", (title, "bold")))
        failure: Record = {}
        try:
            step(run)
        except CheckFailedError as failed:
            failure = {"what": failed.what, "expected": failed.expected, "actual": failed.actual}
        except (DeviceCoreError, OSError) as error:
            failure = {"what": "nothing fails", "expected": None, "actual": f"{type(error).__name__}: {error}"}
        run.print_checks(failure)
        records.append({"name": name, "title": title, "ok": not failure, "checks": run.passed, **run.facts, **failure})
        if failure:
            break
    return records
