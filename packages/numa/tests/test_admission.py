"""Pod admission by all three managers."""

from devicecore_numa.domain.requests import read_pod
from devicecore_numa.domain.state_files import decode_cpus

from devicecore import Admitted, PodUid, Refused
from tests.oracle import numa
from tests.oracle.asking import Json


def started() -> numa.NumaReplay:
    """Return a running node with a GPU and four CPUs, one of which is reserved."""
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
    return replay


def pod(replay: numa.NumaReplay, cpu: str) -> Json:
    """Return a new pod, and add it to the pods that the node knows."""
    limits = {"cpu": cpu, "memory": "1Mi", "example.com/gpu": "1"}
    spec = {"containers": [{"name": "app", "resources": {"limits": limits}}]}
    replay.pods.objects["pod"] = {"metadata": {"uid": "pod"}, "spec": spec}
    return replay.pods.objects["pod"]


def test_a_pod_without_enough_cpus_keeps_no_device() -> None:
    replay = started()
    verdict = replay.admission.admit(numa.pod_of(pod(replay, "4")))
    assert isinstance(verdict, Refused)
    assert "not enough cpus available" in verdict.message
    assert not replay.devices.state.ledger.of_pod(PodUid("pod"))


def test_an_admitted_pod_is_in_the_state_file() -> None:
    replay = started()
    assert isinstance(replay.admission.admit(numa.pod_of(pod(replay, "2"))), Admitted)
    blob = replay.stores["cpu_manager_state"].blob
    assert blob is not None
    assert decode_cpus(blob).state.assignments == {"pod": {"app": 0b110}}


def test_a_pod_whose_request_has_changed_gets_no_hint() -> None:
    replay = started()
    replay.admission.admit(numa.pod_of(pod(replay, "2")))
    changed = read_pod(pod(replay, "1"))
    assert (replay.cpus.hints(changed, "app"), replay.cpus.hints(changed, None)) == ({"cpu": ()}, {"cpu": ()})
