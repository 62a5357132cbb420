"""Asks the program `oracle` from `peers/`, which answers with Kubernetes' own code."""

import json
import os
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

Json = Any  # questions and answers


class OracleError(Exception):
    """The oracle did not answer: the question is invalid, or the program has ended."""


class Verdict(NamedTuple):
    """The result of a comparison.

    `cause` is empty if the answers agree, names rows of docs/differences.md if the answers differ for known reasons,
    and is None if the reason is unknown. `lines` show where the answers differ. `steps` contains the number of compared
    steps and of all steps.
    """

    cause: str | None
    lines: Sequence[str]
    steps: tuple[int, int] = (1, 1)


AGREED = Verdict("", ())


def joined(row: str, cause: str | None) -> str | None:
    """Return `row` joined with the rows in `cause`, or None if `cause` is None."""
    return None if cause is None else "+".join(sorted({*row.split("+"), *filter(None, cause.split("+"))}))


class Oracle:
    """A running oracle, which answers one question at a time.

    `processors` is the number of CPUs that the oracle uses, or None for all.
    """

    def __init__(self, program: Path, *, processors: int | None = 1) -> None:
        self.version: str = program.parents[1].name  # the version of Kubernetes
        environment = {} if processors is None else {"GOMAXPROCS": str(processors)}
        self._process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **environment}
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, kind: str, question: Json) -> Json:
        """Return the answer, or `{"panic": ...}` if Kubernetes' code panics.

        Raises: OracleError: the oracle does not answer the question.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps({"kind": kind, **question}).encode() + b"\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise OracleError(f"the oracle exited during a question of kind {kind}")
        reply = json.loads(line)
        if "error" in reply:
            raise OracleError(f"{kind}: {reply['error']}")
        return reply.get("answer", reply)


def differences(ours: Json, theirs: Json, path: str = "") -> Iterator[str]:
    """Yield the differences between two answers, one line for each location."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted(ours.keys() | theirs.keys(), key=str):
            if key not in theirs or key not in ours:
                whose, value = ("ours only", ours.get(key)) if key in ours else ("theirs only", theirs.get(key))
                yield f"{path}.{key}: {whose}: {_short(value)}"
            else:
                yield from differences(ours[key], theirs[key], f"{path}.{key}")
    elif isinstance(ours, list | tuple) and isinstance(theirs, list | tuple) and len(ours) == len(theirs):
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(one, other, f"{path}[{number}]")
    elif ours != theirs:
        yield f"{path}: ours {_short(ours)}, theirs {_short(theirs)}"


def first(lines: Iterable[str], count: int = 5) -> list[str]:
    """Return the first `count` lines."""
    return [line for line, _ in zip(lines, range(count), strict=False)]


def _short(value: Json) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return text if len(text) <= 300 else text[:300] + "..."
