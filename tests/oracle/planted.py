"""Faults that the comparison with Kubernetes must find: `make mutants KIND=oracle` injects one after another.

Each fault is injected into a copy of the library. A fault that is not revealed by `CASES` cases of its kind is
reported, and the exit status is then 1.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from attrs import frozen

from tools.make_peers import PeersError, build, default_version

ROOT = Path(__file__).parents[2]
CASES = 2_000


@frozen
class Fault:
    """A replacement of a string in a file of one of our packages, and the kind of case that must reveal it."""

    name: str
    kind: str
    file: str
    before: str
    after: str


FAULTS = (
    Fault(
        "no error is reported as such",
        "allocators",
        "domain/allocation/__init__.py",
        "is_error=bool(problem)",
        "is_error=False",
    ),
    Fault(
        "each refusal is an error",
        "allocators",
        "domain/allocation/__init__.py",
        "is_error=bool(problem)",
        "is_error=True",
    ),
    Fault(
        "a suffix counts as 1",
        "quantity",
        "domain/quantity.py",
        "2 ** _TWOS.get(suffix, 0)",
        "2**0",
    ),
    Fault(
        "G and M are swapped",
        "quantity",
        "domain/quantity.py",
        '"M": 6, "G": 9',
        '"M": 9, "G": 6',
    ),
    Fault(
        "a negative quantity is read as positive",
        "quantity",
        "domain/quantity.py",
        "return -whole if self.nanos < 0 else whole",
        "return whole",
    ),
    Fault(
        "a quantity above 2^63 is not limited",
        "quantity",
        "domain/quantity.py",
        "min(-(-abs(self.nanos) // _NANO), MAX_QUANTITY)",
        "-(-abs(self.nanos) // _NANO)",
    ),
    Fault(
        "a refused second admission frees all devices",
        "devices",
        "manager/turns.py",
        "ledger = ledger.release(reservation.key, reservation.resource)",
        "ledger = ledger.evict([reservation.key.pod])",
    ),
    Fault(
        "unaligned devices come first",
        "devices",
        "domain/selection.py",
        "_fill(taken, request.size, aligned, unaligned, no_affinity)",
        "_fill(taken, request.size, unaligned, aligned, no_affinity)",
    ),
    Fault(
        "fallbacks are reversed",
        "devices",
        "domain/selection.py",
        "fallbacks=(unaligned, no_affinity)",
        "fallbacks=(no_affinity, unaligned)",
    ),
    Fault(
        "the closest NUMA nodes are ignored",
        "topology",
        "domain/topology.py",
        "return len(mask), distance_within(mask.bits), mask.bits",
        "return len(mask), 0, mask.bits",
    ),
    Fault(
        "a claim is forgotten before all its drivers have released it",
        "dra",
        "domain/dra/releasing.py",
        "return drivers - known.drivers if known and known.calls == claim.calls else drivers",
        "return frozenset() if known and known.calls == claim.calls else drivers",
    ),
    Fault(
        "no driver is called to release a claim",
        "dra",
        "domain/dra/releasing.py",
        "missing = {driver for claim in claims for driver in _left(claim, released)}",
        "missing = set[DriverName]()",
    ),
    Fault(
        "a claim with a different UID is the same claim",
        "dra",
        "domain/dra/preparing.py",
        "elif known.uid != claim.uid:",
        "elif known.uid is None:",
    ),
    Fault(
        "held devices on other nodes are not counted",
        "claims",
        "domain/allocation/search.py",
        "[*(device for _, device in pool.devices), *pool.elsewhere]",
        "[device for _, device in pool.devices]",
    ),
    Fault(
        "pools are tried in reverse order",
        "claims",
        "domain/allocation/pools.py",
        "sorted(pools, key=lambda pool: (pool.binds_late, pool.key))",
        "sorted(pools, key=lambda pool: (pool.binds_late, pool.key))[::-1]",
    ),
    Fault(
        "a preference may name any device",
        "devices",
        "domain/selection.py",
        "if device in self.eligible)",
        "if device in self.candidates)",
    ),
    Fault(
        "the plugin is not told which devices it must include",
        "devices",
        "domain/selection.py",
        "return AskPlugin(aligned | taken, taken,",
        "return AskPlugin(aligned | taken, _NONE,",
    ),
    Fault(
        "PreStartContainer is never called",
        "devices",
        "manager/plugins.py",
        "if not plugin.options.pre_start_required:",
        "if plugin.options:",
    ),
    Fault(
        "a container starts although PreStartContainer fails",
        "devices",
        "manager/plugins.py",
        "            self._transport.pre_start_container(plugin.id, tuple(allocation.devices))",
        """            try:
                self._transport.pre_start_container(plugin.id, tuple(allocation.devices))
            except Exception:
                pass""",
    ),
    Fault(
        "the last of two conflicting answers wins",
        "devices",
        "domain/container_options.py",
        "kept, _ = first.setdefault(name, (text, value))",
        "first[name] = text, value; kept = text",
    ),
    Fault(
        "a CDI name appears twice",
        "devices",
        "domain/container_options.py",
        "cdi_devices = dict.fromkeys(",
        "cdi_devices = list(",
    ),
    Fault(
        "a container that has run since before a restart gets devices",
        "devices",
        "domain/selection.py",
        "if request.already_running:",
        "if request.already_running is None:",
    ),
    Fault(
        "pods are forgotten before all are known",
        "devices",
        "manager/active_pods.py",
        "self._pods is None or not self._pods.sources_ready():",
        "self._pods is None:",
    ),
    Fault(
        "devices of a pod whose plugin fails stay taken",
        "devices",
        "manager/turns.py",
        "ledger = ledger.release(reservation.key, reservation.resource)",
        "ledger = ledger",
    ),
    Fault(
        "a newer instance has the options of the older one",
        "devices",
        "domain/inventory.py",
        "plugins = (*resource.plugins, Plugin(id_, options))",
        "plugins = (*resource.plugins, Plugin(id_, (resource.plugins or (Plugin(id_, options),))[-1].options))",
    ),
    Fault(
        "nine NUMA nodes are allowed",
        "topology-options",
        "domain/topology.py",
        "MAX_ALLOWABLE_NUMA_NODES = 8",
        "MAX_ALLOWABLE_NUMA_NODES = 9",
    ),
    Fault(
        "the memory of sidecars is released",
        "memory",
        "../devicecore_numa/domain/memory_policy.py",
        "        if one.ends:\n            state = release_memory",
        "        if one.is_init:\n            state = release_memory",
    ),
    Fault(
        "a refused pod does not end what other pods may reuse",
        "admission-numa",
        "../devicecore_numa/managers.py",
        "self.state = evolve(before, reusable=after.reusable)",
        "self.state = before",
    ),
    Fault(
        "no CPUs of init containers are reused",
        "cpus",
        "../devicecore_numa/domain/cpu_policy.py",
        "free = self.available(state) | state.reusable_of(pod.uid)",
        "free = self.available(state)",
    ),
    Fault(
        "sockets may have different sizes",
        "cpus",
        "../devicecore_numa/domain/cpu_assignment.py",
        "== (size or groups[key].bit_count())",
        "== groups[key].bit_count()",
    ),
    Fault(
        "only requests of containers that start earlier are reused",
        "extended",
        "../devicecore_tools/doctor/pod/extended_claim.py",
        "if number >= index]",
        "if number < index]",
    ),
    Fault(
        "the oldest class serves a resource",
        "extended",
        "../devicecore_tools/doctor/pod/cluster_objects.py",
        "classes.sort(key=itemgetter(0))",
        "classes.sort(key=itemgetter(0), reverse=True)",
    ),
    Fault(
        "a plugin without devices serves a resource",
        "extended",
        "../devicecore_tools/doctor/pod/claim_trial.py",
        "(size := machine.allocatable.get(name)) and size.nanos]",
        "machine.allocatable.get(name)]",
    ),
    Fault(
        "a device that has become unhealthy causes no refusal",
        "devices",
        "domain/selection.py",
        "if allocation and not allocation.devices <= report.healthy:",
        "if not request.key:",
    ),
    Fault(
        "devices that sidecars hold are reused",
        "devices",
        "domain/selection.py",
        "return reusable - kept - ledger",
        "return reusable - ledger",
    ),
    Fault(
        "a container gets all devices that its plugin prefers",
        "devices",
        "domain/selection.py",
        "list(usable)[:missing]",
        "list(usable)",
    ),
    Fault(
        "a plugin is asked although all aligned devices are needed",
        "devices",
        "domain/selection.py",
        "if needed == len(aligned):",
        "if needed < 0:",
    ),
    Fault(
        "NUMA node -1 counts as a node",
        "devices",
        "domain/selection.py",
        "for node in report.by_numa_node if node >= 0",
        "for node in report.by_numa_node",
    ),
    Fault(
        "a device that is listed twice counts once",
        "devices",
        "domain/inventory.py",
        "len(report.healthy) + len(report.unhealthy)",
        "len(report.devices)",
    ),
    Fault(
        "a plugin that is gone has no unhealthy devices",
        "devices",
        "domain/inventory.py",
        "unhealthy=self.healthy | self.unhealthy",
        "unhealthy=self.healthy",
    ),
    Fault(
        "a device without a topology is on node 0 in the file",
        "devices",
        "domain/checkpoint/state.py",
        "or (NO_TOPOLOGY,)",
        "or (NumaNode(0),)",
    ),
    Fault(
        "plugins' answers are lost at a restart",
        "devices",
        "domain/checkpoint/state.py",
        'Receipt(entry.alloc_resp or b"")',
        'Receipt(b"")',
    ),
    Fault(
        "a plugin is asked for devices that a claim provides",
        "devices",
        "domain/node_state.py",
        " and (container.name, resource) not in pod.claimed\n            ]",
        "\n            ]",
    ),
    Fault(
        "a pod without devices raises allocatable",
        "devices",
        "domain/node_state.py",
        "if pod not in self.ledger.allocations:",
        "if not pod:",
    ),
    Fault(
        "sidecars do not count alongside later containers",
        "admission",
        "domain/capacity.py",
        "if container.restartable:",
        "if container is None:",
    ),
    Fault(
        "only free devices determine how few NUMA nodes suffice",
        "admission",
        "domain/topology.py",
        "if len(mask.numa_nodes) < least and len(touched) >= size:",
        "if len(mask.numa_nodes) < least and len(available & touched) >= size:",
    ),
    Fault(
        "a container's drivers are listed in reverse order",
        "dra",
        "domain/dra/devices.py",
        "for driver, devices in sorted(claim.drivers.items()) for",
        "for driver, devices in sorted(claim.drivers.items(), reverse=True) for",
    ),
    Fault(
        "a container's claims are listed in reverse order",
        "dra",
        "domain/dra/devices.py",
        "in sorted(wanted_requests(pod, container).items()):",
        "in sorted(wanted_requests(pod, container).items(), reverse=True):",
    ),
    Fault(
        "drivers are called to prepare in reverse order",
        "dra",
        "domain/dra/preparing.py",
        "driver = min(missing)",
        "driver = max(missing)",
    ),
    Fault(
        "drivers are called to release in reverse order",
        "dra",
        "domain/dra/releasing.py",
        "driver = min(missing)",
        "driver = max(missing)",
    ),
    Fault(
        "a call that only one of the devices does not need is not made",
        "dra",
        "domain/dra/claims.py",
        "found[result.driver] = found.get(result.driver, own) & own",
        "found[result.driver] = found.get(result.driver, own) | own",
    ),
    Fault(
        "an unneeded release is requested",
        "dra",
        "domain/dra/releasing.py",
        "if not claim.skips_call(driver, UNPREPARE))",
        ")",
    ),
    Fault(
        "a resource from a file never expires",
        "devices",
        "domain/inventory.py",
        "return not self.plugins and (self.gone_since is None",
        "return not self.plugins and not self.awaited and (self.gone_since is None",
    ),
    Fault(
        "the grace period is a little longer",
        "devices",
        "domain/inventory.py",
        "GRACE_PERIOD = 300.0",
        "GRACE_PERIOD = 303.0",
    ),
    Fault(
        "the grace period is a little shorter",
        "devices",
        "domain/inventory.py",
        "GRACE_PERIOD = 300.0",
        "GRACE_PERIOD = 297.0",
    ),
    Fault(
        "no hints if too few devices are free besides the reusable ones",
        "admission",
        "domain/topology.py",
        "if reusable and len(available | reusable) < size:",
        "if reusable and len(available) < size:",
    ),
    Fault(
        "reusable devices do not count for hints",
        "admission",
        "domain/topology.py",
        ">= size - len(must_reuse) and",
        ">= size and",
    ),
    Fault(
        "hints need not include the reused devices",
        "admission",
        "domain/topology.py",
        " and reused <= touched:",
        ":",
    ),
    Fault(
        "an init container reuses only the previous one's devices",
        "devices",
        "domain/selection.py",
        "            reusable |= by_container",
        "            reusable = by_container",
    ),
    Fault(
        "only the first init container leaves devices",
        "devices",
        "domain/selection.py",
        "            reusable |= by_container.get(container.name, _NONE)",
        "            reusable |= by_container.get(container.name, _NONE); is_before = False",
    ),
    Fault(
        "devices that later init containers hold are reused",
        "admission",
        "domain/selection.py",
        "        elif is_before:",
        "        else:",
    ),
    Fault(
        "devices are tried in reverse order",
        "claims",
        "domain/allocation/search.py",
        "for index, candidate in enumerate(devices):",
        "for index, candidate in enumerate(devices[::-1]):",
    ),
)


def is_found(fault: Fault, version: str, seed: str) -> bool:
    """Return whether the comparison finds a case that agrees without the fault and differs with it."""
    with tempfile.TemporaryDirectory(prefix="devicecore-planted-") as directory:
        library = Path(directory) / "devicecore"
        packages = ROOT / "packages"
        for source in (
            ROOT / "src" / "devicecore",
            packages / "numa" / "src" / "devicecore_numa",
            packages / "tools" / "src" / "devicecore_tools",
        ):
            shutil.copytree(source, library.with_name(source.name), ignore=shutil.ignore_patterns("__pycache__"))
        file = library / fault.file
        text = file.read_text("utf-8")
        assert text.count(fault.before), f"{fault.file} has no {fault.before!r}"
        file.write_text(text.replace(fault.before, fault.after), "utf-8")
        path = os.pathsep.join((directory, str(ROOT)))
        asked = ["--kubernetes", version, "--kind", fault.kind, "--seed", seed]
        run = _compared([*asked, "--cases", str(CASES), "--until-found", "--patience", "10"], path)
    is_found = run.returncode == 1
    if is_found and (case := re.search(r"CASE=(\d+)", run.stdout)):
        is_found = _compared([*asked, "--case", case[1]], str(ROOT)).returncode == 0  # no difference without the fault
    print(f"{'found' if is_found else 'NOT FOUND'}: {fault.name} ({fault.kind})", flush=True)
    print(*(f"    {line}" for line in run.stdout.splitlines()[1:5]), sep="\n", flush=True)
    if run.returncode not in (0, 1):
        print(run.stderr, file=sys.stderr)
    return is_found


def _compared(options: Sequence[str], path: str) -> subprocess.CompletedProcess[str]:
    """Run the comparison with the library at this path."""
    return subprocess.run(
        [sys.executable, "-m", "tests.oracle", *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Inject the faults, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracle.planted", description=__doc__.partition("\n")[0])
    parser.add_argument("--kubernetes", default=default_version(), metavar="VERSION", help="(%(default)s)")
    parser.add_argument("--seed", default="41", help="(%(default)s)")
    parser.add_argument("--fault", help="inject only the faults whose names contain this text")
    options = parser.parse_args(arguments)
    chosen = [one for one in FAULTS if (options.fault or "") in one.name]
    if not chosen:
        parser.error(f"--fault: no fault has a name that contains {options.fault!r}")
    try:
        build(options.kubernetes, ["oracle"])
    except PeersError as error:
        print(f"make mutants: {error}", file=sys.stderr)
        return error.status
    found = [is_found(one, options.kubernetes, options.seed) for one in chosen]
    print(f"{sum(found)} of {len(found)} injected faults were found")
    return 0 if all(found) else 1


if __name__ == "__main__":
    sys.exit(main())
