"""Plugins and drivers, each with one fault, and the checks that must find it, for our tests and for other test kits.

Law: each program is correct except for one fault, and the checks that the program names fail on it. If a program names
no check, it does something unusual but correct, and no check may fail on it.
"""

import inspect
import os
import re
import runpy
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    from devicecore_tools.conformance.faults.good_driver import GoodDriver

HERE = Path(__file__).parent
DRIVER: Path = HERE / "run_driver.py"
"""The program that runs a driver. Its argument is `GROUP:CLASS`."""
PLUGIN: Path = HERE / "plugin.py"
"""The program that runs a plugin. Its arguments are a directory and the name of a fault."""
GROUPS: tuple[str, ...] = (
    "registration",
    "slices",
    "prepare",
    "unprepare",
    "cdi",
    "state",
    "situations",
    "health",
    "process",
    "changes",
    "rolling_update",
    "whole_run",
    "habits",
)
"""The modules in `drivers` whose drivers are in the catalog; `hostile` is not."""
PLUGIN_KIND, DRIVER_KIND = "device plugin", "DRA driver"

_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@frozen
class Planted:
    """A program with a fault.

    Attributes:
        name: words joined by hyphens.
        kind: `device plugin` or `DRA driver`.
        checks: the names of the checks that fail on the program, or none if the program only behaves unusually.
        sentence: what the program does.
        options: the options of `devicecore conformance plugin` or `driver` that reveal the program's fault.
        place: identifies the program among the programs of its kind.
        breaks_too: other checks that cannot pass because of the program's fault.
    """

    name: str
    kind: str
    checks: tuple[str, ...]
    sentence: str
    options: tuple[str, ...] = ()
    place: str = ""
    breaks_too: tuple[str, ...] = ()

    def program(self) -> list[str]:
        """Return the command line that starts the program. A test kit replaces `{dir}` with a plugin's directory."""
        if self.kind == DRIVER_KIND:
            return [sys.executable, str(DRIVER), self.place]
        return [sys.executable, str(PLUGIN), "{dir}", self.place]

    def run(self) -> None:
        """Run the program in this process. The program takes its directories from environment variables.

        Raises KeyError with the name of a missing environment variable.
        """
        if self.kind == DRIVER_KIND:
            driver_at(self.place)().run()
        else:
            sys.argv = [str(PLUGIN), os.environ["DEVICE_PLUGIN_PATH"], self.place]
            runpy.run_path(str(PLUGIN), run_name="__main__")


