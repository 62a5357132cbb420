"""Admissions by all three managers."""

from devicecore import PodUid, Refused
from tests.oracle import numa
from tests.oracle.asking import Json


def test_a_pod_without_enough_cpus_keeps_no_device() -> None:
    cores = [{"core_id": core, "socket_id": 0, "thread_ids": [core]} for core in range(4)]
    node: Json = {"node_id": 0, "memory": 2**30, "hugepages": [], "cores": cores}
    replay = numa.NumaReplay(
        {
            "machine": {"topology": [node]},
            "gates": [],
            "topology": {"policy": "none", "scope": "container"},
            "cpu": {"policy": "static", "options": {}, "reserved": {"cpu": "1"}, "cpus": ""},
            "memory": {"policy": "None", "reserved": {}, "nodes": []},
        }
    )
    assert replay.begin()["ok"]
    device = {"id": "gpu-0", "health": "Healthy", "numa": [0]}
    replay.connect({"resource": "example.com/gpu", "devices": [device]})
    limits = {"cpu": "4", "memory": "1Mi", "example.com/gpu": "1"}
    spec = {"containers": [{"name": "app", "resources": {"limits": limits}}]}
    replay.pods.objects["pod"] = {"metadata": {"uid": "pod"}, "spec": spec}
    verdict = replay.admission.admit(numa.pod_of(replay.pods.objects["pod"]))
    assert isinstance(verdict, Refused)
    assert "not enough cpus available" in verdict.message
    assert not replay.devices.state.ledger.of_pod(PodUid("pod"))
