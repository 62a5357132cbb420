"""Write `docs/claims/cases.jsonl`: cases for testing other allocators, solved by exhaustive search."""

import json
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from random import Random

from devicecore_tools.testing.allocation_cases import evaluate, random_case
from devicecore_tools.testing.allocation_judge import Judge

CASES = Path(__file__).parent.parent / "docs" / "claims" / "cases.jsonl"


def lines(*, possible: bool) -> Iterator[str]:
    """Yield lines, each with a case. The claims of all cases can be allocated if `possible`, and cannot otherwise."""
    for number in count():
        case = random_case(Random(f"case-{number}"))  # noqa: S311 - no secret
        if "features" in case:
            continue  # other allocators may not support these features
        del case["later"]
        judge = Judge(case, evaluate)
        first, is_impossible = judge.first(), not judge.problem_with(None)
        if (first is not None) == possible == (not is_impossible):
            devices = None if first is None else [[one.claim, one.request, *one.key] for one in first]
            yield json.dumps({"id": number, **case, "possible": devices}, sort_keys=True) + "\n"


def main() -> None:
    """Write equal numbers of possible and impossible cases to the file."""
    with CASES.open("w") as file:
        for possible in (True, False):
            file.writelines(islice(lines(possible=possible), 60))


if __name__ == "__main__":
    main()