# Each fault, with the checks that fail on it.
PLUGIN_FAULTS: dict[str, str] = {
    "never-registers": "serves-before-it-registers",
    "registers-first": "serves-before-it-registers",
    "old-version": "registers-a-supported-version",
    "registers-early": "serves-before-it-registers",
    "absolute-endpoint": "registers-an-endpoint-in-the-directory",
    "long-endpoint": "registers-an-endpoint-in-the-directory",
    "gives-a-long-variable": "gives-short-variables",
    "bad-name": "registers-an-extended-resource-name",
    "watched-deaf": "answers-notify-registration-status",
    "no-options": "answers-options",
    "forgets-its-options": "answers-the-options-it-registers",
    "other-options": "",
    "silent": "lists-devices-in-time",
    "twice": "lists-unique-ids",
    "numa-minus-one": "numbers-numa-nodes-from-zero",
    "numa-minus-one-unsigned": "numbers-numa-nodes-from-zero",
    "accepts-what-is-gone": "refuses-a-device-that-is-gone",
    "drops-sick-devices": "lists-sick-devices",
    "blames-all-devices": "keeps-other-devices-healthy",
    "lists-nothing-while-sick": "lists-others-while-a-device-is-sick",
    "waits-for-sick-devices": "allocates-while-a-device-is-sick",
    "complains-of-a-sick-device": "is-quiet-while-a-device-is-sick",
    "repeats-its-list-while-sick": "is-quiet-while-a-device-is-sick",
    "one-copy-is-sick": "reports-the-health-of-each-copy",
    "one-copy-of-a-slow-device-is-sick": "reports-the-health-of-each-copy",
    "raises-for-unknown-devices": "explains-its-refusals",
    "starts-device-by-device": "answers-pre-start-container",
    "complains-without-end": "is-quiet-while-the-kubelet-is-away",
    "repeats-its-list": "repeats-few-lists",
    "fails-at-sigterm": "ends-on-sigterm",
    "deletes-sockets-like-its-own": "leaves-sockets-of-others-alone leaves-sockets-of-others-alone-after-sigterm",
    "deaf-after-some-returns": "returns-after-many-restarts",
    "long-id": "lists-short-ids",
    "odd-health": "lists-known-health spells-healthy-as-kubelets-do",
    "huge": "lists-fit-into-a-message",
    "refuses-one": "allocates-each-device",
    "allocates-slowly": "allocates-in-time",
    "refuses-all": "allocates-all-devices allocates-more-than-two-devices",
    "one-per-device": "answers-once-per-container",
    "one-container": "answers-each-of-two-containers",
    "repeats": "answers-each-of-two-containers",
    "panics": "answers-each-of-two-containers",
    "dies": "survives-a-request-for-no-devices",
    "knows-everything": "refuses-an-unknown-device",
    "empty-answer": "refuses-an-unknown-device",
    "reads-numbers": "refuses-an-unknown-device",
    "no-answer": "",
    "relative-path": "gives-absolute-paths",
    "mounts-over-dev": "mounts-nothing-over-device-nodes",
    "mounts-all-of-dev": "shows-no-nodes-of-other-devices",
    "keeps-half-a-call": "allocates-after-a-refusal",
    "writes-one-file-for-all": "keeps-the-files-of-other-containers",
    "moves-one-link-for-all": "keeps-the-files-of-other-containers",
    "file-mode": "gives-valid-cdi-names-and-permissions",
    "short-cdi-name": "gives-valid-cdi-names-and-permissions",
    "joins-names": "gives-valid-cdi-names-and-permissions",
    "annotates-short-names": "gives-valid-cdi-names-and-permissions",
    "names-all": "names-no-cdi-device-for-all",
    "by-position": "gives-nodes-by-id",
    "cdi-by-position": "gives-nodes-by-id",
    "gives-the-first": "gives-the-nodes-of-each-device",
    "gives-the-first-path": "gives-the-nodes-of-each-device",
    "one-container-path": "gives-each-node-its-own-container-path",
    "shares-a-node": "gives-each-device-its-own-nodes",
    "lists-a-device-twice": "gives-each-device-its-own-nodes",
    "lists-copies": "",
    "spans": "gives-nodes-by-id",
    "names-two": "gives-the-nodes-of-each-device",
    "mounts-the-first": "gives-the-mounts-of-each-device",
    "sets-the-last": "gives-the-variables-of-each-device",
    "accumulates": "keeps-calls-apart",
    "mixes-calls": "answers-calls-at-once",
    "forgets-its-devices": "allocates-after-a-kubelet-restart",
    "forgets-its-containers": "pre-starts-after-a-kubelet-restart pre-starts-after-a-kill pre-starts-after-sigterm",
    "prefers-before-a-restart": "prefers-after-a-kubelet-restart",
    "prefers-at-its-first-start": "prefers-after-a-kill",
    "expects-all": "answers-get-preferred-allocation",
    "moves": "keeps-its-numa-nodes",
    "needs-a-kubelet": "waits-for-a-late-kubelet",
    "looks-up-late": "returns-after-two-restarts",
    "ends-after-a-while": "stays-up",
    "numbers-the-healthy": "allocates-while-a-device-is-sick",
    "begins-healthy": "reports-a-change-while-the-kubelet-was-away",
    "empties-its-directory": "leaves-sockets-of-others-alone-after-sigterm",
    "deletes-the-kubelets-socket": "leaves-sockets-of-others-alone-after-sigterm",
    "lists-devices-twice": "lists-each-device-for-one-resource",
    "registers-two-names": "lists-each-device-for-one-resource",
    "gives-what-it-prefers": "keeps-its-answers",
    "gives-one-of-a-pair": "gives-the-nodes-of-each-device",
    "gives-a-missing-node": "gives-existing-device-nodes",
    "gives-a-file": "gives-existing-device-nodes",
    "gives-paths-in-its-container": "gives-existing-device-nodes",
    "writes-its-state-in-place": "starts-where-it-was-killed",
    "starts-once": "answers-pre-start-container",
    "refuses-calls-at-once": "answers-calls-at-once",
    "opens-files-forever": "does-not-grow-with-time",
    "lists-late": "lists-devices-soon",
    "returns-with-one-of-two": "returns-with-all-its-resources",
    "returns-unhealthy": "keeps-its-devices",
    "prefers-among-all": "prefers-while-a-device-is-sick",
    "starts-nothing-while-sick": "pre-starts-while-a-device-is-sick",
    "refuses-what-has-recovered": "allocates-a-device-that-has-recovered",
    "odd-variable": "gives-valid-variables-and-annotations",
    "stops-after-a-hundred": "answers-many-calls keeps-its-answers",
    "keeps-megabytes": "grows-with-no-call",
    "leaves-zombies": "grows-with-no-call",
    "removes-former-mounts": "keeps-the-mounts-of-other-containers keeps-what-it-has-mounted",
    "clears-its-mounts-at-sigterm": "keeps-what-it-has-mounted",
    "recreates-its-mounts": "keeps-what-it-has-mounted",
    "gives-a-lost-path": "keeps-what-it-has-mounted gives-nothing-that-has-vanished",
    "tires-of-preferring": "keeps-its-preferences",
    "keeps-a-lock": "answers-after-canceled-calls",
    "heals-at-its-start": "reports-a-sick-device-after-a-kill",
    "blames-another-device": "reports-a-later-change-of-health",
    "prefers-for-the-first": "prefers-for-each-of-two-containers",
    "busy": "is-quiet-when-idle",
    "flickers": "keeps-its-devices",
    "starts-one-device": "answers-pre-start-container",
    "panics-at-a-must": "answers-get-preferred-allocation",
    "once-only": "allocates-again-in-the-same-way",
    "counts": "allocates-again-in-the-same-way",
    "answers-once": "allocates-again-in-the-same-way",
    "answers-few": "allocates-all-devices allocates-more-than-two-devices",
    "forgets": "mounts-the-same-again",
    "mounts-a-missing-path": "mounts-existing-paths",
    "prefers-nothing": "answers-get-preferred-allocation prefers-for-each-of-two-containers",
    "prefers-too-few": "prefers-as-many-as-asked prefers-what-it-must-include",
    "prefers-the-taken": "prefers-only-what-is-available",
    "prefers-at-will": "prefers-what-it-must-include",
    "no-pre-start": "answers-pre-start-container",
    "ignores-sigterm": "ends-on-sigterm",
    "waits-through-sigterm": "ends-on-sigterm-without-a-kubelet",
    "panics-at-sigterm": "ends-on-sigterm",
    "leaves-its-socket": "removes-its-socket",
    "never-sick": "reports-health-after-a-kubelet-restart reports-a-change-of-health",
    "adds-a-device": "reports-health-after-a-kubelet-restart reports-a-change-of-health",
    "ends-its-stream-after-a-change": "reports-health-after-a-kubelet-restart reports-a-change-of-health",
    "clears-its-list-first": "reports-health-after-a-kubelet-restart reports-a-change-of-health",
    "loses-a-later-change": "reports-health-after-a-kubelet-restart",
    "dies-of-a-later-change": "reports-health-after-a-kubelet-restart",
    "lists-what-has-changed": "reports-health-after-a-kubelet-restart reports-a-change-of-health",
    "never-recovers": "reports-a-recovery-of-health",
    "sends-two-lists": "reports-a-later-change-of-health",
    "recovers-in-lower-case": "reports-a-recovery-of-health spells-healthy-as-kubelets-do",
    "returns-twice": "",
    "short-stream": "keeps-its-stream-open",
    "ends-its-stream-after-fifteen-seconds": "keeps-its-stream-open",
    "ends-its-stream-after-five-seconds": "ends-no-stream",
    "odd-bytes": "keeps-its-stream-open returns-after-the-directory-is-emptied",
    "registers-again": "registers-once",
    "registers-each-five-seconds": "registers-once",
    "registers-after-a-return": "registers-once-after-a-kubelet-restart",
    "chatters": "sends-few-lists",
    "new-ids": "keeps-its-ids",
    "returns-with-fewer-devices": "keeps-its-ids",
    "numbers-anew": "gives-the-same-nodes-after-a-restart allocates-after-sigterm",
    "keeps-its-first-answer": "gives-the-same-nodes-after-a-restart",
    "never-returns": "returns-after-the-directory-is-emptied",
    "returns-without-devices": "returns-to-a-kubelet-that-was-away returns-after-kubelet-sock-is-recreated "
    "returns-after-two-restarts returns-after-the-directory-is-emptied",
    "returns-under-another-name": "returns-to-a-kubelet-that-was-away returns-after-kubelet-sock-is-recreated "
    "returns-after-two-restarts returns-after-the-directory-is-emptied",
    "returns-once": "returns-again-after-a-kubelet-restart",
    "deaf-after-a-return": "returns-again-after-a-kubelet-restart",
    "watches-its-socket": "returns-after-kubelet-sock-is-recreated",
    "watches-files": "",
    "gives-up": "returns-to-a-kubelet-that-was-away",
    "spins": "is-quiet-while-the-kubelet-is-away",
    "spins-without-a-socket": "is-quiet-while-the-kubelet-is-away",
    "floods": "is-patient-with-a-kubelet-that-refuses",
    "floods-for-one-of-two": "is-patient-with-a-kubelet-that-refuses",
    "ends-when-refused": "",
    "ends-when-refused-later": "",
    "ignores-refusals": "ends-or-registers-after-a-refusal",
    "slow-to-return": "",
    "slow-to-start": "",
    "finds-its-socket": "starts-where-it-was-killed",
    "deletes-other-sockets": "leaves-sockets-of-others-alone leaves-sockets-of-others-alone-after-sigterm",
    "start-second": "",
    "hides-while-sick": "reports-a-change-while-the-kubelet-was-away",
    "needs-healthy-devices": "starts-while-a-device-is-sick",
    "sets-one-variable-for-two": "gives-each-variable-once",
    "marks-what-it-starts": "answers-after-canceled-calls",
    "starts-one-at-a-time": "starts-containers-at-the-same-time",
    "prints-a-secret": "prints-no-secrets",
    "exits": "",
    "slow-at-first": "",
    "starts-slowly": "",
    "refuses-with-unavailable": "allocates-all-devices",
    "shares": "",
    "only-variables": "",
    "two-resources": "",
    "first-is-empty": "",
}


