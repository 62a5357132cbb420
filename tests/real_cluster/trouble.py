"""A real kubelet in trouble, the tools that diagnose it, and probe pods that show the truth.

A situation is a function that causes trouble on a node, together with the probe pods to try there:

    @situation(a_pod("probe", 1), finds={"dead-socket"})
    def a_plugin_is_killed(node: RealKubelet) -> None:
        node.plugin().kill()

Laws: If a probe that would start on a healthy node does not start, `doctor` has a finding or names a possibility that
it cannot rule out. `doctor` must find at least what it found when the situation was recorded. The record that `doctor`
saves gives the same report as the live node. A probe runs if `fits` says that it fits, and does not run if `fits` says
that it does not. `why` explains the cluster's messages about a probe that does not run.

The tools' output is written to the file `said.txt` in the node's directory. If the variable RECORDS names a directory,
one file per situation is written there, with the output of `doctor --save` and the results of the probes.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from tests.real_cluster.control_plane import ControlPlane, say
from tests.real_cluster.kubelet import RealKubelet
from tests.real_cluster.node import DEVICECORE, GPU, on_node
from tests.real_cluster.programs import Program, RealClusterError, wait_for

Json = Any

_RECORDED = Path(__file__).parents[2] / "packages" / "tools" / "tests" / "data" / "troubles"
_DOES_NOT_FIT = (1, 4)  # exit statuses of `fits`: the pod does not fit, or no scheduler sees that it fits
_UNTIL_RUNNING = 20.0  # seconds within which a probe must run
_UNTIL_SHOWN = 30.0  # seconds within which a kubelet must show the trouble
_SCHEDULED = 5.0  # seconds within which the scheduler finds a node if one fits
_SILENCE = "it waits, and no event says why"


@frozen
class Situation:
    """A problem on a node, and what is known about the problem.

    Attributes:
        name: the name of the function that causes the problem.
        make: causes the problem.
        probes: pods that would run on a healthy node.
        finds: codes that `doctor` must find.
        names: words that must appear in a finding of `doctor` or among the possibilities that it cannot rule out.
        is_quiet: whether the node is healthy, so that `doctor` must find nothing.
        config: fields of KubeletConfiguration.
    """

    name: str
    make: Callable[[RealKubelet], None]
    probes: tuple[Json, ...]
    finds: frozenset[str]
    names: frozenset[str]
    is_quiet: bool
    config: Mapping[str, Json]

    @property
    def expected(self) -> frozenset[str]:
        """The codes that `doctor` must find: `finds`, and those that it found when the situation was recorded."""
        file = _RECORDED / f"{self.name}.json"
        recorded = json.loads(file.read_text("utf-8"))["truth.json"]["findings"] if file.exists() else ()
        return self.finds.union(recorded)


SITUATIONS: dict[str, Situation] = {}
"""All situations, by name."""


def situation(
    *probes: Json, finds: Collection[str] = (), names: Collection[str] = (), is_quiet: bool = False, **config: Json
) -> Callable[[Callable[[RealKubelet], None]], Callable[[RealKubelet], None]]:
    """Return a decorator that registers a function as a situation. The arguments are attributes of `Situation`."""

    def register(make: Callable[[RealKubelet], None]) -> Callable[[RealKubelet], None]:
        expected = frozenset(finds), frozenset(names)
        SITUATIONS[make.__name__] = Situation(make.__name__, make, probes, *expected, is_quiet, config)
        return make

    return register


def a_pod(name: str, count: int = 1, resource: str = GPU, **fields: Json) -> Json:
    """Return a pod that requests devices of a resource. `fields` are added to the pod's spec."""
    resources = {"limits": {resource: str(count)}} if count else {}
    containers = [{"name": "main", "image": "registry.example/main:1", "resources": resources}]
    spec = {"terminationGracePeriodSeconds": 1, "containers": containers, **fields}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def a_claiming_pod(name: str, claim: str) -> Json:
    """Return a pod that uses a ResourceClaim."""
    pod = a_pod(name, 0, resourceClaims=[{"name": "device", "resourceClaimName": claim}])
    pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "device"}]}
    return pod


