"""Try an allocator on the published cases: `python tools/try_allocator.py COMMAND...`.

COMMAND is run once per case. It gets the case as JSON on standard input, and has to print a list of the claims'
`status.allocation`, or null if the claims cannot be allocated.
"""

import json
import subprocess
import sys
from pathlib import Path

from devicecore_tools.testing.allocation_cases import evaluate
from devicecore_tools.testing.allocation_judge import Judge

problems = 0
for line in (Path(__file__).parent.parent / "docs" / "claims" / "cases.jsonl").read_text().splitlines():
    case = json.loads(line)
    run = subprocess.run(sys.argv[1:], input=line, stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    judge = Judge(case, evaluate)
    if problem := judge.problem_with(json.loads(run.stdout)):
        problems += 1
        print(f"case {case['id']}: {problem}")
sys.exit(problems > 0)
