"""Change code at random places, and report the changes that no test detects.

`make mutants` runs this program. A mutant is one change inside a function: a different comparison, condition, operation
or number, or a statement that is left out. Forks of the process that collected the tests, one for each CPU, run the
tests that reach the changed line, the most specific tests first, until a test fails.

A room is a part of the code and the tests for it. Only the room's own tests run for a mutant: they should suffice,
because people who change code in a room run that room's tests first.

A mutant that outlives `--patience` seconds of passing tests has the result `unfinished`. Run the program again with a
larger value.

`build/mutants-ROOM.json` keeps the results, and `build/mutants-ROOM-reached.json` keeps the lines that the tests reach,
so the next run continues where the last one stopped. A result is valid until the mutant's function changes; if the
mutant survived, the result is valid only until the room's code or one of its test files changes. After a change, the
same seed still chooses the same mutants in the functions that have not changed.
"""

import argparse
import ast
import copy
import gc
import hashlib
import json
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import coverage
import pytest
from attrs import asdict, define, field, frozen

ROOT = Path(__file__).parent.parent
_LIBRARY = "src/devicecore"
_TOOLS, _FLEET = "packages/tools/src/devicecore_tools", "packages/fleet/src/devicecore_fleet"
_OF_TOOLS = "packages/tools/tests"


@frozen
class Room:
    """A part of the code, and the tests for it.

    Attributes:
        parts: folders with the code, relative to the top of the repository.
        tests: files and folders of tests.
        left_out: the name of a folder below `parts` that does not belong to the room.
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
            # these test domain/documents.py
            *("tests/adapters/test_manifests.py", "tests/adapters/test_manifest_claims.py"),
        ),
        left_out="allocation",
    ),
    "allocation": Room(
        (f"{_LIBRARY}/domain/allocation",),
        (
            *("tests/allocation", f"{_OF_TOOLS}/judge", "tests/adapters/test_manifest_claims.py"),
            *(f"tests/unit/test_allocation_{name}.py" for name in ("reading", "reasons")),
        ),
    ),
    "doctor": Room(
        (f"{_TOOLS}/doctor",),
        (
            f"{_OF_TOOLS}/doctor",
            f"{_OF_TOOLS}/property",
            *(f"{_OF_TOOLS}/command/test_{name}.py" for name in ("claims", "doctor", "fits", "nodes", "why")),
            *(f"{_OF_TOOLS}/command/test_{name}_managers.py" for name in ("doctor", "fits", "why")),
            *(f"{_OF_TOOLS}/command/test_{name}_pods.py" for name in ("new", "waiting")),
            *(f"{_OF_TOOLS}/command/test_{name}.py" for name in ("claim_situations", "pod_situations", "preemption")),
            *(f"{_OF_TOOLS}/command/test_{name}.py" for name in ("fits_on_records", "checkpoint_repair")),
        ),
    ),
    "conformance": Room(
        (f"{_TOOLS}/conformance",),
        (
            f"{_OF_TOOLS}/conformance",
            *(f"{_OF_TOOLS}/kit/test_{name}.py" for name in ("card", "denominator", "junit", "subjects")),
            *(
                f"{_OF_TOOLS}/kit/test_conformance{name}.py"
                for name in ("", "_attacks", "_health", "_page", "_restarts")
            ),
        ),
        left_out="faults",  # faulty plugins and drivers, which the tests run in separate processes
    ),
    "testing": Room(
        (f"{_TOOLS}/testing",),
        (
            f"{_OF_TOOLS}/judge",
            *(
                str(path.relative_to(ROOT))
                for path in sorted((ROOT / _OF_TOOLS / "kit").glob("test_*.py"))
                if not path.name.startswith("test_conformance")  # tests that reach `testing` only in other processes
            ),
        ),
    ),
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
# A test counts as hanging if it takes longer than HANGS seconds plus HANGS times its usual duration, without waits for
# a CPU.
HANGS = 15.0
MEMORY = 1_000_000_000  # bytes that a mutant may allocate beyond those of the process it was forked from
_SPECIFIC = 30  # number of tests that run first because they reach the fewest lines
# time limit, in seconds, for the one run of a file's tests that finds out which lines they reach; tests that have not
# run by then are not run for any mutant
_PER_FILE = 180.0

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
    """One change to a module: the `number`-th of all changes that `changes` yields for the module.

    Attributes:
        key: identifies the mutant until its function changes.
    """

    file: str
    line: int
    number: int
    before: str
    after: str
    key: str


def changes(node: ast.AST) -> Iterator[ast.AST]:  # noqa: C901 - a table
    """Yield possible replacements of `node`, such as a programmer could have written by mistake."""
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
    """Makes the `number`-th of a module's possible changes.

    `note` is called for each possible replacement, with the node, the replacement, and the source of the outermost
    function around the node.
    """

    def __init__(self, number: int, note: Callable[[ast.AST, ast.AST, str], None] = lambda *_: None) -> None:
        self._number = number
        self._note = note
        self._count = 0
        self._function = ""  # the source of the outermost function

    def visit(self, node: ast.AST) -> ast.AST:
        """Replace this node, or a node inside it, if the change is at that node."""
        if self._function:
            for other in changes(node):
                self._note(node, other, self._function)
                self._count += 1
                if self._count - 1 == self._number:
                    return ast.fix_missing_locations(ast.copy_location(other, node))
        if isinstance(node, ast.FunctionDef):
            outer, self._function = self._function, self._function or ast.unparse(node)
            node.body = [self.visit(statement) for statement in node.body]  # type: ignore[misc]  # a statement again
            self._function = outer
            return node
        if isinstance(node, ast.AnnAssign):  # annotations are not executed
            node.value = node.value and self.visit(node.value)  # type: ignore[assignment]  # an expression again
            return node
        return self.generic_visit(node)


def mutants_of(path: Path) -> list[Mutant]:
    """Return all mutants of a module. Rewording a docstring does not change any mutant's key."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node):
            node.body[0] = ast.Pass()
    found: list[Mutant] = []
    seen: Counter[str] = Counter()

    def note(before: ast.AST, after: ast.AST, function: str) -> None:
        line, file = getattr(before, "lineno", 0), str(path.relative_to(ROOT))
        seen[function] += 1
        key = _digest(file, function, str(seen[function]))
        found.append(Mutant(file, line, len(found), shown(before), shown(after), key))

    _Mutating(-1, note).visit(tree)
    return found


