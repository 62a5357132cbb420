"""Replays recorded histories of a kubelet's device manager through a `DeviceManager` with in-memory adapters."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from devicecore import (
    Admitted,
    Container,
    ContainerAllocateResponse,
    ContainerKey,
    Device,
    DeviceId,
    DeviceManager,
    DevicePlugin,
    DeviceSpec,
    ExtendedClaim,
    Health,
    HealthChanged,
    Mount,
    Notification,
    NumaNode,
    PluginOptions,
    Pod,
    PodUid,
    Refused,
    RequestMapping,
    Topology,
    allocated_resources_status,
    resource_name,
)
from devicecore.adapters.memory import MemoryConnection, MemoryPods, MemorySink, MemoryStore, MemoryTransport
from devicecore.domain.checkpoint import decode
from devicecore.domain.errors import DeviceCoreError
from devicecore.ports.policy import AllocationPolicy

Json = Any  # recorded data, whose structure the replay itself checks


class RecordedPlugin(DevicePlugin):
    """The plugin in the recordings: it prefers the required ids, and then the lexicographically smallest.

    The step that connects the plugin determines its behavior. `prefers` can make the plugin prefer other devices: the
    largest ids (`largest`), devices that nobody requested as well (`largest and more`), half of the requested number
    (`short`), all available devices (`all`), no devices (`nothing`), or as many devices as are missing, whether
    available or not (`foreign`). With `none`, the plugin offers no preference. `fails` contains the methods that fail,
    `answer` is the answer to Allocate, and `prestart` says that the plugin requires PreStartContainer. All calls are
    added to `calls`.
    """

    def __init__(self, resource: str, devices: Sequence[Device], manner: Json, calls: list[Json]) -> None:
        self.resource = resource_name(resource)
        self.prefers = manner.get("prefers", "")
        self.options = PluginOptions(manner.get("prestart", False), self.prefers != "none")
        self.listed = tuple(devices)
        self._fails = manner.get("fails", ())
        self._answer = response_of(manner.get("answer") or {"envs": {}})
        self._calls = calls

    def _called(self, method: str, *told: Json) -> None:
        self._calls.append([method, self.resource, *told])
        if method in self._fails:
            raise RuntimeError("no luck")

    def devices(self) -> Sequence[Device]:
        return self.listed

    def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
        self._called("Allocate", sorted(devices))
        return self._answer

    def pre_start_container(self, devices: Sequence[DeviceId]) -> None:
        self._called("PreStartContainer", sorted(devices))

    def get_preferred_allocation(
        self, available: Sequence[DeviceId], must_include: Sequence[DeviceId], size: int
    ) -> Sequence[DeviceId]:
        self._called("GetPreferredAllocation", sorted(available), sorted(must_include), size)
        in_order = sorted(available, reverse=self.prefers.startswith("largest"))
        others = [device for device in in_order if device not in must_include]
        if self.prefers == "all":
            return (*sorted(must_include), *others)
        chosen = (*must_include, *others)[:size]
        if self.prefers == "short":
            return chosen[: len(chosen) // 2]
        if self.prefers == "nothing":
            return ()
        if self.prefers == "foreign":
            name = self.resource.partition("/")[2]
            return [DeviceId(f"{name}-{9 - place:02}") for place in range(len(chosen) - len(must_include))]
        return (DeviceId("other"), *chosen, *chosen) if self.prefers == "largest and more" else chosen


def response_of(told: Json) -> ContainerAllocateResponse:
    """Return a recorded answer to Allocate."""
    return ContainerAllocateResponse(
        told.get("envs", {}),
        tuple(Mount(inside, host, mode == "ro") for inside, host, mode in told.get("mounts", ())),
        tuple(DeviceSpec(*one) for one in told.get("devices", ())),
        told.get("annotations", {}),
        tuple(told.get("cdi", ())),
    )


class Replay:
    """Plays one history step by step.

    `play` returns a step's outcome in the format of the recording, and `calls` contains the plugin calls.

    With `updates`, the outcome of a plugin's list names the pods that hold a device whose health has changed.
    """

    def __init__(self, topology: Topology, policy: AllocationPolicy | None = None, *, updates: bool = False) -> None:
        self.now = 0.0
        self.policy = policy
        self.store = MemoryStore()
        self.pods = MemoryPods()
        self.topology = topology
        self.updates: list[HealthChanged] | None = [] if updates else None
        self.connections: dict[str, MemoryConnection] = {}
        self.older: dict[str, MemoryConnection] = {}  # by resource: the older of two connected instances
        self.calls: list[Json] = []
        self._start()

    def _start(self) -> None:
        self.transport = MemoryTransport()
        self.manager = DeviceManager(
            self.transport,
            self.store,
            MemorySink(),
            pods=self.pods,
            topology=self.topology,
            policy=self.policy,
            observers=[] if self.updates is None else [self._notified],
            clock=lambda: self.now,
        )
        # The next step reads the store, and on a busy machine, a saver thread might not have saved by then.
        self.manager._saver.in_background = False  # noqa: SLF001 - not public: only tests need it
        self.manager.start()

    def _notified(self, notification: Notification) -> None:
        if isinstance(notification, HealthChanged) and self.updates is not None:
            self.updates.append(notification)

    def play(self, step: Json) -> Json:
        self.calls.clear()
        if self.updates is not None:
            self.updates = []
        answer: Json = getattr(self, step["op"])(step)
        if self.updates is not None and step["op"] in ("connect", "list_and_watch", "end"):
            answer["updates"] = sorted({pod for one in self.updates for pod in one.pods})
        return answer

    def connect(self, step: Json) -> Json:
        plugin = RecordedPlugin(step["resource"], [device(listed) for listed in step["devices"]], step, self.calls)
        before = self.connections.get(step["resource"])
        self.connections[step["resource"]] = self.transport.connect(plugin)
        if before and step.get("stays"):
            self.older[step["resource"]] = before
        elif before:  # the older instance ends once the newer one has registered
            before.disconnect()
        return {"ok": True}

    def end(self, step: Json) -> Json:
        """End one of a plugin's two instances, and make the other instance list its devices.

        In between, our manager uses the other instance's older list, and a kubelet still uses the list of the instance
        that ended (D28). So an update counts only if it changes the device's health from before the first event.
        """
        before = self._health_of(step["resource"])
        gone = self.older.pop(step["resource"])
        if step["newer"]:
            gone, self.connections[step["resource"]] = self.connections[step["resource"]], gone
        gone.disconnect()
        answer = self.list_and_watch(step)
        if self.updates is not None:
            after = self._health_of(step["resource"])
            self.updates = [one for one in self.updates if before.get(one.device) != after.get(one.device)]
        return answer

    def _health_of(self, resource: str) -> Mapping[DeviceId, Health]:
        report = self.manager.state.inventory.current_report(resource_name(resource))
        return {one: health for one, (health, _) in report.devices.states.items()} if report else {}

    def list_and_watch(self, step: Json) -> Json:
        connection = self.connections[step["resource"]]
        assert isinstance(connection.plugin, RecordedPlugin)
        connection.plugin.listed = tuple(device(listed) for listed in step["devices"])
        connection.report()
        return {"checkpoint": self.checkpoint()}

    def disconnect(self, step: Json) -> Json:
        self.connections.pop(step["resource"]).disconnect()
        return {}

    def advance_clock(self, step: Json) -> Json:
        self.now += step["seconds"]
        return {}

    def restart(self, step: Json) -> Json:
        self.manager.stop()
        if "checkpoint" in step:
            self.store.blob = step["checkpoint"].encode()
        self.connections.clear()
        self.older.clear()
        self.pods.ready = not step.get("waits")
        self.pods.running = {ContainerKey(PodUid(uid), name) for uid, name in step.get("running", ())}
        self._start()
        return {"checkpoint": self.checkpoint()}

    def ready(self, _: Json) -> Json:
        self.pods.ready = True
        self.manager.update_allocated_devices()
        return {}

    def start(self, step: Json) -> Json:
        try:
            with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
                found = self.manager.start_container(pod(step["pod"]), step["container"])
        except DeviceCoreError as error:
            return {"ok": False, "error": str(error)}
        options = found and {
            "envs": dict(found.envs),
            "annotations": dict(found.annotations),
            "mounts": [[one.container_path, one.host_path, one.read_only] for one in found.mounts],
            "devices": [[one.container_path, one.host_path, one.permissions] for one in found.devices],
            "cdi": list(found.cdi_devices),
        }
        return {"ok": True, "options": options, "checkpoint": self.checkpoint()}

    def allocate(self, step: Json) -> Json:
        affinity = step.get("affinity")
        recorded = pod(step["pod"])
        self.pods.active.add(recorded.uid)
        verdict = self.manager.admit(recorded, affinity=None if affinity is None else tuple(affinity))
        if isinstance(verdict, Admitted):
            held = [
                {
                    "name": container.name,
                    "ok": True,
                    "devices": {
                        resource: {id_: list(allocation.numa_nodes[id_]) or None for id_ in allocation.numa_nodes}
                        for allocation in verdict.allocations
                        if allocation.key.container == container.name
                        for resource in [allocation.resource]
                    },
                }
                for container in recorded.in_start_order
            ]
            return {"ok": True, "containers": held, "checkpoint": self.checkpoint()}
        if step["op"] == "allocate":
            self._remove(recorded.uid)
        said = Refused(verdict.error, verdict.container)  # a kubelet also refuses a pod that is `NotReady`
        status = {"reason": said.reason, "message": said.message}
        return {"ok": False, "container": verdict.container, "error": str(verdict.error), **status}

    allocate_again = allocate

    def hints(self, step: Json) -> Json:
        hints = self.manager.topology_hints(pod(step["pod"]), step["container"])
        return {
            resource: None if listed is None else [[list(hint.mask or ()), hint.preferred] for hint in listed]
            for resource, listed in hints.items()
        }

    def status(self, step: Json) -> Json:
        found = allocated_resources_status(self.manager.state, pod(step["pod"]))
        rows = {
            name: {one.resource: {device: health.value for device, health in one.devices.items()} for one in listed}
            for name, listed in found.items()
        }
        return {"containers": rows}

    def capacity(self, _: Json) -> Json:
        status = self.manager.tick()
        counts = {"capacity": dict(status.capacity), "allocatable": dict(status.allocatable)}
        return {**counts, "removed": list(status.removed)}

    def remove_pod(self, step: Json) -> Json:
        self._remove(PodUid(step["uid"]))
        return {}

    def _remove(self, uid: PodUid) -> None:
        self.pods.active.discard(uid)
        if self.pods.ready:  # before the source is ready, the manager does not know that the pod is gone
            self.manager.evict([uid])

    def sanitize(self, step: Json) -> Json:
        return {"allocatable": self.manager.sanitize_allocatable(PodUid(step["pod_uid"]), step["allocatable"])}

    def checkpoint(self) -> Json:
        """Return the checkpoint in the format of the recordings, where order has no meaning."""
        if self.store.blob is None:
            return {"entries": [], "registered": {}}
        data = decode(self.store.blob).verified()
        return {
            "entries": sorted(
                (
                    {
                        "pod": entry.pod_uid,
                        "container": entry.container_name,
                        "resource": entry.resource_name,
                        "devices": {str(node): sorted(ids or ()) for node, ids in (entry.device_ids or {}).items()},
                    }
                    for entry in data.entries or ()
                ),
                key=lambda entry: (entry["pod"], entry["container"], entry["resource"]),
            ),
            "registered": {name: sorted(ids or ()) for name, ids in (data.registered_devices or {}).items()},
        }


def device(listed: Json) -> Device:
    """Return a recorded device; without `numa`, it has no topology."""
    topology = tuple(NumaNode(node) for node in listed["numa"]) if listed.get("numa") is not None else None
    return Device(DeviceId(listed["id"]), Health.parse(listed["health"]), topology)


def pod(recorded: Json) -> Pod:
    """Return a recorded pod."""
    claimed = [RequestMapping(*one) for one in recorded.get("claimed", ())]
    return Pod(
        PodUid(recorded["uid"]),
        name=recorded["name"],
        namespace=recorded["namespace"],
        containers=map(container, recorded["containers"]),
        init_containers=map(container, recorded["initContainers"]),
        extended_claim=ExtendedClaim("claim", claimed) if claimed else None,
    )


def container(recorded: Mapping[str, Json]) -> Container:
    """Return a recorded container."""
    return Container(recorded["name"], recorded["limits"], recorded.get("restartPolicy") == "Always")
