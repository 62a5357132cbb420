"""Recreates the test data from the oracle: `make recordings`.

The cases are the same in each run. A history of the device manager is left out if the kubelet's answers differ
from ours.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random

from tests import recorded
from tests.oracle import devices, dra, files, numa
from tests.oracle.asking import Json, Oracle
from tests.recorded import DATA
from tools.make_peers import PeersError, build, default_version, program


def histories(oracle: Oracle) -> Iterator[Json]:
    """Yield histories of the device manager with the outcome of each step."""
    for number, case in _cases(devices.history):
        answers = oracle.ask("devices", case)
        if "panic" not in answers and devices.agree(case, answers):
            steps = [
                {**step, "expect": _without_half(answer)} for step, answer in zip(case["steps"], answers, strict=True)
            ]
            yield {"id": f"h{number:04}", "numa_nodes": case["numa_nodes"], "steps": steps}


def _without_half(answer: Json) -> Json:
    """Return an answer without calls and, for a rejected pod, with only the failed container and its error."""
    answer = {name: value for name, value in answer.items() if name != "calls"}
    if "containers" not in answer or answer["ok"]:
        return answer
    failed = {name: value for name, value in answer["containers"][-1].items() if name != "devices"}
    return {**answer, "containers": [failed]}


def checkpoints(oracle: Oracle) -> Iterator[Json]:
    """Yield checkpoints as the device manager writes them."""
    for number, case in _cases(files.checkpoint):
        answer = oracle.ask("checkpoint-encode", case)
        file = files.text_of(answer.pop("file_b64"))
        yield {"id": f"e{number:04}", **case, "file": file, **answer}


def checkpoint_files(oracle: Oracle) -> Iterator[Json]:
    """Yield damaged checkpoints, and the kubelet's verdicts on them."""
    for number, case in _cases(files.damaged_checkpoint):
        yield {"id": f"d{number:04}", **case, **oracle.ask("checkpoint-decode", case)}


def claims(oracle: Oracle) -> Iterator[Json]:
    """Yield state files as the DRA manager writes them."""
    for number, case in _cases(files.claims):
        yield {"id": number, **case, **oracle.ask("claims-encode", case)}


def claims_files(oracle: Oracle) -> Iterator[Json]:
    """Yield damaged state files, and the kubelet's verdicts on them."""
    for number, case in _cases(files.damaged_claims):
        yield {"id": number, **case, **oracle.ask("claims-decode", case)}


def claim_histories(oracle: Oracle) -> Iterator[Json]:
    """Yield the recorded histories of the DRA manager with new answers."""
    return (dra.recorded_anew(history, oracle) for history in recorded.lines("dra/histories.jsonl"))


def health_histories(oracle: Oracle) -> Iterator[Json]:
    """Yield the recorded histories of the health that drivers report, with new answers."""
    return (dra.recorded_anew(history, oracle) for history in recorded.lines("dra/health.jsonl"))


def numa_histories(oracle: Oracle) -> Iterator[Json]:
    """Yield histories of the CPU manager, the memory manager or all three managers, with the last state files."""
    for number, made in _cases(lambda random: random.choice((numa.cpus, numa.memory, numa.admissions))(random)):
        played = numa.played(made)
        case = played.case
        if played.since or len(case["machine"]["topology"]) > 4:
            continue
        answers = oracle.ask("numa", case)
        files = {name: answers[-1][name] for name in numa.FILES if name in answers[-1]}
        yield {"id": f"n{number:04}", "case": case, "expect": [numa.decoded(one)[0] for one in answers], "files": files}


RECORDINGS: dict[str, tuple[Callable[[Oracle], Iterator[Json]], int]] = {
    "histories.jsonl": (histories, 300),
    "checkpoint/encode.jsonl": (checkpoints, 150),
    "checkpoint/decode.jsonl": (checkpoint_files, 700),
    "dra/encode.jsonl": (claims, 120),
    "dra/decode.jsonl": (claims_files, 600),
    "dra/histories.jsonl": (claim_histories, 180),
    "dra/health.jsonl": (health_histories, 40),
    "numa/histories.jsonl": (numa_histories, 60),
}
"""For each file, the function that yields its records, and the number of records."""


def _cases(case: Callable[[Random], Json]) -> Iterator[tuple[int, Json]]:
    number = 0
    while True:
        yield number, case(Random(f"recording-{number}"))
        number += 1


def write(path: Path, recordings: Iterator[Json]) -> None:
    """Write one recording per line."""
    path.write_text("".join(json.dumps(one) + "\n" for one in recordings), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write all files, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracle.recordings", description=__doc__.partition("\n")[0])
    parser.add_argument("--kubernetes", default=default_version(), metavar="VERSION", help="(%(default)s)")
    parser.add_argument("--into", type=Path, default=DATA, help="(%(default)s)")
    options = parser.parse_args(arguments)
    try:
        build(options.kubernetes, ["oracle"])
    except PeersError as error:
        print(f"make recordings: {error}", file=sys.stderr)
        return error.status
    with Oracle(program("oracle", options.kubernetes)) as oracle:
        for name, (record, count) in RECORDINGS.items():
            path = options.into / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, islice(record(oracle), count))
            print(f"== {count} recordings of Kubernetes {options.kubernetes} in {path}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
