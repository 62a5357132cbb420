"""Histories of a device manager, with random plugins and pods."""

import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from itertools import chain
from random import Random

from attrs import evolve

from devicecore.domain.allocation import Release
from devicecore.domain.checkpoint import CheckpointData, PodDevicesEntry, encode
from devicecore.domain.checkpoint.encoding import NEWEST
from devicecore.domain.topology import Policy, Scope
from devicecore.wire.conversion import write_receipt
from tests.histories import Replay, response_of
from tests.oracle.asking import Json, Oracle, Verdict, differences, joined
from tests.oracle.topology import policy_options, topology_of

NAMES = ("gpu", "nic", "fpga", "qat")
RESOURCES = tuple(f"{letter}.example.com/{name}" for letter, name in zip("abcd", NAMES, strict=True))
UNKNOWN = "z.example.com/unknown"
RUNNING: Json = {
    **dict.fromkeys(("uid", "name"), "pod-000"),
    "namespace": "default",
    "initContainers": [],
    "containers": [{"name": "main", "limits": {}}],
}
"""A pod that requests nothing, so it always runs."""
OPS = (
    *("allocate",) * 8,
    *("list_and_watch",) * 4,
    *("hints",) * 3,
    *("capacity",) * 2,
    *("remove_pod",) * 3,
    *("connect",) * 2,
    *("start",) * 2,
    *("status",) * 2,
    *("allocate_again",) * 3,
    *("disconnect",) * 2,
    *("advance_clock",) * 2,
    *("replace", "end", "restart", "ready", "sanitize"),
)