# Faults, with the other checks that cannot pass on them either.
_BREAKS_TOO: dict[str, str] = {
    "never-returns": "returns-to-a-kubelet-that-was-away returns-after-kubelet-sock-is-recreated "
    "returns-after-two-restarts",
    "gives-up": "returns-after-kubelet-sock-is-recreated returns-after-two-restarts waits-for-a-late-kubelet "
    "returns-after-the-directory-is-emptied",
    "registers-again": "is-quiet-while-the-kubelet-is-away is-patient-with-a-kubelet-that-refuses",
    "returns-once": "returns-after-kubelet-sock-is-recreated returns-after-two-restarts "
    "returns-after-the-directory-is-emptied",
    "returns-without-devices": "returns-again-after-a-kubelet-restart",
    "removes-former-mounts": "gives-nothing-that-has-vanished",
    "finds-its-socket": "",
    **dict.fromkeys(
        (
            *("accumulates", "forgets-its-devices", "keeps-its-first-answer", "mixes-calls", "numbers-anew"),
            *("refuses-what-has-recovered", "keeps-half-a-call"),
        ),
        "keeps-its-answers",
    ),
    "numbers-the-healthy": "keeps-its-answers starts-while-a-device-is-sick",
    "lists-nothing-while-sick": "keeps-other-devices-healthy lists-sick-devices",
    "waits-for-sick-devices": "starts-while-a-device-is-sick",
    "prefers-among-all": "starts-while-a-device-is-sick",
    "starts-nothing-while-sick": "starts-while-a-device-is-sick",
    "tires-of-preferring": "prefers-as-many-as-asked prefers-what-it-must-include",
    "keeps-a-lock": "keeps-its-answers",
    "gives-a-file": "mounts-existing-paths",
    "gives-a-missing-node": "mounts-existing-paths",
    "starts-once": "answers-calls-at-once pre-starts-after-a-kill pre-starts-after-a-kubelet-restart "
    "pre-starts-after-sigterm",
    "opens-files-forever": "grows-with-no-call",
    "heals-at-its-start": "reports-a-later-change-of-health",
    "blames-another-device": "reports-a-change-while-the-kubelet-was-away",
    "gives-what-it-prefers": "answers-calls-at-once allocates-after-a-kubelet-restart",
    "ignores-sigterm": "ends-on-sigterm-without-a-kubelet",
}