def shown(node: ast.AST) -> str:
    """Return the first line of a node's source, at most 120 characters."""
    return ast.unparse(ast.fix_missing_locations(node)).partition("\n")[0][:120]


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def functions(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of all functions inside `code`."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from functions(constant)


def live_functions(files: Sequence[Path]) -> dict[str, list[FunctionType]]:
    """Import these modules, and return all functions of this process by file.

    The forks inherit the result and need not search: a fork that visits all objects would copy this process's memory.
    """
    for path in files:
        if path.name != "__main__.py":
            parts = path.relative_to(ROOT).with_suffix("").parts
            import_module(".".join(parts[parts.index("src") + 1 :]).removesuffix(".__init__"))
    found: dict[str, list[FunctionType]] = {}
    gc.unfreeze()  # conftest.py froze the objects that tests share, and `get_objects` omits frozen objects
    for function in gc.get_objects():
        if isinstance(function, FunctionType):
            found.setdefault(function.__code__.co_filename, []).append(function)
    gc.freeze()
    return found


def mutate(mutant: Mutant, live: Mapping[str, Sequence[FunctionType]]) -> None:
    """Apply a mutant to the functions of this process. Raises ValueError if no function has the mutant's code."""
    path = ROOT / mutant.file
    tree = _Mutating(mutant.number).visit(ast.parse(path.read_text(encoding="utf-8")))
    compiled = compile(tree, str(path), "exec", dont_inherit=True)  # type: ignore[call-overload]  # a module again
    new = {(code.co_qualname, code.co_firstlineno): code for code in functions(compiled)}
    count = 0
    for function in live.get(str(path), ()):
        code = function.__code__
        other = new.get((code.co_qualname, code.co_firstlineno), code)
        if other != code:
            function.__code__ = other
            count += 1
    if not count:
        raise ValueError("no function has changed")


# --- tests ------------------------------------------------------------------------------------------------------------


@define
class Reached:
    """The tests that reach each line, and the duration of each test.

    Tests are numbered in the order in which they were collected.
    """

    seconds: dict[int, float]
    tests: dict[str, dict[int, list[int]]]  # by file and line
    key: str  # changes whenever the tests change

    @cached_property
    def breadth(self) -> Counter[int]:
        """How many lines each test reaches."""
        return Counter(test for tests in self.tests.values() for of_line in tests.values() for test in of_line)

    def in_order(self, mutant: Mutant) -> list[int]:
        """Return the tests that reach a mutant, in the order in which to run them."""
        by_line = self.tests.get(mutant.file, {})
        # Coverage does not see lines that are reached in a fork or a non-Python thread. If no test is known to reach
        # the line, run all tests that reach the file.
        near = by_line.get(mutant.line) or {test for tests in by_line.values() for test in tests}
        tests = sorted(near, key=lambda test: (self.breadth[test], self.seconds[test]))
        # The tests that reach little else run first, and then those that reach the most lines per second.
        tests[_SPECIFIC:] = sorted(tests[_SPECIFIC:], key=lambda test: self.seconds[test] / self.breadth[test])
        return tests


@define
class _Trial:
    """A mutant whose tests run in a fork."""

    mutant: Mutant
    fork: Any  # multiprocessing has no public type for it
    results: Connection
    until: float
    allowed: float = HANGS
    running: int = -1
    began: float = field(factory=time.monotonic)
    delays: dict[str, float] = field(factory=dict)  # how long each thread had waited for a CPU when the test began


class Runner:
    """A pytest plugin that runs the mutants instead of the tests."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._room = ROOMS[options.room]
        (build := ROOT / "build").mkdir(exist_ok=True)
        self._results = build / f"mutants-{options.room}.json"
        self._kept = build / f"mutants-{options.room}-reached.json"
        self._until = time.monotonic() + options.seconds

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Find out which tests reach which lines, unless that is known already, and then run the mutants."""
        reached = self._reached(session)
        if reached is None:
            print("out of time; the next run continues from here")
        else:
            self._run(session, reached)
        return True

    def _reached(self, session: pytest.Session) -> Reached | None:
        """Run the tests of each file once, in a fork, unless they have been run since the last change."""
        by_file: dict[Path, list[int]] = {}
        for number, item in enumerate(session.items):
            by_file.setdefault(item.path, []).append(number)
        room = _digest(*(path.read_text(encoding="utf-8") for path in self._room.files))
        keys = {
            path: _digest(room, path.read_text(encoding="utf-8"), *(session.items[number].nodeid for number in numbers))
            for path, numbers in by_file.items()
        }
        kept = json.loads(self._kept.read_text()) if self._kept.exists() else {}
        kept = {key: kept[key] for key in keys.values() if key in kept}
        missing = [path for path, key in keys.items() if key not in kept]
        print(f"finding the lines that the tests of {len(missing)} of {len(keys)} files reach", flush=True)
        running: dict[Connection, Any] = {}
        while running or missing:
            if time.monotonic() > self._until and not running:
                return None
            while missing and len(running) < self._options.workers and time.monotonic() < self._until:
                path = missing.pop()
                results, send = _FORKS.Pipe(duplex=False)
                running[results] = _FORKS.Process(
                    target=_measure, args=(session, self._room, by_file[path], keys[path], send)
                )
                running[results].start()
                send.close()
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)  # noqa: S101 - for mypy
                kept.update([ready.recv()])
                running.pop(ready).join()
                self._kept.write_text(json.dumps(kept))
        reached = Reached({}, {}, _digest(*keys.values()))
        for path, numbers in by_file.items():
            seconds, lines = kept[keys[path]]
            reached.seconds.update(zip(numbers, seconds, strict=False))  # the tests of the file that were run in time
            for file, by_line in lines.items():
                of_file = reached.tests.setdefault(file, {})
                for line, tests in by_line.items():
                    of_file.setdefault(int(line), []).extend(numbers[test] for test in tests)
        return reached

    def _run(self, session: pytest.Session, reached: Reached) -> None:
        files = self._room.files
        everything = [mutant for path in files for mutant in mutants_of(path)]
        seed = str(self._options.seed)
        chosen = sorted(everything, key=lambda mutant: _digest(seed, mutant.key))[: self._options.count]
        print(f"seed {seed}: {len(chosen)} of {len(everything)} mutants of {len(files)} files", flush=True)
        results: dict[str, dict[str, Any]] = json.loads(self._results.read_text()) if self._results.exists() else {}

        def is_known(mutant: Mutant) -> bool:
            result = results.get(mutant.key, {})
            return result.get("result", "").startswith(("killed", "hangs", "impossible")) or (
                result.get("tests") == reached.key and result["result"] != "unfinished"
            )

        waiting = [mutant for mutant in reversed(chosen) if not is_known(mutant)]
        live = live_functions(files)
        running: list[_Trial] = []
        while running or waiting:
            if waiting and time.monotonic() > self._until:
                print("out of time; the next run continues from here")
                waiting.clear()
            while waiting and len(running) < self._options.workers:
                mutant = waiting.pop()
                running.append(self._start(session, reached, live, mutant))
            wait([trial.results for trial in running], timeout=1.0)
            for trial in list(running):
                if not (result := self._result(session, reached, trial)):
                    continue
                trial.fork.kill()
                trial.fork.join()
                running.remove(trial)
                results[trial.mutant.key] = {**asdict(trial.mutant), "result": result, "tests": reached.key}
                self._results.write_text(json.dumps(results, indent=1))
        found = {mutant: results[mutant.key]["result"] for mutant in chosen if mutant.key in results}
        for mutant, result in sorted(found.items(), key=lambda one: (one[0].file, one[0].line)):
            if not result.startswith(("killed", "hangs", "impossible")):
                print(f"{result}: {mutant.file}:{mutant.line} #{mutant.number}: {mutant.before} -> {mutant.after}")
        counts = Counter(result.partition(" ")[0] for result in found.values())
        print(f"seed {seed}, {len(found)} mutants:", dict(sorted(counts.items())))

    def _start(
        self, session: pytest.Session, reached: Reached, live: Mapping[str, Sequence[FunctionType]], mutant: Mutant
    ) -> _Trial:
        results, send = _FORKS.Pipe(duplex=False)
        fork = _FORKS.Process(target=_run_tests, args=(session, mutant, live, reached.in_order(mutant), send))
        fork.start()
        send.close()
        return _Trial(mutant, fork, results, time.monotonic() + self._options.patience)

    def _result(self, session: pytest.Session, reached: Reached, trial: _Trial) -> str:
        """Return the result of a mutant, or "" if its tests are still running."""
        name = session.items[trial.running].nodeid
        try:
            while trial.results.poll():
                message = trial.results.recv()
                if isinstance(message, str):
                    return message
                trial.running, trial.began = message, time.monotonic()
                trial.allowed = HANGS + HANGS * reached.seconds[message]
                trial.delays = _delays(trial.fork.pid)
        except EOFError:
            if trial.running < 0:  # the process exited before its first test, so no test has noticed the mutant
                return "unfinished"
            return f"killed: the process exited in {name}"
        if trial.running >= 0 and time.monotonic() > trial.began + trial.allowed:
            now = _delays(trial.fork.pid)
            delay = max((seconds - trial.delays.get(thread, 0.0) for thread, seconds in now.items()), default=0.0)
            if time.monotonic() > trial.began + trial.allowed + delay:
                return f"hangs in {name}"
        return "unfinished" if time.monotonic() > trial.until else ""