class _Author:
    """Writes a history. The author knows which pods and plugins exist, but not how a kubelet answers."""

    def __init__(self, random: Random, *, policy: Policy | None) -> None:
        self.random = random
        self.policy = policy
        self.nodes = sorted(random.sample(range(8), random.choice((1, 2, 2, 4, 4, 6))))
        self.connected: dict[str, Json] = {}
        self.twice: list[str] = []  # resources with two connected instances
        self.are_plain = random.random() < 0.5
        self.pods: dict[str, Json] = {}
        self.count = 0

    def history(self) -> Json:
        steps = [self._with_affinity({"op": "allocate", "pod": RUNNING})]
        steps += [self.connect() for _ in range(self.random.randint(1, 3))]
        if self.policy and self.random.random() < 0.03:
            steps += self._later_devices()
        while len(steps) < 6 + self.random.randint(0, 24):
            if step := getattr(self, self.random.choice(OPS))():
                steps.append(step)
                steps += self._admitted_again(step.get("running", ()))
                steps += self._removed_early(step)
                if step["op"] == "allocate":
                    steps += self._started(step["pod"])
                if step["op"] == "list_and_watch":
                    steps += self._asked_again(step["resource"])
                if step["op"] == "disconnect" and self.random.random() < 0.4:
                    steps.append(self.advance_clock())
                if steps[-1]["op"] == "advance_clock" and self.random.random() < 0.7:
                    steps.append(self.capacity())
        history: Json = {"numa_nodes": self.nodes, "steps": [step for step in steps if step]}
        if self.are_plain:  # the others may list unknown health values, which count as unhealthy, or an id twice
            history["updates"] = True
        if self.policy:
            scope = self.random.choice(list(Scope))
            history |= {"policy": self.policy.value, "scope": scope.value, **policy_options(self.random, self.nodes)}
        return history

    def _later_devices(self) -> Iterator[Json]:
        """Yield two admissions of a pod whose second init container holds a device that the first one must not reuse.

        Only the alignment of a container that requests 0 devices shows whether it would reuse the device.
        """
        here, there = self.nodes[0], self.nodes[-1]
        one, other = RESOURCES[:2]
        self.connected[one] = [{"id": "gpu-00", "health": "Healthy", "numa": [here]}]
        ill, free = {"id": "nic-00", "health": "Unhealthy", "numa": [here]}, {"id": "nic-01", "health": "Healthy"}
        self.connected[other] = [ill, {**free, "numa": [there]}]
        for resource in (one, other):
            yield {"op": "connect", "resource": resource, "devices": self.connected[resource]}
        pod = self._new_pod()
        limits = {"init": {one: 1, other: 0}, "init-2": {other: 1}}
        pod["initContainers"] = [{"name": name, "limits": asked} for name, asked in limits.items()]
        pod["containers"] = [{"name": "main", "limits": {}}]
        self.pods[pod["uid"]] = pod
        yield {"op": "allocate", "pod": pod}
        if self.random.random() < 0.8:  # usually, another pod is admitted in between; if not, see D34
            yield self.allocate()
        yield {"op": "allocate_again", "pod": pod}

    def connect(self) -> Json:
        free = [name for name in RESOURCES if name not in self.connected]
        return self._connected(free) if free else None

    def replace(self) -> Json:
        """Let a newer instance of a plugin register, perhaps with other options, while the older one exits or stays."""
        once = [resource for resource in sorted(self.connected) if resource not in self.twice]
        if not once:
            return None
        step = self._connected(once)
        if self.random.random() < 0.4:
            self.twice.append(step["resource"])
            step["stays"] = True
        return step

    def end(self) -> Json:
        """End one of a plugin's two instances, and make the other instance list its devices."""
        if not self.twice:
            return None
        resource = self.twice.pop()
        self.connected[resource] = self._devices(resource, self.random.randint(0, 8))
        step = {"op": "end", "resource": resource, "devices": self.connected[resource]}
        return {**step, "newer": self.random.random() < 0.5}

    def _connected(self, resources: Sequence[str]) -> Json:
        resource = self.random.choice(resources)
        devices = self._devices(resource, self.random.randint(0, 8))
        self.connected[resource] = devices
        return {"op": "connect", "resource": resource, "devices": devices, **self._manner()}

    def _manner(self) -> Json:
        """Return the fields that determine a plugin's behavior."""
        others = ("largest", "largest and more", "all", "short", "nothing", "foreign", "none")
        manner: Json = {}
        if prefers := self.random.choice(("",) * 5 + others):
            manner["prefers"] = prefers
        if self.random.random() < 0.3:
            manner["prestart"] = True
        if self.random.random() < 0.1:
            manner["fails"] = [self.random.choice(("Allocate", "PreStartContainer", "GetPreferredAllocation"))]
        elif "prestart" in manner and self.random.random() < 0.2:
            manner["fails"] = ["PreStartContainer"]
        if self.random.random() < 0.7:
            manner["answer"] = self._answer()
        return manner

    def _answer(self) -> Json:
        """Return an answer to Allocate with few different names and paths, so that a container's plugins conflict."""
        names, paths = ("A", "B", "C"), ("/a", "/b", "/c")

        def some(listed: Sequence[str]) -> list[str]:
            return self.random.sample(listed, self.random.choice((0, 1, 1, 2))) * self.random.choice((1, 1, 2))

        def by_path(modes: Sequence[str]) -> Json:
            return [[path, self.random.choice(paths), self.random.choice(modes)] for path in some(paths)]

        return {
            "envs": {name: self.random.choice(("", "1", "2")) for name in some(names)},
            "annotations": {name: self.random.choice(("", "1", "2")) for name in some(names)},
            "mounts": by_path(("ro", "rw")),
            "devices": by_path(("r", "rw", "mrw")),
            "cdi": [f"example.com/class={name}" for name in some(names)],
        }

    def list_and_watch(self) -> Json:
        if not self.connected:
            return None
        resource = self.random.choice(sorted(self.connected))
        if self.random.random() < 0.4:  # the same devices, some of which have become unhealthy or healthy
            devices: Sequence[Json] = [
                {**one, "health": self.random.choice(("Healthy", "Unhealthy"))} if self.random.random() < 0.4 else one
                for one in self.connected[resource]
            ]
            self.connected[resource] = devices
            return {"op": "list_and_watch", "resource": resource, "devices": devices}
        before = len(self.connected[resource])
        devices = self._devices(resource, self.random.choice((before, before, before, before + 1, max(0, before - 2))))
        self.connected[resource] = devices
        return {"op": "list_and_watch", "resource": resource, "devices": devices}

    def _devices(self, resource: str, count: int) -> Sequence[Json]:
        style = self.random.choice(("none", "one", "one", "some", "several", "odd"))
        ill = self.random.choice((0, 0, 0.1, 0.4))
        listed = []
        for number in range(count):
            device: Json = {"id": f"{resource.partition('/')[2]}-{number:02}", "health": "Healthy"}
            if self.random.random() < ill:
                device["health"] = "Unhealthy" if self.are_plain else self.random.choice(("Unhealthy", "degraded", ""))
            if style == "one":
                device["numa"] = [self.random.choice(self.nodes)]
            elif style == "some":
                device["numa"] = self.random.choice(([], [], [self.random.choice(self.nodes)]))
            elif style != "none":
                others = [*self.nodes, 9] if style == "odd" else self.nodes
                size = self.random.randint(0, min(3, len(others)))
                device["numa"] = sorted(self.random.sample(others, size))
                if style == "odd" and self.random.random() < 0.3:
                    del device["numa"]
                elif style == "odd" and self.random.random() < 0.2:
                    device["numa"] = [-1]  # Linux reports this for a PCI device without a NUMA node
            listed.append(device)
        if listed and not self.are_plain and self.random.random() < 0.1:
            # the same id again, perhaps with a different health
            listed.append({**self.random.choice(listed), "health": self.random.choice(("Healthy", "Unhealthy"))})
        return listed

    def disconnect(self) -> Json:
        once = [resource for resource in sorted(self.connected) if resource not in self.twice]
        if not once:
            return None
        resource = self.random.choice(once)
        del self.connected[resource]
        return {"op": "disconnect", "resource": resource}

    def status(self) -> Json:
        """Return a step that reads the device health in a pod's status."""
        return {"op": "status", "pod": self.random.choice([RUNNING, *self.pods.values()])}

    def restart(self) -> Json:
        self.connected.clear()
        self.twice.clear()
        step: Json = {"op": "restart"}
        if self.random.random() < 0.4:
            data, is_flat = self._checkpoint(), self.random.random() < 0.08
            step["checkpoint"] = encode(data, 1 if is_flat else NEWEST).decode()
            if is_flat and data.entries:  # without entries, a newer kubelet accepts the old format, too
                step |= {"newest": encode(_on_node_0(data)).decode(), "is_unusable": True}
            elif self.random.random() < 0.15:
                cut, other = step["checkpoint"][: self.random.randint(0, 40)], '"Checksum":1'
                damaged = self.random.choice((cut, step["checkpoint"].replace('"Checksum":', other)))
                step |= {"checkpoint": damaged, "is_unusable": True}
        if self.random.random() < 0.4:
            step |= {"waits": True, "running": self._running()}
        return step

    def _running(self) -> Json:
        """Return some containers that count as running, but none from pods with init containers that end (see D12)."""
        found = []
        for pod in [RUNNING, *self.pods.values()]:
            sidecars = [one for one in pod["initContainers"] if "restartPolicy" in one]
            if self.random.random() < 0.6 and len(sidecars) == len(pod["initContainers"]):
                names = [one["name"] for one in (*sidecars, *pod["containers"])]
                found += [[pod["uid"], name] for name in names if self.random.random() < 0.8]
        return found

    def _admitted_again(self, running: Sequence[Sequence[str]]) -> Iterator[Json]:
        """Yield second admissions of running pods, as in a restarted kubelet that does not know all pods yet."""
        for uid in sorted({uid for uid, _ in running} & self.pods.keys()):
            if self.random.random() < 0.5:
                yield self._with_affinity({"op": "allocate_again", "pod": self.pods[uid]})

    def _removed_early(self, step: Json) -> Iterator[Json]:
        """Yield a pod's removal before a restarted kubelet knows all pods: its devices stay taken. Then admit a pod."""
        if step.get("waits") and self.pods and self.random.random() < 0.4:
            yield self.remove_pod()
            self.count += 1
            uid = f"pod-{self.count:03}"
            yield self._with_affinity({"op": "allocate", "pod": {**RUNNING, "uid": uid, "name": uid}})

    def _asked_again(self, resource: str) -> Iterator[Json]:
        """Yield steps that query the newest pods that may hold devices from a changed list."""
        for pod in list(self.pods.values())[-3:]:
            containers = (*pod["initContainers"], *pod["containers"])
            if self.random.random() < 0.6 and any(one["limits"].get(resource) for one in containers):
                step = self.random.choice(({"op": "allocate_again", "pod": pod}, {"op": "status", "pod": pod}))
                yield self._with_affinity(step) if step["op"] == "allocate_again" else step

    def ready(self) -> Json:
        return {"op": "ready"}

    def start(self) -> Json:
        pod = self.random.choice([RUNNING, *self.pods.values()])
        containers = [*pod["initContainers"], *pod["containers"]]
        # Plugins' answers conflict only for a container that requests several resources.
        container = (
            max(containers, key=lambda one: len(one["limits"])) if self.random.random() < 0.6 else containers[-1]
        )
        return {"op": "start", "pod": pod, "container": container["name"]}

    def _started(self, pod: Json) -> Iterator[Json]:
        """Yield, for some new pods, the start of a container that requests devices from a connected plugin."""
        containers = [*pod["initContainers"], *pod["containers"]]
        asking = [one["name"] for one in containers if one["limits"].keys() & self.connected.keys()]
        if asking and self.random.random() < 0.4:
            yield {"op": "start", "pod": pod, "container": self.random.choice(asking)}

    def _checkpoint(self) -> CheckpointData:
        """Return a checkpoint that gives a running pod different devices than the kubelet saved."""
        entries = dict[tuple[str, str], PodDevicesEntry]()
        resources = (*RESOURCES, *RESOURCES, UNKNOWN)
        for _ in range(self.random.randint(0, 4)):
            resource, container = self.random.choice(resources), self.random.choice(("main", "init", "helper"))
            ids = [f"{resource.partition('/')[2]}-{number:02}" for number in self.random.sample(range(10), 3)]
            nodes = self.random.sample([-1, *self.nodes, 9], self.random.randint(1, 2))
            devices = {node: tuple(self.random.sample(ids, self.random.randint(1, 3))) for node in nodes}
            answer = self.random.choice((b"", b"", b"\xff", self._written_answer(), self._written_answer()))
            entry = PodDevicesEntry(RUNNING["uid"], container, resource, devices, alloc_resp=answer)
            entries[entry.container_name, resource] = entry
        registered = {
            name: tuple(f"{name.partition('/')[2]}-{number:02}" for number in range(self.random.randint(0, 5)))
            for name in self.random.sample(resources[len(RESOURCES) :], self.random.randint(0, 3))
        }
        # A kubelet may have written the entries and ids in any order.
        shuffled = self.random.sample(list(entries.values()), len(entries))
        return CheckpointData(tuple(shuffled), registered)

    def _written_answer(self) -> bytes:
        """Return a plugin's answer as a kubelet writes it, sometimes with a field that only a newer kubelet knows."""
        return write_receipt(response_of(self._answer())) + self.random.choice((b"", b"", b"\xba\x3e\x03new"))

    def advance_clock(self) -> Json:
        # The limit is 300 seconds. Most values are close to it, so that a limit that is off by a few seconds is found.
        return {"op": "advance_clock", "seconds": self.random.choice((7, 67, 298, 298, 302, 302, 1009))}

    def _new_pod(self) -> Json:
        self.count += 1
        uid = f"pod-{self.count:03}"
        containers = [
            self._container(name) for name in self.random.choice((["main"], ["main"], [*"abc"], ["main", "helper"]))
        ]
        first = [
            self._container(name)
            for name in self.random.choice(([], [], [], ["init"], ["init", "init-2"], ["init", "init-2", "init-3"]))
        ]
        for one in first:
            if self.random.random() < 0.3:
                one["restartPolicy"] = "Always"
            if one["limits"] and self.random.random() < 0.5:  # a later container may reuse devices
                containers[-1]["limits"][self.random.choice(sorted(one["limits"]))] = self.random.choice((1, 2, 3, 4))
        pod = {"uid": uid, "name": uid, "namespace": "default", "initContainers": first, "containers": containers}
        if self.random.random() < 0.1:
            asked = [(one["name"], resource) for one in (*first, *containers) for resource in one["limits"]]
            pod["claimed"] = [list(one) for one in asked if self.random.random() < 0.6]
        return pod

    def _container(self, name: str) -> Json:
        asked = self.random.sample((*RESOURCES, UNKNOWN), self.random.choice((0, 1, 1, 1, 2)))
        return {"name": name, "limits": {resource: self.random.choice((0, 1, 1, 2, 2, 3, 4, 9)) for resource in asked}}

    def allocate(self) -> Json:
        pod = self._new_pod()
        self.pods[pod["uid"]] = pod
        return self._with_affinity({"op": "allocate", "pod": pod})

    def _with_affinity(self, step: Json) -> Json:
        if not self.policy:
            nodes = self.random.sample(self.nodes, self.random.randint(1, len(self.nodes)))
            step["affinity"] = self.random.choice((None, sorted(nodes)))
        return step

    def allocate_again(self) -> Json:
        if not self.pods:
            return None
        pod = self.pods[self.random.choice(sorted(self.pods))]
        return self._with_affinity({"op": "allocate_again", "pod": self._maybe_resized(pod)})

    def _maybe_resized(self, pod: Json) -> Json:
        """Return a pod, sometimes with a change in the last container that requests a resource.

        Earlier requests do not change, because a kubelet would serve a larger request with devices that a later
        container holds. On a real node, a pod's requests for devices never change.
        """
        containers = [*pod["initContainers"], *pod["containers"]]
        container = self.random.choice(containers)
        later = {name for one in containers[containers.index(container) + 1 :] for name in one["limits"]}
        names = sorted(container["limits"].keys() - later)
        if not names or self.random.random() > 0.3:
            return pod
        limits = {**container["limits"], self.random.choice(names): self.random.choice((0, 1, 3))}
        resized = {**container, "limits": limits}
        parts = ("initContainers", "containers")
        return {**pod, **{part: [resized if one is container else one for one in pod[part]] for part in parts}}

    def hints(self) -> Json:
        pod = self.random.choice([self._new_pod(), *map(self._maybe_resized, self.pods.values())])
        container = self.random.choice([*pod["initContainers"], *pod["containers"]])
        # When a kubelet admits another pod, it forgets which devices an earlier pod may reuse. Only hints for 0 devices
        # would show this.
        if pod["uid"] in self.pods and 0 in container["limits"].values():
            return None
        return {"op": "hints", "pod": pod, "container": container["name"]}

    def capacity(self) -> Json:
        return {"op": "capacity"}

    def remove_pod(self) -> Json:
        if not self.pods:
            return None
        uid = self.random.choice(sorted(self.pods))
        del self.pods[uid]
        return {"op": "remove_pod", "uid": uid}

    def sanitize(self) -> Json:
        if not self.pods:
            return None
        counts = {name: self.random.randint(0, 8) for name in self.random.sample(RESOURCES, 2)}
        return {"op": "sanitize", "pod_uid": self.random.choice(sorted(self.pods)), "allocatable": counts}


