"""Write docs/cards.md, which shows what the conformance checks find in several plugins and drivers: `make zoo`.

Go programs are built from the modules of `tools.make_peers`, Python packages are installed into separate environments,
and each runs under `devicecore conformance`. A program that knows only the kubelet's own directories runs in a mount
namespace, which needs root. No test compares the page, because it depends on third-party programs.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from devicecore_tools.conformance.device_plugin import CHECKS
from devicecore_tools.conformance.dra import CHECKS as DRA_CHECKS

from devicecore.domain.text import foreign_text
from tools.conformance_runs import report_of
from tools.make_peers import KUBERNETES, PeersError, cache_of, go, module_file, sources_of

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "cards.md"
HOMES = ROOT / ".cards"
BUDGET = "280"  # seconds that the checks of a subject may take
AT_ONCE = 3  # subjects checked at the same time; most of a run is spent waiting
VERSIONS = ("1.37.2", "1.36.3")  # releases of Kubernetes whose programs are checked
PYDRA = "kubernetes-pydra==0.1.0"

# Run as root in a separate mount namespace, with empty versions of the directories that some programs hard-code.
PRIVATE = (
    "mount -t tmpfs zoo /var/lib && mkdir -p /var/lib/kubelet/device-plugins && "
    'mount -t tmpfs zoo /run && mkdir -p /run/cdi && exec "$@"'
)


class Subject(NamedTuple):
    """A plugin or driver.

    Attributes:
        name: a short description, as the page shows it.
        kind: `plugin` or `driver`.
        version: its version.
        command: the command that starts the plugin or driver, with the placeholders of `devicecore conformance`;
            `{program}` stands for what was built or installed.
        package: a Go package in Kubernetes' module, or a Python package with its version.
        options: options of `devicecore conformance`.
        is_private: whether the program uses the kubelet's own directories, whatever its arguments are.
    """

    name: str
    kind: str
    version: str
    command: str
    package: str = ""
    options: str = ""
    is_private: bool = False


SIMULATED = f"{sys.executable} -m devicecore_tools"
TEST_DRIVER = (
    "{program} kubelet-plugin --kubeconfig {kubeconfig} --node-name {node} --cdi-dir {cdi} --datadir {plugins} "
    "--plugin-registration-path {registry}"
)
ENVIRONMENT = (  # the directory where pydra's drivers create their sockets and files
    "env SOCKET_PATH={plugins}/driver/plugin.sock REGISTRATION_SOCKET_PATH={registry}/driver-reg.sock CDI_DIR={cdi} "
    "{program} -m "
)
SAMPLE, DRIVER = f"{KUBERNETES}/test/images/sample-device-plugin", f"{KUBERNETES}/test/e2e/dra/test-driver"
HERE = "from this repository"
SUBJECTS = (
    Subject(
        *("devicecore plugin simulated", "plugin", HERE),
        f"{SIMULATED} plugin simulated --resource example.com/gpu --count 4 --numa-nodes 0,1 --socket-dir {{dir}}",
    ),
    Subject(
        *("devicecore dra-driver simulated", "driver", HERE),
        f"{SIMULATED} dra-driver simulated --name gpu.example.com --registry {{registry}} --plugin-dir {{plugins}} "
        "--cdi-dir {cdi}",
    ),
    *(
        Subject(
            *("Kubernetes' test driver", "driver", version, TEST_DRIVER, DRIVER),
            options="--data-dir test-driver.cdi.k8s.io",
        )
        for version in VERSIONS
    ),
    *(
        Subject(
            *(f"Kubernetes' test driver, {what}", "driver", VERSIONS[0], f"{TEST_DRIVER} {option}", DRIVER),
            options="--data-dir test-driver.cdi.k8s.io",
        )
        for what, option in (("eight devices", "--num-devices 8"), ("metadata", "--enable-device-metadata"))
    ),
    Subject("pydra, tpu", "driver", "0.1.0", f"{ENVIRONMENT} pydra.plugins.tpu.driver", PYDRA),
    Subject("pydra, network", "driver", "0.1.0", f"{ENVIRONMENT} pydra.plugins.network.driver", PYDRA),
    *(
        Subject(
            *(f"Kubernetes' sample device plugin{what}", "plugin", version, command, SAMPLE),
            options="--socket-dir /var/lib/kubelet/device-plugins",
            is_private=True,
        )
        for version in VERSIONS
        for what, command in (("", "{program}"), (", CDI", "env CDI_ENABLED=1 {program}"))
    ),
)

# What the source code shows about a failure, by the start of the subject's name and the check. Each explanation was
# found by reading the source.
SOURCE: Mapping[tuple[str, str], str] = {
    (
        "Kubernetes' test",
        "notices-a-wipe-right-after-an-update",
    ): "according to the comment on DefaultMutationCacheTTL, a slice whose deletion was not seen stays in "
    "resourceslice's cache for a minute",
    (
        "Kubernetes' test",
        "unprepares-after-a-restart",
    ): "nodeUnprepareResource looks the claim up in a map in memory, which is empty after a start, and "
    "reports success without removing the CDI file",
    (
        "Kubernetes' test",
        "unprepares-after-its-state-was-lost",
    ): "the map in memory is empty after the driver has restarted",
    (
        "Kubernetes' test",
        "unprepares-a-claim-that-was-deleted-meanwhile",
    ): "the map in memory is empty after the driver has restarted",
    (
        "Kubernetes' test",
        "refuses-an-unknown-device",
    ): "nodePrepareResource does not compare the allocation with a list of devices",
    (
        "Kubernetes' test",
        "refuses-a-device-in-use",
    ): "nodePrepareResource records devices by claim only, and does not compare claims with each other",
    (
        "Kubernetes' test",
        "writes-cdi-files-in-one-step",
    ): "by default, FileOperations.Create is os.WriteFile with the final name",
    (
        "Kubernetes' test",
        "reports-the-health-of-each-device",
    ): "buildHealthReport returns only devices for which a test has sent an update, and when the driver runs "
    "as a program, there is no test; the health service is on by default",
    (
        "Kubernetes' test",
        "prepares-a-claim-with-a-long-name",
    ): "kubeletplugin names a metadata directory after the namespace and the claim; this name is longer than "
    "the 255 bytes that a file name may have",
    ("pydra, tpu", "refuses-a-replaced-claim"): "prepare_hardware does not read the claim, and always uses device 0",
    ("pydra, tpu", "refuses-a-missing-claim"): "prepare_hardware does not read the claim, and always uses device 0",
    (
        "pydra, tpu",
        "refuses-a-claim-that-is-not-allocated",
    ): "prepare_hardware does not read the claim, and always uses device 0",
    ("pydra, tpu", "refuses-an-unknown-device"): "prepare_hardware does not read the claim, and always uses device 0",
    (
        "pydra, tpu",
        "separates-good-claims-from-bad-ones",
    ): "prepare_hardware does not read the claim, and always uses device 0",
    ("pydra, tpu", "names-existing-paths-in-cdi-files"): "the paths are constants, and this machine has no TPU",
    ("pydra, network", "restores-cdi-devices-after-a-reboot"): "prepare_hardware falls back to devices[0], a dict, and "
    "puts it into the CDI device name",
    ("pydra, network", "refuses-a-replaced-claim"): "prepare_hardware reads the claim by name and does not compare the "
    "UID",
    (
        "pydra, network",
        "refuses-a-missing-claim",
    ): "an error from the API server is logged, and then the first device is prepared",
    ("pydra, network", "refuses-a-claim-that-is-not-allocated"): "without an allocation, the first device is prepared",
    ("pydra, network", "refuses-an-unknown-device"): "prepare_hardware does not compare the device with a list",
    ("pydra, network", "answers-with-all-allocated-devices"): "the loop over the results stops at the first one",
    ("pydra, network", "makes-cdi-devices-for-each-device"): "the loop over the results stops at the first one",
    ("pydra", "names-the-requests-of-each-device"): "NodePrepareResources creates each Device without request_names",
    ("pydra", "refuses-a-device-in-use"): "prepare_hardware keeps no record of what is prepared",
    (
        "pydra",
        "separates-good-claims-from-bad-ones",
    ): "an error from the API server is logged, and a device is prepared",
    ("pydra", "refuses-senseless-names"): "the UID is used unchanged in the CDI file name",
    ("pydra", "writes-cdi-files-in-one-step"): "json.dump writes to a file that was opened under its final name",
    ("pydra", "publishes-again-after-a-wipe"): "serve publishes once when it starts, and watches nothing",
    ("pydra", "removes-obsolete-slices"): "publish_resource_slice looks up one slice by its name, and lists none",
    (
        "pydra",
        "removes-its-sockets",
    ): "serve deletes the sockets when it ends, but nothing handles SIGTERM, so serve does not get that far",
    ("pydra", "is-owned-by-its-node"): "publish_resource_slice sets no ownerReferences",
}

INTRODUCTION = """\
# Scorecards