def _delays(process: int | str) -> dict[str, float]:
    """Return how long each thread of a process and its children has waited for a CPU, in seconds.

    A test that takes long only because it waits for a CPU does not count as hanging.
    """
    delays: dict[str, float] = {}
    for thread in Path(f"/proc/{process}/task").glob("*"):
        try:
            delays[thread.name] = int((thread / "schedstat").read_text(encoding="ascii").split()[1]) / 1e9
            children = (thread / "children").read_text(encoding="ascii").split()
        except OSError:  # the thread has ended
            continue
        for child in children:
            delays.update(_delays(child))
    return delays


class _Failures:
    """Notes whether a test has failed."""

    failed = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = report.nodeid


def _prepare(session: pytest.Session) -> _Failures:
    """Make this fork ready to run tests."""
    plugins = session.config.pluginmanager
    for name in ("terminalreporter", "lfplugin", "nfplugin", "stepwiseplugin"):  # only the first process reports
        plugins.unregister(name=name)
    capture = plugins.getplugin("capturemanager")
    assert capture is not None  # noqa: S101 - for mypy
    capture.stop_global_capturing()  # the plugin writes to the first process's capture file
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


def _run_tests(
    session: pytest.Session,
    mutant: Mutant,
    live: Mapping[str, Sequence[FunctionType]],
    tests: Sequence[int],
    results: Connection,
) -> None:
    failures = _prepare(session)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (limit := pages * resource.getpagesize() + MEMORY, limit))
    if not tests:
        results.send("unreached")
        os._exit(0)
    try:
        mutate(mutant, live)
    except (ValueError, SyntaxError) as error:
        results.send(f"impossible: {error}")
        os._exit(0)
    # Give the last test a successor, so that pytest does not tear down shared fixtures: they end with the fork anyway.
    for test, following in zip(tests, [*tests[1:], 0], strict=True):
        results.send(test)
        item = session.items[test]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=session.items[following])
        if failures.failed:
            results.send(f"killed by {failures.failed}")
            os._exit(0)
    results.send("survived")
    os._exit(0)


