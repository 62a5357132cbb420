"""A refusal is explained using information from the node's sources."""

import json
import textwrap
from collections.abc import Callable

import pytest
from attrs import evolve
from devicecore_tools.doctor.account.facts import Facts
from devicecore_tools.doctor.look.values import (
    CheckpointSeen,
    ClaimsSeen,
    HoldingSeen,
    Look,
    PodResourcesSeen,
    PodSeen,
    Reading,
)
from devicecore_tools.doctor.pod.explanation import ResourceNow, explain
from devicecore_tools.doctor.pod.trial import fit, trial_node

from devicecore import Container, Pod, PodUid, Refused
from devicecore.domain.checkpoint import CheckpointData, PodDevicesEntry, encode, judge
from devicecore.domain.model import Health, ResourceName

GPU = "example.com/gpu"
REFUSAL = (
    f"Pod was rejected: Allocate failed due to requested number of devices unavailable for {GPU}. "
    "Requested: 2, Available: 1, which is unexpected"
)


def facts() -> Facts:
    """Return the facts about a node with two devices, one of which a pod holds."""
    entry = PodDevicesEntry("uid-1", "app", GPU, {0: ("gpu-0",)}, b"")
    data = CheckpointData((entry,), {GPU: ("gpu-0", "gpu-1")})
    checkpoint = CheckpointSeen(judge(encode(data)), data)
    holding = HoldingSeen("default", "train", "app", GPU, {"gpu-0": (0,)})
    listed = {GPU: {"gpu-0": (0,), "gpu-1": (1,)}}
    api = PodResourcesSeen("v1", frozenset({("default", "train")}), (holding,), listed)
    claims = Reading.of("dra_manager_state", ClaimsSeen())
    pods = (PodSeen(Pod(PodUid("uid-1"), name="train", containers=(Container("app", {GPU: 1}),)), "Running"),)
    look = Look(Reading.of("checkpoint", checkpoint), pod_resources=Reading.of("socket", api), claims=claims)
    return Facts(evolve(look, pods=Reading.of("pods.json", pods)))


def test_current_numbers_are_shown_beside_those_of_the_refusal() -> None:
    (explained,) = explain(REFUSAL, facts=facts())
    assert dict(explained.values) == {"available": "1", "requested": "2", "resource": GPU}
    assert explained.resources == (ResourceNow(GPU, listed=2, healthy=2, held=1, held_by_pods_that_are_gone=0, free=1),)
    assert [(row.device, row.owner) for row in explained.devices] == [("gpu-0", "default/train"), ("gpu-1", "free")]


def test_numbers_that_no_source_shows_are_unknown() -> None:
    look = facts().look
    assert look.pod_resources.value is not None
    api = Reading.of("socket", evolve(look.pod_resources.value, allocatable=None))
    (of_holders,) = explain(REFUSAL, facts=Facts(Look(pod_resources=api)))
    (of_file,) = explain(REFUSAL, facts=Facts(Look(look.checkpoint)))
    (of_pods,) = explain(REFUSAL, facts=Facts(Look(pods=look.pods)))
    assert of_holders.resources == (ResourceNow(GPU, None, None, 1, 0, None),)
    assert of_file.resources == (ResourceNow(GPU, 2, None, 1, 0, None),)
    assert of_pods.resources == ()


def test_a_message_without_a_resource_is_about_what_the_pod_requests() -> None:
    pod = Pod(PodUid("new"), containers=(Container("app", {GPU: 2, "cpu": 1}),))
    (explained,) = explain("Resources cannot be allocated with Topology locality", pod, facts())
    assert [one.resource for one in explained.resources] == [GPU]
    assert explained.concerns_devices


def test_a_message_about_cpus_says_nothing_about_devices() -> None:
    pod = Pod(PodUid("new"), containers=(Container("app", {GPU: 2}),))
    (explained,) = explain("SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2", pod, facts())
    assert not explained.resources
    assert not explained.concerns_devices


def test_a_trial_on_the_node_reproduces_the_refusal() -> None:
    node = trial_node("this node", facts())
    assert [device.health for device in node.devices[ResourceName(GPU)]] == [Health.HEALTHY, Health.HEALTHY]
    found = fit(node, Pod(PodUid("new"), containers=(Container("app", {GPU: 2}),)))
    assert isinstance(found.verdict, Refused)
    assert f"Pod was rejected: {found.verdict.message}" == REFUSAL
    assert "pod default/train ends" in [change.sentence for change in found.changes]


def test_a_container_that_two_sources_name_partly_holds_all_its_devices() -> None:
    entry = PodDevicesEntry("uid-1", "app", GPU, {0: ("gpu-0", "gpu-1")}, b"")
    data = CheckpointData((entry,), {GPU: ("gpu-0", "gpu-1")})
    holding = HoldingSeen("default", "train", "app", GPU, {"gpu-0": (0,)})
    api = PodResourcesSeen("v1", frozenset({("default", "train")}), (holding,), {GPU: {"gpu-0": (0,), "gpu-1": (0,)}})
    checkpoint = CheckpointSeen(judge(encode(data)), data)
    found = Facts(Look(Reading.of("checkpoint", checkpoint), pod_resources=Reading.of("socket", api)))
    assert not fit(trial_node("this node", found), Pod(PodUid("new"), containers=(Container("app", {GPU: 1}),))).fits


