"""The faulty plugins, and which check finds each."""

import sys
from pathlib import Path

from attrs import evolve

from devicecore import conformance
from devicecore.conformance import CHECKS, Check, Settings, Severity

PLUGIN = Path(__file__).with_name("faulty_plugin.py")
QUICK = Settings(first=60, timeout=30, returning=30, restarting=0.1, away=0.8, refusing=0.5)
# For faults that show by something that does not come; it is the only thing that is waited for so shortly.
SHORT = {
    "never-registers": evolve(QUICK, first=0.8),
    "registers-first": evolve(QUICK, timeout=0.8),
    "silent": evolve(QUICK, timeout=0.8),
    "never-sick": evolve(QUICK, timeout=2),
    "never-returns": evolve(QUICK, returning=0.8),
    "watches-its-socket": evolve(QUICK, returning=0.8),
    "watches-files": evolve(QUICK, returning=0.8),
    "gives-up": evolve(QUICK, returning=0.8, away=1.5),
    "finds-its-socket": evolve(QUICK, returning=0.8),
    "ignores-sigterm": evolve(QUICK, grace=0.8),
}

BY_NAME = {check.name: check for check in CHECKS}
NAMES = list(BY_NAME)
LIFE = NAMES[NAMES.index("returns-after-the-directory-is-emptied") : NAMES.index("stays-up")]
"""The checks about the kubelet's life."""
CALM = [name for name in NAMES if name not in {*LIFE, "keeps-its-stream-open"}]

# The fault; the checks that fail on it; the checks that are made, where that is not all that leave the kubelet alone.
FAULTS: list[tuple[str, str, list[str]]] = [
    ("never-registers", "serves-before-it-registers", CALM),
    ("registers-first", "serves-before-it-registers", CALM[:7]),
    ("old-version", "registers-a-supported-version", CALM[:7]),
    ("absolute-endpoint", "registers-an-endpoint-in-the-directory", CALM[:7]),
    ("bad-name", "registers-an-extended-resource-name", CALM[:7]),
    ("watched-deaf", "answers-notify-registration-status", CALM[:7]),
    ("no-options", "answers-options", CALM[:7]),
    ("other-options", "registers-the-options-it-answers", CALM),
    ("silent", "lists-devices-in-time", CALM[:13]),
    ("twice", "lists-unique-ids", CALM),
    ("long-id", "lists-short-ids", CALM[:13]),
    ("odd-health", "lists-known-health", CALM),
    ("huge", "lists-fit-into-a-message", CALM[:12]),
    ("refuses-one", "allocates-each-device", CALM),
    ("refuses-all", "allocates-all-devices", CALM),
    ("one-per-device", "answers-once-per-container", CALM),
    ("one-container", "answers-each-of-two-containers", CALM),
    ("repeats", "answers-each-of-two-containers", CALM),
    ("dies", "survives-a-request-for-no-devices stays-up", CALM),
    ("knows-everything", "refuses-an-unknown-device", CALM),
    ("by-position", "gives-nodes-by-id", CALM),
    ("shares-a-node", "gives-each-device-its-own-nodes", CALM),
    ("once-only", "allocates-again-in-the-same-way", ["allocates-again-in-the-same-way"]),
    ("counts", "allocates-again-in-the-same-way", ["allocates-again-in-the-same-way"]),
    ("forgets", "mounts-the-same-again", CALM),
    ("prefers-nothing", "answers-get-preferred-allocation", CALM),
    ("prefers-too-few", "prefers-as-many-as-asked", CALM),
    ("prefers-the-taken", "prefers-only-what-is-available", CALM),
    ("prefers-at-will", "prefers-what-it-must-include", CALM),
    ("no-pre-start", "answers-pre-start-container", CALM),
    ("never-sick", "reports-a-change-of-health", CALM),
    ("ignores-sigterm", "ends-on-sigterm", CALM),
    ("leaves-its-socket", "removes-its-socket", CALM),
]
# Those that show in what a plugin does when its kubelet goes.
LIFE_FAULTS: list[tuple[str, str, list[str]]] = [
    ("short-stream", "keeps-its-stream-open", ["serves-before-it-registers", "keeps-its-stream-open"]),
    ("never-returns", "returns-after-the-directory-is-emptied", LIFE[:1]),
    ("watches-its-socket", "returns-after-kubelet-sock-is-recreated", LIFE[1:2]),
    ("watches-files", "returns-after-its-stream-is-cut", LIFE[2:3]),
    ("gives-up", "returns-to-a-kubelet-that-was-away", LIFE[3:4]),
    ("spins", "is-quiet-while-the-kubelet-is-away", LIFE[3:5]),
    ("floods", "is-patient-with-a-kubelet-that-refuses", LIFE[5:]),
    ("finds-its-socket", "starts-where-it-was-killed", ["starts-where-it-was-killed"]),
    ("exits", "stays-up", [*LIFE[:4], "stays-up"]),
]


def put_to_the_checks(fault: str, names: list[str], settings: Settings, place: Path) -> conformance.Report:
    """Run the checks called `names` over a plugin with `fault`, and always the first, which waits for it."""
    checks: list[Check] = [BY_NAME[name] for name in dict.fromkeys([NAMES[0], *names])]
    provoked = evolve(settings, provoke_health=f"touch {place}/sick")
    command: list[str | Path] = [sys.executable, PLUGIN, "{dir}", fault]
    registry = fault.startswith("watched")
    return conformance.run(command, settings=provoked, directory=place, registry=registry, checks=checks)


def check_that_it_is_found(fault: str, failing: str, names: list[str], place: Path) -> None:
    """See that the checks that must fail do, that no other does, and that the report says what came."""
    report = put_to_the_checks(fault, names, SHORT.get(fault, QUICK), place)
    failed = {result.check.name: result.came for result in report.results if result.failed}
    assert set(failed) == set(failing.split()), [(it.check.name, it.came) for it in report.results]
    assert all(came for came in failed.values())
    severities = [BY_NAME[name].severity for name in failing.split()]
    assert report.passed == (Severity.MUST not in severities)