def a_class(driver: str = "gpu.example.com") -> Json:
    """Return a DeviceClass for a driver's devices, named after the driver."""
    selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
    return {"kind": "DeviceClass", "metadata": {"name": driver}, "spec": {"selectors": [selector]}}


def a_claim(name: str, count: int = 1, class_name: str = "gpu.example.com") -> Json:
    """Return a ResourceClaim for devices of a class."""
    request = {"name": "device", "exactly": {"deviceClassName": class_name, "count": count}}
    return {"kind": "ResourceClaim", "metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}


def with_claims(node: RealKubelet, **counts: int) -> None:
    """Create a class and, for each name in `counts`, a claim for that number of devices."""
    node.plane.admin.create(a_class())
    for name, count in counts.items():
        node.plane.admin.create(a_claim(name, count))


def a_driver_in_use(node: RealKubelet) -> Program:
    """Start a driver, run a pod that holds a device through the claim `held`, and create the claim `asked`."""
    driver = node.driver()
    with_claims(node, held=1, asked=1)
    node.run(a_claiming_pod("holder", "held"))
    return driver


@frozen
class Truth:
    """The result of a probe: whether it runs, and the cluster's messages if it does not."""

    runs: bool
    why: str


@frozen
class Verdicts:
    """What the tools say about a node, and what really happened there.

    Attributes:
        codes: the codes of the findings of `doctor`.
        sentences: the sentences of the findings.
        not_ruled_out: the possibilities that `doctor` has not ruled out.
        of_record: what `doctor` says only about the record or only about the live node.
        fits: the exit status of `fits` for each probe.
        truths: the result of each probe.
        unexplained: the cluster's messages about probes that `why` does not explain.
    """

    codes: tuple[str, ...]
    sentences: tuple[str, ...]
    not_ruled_out: tuple[str, ...]
    of_record: tuple[str, ...]
    fits: Mapping[str, int]
    truths: Mapping[str, Truth]
    unexplained: tuple[str, ...] = ()

    def problems(self, of: Situation) -> list[str]:
        """Return one sentence for each of the tools' errors."""
        found = [f"doctor did not find {code}" for code in sorted(of.expected - set(self.codes))]
        said = "\n".join((*self.sentences, *self.not_ruled_out))
        found += [f"doctor did not say {one!r}: {said}" for one in sorted(of.names) if one not in said]
        found += [f"the record gives a different report: {text}" for text in self.of_record]
        found += [f"why did not explain: {text}" for text in self.unexplained]
        if of.is_quiet and self.codes:
            found.append(f"doctor has findings on a node without trouble: {', '.join(self.codes)}")
        for name, truth in self.truths.items():
            fits = self.fits[name]
            if fits == 0 and not truth.runs:
                found.append(f"fits says that {name} fits, but it does not run: {truth.why or _SILENCE}")
            if fits in _DOES_NOT_FIT and truth.runs:
                found.append(f"fits says that {name} does not fit, but it runs")
            if not (truth.runs or of.is_quiet or self.codes or self.not_ruled_out):
                found.append(f"doctor is silent, but {name} does not run: {truth.why or _SILENCE}")
        return found


def judged(plane: ControlPlane, of: Situation) -> Verdicts:
    """Cause the trouble on a new node, run the tools, and try the probes."""
    name = f"worker-{list(SITUATIONS).index(of.name)}"
    node, folder = RealKubelet(plane, name, config=of.config), plane.directory / name
    try:
        with node:
            of.make(node)
            say(f"{of.name}: asking doctor and fits")
            report, of_record = _doctor_late(node, folder / "record", of.finds)
            fits = {probe["metadata"]["name"]: _fits(node, probe, folder) for probe in of.probes}
            say(f"{of.name}: trying {len(of.probes)} probes")
            truths = {probe["metadata"]["name"]: _truth(node, probe) for probe in of.probes}
            unexplained = [one.why for one in truths.values() if one.why and not _why(node, one.why, folder)]
    finally:
        _clear(plane, name)
    codes = tuple(sorted({one["code"] for one in report["findings"]}))
    sentences = tuple(str(one["sentence"]) for one in report["findings"])
    not_ruled_out = tuple(str(one) for one in report["not_ruled_out"])
    differences = tuple(_differences(report, of_record))
    verdicts = Verdicts(codes, sentences, not_ruled_out, differences, fits, truths, tuple(unexplained))
    tried = "; ".join(
        f"{probe} {'runs' if truth.runs else 'does not run'}, fits says: {_words(fits[probe])}"
        for probe, truth in truths.items()
    )
    say(f"{of.name}: doctor finds {', '.join(codes) or 'nothing'}; {tried}")
    if records := os.environ.get("RECORDS"):
        _keep(Path(records) / f"{of.name}.json", folder / "record", of, verdicts)
    return verdicts


def _keep(file: Path, record: Path, of: Situation, verdicts: Verdicts) -> None:
    """Write a record of a node and what really happened there, in the format that the tools' tests read."""
    files: dict[str, Json] = {one.name: _content(one.read_text("utf-8")) for one in sorted(record.iterdir())}
    if "node.json" in files:  # the record must not identify the machine
        info = files["node.json"]["status"]["nodeInfo"]
        files["node.json"]["status"]["nodeInfo"] = {"kubeletVersion": info["kubeletVersion"]}
    runs = {name: truth.runs for name, truth in verdicts.truths.items()}
    files["truth.json"] = {"findings": verdicts.codes, "probes": of.probes, "runs": runs, "fits": verdicts.fits}
    file.write_text(json.dumps(files, indent=1) + "\n", encoding="utf-8")


def _content(text: str) -> Json:
    """Return the parsed document, which is easier to read, or the text itself if parsing would lose something."""
    try:
        document = json.loads(text)
    except ValueError:
        return text
    return document if isinstance(document, dict | list) and "Checksum" not in document else text


def _clear(plane: ControlPlane, node: str) -> None:
    """Remove everything that a situation has left behind."""
    without = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": None}}}
    plane.admin.patch("Namespace", "default", without)
    keeping = (["acme.io/keep"], ["resource.kubernetes.io/delete-protection"])
    for kind in ("Pod", "ResourceClaim", "ResourceSlice", "DeviceClass", "DeviceTaintRule", "Node"):
        for one in plane.admin.list(kind):
            if kind == "Node" and one["metadata"]["name"] != node:
                continue
            namespace = one["metadata"].get("namespace", "")
            if one["metadata"].get("finalizers") in keeping:
                without_any = {"metadata": {"finalizers": None}}
                plane.admin.patch(kind, one["metadata"]["name"], without_any, namespace)
            plane.admin.delete(kind, one["metadata"]["name"], namespace, grace=0)


def _words(status: int) -> str:
    return "fits" if status == 0 else "does not fit" if status in _DOES_NOT_FIT else "unknown"


def _ours(folder: Path, *words: object) -> "subprocess.CompletedProcess[str]":
    command = [*DEVICECORE, *map(str, words)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if ended.returncode not in range(5) or "Traceback" in ended.stderr:
        raise RealClusterError(f"`devicecore {words[0]}` has failed:\n{ended.stdout}{ended.stderr}")
    with (folder / "said.txt").open("a", encoding="utf-8") as said:
        said.write(f"$ devicecore {words[0]} {words[1]} # status {ended.returncode}\n{ended.stdout}{ended.stderr}\n")
    return ended


def _where(node: RealKubelet) -> tuple[object, ...]:
    sources = ("--root", node.directory, "--kubeconfig", node.plane.kubeconfig(), "--node-name", node.name)
    return (*sources, "--plugin-timeout=3", "--cdi-dir", node.cdi)


def _doctor(node: RealKubelet, record: Path) -> tuple[Json, Json]:
    """Return the reports of `doctor` on the live node and on the node's record."""
    living = _ours(record.parent, "doctor", *_where(node), "--plugins", "--save", record, "--json")
    recorded = _ours(record.parent, "doctor", "--root", record, "--json")
    _ours(record.parent, "doctor", "--root", record)  # for people
    return json.loads(living.stdout), json.loads(recorded.stdout)


def _doctor_late(node: RealKubelet, record: Path, expected: Collection[str]) -> tuple[Json, Json]:
    """Return the reports of `doctor` once all expected codes are found, or after a while.

    On a busy machine, a kubelet may not show the problem at once.
    """
    end = time.monotonic() + _UNTIL_SHOWN
    while True:
        living, recorded = _doctor(node, record)
        if {*expected} <= {one["code"] for one in living["findings"]} or time.monotonic() > end:
            return living, recorded
        shutil.rmtree(record)
        settle(1.0)


def _differences(living: Json, recorded: Json) -> Iterator[str]:
    """Yield the statements that only one of two reports contains."""
    for name in ("verdict", "is_sound", "counts", "name", "account"):
        if living[name] != recorded[name]:
            yield f"{name}: {recorded[name]}, live: {living[name]}"
    for name in ("findings", "not_ruled_out", "devices"):
        both = [{json.dumps(_lasting(one), sort_keys=True) for one in of[name]} for of in (living, recorded)]
        yield from (f"only about the live node: {one}" for one in sorted(both[0] - both[1]))
        yield from (f"only about the record: {one}" for one in sorted(both[1] - both[0]))


def _lasting(one: Json) -> Json:
    """Return an item of a report without measured values."""
    return {**one, "measured": ""} if isinstance(one, dict) else one


def _why(node: RealKubelet, message: str, folder: Path) -> bool:
    """Return whether `why` explains a message."""
    return _ours(folder, "why", message, *_where(node)).returncode == 0


def _fits(node: RealKubelet, probe: Json, folder: Path) -> int:
    manifest = folder / f"{probe['metadata']['name']}.json"
    manifest.write_text(json.dumps(probe), encoding="utf-8")
    more: tuple[object, ...] = ()
    if probe["spec"].get("resourceClaims"):
        files = {
            "--slices": ("ResourceSlice", "DeviceClass", "Node"),
            "--claims": ("ResourceClaim", "ResourceClaimTemplate"),
        }
        for option, kinds in files.items():
            items = [
                {"kind": kind, "apiVersion": "v1" if kind == "Node" else "resource.k8s.io/v1", **one}
                for kind in kinds
                for one in node.plane.admin.list(kind)
            ]
            file = folder / f"{option.strip('-')}.json"
            file.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": items}), encoding="utf-8")
            more = (*more, option, file)
    return _ours(folder, "fits", manifest, "--node", folder / "record", *more).returncode


def _truth(node: RealKubelet, probe: Json) -> Truth:
    """Create a probe, and return whether it runs within a while or, if it does not, why."""
    admin, name = node.plane.admin, probe["metadata"]["name"]
    uid = admin.create(on_node(probe, node.name))["metadata"]["uid"]
    began = time.monotonic()

    def decided() -> Truth | None:
        status = admin.get("Pod", name)["status"]
        if status.get("phase") == "Running":
            return Truth(runs=True, why="")
        if time.monotonic() > began + _SCHEDULED and _is_unschedulable(status):
            return Truth(runs=False, why=_waiting(node, uid))
        if status.get("phase") == "Failed":
            return Truth(runs=False, why=f"{status.get('reason')}: {status.get('message')}")
        return None

    try:
        truth = wait_for(f"{name} to run", decided, _UNTIL_RUNNING)
    except RealClusterError:
        truth = Truth(runs=False, why=_waiting(node, uid))
    with (node.home / "said.txt").open("a", encoding="utf-8") as said:
        said.write(f"# {name} {'runs' if truth.runs else 'does not run'}: {truth.why}\n")
    if not truth.runs:  # the output of `why` about claims is not checked, but saved for people to read
        _ours(node.home, "why", name, "--kubeconfig", node.plane.kubeconfig())
    admin.delete("Pod", name, grace=0)
    wait_for(f"{name} to be gone", lambda: admin.get("Pod", name) is None)
    return truth


def _is_unschedulable(status: Json) -> bool:
    return any(one.get("reason") == "Unschedulable" for one in status.get("conditions") or [])


def _waiting(node: RealKubelet, uid: str) -> str:
    events = node.plane.admin.list("Event", fieldSelector=f"involvedObject.uid={uid}")
    warnings = [f"{one['reason']}: {one['message']}" for one in events if one["type"] == "Warning"]
    return warnings[-1] if warnings else ""


def settle(seconds: float) -> None:
    """Wait for something that cannot be observed, such as a kubelet's periodic work."""
    time.sleep(seconds)
