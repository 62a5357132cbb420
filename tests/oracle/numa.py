"""The CPU manager, the memory manager, and admissions by all three managers, with their state files."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from random import Random

from attrs import evolve, frozen
from devicecore_numa.domain.cpu_policy import CpuOptions, CpuState, StaticCpuPolicy
from devicecore_numa.domain.cpus import cpu_list, parse_cpus
from devicecore_numa.domain.errors import EndlessSearchError, NumaConfigError
from devicecore_numa.domain.machine import Core, CpuLayout, Machine, NumaCell
from devicecore_numa.domain.memory_policy import MemoryState, StaticMemoryPolicy
from devicecore_numa.domain.requests import ContainerRequest, PodRequest, read_pod
from devicecore_numa.domain.state_files import decode_cpus, decode_memory, encode_cpus, encode_memory
from devicecore_numa.managers import CpuManager, MemoryManager, NumaAdmission

from devicecore import Admitted, Device, DeviceId, DeviceManager, Pod, PodUid, Refused, Topology
from devicecore.adapters.memory import MemoryConnection, MemorySink, MemoryStore, MemoryTransport
from devicecore.domain.errors import DeviceCoreError
from devicecore.domain.model import Container
from devicecore.domain.quantity import Quantity
from devicecore.domain.topology import NumaMask, TopologyHint
from tests.histories import RecordedPlugin
from tests.oracle.asking import AGREED, Json, Oracle, Verdict, differences
from tests.oracle.topology import policy_options, topology_of

FILES = ("cpu_manager_state", "memory_manager_state")
GI, MI = 2**30, 2**20
MIXED = "D29"
"""A NUMA node is used both in a group and alone, so the kubelet's behavior depends on Go's map order."""
TAKEN = "D30"
"""A container was given a CPU that was not free. If the kubelet then rejects the pod, the CPU becomes shared."""
OLDER = "D33"
"""Before 1.37, `full-pcpus-only` needs free cores even for a container that already has its CPUs, and
`distribute-cpus-across-numa` disregards sockets."""

_OPTIONS = (
    "full-pcpus-only",
    "distribute-cpus-across-numa",
    "align-by-socket",
    "distribute-cpus-across-cores",
    "strict-cpu-reservation",
    "prefer-align-cpus-by-uncorecache",
)


# --- cases -----------------------------------------------------------------------------------------------------------


def cpus(random: Random) -> Json:
    """Return a history of the CPU manager alone, where each admission is given its NUMA nodes."""
    case = _case(random, machine(random), has_memory=False)
    if random.random() < 0.3:
        case["topology"] = _topology(random)
    return _with_steps(random, case)


def memory(random: Random) -> Json:
    """Return a history of the memory manager alone."""
    case = _case(random, machine(random), has_memory=True)
    case["cpu"] = {"policy": "none", "options": {}, "reserved": {}, "cpus": ""}
    if random.random() < 0.3:
        case["topology"] = _topology(random)
    return _with_steps(random, case)


def admissions(random: Random) -> Json:
    """Return a history of admissions by all three managers."""
    case = _case(random, machine(random, most=4), has_memory=random.random() < 0.8)
    case["topology"] = _topology(random)
    case = _with_steps(random, case, has_devices=random.random() < 0.8)
    options = policy_options(random, [node["node_id"] for node in case["machine"]["topology"]])
    return {**case, "topology": {**case["topology"], **options}}


def machine(random: Random, most: int = 8) -> Json:
    """Return a random machine as cAdvisor describes it, with sockets in NUMA nodes or NUMA nodes in sockets.

    Kubernetes combines every hint of each resource with every hint of the others, so cases with many resources need a
    small number of NUMA nodes (`most`).
    """
    nodes = random.choice([count for count in (1, 1, 2, 2, 2, 3, 4, 4, 6, 8) if count <= most])
    sockets = random.choice([count for count in (1, 2, 4, 8, nodes, 2 * nodes) if count <= 2 * nodes])
    threads, cores = random.choice((1, 2, 2, 2, 4)), random.choice((1, 2, 3, 4, 6, 8))
    caches = random.choice((None, None, 1, 2, 4))
    total, numbered = nodes * cores, random.random() < 0.5
    found: list[Json] = []
    pages = random.choice(([], [], [2048], [2048, 1048576]))
    for node in range(nodes):
        own = []
        for number in range(node * cores, (node + 1) * cores):
            first = number if numbered else number * threads
            socket = number * sockets // total
            core = {
                "core_id": number,
                "socket_id": socket,
                "thread_ids": [first + thread * (total if numbered else 1) for thread in range(threads)],
            }
            if caches is not None:
                core["uncore_caches"] = [{"id": number // caches, "level": 3}]
            own.append(core)
        if random.random() < 0.05:
            own = own[:-1] or own  # some CPUs are offline
        found.append(
            {
                "node_id": node,
                "memory": random.choice((4, 8, 8, 16)) * GI,
                "hugepages": [
                    {"page_size": size, "num_pages": random.randint(0, 4) * (GI // 1024 // size)} for size in pages
                ],
                "cores": own,
            }
        )
    count = sum(len(core["thread_ids"]) for node in found for core in node["cores"])
    present = {core["socket_id"] for node in found for core in node["cores"]}
    return {"num_cores": count, "num_sockets": len(present), "topology": found}


def _case(random: Random, found: Json, *, has_memory: bool) -> Json:
    options = dict.fromkeys(random.sample(_OPTIONS, random.choice((0, 0, 1, 1, 2, 3))), "true")
    if random.random() < 0.05:
        options[random.choice((*_OPTIONS, "unknown"))] = random.choice(("false", "T", "maybe", "0"))
    reserved = random.choice(("1", "1", "2", "1500m", "500m", "4"))
    by_number = ""
    if random.random() < 0.3:
        count = -(-Quantity.parse(reserved).nanos // 10**9)
        known = [cpu for node in found["topology"] for core in node["cores"] for cpu in core["thread_ids"]]
        by_number = ",".join(map(str, sorted(random.sample(known, min(count, len(known))))))
    memory_case: Json = {"policy": "None", "reserved": {}, "nodes": []}
    if has_memory:
        names = ["memory", *(_pages(one["page_size"]) for one in found["topology"][0]["hugepages"][:1])]
        nodes = [
            {"numaNode": node["node_id"], "limits": {name: f"{random.choice((0, 256, 512, 1024))}Mi" for name in names}}
            for node in random.sample(found["topology"], random.randint(1, len(found["topology"])))
        ]
        totals = {name: sum(Quantity.parse(node["limits"][name]).whole for node in nodes) // MI for name in names}
        if random.random() < 0.03:
            totals["memory"] += 1
        memory_case = {
            "policy": "Static",
            "reserved": {name: f"{total}Mi" for name, total in totals.items()},
            "nodes": nodes,
        }
    return {
        "machine": found,
        "gates": ["CPUManagerPolicyAlphaOptions"] if random.random() < 0.95 else [],
        "topology": {"policy": "", "scope": ""},
        "cpu": {
            "policy": "none" if random.random() < 0.03 else "static",
            "options": options,
            "reserved": {"cpu": reserved},
            "cpus": by_number,
        },
        "memory": memory_case,
    }


def _pages(kib: int) -> str:
    return "hugepages-" + str(Quantity.of(kib * 1024, binary=True))


def _topology(random: Random) -> Json:
    policy = random.choice(("none", "best-effort", "restricted", "restricted", "single-numa-node"))
    return {"policy": policy, "scope": random.choice(("container", "pod"))}


def _with_steps(random: Random, case: Json, *, has_devices: bool = False) -> Json:
    nodes = [node["node_id"] for node in case["machine"]["topology"]]
    steps: list[Json] = []
    for resource in (
        ("example.com/gpu", "example.com/nic")[: 1 if len(nodes) > 3 else random.randint(1, 2)] if has_devices else ()
    ):
        devices = [
            {"id": f"{node}-{number}", "health": "Healthy", "numa": [node] if random.random() < 0.9 else None}
            for node in nodes
            for number in range(random.randint(0, 3))
        ]
        steps.append({"op": "connect", "resource": resource, "devices": devices})
    if has_devices and random.random() < 0.04:
        steps += _refused_in_between()
    pods: dict[str, Json] = {}
    for number in range(random.randint(3, 12)):
        op = random.choice(("admit", "admit", "admit", "admit", "again", "hints", "remove", "start", "restart"))
        uid = random.choice(sorted(pods)) if pods else ""
        if op == "admit" or not pods:
            made = _pod(random, f"pod-{number}", case, has_devices=has_devices)
            pods[f"pod-{number}"] = made
            steps.append({"op": "admit", "object": made, "affinity": _affinity(random, nodes)})
        elif op == "again":
            steps.append({"op": "admit", "object": pods[uid], "affinity": _affinity(random, nodes)})
        elif op == "hints":
            # When a kubelet admits another pod, it forgets what a pod may reuse from its init containers.
            is_known = random.random() < 0.3 and "initContainers" not in pods[uid]["spec"]
            asked = pods[uid] if is_known else _pod(random, "asked", case, has_devices=False)
            steps.append({"op": "pod_hints", "object": asked})
        elif op == "remove":
            pods.pop(uid)
            steps.append({"op": "remove", "uid": uid})
        elif op == "start":
            containers = pods[uid]["spec"]
            names = [one["name"] for one in (*containers.get("initContainers", ()), *containers["containers"])]
            steps.append({"op": "start_container", "uid": uid, "container": random.choice(names)})
        elif not has_devices:
            steps.append({"op": "restart"})
    return {**case, "steps": steps}


def _refused_in_between() -> list[Json]:
    """Return two admissions of a pod whose init container has ended, and between them a pod that is refused late.

    After the refusal, the first pod may no longer reuse memory, so its second admission gives it new memory.
    """
    small, medium, large = (
        {"name": name, "resources": {"limits": {"cpu": "1", "memory": size}}}
        for name, size in (("c0", "128Mi"), ("i0", "256Mi"), ("c1", "999Gi"))
    )

    def admitted(uid: str, **containers: Json) -> Json:
        pod = {"metadata": {"uid": uid, "name": uid, "namespace": "default"}, "spec": containers}
        return {"op": "admit", "object": pod, "affinity": None}

    reuses = admitted("reuses", initContainers=[medium], containers=[small])
    started = {"op": "start_container", "uid": "reuses", "container": "c0"}
    return [reuses, started, admitted("refused", containers=[small, large]), reuses]


def _affinity(random: Random, nodes: list[int]) -> Json:
    return None if random.random() < 0.3 else sorted(random.sample(nodes, random.randint(1, min(len(nodes), 3))))


def _pod(random: Random, uid: str, case: Json, *, has_devices: bool) -> Json:
    most = case["machine"]["num_cores"]
    pages = [_pages(one["page_size"]) for one in case["machine"]["topology"][0]["hugepages"]]

    def resources() -> Json:
        cpu = random.choice(
            ("1", "2", "2", "3", "4", str(random.randint(1, most)), str(max(most // 2, 1)), "500m", "2000m")
        )
        limits = {"cpu": cpu, "memory": random.choice(("256Mi", "1Gi", "2Gi", "3Gi", "6Gi", "12Gi", "100M"))}
        if pages and random.random() < 0.4:
            limits[random.choice(pages)] = random.choice(("1Gi", "2Gi"))
        if has_devices and random.random() < 0.5:
            limits["example.com/" + random.choice(("gpu", "nic"))] = str(random.randint(1, 3))
        given: Json = {"limits": limits}
        if random.random() < 0.1:
            given["requests"] = {**limits, "cpu": random.choice((cpu, "1"))}
        return given

    spec: Json = {
        "containers": [
            {"name": f"c{number}", "resources": resources()} for number in range(random.choice((1, 1, 1, 2, 3)))
        ]
    }
    if random.random() < 0.4:
        spec["initContainers"] = [
            {
                "name": f"i{number}",
                "resources": resources(),
                **({"restartPolicy": "Always"} if random.random() < 0.3 else {}),
            }
            for number in range(random.randint(1, 3))
        ]
    if random.random() < 0.05:
        spec["resources"] = {"limits": {"cpu": "2", "memory": "1Gi"}}
    return {"metadata": {"uid": uid, "name": uid, "namespace": "default"}, "spec": spec}


# --- ours ------------------------------------------------------------------------------------------------------------


class OlderCpuPolicy(StaticCpuPolicy):
    """The static policy before 1.37 (D33)."""

    @staticmethod
    def take(layout: CpuLayout, options: CpuOptions, available: int, count: int) -> int:
        return StaticCpuPolicy.take(layout, evolve(options, align_by_socket=False), available, count)

    def allocate(self, state: CpuState, pod: PodRequest, container: ContainerRequest, hint: TopologyHint) -> CpuState:
        if pod.is_exclusive and container.cpus:
            self._check_whole_cores(state, container.cpus)
        return super().allocate(state, pod, container, hint)


class _WatchedCpus(CpuManager):
    """A CPU manager that remembers whether it ever allocated a CPU that was neither shared nor the pod's own."""

    gave_what_was_taken = False

    def allocate(self, pod: PodRequest, container: str, hint: TopologyHint) -> None:
        before = reduce(or_, self.state.of_pod(pod.uid).values(), self.state.shared)
        super().allocate(pod, container, hint)
        given = self.state.of_container(pod.uid, container) or 0
        self.gave_what_was_taken |= bool(given & ~before)


