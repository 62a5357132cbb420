"""Measure devicecore next to the kubelet: `make bench`, or `python benchmarks/run.py --help`."""

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
from workload import Size

HERE = Path(__file__).parent
KUBELET = json.loads((HERE / "kubelet.json").read_text(encoding="utf-8"))
SIZES = tuple(Size(*size) for size in KUBELET["sizes"])
SIZED = (
    "admit",
    "admit_after_a_pod_has_gone",
    "admit_with_hints",
    "hints",
    "encode_from_scratch",
    "decode_and_verify",
    "list_over_grpc",
    "admit_over_grpc",
    "bare_call_over_grpc",
    "call_over_grpc",
    "bare_write",
)
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
except KeyboardInterrupt:  # it is told to those who read us, too
    pass
"""


@frozen
class Figure:
    """What came out of one row at one size, in milliseconds, with the least unit measured meanwhile.

    The least, for a unit is long: interrupted, it would flatter what is too short to be interrupted. `cpu` is the
    median of the time that a processor worked for it, which others on the machine disturb less; None where work is
    done in other processes too.
    """

    row: str
    size: Size | None
    median: float
    cpu: float | None
    least: float
    samples: int
    unit: float
    kubelet: float | None

    @property
    def units(self) -> float:
        """What it takes as a multiple of the unit."""
        return self.takes / self.unit

    @property
    def takes(self) -> float:
        """The processor time, or what there is."""
        return self.median if self.cpu is None else self.cpu

    @property
    def ratio(self) -> float | None:
        """How many times faster than the kubelet, each in units of its own machine."""
        return self.kubelet and self.kubelet / float(KUBELET["unit_ms"]) / self.units

    def line(self) -> str:
        name = f"{self.row:28}{self.size or ''!s:>16}"
        cpu = "" if self.cpu is None else f"cpu {self.cpu:.3f}"
        own = f"{self.median:10.3f} ms  (least {self.least:.3f}) {cpu:>13} {self.units:9.4f} units"
        theirs = f"  kubelet {self.kubelet:8.3f} ms  {self.ratio:7.2f} x" if self.kubelet else ""
        return name + own + theirs

    def record(self) -> dict[str, object]:
        size = [self.size.pods, self.size.devices] if self.size is not None else None
        return {
            "row": self.row,
            "size": size,
            "median_ms": self.median,
            "cpu_median_ms": self.cpu,
            "least_ms": self.least,
            "samples": self.samples,
            "unit_ms": self.unit,
            "units": self.units,
            "kubelet_ms": self.kubelet,
            "times_faster": self.ratio,
        }


def unit() -> float:
    """Milliseconds to hash 10 MiB; not a number without fnv-hash-fast."""
    try:
        from fnv_hash_fast import fnv1a_32  # noqa: PLC0415 - without it there is no unit, but there are times
    except ImportError:
        return float("nan")
    blob = bytes(10 << 18)
    return 4e3 * rows.timed(lambda: fnv1a_32(blob)).wall


def measure(row: str, size: Size | None, seconds: float) -> Figure:
    """Take samples for about so long, five at least."""
    samples: list[rows.Duration] = []
    with closing(getattr(rows, row)(size)) as times:
        list(islice(times, 3))  # to warm up
        units = [unit() for _ in range(5)]
        measured_at = 0.0
        end = time.monotonic() + seconds
        while len(samples) < 5 or (time.monotonic() < end and len(samples) < 2000):
            if time.monotonic() - measured_at > 0.05:  # others use this machine too, now more and now less
                units.append(unit())
                measured_at = time.monotonic()
            samples.append(next(times))
    cpu = [it.cpu for it in samples if it.cpu is not None]
    kubelet = KUBELET["ms"].get(row)
    return Figure(
        row,
        size,
        1e3 * statistics.median([it.wall for it in samples]),
        1e3 * statistics.median(cpu) if cpu else None,
        1e3 * min(it.wall for it in samples),
        len(samples),
        min(units),
        kubelet[SIZES.index(size)] if kubelet and size is not None else None,
    )


def memory() -> float:
    """MB of a fresh process that runs 5,000 pods and 50,000 devices."""
    command = [sys.executable, "-c", MEMORY, str(HERE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:  # not killed: it cleans up
        assert child.stdout
        return int(child.stdout.read()) / 1024


def machine() -> dict[str, object]:
    """Where this is."""
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
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", help=f"only these: {', '.join(ROWS)}")
    parser.add_argument("--quick", action="store_true", help="the three smaller sizes, few samples")
    parser.add_argument("--json", type=Path, nargs="?", const=HERE / "results.json", help="write the results there")
    options = parser.parse_args()
    if unknown := [row for row in options.rows if row not in ROWS]:
        parser.error(f"there is no row {unknown[0]!r}; there are {', '.join(ROWS)}")
    if options.json and not (options.json.suffix == ".json" and options.json.parent.is_dir()):
        parser.error(f"{str(options.json)!r} is no .json file in a directory; rows come before --json")
    os.environ["GRPC_VERBOSITY"] = "ERROR"
    logging.getLogger("devicecore").setLevel(logging.ERROR)  # that a plugin goes when its row is done is no news
    wanted = options.rows or ROWS
    seconds, sizes = (0.3, SIZES[:-1]) if options.quick else (3.0, SIZES)
    figures = []
    todo: list[tuple[str, Size | None]] = [(row, size) for row in SIZED for size in sizes if row in wanted]
    todo += [(row, None) for row in UNSIZED if row in wanted]
    for done, (row, size) in enumerate(todo):
        print(f"[{done + 1}/{len(todo)}] {row} {size or ''}", file=sys.stderr, flush=True)
        figure = measure(row, size, seconds)
        figures.append(figure)
        print(figure.line(), flush=True)
    resident = memory() if "memory" in wanted else None
    if resident is not None:
        print(f"{'memory, 5,000 / 50,000':44}{resident:10.1f} MB")
    if options.json:
        results = {**machine(), "memory_mb": resident, "kubelet": KUBELET, "figures": [it.record() for it in figures]}
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what is on the tmpfs must not stay there
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("interrupted")
