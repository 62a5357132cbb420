"""Run third-party scheduling programs on a fleet: `make guests`, or `make guests GUEST=kueue`.

`kueue` and `descheduler` are built from their modules. `autoscaler` is a loop in this file that acts as a cluster
autoscaler and its cloud provider: it adds nodes with `devicecore fleet do add`, and removes them by deleting their
Nodes. The manifests are in `docs/scheduler`. For each guest, a scenario is played, and the results are printed along
with the machine's load.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from attrs import frozen

from tests.real_cluster.control_plane import ControlPlane, say
from tests.real_cluster.node import DEVICECORE, is_ready
from tests.real_cluster.programs import Program, RealClusterError, free_port, wait_for
from tools.make_peers import cache_of, default_version

Json = Any

MANIFESTS = Path(__file__).parents[2] / "docs" / "scheduler"
GPU = "example.com/gpu"
IDLE = 5.0
"""Seconds without a pod after which the autoscaler removes a node. A real autoscaler waits for ten minutes."""


@frozen
class Guest:
    """A third-party program: its module, version and package."""

    module: str
    version: str
    package: str

    def built(self) -> Path:
        """Return the path of the program, after building it if it is not in the cache."""
        made = cache_of(default_version()).parent / "guests" / f"{self.package.rpartition('/')[2]}-{self.version}"
        if not made.exists():
            say(f"building {self.module} {self.version}, which takes a few minutes")
            words = ("go", "mod", "download", "-json", f"{self.module}@{self.version}")
            source = json.loads(_run(*words, cwd=Path("/"))).get("Dir")
            _run("go", "build", "-o", str(made), self.package, cwd=source)
        return made

    def source(self) -> Path:
        """Return the directory with the module's sources."""
        found = _run("go", "mod", "download", "-json", f"{self.module}@{self.version}", cwd=Path("/"))
        return Path(json.loads(found)["Dir"])


KUEUE = Guest("sigs.k8s.io/kueue", "v0.17.0", "./cmd/kueue")
DESCHEDULER = Guest("sigs.k8s.io/descheduler", "v0.36.0", "./cmd/descheduler")


