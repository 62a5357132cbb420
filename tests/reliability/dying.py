"""A program that admits pods in child processes, each of which is killed at a different system call.

`python -m tests.reliability.dying WAY DIRECTORY PODS` prints a line of JSON for each child: where the child was killed,
its directory, and the answers that it had given. WAY is `shim`, where `FaultyOs` kills the child, or `strace`, where
the kernel kills it on entry to a system call.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from devicecore.adapters.file import FileStore
from tests.reliability.faulty_os import KILLS, FaultyOs
from tests.reliability.pods import admit, in_memory, plugin

SYSTEM_CALLS = "write,fsync,?rename,?renameat,?renameat2,?unlink,?unlinkat,?open,openat,close"
Tell = Callable[[str], None]


def admit_pods(directory: Path, pods: int, tell: Tell) -> None:
    """Admit `pods` pods, and write each answer as a line with `tell`."""
    manager, transport = in_memory(directory)
    with manager:
        transport.connect(plugin())
        for number in range(pods):
            uid = f"pod-{number}"
            tell(json.dumps([uid, admit(manager, uid)]) + "\n")


def in_a_child(
    work: Callable[[Tell], None], attach: Callable[[int], "subprocess.Popen[str] | None"]
) -> tuple[int, str]:
    """Fork, call `attach` with the child's id, let the child do the work, and return its exit code and output."""
    told, tell = os.pipe()
    begin, go = os.pipe()
    write = os.write
    child = os.fork()
    if child == 0:
        os.close(go)
        os.read(begin, 1)  # waits until `attach` has returned in the parent
        status = 1
        with suppress(AssertionError):
            work(lambda text: void(write(tell, text.encode())))
            status = 0
        os._exit(status)
    os.close(tell)
    os.close(begin)
    tracer = attach(child)
    os.close(go)
    with os.fdopen(told) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if tracer is not None:
        tracer.communicate()
    return os.waitstatus_to_exitcode(status), text


def void(_: object) -> None:
    """Do nothing."""


def seed(directory: Path) -> None:
    """Create what an earlier run might leave behind: a checkpoint that others may read, and half of the next file."""
    directory.mkdir()
    manager, transport = in_memory(directory)
    with manager:
        transport.connect(plugin())
        admit(manager, "pod-old")
    store = FileStore.in_directory(directory)
    store.path.chmod(0o644)
    (directory / f".{store.path.name}.1-1.new").write_bytes(b'{"Data"')


def by_shim(root: Path, pods: int) -> Iterator[dict[str, object]]:
    """For each call to a function in `os`, yield a report on a child that is killed at the call.

    A first run counts the calls.
    """
    counted = root / "counted"
    seed(counted)
    with FaultyOs() as healthy:
        admit_pods(counted, pods, void)
    for fault in KILLS:
        for at, name in enumerate(healthy.calls, 1):
            if fault == "killed halfway" and name != "write":
                continue
            directory = root / f"{fault.replace(' ', '-')}-{at}"
            seed(directory)

            def work(tell: Tell, directory: Path = directory, at: int = at, fault: str = fault) -> None:
                with FaultyOs(at, fault):
                    admit_pods(directory, pods, tell)

            code, told = in_a_child(work, lambda _: None)
            yield report(f"{fault} {name}, call {at}", directory, code, told)


def by_strace(root: Path, pods: int) -> Iterator[dict[str, object]]:
    """For each system call, yield a report on a child that is killed on entry to the call.

    A first run counts the calls by name.
    """
    log, counted = root / "strace.log", root / "counted"
    seed(counted)
    code, told = in_a_child(lambda tell: admit_pods(counted, pods, tell), strace("-o", str(log)))
    yield report("not killed", counted, code, told)
    calls = Counter(re.findall(r"^(\w+)\(", log.read_text(), re.MULTILINE))
    for name, number in sorted(calls.items()):
        for at in range(1, number + 1):
            directory = root / f"{name}-{at}"
            seed(directory)

            def work(tell: Tell, directory: Path = directory) -> None:
                admit_pods(directory, pods, tell)

            inject = strace("-o", os.devnull, "-e", f"inject={name}:signal=KILL:when={at}")
            code, told = in_a_child(work, inject)
            yield report(f"killed on entry to {name} {at}", directory, code, told)


def strace(*arguments: str) -> Callable[[int], "subprocess.Popen[str]"]:
    """Return a function that attaches strace to a process."""

    def attach(child: int) -> "subprocess.Popen[str]":
        command = ["strace", "-p", str(child), "-e", f"trace={SYSTEM_CALLS}", *arguments]
        tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert tracer.stderr is not None
        line = tracer.stderr.readline()
        assert "attached" in line, line
        return tracer

    return attach


def report(point: str, directory: Path, code: int, told: str) -> dict[str, object]:
    """Return the content of one line of this program's output."""
    answered = dict(json.loads(line) for line in told.splitlines())
    return {"point": point, "directory": str(directory), "code": code, "answered": answered}


def main(way: str, root: str, pods: str) -> None:
    """Print a line for each child."""
    for line in {"shim": by_shim, "strace": by_strace}[way](Path(root), int(pods)):
        print(json.dumps(line), flush=True)  # noqa: T201 - what the test reads


if __name__ == "__main__":
    main(*sys.argv[1:])
