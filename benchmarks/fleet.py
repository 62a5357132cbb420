"""Measure a fleet: `python benchmarks/fleet.py --help`.

The fleet and the API server run in separate processes. Without --kubeconfig, the server is the small API server for
tests. With --kubeconfig, the fleet runs on the API server that the kubeconfig names, and the server's metrics are used
to count the requests. The pods of --pods name a scheduler that does not exist, so this program binds them; the
cluster's scheduler binds the pods of --deployments and --claims. With --kwok, kwok runs instead of a fleet, and this
program creates the Nodes, whose statuses contain a plugin's devices.
"""

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from attrs import define, field, frozen
from devicecore_fleet.cluster.object_watch import KubeApiNodes, KubeApiPods, KubeApiWatch, node_of
from devicecore_fleet.cluster.requests import KubeApiRequests

from devicecore.adapters.kube_api.access import Access, ApiRequest, ApiResource, ApiServer, RequestError
from devicecore.adapters.kube_api.requests import CLAIMS, NODES, PODS, SENTENCES, SLICES, selectors

HERE = Path(__file__).parent
NAMESPACE = ApiResource("", "v1", "namespaces")
DEPLOYMENTS = ApiResource("apps", "v1", "deployments")
CLASSES = ApiResource("resource.k8s.io", "v1", "deviceclasses")
TEMPLATES = ApiResource("resource.k8s.io", "v1", "resourceclaimtemplates")
PLACE = "devicecore-bench"
GPUS, NICS = 8, 4
NODE = f"""
nodes:
- name: bench-{{number}}
  count: COUNT
  numaNodes: 2
  plugins:
  - {{resource: example.com/gpu, devices: {GPUS}}}
  drivers:
  - name: nic.example.com
    devices: [{{name: "nic-{{number}}", count: {NICS}, numa: [0, 1], attributes: {{model: X}}}}]
"""
SERVER = """
import json, resource, sys, time
from collections import Counter
from pathlib import Path
from devicecore_tools.testing.api_server import LocalApiServer, store
store.MAX_WEIGHT = 8 << 30
with LocalApiServer() as server:
    server.kubeconfig(Path(sys.argv[1]))
    print(flush=True)
    seen = 0
    for _ in sys.stdin:
        new, seen = server.requests[seen:], len(server.requests)
        counts = Counter(f"{one.verb} {one.resource}" for one in new)
        print(json.dumps([counts, time.process_time()]), flush=True)
"""


@frozen
class Sample:
    """A process's memory in MB, its number of threads, and its CPU time so far in seconds."""

    memory: float
    threads: int
    cpu: float

    @classmethod
    def of(cls, process: int) -> "Sample":
        lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
        status = dict(line.split(":", 1) for line in lines)
        times = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        ticks = int(times[11]) + int(times[12])
        return cls(int(status["VmRSS"].split()[0]) / 1024, int(status["Threads"]), ticks / os.sysconf("SC_CLK_TCK"))


@define
class Shown:
    """Watches Nodes or ResourceSlices, and records which nodes are complete, and which ever stopped being complete."""

    has_it: Callable[[Any], bool]
    node_of: Callable[[Any], str]
    having: set[str] = field(factory=set)
    lost: set[str] = field(factory=set)
    changed: threading.Condition = field(factory=threading.Condition)

    def wants(self, found: Any) -> bool:  # noqa: ANN401 - parsed JSON
        return self.node_of(found).startswith("bench-")

    def listed(self, objects: Sequence[Any]) -> None:
        for found in objects:
            self.seen("ADDED", found)

    def seen(self, kind: str, found: Any) -> None:  # noqa: ANN401 - parsed JSON
        name = self.node_of(found)
        with self.changed:
            if kind != "DELETED" and self.has_it(found):
                self.having.add(name)
            elif name in self.having:
                self.having.discard(name)
                self.lost.add(name)
            self.changed.notify_all()

    def wait(self, count: int, seconds: float = 600.0) -> None:
        with self.changed:
            if not self.changed.wait_for(lambda: len(self.having) >= count, seconds):
                sys.exit(f"only {len(self.having)} of {count} nodes were complete after {seconds:g} s")


