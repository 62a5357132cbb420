"""Run Kubernetes' own tests of the CPU and memory managers, and record the tested functions' arguments and results.

`peers/_tables/` becomes part of Kubernetes' packages for the two managers, and records the calls to the functions that
choose CPUs and memory. `packages/numa/tests/test_tables_of_kubernetes.py` calls our functions with the same arguments.
Like `make oracle`, this program needs Go:

    python3 -m tools.record_numa_tables
"""

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tools import make_peers

PACKAGES = ("cpumanager", "memorymanager")
TARGET = make_peers.ROOT / "packages" / "numa" / "tests" / "data" / "tables_of_kubernetes.json.gz"
_CM = "pkg/kubelet/cm"
_CASES = re.compile(r"(for _, (tc|testCase) := range [^\n]*\{\n)")


def options_of_tests(version: str, where: Path) -> list[str]:
    """Return the go options for running Kubernetes' tests with tables that report their current case."""
    sources = make_peers.sources_of(version)
    make_peers.use_go_of(sources)
    modules = make_peers.module_file(version, sources)
    options = make_peers.overlay(version, sources, modules, make_peers.PEERS / "_tables")
    listed = next(one.partition("=")[2] for one in options if one.startswith("-overlay="))
    files = json.loads(Path(listed).read_text("utf-8"))["Replace"]
    for package in PACKAGES:
        for file in sorted((sources / _CM / package).glob("*_test.go")):
            path = where / f"{package}_{file.name}"
            path.write_text(_CASES.sub(r"\1caseIs(t, \2)\n", file.read_text("utf-8")), encoding="utf-8")
            files[str(make_peers.cache_of(version) / "kubernetes" / _CM / package / file.name)] = str(path)
    overlay = where / "overlay.json"
    overlay.write_text(json.dumps({"Replace": files}), encoding="utf-8")
    return [*(one for one in options if not one.startswith("-overlay=")), f"-overlay={overlay}"]


def recorded(version: str, where: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run the tests. Yield each record with the name of its package. Raises PeersError if a test fails."""
    options = options_of_tests(version, where)
    for package in PACKAGES:
        program, records = where / f"{package}.test", where / f"{package}.jsonl"
        name = f"{make_peers.KUBERNETES}/{_CM}/{package}"
        make_peers.go("test", *options, "-c", "-vet=off", "-p", "1", "-o", str(program), name)
        ended = subprocess.run(
            [program, "-test.v"],
            cwd=make_peers.sources_of(version) / _CM / package,
            env={**os.environ, "RECORD_TO": str(records)},
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode:
            raise make_peers.PeersError(f"{package}: {ended.stdout[-3000:]}{ended.stderr[-3000:]}")
        for test in re.findall(r"^=== RUN   (Test\w+)$", ended.stdout, re.MULTILINE):
            yield package, {"kind": "test", "test": test}
        for line in records.read_text("utf-8").splitlines():
            yield package, json.loads(line)


def table_of(records: Iterator[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Return all tests with their table cases, and each distinct call once, with the tests that make this call."""
    tests: dict[str, list[str]] = {}
    calls: dict[str, dict[str, Any]] = {}
    for package, record in records:
        test = f"{package}.{record['test']}"
        cases = tests.setdefault(test, [])
        if record["kind"] == "test":
            continue
        if record["kind"] == "case":
            if record["case"] not in cases:
                cases.append(record["case"])
            continue
        what = {key: record[key] for key in ("kind", "question", "answer")}
        call = calls.setdefault(json.dumps(what, sort_keys=True), {**what, "asked": []})
        if (asked := [test, record["case"]]) not in call["asked"]:
            call["asked"].append(asked)
    return {"tests": tests, "calls": list(calls.values())}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file of recorded calls, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--kubernetes",
        default=make_peers.default_version(),
        metavar="VERSION",
        help="version of Kubernetes (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    try:
        with TemporaryDirectory() as where:
            table = table_of(recorded(options.kubernetes, Path(where)))
    except make_peers.PeersError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return error.status
    text = json.dumps({"kubernetes": options.kubernetes, **table}, sort_keys=True, separators=(",", ":"))
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_bytes(gzip.compress(text.encode(), mtime=0))
    print(f"== {len(table['tests'])} tests, {len(table['calls'])} calls: {TARGET.relative_to(make_peers.ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