def history(random: Random) -> Json:
    """Return a history in which each step states its affinity."""
    return _Author(random, policy=None).history()


def admissions(random: Random) -> Json:
    """Return a history in which the topology manager chooses the affinity."""
    return _Author(random, policy=random.choice([one for one in Policy if one is not Policy.NONE])).history()


def judge(history: Json, oracle: Oracle) -> Verdict:
    """Compare the answers to a history, and recognize a difference by its cause.

    A cause is proved by a change that makes the answers equal. All other answers must be equal. The changes are:

    * D2: a pod whose second admission fails is forgotten, or a refused admission or start is left out.
    * D20: zeros of resources without devices in use, or a pod's request for a resource that is gone, are left out.
    * D21: what makes the kubelet panic is left out.
    * D23: a checkpoint from before 1.20 is converted to the newest format.
    * D32: the start of a container that has lost devices is left out.
    * D34: another pod is admitted in between.
    * D35: a start that only the kubelet refuses is left out.
    """
    if (Release.of(oracle.version) or Release.V1_37).is_before_1_37:
        history = _before_1_37(history)
    if any("newest" in step for step in history["steps"]):
        return _judge_with_newest(history, oracle)
    if lost := lost_by_a_refusal(history):
        return Verdict(None, lost)
    return _judged(history, oracle)


