"""The faulty plugins, and the checks to run on each."""

import sys
from pathlib import Path

from attrs import evolve
from devicecore_tools.conformance import Check, Report, Severity
from devicecore_tools.conformance.device_plugin import CHECKS, PluginUnderTest, Settings, run
from devicecore_tools.conformance.faults import PLUGIN, PLUGIN_FAULTS, find
from tests.conformance.harness import TRIES_ALL_FAULTS, share_of

QUICK = Settings(first=60, timeout=30, returning=30, noticing=30, alone=3, restarting=0.1, away=2, refusing=4)
# Settings for faults that are recognized by something that does not happen. Only the wait for that event is short: the
# other waits must succeed, and may take seconds on a busy machine.
SHORT = {
    "never-registers": evolve(QUICK, first=0.8),
    "registers-first": evolve(QUICK, timeout=5),
    "silent": evolve(QUICK, timeout=5),
    "allocates-slowly": evolve(QUICK, timeout=1),
    "never-sick": evolve(QUICK, timeout=5),
    "adds-a-device": evolve(QUICK, timeout=5),
    "clears-its-list-first": evolve(QUICK, undo_health="rm -f {dir}/sick"),
    "ends-its-stream-after-a-change": evolve(QUICK, timeout=2, undo_health="rm -f {dir}/sick"),
    "loses-a-later-change": evolve(QUICK, timeout=5),
    "dies-of-a-later-change": evolve(QUICK, timeout=5),
    "lists-what-has-changed": evolve(QUICK, timeout=5, undo_health="rm -f {dir}/sick"),
    "recovers-in-lower-case": evolve(QUICK, timeout=5, undo_health="rm -f {dir}/sick"),
    "sends-two-lists": evolve(QUICK, timeout=5, undo_health="rm -f {dir}/sick"),
    "never-recovers": evolve(QUICK, timeout=5, undo_health="rm -f {dir}/sick"),
    "ends-its-stream-after-fifteen-seconds": evolve(QUICK, alone=16),
    "registers-each-five-seconds": evolve(QUICK, alone=11),
    "repeats-its-list": evolve(QUICK, alone=12),
    "blames-all-devices": evolve(QUICK, timeout=5, undo_health="rm -f {dir}/sick"),
    "one-copy-of-a-slow-device-is-sick": evolve(QUICK, timeout=5, undo_health="rm -f {dir}/sick"),
    "one-copy-is-sick": evolve(QUICK, timeout=5, undo_health="rm -f {dir}/sick"),
    "drops-sick-devices": evolve(QUICK, timeout=5, undo_health="rm -f {dir}/sick"),
    "lists-nothing-while-sick": evolve(QUICK, timeout=5, undo_health="rm -f {dir}/sick"),
    "waits-for-sick-devices": evolve(QUICK, timeout=3, undo_health="rm -f {dir}/sick"),
    "complains-of-a-sick-device": evolve(QUICK, timeout=5, undo_health="rm -f {dir}/sick"),
    "repeats-its-list-while-sick": evolve(QUICK, timeout=5, undo_health="rm -f {dir}/sick"),
    "accepts-what-is-gone": evolve(QUICK, timeout=5, undo_health="rm -f {dir}/sick"),
    "deaf-after-some-returns": evolve(QUICK, timeout=5, returning=5),
    "ends-its-stream-after-five-seconds": evolve(QUICK, alone=8),
    "returns-without-devices": evolve(QUICK, timeout=2),
    "returns-with-fewer-devices": evolve(QUICK, timeout=2),
    "returns-under-another-name": evolve(QUICK, returning=0.8, noticing=0.8),
    "odd-bytes": evolve(QUICK, returning=0.8),
    "never-returns": evolve(QUICK, returning=0.8),
    "returns-once": evolve(QUICK, returning=2),
    "deaf-after-a-return": evolve(QUICK, timeout=5),
    "watches-its-socket": evolve(QUICK, noticing=0.8),
    "watches-files": evolve(QUICK, noticing=0.8),
    "needs-a-kubelet": evolve(QUICK, returning=0.8, away=0.5),
    "looks-up-late": evolve(QUICK, returning=4),
    "begins-healthy": evolve(QUICK, timeout=2, undo_health="rm -f {dir}/sick"),
    "hides-while-sick": evolve(QUICK, returning=2, undo_health="rm -f {dir}/sick"),
    "needs-healthy-devices": evolve(QUICK, timeout=5, returning=5, undo_health="rm -f {dir}/sick"),
    "gives-up": evolve(QUICK, returning=0.8, away=4),
    "spins": evolve(QUICK, away=1),
    "spins-without-a-socket": evolve(QUICK, away=2),
    "busy": evolve(QUICK, alone=1),
    "starts-slowly": evolve(QUICK, timeout=2),
    "opens-files-forever": evolve(QUICK, alone=12),
    "returns-with-one-of-two": evolve(QUICK, timeout=2),
    "returns-unhealthy": evolve(QUICK, returning=2),
    "heals-at-its-start": evolve(QUICK, timeout=5, undo_health="rm -f {dir}/sick"),
    "blames-another-device": evolve(QUICK, timeout=5, undo_health="rm -f {dir}/sick"),
    "refuses-what-has-recovered": evolve(QUICK, timeout=5, undo_health="rm -f {dir}/sick"),
    "finds-its-socket": evolve(QUICK, returning=0.8),
    "writes-its-state-in-place": evolve(QUICK, returning=2),
    "ignores-sigterm": evolve(QUICK, grace=0.8),
    "waits-through-sigterm": evolve(QUICK, grace=0.8),
    "slow-to-start": evolve(QUICK, returning=2.5),
    "slow-to-return": evolve(QUICK, refusing=0.5),  # the plugin returns after 5 s
    "floods-for-one-of-two": evolve(QUICK, refusing=5),
    "floods": evolve(QUICK, refusing=2),  # enough for the calls on a busy machine
}
OPTIONS = {"silent": "--timeout", "never-returns": "--returning", "watches-its-socket": "--noticing"}
"""By fault, the option that the report suggests for allowing more time."""

