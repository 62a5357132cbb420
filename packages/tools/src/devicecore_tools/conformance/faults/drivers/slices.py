"""Drivers with one fault in what they publish.

Law: each driver fails the checks that it names, and no others except those in `breaks_too`.
"""

import http.client
import os
import time

from devicecore_tools.conformance.faults.good_driver import SLICES, GoodDriver, Json, fails


@fails("publishes-slices-in-time")
class PublishesNothing(GoodDriver):
    settings = {"starting": 15.0}

    def publish_for_ever(self) -> None:
        self.over.wait()


@fails("completes-its-pools")
class Incomplete(GoodDriver):
    settings = {"starting": 15.0}

    def slices(self) -> list[Json]:
        return super().slices()[:1]


@fails("publishes-under-its-registered-name")
class OtherNameInSlices(GoodDriver):
    published_name = "chips.example.org"


@fails("names-each-device-once")
class RepeatsADevice(GoodDriver):
    def slices(self) -> list[Json]:
        first, second = super().slices()
        return [first, second | {"devices": [*second["devices"], first["devices"][0]]}]


@fails("publishes-valid-slices")
class SendsAnInvalidSlice(GoodDriver):
    """The driver sends a slice that is refused, then a good one."""

    has_sent = False

    def reconcile(self, items: list[Json]) -> None:
        if not self.has_sent:
            self.has_sent = True
            spec = self.slices()[0] | {"devices": [{"name": "Chip_0"}]}
            self.call("POST", SLICES, {"kind": "ResourceSlice", "metadata": {"name": "invalid"}, "spec": spec})
        super().reconcile(items)


@fails("names-its-node")
class OtherNode(GoodDriver):
    def slices(self) -> list[Json]:
        return [spec | {"nodeName": "localhost"} for spec in super().slices()]

    def publish_and_watch(self) -> None:
        """Publish without watching, because the driver cannot find its own slices."""
        _, listed = self.call("GET", SLICES)
        self.node_uid = self.call("GET", f"/api/v1/nodes/{self.node}")[1]["metadata"]["uid"]
        self.reconcile([item for item in listed["items"] if item["spec"].get("nodeName") == "localhost"])
        self.over.wait(2.0)


@fails("is-owned-by-its-node")
class NoOwner(GoodDriver):
    def owners(self) -> list[Json]:
        return []


@fails("numbers-numa-nodes-from-zero")
class UnknownNumaNode(GoodDriver):
    def devices(self) -> list[Json]:
        first, *others = super().devices()
        numa = {"resource.kubernetes.io/numaNode": {"int": -1}}
        return [first | {"attributes": first["attributes"] | numa}, *others]


@fails("spells-standard-attributes-as-others-do")
class ShortBusId(GoodDriver):
    def devices(self) -> list[Json]:
        first, *others = super().devices()
        bus = {"resource.kubernetes.io/pciBusID": {"string": "01:00.0"}}
        return [first | {"attributes": first["attributes"] | bus}, *others]


@fails("completes-its-pools-after-a-restart")
class NamesPoolsByStart(GoodDriver):
    """Each start publishes a new pool and leaves the existing ones in place."""

    settings = {"republishing": 10.0}

    @property
    def pool(self) -> str:
        return f"{self.node}-{os.getpid()}"

    def reconcile(self, items: list[Json]) -> None:
        if not any(item["spec"]["pool"]["name"] == self.pool for item in items):
            super().reconcile([])

    def call(self, method: str, path: str, body: Json | None = None) -> tuple[int, Json]:
        if method == "POST" and body is not None:
            body["metadata"]["name"] += f"-{os.getpid()}"
        return super().call(method, path, body)


@fails("completes-its-pools-after-a-restart")
class AddsSlicesAtEachStart(GoodDriver):
    """The names of the driver's slices end with its process ID, and it does not recognize slices with other names."""

    breaks_too = {"publishes-despite-conflicts": "The driver's pools are incomplete after the start of this check."}

    settings = {"republishing": 10.0}

    def reconcile(self, items: list[Json]) -> None:
        with self.lock:
            own = [item for item in items if item["metadata"]["name"].endswith(f"-{os.getpid()}")]
            for item in items:
                if item["spec"]["pool"] != self.slices()[0]["pool"]:
                    self.call("DELETE", f"{SLICES}/{item['metadata']['name']}")
            for number, spec in enumerate(() if own else self.slices()):
                metadata = {"name": f"{self.name}-{number}-{os.getpid()}", "ownerReferences": self.owners()}
                body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "spec": spec}
                self.written(self.call("POST", SLICES, body | {"metadata": metadata}))


@fails("keeps-the-names-of-its-devices")
class NumbersItsDevicesAnew(GoodDriver):
    """At each start, the driver finds its devices in a different order."""

    def devices(self) -> list[Json]:
        devices = super().devices()
        starts = len(list(self.directory.glob("*.started")))
        bodies = [{**device["attributes"]} for device in devices[:6]]
        for device, attributes in zip(devices[:6], bodies[starts % 6 :] + bodies[: starts % 6], strict=True):
            device["attributes"] = attributes
        return devices

    def load(self) -> None:
        super().load()
        (self.directory / f"{os.getpid()}.started").touch()


