"""Compare devicecore with Kubernetes' own device manager: `make bench`, or `make bench BENCH="--quick admit hints"`.

Each row is measured at each size within one minute: Kubernetes, devicecore, then Kubernetes again, because the speed of
a shared machine varies. Rows that run in one process are measured in CPU time, except `bare_write`.
"""

import argparse
import json
import logging
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from contextlib import closing
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path

import rows
from attrs import frozen
from workload import Size, checkpoint

from devicecore.domain.checkpoint import encode
from tests.oracle.asking import Oracle
from tools.make_peers import PeersError, build, default_version, program

HERE = Path(__file__).parent
SIZES = (Size(10, 100), Size(100, 1_000), Size(1_000, 10_000), Size(5_000, 50_000))
BOTH = (
    "admit",
    "admit_after_a_pod_has_gone",
    "admit_with_hints",
    "hints",
    "encode_from_scratch",
    "decode_and_verify",
    "first_list_over_grpc",
    "list_over_grpc",
    "admit_over_grpc",
)
"""The rows for which `peers/oracle/bench.go` measures Kubernetes."""
GRPC = (*BOTH[-3:], "bare_call_over_grpc", "call_over_grpc")
"""The rows that need the plugin that `oracle plugin` runs."""
SIZED = (*BOTH, "bare_call_over_grpc", "call_over_grpc", "bare_write")
UNSIZED = ("settle_36_nodes", "python_alone", "import_devicecore", "command_line_help")
ROWS = (*SIZED, *UNSIZED, "memory")
PACKAGES = ("devicecore", "attrs", "grpcio", "protobuf", "orjson", "fnv-hash-fast")
MEMORY = """
import signal, sys
signal.signal(signal.SIGTERM, signal.default_int_handler)
sys.path.insert(0, sys.argv[1])
try:
    from workload import Size, running
    with running(Size(5000, 50000)) as bench:
        bench.admit(bench.newcomer())
        bench.manager.update_allocated_devices()
        print(next(line for line in open("/proc/self/status") if line.startswith("VmRSS")).split()[1])
except KeyboardInterrupt:  # Ctrl-C also reaches the program that reads this output
    pass
"""


@frozen
class Figure:
    """The result of one row at one size, in milliseconds.

    `median`, `least` and `samples` are the median, the minimum and the number of our samples. `theirs` is the median of
    Kubernetes' samples, or None if Kubernetes is not measured.
    """

    row: str
    size: Size | None
    median: float
    least: float
    samples: int
    theirs: float | None

    @property
    def ratio(self) -> float | None:
        """The factor by which devicecore is faster than Kubernetes, or None if Kubernetes is not measured."""
        return None if self.theirs is None else self.theirs / self.median

    def line(self) -> str:
        name = f"{self.row:28}{self.size or ''!s:>16}"
        own = f"{self.median:10.3f} ms (minimum {self.least:.3f}, {self.samples} samples)"
        theirs = "" if self.theirs is None else f"  Kubernetes {self.theirs:9.3f} ms  {self.ratio:8.2f} x"
        return name + own + theirs

    def record(self) -> dict[str, object]:
        return {
            "row": self.row,
            "size": None if self.size is None else [self.size.pods, self.size.devices],
            "median_ms": self.median,
            "least_ms": self.least,
            "samples": self.samples,
            "kubernetes_ms": self.theirs,
            "times_faster": self.ratio,
        }


def measure(row: str, size: Size | None, seconds: float, oracle: Oracle | None) -> Figure:
    """Take samples for about `seconds`, but at least 5 and at most 2,000.

    Kubernetes is measured for half of this time before our samples are taken, and for the other half afterwards.
    """
    theirs = _of_kubernetes(row, size, seconds / 2, oracle)
    taken = list[float]()
    with closing(getattr(rows, row)(size)) as times:
        list(islice(times, 3))  # a warm-up
        end = time.monotonic() + seconds
        while len(taken) < 5 or (time.monotonic() < end and len(taken) < 2000):
            taken.append(next(times))
    theirs += _of_kubernetes(row, size, seconds / 2, oracle)
    return Figure(
        row,
        size,
        1e3 * statistics.median(taken),
        1e3 * min(taken),
        len(taken),
        statistics.median(theirs) if theirs else None,
    )


def _of_kubernetes(row: str, size: Size | None, seconds: float, oracle: Oracle | None) -> list[float]:
    """Return Kubernetes' milliseconds for a row, or an empty list if Kubernetes is not measured for this row."""
    if size is None or oracle is None or row not in BOTH:
        return []
    held = encode(checkpoint(size)).decode()
    asked = {"row": row, "pods": size.pods, "devices": size.devices, "seconds": seconds, "checkpoint": held}
    return [nanoseconds / 1e6 for nanoseconds in oracle.ask("bench", asked)["ns"]]


def memory() -> float:
    """Return the memory in MB of a fresh process whose manager has 5,000 pods and 50,000 devices."""
    command = [sys.executable, "-c", MEMORY, str(HERE)]
    # do not kill the process, so that it cleans up
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        return int(child.stdout.read()) / 1024


def machine() -> dict[str, object]:
    """Return a description of the machine and the versions measured."""
    models = [line for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if "model name" in line]
    found: dict[str, str | None] = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return {
        "cpu": models[0].partition(": ")[2] if models else platform.processor(),
        "cores": len(models),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": found,
    }


def main() -> None:
    """Run the requested measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", help=f"measure only these rows: {', '.join(ROWS)}")
    parser.add_argument("--quick", action="store_true", help="measure only the three smallest sizes, with few samples")
    parser.add_argument(
        "--json", type=Path, nargs="?", const=HERE / "results.json", help="write the results to this file"
    )
    options = parser.parse_args()
    if unknown := [row for row in options.rows if row not in ROWS]:
        parser.error(f"there is no row {unknown[0]!r}; the rows are {', '.join(ROWS)}")
    if options.json and not (options.json.suffix == ".json" and options.json.parent.is_dir()):
        parser.error(
            f"{str(options.json)!r} is not a .json file in an existing directory (rows must come before --json)"
        )
    os.environ["GRPC_VERBOSITY"] = "ERROR"
    oracle, needs_go = None, set[str]()
    try:
        build(default_version(), ["oracle"])
        oracle = Oracle(program("oracle"), processors=None)
    except PeersError as error:
        print(f"measuring only devicecore, and nothing over gRPC: {error}", file=sys.stderr)
        needs_go = set(GRPC)
    logging.getLogger("devicecore").setLevel(logging.ERROR)  # do not log that a plugin disconnects when its row ends
    wanted = [row for row in options.rows or ROWS if row not in needs_go]
    seconds, sizes = (0.3, SIZES[:-1]) if options.quick else (3.0, SIZES)
    figures = []
    todo: list[tuple[str, Size | None]] = [(row, size) for row in SIZED for size in sizes if row in wanted]
    todo += [(row, None) for row in UNSIZED if row in wanted]
    for done, (row, size) in enumerate(todo):
        print(f"[{done + 1}/{len(todo)}] {row} {size or ''}", file=sys.stderr, flush=True)
        figure = measure(row, size, seconds, oracle)
        figures.append(figure)
        print(figure.line(), flush=True)
    resident = memory() if "memory" in wanted else None
    if resident is not None:
        print(f"{'memory, 5,000 / 50,000':44}{resident:10.1f} MB")
    if options.json:
        results = {
            **machine(),
            "kubernetes": oracle and oracle.version,
            "memory_mb": resident,
            "figures": [it.record() for it in figures],
        }
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # after an interrupt, leave no files on the tmpfs
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("interrupted")