@pytest.mark.parametrize(
    "around",
    [lambda text: textwrap.fill(text, 60), "\x1b[31m{}\x1b[0m".format, json.dumps, "message: '{}'\nphase: x".format],
    ids=["broken", "colored", "json", "yaml"],
)
def test_a_sentence_of_the_scheduler_loses_no_reason_in_any_form(around: Callable[[str], str]) -> None:
    (found,) = explain(
        around(f"0/4 nodes are available: 1 Insufficient {GPU}, 3 Insufficient memory. preemption: 0/4 no.")
    )
    assert f"among 4 nodes. 1 node: there is none of {GPU} there" in found.because
    assert found.because.endswith("; 3 nodes: other pods there leave less memory than this pod requests.")
    assert f"start the plugin for {GPU} there" in found.change
    assert "or request less." in found.change


def test_a_reason_of_the_scheduler_without_a_number_is_that_of_all_nodes() -> None:
    (found,) = explain("0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims. preemption: no")
    assert found.because.endswith("among 3 nodes. 3 nodes: one of the pod's PersistentVolumeClaims has no volume yet.")
    assert found.change


DESCRIBED = """Events:
  Type     Reason            Age   From               Message
  ----     ------            ----  ----               -------
  Warning  FailedScheduling  3m    default-scheduler  0/3 nodes are available: 1 cannot allocate all claims, 2 node(s) didn't match Pod's node affinity/selector. preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.
  Warning  FailedScheduling  3m    karpenter          Failed to schedule pod, pod has Dynamic Resource Allocation requirements that are not yet supported by Karpenter
  Warning  UnexpectedAdmissionError  2m  kubelet      Allocate failed due to no healthy devices present; cannot allocate unhealthy devices example.com/gpu, which is unexpected
  Warning  Strange           1m    some-controller    the moon is full
"""  # noqa: E501 - lines of a table


def test_each_event_of_a_description_is_explained_and_none_is_dropped() -> None:
    found = explain(DESCRIBED)
    assert [one.id for one in found] == ["DM-03", "SC-01", "KA-02", "unknown"]
    assert "the moon is full" in found[-1].text


SELECTOR = "claim ml/train: selector #0 on device dra.net/n1/eth0: CEL runtime error: no such key: rdma"


@pytest.mark.parametrize(
    ("text", "id_", "says"),
    [
        (
            f'running "DynamicResources" filter plugin: {SELECTOR}. consider using CEL optional chaining',
            "SC-02",
            ["ml/train", "dra.net/n1/eth0", "pool n1", "no such key: rdma", "tries no other node", ".?rdma.orValue("],
        ),
        (
            (
                'running PreBind plugin "DynamicResources": add reservation to claim default/h0: status.allocation: Invalid '  # noqa: E501 - a sentence as it is
                "value: null: field cannot be modified once set"
            ),
            "SC-02",
            ["Another client changed the ResourceClaim", "default/h0"],
        ),
        (
            (
                'running "DynamicResources" filter plugin: claim a/b, request r: asks for all devices, but resource pool '  # noqa: E501 - a sentence as it is
                "gpu.example.com/n1 is currently being updated"
            ),
            "SC-02",
            ["not all ResourceSlices of pool gpu.example.com/n1", "driver gpu.example.com"],
        ),
        ("waiting for binding conditions for device on node n1", "SC-03", ["node n1", "ten minutes"]),
        (
            (
                "0/1 nodes are available: 1 resourceclaim not available on the node. deallocation of ResourceClaim "
                "completed, preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
            ),
            "SC-01",
            ["released an unused ResourceClaim", "tries again within seconds"],
        ),
        (
            (
                "0/1 nodes are available: 1 Insufficient acme.io/gpu. preemption: found a potential placement "
                "for pod on node "
                "worker-207, preempting 1 victims"
            ),
            "SC-01",
            ["preempts 1 pod of lower priority on node worker-207"],
        ),
        ("Preempted by pod 4b1d3f52-0000-4000-8000-2c8e00000000 on node worker-207", "SC-05", ["worker-207"]),
    ],
)
def test_the_schedulers_messages_are_explained(text: str, id_: str, says: list[str]) -> None:
    (found,) = explain(text)
    said = f"{found.text} {found.because} {found.next} {found.change}"
    assert found.id == id_
    assert not [words for words in says if words not in said], said


KLOG = "E1128 01:18:41.123456   27555 server.go:166] "


@pytest.mark.parametrize(
    ("text", "id_"),
    [
        (
            (
                '"Bad registration request from device plugin with resource" err="requested API version \\"v1alpha\\" is not '  # noqa: E501 - a sentence as it is
                'supported by kubelet. Supported version is [\\"v1beta1\\"]" resourceName="acme.io/gpu"'
            ),
            "KL-12",
        ),
        (
            '"Bad registration request from device plugin" err="the ResourceName \\"kubernetes.io/gpu\\" is invalid"',
            "KL-13",
        ),
        ('"Bad registration request from device plugin" err="something new"', "KL-14"),
        ('"Failed to read data from checkpoint" err="checkpoint is not found" checkpoint="x"', "KL-15"),
        ('"Invalid state, please drain node and remove policy state file" err="[memorymanager] differs"', "KL-16"),
        ('"Failed to start ContainerManager" err="start memory manager error: x"', "KL-17"),
        ('"NodeWatchResources RPC call failed" err="rpc error" pluginName="gpu.example.com"', "KL-18"),
        ("RegisterPlugin error -- no handler registered for plugin type: DRAPlugin at socket /x-reg.sock", "KL-19"),
        ('pods "two" is forbidden: maximum acme.io/gpu usage per Container is 1, but limit is 2', "AP-05"),
        ("maximum request size for shared resources is 1; found 2", "MP-01"),
    ],
)
def test_log_lines_and_other_components_messages_are_known(text: str, id_: str) -> None:
    assert [one.id for one in explain(f"{KLOG}{text}")] == [id_]
