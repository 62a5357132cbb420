"""The faulty plugins, and which checks fail on each."""

import os
import sys
from pathlib import Path

from attrs import evolve
from devicecore_tools.conformance import Check, Report, Severity
from devicecore_tools.conformance.device_plugin import CHECKS, PluginUnderTest, Settings, run

PLUGIN = Path(__file__).with_name("faulty_plugin.py")
QUICK = Settings(first=60, timeout=30, returning=30, noticing=30, restarting=0.1, away=2, refusing=4)
# Faults that show because something does not happen. Only that wait is short, and a wait that must end well in another
# check takes seconds, because the machine may have much else to do.
SHORT = {
    "never-registers": evolve(QUICK, first=0.8),
    "registers-first": evolve(QUICK, timeout=5),
    "silent": evolve(QUICK, timeout=5),
    "never-sick": evolve(QUICK, timeout=5),
    "adds-a-device": evolve(QUICK, timeout=5),
    "loses-a-later-change": evolve(QUICK, timeout=5),
    "dies-of-a-later-change": evolve(QUICK, timeout=5),
    "odd-bytes": evolve(QUICK, returning=0.8),
    "never-returns": evolve(QUICK, returning=0.8),
    "watches-its-socket": evolve(QUICK, noticing=0.8),
    "watches-files": evolve(QUICK, noticing=0.8),
    "gives-up": evolve(QUICK, returning=0.8, away=4),
    "spins": evolve(QUICK, away=4),
    "finds-its-socket": evolve(QUICK, returning=0.8),
    "ignores-sigterm": evolve(QUICK, grace=0.8),
    "slow-to-start": evolve(QUICK, returning=2.5),
    "slow-to-return": evolve(QUICK, refusing=0.5),  # and it returns after 5 s
    "floods": evolve(QUICK, refusing=5),  # so that a busy machine makes enough calls
}
OPTIONS = {"silent": "--timeout", "never-returns": "--returning", "watches-files": "--noticing"}
"""The option that would give more time, which the report names, by fault."""

BY_NAME = {check.name: check for check in CHECKS}
NAMES = list(BY_NAME)
RESTARTS = NAMES[NAMES.index("keeps-its-stream-open") : NAMES.index("stays-up")]
"""The checks that restart the kubelet or the plugin, or change the health of a device."""
CALM = [name for name in NAMES if name not in RESTARTS]
EMPTIED = "returns-after-the-directory-is-emptied"
AWAY = ["returns-to-a-kubelet-that-was-away", "is-quiet-while-the-kubelet-is-away"]
HEALTH = ["reports-health-after-a-kubelet-restart", "reports-a-change-of-health"]