def is_ready(node: Any) -> bool:  # noqa: ANN401 - parsed JSON
    """Return whether a Node is Ready and has its devices."""
    status = node.get("status") or {}
    conditions = {one["type"]: one["status"] for one in status.get("conditions") or []}
    return conditions.get("Ready") == "True" and "example.com/gpu" in (status.get("allocatable") or {})


@define
class Running:
    """Records when each pod was first seen bound, and when it was first seen Running or Failed."""

    seen_at: dict[str, float] = field(factory=dict)
    phases: Counter[str] = field(factory=Counter)
    bound_at: dict[str, float] = field(factory=dict)
    changed: threading.Condition = field(factory=threading.Condition)

    def wants(self, found: Any) -> bool:  # noqa: ANN401 - parsed JSON
        return node_of(found).startswith("bench-")

    def listed(self, objects: Sequence[Any]) -> None:
        for pod in objects:
            self.seen("ADDED", pod)

    def seen(self, kind: str, found: Any) -> None:  # noqa: ANN401 - parsed JSON
        phase, name = (found.get("status") or {}).get("phase"), found["metadata"]["name"]
        self.bound_at.setdefault(name, time.monotonic())
        if kind != "DELETED" and phase in ("Running", "Failed") and name not in self.seen_at:
            with self.changed:
                self.seen_at[name] = time.monotonic()
                self.phases[phase] += 1
                self.changed.notify_all()

    def wait(self, count: int, seconds: float) -> int:
        with self.changed:
            self.changed.wait_for(lambda: len(self.seen_at) >= count, seconds)
        return len(self.seen_at)


