"""Report the branch coverage of each part of devicecore: `python tools/coverage_of_parts.py 95 domain ports`.

If a part's coverage is below the given percentage, the program prints the lines that no test runs, and exits with
status 1. One process reports on all parts, because each further process would take a second to start.
"""

import io
import sys

import coverage


def main() -> int:
    """Print the coverage of each part, and return the exit status."""
    least, parts = float(sys.argv[1]), sys.argv[2:]
    measured = coverage.Coverage()
    measured.load()
    status = 0
    for part in parts:
        table = io.StringIO()
        total = measured.report(include=f"src/devicecore/{part}/*", file=table)
        if total < least:
            print(table.getvalue())
            status = 1
        print(f"== branch coverage of {part}: {total:.1f}%")
    return status


if __name__ == "__main__":
    sys.exit(main())
