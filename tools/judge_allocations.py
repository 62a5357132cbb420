"""Compare our allocator's answers with the judge's verdicts and with Kubernetes' recorded answers: `make judge`."""

import sys
from collections import Counter

from tests.judge.judging import SEES_NODE_ONLY, numbered_case, verdict

from devicecore.domain.allocation import DeviceAllocation
from tests.recorded_allocations import RECORDINGS, allocation_of, recordings, results_of


def main(cases: int) -> int:
    """Print what differs, and return the exit status."""
    found = Counter(verdict(numbered_case(number)) for number in range(cases))
    agreed, of_node = found.pop("", 0), found.pop(SEES_NODE_ONLY, 0)
    print(f"judge and allocator agree on {agreed + of_node:,} of {cases:,} random cases; {of_node:,} of these are")
    print(f"  {SEES_NODE_ONLY}")
    for problem, number in found.most_common(10):
        print(f"  {number}: {problem}")
    wrong = 0
    if not RECORDINGS.is_dir():
        print(f"there are no Kubernetes recordings at {RECORDINGS}")
        return 1 if found else 0
    for name in ("tables.jsonl", "random.jsonl.gz", "defects.jsonl"):
        same = different = 0
        for recording in recordings(name):
            answer = allocation_of(recording)
            possible = recording.get("possible")
            is_same = results_of(answer) == recording["expect"]["results"]
            wrong += recording.get("defect") is None and not is_same and not answer.faults
            wrong += possible is not None and possible != isinstance(answer, DeviceAllocation)
            same, different = same + is_same, different + (not is_same)
        print(f"{name}: {same:,} answers match those of Kubernetes 1.36.2, {different:,} do not")
    print(f"{wrong:,} answers are wrong, or differ from Kubernetes' although Kubernetes is right")
    return 1 if found or wrong else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