@define
class Bench:
    """A fleet on an API server, and its pods."""

    requests: KubeApiRequests
    running: Running
    ready: Shown
    offering: Shown
    nodes: int
    fleet: int
    counts: Callable[[], tuple[dict[str, int], float]]
    bound_at: dict[str, float] = field(factory=dict)

    def pod(self, number: int) -> tuple[str, str, dict[str, Any] | None]:
        """Return a pod's name, its node, and the device in its claim, or None if it has no claim.

        Every fifth pod on a node has a claim.
        """
        node, of_node = number % self.nodes, number // self.nodes
        device = {
            "request": "nic",
            "driver": "nic.example.com",
            "pool": f"bench-{node}",
            "device": f"nic-{of_node // 5}",
        }
        has_claim = of_node % 5 == 4
        return f"pod-{number}", f"bench-{node}", device if has_claim else None

    def make(self, number: int) -> None:
        """Create a pod, and its claim if it has one, without binding the pod."""
        name, _, device = self.pod(number)
        container: dict[str, Any] = {"name": "main", "image": "none"}
        spec: dict[str, Any] = {
            "schedulerName": PLACE,
            "tolerations": [{"operator": "Exists"}],
            "containers": [container],
        }
        if device is None:
            container["resources"] = {"limits": {"example.com/gpu": "1"}}
        else:
            request = {"name": "nic", "exactly": {"deviceClassName": "nic"}}
            claim = {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}
            self.requests.create(CLAIMS, _typed("ResourceClaim", "resource.k8s.io/v1", claim), PLACE)
            spec["resourceClaims"] = [{"name": "nic", "resourceClaimName": name}]
            container["resources"] = {"claims": [{"name": "nic"}]}
        pod = self.requests.create(PODS, _typed("Pod", "v1", {"metadata": {"name": name}, "spec": spec}), PLACE)
        if device is not None:
            users = [{"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]}]
            status = {"allocation": {"devices": {"results": [device]}}, "reservedFor": users}
            self.requests.patch(CLAIMS, name, {"status": status}, PLACE, subresource="status")

    def bind(self, number: int) -> None:
        """Bind a pod, as a scheduler does."""
        name, node, _ = self.pod(number)
        body = _typed("Binding", "v1", {"metadata": {"name": name}, "target": {"kind": "Node", "name": node}})
        self.bound_at[name] = time.monotonic()
        path = PODS.path(PLACE, name, "binding")
        self.requests._send(ApiRequest("create pods/binding", "POST", path, {}, body))  # noqa: SLF001 - nothing else binds


def _typed(kind: str, version: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"kind": kind, "apiVersion": version, **body}


def by_metrics(access: Access) -> Callable[[], tuple[dict[str, int], float]]:
    """Return a function that returns how often each kind of request was made since its last call, and a CPU time.

    The function returns the twelve most frequent kinds of requests, and the API server's total CPU time in seconds.
    """
    server, request = ApiServer(access, SENTENCES), ApiRequest("get metrics", "GET", "metrics")
    before = Counter[str]()

    def read() -> str:
        return server._transport.send("GET", request.target, {}, None).content.decode()  # noqa: SLF001 - not JSON

    def counts() -> tuple[dict[str, int], float]:
        nonlocal before
        text = server.ask(request, read)
        found = Counter[str]()
        for labels, value in re.findall(r"^apiserver_request_total\{(.*)\} (\S+)$", text, re.MULTILINE):
            of = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            found[" ".join((of["verb"], "/".join(filter(None, (of["resource"], of["subresource"])))))] += int(
                float(value)
            )
        new, before = found - before, found
        cpu = re.search(r"^process_cpu_seconds_total (\S+)$", text, re.MULTILINE)
        return dict(new.most_common(12)), float(cpu[1]) if cpu else 0.0

    return counts


@contextmanager
def small_server(kubeconfig: Path) -> Iterator[Callable[[], tuple[dict[str, int], float]]]:
    """Run the API server for tests in a separate process.

    Yield a function that returns how often each kind of request was made since its last call, and the server's total
    CPU time in seconds.
    """
    command = [sys.executable, "-c", SERVER, str(kubeconfig)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin
        assert server.stdout
        source, sink = server.stdout, server.stdin
        source.readline()

        def counts() -> tuple[dict[str, int], float]:
            sink.write("\n")
            sink.flush()
            found, cpu = json.loads(source.readline())
            return found, cpu

        yield counts
        sink.close()


@contextmanager
def fleet_of(nodes: int, kubeconfig: Path, directory: Path, root: Path | None) -> Iterator[int]:
    """Run a fleet in a separate process, and yield the process id."""
    file = directory / "fleet.yaml"
    file.write_text(NODE.replace("COUNT", str(nodes)), encoding="utf-8")
    command = [sys.executable, "-m", "devicecore_tools", "fleet", "run", str(file), "--kubeconfig", str(kubeconfig)]
    with subprocess.Popen(
        [*command, *(["--root", str(root)] if root else [])], stderr=(directory / "log").open("w")
    ) as one:
        try:
            yield one.pid
        finally:
            one.terminate()


@contextmanager
def kwok_of(options: argparse.Namespace, kubeconfig: Path, directory: Path, requests: KubeApiRequests) -> Iterator[int]:
    """Run kwok in a separate process, create its Nodes, and yield the process id."""
    command = [str(options.kwok), f"--kubeconfig={kubeconfig}", "--manage-all-nodes"]
    command += [f"--config={file}" for file in options.stages]
    command += [f"--node-lease-duration-seconds={options.kwok_leases}"]
    with subprocess.Popen(command, stderr=(directory / "log").open("w")) as one:
        try:
            all_at_once(lambda number: make_node(requests, f"bench-{number}"), range(options.nodes))
            if one.poll() is not None:
                sys.exit(f"kwok has exited: {(directory / 'log').read_text(encoding='utf-8')[-500:]}")
            yield one.pid
        finally:
            one.terminate()


def make_node(requests: KubeApiRequests, name: str) -> None:
    """Create a Node without a kubelet."""
    size = {"cpu": "8", "memory": "32Gi", "pods": "110", "example.com/gpu": str(GPUS)}
    body = {"metadata": {"name": name}, "status": {"capacity": size, "allocatable": size}}
    requests.create(NODES, _typed("Node", "v1", body))


def all_at_once(work: Callable[[int], None], numbers: range) -> None:
    """Call `work` with each number, in a few threads."""
    threads = ThreadPoolExecutor(4)
    try:
        for _ in threads.map(work, numbers):
            pass
    finally:
        threads.shutdown(cancel_futures=True)  # after an interrupt, do not wait for calls that have not started


def at_rate(work: Callable[[int], None], numbers: range, rate: float) -> None:
    """Call `work` with each number, at `rate` calls per second."""
    began = time.monotonic()
    with ThreadPoolExecutor(4) as threads:
        for done, number in enumerate(numbers):
            time.sleep(max(0.0, began + done / rate - time.monotonic()))
            threads.submit(work, number)


def measure(bench: Bench, options: argparse.Namespace, show: Callable[[str, object], None], began: float) -> None:
    """Take all measurements for a fleet that started at `began`."""
    bench.ready.wait(options.nodes)
    show("seconds until all nodes are Ready with devices", round(time.monotonic() - began, 1))
    if options.kwok is None:
        bench.offering.wait(options.nodes)
        show("seconds until all slices exist, too", round(time.monotonic() - began, 1))
    show("processor time until then, s", {"fleet": Sample.of(bench.fleet).cpu, "server": bench.counts()[1]})
    time.sleep(options.settle)
    at_rest = rest(bench, options.idle, show)
    if not (options.deployments or options.claims):
        bind_all(bench, options, show)
        return
    for size in filter(None, options.deployments.split(",")):
        roll_out(bench, int(size), show, "devices", at_rest)
    if options.claims:
        make_class(bench.requests)
        roll_out(bench, options.claims, show, "claims", at_rest)
        show("health of the claims", health_of(bench.requests, f"claims-{options.claims}"))
    show(
        "nodes Ready at the end, and nodes that were not Ready at some point",
        [len(bench.ready.having), len(bench.ready.lost)],
    )


def rest(bench: Bench, seconds: float, show: Callable[[str, object], None]) -> float:
    """Measure the fleet while it has no pods. Return the share of a core that the fleet uses."""
    bench.ready.lost.clear()
    before, (_, server) = Sample.of(bench.fleet), bench.counts()
    show("memory without pods, MB", round(before.memory))
    show("threads", before.threads)
    time.sleep(seconds)
    after, (counts, server_after) = Sample.of(bench.fleet), bench.counts()
    show(
        "nodes Ready after the time at rest, and nodes that were not Ready at some point",
        [len(bench.ready.having), len(bench.ready.lost)],
    )
    show("requests per second at rest", {verb: round(count / seconds, 2) for verb, count in counts.items()})
    show("requests per second at rest, in total", round(sum(counts.values()) / seconds, 1))
    share = {"fleet": after.cpu - before.cpu, "server": server_after - server}
    show("processor time at rest, share of a core", {who: round(it / seconds, 3) for who, it in share.items()})
    return share["fleet"] / seconds


def bind_all(bench: Bench, options: argparse.Namespace, show: Callable[[str, object], None]) -> None:
    """Measure pods that this program binds: first many at once, then at a given rate per second."""
    measured = min(options.pods, int(options.rate * options.seconds))
    filling = range(options.pods - measured)
    all_at_once(bench.make, range(options.pods))
    bench.counts()
    began, start = time.monotonic(), Sample.of(bench.fleet)
    all_at_once(bench.bind, filling)
    reached = bench.running.wait(len(filling), 600)
    end = Sample.of(bench.fleet)
    show(
        "pods running, of all that were bound at once",
        f"{reached} of {len(filling)} in {time.monotonic() - began:.1f} s",
    )
    show("processor time per pod, ms", round(1e3 * (end.cpu - start.cpu) / max(1, len(filling)), 2))
    time.sleep(2)
    bench.counts()
    start, (_, server) = Sample.of(bench.fleet), bench.counts()
    at_rate(bench.bind, range(len(filling), options.pods), options.rate)
    bench.running.wait(options.pods, 60)
    end, (counts, server_end) = Sample.of(bench.fleet), bench.counts()
    show(f"requests while {options.rate:g} pods per second are bound", counts)
    share = {"fleet": end.cpu - start.cpu, "server": server_end - server}
    show(
        "processor time while these pods are bound, share of a core",
        {who: round(it * options.rate / measured, 2) for who, it in share.items()},
    )
    names = [bench.pod(number)[0] for number in range(len(filling), options.pods)]
    waits = sorted(
        bench.running.seen_at[name] - bench.bound_at[name] for name in names if name in bench.running.seen_at
    )
    show("phases", dict(bench.running.phases))
    if waits:
        show("seconds from binding to Running, median", round(statistics.median(waits), 3))
        show("seconds from binding to Running, 95th percentile", round(waits[int(0.95 * (len(waits) - 1))], 3))
    show("memory with pods, MB", round(Sample.of(bench.fleet).memory))
    show("threads with pods", Sample.of(bench.fleet).threads)


def make_class(requests: KubeApiRequests) -> None:
    """Create the DeviceClass and the template that pods with a claim for a network card refer to."""
    selector = {"cel": {"expression": 'device.driver == "nic.example.com"'}}
    body = {"metadata": {"name": "nic"}, "spec": {"selectors": [selector]}}
    requests.create(CLASSES, _typed("DeviceClass", "resource.k8s.io/v1", body))
    asked = {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "nic"}}]}}
    body = {"metadata": {"name": "nic"}, "spec": {"spec": asked}}
    requests.create(TEMPLATES, _typed("ResourceClaimTemplate", "resource.k8s.io/v1", body), PLACE)


