"""Change a room at random places, and report the changes that no test notices.

`make mutants` calls it. A mutant is one change inside a function: a comparison, a condition, an operation or a number
is replaced, or a statement is left out. A fork of the process that collected the tests runs the tests that reach the
changed line, most specific first, until one fails. Results are kept in `build/mutants-ROOM.json`, so the next run
continues where one that ended after `--seconds` stopped. If the sources have changed, delete the file.

A room is a part of the code and the tests for it. A mutant that only tests of other rooms notice survives, because
people who change a room run its own tests first.

A mutant that outlives `--patience` seconds of passing tests has the result `unfinished`. Run again with more patience.
"""

import argparse
import ast
import copy
import gc
import hashlib
import json
import os
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import coverage
import pytest
from attrs import asdict, define, frozen

ROOT = Path(__file__).parent.parent
_LIBRARY = "src/devicecore"
_TOOLS, _FLEET = "packages/tools/src/devicecore_tools", "packages/fleet/src/devicecore_fleet"
_OF_TOOLS = "packages/tools/tests"


@frozen
class Room:
    """A part of the code, and the tests for it.

    Attributes:
        parts: folders below the top of the repository.
        tests: files and folders of tests.
        left_out: names of folders that belong to another room.
    """

    parts: tuple[str, ...]
    tests: tuple[str, ...]
    left_out: str = ""

    @property
    def files(self) -> list[Path]:
        """The modules of the room."""
        found = [path for part in self.parts for path in sorted((ROOT / part).rglob("*.py"))]
        return [path for path in found if self.left_out not in path.parts]


ROOMS = {
    "core": Room(
        tuple(f"{_LIBRARY}/{part}" for part in ("domain", "runtime", "manager", "dra_manager")),
        (
            *("tests/unit", "tests/property", "tests/contract", "tests/simulation", "tests/system", "tests/plugins"),
            *("tests/adapters/test_manifests.py", "tests/adapters/test_manifest_claims.py"),  # of domain/documents.py
        ),
        left_out="allocation",
    ),
    "allocation": Room((f"{_LIBRARY}/domain/allocation",), ("tests/allocation", f"{_OF_TOOLS}/judge")),
    "doctor": Room(
        (f"{_TOOLS}/doctor",),
        (
            f"{_OF_TOOLS}/doctor",
            f"{_OF_TOOLS}/property",
            *(f"{_OF_TOOLS}/command/test_{name}.py" for name in ("claims", "doctor", "fits", "nodes", "why")),
            *(f"{_OF_TOOLS}/command/test_{name}.py" for name in ("claim_situations", "pod_situations", "preemption")),
        ),
    ),
    "conformance": Room(
        (f"{_TOOLS}/conformance",), (f"{_OF_TOOLS}/conformance", f"{_OF_TOOLS}/kit/test_conformance.py")
    ),
    "testing": Room((f"{_TOOLS}/testing",), (f"{_OF_TOOLS}/kit", f"{_OF_TOOLS}/judge")),
    "fleet": Room((_FLEET,), ("packages/fleet/tests",)),
    "numa": Room(
        ("packages/numa/src/devicecore_numa",),
        (
            "packages/numa/tests",
            *(f"{_OF_TOOLS}/command/test_{name}_managers.py" for name in ("doctor", "fits", "why")),
        ),
    ),
}
NO_TESTS = ("tests/contract/test_lifecycle.py", "tests/unit/test_public_names.py")
HANGS = 15.0  # a test counts as hanging after this many seconds plus this multiple of its usual duration
MEMORY = 1_000_000_000  # bytes that a mutant may allocate beyond those of the process it was forked from
_SPECIFIC = 30  # tests that come first

_FORKS = get_context("fork")

# --- mutants ----------------------------------------------------------------------------------------------------------

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATIONS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}


@frozen
class Mutant:
    """One change: the `number`-th that the module allows."""

    file: str
    line: int
    number: int
    before: str
    after: str