def _judged(history: Json, oracle: Oracle) -> Verdict:
    answers = oracle.ask("devices", history)
    if "panic" in answers:
        return _judge_without_panic(history, answers, oracle)
    ours, theirs = answers_of_ours(history), _theirs(history, answers)
    lines = list(differences(ours, theirs))
    if not lines or ours == _without_zeros(history, theirs):
        return Verdict("D20" if lines else "", lines)
    place = next(number for number, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1])
    is_mended = Release.of(oracle.version) is Release.V1_38
    if not is_mended and _starts_without_a_claimed_device(history["steps"][place], theirs[place]):
        return _judge_unclaimed(history, place, oracle)._replace(lines=lines)
    for number, row in _left_out(history, theirs[: place + 1]):
        if number < place or row == "D32":
            return _judge_without(history, number, row, lines, oracle)
    gone = what_is_gone(history, place, ours[place], theirs[place])
    return _judge_changed(history, answers, place, gone, oracle)._replace(lines=lines)


def _judge_changed(history: Json, answers: Json, place: int, gone: str, oracle: Oracle) -> Verdict:
    """Find the cause of a difference at a step by comparing changed histories (D34, D2 and D20)."""
    if _may_remember_reuse(history, place):
        steps = history["steps"]
        rest = judge({**history, "steps": [*steps[:place], ADMITTED, *steps[place:]]}, oracle)
        if rest.cause is not None:
            return rest._replace(cause=joined("D34", rest.cause))
    repaired = _forgetting(history, answers)
    if repaired != history:
        rest = judge(repaired, oracle)
        return rest._replace(cause=joined("D2", rest.cause))
    without = _not_asking(history, place, gone) if gone else history
    if without == history or answers_of_ours(without)[place] != answers_of_ours(history)[place]:
        return Verdict(None, ())
    rest = judge(without, oracle)
    return rest._replace(cause=joined("D20", rest.cause))