def health_of(requests: KubeApiRequests, name: str) -> dict[str, int]:
    """Count the devices by health in the statuses of the pods whose names start with `name`.

    A pod whose status shows no device counts as one device with the health `none`.
    """
    found = Counter[str]()
    for pod in requests.list(PODS):
        if pod["metadata"]["name"].startswith(name):
            rows = [
                one["health"]
                for container in pod["status"].get("containerStatuses") or []
                for resource in container.get("allocatedResourcesStatus") or []
                for one in resource["resources"]
            ]
            found.update(rows or ["none"])
    return dict(found)


def roll_out(bench: Bench, size: int, show: Callable[[str, object], None], what_for: str, at_rest: float) -> None:
    """Measure a Deployment whose pods a scheduler binds, each with a requested device or a claim.

    `at_rest` is the share of a core that the fleet uses without pods, mostly for Leases.
    """
    name, running = f"{what_for}-{size}", bench.running
    spec: dict[str, Any] = {"tolerations": [{"operator": "Exists"}]}
    resources: dict[str, Any] = {"limits": {"example.com/gpu": "1"}}
    if what_for == "claims":
        resources = {"claims": [{"name": "nic"}]}
        spec["resourceClaims"] = [{"name": "nic", "resourceClaimTemplateName": "nic"}]
    spec["containers"] = [{"name": "main", "image": "none", "resources": resources}]
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": spec}
    body = {
        "metadata": {"name": name},
        "spec": {"replicas": size, "selector": {"matchLabels": labels}, "template": template},
    }
    _, server = bench.counts()
    had, began, start = len(running.seen_at), time.monotonic(), Sample.of(bench.fleet)
    bench.requests.create(DEPLOYMENTS, _typed("Deployment", "apps/v1", body), PLACE)
    reached = running.wait(had + size, 600) - had
    seconds, end, (counts, server_end) = time.monotonic() - began, Sample.of(bench.fleet), bench.counts()
    pods = [one for one, at in running.seen_at.items() if at > began]
    waits = sorted(running.seen_at[one] - running.bound_at[one] for one in pods)
    of_second = Counter(int(running.seen_at[one] - began) for one in pods)
    last = max(of_second, default=0)
    bound = [running.bound_at[one] - began for one in pods]
    what = f"Deployment of {size}, {what_for}"
    show(f"{what}: pods running", f"{reached} in {seconds:.1f} s")
    show(f"{what}: seconds until the last pod is bound", round(max(bound), 1))
    show(f"{what}: seconds from bound to Running, median", round(statistics.median(waits), 2))
    show(f"{what}: seconds from bound to Running, 95th percentile", round(waits[int(0.95 * (len(waits) - 1))], 2))
    show(f"{what}: seconds from bound to Running, the longest", round(waits[-1], 2))
    times = [(running.bound_at[one] - began, running.seen_at[one] - began) for one in pods]
    idle = [now for now in range(last) if any(at < now <= seen for at, seen in times) and not of_second[now]]
    show(f"{what}: seconds in which pods waited but no status was written", len(idle))
    show(f"{what}: statuses written in each second", [of_second[second] for second in range(last + 1)])
    show(
        f"{what}: processor time, s", {"fleet": round(end.cpu - start.cpu, 1), "server": round(server_end - server, 1)}
    )
    used = end.cpu - start.cpu
    show(f"{what}: processor time per pod, ms", round(1e3 * used / size, 2))
    show(
        f"{what}: processor time per pod, less the time at rest, ms", round(1e3 * (used - at_rest * seconds) / size, 2)
    )
    show(f"{what}: machine load", round(os.getloadavg()[0], 1))
    show(f"{what}: memory, MB", round(end.memory))
    show(f"{what}: requests", counts)