def changes(node: ast.AST) -> Iterator[ast.AST]:  # noqa: C901 - a table
    """The possible replacements of `node`: each is a mistake that a programmer could make."""
    match node:
        case ast.Compare(ops=[first, *others]) if type(first) in _COMPARISONS:
            yield ast.Compare(node.left, [_COMPARISONS[type(first)](), *others], node.comparators)
        case ast.BoolOp():
            yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
        case ast.BinOp() if type(node.op) in _OPERATIONS and not isinstance(node.left, ast.Constant):
            yield ast.BinOp(node.left, _OPERATIONS[type(node.op)](), node.right)
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.IfExp() | ast.If() | ast.While():
            other = copy.copy(node)
            other.test = ast.UnaryOp(ast.Not(), node.test)
            yield other
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call()) | ast.Raise() | ast.AugAssign() | ast.Delete() | ast.Break() | ast.Continue():
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()
        case _:
            pass


class _Mutating(ast.NodeTransformer):
    """Makes the `number`-th change inside a function.

    `note` is called with each place and its possible replacements.
    """

    def __init__(self, number: int, note: Callable[[ast.AST, ast.AST], None] = lambda *_: None) -> None:
        self._number = number
        self._note = note
        self._count = 0
        self._is_inside = False

    def visit(self, node: ast.AST) -> ast.AST:
        """Replace a node or one inside it."""
        if self._is_inside:
            for other in changes(node):
                self._note(node, other)
                self._count += 1
                if self._count - 1 == self._number:
                    return ast.fix_missing_locations(ast.copy_location(other, node))
        if isinstance(node, ast.FunctionDef):
            was_inside, self._is_inside = self._is_inside, True
            node.body = [self.visit(statement) for statement in node.body]  # type: ignore[misc]  # a statement again
            self._is_inside = was_inside
            return node
        if isinstance(node, ast.AnnAssign):  # annotations are not run
            node.value = node.value and self.visit(node.value)  # type: ignore[assignment]  # an expression again
            return node
        return self.generic_visit(node)


def mutants_of(path: Path) -> list[Mutant]:
    """All mutants of a module."""
    found: list[Mutant] = []

    def note(before: ast.AST, after: ast.AST) -> None:
        line, file = getattr(before, "lineno", 0), str(path.relative_to(ROOT))
        found.append(Mutant(file, line, len(found), shown(before), shown(after)))

    _Mutating(-1, note).visit(ast.parse(path.read_text(encoding="utf-8")))
    return found


def shown(node: ast.AST) -> str:
    """The first line of the source of a node."""
    return ast.unparse(ast.fix_missing_locations(node)).partition("\n")[0][:120]