# The fault; the checks that fail on it; the checks to make.
FAULTS: list[tuple[str, str, list[str]]] = [
    ("never-registers", "serves-before-it-registers", CALM),
    ("registers-first", "serves-before-it-registers", CALM[:7]),
    ("old-version", "registers-a-supported-version", CALM[:7]),
    ("registers-early", "serves-before-it-registers", CALM[:1]),
    ("absolute-endpoint", "registers-an-endpoint-in-the-directory", CALM[:7]),
    ("bad-name", "registers-an-extended-resource-name", CALM[:7]),
    ("watched-deaf", "answers-notify-registration-status", CALM[:7]),
    ("no-options", "answers-options", CALM[:7]),
    ("other-options", "registers-the-options-it-answers", CALM),
    ("silent", "lists-devices-in-time", [*CALM[:13], EMPTIED]),
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
    ("empty-answer", "refuses-an-unknown-device", CALM),
    ("reads-numbers", "refuses-an-unknown-device", CALM),
    ("no-answer", "", CALM),
    ("relative-path", "gives-absolute-paths", CALM),
    ("file-mode", "gives-valid-cdi-names-and-permissions", CALM),
    ("short-cdi-name", "gives-valid-cdi-names-and-permissions", CALM),
    ("by-position", "gives-nodes-by-id", CALM),
    ("shares-a-node", "gives-each-device-its-own-nodes", CALM),
    ("once-only", "allocates-again-in-the-same-way", CALM),
    ("counts", "allocates-again-in-the-same-way", CALM),
    ("answers-once", "allocates-again-in-the-same-way", CALM),
    ("answers-few", "allocates-all-devices", CALM),
    ("forgets", "mounts-the-same-again", CALM),
    ("prefers-nothing", "answers-get-preferred-allocation", CALM),
    ("prefers-too-few", "prefers-as-many-as-asked", CALM),
    ("prefers-the-taken", "prefers-only-what-is-available", CALM),
    ("prefers-at-will", "prefers-what-it-must-include", CALM),
    ("no-pre-start", "answers-pre-start-container", CALM),
    ("ignores-sigterm", "ends-on-sigterm", CALM),
    ("leaves-its-socket", "removes-its-socket", CALM),
]
# Faults and habits that show when the health of a device changes.
HEALTH_FAULTS: list[tuple[str, str, list[str]]] = [
    ("never-sick", " ".join(HEALTH), HEALTH),
    ("adds-a-device", " ".join(HEALTH), HEALTH),
    ("loses-a-later-change", HEALTH[0], HEALTH),
    ("dies-of-a-later-change", f"{HEALTH[0]} stays-up", [*HEALTH, "stays-up"]),
    ("returns-twice", "", HEALTH),
]
# Faults and habits that show when the kubelet or the plugin restarts.
RESTART_FAULTS: list[tuple[str, str, list[str]]] = [
    ("short-stream", "keeps-its-stream-open", ["serves-before-it-registers", "keeps-its-stream-open"]),
    ("odd-bytes", f"keeps-its-stream-open {EMPTIED}", ["answers-options", "keeps-its-stream-open", EMPTIED]),
    ("registers-again", "registers-once", ["keeps-its-stream-open", "sends-few-lists", "registers-once", *CALM[-1:]]),
    ("chatters", "sends-few-lists", ["keeps-its-stream-open", "sends-few-lists", "registers-once"]),
    ("new-ids", "keeps-its-ids", ["starts-where-it-was-killed", "keeps-its-ids"]),
    ("never-returns", EMPTIED, [EMPTIED]),
    ("watches-its-socket", "returns-after-kubelet-sock-is-recreated", ["returns-after-kubelet-sock-is-recreated"]),
    ("watches-files", "returns-after-its-stream-is-cut", ["returns-after-its-stream-is-cut"]),
    ("gives-up", "returns-to-a-kubelet-that-was-away", AWAY[:1]),
    ("spins", "is-quiet-while-the-kubelet-is-away", AWAY),
    ("floods", "is-patient-with-a-kubelet-that-refuses", ["is-patient-with-a-kubelet-that-refuses"]),
    ("ends-when-refused", "", ["is-patient-with-a-kubelet-that-refuses", "stays-up"]),
    ("slow-to-return", "", ["is-patient-with-a-kubelet-that-refuses", "starts-where-it-was-killed"]),
    ("slow-to-start", "", ["lists-unique-ids", "starts-where-it-was-killed", *HEALTH]),
    ("finds-its-socket", "starts-where-it-was-killed", ["starts-where-it-was-killed"]),
    ("start-second", "", ["is-patient-with-a-kubelet-that-refuses", "starts-where-it-was-killed", *NAMES[-3:]]),
    ("hides-while-sick", "", [EMPTIED, *HEALTH, *NAMES[-3:]]),
    ("exits", "stays-up", [*AWAY, EMPTIED, "stays-up"]),
]
# Other faults that these checks find. `make faults` tries them, too.
MORE_FAULTS = {"never-registers", "file-mode", "repeats", "empty-answer", "counts", "answers-few", "adds-a-device"}
if not os.environ.get("FAULTS"):
    FAULTS = [fault for fault in FAULTS if fault[0] not in MORE_FAULTS]
    HEALTH_FAULTS = [fault for fault in HEALTH_FAULTS if fault[0] not in MORE_FAULTS]


def run_checks_on(fault: str, names: list[str], settings: Settings, directory: Path) -> Report:
    """Run the checks with these names, and always the first, on a plugin with this fault."""
    checks: list[Check[PluginUnderTest]] = [BY_NAME[name] for name in NAMES if name in {NAMES[0], *names}]
    provoked = evolve(settings, provoke_health=f"touch {directory}/sick")
    command: list[str | Path] = [sys.executable, PLUGIN, "{dir}", fault]
    registry = fault.startswith("watched")
    return run(command, settings=provoked, directory=directory, registry=registry, checks=checks)


def assert_found(fault: str, failing: str, names: list[str], directory: Path) -> None:
    """Assert that exactly these checks fail, with a sentence about what happened."""
    report = run_checks_on(fault, names, SHORT.get(fault, QUICK), directory)
    failed = {result.name: result.actual for result in report.failures}
    assert set(failed) == set(failing.split()), [(it.name, it.actual) for it in report.results]
    assert all(failed.values())
    said = "".join(failed.values())
    assert fault not in OPTIONS or f"({OPTIONS[fault]} gives more)" in said
    assert not fault.startswith("answers-") or said.endswith(": the answer is for no container")
    severities = [BY_NAME[name].severity for name in failing.split()]
    assert report.passed == (Severity.MUST not in severities)