def read_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, help="number of pods (default: ten per node)")
    parser.add_argument("--rate", type=float, default=50.0, help="pods to bind per second")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds for which to bind pods at --rate")
    parser.add_argument(
        "--idle", type=float, default=30.0, help="seconds for which to count requests while there are no pods"
    )
    parser.add_argument(
        "--settle", type=float, default=0.0, help="seconds to wait before counting requests while there are no pods"
    )
    parser.add_argument(
        "--claims",
        type=int,
        default=0,
        help="create a Deployment of this many pods, each with a claim, instead of --pods",
    )
    parser.add_argument("--kubeconfig", type=Path, help="a kubeconfig for a real API server, with administrator rights")
    parser.add_argument("--fleet-kubeconfig", type=Path, help="a different kubeconfig for the fleet")
    parser.add_argument(
        "--deployments", default="", help="sizes of Deployments to create instead of --pods, such as 1000,5000"
    )
    parser.add_argument("--kwok", type=Path, metavar="PROGRAM", help="measure this kwok program instead of a fleet")
    leases = "duration of kwok's Leases in seconds, 0 for no Leases (default: 40, as in kwok's own manifest)"
    parser.add_argument("--kwok-leases", type=int, default=40, metavar="SECONDS", help=leases)
    parser.add_argument("--stages", type=Path, nargs="*", default=[], help="files that contain kwok's Stages")
    parser.add_argument("--root", type=Path, help="directory for the fleet's checkpoints (default: in memory)")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    options.pods = 10 * options.nodes if options.pods is None else options.pods
    return options