def functions(code: CodeType) -> Iterator[CodeType]:
    """The code of all functions inside `code`."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from functions(constant)


def mutate(mutant: Mutant) -> None:
    """Change the functions of this process. Raises ValueError if that is not possible."""
    path = ROOT / mutant.file
    tree = _Mutating(mutant.number).visit(ast.parse(path.read_text(encoding="utf-8")))
    compiled = compile(tree, str(path), "exec", dont_inherit=True)  # type: ignore[call-overload]  # a module again
    new = {(code.co_qualname, code.co_firstlineno): code for code in functions(compiled)}
    count = 0
    gc.unfreeze()  # conftest.py froze the objects that tests share, and `get_objects` omits frozen objects
    for function in [one for one in gc.get_objects() if isinstance(one, FunctionType)]:
        code = function.__code__
        other = new.get((code.co_qualname, code.co_firstlineno), code) if code.co_filename == str(path) else code
        if other != code:
            function.__code__ = other
            count += 1
    if not count:
        raise ValueError("no function has changed")


# --- tests ------------------------------------------------------------------------------------------------------------


@define
class Reached:
    """The tests that reach each line, by number in the collected order, and the duration of each test."""

    seconds: list[float]
    tests: dict[str, dict[str, list[int]]]  # by file and line

    @cached_property
    def breadth(self) -> Counter[int]:
        """The number of lines that each test reaches."""
        return Counter(test for tests in self.tests.values() for of_line in tests.values() for test in of_line)


class Runner:
    """A plugin of pytest that runs the mutants instead of the tests."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._room = ROOMS[options.room]
        build = ROOT / "build"
        self._results, self._kept = (
            build / f"mutants-{options.room}.json",
            build / f"mutants-{options.room}-reached.json",
        )
        self._until = time.monotonic() + options.seconds

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Find out which tests reach which lines, if that is unknown, and then run the mutants."""
        names = [item.nodeid for item in session.items]
        key = hashlib.sha256("\n".join(names).encode()).hexdigest()
        kept = json.loads(self._kept.read_text()) if self._kept.exists() else {}
        if kept.get("key") != key:
            print(f"looking which lines {len(names)} tests reach", flush=True)
            kept = {"key": key, **asdict(self._reached(session))}
            self._kept.parent.mkdir(exist_ok=True)
            self._kept.write_text(json.dumps(kept))
        self._run(session, Reached(kept["seconds"], kept["tests"]))
        return True

    def _reached(self, session: pytest.Session) -> Reached:
        """Run all tests once, in a fork, so that they leave nothing behind in this process."""
        results, send = _FORKS.Pipe(duplex=False)
        child = _FORKS.Process(target=_measure, args=(session, self._room, send))
        child.start()
        send.close()
        seconds, tests = results.recv()
        child.join()
        return Reached(seconds, tests)

    def _run(self, session: pytest.Session, reached: Reached) -> None:
        files = self._room.files
        everything = [mutant for path in files for mutant in mutants_of(path)]
        chosen = random.Random(self._options.seed).sample(everything, self._options.count)  # noqa: S311 - no secret
        print(
            f"seed {self._options.seed}: {len(chosen)} of {len(everything)} mutants of {len(files)} files", flush=True
        )
        results: dict[str, dict[str, Any]] = json.loads(self._results.read_text()) if self._results.exists() else {}
        for mutant in chosen:
            name = f"{mutant.file}:{mutant.line} #{mutant.number}"
            if (kept := results.get(name)) and kept["result"] != "unfinished":
                continue
            if time.monotonic() > self._until:
                print("the time is over; the next run goes on")
                break
            result = self._try(session, reached, mutant)
            results[name] = {"before": mutant.before, "after": mutant.after, "result": result}
            self._results.write_text(json.dumps(results, indent=1))
            if not result.startswith(("killed", "hangs")):
                print(f"{result}: {name}: {mutant.before} -> {mutant.after}", flush=True)
        names = {f"{mutant.file}:{mutant.line} #{mutant.number}" for mutant in chosen} & results.keys()
        counts = Counter(results[name]["result"].partition(" ")[0] for name in names)
        print(f"seed {self._options.seed}, {len(names)} mutants:", dict(sorted(counts.items())))

    def _try(self, session: pytest.Session, reached: Reached, mutant: Mutant) -> str:
        """Run the tests that reach a mutant until one fails. Return the mutant's result."""
        by_line = reached.tests.get(mutant.file, {})
        # Lines reached in a fork or a non-Python thread are not seen, so the whole file counts.
        near = by_line.get(str(mutant.line)) or {test for tests in by_line.values() for test in tests}
        tests = sorted(near, key=lambda test: (reached.breadth[test], reached.seconds[test]))
        # First the tests that reach little else, then those that reach most per second.
        tests[_SPECIFIC:] = sorted(tests[_SPECIFIC:], key=lambda test: reached.seconds[test] / reached.breadth[test])
        if not tests:
            return "unreached"
        results, send = _FORKS.Pipe(duplex=False)
        child = _FORKS.Process(target=_run_tests, args=(session, mutant, tests, send))
        child.start()
        send.close()
        until, running = time.monotonic() + self._options.patience, 0
        try:
            while True:
                allowed = HANGS + HANGS * reached.seconds[running]
                if not results.poll(allowed):
                    return f"hangs in {session.items[running].nodeid}"
                message = results.recv()
                if isinstance(message, str):
                    return message
                running = message
                if time.monotonic() > until:
                    return "unfinished"
        except EOFError:
            return f"killed by the end of the process in {session.items[running].nodeid}"
        finally:
            child.kill()
            child.join()


