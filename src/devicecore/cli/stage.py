"""Where a story is told: steps say what they expect, people see what came, and programs get a record of it.

Law: a step is good when everything it expected came. The first that is not ends the story.
"""

from collections.abc import Callable, Sequence

from attrs import frozen
from rich.console import Console
from rich.text import Text

from devicecore.cli.cluster import Cluster
from devicecore.cli.output import fold
from devicecore.domain.errors import DeviceCoreError
from devicecore.domain.text import foreign_text

Record = dict[str, object]
"""A step as JSON: `name`, `title`, `ok`, `checks` that came out, what was told; else `what`, `expected`, `came`."""

_INDENT = "       "
_COLUMN = 37
_WIDTH = 80  # columns, if there are as many


@frozen
class NotAsToldError(Exception):
    """Something else came than was expected."""

    what: str
    expected: object
    came: object

    def __str__(self) -> str:
        return f"expected that {self.what}: {self.expected!r}; what came is {self.came!r}"


class Stage:
    """What a step has at hand: the cluster, and four ways to say something. One stage for each step.

    `console` is for people. With `silent`, they do not get to see what is shown.
    """

    def __init__(self, cluster: Cluster, console: Console, *, silent: bool = False) -> None:
        self.cluster = cluster
        self.told: Record = {}
        self.good: list[str] = []
        self._console = console
        self._silent = silent
        self._width = min(_WIDTH, console.width) - len(_INDENT)

    def show(self, text: str, style: str = "") -> None:
        """Show people a text, which folds to 80 columns or what there is."""
        if not self._silent:
            for line in text.splitlines():
                self.print(
                    *(_INDENT + folded for folded in fold(foreign_text(line), self._width).splitlines()), style=style
                )

    def show_both(self, left: str, right: str) -> None:
        """Show two texts of as many lines side by side, or one below the other where there is no room."""
        lines = [f"{one:{_COLUMN}}{other}" for one, other in zip(left.splitlines(), right.splitlines(), strict=True)]
        self.show("\n".join(lines) if max(map(len, lines)) <= self._width else f"{left}\n{right}")

    def tell(self, **facts: object) -> None:
        """Tell programs facts that JSON can hold."""
        self.told.update(facts)

    def check(self, what: str, came: object, expected: object) -> None:
        """See whether what came is what was expected.

        Raises:
            NotAsToldError: it is not.
        """
        if came != expected:
            raise NotAsToldError(what, expected, came)
        self.good.append(what)

    def wait(self, what: str, look: Callable[[], object], expected: object) -> None:
        """Wait, but not for ever, until `look` sees what is expected; then `check`."""
        self.check(what, self.cluster.wait_for(look, expected), expected)

    def end(self, failure: Record) -> None:
        """Say what has come out as told, and what has not."""
        if not self._silent:
            self.print(*(Text.assemble(("   ok  ", "green"), what) for what in self.good))
        if failure:
            self.print(Text.assemble(("   not as told  ", "bold red"), str(failure["what"])))
            self.print(f"{_INDENT}expected: {failure['expected']}", f"{_INDENT}what came: {failure['came']}")

    def print(self, *lines: str | Text, style: str = "") -> None:
        """Print lines as they are."""
        for line in lines:
            self._console.print(line, style=style, soft_wrap=True)


Step = Callable[[Stage], None]
"""What is done in one step. The function's name is its name, and its docstring its title."""


def play(story: Sequence[Step], cluster: Cluster, console: Console, *, silent: bool = False) -> list[Record]:
    """Perform the steps until one fails."""
    records: list[Record] = []
    for number, step in enumerate(story, 1):
        name = step.__name__
        title = step.__doc__ or name  # Python can be told to leave docstrings out
        stage = Stage(cluster, console, silent=silent)
        if not silent:
            stage.print("")
        stage.print(Text.assemble(f"{number:>2}/{len(story)}  ", (title, "bold")))
        failure: Record = {}
        try:
            step(stage)
        except NotAsToldError as failed:
            failure = {"what": failed.what, "expected": failed.expected, "came": failed.came}
        except (DeviceCoreError, OSError) as error:
            failure = {"what": "nothing fails", "expected": None, "came": f"{type(error).__name__}: {error}"}
        stage.end(failure)
        records.append({"name": name, "title": title, "ok": not failure, "checks": stage.good, **stage.told, **failure})
        if failure:
            break
    return records