For authors of plugins and drivers, and for anyone who wants to know what the checks find. `make zoo` writes this page:
it builds or installs the programs below, and runs `devicecore conformance` on each, with `--full` for drivers. If a
check with the severity `must` fails, Kubernetes cannot work with the program, or containers get each other's devices;
[conformance.md](conformance.md) explains the checks. Checks that need something the program does not offer are skipped.
Several of the programs were made for tests, and do not have to do everything that the checks ask for. Each result is
for one version at one time, on a machine without the devices that the programs manage, and is not a verdict on a
project.

For each failure, the table shows what the check saw and what the program's source says about it.

## Add a program

1. Add a `Subject` to `tools/make_zoo.py`: its package, and its command with the placeholders of
   [test-your-plugin.md](test-your-plugin.md) or [test-your-dra-driver.md](test-your-dra-driver.md). A program in Go has
   to be in a module that Go's module proxy serves.
2. Run `make zoo`, and read the source for each failure: is the rule that the check cites correct, and does it apply to
   this program? If not, change the check. Otherwise, add what the source says to `SOURCE`.
3. Commit `docs/cards.md`. The HTML cards are in `.cards/`.
"""


def main() -> int:
    """Write the page. If a subject could not be run, leave the page unchanged and return 1."""
    HOMES.mkdir(exist_ok=True)
    programs = {subject: program_of(subject) for subject in SUBJECTS}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        reports = dict(zip(SUBJECTS, pool.map(lambda one: report_on(one, programs[one]), SUBJECTS), strict=True))
    text = "\n".join([INTRODUCTION, *page(reports)])
    if missing := sum(report is None for report in reports.values()):
        print("\n".join(page(reports)))
        without = "1 subject was" if missing == 1 else f"{missing} subjects were"
        print(f"make zoo: {without} not run, so {PAGE.name} was left unchanged; the results of the others are above")
        return 1
    PAGE.write_text(text, encoding="utf-8")
    print(f"wrote {PAGE}")
    return 0


def program_of(subject: Subject) -> str | None:
    """Build or install a subject, and return what replaces `{program}`. If that fails, print why and return None."""
    if not subject.package:
        return ""
    print(f"== getting {subject.name} {subject.version}", flush=True)
    if subject.package.startswith(KUBERNETES):
        try:
            return str(built(subject))
        except PeersError as error:
            print(f"make zoo: {subject.name} {subject.version}: {error}", file=sys.stderr)
            return None
    home = HOMES / subject.package.replace("==", "-")  # env treats an argument that contains = as a variable
    python = str(home / "bin" / "python")
    if not (home / "bin" / "pip").exists():
        venv.create(home, with_pip=True)
    install = [python, "-m", "pip", "-qq", "--disable-pip-version-check", "install", subject.package]
    return None if subprocess.run(install, check=False).returncode else python


def built(subject: Subject) -> Path:
    """Build one of Kubernetes' test programs. Raises PeersError."""
    modules = module_file(subject.version, sources_of(subject.version))
    own = cache_of(subject.version) / "zoo.mod"  # the go command adds the modules that only these programs need
    shutil.copyfile(modules, own)
    shutil.copyfile(modules.with_suffix(".sum"), own.with_suffix(".sum"))
    target = cache_of(subject.version) / "bin" / subject.package.rpartition("/")[2]
    go("build", f"-modfile={own}", "-mod=mod", "-ldflags=-s -w", "-o", str(target), subject.package)
    return target