class _Failures:
    """Notes whether a test has failed."""

    failed = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = report.nodeid


def _prepare(session: pytest.Session) -> _Failures:
    """Make this fork ready to run tests."""
    plugins = session.config.pluginmanager
    for name in ("terminalreporter", "lfplugin", "nfplugin", "stepwiseplugin"):  # they belong to the first process
        plugins.unregister(name=name)
    capture = plugins.getplugin("capturemanager")
    assert capture is not None  # noqa: S101 - for mypy
    capture.stop_global_capturing()  # the capture file of the first process
    capture.start_global_capturing()
    failures = _Failures()
    plugins.register(failures)
    from hypothesis import Phase, settings  # noqa: PLC0415 - pytest wants to import it first

    phases = (Phase.explicit, Phase.generate)  # a failing example need not be shrunk
    settings.register_profile("mutants", settings.get_profile(settings.get_current_profile_name()), phases=phases)
    settings.load_profile("mutants")
    factory = session.config._tmp_path_factory  # type: ignore[attr-defined]  # noqa: SLF001 - as tests/workers.py does
    factory._basetemp = factory.getbasetemp() / f"fork{os.getpid()}"  # noqa: SLF001 - as above
    factory._basetemp.mkdir()  # noqa: SLF001 - as above
    return failures


def _run_tests(session: pytest.Session, mutant: Mutant, tests: Sequence[int], results: Connection) -> None:
    failures = _prepare(session)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (limit := pages * resource.getpagesize() + MEMORY, limit))
    try:
        mutate(mutant)
    except (ValueError, SyntaxError) as error:
        results.send(f"impossible: {error}")
        os._exit(0)
    # Name a test that follows the last one, so that shared fixtures are not torn down: they end with the fork.
    for test, following in zip(tests, [*tests[1:], 0], strict=True):
        results.send(test)
        item = session.items[test]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=session.items[following])
        if failures.failed:
            results.send(f"killed by {failures.failed}")
            os._exit(0)
    results.send("survived")
    os._exit(0)


def _measure(session: pytest.Session, room: Room, results: Connection) -> None:
    _prepare(session)
    measuring = coverage.Coverage(data_file=None, source=[str(ROOT / part) for part in room.parts], config_file=False)
    measuring.start()
    seconds: list[float] = []
    for number, (item, after) in enumerate(zip(session.items, [*session.items[1:], None], strict=True)):
        began = time.monotonic()
        measuring.switch_context(str(number))
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        seconds.append(round(time.monotonic() - began, 4))
    measuring.stop()
    data, tests = measuring.get_data(), {}
    for file in data.measured_files():
        lines = data.contexts_by_lineno(file)
        tests[str(Path(file).relative_to(ROOT))] = {
            str(line): sorted(int(one) for one in {*of_line} if one) for line, of_line in lines.items()
        }
    results.send((seconds, tests))
    os._exit(0)


def main() -> int:
    """Run mutants."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--room", choices=ROOMS, default="core", help="what is changed (core)")
    parser.add_argument("--count", type=int, default=300, help="mutants (300)")
    parser.add_argument("--seed", type=int, default=1, help="which mutants (1)")
    parser.add_argument("--seconds", type=float, default=3600.0, help="end after that time (3600)")
    parser.add_argument("--profile", default="test", help="of Hypothesis: quick, test or thorough (test)")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds of tests for each mutant (60)")
    options = parser.parse_args()
    arguments = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:cov",
        "--override-ini=faulthandler_timeout=0",  # `HANGS` already limits each test of a mutant
        f"--hypothesis-profile={options.profile}",
        *(f"--ignore={path}" for path in NO_TESTS),
        *ROOMS[options.room].tests,
    ]
    return int(pytest.main(arguments, plugins=[Runner(options)]))


if __name__ == "__main__":
    sys.exit(main())