@fails("removes-obsolete-slices")
class LeavesObsoleteSlices(GoodDriver):
    settings = {"republishing": 10.0}

    def reconcile(self, items: list[Json]) -> None:
        super().reconcile([item for item in items if item["metadata"]["name"].startswith(f"{self.node}-{self.name}-")])


@fails("leaves-slices-of-others-alone")
class DeletesSlicesOfOthers(GoodDriver):
    breaks_too = {"keeps-nodes-apart": "The second node's driver deletes the slices of the first node."}

    def publish_and_watch(self) -> None:
        _, listed = self.call("GET", SLICES)
        for item in listed["items"]:
            if item["spec"]["driver"] == self.name and item["spec"].get("nodeName") != self.node:
                self.call("DELETE", f"{SLICES}/{item['metadata']['name']}")
        super().publish_and_watch()


@fails("publishes-again-after-a-wipe")
class PublishesOnce(GoodDriver):
    """The driver publishes when it starts, and only then."""

    settings = {"republishing": 10.0}
    has_published = False

    def reconcile(self, items: list[Json]) -> None:
        if not self.has_published:
            super().reconcile(items)
        self.has_published = True


@fails("publishes-again-after-a-wipe")
class WatchesOnce(GoodDriver):
    """When the API server ends the watch, as it does from time to time, the driver no longer watches its slices."""

    settings = {"republishing": 10.0}

    def watch(self, path: str, version: str) -> None:
        super().watch(path, version)
        if self.call("GET", path.partition("&watch")[0])[1]["items"]:
            self.over.wait()


@fails("notices-a-wipe-right-after-an-update")
class PublishesThroughTheHelper(GoodDriver):
    """Like Go drivers: the driver is correct, except that it mistakes its own last update for the current state.

    The driver updates its slices right after it starts. A few seconds after someone else's change, the driver checks
    the slices once, and then waits for the next change.
    """

    settings = {"race": 2.5}
    delay, remembered = 2.0, 4.0  # seconds; 30 and 60 in Kubernetes' helper
    has_updated = False

    def __init__(self) -> None:
        super().__init__()
        self.updated: dict[str, tuple[float, Json]] = {}

    def publish_and_watch(self) -> None:
        if not self.has_updated:
            for _ in range(2):
                self.node_uid = self.call("GET", f"/api/v1/nodes/{self.node}")[1]["metadata"]["uid"]
                items = self.call("GET", SLICES)[1]["items"]
                own = (self.name, self.node)
                self.reconcile([one for one in items if (one["spec"]["driver"], one["spec"].get("nodeName")) == own])
            self.has_updated = True
        super().publish_and_watch()
        self.over.wait(self.delay)

    def differs(self, before: Json, wanted: Json) -> bool:
        return super().differs(before, wanted) or not self.has_updated

    def reconcile(self, items: list[Json]) -> None:
        known, now = {item["metadata"]["name"] for item in items}, time.monotonic()
        cached = [
            {"metadata": {"name": name, "resourceVersion": "1"}, "spec": spec}
            for name, (at, spec) in self.updated.items()
            if name not in known and now - at < self.remembered
        ]
        super().reconcile([*items, *cached])

    def call(self, method: str, path: str, body: Json | None = None) -> tuple[int, Json]:
        answer = super().call(method, path, body)
        if method == "PUT" and body is not None:
            self.updated[body["metadata"]["name"]] = time.monotonic(), body["spec"]
        return answer


@fails("writes-no-slices-without-a-change")
class PublishesItsTemperature(GoodDriver):
    """An attribute of the first device changes every second."""

    breaks_too = {"asks-the-api-server-rarely": "Each write is a request."}

    def slices(self) -> list[Json]:
        slices = super().slices()
        slices[0]["devices"][0]["attributes"]["celsius"] = {"int": int(time.monotonic())}
        return slices

    def watch(self, path: str, version: str) -> None:
        self.over.wait(1.0)


@fails("writes-no-slices-without-a-change")
class WritesAllTheTime(GoodDriver):
    breaks_too = {"asks-the-api-server-rarely": "Each write is a request."}

    def watch(self, path: str, version: str) -> None:
        self.over.wait(0.3)

    def differs(self, before: Json, wanted: Json) -> bool:
        return True

    def call(self, method: str, path: str, body: Json | None = None) -> tuple[int, Json]:
        if method == "GET" and path.startswith(SLICES) and "resourceVersion" not in path:
            path += "&watch=false"
        return super().call(method, path, body)


@fails("asks-the-api-server-rarely")
class Polls(GoodDriver):
    def watch(self, path: str, version: str) -> None:
        self.over.wait(0.2)