def report_on(subject: Subject, program: str | None) -> dict[str, Any] | None:
    """Run the checks on a subject. Return the report, or None if the subject cannot be run."""
    if program is None:
        return None
    private = []
    if subject.is_private:
        if os.geteuid() or not shutil.which("unshare"):
            print(f"make zoo: {subject.name} needs root and unshare(1) to get directories of its own", file=sys.stderr)
            return None
        private = ["unshare", "--mount", "sh", "-c", PRIVATE, "sh"]
    print(f"== checking {subject.name} {subject.version}", flush=True)
    card = HOMES / f"{re.sub('[^a-z0-9.]+', '-', f'{subject.name} {subject.version}'.lower())}.html"
    full = ["--full"] if subject.kind == "driver" else []
    options = ["--budget", BUDGET, *full, *shlex.split(subject.options), "--card", str(card)]
    return report_of(
        subject.kind,
        [*options, "--release", subject.version],
        shlex.split(subject.command.replace("{program}", program)),
        within=private,
        directory=HOMES,
        environment=os.environ | {"PYTHONUNBUFFERED": "1"},
    )


def page(reports: Mapping[Subject, dict[str, Any] | None]) -> Iterator[str]:
    """Yield the lines of the results."""
    yield "## The cards\n\n| subject | version | passed | failed | `must` failed | not decided | skipped |"
    yield "|---|---|---|---|---|---|---|"
    for subject, report in reports.items():
        checks = report["checks"] if report else ()
        failed = of(checks, "failed")
        counts = [len(of(checks, "passed")), len(failed), sum(one["severity"] == "must" for one in failed)]
        texts = (
            [*counts, len(of(checks, "undecided")), len(of(checks, "skipped"))] if report else ["not run", *[""] * 4]
        )
        yield f"| {subject.name} | {subject.version} | {' | '.join(map(str, texts))} |"
    for subject, report in reports.items():
        failed = of(report["checks"], "failed") if report else []
        if failed:
            yield f"\n### {subject.name} {subject.version}\n"
            yield "| check | severity | what the check saw | what the source says |\n|---|---|---|---|"
            for one in failed:
                known = CHECKS if subject.kind == "plugin" else DRA_CHECKS
                (check,) = (each for each in known if each.name == one["name"])
                actual = re.sub(r"/\w+/dc-\w+/", "", foreign_text(one["actual"], 300)).replace("|", "\\|")
                yield f"| `{check.name}` | {one['severity']} | {actual} | {source_of(subject, check.name)} |"
    yield ""


def source_of(subject: Subject, check: str) -> str:
    """Return what a subject's source code shows about a failed check."""
    found = (text for (name, failed), text in SOURCE.items() if failed == check and subject.name.startswith(name))
    return next(found, "not read")


def of(checks: Sequence[dict[str, Any]], verdict: str) -> list[dict[str, Any]]:
    """Return the checks with this verdict."""
    return [one for one in checks if one["verdict"] == verdict]


if __name__ == "__main__":
    sys.exit(main())