def main() -> None:
    """Run the requested measurements."""
    options = read_options()
    results: dict[str, object] = {"nodes": options.nodes, "pods": options.pods}

    def show(what: str, value: object) -> None:
        results[what] = value
        print(f"{what:60} {value}", flush=True)

    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kubeconfig = options.kubeconfig or directory / "kubeconfig"
        if options.kubeconfig is None:
            counts = stack.enter_context(small_server(kubeconfig))
        else:
            counts = by_metrics(Access(kubeconfig, timeout=60))
        requests = stack.enter_context(KubeApiRequests(Access(kubeconfig, timeout=60)))
        try:
            requests.create(NAMESPACE, _typed("Namespace", "v1", {"metadata": {"name": PLACE}}))
        except RequestError as error:
            if error.reason != "AlreadyExists":
                raise
        running = Running()
        access = Access(kubeconfig, timeout=60)
        stack.enter_context(KubeApiPods(running, access))
        ready = Shown(is_ready, lambda node: str(node["metadata"]["name"]))
        stack.enter_context(KubeApiNodes(ready, access))
        offering = Shown(lambda _: True, lambda one: str(one["spec"].get("nodeName") or ""))
        stack.enter_context(KubeApiWatch(SLICES, offering, access, selectors("spec.driver=nic.example.com", "")))
        counts()
        began, of_fleet = time.monotonic(), options.fleet_kubeconfig or kubeconfig
        measured = stack.enter_context(
            kwok_of(options, of_fleet, directory, requests)
            if options.kwok
            else fleet_of(options.nodes, of_fleet, directory, options.root)
        )
        bench = Bench(requests, running, ready, offering, options.nodes, measured, counts)
        measure(bench, options, show, began)
        lines = (directory / "log").read_text(encoding="utf-8").splitlines()
        show(
            "the fleet's log lines",
            dict(Counter(line.partition(" ")[2][13:] for line in lines if ": Running" not in line).most_common(8)),
        )
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    main()