def _starts_without_a_claimed_device(step: Json, theirs: Json) -> bool:
    """Return whether the kubelet refused to start a container without a device of a resource that a claim provides."""
    claimed = step["pod"].get("claimed", ()) if step["op"] == "start" else ()
    uid, error = step["pod"]["uid"] if claimed else "", theirs.get("error")
    return any(
        container == step["container"]
        and error
        in (
            f"no devices found allocated in local cache for pod {uid}, container {container}, resource {resource}",
            f"endpoint not found in cache for a registered resource: {resource}",
        )
        for container, resource in claimed
    )


def _judge_unclaimed(history: Json, place: int, oracle: Oracle) -> Verdict:
    """Compare the history after removing the started container's requests for what its claim provides (D35)."""
    steps, step = history["steps"], history["steps"][place]
    without = step
    for container, resource in step["pod"]["claimed"]:
        if container == step["container"]:
            without = _without_request(without, resource)
    changed = {**history, "steps": [*steps[:place], without, *steps[place + 1 :]]}
    if answers_of_ours(changed)[place] != answers_of_ours(history)[place]:
        return Verdict(None, ())
    rest = judge(changed, oracle)
    return rest._replace(cause=joined("D35", rest.cause))


ADMITTED: Json = {"op": "allocate_again", "pod": RUNNING}
"""A step after which a kubelet no longer knows which devices the previous pod's containers may reuse."""


