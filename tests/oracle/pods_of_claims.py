"""Generated histories of a DRA manager: pods that share claims, several drivers, health, and failures."""

from collections.abc import Callable, Sequence
from random import Random

from tests.oracle.asking import Json

DRIVERS = ("fpga.example.com", "gpu.example.com", "nic.example.com")
REQUESTS = ("r0", "r1", "r1/sub")
CALLS = ("NodePrepareResources", "NodeUnprepareResources", "*")
GPU = "example.com/gpu"
CODES = (2, 5, 8, 13)


class Author:
    """Writes a history. The author knows which pods, claims and drivers exist, but not how a kubelet answers."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.drivers: dict[tuple[str, str], bool] = {}  # by name and instance: whether a running driver is registered
        self.has_health = random.random() < 0.5
        self.claims: dict[str, Json] = {}
        self.pods: dict[str, Json] = {}
        self.renewed = 0

    def history(self) -> Sequence[Json]:
        """Return the steps of a random history."""
        steps = [self._up(name, "a") for name in DRIVERS if self.random.random() < 0.8]
        self._make_pods()
        steps += [{"op": "put_claim", "object": claim} for claim in self.claims.values()]
        steps += [{"op": "put_pod", "object": pod} for pod in self.pods.values()]
        operations: Sequence[tuple[Callable[[], Sequence[Json]], int]] = (
            *((self._prepare, 8), (self._unprepare, 4), (self._resources, 4), (self._might_need, 1)),
            *((self._script, 3), (self._reconcile, 1), (self._restart, 1), (self._starts, 1), (self._ends, 1)),
            *((self._renew, 1), (self._delete, 1), (self._report, 5), (self._status, 3)),
        )
        chosen = [one for one, weight in operations for _ in range(weight)]
        for _ in range(self.random.randint(8, 24)):
            steps += self.random.choice(chosen)()
        return steps

    # --- the initial objects -------------------------------------------------------------------------------

    def _make_pods(self) -> None:
        count = self.random.randint(1, 3)
        names = [f"c{number}" for number in range(count)]
        uses: dict[str, list[str]] = {name: [] for name in names}
        for number in range(self.random.randint(1, 4)):
            pod = f"p{number}"
            used = self.random.sample(names, self.random.randint(1, min(2, count)))
            for name in used:
                uses[name].append(pod)
            self.pods[f"pod-{number}"] = self._pod(number, used)
        for number, name in enumerate(names):
            self.claims[name] = self._claim(name, f"claim-{number}", uses[name])

    def _claim(self, name: str, uid: str, pods: Sequence[str]) -> Json:
        results = []
        for number in range(self.random.choice((0, 1, 1, 2, 2, 3, 4))):
            driver = self.random.choice(DRIVERS)
            result: Json = {"request": self.random.choice(REQUESTS), "driver": driver, "pool": "node-1"}
            result["device"] = f"{driver.partition('.')[0]}-{number}"
            if self.random.random() < 0.1:
                result["shareID"] = f"5ae24e7c-9f1b-4d3c-8a55-00000000000{number}"
            if self.random.random() < 0.15:
                result["skipNodeOperations"] = self.random.sample(CALLS, self.random.randint(1, 2))
            results.append(result)
        kept = [pod for pod in pods if self.random.random() < 0.97]
        reserved = [{"resource": "pods", "name": pod, "uid": pod.replace("p", "pod-")} for pod in kept]
        metadata: Json = {"name": name, "namespace": "default", "uid": uid}
        if len(pods) == 1 and self.random.random() < 0.9:
            owner = {"apiVersion": "v1", "kind": "Pod", "name": pods[0], "uid": pods[0].replace("p", "pod-")}
            metadata["ownerReferences"] = [{**owner, "controller": True}]
        status = {"allocation": {"devices": {"results": results}}} if self.random.random() < 0.97 else {}
        return {"metadata": metadata, "spec": {}, "status": {**status, "reservedFor": reserved}}

    def _pod(self, number: int, claims: Sequence[str]) -> Json:
        entries, generated = [], []
        for place, name in enumerate(claims):
            entry = {"name": f"e{place}"}
            if self.random.random() < 0.15:
                entry["resourceClaimTemplateName"] = "template"
                generated.append({"name": entry["name"], "resourceClaimName": name})
            else:
                entry["resourceClaimName"] = name
            entries.append(entry)
        status: Json = {"resourceClaimStatuses": generated} if generated else {}
        containers = [self._container(name, entries) for name in ("main", "side")]
        spec: Json = {"resourceClaims": entries, "containers": containers}
        if self.random.random() < 0.3:
            spec["initContainers"] = [self._container("init", entries)]
        if self.random.random() < 0.15:  # the last claim serves an extended resource that containers request
            entry = entries.pop()
            for container in containers:
                container["resources"] = {"requests": {GPU: "1"}, "limits": {GPU: "1"}}
                if entries:
                    container["resources"]["claims"] = [{"name": "e0"}]
            if "initContainers" in spec:
                del spec["initContainers"]
            mappings = [
                {"containerName": name, "resourceName": GPU, "requestName": self.random.choice(("r0", "r1"))}
                for name in self.random.sample(("main", "side"), self.random.randint(1, 2))
            ]
            extended = {"resourceClaimName": claims[-1], "requestMappings": mappings}
            status = {"extendedResourceClaimStatus": extended}
            if "resourceClaimTemplateName" in entry and generated[:-1]:
                status["resourceClaimStatuses"] = generated[:-1]
            elif "resourceClaimTemplateName" not in entry and generated:
                status["resourceClaimStatuses"] = generated
        metadata = {"name": f"p{number}", "namespace": "default", "uid": f"pod-{number}"}
        return {"metadata": metadata, "spec": spec, "status": status}

    def _container(self, name: str, entries: Sequence[Json]) -> Json:
        claims = []
        for entry in self.random.sample(entries, self.random.randint(0, len(entries))):
            request = self.random.choice(("", "", "r0", "r1"))
            claims.append({"name": entry["name"], "request": request} if request else {"name": entry["name"]})
        return {"name": name, "resources": {"claims": claims}} if claims else {"name": name}

    # --- pods ---------------------------------------------------------------------------------------------------------

    def _some_pod(self) -> Json:
        return self.pods[self.random.choice(sorted(self.pods))]

    def _prepare(self) -> Sequence[Json]:
        return [{"op": "prepare", "pod": self._some_pod()["metadata"]["uid"]}]

    def _unprepare(self) -> Sequence[Json]:
        return [{"op": "unprepare", "pod": self._some_pod()["metadata"]["uid"]}]

    def _resources(self) -> Sequence[Json]:
        """Return a step that queries what all of a pod's containers get, or what the API shows for one container."""
        pod = self._some_pod()
        if self.random.random() < 0.5:
            return [{"op": "all_resources", "pod": pod["metadata"]["uid"]}]
        container = self.random.choice([*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]])
        return [{"op": "pod_resources", "pod": pod["metadata"]["uid"], "container": container["name"]}]

    def _might_need(self) -> Sequence[Json]:
        return [{"op": "pod_might_need", "uid": self._some_pod()["metadata"]["uid"]}]

    def _reconcile(self) -> Sequence[Json]:
        active = [uid for uid in sorted(self.pods) if self.random.random() < 0.6]
        return [{"op": "reconcile", "active": active, "ready": self.random.random() < 0.8}]

    def _renew(self) -> Sequence[Json]:
        """Return steps that recreate a claim with a different UID, and possibly with different devices."""
        name = self.random.choice(sorted(self.claims))
        self.renewed += 1
        pods = [pod["metadata"]["name"] for pod in self.pods.values()]
        self.claims[name] = self._claim(name, f"new-{self.renewed}", pods)
        return [{"op": "put_claim", "object": self.claims[name]}, *self._prepare()]

    def _delete(self) -> Sequence[Json]:
        name = self.random.choice(sorted(self.claims))
        return [{"op": "delete_claim", "namespace": "default", "name": name}, *self._prepare()]

    # --- drivers ------------------------------------------------------------------------------------------------------

    def _up(self, name: str, instance: str) -> Json:
        self.drivers[name, instance] = True
        version = "v1beta1" if self.random.random() < 0.15 else "v1"
        health = {"health": True} if self.has_health and instance == "a" else {}
        return {"op": "driver_up", "name": name, "instance": instance, "version": version, **health}

    def _starts(self) -> Sequence[Json]:
        found = [(name, one) for name in DRIVERS for one in "ab" if not self.drivers.get((name, one))]
        return [self._up(*self.random.choice(found))] if found else ()

    def _ends(self) -> Sequence[Json]:
        found = [key for key, is_registered in self.drivers.items() if is_registered and not self._reports(key)]
        if not found:
            return ()
        name, instance = key = self.random.choice(found)
        del self.drivers[key]
        return [{"op": "driver_down", "name": name, "instance": instance, "mode": "deregister"}]

    def _restart(self) -> Sequence[Json]:
        again = self.random.choice((DRIVERS, DRIVERS, self.random.sample(DRIVERS, 2), ()))
        for name, instance in self.drivers:
            self.drivers[name, instance] = name in again
        return [{"op": "restart", "reregister": list(again)}]

    def _script(self) -> Sequence[Json]:
        """Return steps that set a driver's answers, either until the driver's next script or for only a few calls."""
        if not self.drivers:
            return ()
        name, instance = self.random.choice(sorted(self.drivers))
        step = {"op": "driver_script", "name": name, "instance": instance}
        script = {call: self._answers(call) for call in self.random.sample(("prepare", "unprepare"), 1)}
        last = [{**step, "script": {}}] if self.random.random() < 0.7 else []
        return [{**step, "script": script}, *self._prepare(), *self._unprepare(), *last]

    def _answers(self, call: str) -> Json:
        if self.random.random() < 0.2:
            return {"error": {"code": self.random.choice(CODES), "message": "no luck"}}
        rules: Json = {}
        names = [*self.claims, *(claim["metadata"]["uid"] for claim in self.claims.values()), "*"]
        for name in self.random.sample(sorted(names), self.random.randint(0, 2)):
            choices: list[Json] = [{"error": "is broken"}, {"missing": True}]
            if call == "prepare":
                choices += [{"devices": self._devices()}] * 2
            rules[name] = self.random.choice(choices)
        extra: Json = {"extra": {"unknown-uid": {}}} if self.random.random() < 0.15 else {}
        return {"claims": rules, **extra}

    def _devices(self) -> Json:
        return [
            {
                "requests": self.random.choice(([], ["r0"], ["r1"], ["r0", "r1"])),
                "pool": "node-1",
                "device": f"other-{number}",
                "cdi": [f"example.com/dev=other-{number}-{part}" for part in range(self.random.randint(0, 2))],
            }
            for number in range(self.random.randint(0, 3))
        ]

    # --- health -------------------------------------------------------------------------------------------------------

    def _reports(self, key: tuple[str, str]) -> bool:
        """Return whether an instance has a health stream."""
        return self.has_health and key[1] == "a"

    def _report(self) -> Sequence[Json]:
        found = [name for (name, one), is_up in self.drivers.items() if is_up and self._reports((name, one))]
        if not found:
            return ()
        name = self.random.choice(sorted(found))
        if self.random.random() < 0.1:
            return [{"op": "health", "name": name, "end": True}, *self._status()]
        known = [
            result["device"]
            for claim in self.claims.values()
            for result in claim["status"].get("allocation", {}).get("devices", {}).get("results", ())
            if result["driver"] == name
        ]
        listed = [*known, "other-0", "other-1", "gpu-9"]
        devices = [
            {
                "Pool": self.random.choice(("node-1",) * 9 + ("node-2",)),
                "Device": device,
                "Health": self.random.choice(("HEALTHY", "HEALTHY", "UNHEALTHY", "UNKNOWN")),
                "Message": self.random.choice(("", "", "hot", "ä" * 700)),
                "Timeout": self.random.choice((0, 0, 600, -1)),
                "LastUpdated": 0,
            }
            for device in self.random.sample(listed, self.random.randint(1, min(4, len(listed))))
        ]
        return [{"op": "health", "name": name, "devices": devices}, *self._status()]

    def _status(self) -> Sequence[Json]:
        return [{"op": "update_status", "pod": self._some_pod()["metadata"]["uid"]}]
