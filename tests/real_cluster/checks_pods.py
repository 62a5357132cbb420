"""The same pods for a real scheduler, `why` and `fits`: the verdict, node, devices and wording must match.

The scheduler is paused before the pod is created, until `why` has run on the API server and on files, and `fits` on
files, so that both see what the scheduler will see. No kubelet runs: Nodes are only objects.
"""

import io
import json
import signal
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from devicecore_tools.command.main import main

from tests.real_cluster.client import Client, RefusedError
from tests.real_cluster.control_plane import ControlPlane, say
from tests.real_cluster.programs import wait_for
from tests.real_cluster.proposals import WITHOUT_PROPOSALS, proposals_in, report_on
from tests.real_cluster.situations_of_pods import CLASSES, OF_PODS, PLUGIN, SERVED, STORAGE_CLASSES
from tests.real_cluster.situations_of_requests import OF_REQUESTS

Json = Any

SITUATIONS = {**OF_PODS, **OF_REQUESTS}
_STATUS = {"scheduled": {0}, "refused": {1, 4}, "waiting": {1, 3}}
_UNKNOWN = 3
_STEADY = 1.2  # a scheduler's result that has not changed for this many seconds is final
_LONGEST = 12.0
_SEEN = 0.7  # seconds within which the scheduler sees new objects; it does not confirm this
_WORDS = (
    *("Insufficient", "untolerated taint", "node affinity/selector", "were unschedulable", "Too many pods"),
    *("pod affinity rules", "pod anti-affinity rules", "existing pods anti-affinity rules", "missing required label"),
    *("topology spread constraints", "free ports", "persistentvolumeclaim", "unbound immediate", "node affinity"),
    *("available persistent volumes", "exceed max volume count", "ReadWriteOncePod", "enough free storage"),
    *("being deleted", "exceeded quota", "must specify", "RuntimeClass", "PriorityClass"),
)
_KINDS = (
    *("Namespace", "PriorityClass", "DeviceClass", "StorageClass", "Node", "ResourceSlice", "ResourceClaim"),
    *("DeviceTaintRule", "CSINode", "CSIDriver", "CSIStorageCapacity", "RuntimeClass"),
    *("PersistentVolume", "PersistentVolumeClaim", "PodDisruptionBudget", "Pod", "ResourceQuota"),
)
_STAYING = ("Namespace", "PriorityClass", "DeviceClass", "StorageClass")
_PRIORITIES = (100, 1000)
_NOT_YET = ("", ": ", "no nodes available", "SchedulerError")  # messages that are not about the pod


@pytest.fixture(scope="module")
def paused() -> Iterator[ControlPlane]:
    """Yield a control plane without a controller manager, which would release the claims of absent pods."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the programs end together with the checks
    with ControlPlane(parts=("etcd", "kube-apiserver", "kube-scheduler")) as plane:
        plane.admin.create({"kind": "Namespace", "metadata": {"name": "other"}})
        for namespace in ("default", "other"):
            plane.admin.create({"kind": "ServiceAccount", "metadata": {"name": "default", "namespace": namespace}})
        for value in _PRIORITIES:
            plane.admin.create({"kind": "PriorityClass", "metadata": {"name": f"p{value}"}, "value": value})
        for one_of in (*CLASSES, *STORAGE_CLASSES):
            plane.admin.create(one_of)
        yield plane


def made(client: Client, body: Json) -> None:
    """Create an object with its status and, if it is a Node, without the taint that admission adds to new Nodes."""
    kind, name = body["kind"], body["metadata"]["name"]
    spec = dict(body.get("spec", {}))
    if priority := spec.pop("priority", None):
        spec["priorityClassName"] = f"p{priority}"
    client.create({**body, "spec": spec} if spec else body)
    if kind == "Node":
        client.patch(kind, name, {"spec": {"taints": body["spec"]["taints"]}})
    elif kind == "PersistentVolume":
        phase = "Bound" if "claimRef" in body["spec"] else "Available"
        client.patch(kind, name, {"status": {"phase": phase}}, subresource="status")
    elif "status" in body:
        client.patch(kind, name, {"status": body["status"]}, subresource="status")


def cleared(client: Client) -> None:
    """Delete all of a situation's objects."""
    kinds = [kind for kind in reversed(_KINDS) if kind not in _STAYING]
    for kind in kinds:
        for found in client.list(kind):
            name, namespace = found["metadata"]["name"], found["metadata"].get("namespace", "default")
            if found["metadata"].get("finalizers"):
                client.patch(kind, name, {"metadata": {"finalizers": None}}, namespace)
            client.delete(kind, name, namespace, grace=0 if kind == "Pod" else None)
    wait_for("all objects to be gone", lambda: not any(client.list(kind) for kind in kinds), 30.0)


