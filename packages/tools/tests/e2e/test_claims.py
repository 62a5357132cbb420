"""`devicecore kubelet` and `devicecore dra-driver simulated` as processes, killed between all steps.

Law: a claim is prepared once for all its pods and released once after the last of them, and no pod counts as running
while its claim is not prepared. Like a real kubelet, the next kubelet after a kill calls a driver again only when
another pod starts.
"""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from devicecore_tools.testing.api_server import LocalApiServer
from tests.claims import DRIVER, claim, pod
from tests.e2e.claim_world import ClaimWorld
from tests.e2e.world import Json, phases

from devicecore.adapters.pod_resources import PodResourcesClient
from devicecore.domain.dra.state_file import decode

NODE = "n1"


def plain(name: str, resource: str) -> Json:
    container = {"name": "main", "resources": {"limits": {resource: 1}}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}


@pytest.fixture
def world(directory: Path) -> Iterator[ClaimWorld]:
    with ClaimWorld(directory, DRIVER, NODE) as world:
        yield world


def is_served(state: Json) -> bool:
    return any(instance["connected"] for driver in state["drivers"] for instance in driver["instances"])


def test_a_claim_is_prepared_and_released_once_whatever_is_killed(world: ClaimWorld) -> None:
    world.put("claim", claim(device="dev-1"))
    world.put("a", pod("a"))
    world.start()
    world.start_driver()
    world.wait_until_running("a")
    world.kill_kubelet()
    world.start()
    world.wait_until_running("a")
    world.kill_driver()
    world.start_driver()
    world.kubelet.wait_for(is_served)
    assert world.calls() == ["prepared"]  # no driver was called twice
    world.put("b", pod("b"))
    world.wait_until_running("a", "b")
    assert world.calls() == ["prepared", "prepared"]  # the second kubelet called the driver for its first new pod
    world.put("c", pod("c"))
    world.wait_until_running("a", "b", "c")
    world.kill_driver()
    world.remove("a", "c")
    world.wait_until_running("b")
    world.kill_kubelet()
    world.start()
    world.start_driver()
    world.wait_until_running("b")
    assert world.calls() == ["prepared", "prepared"]
    world.kill_driver()
    world.remove("b")
    state = world.kubelet.wait_for(lambda state: state["claims"] and state["claims"][0]["reason"], settled=False)
    assert (state["claims"][0]["phase"], state["pods"]) == ("releasing", [])
    world.kill_kubelet()
    world.start()
    world.start_driver()
    world.kubelet.wait_for(lambda state: not state["claims"])
    assert world.calls() == ["prepared", "prepared", "released"]
    assert world.cdi_files() == []
    assert decode((world.root / "dra_manager_state").read_bytes()).entries == ()
    assert world.end_kubelet() == 0


def test_a_driver_that_hangs_delays_no_plugin_and_no_end_of_the_process(world: ClaimWorld) -> None:
    world.plugin("acme.io/nic", 2)
    world.start_driver()
    world.put("claims", claim(device="dev-1"), claim("other", device="dev-2"))
    world.put("a", pod("a"))
    world.start()
    world.wait_until_running("a")
    world.driver.signal(signal.SIGSTOP)
    world.put("hung", pod("hung", "other"))
    world.remove("a")
    world.kubelet.wait_for(lambda state: phases(state) == {"hung": "Pending"}, settled=False)
    world.put("nic", plain("nic", "acme.io/nic"))
    world.kubelet.wait_for(lambda state: phases(state).get("nic") == "Running", settled=False)
    assert world.calls() == ["prepared"]
    assert world.end_kubelet() == 0  # within 5 seconds: after that, the kubelet would be killed, with status 1
    world.driver.signal(signal.SIGCONT)
    world.start()
    world.kubelet.wait_for(lambda state: phases(state) == {"hung": "Running", "nic": "Running"})
    assert [one["name"] for one in world.kubelet.states[-1]["claims"]] == ["other"]


def test_claims_of_an_api_server_are_prepared_and_slices_are_deleted(world: ClaimWorld) -> None:
    with LocalApiServer() as server:
        server.create({"kind": "Node", "metadata": {"name": NODE}})
        for name, node in (("ours", NODE), ("others", "n2")):
            pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
            spec = {"driver": DRIVER, "pool": pool, "nodeName": node, "devices": [{"name": "dev-9"}]}
            server.create({"kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec})
        request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER}}
        made = server.create(
            {
                "kind": "ResourceClaim",
                "metadata": {"name": "shared", "namespace": "default"},
                "spec": {"devices": {"requests": [request]}},
            }
        )
        world.kubeconfig = server.kubeconfig(world.directory / "kubeconfig")
        world.put("a", pod("a"))
        world.start()
        server.wait_for(lambda: [one["metadata"]["name"] for one in server.objects("ResourceSlice")] == ["others"])
        refused = "prepare dynamic resources: pod a (u-a) is not allowed to use ResourceClaim shared"
        world.kubelet.wait_for(lambda state: state["pods"][0]["reason"].startswith(refused), settled=False)
        allocation = claim(device="dev-1")["status"]["allocation"]
        reserved = [{"resource": "pods", "name": "a", "uid": "u-a"}]
        server.change(
            "ResourceClaim",
            "shared",
            lambda found: found.update(status={"allocation": allocation, "reservedFor": reserved}),
        )
        world.start_driver()  # when a driver registers, the kubelet tries again
        state = world.wait_until_running("a")
        assert state["claims"][0]["uid"] == made["metadata"]["uid"]
        server.wait_for(lambda: len(server.objects("ResourceSlice")) == 2)  # the driver has published its devices
        with PodResourcesClient(world.root / "pod-resources" / "kubelet.sock") as client:
            (listed,) = client.list().pod_resources
        assert listed.containers[0].dynamic_resources[0].claim_name == "shared"
        metrics = world.metrics()
        assert f'dra_resource_claims_in_use{{driver_name="{DRIVER}"}} 1.0' in metrics
        measured = 'dra_operations_duration_seconds_count{is_error="false",operation_name="PrepareResources"} 1.0'
        assert measured in metrics
        assert world.end_kubelet() == 0