def _may_remember_reuse(history: Json, place: int) -> bool:
    """Return whether a pod that holds devices is admitted again, with a container that requests 0 of a resource.

    From the first admission, a kubelet remembers which devices this container may reuse, and aligns the container with
    these devices.
    """
    step, before = history["steps"][place], history["steps"][place - 1]
    if step["op"] != "allocate_again" or "policy" not in history or before == ADMITTED:
        return False
    first = step["pod"]["initContainers"]
    if not (first and any(0 in one["limits"].values() for one in (*first, *step["pod"]["containers"]))):
        return False
    replay = Replay(topology_of(history))
    for one in history["steps"][:place]:
        replay.play(one)
    return bool(_held_by(replay, step))


def _on_node_0(data: CheckpointData) -> CheckpointData:
    """Return a checkpoint from before 1.20 as newer kubelets converted it: all devices are on NUMA node 0."""
    entries = []
    for one in data.entries or ():
        ids = chain.from_iterable(listed or () for listed in (one.device_ids or {}).values())
        entries.append(evolve(one, device_ids={0: tuple(dict.fromkeys(ids))}))
    return evolve(data, entries=tuple(entries))


def _judge_with_newest(history: Json, oracle: Oracle) -> Verdict:
    """Compare a history in which a restart finds a checkpoint from before 1.20 (D23).

    A kubelet must reject the old file. Our manager must continue as a kubelet does with the same data in today's
    format.
    """
    newest = [
        {name: value for name, value in step.items() if name not in ("newest", "is_unusable")}
        | {"checkpoint": step["newest"]}
        if "newest" in step
        else step
        for step in history["steps"]
    ]
    lines = list(differences(answers_of_ours(history), answers_of_ours({**history, "steps": newest})))
    old = [step["checkpoint"].encode() for step in history["steps"] if "newest" in step]
    read = [oracle.ask("checkpoint-decode", {"file_b64": b64encode(one).decode()})["verdict"] for one in old]
    if lines or set(read) != {"malformed"}:
        return Verdict(None, lines or [f"theirs reads an old file: {read}"])
    rest = judge({**history, "steps": newest}, oracle)
    return rest._replace(cause=joined("D23", rest.cause))


def _before_1_37(history: Json) -> Json:
    """Return a history in which each older instance of a plugin ends before the newer one registers.

    Before 1.37, a kubelet mistakes the end of the older instance for the end of the newer one (D4).
    """
    steps, connected = list[Json](), set[str]()
    for step in history["steps"]:
        match step["op"]:
            case "connect":
                if step["resource"] in connected:
                    steps.append({"op": "disconnect", "resource": step["resource"]})
                connected.add(step["resource"])
                steps.append({name: value for name, value in step.items() if name != "stays"})
            case "end":
                steps.append({"op": "list_and_watch", "resource": step["resource"], "devices": step["devices"]})
            case "disconnect":
                connected.discard(step["resource"])
                steps.append(step)
            case "restart":
                connected.clear()
                steps.append(step)
            case _:
                steps.append(step)
    return {**history, "steps": steps}