def _run(*words: str, cwd: Path) -> str:
    environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": "-mod=readonly"}
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RealClusterError(f"{' '.join(words[:4])} failed: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.stdout


@frozen
class Stage:
    """A cluster with a fleet, on which a guest runs."""

    plane: ControlPlane
    fleet: Program
    control: Path
    last_to_first: ExitStack

    def kubectl(self, *words: str) -> str:
        """Run kubectl, and return its output."""
        program = self.plane.programs.path("kubectl")
        return _run(program, f"--kubeconfig={self.plane.kubeconfig()}", *words, cwd=self.plane.directory)

    def do(self, *words: str) -> str:
        """Send a command to the fleet."""
        return _run(*DEVICECORE, "fleet", "do", f"--control={self.control}", *words, cwd=self.plane.directory)

    def start(self, name: str, *words: str) -> Program:
        """Start a guest, which runs until the stage ends."""
        found = Program(name, words, self.plane.directory)
        found.start()
        self.last_to_first.callback(found.stop)
        return found

    def pods(self, phase: str = "Running") -> list[Json]:
        """Return the pods in a phase that are not being deleted."""
        found = self.plane.admin.list("Pod", "default")
        return [one for one in found if one["status"]["phase"] == phase and "deletionTimestamp" not in one["metadata"]]

    def ready_pods(self) -> Counter[str]:
        """Return the number of ready pods on each node."""
        return Counter(pod["spec"]["nodeName"] for pod in self.pods() if _is_true(pod, "Ready"))

    def nodes(self) -> list[str]:
        """Return the names of the Nodes that are ready."""
        return sorted(one["metadata"]["name"] for one in self.plane.admin.list("Node") if is_ready(one))


def _is_true(found: Json, kind: str) -> bool:
    return any(one["type"] == kind and one["status"] == "True" for one in found["status"].get("conditions") or ())


def kueue(stage: Stage) -> Mapping[str, object]:
    """Three Jobs that each need four GPUs share a quota of eight. The third Job starts when another finishes."""
    plane, source = stage.plane, KUEUE.source()
    stage.kubectl("apply", "--server-side", "-f", str(source / "config/components/crd/bases"))
    stage.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    stage.kubectl("create", "namespace", "kueue-system")
    etc = plane.directory / "etc"
    certificates = etc / "kueue/metrics/certs"
    certificates.mkdir(parents=True)
    pair = plane.authority.issue("kueue", "kueue", hosts=("127.0.0.1",))
    (certificates / "tls.crt").write_bytes(pair.certificate.read_bytes())
    (certificates / "tls.key").write_bytes(pair.key.read_bytes())
    config: Json = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": "kueue-system",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{free_port()}"},
        "metrics": {"bindAddress": "0"},
        # Kueue runs without its webhooks, so a Job must be created suspended, as in job.yaml.
        "webhook": {"host": "127.0.0.1", "port": free_port(), "certDir": str(certificates)},
        "internalCertManagement": {"enable": False},
        "leaderElection": {"leaderElect": False},
        "integrations": {"frameworks": ["batch/job"]},
    }
    file = plane.directory / "kueue.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    words = [str(KUEUE.built()), f"--config={file}", f"--kubeconfig={plane.kubeconfig()}"]
    words.append("--feature-gates=VisibilityOnDemand=false")
    # Kueue expects its metrics certificates in /etc/kueue, so it gets a private /etc.
    script = f"{shlex.join(['mount', '--bind', str(etc), '/etc'])} && exec {shlex.join(words)}"
    own = () if os.geteuid() == 0 else ("--map-root-user",)
    program = stage.start("kueue", "unshare", "--mount", *own, "sh", "-c", script)
    stage.kubectl("apply", "-f", str(MANIFESTS / "kueue.yaml"))
    began = time.monotonic()
    for _ in range(3):
        stage.kubectl("create", "-f", str(MANIFESTS / "job.yaml"))
    most = 0

    def are_complete() -> bool:
        nonlocal most
        most = max(most, len(stage.pods()))
        jobs = plane.admin.list("Job", "default")
        return len(jobs) == 3 and all(_is_true(job, "Complete") for job in jobs)

    program.wait_for("three Jobs to be complete", are_complete, 120.0)
    if most > 8:
        raise RealClusterError(f"expected at most 8 pods at once, as the quota says, got {most}")
    return {"pods at once": most, "seconds until all Jobs are complete": round(time.monotonic() - began, 1)}


def descheduler(stage: Stage) -> Mapping[str, object]:
    """Crashing pods leave their node once it is cordoned, and pods spread to added nodes."""
    plane = stage.plane
    stage.kubectl("cordon", "gpu-0", "gpu-1")
    stage.kubectl("apply", "-f", str(MANIFESTS / "deployment.yaml"))
    wait_for("eight pods on the bad node", lambda: len(stage.pods()) == 8)
    stage.kubectl("uncordon", "gpu-0", "gpu-1")
    stage.kubectl("cordon", "bad-0")
    began = time.monotonic()
    words = (f"--kubeconfig={plane.kubeconfig()}", f"--policy-config-file={MANIFESTS / 'descheduler.yaml'}")
    more = ("--descheduling-interval=5s", f"--secure-port={free_port()}", f"--cert-dir={plane.directory}")
    program = stage.start("descheduler", str(DESCHEDULER.built()), *words, *more)
    program.wait_for("the pods to leave the bad node", lambda: _are_even(stage, ("gpu-0", "gpu-1")), 180.0)
    left = round(time.monotonic() - began, 1)
    stage.do("add", "gpu=2")
    began = time.monotonic()
    nodes = tuple(f"gpu-{number}" for number in range(4))
    program.wait_for("the pods to be on four nodes", lambda: _are_even(stage, nodes), 180.0)
    events = Counter(one["reason"] for one in plane.admin.list("Event", "default"))
    return {
        "seconds until no pod crashes": left,
        "seconds until two more nodes have pods": round(time.monotonic() - began, 1),
        "pods on each node": dict(sorted(stage.ready_pods().items())),
        "back-off events": events["BackOff"],
    }