def _measure(session: pytest.Session, room: Room, numbers: Sequence[int], key: str, results: Connection) -> None:
    """Run the tests of a file. Send each test's duration, and the tests that reach each line of the room."""
    _prepare(session)
    measuring = coverage.Coverage(data_file=None, source=[str(ROOT / part) for part in room.parts], config_file=False)
    # the tests of some files reach no code of the room
    measuring.set_option("run:disable_warnings", ["no-data-collected"])
    measuring.start()
    seconds: list[float] = []
    items = [session.items[number] for number in numbers]
    for number, (item, after) in enumerate(zip(items, [*items[1:], None], strict=True)):
        if sum(seconds) > _PER_FILE:
            break
        began = time.monotonic()
        measuring.switch_context(str(number))
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        seconds.append(round(time.monotonic() - began, 4))
    measuring.stop()
    data, tests = measuring.get_data(), {}
    for file in data.measured_files():
        lines = data.contexts_by_lineno(file)
        tests[str(Path(file).relative_to(ROOT))] = {
            line: sorted(int(one) for one in {*of_line} if one) for line, of_line in lines.items()
        }
    results.send((key, (seconds, tests)))
    os._exit(0)


def main() -> int:
    """Run mutants."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--room", choices=ROOMS, default="core", help="the room to change (default: core)")
    parser.add_argument("--count", type=int, default=300, help="number of mutants (default: 300)")
    parser.add_argument("--seed", type=int, default=1, help="determines which mutants are chosen (default: 1)")
    parser.add_argument("--seconds", type=float, default=3600.0, help="stop after this many seconds (default: 3600)")
    parser.add_argument("--profile", default="test", help="Hypothesis profile: quick, test or thorough (default: test)")
    workers = len(os.sched_getaffinity(0))
    parser.add_argument(
        "--workers", type=int, default=workers, help=f"forks to run at the same time (default: {workers})"
    )
    parser.add_argument("--patience", type=float, default=60.0, help="seconds of tests for each mutant (default: 60)")
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