def _left_out(history: Json, answers: Sequence[Json]) -> Iterator[tuple[int, str]]:
    """Yield the steps after which a kubelet behaves differently, in reverse order, each with the row that explains it.

    D2: the kubelet keeps devices that it chose for a pod and then rejected the pod, because GetPreferredAllocation
    failed or not all pods were known. It also keeps devices that it chose for a container and then refused to start the
    container.
    D32: under a policy, the last step starts a container that has lost devices.
    """
    waits, found = False, list[tuple[int, str]]()
    for number, answer in enumerate(answers):
        step = history["steps"][number]
        if step["op"] in ("restart", "ready"):
            waits = step.get("waits", False)
        told = str(answer.get("message") or answer.get("error"))
        is_new = step["op"] == "allocate" and waits
        is_started = step["op"] == "start" and any(call[0] == "Allocate" for call in answer.get("calls", ()))
        if not answer.get("ok", True) and (is_new or is_started or "GetPreferredAllocation rpc failed" in told):
            found.append((number, "D2"))
    last = len(answers) - 1
    if history["steps"][last]["op"] == "start" and "policy" in history and _has_lost_devices(history, last):
        found.append((last, "D32"))
    yield from reversed(found)


def _has_lost_devices(history: Json, place: int) -> bool:
    """Return whether the step starts a container that requests a resource but holds no device of this resource."""
    replay, step = Replay(topology_of(history)), history["steps"][place]
    for one in history["steps"][:place]:
        replay.play(one)
    containers = [*step["pod"]["initContainers"], *step["pod"]["containers"]]
    limits = next(one["limits"] for one in containers if one["name"] == step["container"])
    held = {entry["resource"] for entry in _held_by(replay, step) if entry["container"] == step["container"]}
    return any(count and name not in held for name, count in limits.items())


def _judge_without(history: Json, place: int, row: str, lines: Sequence[str], oracle: Oracle) -> Verdict:
    """Compare a history without the step at `place`, whose answers differ because of `row`."""
    rest = judge({**history, "steps": [*history["steps"][:place], *history["steps"][place + 1 :]]}, oracle)
    return rest._replace(cause=joined(row, rest.cause), lines=rest.lines or lines)


_IN_MANAGER = "cm/devicemanager.(*ManagerImpl)"


def _judge_without_panic(history: Json, answers: Json, oracle: Oracle) -> Verdict:
    """Compare a history without the step that makes the kubelet panic (D21)."""
    panic, stack = answers["panic"], answers["stack"]
    for count in range(len(history["steps"])):
        if "panic" in oracle.ask("devices", {**history, "steps": history["steps"][: count + 1]}):
            row = _row_of_panic(history, count) if _IN_MANAGER in stack else None
            return _judge_without(history, count, row, [panic], oracle) if row else Verdict(None, [f"panic: {panic}"])
    return Verdict(None, [f"panic: {panic}"])


def _row_of_panic(history: Json, count: int) -> str | None:
    """Return D21 if the step's pod already holds a device that its plugin does not list.

    If a second admission of the pod was rejected, the pod may hold such a device only on the kubelet (D2).
    """
    replay, refused = Replay(topology_of(history)), set[str]()
    for step in history["steps"][:count]:
        if not replay.play(step).get("ok", True):
            refused.add(step["pod"]["uid"])
    step, resources = history["steps"][count], replay.manager.state.inventory.resources
    if "pod" not in step:
        return None
    for entry in replay.checkpoint()["entries"]:
        resource = resources.get(entry["resource"])
        listed = set(resource.report.devices) if resource and resource.report else set[str]()
        if entry["pod"] == step["pod"]["uid"] and any(set(ids) - listed for ids in entry["devices"].values()):
            return "D21"
    return "D2+D21" if step["pod"]["uid"] in refused else None


def lost_by_a_refusal(history: Json) -> list[str]:
    """Return how a pod's devices differ after a rejected second admission or start, if our manager lost any.

    D2 changes such a history, so the comparison cannot show whether our manager keeps the pod's devices.
    """
    replay, lost = Replay(topology_of(history)), list[str]()
    for number, step in enumerate(history["steps"]):
        is_second = step["op"] in ("allocate_again", "start")
        before = _held_by(replay, step) if is_second else None
        answer = replay.play(step)
        if is_second and not answer["ok"]:
            lost += differences(_held_by(replay, step), before, f"step {number}, held after and before")
    return lost


def _held_by(replay: Replay, step: Json) -> Json:
    return [entry for entry in replay.checkpoint()["entries"] if entry["pod"] == step["pod"]["uid"]]


_NOT_CONNECTED = "(?:cannot allocate unregistered device|endpoint not found in cache for a registered resource:)"