def _are_even(stage: Stage, nodes: tuple[str, ...]) -> bool:
    """Return whether eight pods are ready, evenly spread over these nodes and none elsewhere."""
    found = stage.ready_pods()
    return len(stage.pods()) == 8 and found == dict.fromkeys(nodes, 8 // len(nodes))


def autoscaler(stage: Stage) -> Mapping[str, object]:
    """Nodes are added when pods cannot be scheduled, and idle nodes are removed."""
    stage.kubectl("cordon", "bad-0")
    stage.kubectl("apply", "-f", str(MANIFESTS / "deployment.yaml"))
    figures: dict[str, object] = {}
    for pods, nodes in ((40, 5), (0, 0), (40, 5)):
        began, seen = time.monotonic(), dict[str, float]()
        stage.kubectl("scale", "deployment/serve", f"--replicas={pods}")

        def look(pods: int = pods, nodes: int = nodes, seen: dict[str, float] = seen) -> bool:
            _scale(stage, seen)
            count = sum(name.startswith("gpu-") for name in stage.nodes())
            return sum(stage.ready_pods().values()) == pods and count <= nodes

        stage.fleet.wait_for(f"{pods} pods on at most {nodes} nodes", look, 180.0)
        seconds = round(time.monotonic() - began, 1)
        figures[f"{len(figures) + 1}: seconds until {pods} pods are ready on {len(stage.nodes()) - 1} nodes"] = seconds
    return figures


def _scale(stage: Stage, seen: dict[str, float]) -> None:
    """Add nodes for unschedulable pods, and delete each Node that has had no pod for a while.

    `seen` contains the time at which each pod was handled, and the time since which each node has had no pod.
    """
    now = time.monotonic()
    waiting = [pod["metadata"]["uid"] for pod in stage.pods("Pending") if _is_unschedulable(pod)]
    if new := [uid for uid in waiting if now - seen.get(uid, 0.0) > IDLE]:
        stage.do("add", f"gpu={-(-len(new) // 8)}")
        seen.update(dict.fromkeys(new, now))
    used = {pod["spec"].get("nodeName") for pod in stage.plane.admin.list("Pod", "default")}
    for name in stage.nodes():
        if name in used or not name.startswith("gpu-"):
            seen.pop(name, None)
        elif now - seen.setdefault(name, now) > IDLE:
            stage.plane.admin.delete("Node", name)
            del seen[name]


def _is_unschedulable(pod: Json) -> bool:
    return any(one.get("reason") == "Unschedulable" for one in pod["status"].get("conditions") or ())


GUESTS: Mapping[str, Callable[[Stage], Mapping[str, object]]] = {
    "kueue": kueue,
    "descheduler": descheduler,
    "autoscaler": autoscaler,
}


@contextmanager
def _stage(plane: ControlPlane) -> Iterator[Stage]:
    with ExitStack() as last_to_first:
        control = plane.directory / "fleet.sock"
        words = (str(MANIFESTS / "fleet.yaml"), f"--kubeconfig={plane.kubeconfig()}", f"--control={control}")
        fleet = Program("fleet", [*DEVICECORE, "fleet", "run", *words], plane.directory)
        fleet.start()
        last_to_first.callback(fleet.stop)
        stage = Stage(plane, fleet, control, last_to_first)
        fleet.wait_for("three nodes to be ready", lambda: len(stage.nodes()) == 3)
        yield stage


def main() -> int:
    """Run the requested guests, and return the exit status."""
    parser = argparse.ArgumentParser(prog="make guests", description=__doc__)
    parser.add_argument("guests", nargs="*", metavar="GUEST", help=f"{', '.join(GUESTS)} (default: all)")
    chosen = parser.parse_args().guests or list(GUESTS)
    if unknown := [name for name in chosen if name not in GUESTS]:
        parser.error(f"expected {', '.join(GUESTS)}, got {unknown[0]!r}")
    try:
        for name in chosen:
            with ControlPlane() as plane, _stage(plane) as stage:
                say(f"{name}: {GUESTS[name].__doc__}")
                found = GUESTS[name](stage)
                sys.stdout.write(f"{name} (load {os.getloadavg()[0]:.1f}):\n")
                sys.stdout.writelines(f"  {what}: {value}\n" for what, value in found.items())
                sys.stdout.flush()
    except RealClusterError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