def bind_volumes(client: Client) -> None:
    """Bind each volume claim for which the scheduler has chosen a volume, as the controller manager would."""
    for volume in client.list("PersistentVolume"):
        claim = volume["spec"].get("claimRef", {}).get("name")
        if claim and volume["status"].get("phase") == "Available":
            name = volume["metadata"]["name"]
            client.patch("PersistentVolume", name, {"status": {"phase": "Bound"}}, subresource="status")
            done = {"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}}
            client.patch("PersistentVolumeClaim", claim, {**done, "spec": {"volumeName": name}})
            status = {"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": volume["spec"]["capacity"]}
            client.patch("PersistentVolumeClaim", claim, {"status": status}, subresource="status")


def truth_of(client: Client) -> tuple[str, str, str]:
    """Wait for the scheduler's final answer about the pod, and return its verdict, node and message."""
    began = since = time.monotonic()
    last = ""
    while time.monotonic() < began + _LONGEST:
        pod = client.get("Pod", "ask")
        if pod["spec"].get("nodeName"):
            return "scheduled", pod["spec"]["nodeName"], ""
        if pod["spec"]["schedulerName"] != "default-scheduler":
            return "waiting", "", "nobody looks at it"
        if pod["spec"].get("volumes"):
            bind_volumes(client)
        conditions = {one["type"]: one for one in pod["status"].get("conditions", ())}
        said = conditions.get("PodScheduled", {})
        text = f"{said.get('reason', '')}: {said.get('message', '')}"
        if text != last:
            last, since = text, time.monotonic()
        is_word = not any(one == last or (one.strip(": ") and one in last) for one in _NOT_YET)
        if is_word and time.monotonic() > since + _STEADY and not pod["status"].get("nominatedNodeName"):
            break
        time.sleep(0.1)
    is_reserved = any(
        by["name"] == "ask"
        for claim in client.list("ResourceClaim")
        for by in claim.get("status", {}).get("reservedFor", ())
    )
    if "SchedulingGated" in last or last in ("", ": ") or is_reserved:  # the pod has its devices, and waits to be bound
        return "waiting", "", last
    return "refused", "", last


def described(where: Path, objects: tuple[Json, ...]) -> list[str]:
    """Write descriptions of the nodes for `fits`, and return the options that name the files."""
    options = []
    for node in (one for one in objects if one["kind"] == "Node"):
        name = node["metadata"]["name"]
        pods = [one for one in objects if one["kind"] == "Pod" and one["spec"].get("nodeName") == name]
        wanted = [(one, one["spec"]["containers"][0]["resources"].get("limits", {})) for one in pods]
        devices = []
        for resource in (PLUGIN, SERVED):
            owners = [
                f"default/{one['metadata']['name']}" for one, of in wanted for _ in range(int(of.get(resource, 0)))
            ]
            for number in range(int(node["status"]["allocatable"].get(resource, 0))):
                held = {"owner": owners[number], "container": "app"} if number < len(owners) else {}
                devices.append({"resource": resource, "device": f"dev-{number}", **held})
        file = where / f"{name}.json"
        file.write_text(json.dumps({"name": name, "topologyPolicy": "none", "devices": devices}))
        options += ["--node", str(file)]
    return options


def asked(*words: str) -> tuple[int, str]:
    """Run a command of devicecore, and return its exit status and output."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        status = main(list(words))
    return status, out.getvalue()


@pytest.mark.parametrize("name", SITUATIONS)
def test_why_and_fits_answer_as_the_scheduler(paused: ControlPlane, name: str, tmp_path: Path) -> None:
    """From the API server (`why`) or from files (both), they give the scheduler's verdict, node and devices."""
    situation, client, scheduler = SITUATIONS[name], paused.admin, paused._parts["kube-scheduler"]  # noqa: SLF001 - no property has it
    try:
        for body in situation.objects:
            made(client, body)
    except RefusedError:
        cleared(client)
        raise
    time.sleep(_SEEN)
    scheduler.pause()
    refused = ""
    try:
        try:
            made(client, situation.pod)
        except RefusedError as error:
            refused = str(error)
        kinds = [{"apiVersion": "v1", **found, "kind": kind} for kind in _KINDS for found in client.list(kind)]
        (tmp_path / "objects.json").write_text(json.dumps({"kind": "List", "items": kinds}))
        (tmp_path / "pod.json").write_text(
            json.dumps(
                {"apiVersion": "v1", **situation.pod}
                if refused
                else next(one for one in kinds if one["kind"] == "Pod" and one["metadata"]["name"] == "ask")
            )
        )
        objects, pod = str(tmp_path / "objects.json"), str(tmp_path / "pod.json")
        files = ("--slices", objects, "--claims", objects)
        said = {
            "server": asked(
                "why", pod if refused else "default/ask", "--kubeconfig", str(paused.kubeconfig()), "--json"
            ),
            "files": asked("why", pod, *files, "--json"),
            "fits": asked("fits", pod, *files, "--json", *described(tmp_path, situation.objects)),
        }
        text = asked("why", pod, *files)[1]
    except RefusedError as error:
        pytest.fail(f"the API server refuses an object: {error}")
    finally:
        scheduler.resume()
    try:
        verdict, node, words = ("refused", "", refused) if refused else truth_of(client)
        mapped = mappings_of(client) if verdict == "scheduled" else None
        devices = {
            f"{one['driver']}/{one['pool']}/{one['device']}"
            for claim in client.list("ResourceClaim")
            if any(by["name"] == "ask" for by in claim.get("status", {}).get("reservedFor", ()))
            for one in claim["status"]["allocation"]["devices"]["results"]
        }
    finally:
        cleared(client)
    say(f"{name}: {verdict} {node} {words[:200]}")
    problems = []
    for source, (status, printed) in said.items():
        document = json.loads(printed) if printed.startswith("{") else {}
        is_named = '"not_looked_at": [\n' in printed
        if source != "server" and is_named and status == _UNKNOWN:
            continue  # the file does not show whether a kind was requested
        if status not in _STATUS[verdict]:
            problems.append(f"{source}: exit {status} but the scheduler: {verdict} {node} {words}; {printed[:900]}")
        elif verdict == "scheduled":
            problems += [
                f"{source}: {one}" for one in differences(document, node, devices, is_close=situation.is_close)
            ]
            if mapped is not None and document.get("request_mappings", mapped) != mapped:
                problems.append(f"{source}: {document['request_mappings']}; the scheduler wrote {mapped}")
    is_open = "not checked" in text
    lacking = [one for one in _WORDS if verdict == "refused" and one in words and one not in text and not is_open]
    problems += [f"the scheduler's words {reason!r} are not in: {text[:600]}" for reason in lacking]
    assert not problems, "\n".join(problems)


def mappings_of(client: Client) -> list[Json] | None:
    """Return which requests of the scheduler's claim serve which container, or None if there is no such claim."""
    status = client.get("Pod", "ask")["status"].get("extendedResourceClaimStatus")
    rows = status["requestMappings"] if status else ()
    names = ("containerName", "resourceName", "requestName")
    made = [dict(zip(("container", "resource", "request"), (one[of] for of in names), strict=True)) for one in rows]
    return made if status else None


def differences(document: Json, node: str, devices: set[str], *, is_close: bool) -> Iterator[str]:
    """Yield how the output of `why` or `fits` differs from the scheduler's choice of node and devices."""
    if "node" in document and not is_close and document["node"] != node:
        yield f"node {document['node']}; the scheduler took {node}"
    chosen = [of for of in document.get("nodes", ()) if of["node"] == node]
    for of in chosen:
        if of.get("fits") is False and not document.get("preempted"):
            yield f"{node} does not fit: {json.dumps(of)[:600]}"
        given = {
            f"{one['driver']}/{one['pool']}/{one['device']}"
            for allocation in of.get("allocations", ())
            for one in allocation["devices"]["results"]
        }
        if given - devices:
            yield f"devices {sorted(given)}; the scheduler gave {sorted(devices)}"


_MAX_PROPOSALS = 4  # at most this many proposals are tried in each situation


@pytest.mark.parametrize("name", SITUATIONS)
def test_each_proposal_gives_the_pod_a_node(paused: ControlPlane, name: str, tmp_path: Path) -> None:
    """Once a proposal from `why` has been carried out, the real scheduler must find a node."""
    situation, client = SITUATIONS[name], paused.admin
    objects = [*CLASSES, *STORAGE_CLASSES, *situation.objects]
    (tmp_path / "objects.json").write_text(json.dumps({"kind": "List", "items": objects}))
    report = report_on(situation, str(tmp_path / "objects.json"))
    proposals = list(islice(proposals_in(report, situation), _MAX_PROPOSALS))
    assert bool(proposals) == (report.status != 0 and name not in WITHOUT_PROPOSALS), f"{len(proposals)} proposals"
    untrue = []
    for sentence, changed in proposals:
        try:
            for body in changed.objects:
                made(client, body)
            made(client, changed.pod)
            verdict, _, words = truth_of(client)
        finally:
            cleared(client)
        say(f"{name}: {sentence}: {verdict} {words[:100]}")
        if verdict == "refused":
            untrue.append(f"{sentence}: {words}")
    assert not untrue, "\n".join(untrue)


def test_there_are_sixty_situations() -> None:
    assert len(SITUATIONS) >= 60