@fails("publishes-despite-conflicts")
class GivesUpAfterAConflict(GoodDriver):
    settings = {"republishing": 10.0}
    has_failed = False

    def written(self, answer: tuple[int, Json]) -> None:
        if answer[0] == http.client.CONFLICT:
            self.has_failed = True
        else:
            super().written(answer)

    def reconcile(self, items: list[Json]) -> None:
        if not self.has_failed:
            super().reconcile(items)


@fails("survives-a-failed-write")
class ExitsWhenAWriteFails(GoodDriver):
    def written(self, answer: tuple[int, Json]) -> None:
        if answer[0] >= http.client.INTERNAL_SERVER_ERROR:
            os._exit(1)
        super().written(answer)


@fails("waits-for-a-late-api-server")
class NeedsTheApiServerAtItsStart(GoodDriver):
    settings = {"republishing": 10.0}

    def publish_for_ever(self) -> None:
        try:
            self.call("GET", "/api/v1/nodes")
        except OSError:
            self.over.wait()
        super().publish_for_ever()


@fails("keeps-nodes-apart")
class HasOnePoolOnAllNodes(GoodDriver):
    @property
    def pool(self) -> str:
        return "chips"


@fails("writes-no-slices-for-claims")
class PublishesWhatIsInUse(GoodDriver):
    """The driver rewrites its slices for each claim."""

    must_not_fail = ("prepares-many-claims",)

    def save(self) -> None:
        super().save()
        own = f"spec.driver%3D{self.published_name}"
        for item in self.call("GET", f"{SLICES}?fieldSelector={own}")[1].get("items", ()):
            item["spec"]["devices"][0].setdefault("attributes", {})["used"] = {"int": len(self.claims)}
            self.call("PUT", f"{SLICES}/{item['metadata']['name']}", item)

    def differs(self, before: Json, wanted: Json) -> bool:
        return False


@fails("names-attributes-without-its-domain")
class WritesItsNameIntoAttributes(GoodDriver):
    def devices(self) -> list[Json]:
        for device in (listed := super().devices()):
            device["attributes"] = device.get("attributes", {}) | {f"{self.name}/speed": {"int": 3}}
        return listed


@fails("publishes-devices-for-claims")
class ConsumesMoreThanThereIs(GoodDriver):
    """One device consumes more of a counter than there is."""

    def slices(self) -> list[Json]:
        specs = super().slices()
        pool = specs[0]["pool"] | {"resourceSliceCount": len(specs) + 1}
        counters = [{"name": "board", "counters": {"memory": {"value": "8Gi"}}}]
        consumed = [{"counterSet": "board", "counters": {"memory": {"value": "16Gi"}}}]
        specs[0]["devices"][3]["consumesCounters"] = consumed
        counting = {name: value for name, value in specs[0].items() if name != "devices"} | {"sharedCounters": counters}
        return [spec | {"pool": pool} for spec in (*specs, counting)]


@fails("keeps-the-names-of-its-devices")
class LosesItsAttributesAtARestart(GoodDriver):
    """From its second start on, the driver publishes its devices without attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.directory.mkdir(parents=True, exist_ok=True)
        marker = self.directory / "started"
        self.is_first = not marker.exists()
        marker.touch()

    def devices(self) -> list[Json]:
        devices = super().devices()
        return devices if self.is_first else [one | {"attributes": {}} for one in devices]


@fails("keeps-its-slices-at-a-restart")
class DeletesItsSlicesAtAStart(GoodDriver):
    def load(self) -> None:
        super().load()
        for item in self.call("GET", SLICES)[1]["items"]:
            if item["spec"]["driver"] == self.name and item["spec"].get("nodeName") == self.node:
                self.call("DELETE", f"{SLICES}/{item['metadata']['name']}")


@fails("keeps-its-slices-at-sigterm")
class DeletesItsSlicesAtItsEnd(GoodDriver):
    def leave(self) -> None:
        for item in self.call("GET", SLICES)[1]["items"]:
            if item["spec"]["driver"] == self.name and item["spec"].get("nodeName") == self.node:
                self.call("DELETE", f"{SLICES}/{item['metadata']['name']}")
        super().leave()


@fails("evicts-no-pods-at-a-restart")
class EvictsAllPodsAtARestart(GoodDriver):
    """For a second after each start but the first, all devices have a taint with the effect NoExecute."""

    effect = "NoExecute"

    def __init__(self) -> None:
        super().__init__()
        self.directory.mkdir(parents=True, exist_ok=True)
        marker = self.directory / "started"
        self.is_ready = not marker.exists()
        marker.touch()

    def devices(self) -> list[Json]:
        devices = super().devices()
        if not self.is_ready:
            devices = [one | {"taints": [{"key": "example.org/starting", "effect": self.effect}]} for one in devices]
        return devices

    def watch(self, path: str, version: str) -> None:
        if self.is_ready:
            super().watch(path, version)
        else:
            self.is_ready = self.over.wait(1.0) or True