def what_is_gone(history: Json, place: int, ours: Json, theirs: Json) -> str:
    """Return the resource that only the kubelet still knows, although it is not registered and no container uses it.

    The resource is in the kubelet's map of ids in use, so the kubelet rejects a pod that requests the resource, and its
    hints for the resource are null or empty. If the step's answer shows neither, the result is an empty string.
    """
    told = str(theirs.get("message") or theirs.get("error"))
    refused = re.search(_NOT_CONNECTED + r" (\S+?)(, which is unexpected)?$", told)
    found = refused[1] if refused else ""
    if history["steps"][place]["op"] == "hints":
        found = next((name for name in sorted(theirs.keys() - ours.keys()) if not theirs[name]), "")
    replay = Replay(topology_of(history))
    for step in history["steps"][:place]:
        replay.play(step)
    checkpoint = replay.checkpoint()
    known = {entry["resource"] for entry in checkpoint["entries"]} | checkpoint["registered"].keys()
    return "" if found in known else found


def _not_asking(history: Json, place: int, resource: str) -> Json:
    """Return a history in which, from a given step on, the step's pod does not request a resource."""
    steps, uid = history["steps"], history["steps"][place]["pod"]["uid"]
    changed = (
        _without_request(step, resource) if "pod" in step and step["pod"]["uid"] == uid else step
        for step in steps[place:]
    )
    return {**history, "steps": [*steps[:place], *changed]}


def _without_request(step: Json, resource: str) -> Json:
    """Return a step without its pod's requests for a resource."""

    def without(container: Json) -> Json:
        return {**container, "limits": {name: size for name, size in container["limits"].items() if name != resource}}

    containers = {name: [*map(without, step["pod"][name])] for name in ("initContainers", "containers")}
    return {**step, "pod": {**step["pod"], **containers}}


def agree(history: Json, answers: Json) -> bool:
    """Return whether our answers to a history equal a kubelet's answers."""
    return bool(answers_of_ours(history) == _theirs(history, answers))


def _forgetting(history: Json, answers: Json) -> Json:
    """Return the history with a new UID for a pod after each failed admission, so that it starts without devices."""
    steps, names = [], dict[str, str]()
    for step, answer in zip(history["steps"], answers, strict=True):
        changed = dict(step)
        for key in ("uid", "pod_uid"):
            if key in step:
                changed[key] = names.get(step[key], step[key])
        if "pod" in step:
            uid = step["pod"]["uid"]
            changed["pod"] = {**step["pod"], "uid": names.get(uid, uid)}
            if step["op"] != "start" and not answer.get("ok", True):
                changed["op"] = "allocate"
                names[uid] = f"{names.get(uid, uid)}-again"
        steps.append(changed)
    return {**history, "steps": steps}


def _without_zeros(history: Json, answers: Json) -> Json:
    """Return the answers without the zeros that a kubelet adds in the step `sanitize`."""
    return [
        {"allocatable": {name: count for name, count in answer["allocatable"].items() if count or name in given}}
        if (given := step.get("allocatable")) is not None
        else answer
        for step, answer in zip(history["steps"], answers, strict=True)
    ]


def answers_of_ours(history: Json) -> Json:
    """Return our manager's answer to each step."""
    replay = Replay(topology_of(history), updates=history.get("updates", False))
    told = ("ok", "reason", "message") if "policy" in history else ("ok", "container", "error")
    answers = []
    for step in history["steps"]:
        answer = replay.play(step)
        if not answer.get("ok", True) and step["op"] != "start":
            answer = {name: answer.get(name) for name in told}
        answers.append({**answer, "calls": list(replay.calls)} if replay.calls else answer)
    return answers


_STOPPED = re.compile(r"endpoint &\{.*? (\S+/\S+) /.* has been stopped")
"""A kubelet's message about a plugin that is gone, which contains a printed Go structure."""


def _theirs(history: Json, answers: Json) -> Json:
    """Return the kubelet's answer to each step; for a rejected pod, only the container and the error."""
    answers = [
        one | {"error": _STOPPED.sub(r"endpoint \1 has been stopped", one["error"])} if one.get("error") else one
        for one in answers
    ]
    if "policy" in history:
        return answers
    named = []
    for answer in answers:
        if answer.get("ok", True) or "containers" not in answer:
            named.append(answer)
        else:
            failed = answer["containers"][-1]
            calls = {"calls": answer["calls"]} if "calls" in answer else {}
            named.append({"ok": False, "container": failed["name"], "error": failed["error"], **calls})
    return named