BY_NAME = {check.name: check for check in CHECKS}
NAMES = list(BY_NAME)
RESTARTS = NAMES[NAMES.index("keeps-its-stream-open") : NAMES.index("keeps-its-ids")]
"""The checks that restart the kubelet or the plugin, change the health of a device, or watch for a while."""
CALM = [name for name in NAMES if name not in RESTARTS]
EXPENSIVE = ["answers-many-calls", "grows-with-no-call"]
"""Checks that make a thousand calls, and so take as long as all other checks in `CALM` together."""
EMPTIED = "returns-after-the-directory-is-emptied"
AWAY = ["returns-to-a-kubelet-that-was-away", "is-quiet-while-the-kubelet-is-away"]
RETURNED_AGAIN = [AWAY[0], EMPTIED, "returns-again-after-a-kubelet-restart"]
HEALTH = ["reports-health-after-a-kubelet-restart", "reports-a-change-of-health", "reports-a-recovery-of-health"]
SICK = [*(name for name in NAMES if name.endswith("-a-device-is-sick")), "allocates-a-device-that-has-recovered"]
LATER = ["reports-a-change-while-the-kubelet-was-away", "reports-a-later-change-of-health"]
PREFERS = ["prefers-after-a-kubelet-restart", "prefers-after-a-kill"]
RETURNS = [name for name in NAMES if name.startswith("returns-")]