class _WatchedMemory(MemoryManager):
    """A memory manager that remembers whether a NUMA node was ever in two different groups at once."""

    was_mixed = False

    def allocate(self, pod: PodRequest, container: str, hint: TopologyHint) -> None:
        super().allocate(pod, container, hint)
        nodes = self.state.nodes
        self.was_mixed |= any(set(nodes[one].cells) != set(node.cells) for node in nodes.values() for one in node.cells)


@frozen
class _Pods:
    """The pods in a replay, by UID."""

    objects: dict[str, Json]

    def request(self, pod: Pod) -> PodRequest:
        return read_pod(self.objects[pod.uid])


class NumaReplay:
    """Plays a history on our CPU, memory and device managers.

    The answers have the oracle's format, except that the files are decoded.
    """

    def __init__(self, case: Json, cpu_policy: type[StaticCpuPolicy] = StaticCpuPolicy) -> None:
        self.case, self.cpu_policy = case, cpu_policy
        self.pods = _Pods({})
        self.stores = {"cpu_manager_state": MemoryStore(), "memory_manager_state": MemoryStore()}
        self.device_store = MemoryStore()
        self.fixed = not case["topology"]["policy"]
        self.machine = read_machine(case["machine"])
        self.connections: list[MemoryConnection] = []
        self.stop: Callable[[], None] = lambda: None
        """Ends the threads of the managers that were started last."""

    def begin(self) -> Json:
        """Start the managers, and return their state."""
        self.running = False
        self.stop()
        try:
            self._begin()
        except DeviceCoreError as error:
            return {"ok": False, "error": str(error)}
        self.running = True
        allocatable = cpu_list(self.policy.allocatable) if self.policy else ""
        return {"ok": True, "allocatable": allocatable, **self.held()}

    def _begin(self) -> None:
        case, layout = self.case, CpuLayout.of(self.machine)
        asked = case["topology"]
        self.topology = topology_of(
            {
                **asked,
                "numa_nodes": self.machine.numa_nodes,
                "policy": asked["policy"] or "none",
                "scope": asked["scope"] or "container",
            }
        )
        cpu, self.policy = case["cpu"], None
        if cpu["policy"] == "static":
            reserved = Quantity.parse(cpu["reserved"]["cpu"])
            options = CpuOptions.parse(cpu["options"], alpha="CPUManagerPolicyAlphaOptions" in case["gates"])
            self.policy = self.cpu_policy.of(
                layout,
                options,
                count=-(-reserved.nanos // 10**9),
                reserved=parse_cpus(cpu["cpus"]),
                topology=self.topology.policy,
            )
        elif cpu["options"]:
            raise NumaConfigError(f"None policy: received unsupported options={cpu['options']}")
        given, static = case["memory"], None
        if given["policy"] == "Static":
            static = StaticMemoryPolicy.of(
                self.machine,
                {name: Quantity.parse(text) for name, text in given["reserved"].items()},
                [
                    (one["numaNode"], {name: Quantity.parse(text) for name, text in one["limits"].items()})
                    for one in given["nodes"]
                ],
            )
        self.cpus = _WatchedCpus(self.policy, self.stores["cpu_manager_state"], self.pods.request)
        self.memory = _WatchedMemory(static, self.stores["memory_manager_state"], self.pods.request)
        self.cpus.start()
        self.memory.start()
        self.transport = MemoryTransport()
        self.devices = DeviceManager(
            self.transport, self.device_store, MemorySink(), topology=Topology(self.machine.numa_nodes)
        )
        self.devices.start()
        self.stop = self.devices.stop
        self.admission = NumaAdmission(
            self.topology, self.devices, self.cpus, self.memory, self.pods.request, lambda: self.pods.objects
        )

    def play(self, step: Json) -> Json:
        """Play one step."""
        if step["op"] == "restart":
            return self.begin()
        if not self.running:
            return {"ok": False, "error": "the kubelet does not run"}
        answer: Json = getattr(self, step["op"])(step)
        return answer

    def connect(self, step: Json) -> Json:
        devices = [Device(DeviceId(one["id"]), one["health"], one["numa"]) for one in step["devices"]]
        self.connections.append(self.transport.connect(RecordedPlugin(step["resource"], devices, {}, [])))
        return {"ok": True}

    def admit(self, step: Json) -> Json:
        given = step["object"]
        pod, uid = pod_of(given), given["metadata"]["uid"]
        self.pods.objects[uid] = given
        refused: Refused | None = None
        if self.fixed:
            before = self.cpus.state, self.memory.state
            request = read_pod(given)
            affinity = step.get("affinity")
            mask = None if affinity is None else Topology(affinity or (0,)).numa_nodes
            try:
                for container in request.containers:
                    hint = TopologyHint(None if mask is None else NumaMask.of(mask), preferred=self.fixed)
                    self.cpus.allocate(request, container.name, hint)
                    self.memory.allocate(request, container.name, hint)
            except DeviceCoreError as raised:
                self.cpus.take_back(before[0])
                self.memory.take_back(before[1], uid)
                refused = Refused(raised)
        else:
            verdict = self.admission.admit(pod)
            refused = None if isinstance(verdict, Admitted) else Refused(verdict.error)
        if refused is not None:
            if isinstance(refused.error, EndlessSearchError):
                raise refused.error
            self._forget(uid)
            return {"ok": False, "reason": refused.reason, "message": refused.message, "devices": {}, **self.held()}
        ledger = self.devices.state.ledger
        held: Json = {}
        for allocation in ledger.of_pod(pod.uid):
            nodes = {str(one): list(allocation.numa_nodes[one]) or None for one in allocation.numa_nodes}
            held.setdefault(str(allocation.key.container), {})[str(allocation.resource)] = nodes
        return {"ok": True, "devices": held, **self.held()}

    def pod_hints(self, step: Json) -> Json:
        request = read_pod(step["object"])
        self.admission.forget()
        names = ["", *(one.name for one in request.containers)]
        return {
            kind: {name: _hints(manager.hints(request, name or None)) for name in names}
            for kind, manager in (("cpu", self.cpus), ("memory", self.memory))
        }

    def start_container(self, step: Json) -> Json:
        if step["uid"] in self.pods.objects:
            self.memory.start_container(read_pod(self.pods.objects[step["uid"]]), step["container"])
        return self.held()

    def remove(self, step: Json) -> Json:
        self._forget(step["uid"])
        return self.held()

    def _forget(self, uid: str) -> None:
        self.pods.objects.pop(uid, None)
        self.devices.evict([PodUid(uid)])
        self.admission.forget()

    def held(self) -> Json:
        """Return the states of the CPU and memory managers in a comparable form."""
        self.cpus.save()
        self.memory.save()
        return {name: readable(name, store.blob or b"") for name, store in self.stores.items()}


def _hints(hints: Json) -> Json:
    return {
        name: None
        if listed is None
        else [[None if hint.mask is None else list(hint.mask), hint.preferred] for hint in listed]
        for name, listed in hints.items()
    }


def readable(name: str, blob: bytes) -> Json:
    """Return the content of a state file in a comparable form, with memory by group of NUMA nodes and sorted blocks."""
    if name == "cpu_manager_state":
        cpu = decode_cpus(blob)
        entries = {
            uid: {key: cpu_list(one) for key, one in held.items()} for uid, held in cpu.state.assignments.items()
        }
        return {"policy": cpu.policy, "shared": cpu_list(cpu.state.shared), "entries": entries}
    stored = decode_memory(blob)
    return {"policy": stored.policy, "nodes": _by_group(stored.state), "entries": _blocks(stored.state)}


def _by_group(state: MemoryState) -> Json:
    nodes: Json = {}
    for number, node in sorted(state.nodes.items()):
        tables = {
            name: [
                table.total,
                table.system_reserved,
                table.allocatable,
                sum(state.nodes[one].tables[name].reserved for one in node.cells),
                sum(state.nodes[one].tables[name].free for one in node.cells),
            ]
            for name, table in node.tables.items()
        }
        nodes[str(number)] = [node.assignments, sorted(node.cells), tables]
    return nodes


def _blocks(state: MemoryState) -> Json:
    return {
        uid: {name: sorted([list(one.numa_nodes), one.type, one.size] for one in held) for name, held in of_pod.items()}
        for uid, of_pod in state.assignments.items()
    }


def read_machine(given: Json) -> Machine:
    """Return the machine that a case describes."""
    return Machine(
        [
            NumaCell(
                node["node_id"],
                [
                    Core(one["thread_ids"], one["socket_id"], (one.get("uncore_caches") or [{"id": None}])[0]["id"])
                    for one in node["cores"]
                ],
                node["memory"],
                {one["page_size"]: one["num_pages"] for one in node["hugepages"]},
            )
            for node in given["topology"]
        ]
    )


def pod_of(given: Json) -> Pod:
    """Return the pod as the device manager knows it."""

    def containers(key: str) -> list[Container]:
        return [
            Container(
                one["name"],
                {name: Quantity.parse(text).whole for name, text in one["resources"]["limits"].items()},
                restartable=one.get("restartPolicy") == "Always",
            )
            for one in given["spec"].get(key, ())
        ]

    return Pod(
        PodUid(given["metadata"]["uid"]),
        containers=containers("containers"),
        init_containers=containers("initContainers"),
    )


# --- the judge -------------------------------------------------------------------------------------------------------


@frozen
class Played:
    """The steps of a case before the first one that Kubernetes could not answer, and our answers.

    `since` contains, by row, the first step at which the row may apply.
    """

    case: Json
    ours: list[Json]
    since: Mapping[str, int]

    def refused(self) -> list[int]:
        """Return the numbers of the steps at which a pod is rejected."""
        steps = enumerate(self.case["steps"], start=1)
        return [number for number, step in steps if step["op"] == "admit" and "reason" in self.ours[number]]

    def without_refusals(self, last: int | None = None) -> "Played":
        """Return the history without the admissions that reject a pod, except the step `last`.

        A pod that was admitted earlier is removed instead, because a rejected pod holds nothing afterwards.
        """
        end = len(self.case["steps"]) if last is None else last
        left_out, admitted = {*self.refused()} - {last}, set[str]()
        steps, ours = list[Json](), [self.ours[0]]
        for number, step in enumerate(self.case["steps"][:end], start=1):
            uid = step["object"]["metadata"]["uid"] if step["op"] == "admit" else ""
            if number not in left_out:
                admitted.add(uid)
                steps.append(step)
                ours.append(self.ours[number])
            elif uid in admitted:
                steps.append({"op": "remove", "uid": uid})
                ours.append({name: self.ours[number][name] for name in FILES if name in self.ours[number]})
        return Played({**self.case, "steps": steps}, ours, self.since)

    def compared(self, oracle: Oracle) -> list[tuple[int, str]]:
        """Ask a kubelet, and return the differences between its answers and ours, each with the step's number."""
        answers = oracle.ask("numa", self.case)
        if isinstance(answers, dict):
            return [(0, str(answers)[:3000])]
        is_older = oracle.version.startswith("1.36.")
        lines = list[tuple[int, str]]()
        for number, (mine, given) in enumerate(zip(self.ours, answers, strict=True)):
            op = "begin" if number == 0 else self.case["steps"][number - 1]["op"]
            theirs, wrong = decoded(given, may_lack_data=is_older)
            found = [*wrong, *differences(comparable(mine), comparable(theirs))]
            lines += ((number, f"step {number} {op}{line}") for line in found)
        return lines


def played(case: Json, cpu_policy: type[StaticCpuPolicy] = StaticCpuPolicy) -> Played:
    """Play a case on our managers."""
    replay = NumaReplay(case, cpu_policy)
    ours, since = [replay.begin()], dict[str, int]()
    steps, refused = list[Json](), set[str]()
    for step in case["steps"]:
        uid = step["object"]["metadata"]["uid"] if "object" in step else step.get("uid")
        if uid in refused:  # a kubelet never admits a failed pod again
            continue
        if step["op"] == "restart":  # the kubelet is given the files that we have written
            written = {name: store.blob.decode() for name, store in replay.stores.items() if store.blob}
            step = {**step, "files": written}  # noqa: PLW2901 - the rest of the loop needs these files
        try:
            answer = replay.play(step)
        except EndlessSearchError:
            break  # Kubernetes would not answer this step
        steps.append(step)
        ours.append(answer)
        if step["op"] == "admit" and not answer["ok"]:
            refused.add(uid)
        if replay.running:
            rows = ((MIXED, replay.memory.was_mixed), (TAKEN, replay.cpus.gave_what_was_taken))
            since = {**{row: len(steps) for row, is_so in rows if is_so}, **since}
    replay.stop()
    return Played({**case, "steps": steps}, ours, since)


def judge(case: Json, oracle: Oracle) -> Verdict:
    """Compare each step, and both state files byte for byte, except for the order of blocks.

    The cause of a difference is known if a NUMA node was in two groups (D29), or a container got a CPU that was not
    free (D30), and the kubelet answers as we do once the rejected pods are left out. Before 1.37, the cause is also
    known if our answers with the older policy agree (D33).
    """
    verdict = _judged(played(case), oracle)
    if verdict.cause is None and oracle.version.startswith("1.36."):
        older = _judged(played(case, OlderCpuPolicy), oracle).cause
        if older is not None:
            return Verdict("+".join(filter(None, (older, OLDER))), verdict.lines)
    return verdict


def _judged(ours: Played, oracle: Oracle) -> Verdict:
    theirs = ours.compared(oracle)
    lines = [line for _, line in theirs]
    if not lines:
        return AGREED
    rows = {row for row, number in ours.since.items() if number <= theirs[0][0]}
    if rows and not ours.without_refusals().compared(oracle) and _refuses_as_we_do(ours, theirs, oracle):
        return Verdict("+".join(sorted(rows)), lines)
    return Verdict(None, lines)


def _refuses_as_we_do(ours: Played, theirs: Sequence[tuple[int, str]], oracle: Oracle) -> bool:
    """Return whether the kubelet agrees about each differing rejection once the other rejections are left out."""
    for number in sorted({number for number, line in theirs if "_manager_state" not in line} & {*ours.refused()}):
        alone = ours.without_refusals(number)
        last = [line for at, line in alone.compared(oracle) if at == len(alone.case["steps"])]
        if not all("_manager_state" in line for line in last):
            return False
    return True


def comparable(answer: Json) -> Json:
    """Return an answer in a comparable form, with only the kind of its error."""
    if "error" in answer and "ok" in answer:
        return {"ok": False, "error": _kind_of_error(answer["error"])}
    return answer


def _kind_of_error(text: str) -> str:
    """Return an error's text without its wrapping and without what depends on Go's random map order."""
    for prefix in ("new static policy error: ", "new none policy error: "):
        text = text.removeprefix(prefix)
    if text.startswith("None policy"):
        return "None policy"
    if "options" in text.lower() or "option" in text:
        return "options"
    return "total" if text.startswith("the total amount") else text


def encoded_again(name: str, blob: bytes, *, may_lack_data: bool = False) -> bytes:
    """Read a state file, and return the bytes that we would write.

    Kubelets before 1.37 write no field `data`, but may keep a file that we wrote.
    """
    has_data = not may_lack_data or b'"dataChecksum":' in blob
    if name == "cpu_manager_state":
        cpu = decode_cpus(blob)
        return encode_cpus(cpu.policy, cpu.state, has_data=has_data)
    stored = decode_memory(blob)
    return encode_memory(stored.policy, stored.state, has_data=has_data)


def decoded(answer: Json, *, may_lack_data: bool = False) -> tuple[Json, list[str]]:
    """Return an oracle's answer with its files decoded, and how the files would differ if we wrote them."""
    found, lines = dict(answer), list[str]()
    for name in FILES:
        if name not in answer or answer.get("error"):
            continue
        blob = answer[name].encode()
        again = encoded_again(name, blob, may_lack_data=may_lack_data)
        if again != blob:
            lines.append(f"{name}: ours {again!r}, theirs {blob!r}")
        found[name] = json.loads(json.dumps(readable(name, blob)))
    return found, lines
