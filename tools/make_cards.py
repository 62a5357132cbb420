"""Write docs/cards.md: what the conformance checks find in plugins and drivers that can be had here: `make cards`.

Each subject is installed into an environment of its own below `.cards/`, and its HTML card is written there. No test
compares the page, because it depends on packages of others.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from devicecore.domain.text import foreign_text

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "cards.md"
HOMES = ROOT / ".cards"
BUDGET = "280"  # seconds for each subject


class Subject(NamedTuple):
    """A plugin or driver, the package of the index from which it comes, and its command after `python -m`.

    `is_full` is whether a driver gets the checks of `--full`, too.
    """

    name: str
    kind: str
    package: str
    module: str
    options: str = ""
    is_full: bool = True


SUBJECTS = (
    Subject(
        *("devicecore plugin simulated", "plugin", "", "devicecore_tools"),
        "plugin simulated --resource example.com/gpu --count 4 --numa-nodes 0,1 --socket-dir {dir}",
    ),
    Subject(
        *("devicecore dra-driver simulated", "driver", "", "devicecore_tools"),
        "dra-driver simulated --name gpu.example.com --registry {registry} --plugin-dir {plugins} --cdi-dir {cdi}",
    ),
    Subject("pydra, tpu", "driver", "kubernetes-pydra==0.1.0", "pydra.plugins.tpu.driver", is_full=False),
    Subject("pydra, network", "driver", "kubernetes-pydra==0.1.0", "pydra.plugins.network.driver"),
)

ENVIRONMENT = {  # where pydra's drivers make their sockets and files
    "SOCKET_PATH": "{plugins}/driver/plugin.sock",
    "REGISTRATION_SOCKET_PATH": "{registry}/driver-reg.sock",
    "CDI_DIR": "{cdi}",
}

INTRODUCTION = """\
# Score cards

`make cards` writes this page: it installs the plugins and drivers below, and runs `devicecore conformance` over each.
If a check with the severity `must` fails, Kubernetes cannot work with the subject, or containers get devices of
others; [conformance.md](conformance.md) explains each check. Checks that need what a subject does not offer are
skipped: with one device, for example, two claims cannot be prepared at once. `not run` means that there is no result,
and says nothing of the subject. Without `--full`, fewer checks are tried, so such a row cannot be compared with one
that has all. The results are those of one version at one time, on a machine without such devices, and no verdict on a
project.

## Add one

1. Add a `Subject` to `tools/make_cards.py`: its package on the index, and its command with the placeholders of
   [test-your-plugin.md](test-your-plugin.md) or [test-your-dra-driver.md](test-your-dra-driver.md). A plugin in another
   language needs a command that is on the machine; `make cards` leaves out what it cannot install, and says so.
2. Run `make cards`, and look at each failure by hand: is the rule that the check cites right, and does it concern this
   subject? If not, the check is what has to change. [findings.md](maintain/findings.md) says how to
   report what remains.
3. Commit `docs/cards.md`. The HTML cards are in `.cards/`.
"""


def main() -> int:
    """Write the page; return 1 if no subject could be run."""
    reports = {subject: report_on(subject) for subject in SUBJECTS}
    PAGE.write_text("\n".join([INTRODUCTION, *page(reports)]), encoding="utf-8")
    print(f"wrote {PAGE}")
    return int(not any(reports.values()))


def report_on(subject: Subject) -> dict[str, Any] | None:
    """Run the checks over a subject, and return the report; None if it cannot be installed."""
    print(f"== {subject.name}", flush=True)
    python = sys.executable
    if subject.package:
        home = HOMES / subject.package.replace("==", "-")  # env takes a word with = for a variable
        python = str(home / "bin" / "python")
        if not Path(python).exists():
            venv.create(home, with_pip=True)
        install = [python, "-m", "pip", "-qq", "--disable-pip-version-check", "install", subject.package]
        if subprocess.run(install, check=False).returncode:
            return None
    HOMES.mkdir(exist_ok=True)
    places = [f"{name}={value}" for name, value in ENVIRONMENT.items()] if subject.package else []
    command = ["env", *places, python, "-m", subject.module, *shlex.split(subject.options)]
    card = HOMES / f"{subject.name.replace(',', '').replace(' ', '-')}.html"
    check = [sys.executable, "-m", "devicecore_tools", "conformance", subject.kind, "--json", "--budget", BUDGET]
    check += ["--full"] if subject.kind == "driver" and subject.is_full else []
    check += ["--card", str(card), "--release", subject.package.partition("==")[2], "--", *command]
    ran = subprocess.run(
        check, check=False, stdout=subprocess.PIPE, cwd=HOMES, env=os.environ | {"PYTHONUNBUFFERED": "1"}
    )
    report: dict[str, Any] = json.loads(ran.stdout)
    return report


def page(reports: Mapping[Subject, dict[str, Any] | None]) -> Iterator[str]:
    """Yield the lines of the results."""
    yield "## The cards\n\n| subject | version | passed | failed | `must` failed | skipped |\n|---|---|---|---|---|---|"
    for subject, report in reports.items():
        version = subject.package.partition("==")[2] or "of this repository"
        checks = report["checks"] if report else ()
        failed = of(checks, "failed")
        counts = [len(of(checks, "passed")), len(failed), sum(one["severity"] == "must" for one in failed)]
        texts = [*counts, len(of(checks, "skipped"))] if report else ["not run", "", "", ""]
        tried = "" if subject.is_full else " (without `--full`)"
        yield f"| {subject.name}{tried} | {version} | {' | '.join(map(str, texts))} |"
    for subject, report in reports.items():
        failed = of(report["checks"], "failed") if report else []
        if failed:
            yield f"\n### {subject.name}\n\n| check | severity | what happened |\n|---|---|---|"
            for one in failed:
                actual = re.sub(r"/\w+/dc-\w+/", "", foreign_text(one["actual"], 300)).replace("|", "\\|")
                yield f"| `{one['name']}` | {one['severity']} | {actual} |"
    yield ""


def of(checks: Sequence[dict[str, Any]], verdict: str) -> list[dict[str, Any]]:
    """Return the checks that ended so."""
    return [one for one in checks if one["verdict"] == verdict]


if __name__ == "__main__":
    sys.exit(main())