# Each fault, with the checks to run.
FAULTS: list[tuple[str, list[str]]] = [
    ("never-registers", CALM),
    ("registers-first", CALM[:7]),
    ("old-version", CALM[:7]),
    ("registers-early", CALM[:1]),
    ("absolute-endpoint", CALM[:7]),
    ("long-endpoint", CALM[:7]),
    ("gives-a-long-variable", ["gives-short-variables"]),
    ("bad-name", CALM[:7]),
    ("watched-deaf", CALM[:7]),
    ("no-options", CALM[:7]),
    ("forgets-its-options", CALM),
    ("other-options", CALM[:7]),
    ("silent", [*CALM[:13], EMPTIED]),
    ("twice", CALM),
    ("long-id", CALM[:13]),
    ("numa-minus-one", CALM[:13]),
    ("numa-minus-one-unsigned", CALM[:13]),
    ("fails-at-sigterm", ["ends-on-sigterm"]),
    ("raises-for-unknown-devices", ["refuses-an-unknown-device", "explains-its-refusals"]),
    ("starts-device-by-device", ["allocates-each-device", "answers-calls-at-once", "answers-pre-start-container"]),
    ("odd-health", CALM),
    ("huge", CALM[:12]),
    ("refuses-one", CALM),
    ("refuses-with-unavailable", CALM),
    ("allocates-slowly", ["allocates-each-device", "allocates-in-time"]),
    ("refuses-all", CALM),
    ("one-per-device", CALM),
    ("one-container", CALM),
    ("repeats", CALM),
    ("panics", CALM),
    ("dies", CALM),
    ("knows-everything", CALM),
    ("empty-answer", CALM),
    ("reads-numbers", CALM),
    ("no-answer", CALM),
    ("relative-path", CALM),
    ("mounts-over-dev", CALM),
    ("mounts-all-of-dev", CALM),
    ("keeps-half-a-call", ["allocates-each-device", "allocates-after-a-refusal", "keeps-its-answers"]),
    ("writes-one-file-for-all", CALM),
    ("moves-one-link-for-all", ["allocates-each-device", "keeps-the-files-of-other-containers"]),
    ("file-mode", CALM),
    ("short-cdi-name", CALM),
    ("joins-names", CALM),
    ("annotates-short-names", CALM),
    ("names-all", CALM),
    ("removes-former-mounts", CALM),
    ("prefers-for-the-first", CALM),
    ("by-position", CALM),
    ("cdi-by-position", CALM),
    ("gives-the-first", CALM),
    ("gives-the-first-path", CALM),
    ("one-container-path", CALM),
    ("shares-a-node", CALM),
    ("lists-devices-twice", CALM),
    ("registers-two-names", ["lists-each-device-for-one-resource"]),
    ("once-only", CALM),
    ("counts", CALM),
    ("answers-once", CALM),
    ("answers-few", CALM),
    ("forgets", CALM),
    ("mounts-a-missing-path", CALM),
    ("lists-a-device-twice", CALM),
    ("lists-copies", CALM),
    ("spans", CALM),
    ("names-two", CALM),
    ("expects-all", CALM),
    ("mounts-the-first", CALM),
    ("sets-the-last", CALM),
    ("accumulates", CALM),
    ("mixes-calls", ["answers-calls-at-once"]),
    ("odd-variable", CALM),
    ("gives-what-it-prefers", ["allocates-each-device", "answers-many-calls", "keeps-its-answers"]),
    ("gives-one-of-a-pair", CALM),
    ("clears-its-mounts-at-sigterm", ["allocates-each-device", "ends-on-sigterm", "keeps-what-it-has-mounted"]),
    ("recreates-its-mounts", ["allocates-again-in-the-same-way", "keeps-what-it-has-mounted"]),
    ("tires-of-preferring", ["answers-many-calls", "keeps-its-preferences"]),
    ("keeps-a-lock", ["answers-calls-at-once", "answers-after-canceled-calls"]),
    ("marks-what-it-starts", ["allocates-each-device", "answers-after-canceled-calls"]),
    ("starts-one-at-a-time", ["answers-pre-start-container", "starts-containers-at-the-same-time"]),
    ("prints-a-secret", ["allocates-each-device", "prints-no-secrets"]),
    ("sets-one-variable-for-two", CALM),
    ("gives-a-missing-node", CALM),
    ("gives-paths-in-its-container", ["gives-existing-device-nodes"]),
    ("gives-a-file", ["gives-existing-device-nodes"]),
    ("starts-once", CALM),
    ("refuses-calls-at-once", ["answers-calls-at-once"]),
    ("stops-after-a-hundred", ["answers-many-calls", *CALM[-12:]]),
    ("keeps-megabytes", ["answers-many-calls", "grows-with-no-call"]),
    ("leaves-zombies", ["answers-many-calls", "grows-with-no-call"]),
    ("starts-one-device", CALM),
    ("panics-at-a-must", ["answers-get-preferred-allocation", "stays-up"]),
    ("prefers-nothing", CALM),
    ("prefers-too-few", CALM),
    ("prefers-the-taken", CALM),
    ("prefers-at-will", CALM),
    ("no-pre-start", CALM),
    ("ignores-sigterm", CALM),
    ("waits-through-sigterm", ["ends-on-sigterm-without-a-kubelet"]),
    ("panics-at-sigterm", CALM),
    ("leaves-its-socket", CALM[CALM.index("ends-on-sigterm") :]),
]
# Faults and unusual behavior that become visible when the health of a device changes.
HEALTH_FAULTS: list[tuple[str, list[str]]] = [
    ("never-sick", HEALTH),
    ("adds-a-device", HEALTH),
    ("ends-its-stream-after-a-change", HEALTH),
    ("clears-its-list-first", HEALTH),
    ("loses-a-later-change", HEALTH),
    ("dies-of-a-later-change", [*HEALTH, "stays-up"]),
    ("lists-what-has-changed", HEALTH),
    ("never-recovers", HEALTH),
    ("sends-two-lists", [*HEALTH, *LATER]),
    ("recovers-in-lower-case", [*HEALTH, "spells-healthy-as-kubelets-do"]),
    ("numbers-the-healthy", [*HEALTH, "allocates-while-a-device-is-sick"]),
    ("heals-at-its-start", [*HEALTH, "reports-a-sick-device-after-a-kill"]),
    ("blames-another-device", [*HEALTH, "reports-a-later-change-of-health"]),
    ("prefers-among-all", [*HEALTH, *SICK]),
    ("starts-nothing-while-sick", [*HEALTH, *SICK]),
    ("refuses-what-has-recovered", [*HEALTH, *SICK]),
    ("blames-all-devices", [*HEALTH, "keeps-other-devices-healthy"]),
    ("one-copy-is-sick", [*HEALTH, "reports-the-health-of-each-copy"]),
    (
        "one-copy-of-a-slow-device-is-sick",
        ["allocates-each-device", *HEALTH, "reports-the-health-of-each-copy"],
    ),
    ("drops-sick-devices", [*HEALTH, "lists-sick-devices"]),
    ("lists-nothing-while-sick", [*HEALTH, "lists-others-while-a-device-is-sick", "lists-sick-devices"]),
    ("waits-for-sick-devices", [*HEALTH, *SICK]),
    ("complains-of-a-sick-device", [*HEALTH, *SICK]),
    ("repeats-its-list-while-sick", [*HEALTH, "is-quiet-while-a-device-is-sick"]),
    ("accepts-what-is-gone", [*HEALTH, "refuses-a-device-that-is-gone"]),
    ("begins-healthy", [*HEALTH, "reports-a-change-while-the-kubelet-was-away"]),
    ("hides-while-sick", [*HEALTH, "reports-a-change-while-the-kubelet-was-away"]),
    ("needs-healthy-devices", [*HEALTH, "starts-while-a-device-is-sick", "stays-up"]),
    ("returns-twice", HEALTH),
]
# Faults and unusual behavior that become visible when the kubelet or the plugin restarts.
RESTART_FAULTS: list[tuple[str, list[str]]] = [
    ("ends-its-stream-after-fifteen-seconds", ["keeps-its-stream-open"]),
    ("ends-its-stream-after-five-seconds", ["registers-once", "ends-no-stream"]),
    ("registers-each-five-seconds", ["registers-once"]),
    ("registers-after-a-return", [EMPTIED, "registers-once", "registers-once-after-a-kubelet-restart"]),
    ("returns-without-devices", RETURNS),
    ("returns-under-another-name", RETURNS),
    ("short-stream", ["serves-before-it-registers", "keeps-its-stream-open"]),
    ("odd-bytes", ["answers-options", "keeps-its-stream-open", EMPTIED]),
    ("registers-again", ["keeps-its-stream-open", "sends-few-lists", "registers-once", *CALM[-1:]]),
    ("forgets-its-devices", ["allocates-after-a-kubelet-restart", "gives-the-same-nodes-after-a-restart"]),
    ("busy", ["is-quiet-when-idle"]),
    ("opens-files-forever", ["answers-many-calls", "registers-once", "does-not-grow-with-time"]),
    ("lists-late", ["lists-devices-in-time", "lists-devices-soon"]),
    ("returns-with-one-of-two", [EMPTIED, "returns-with-all-its-resources"]),
    ("returns-unhealthy", [EMPTIED, "keeps-its-ids", "keeps-its-devices"]),
    ("flickers", ["keeps-its-stream-open", "keeps-its-devices"]),
    ("repeats-its-list", ["keeps-its-stream-open", "repeats-few-lists"]),
    ("deletes-sockets-like-its-own", [name for name in NAMES if name.startswith("leaves-sockets-")]),
    ("deaf-after-some-returns", ["returns-after-many-restarts"]),
    ("chatters", ["keeps-its-stream-open", "sends-few-lists", "registers-once"]),
    ("numbers-anew", ["gives-the-same-nodes-after-a-restart", "allocates-after-sigterm"]),
    ("keeps-its-first-answer", ["gives-the-same-nodes-after-a-restart"]),
    ("gives-a-lost-path", ["allocates-after-a-kubelet-restart", "gives-nothing-that-has-vanished", *NAMES[-1:]]),
    ("forgets-its-containers", [name for name in NAMES if name.startswith("pre-starts-")]),
    ("prefers-before-a-restart", PREFERS),
    ("prefers-at-its-first-start", PREFERS),
    ("moves", [EMPTIED, "keeps-its-numa-nodes"]),
    ("needs-a-kubelet", ["waits-for-a-late-kubelet"]),
    ("looks-up-late", ["returns-after-two-restarts"]),
    ("ends-after-a-while", ["registers-once", "stays-up"]),
    ("empties-its-directory", ["leaves-sockets-of-others-alone", "leaves-sockets-of-others-alone-after-sigterm"]),
    ("deletes-the-kubelets-socket", ["leaves-sockets-of-others-alone-after-sigterm"]),
    ("starts-slowly", ["answers-pre-start-container", "pre-starts-after-a-kubelet-restart"]),
    ("new-ids", ["starts-where-it-was-killed", "keeps-its-ids"]),
    ("returns-with-fewer-devices", [EMPTIED, "keeps-its-ids"]),
    ("deletes-other-sockets", [name for name in NAMES if name.startswith("leaves-sockets-")]),
    ("never-returns", [EMPTIED]),
    ("returns-once", RETURNED_AGAIN),
    ("deaf-after-a-return", ["allocates-each-device", *RETURNED_AGAIN]),
    ("watches-its-socket", ["returns-after-kubelet-sock-is-recreated"]),
    ("watches-files", RETURNS),
    ("gives-up", AWAY[:1]),
    ("spins", AWAY),
    ("complains-without-end", AWAY),
    ("spins-without-a-socket", AWAY),
    ("floods", ["is-patient-with-a-kubelet-that-refuses"]),
    ("floods-for-one-of-two", ["is-patient-with-a-kubelet-that-refuses"]),
    (
        "two-resources",
        [
            "lists-each-device-for-one-resource",
            "is-patient-with-a-kubelet-that-refuses",
            "registers-once",
            EMPTIED,
            *CALM[-2:],
        ],
    ),
    ("first-is-empty", ["lists-unique-ids", "allocates-each-device", *AWAY]),
    ("ignores-refusals", ["is-patient-with-a-kubelet-that-refuses", "ends-or-registers-after-a-refusal"]),
    ("ends-when-refused", ["is-patient-with-a-kubelet-that-refuses", "stays-up"]),
    ("slow-to-return", ["is-patient-with-a-kubelet-that-refuses", "starts-where-it-was-killed"]),
    ("slow-to-start", ["lists-unique-ids", "starts-where-it-was-killed", *HEALTH]),
    ("finds-its-socket", ["starts-where-it-was-killed"]),
    ("writes-its-state-in-place", ["starts-where-it-was-killed"]),
    ("start-second", ["is-patient-with-a-kubelet-that-refuses", "starts-where-it-was-killed", *NAMES[-3:]]),
    ("exits", [*AWAY, EMPTIED, "stays-up"]),
]
# Faults whose checks also find other faults in the lists above. Only `make faults` tries these.
MORE_FAULTS = {
    *("never-registers", "file-mode", "repeats", "empty-answer", "counts", "answers-few", "adds-a-device"),
    *("cdi-by-position", "lists-what-has-changed", "returns-under-another-name"),
    *("ends-its-stream-after-fifteen-seconds", "registers-each-five-seconds"),
    *("registers-early", "one-container", "reads-numbers", "joins-names", "annotates-short-names", "spans"),
    *("gives-the-first-path", "names-two", "lists-a-device-twice", "once-only", "expects-all", "panics-at-a-must"),
    *("starts-device-by-device", "no-pre-start", "panics-at-sigterm", "prefers-at-will"),
    *("never-sick", "dies-of-a-later-change", "never-recovers"),
    *("returns-without-devices", "odd-bytes", "keeps-its-first-answer", "empties-its-directory"),
    *("returns-with-fewer-devices", "deaf-after-a-return", "floods-for-one-of-two"),
    *("leaves-zombies", "spins-without-a-socket", "starts-slowly"),
}
if not TRIES_ALL_FAULTS:
    FAULTS = [fault for fault in FAULTS if fault[0] not in MORE_FAULTS]
    HEALTH_FAULTS = [fault for fault in HEALTH_FAULTS if fault[0] not in MORE_FAULTS]
    RESTART_FAULTS = [fault for fault in RESTART_FAULTS if fault[0] not in MORE_FAULTS]


