"""Writes the cases for authors of other allocators, with what an exhaustive search says: `docs/claims/cases.jsonl`."""

import json
from itertools import count, islice
from pathlib import Path
from random import Random

from devicecore_tools.testing.allocation_cases import EXPRESSIONS, random_case
from devicecore_tools.testing.allocation_judge import Judge

CASES = Path(__file__).parent.parent / "docs" / "claims" / "cases.jsonl"


def line(number: int) -> tuple[bool, str]:
    """Whether the claims of a case can be allocated, and the case as a line."""
    case = random_case(Random(f"case-{number}"))  # noqa: S311 - no secret
    first = Judge(case, lambda expression, driver, device: EXPRESSIONS[expression](driver, device)).first()
    devices = None if first is None else [[one.claim, one.names[-1], *one.key] for one in first]
    return first is not None, json.dumps({"id": number, **case, "possible": devices}, sort_keys=True)


def main() -> None:
    """Write as many cases that are possible as cases that are not."""
    for possible in (True, False):
        found = (text for number in count() for is_possible, text in [line(number)] if is_possible == possible)
        with CASES.open("w" if possible else "a") as file:
            file.writelines(f"{text}\n" for text in islice(found, 60))


if __name__ == "__main__":
    main()