@cache
def planted() -> tuple[Planted, ...]:
    """Return all programs: the plugins, then the drivers by group."""
    return (*map(_plugin, PLUGIN_FAULTS), *(_driver(group, one) for group in GROUPS for one in classes_of(group)))


def find(name: str) -> Planted:
    """Return the program with this name. Raises KeyError if there is no such program."""
    for one in planted():
        if one.name == name:
            return one
    raise KeyError(name)


def classes_of(group: str) -> "Sequence[type[GoodDriver]]":
    """Return the driver classes of a group that are in the catalog, sorted by name."""
    from devicecore_tools.conformance.faults.good_driver import GoodDriver

    module = import_module(f"{__name__}.drivers.{group}")
    members = [member for _, member in inspect.getmembers(module, inspect.isclass)]
    own = [member for member in members if member.__module__ == module.__name__ and issubclass(member, GoodDriver)]
    return [member for member in own if member.fails or member.is_good]


def _plugin(name: str) -> Planted:
    checks = tuple(PLUGIN_FAULTS[name].split())
    options = ["--registry"] if name.startswith("watched") else []
    if (
        any("health" in check or "gone" in check or "sick" in check or "recovered" in check for check in checks)
        and name != "odd-health"
    ):
        options += ["--provoke-health", "touch {dir}/sick", "--undo-health", "rm -f {dir}/sick"]
    breaks_too = tuple(_BREAKS_TOO.get(name, "").split())
    return Planted(name, PLUGIN_KIND, checks, name.replace("-", " "), tuple(options), name, breaks_too)


def driver_at(place: str) -> "type[GoodDriver]":
    """Return the driver class `GROUP:CLASS`."""
    group, _, name = place.partition(":")
    found: type[GoodDriver] = getattr(import_module(f"{__name__}.drivers.{group}"), name)
    return found


def _driver(group: str, one: "type[GoodDriver]") -> Planted:
    words = _WORD.sub("-", one.__name__).lower()
    sentence = (one.__doc__ or "").split("\n\n", maxsplit=1)[0]  # a class does not inherit a docstring
    variables = (word for name, value in one.environment.items() for word in ("--env", f"{name}={value}"))
    options = (*one.options, *variables)
    place = f"{group}:{one.__name__}"
    breaks_too = tuple(one.breaks_too)
    return Planted(words, DRIVER_KIND, one.fails, sentence or words.replace("-", " "), options, place, breaks_too)