def run_checks_on(fault: str, names: list[str], settings: Settings, directory: Path) -> Report:
    """Run the checks with these names, and always the first check, on a plugin with this fault."""
    checks: list[Check[PluginUnderTest]] = [BY_NAME[name] for name in NAMES if name in {NAMES[0], *names}]
    provoked = evolve(settings, provoke_health=f"touch {directory}/sick")
    command: list[str | Path] = [sys.executable, PLUGIN, "{dir}", fault]
    registry = fault.startswith("watched")
    return run(command, settings=provoked, directory=directory, registry=registry, checks=checks)


def assert_found(fault: str, names: list[str], directory: Path) -> None:
    """Assert that the fault's checks fail, each with a sentence, and no others except those in `breaks_too`."""
    own = PLUGIN_FAULTS[fault].split()
    if not TRIES_ALL_FAULTS and names[: len(CALM)] == CALM:
        names = [*own, *share_of([name for name in CALM if name not in {*own, *EXPENSIVE}], fault)]
    report = run_checks_on(fault, names, SHORT.get(fault, QUICK), directory)
    failed = {result.name: result.actual for result in report.failures}
    assert set(failed) - set(find(fault).breaks_too) == set(own), [(it.name, it.actual) for it in report.results]
    assert all(failed.values())
    said = "".join(failed.values())
    assert fault not in OPTIONS or f"({OPTIONS[fault]} gives more)" in said
    assert ("only for example.com/board" in said) is (fault == "returns-under-another-name")
    assert fault != "panics" or all("exited early with status 2: panic: " in text for text in failed.values())
    assert not fault.startswith("answers-") or said.endswith(": the answer has no container response")
    severities = [BY_NAME[name].severity for name in own]
    assert report.passed == (Severity.MUST not in severities)
