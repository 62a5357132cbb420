"""Situations that users reported: the first ten lines of `devicecore why` say what to change."""

import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from devicecore_tools.budget import Budget
from devicecore_tools.command.claim_rows import pairs_of
from devicecore_tools.command.main import main
from devicecore_tools.command.question import look_up_at_server
from devicecore_tools.doctor.pod.claim_trial import ClaimAnswer
from devicecore_tools.testing.api_server import LocalApiServer

from devicecore.domain.allocation import DeviceAllocation, Features, TargetNode
from devicecore.domain.allocation.faults import KubernetesFault

Json = Any
Capsys = pytest.CaptureFixture[str]
GPU, NIC, DRANET = "gpu.nvidia.com", "nic.example.com", "dra.net"
ROOT = "resource.kubernetes.io/pcieRoot"
TEN = 10


def a_slice(node: str, driver: str, devices: Sequence[Json], **more: Json) -> Json:
    """Return a ResourceSlice of a node; `more` overrides fields of its pool and of its spec."""
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1} | more.pop("pool", {})
    metadata = {"name": f"{node}-{driver}-{more.pop('part', 'a')}"}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": devices, **more}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


def a_device(name: str, **attributes: str) -> Json:
    """Return a device with string attributes; `_root` is its PCIe root."""
    named = {ROOT if name == "_root" else name: {"string": value} for name, value in attributes.items()}
    return {"name": name, "attributes": named}


def a_class(name: str, expression: str) -> Json:
    """Return a DeviceClass with one expression."""
    selectors = [{"cel": {"expression": expression}}]
    return {"kind": "DeviceClass", "metadata": {"name": name}, "spec": {"selectors": selectors}}


def a_request(name: str, device_class: str, count: int = 1, expression: str = "", **more: Json) -> Json:
    """Return a claim's request."""
    selectors = {"selectors": [{"cel": {"expression": expression}}]} if expression else {}
    return {"name": name, "exactly": {"deviceClassName": device_class, "count": count, **selectors, **more}}


def a_way(name: str, device_class: str, **more: Json) -> Json:
    """Return one of a request's alternatives."""
    return {"name": name, "deviceClassName": device_class, **more}


def a_claim(*requests: Json, constraints: Sequence[Json] = (), held: Sequence[tuple[str, str, str]] = ()) -> Json:
    """Return a ResourceClaim that holds the devices in `held`."""
    devices = {"requests": list(requests), **({"constraints": list(constraints)} if constraints else {})}
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": {"devices": devices}}
    results = [{"request": "r", "driver": one[0], "pool": one[1], "device": one[2]} for one in held]
    pods = [{"resource": "pods", "name": "infer-0", "uid": "u-infer"}]
    status = {"status": {"allocation": {"devices": {"results": results}}, "reservedFor": pods}} if held else {}
    return {**claim, "metadata": {"name": "other" if held else "train", "namespace": "ml"}, **status}


MIG = a_class("mig", f"device.driver == '{GPU}' && device.attributes['{GPU}'].type == 'mig'")
WHOLE = a_class("gpu", f"device.driver == '{GPU}' && device.attributes['{GPU}'].type == 'gpu'")
NICS = a_class("nic", f"device.driver == '{NIC}'")
GPUS = [a_device(f"gpu-{number}", type="gpu", _root=f"pci{number}") for number in range(2)]
HALF = {"counterSet": "gpu-0", "counters": {"memory": {"value": "40Gi"}}}
COUNTERS = [{"name": "gpu-0", "counters": {"memory": {"value": "40Gi"}}}]
PARTS = [
    {**a_device("gpu-0", type="gpu"), "consumesCounters": [HALF]},
    {**a_device("gpu-0-mig-3g-0", type="mig", profile="3g.20gb"), "consumesCounters": [HALF]},
    {**a_device("gpu-0-mig-1g-5", type="mig", profile="1g.5gb"), "consumesCounters": [HALF]},
]
TWO = {"pool": {"resourceSliceCount": 2}}
PARTITIONED = [a_slice("n1", GPU, PARTS, **TWO), a_slice("n1", GPU, [], part="b", sharedCounters=COUNTERS, **TWO)]
PROFILE = f"device.attributes['{GPU}'].profile == '3g.20gb'"
SHARED = {"name": "eth0", "allowMultipleAllocations": True, "capacity": {"bandwidth": {"value": "10G"}}}
A_SHARE = a_claim(a_request("r", "nic"), held=[(NIC, "n1", "eth0")])
A_SHARE["status"]["allocation"]["devices"]["results"][0] |= {"shareID": "s", "consumedCapacity": {"bandwidth": "8G"}}
A_SHARE_OF_ALL = a_claim(a_request("r", "nic"), held=[(NIC, "n1", "eth0")])
A_KEPT_CAPACITY = a_claim(a_request("r", "nic", capacity={"requests": {"bandwidth": "1G"}}), held=[(NIC, "n1", "eth0")])
XID = {"key": "nvidia.com/xid", "value": "79", "effect": "NoSchedule"}

SITUATIONS: dict[str, tuple[Json, list[Json], int, list[str]]] = {
    "MIG: a whole GPU is wanted, and a part of it is in use": (
        a_claim(a_request("r", "gpu")),
        [WHOLE, MIG, *PARTITIONED, a_claim(a_request("r", "mig"), held=[(GPU, "n1", "gpu-0-mig-3g-0")])],
        1,
        [
            "of 3 devices on the node, 2 not selected, 1 short of a counter",  # the device in use is not a whole GPU
            "gets them if  claim ml/other of pod infer-0 is released",
            "too little is free in counter gpu-0/memory",
        ],
    ),
    "MIG: whole GPUs have no profile": (
        a_claim(a_request("r", "gpu", expression=PROFILE)),
        [WHOLE, *PARTITIONED],
        1,
        [
            "device gpu.nvidia.com/n1/gpu-0 has no profile",
            "  do            name a DeviceClass that selects gpu.nvidia.com/n1/gpu-0-mig-3g-0, or create one: the",
            "have it\n  do            request r: write device.attributes",
            "but this alone provides no device",
        ],
    ),
    "MIG: whole GPUs have no profile, and there is a class for parts": (
        a_claim(a_request("r", "gpu", expression=PROFILE)),
        [WHOLE, MIG, *PARTITIONED],
        1,
        ["gets them if  request r of claim ml/train names deviceClassName: mig\n"],
    ),
    "MIG: the class has all devices of the driver, and whole GPUs have no profile": (
        a_claim(a_request("r", "any", expression=PROFILE)),
        [a_class("any", f"device.driver == '{GPU}'"), *PARTITIONED],
        1,
        [f"gets them if  request r of claim ml/train uses device.attributes['{GPU}'].?profile.orValue(\"\") instead"],
    ),
    "MIG: the profile is misspelled": (
        a_claim(a_request("r", "mig", expression=PROFILE.replace("3g", "9g"))),
        [MIG, *PARTITIONED],
        1,
        [
            'but profile is "3g.20gb", "1g.5gb"',
            "gets them if  request r of claim ml/train uses '3g.20gb' instead of '9g.20gb'\n  how  ",
        ],
    ),
    "the slice with the counters was refused by the API server": (
        a_claim(a_request("r", "mig")),
        [MIG, PARTITIONED[0]],
        1,
        [
            "it has only 1 of 2 slices of generation 1",
            "has to publish all slices of pool gpu.nvidia.com/n1: check its pod and log",
        ],
    ),
    "counters are over-committed after an upgrade": (
        a_claim(a_request("r", "mig")),
        [
            MIG,
            a_slice(
                "n1",
                GPU,
                [*PARTS, {**a_device("gpu-1-mig", type="mig"), "consumesCounters": [{**HALF, "counterSet": "gpu-1"}]}],
                **TWO,
            ),
            a_slice(
                "n1",
                GPU,
                [],
                part="b",
                sharedCounters=[
                    {"name": "gpu-0", "counters": {"memory": {"value": "10Gi"}}},
                    {**COUNTERS[0], "name": "gpu-1"},
                ],
                **TWO,
            ),
            a_claim(a_request("r", "mig"), held=[(GPU, "n1", "gpu-0-mig-3g-0")]),
        ],
        4,
        [
            "could get its devices, but not every scheduler finds them",
            "an overcommitted counter",
            "counter gpu-0/memory has 10Gi, and 40Gi are in use by claim ml/other of pod infer-0: release it",
        ],
    ),
    "DRANET: interfaces of the second driver are on other PCIe roots": (
        a_claim(
            a_request("gpu", "gpu"),
            a_request("nic", "nic"),
            constraints=[{"requests": ["gpu", "nic"], "matchAttribute": ROOT}],
        ),
        [WHOLE, NICS, a_slice("n1", GPU, GPUS), a_slice("n1", NIC, [a_device("eth0", _root="pci7")])],
        1,
        [
            (
                f"because       matchAttribute: no value of {ROOT} is common to all requests: "
                "pci0, pci1 for gpu, pci7 for nic"
            )
        ],
    ),
    "DRANET: two NICs on one PCIe root": (
        a_claim(a_request("nics", "nic", 2), constraints=[{"matchAttribute": ROOT}]),
        [NICS, a_slice("n1", NIC, [a_device(f"eth{number}", _root=f"pci{number}") for number in range(4)])],
        1,
        [f"no value of {ROOT} has 2 devices for nics: 4 values have 1", f"has no matchAttribute {ROOT}"],
    ),
    "DRANET: the NICs do not publish their PCIe root": (
        a_claim(a_request("nics", "nic", 2), constraints=[{"matchAttribute": ROOT}]),
        [NICS, a_slice("n1", NIC, [a_device(f"eth{number}") for number in range(2)])],
        1,
        [f"matchAttribute: no device that fits has the attribute {ROOT}"],
    ),
    "DRANET: the attribute is in a different domain": (
        a_claim(a_request("r", "nic", expression=f"device.attributes['{NIC}'].rdma == 'true'")),
        [NICS, a_slice("n1", NIC, [{"name": "eth0", "attributes": {"dra.net/rdma": {"string": "true"}}}])],
        1,
        [f"gets them if  request r of claim ml/train uses device.attributes['{DRANET}'].rdma instead of"],
    ),
    "GB200: a channel of the IMEX daemon is in use": (
        a_claim(a_request("r", "channel")),
        [
            a_class("channel", "device.driver == 'compute-domain.nvidia.com'"),
            a_slice("n1", "compute-domain.nvidia.com", [{"name": "channel-0"}]),
            a_claim(a_request("r", "channel"), held=[("compute-domain.nvidia.com", "n1", "channel-0")]),
        ],
        1,
        ["in use by claim ml/other of pod infer-0", "gets them if  claim ml/other of pod infer-0 is released"],
    ),
    "GB200: no driver publishes a channel for the node": (
        a_claim(a_request("r", "channel")),
        [a_class("channel", "device.driver == 'compute-domain.nvidia.com'"), a_slice("n2", GPU, GPUS)],
        1,
        [
            "class channel wants devices from driver compute-domain.nvidia.com, which has no ResourceSlice for n1; ",
            "this driver has no slices at all; there are slices from gpu.nvidia.com\n",
            "do       check whether the driver is installed and its pod is running on n1, and read its log; compare",
        ],
    ),
    "GB200: the driver publishes channels for other nodes only": (
        a_claim(a_request("r", "channel")),
        [
            a_class("channel", "device.driver == 'compute-domain.nvidia.com'"),
            a_slice("n1", GPU, GPUS),
            a_slice("n2", "compute-domain.nvidia.com", [{"name": "channel-0", "taints": [XID]}]),
        ],
        1,
        ["which has no ResourceSlice for n1, but only for n2\n  do         check whether the driver is installed"],
    ),
    "the driver has published a slice without devices": (
        a_claim(a_request("r", "gpu")),
        [WHOLE, a_slice("n1", GPU, [])],
        1,
        ["because  the slices for n1, from gpu.nvidia.com, list no devices\n  do       check whether the driver"],
    ),
    "no driver publishes anything, and the class names none": (
        a_claim(a_request("r", "any")),
        [a_class("any", "!(device.driver == 'x.example.com')")],
        1,
        ["because  no driver has a ResourceSlice for n1\n  do       check whether the driver is installed"],
    ),
    "an autoscaler's empty node says that its pool has no slice": (
        a_claim(a_request("r", "gpu")),
        [WHOLE, a_slice("n1", GPU, GPUS, pool={"resourceSliceCount": 0})],
        1,
        ["its resourceSliceCount is 0, but it has 1 slice", "fix whatever publishes pool gpu.nvidia.com/n1"],
    ),
    "a shared NIC has no bandwidth left": (
        a_claim(a_request("r", "nic", capacity={"requests": {"bandwidth": "8G"}})),
        [
            NICS,
            a_slice(
                "n1",
                NIC,
                [{"name": "eth0", "allowMultipleAllocations": True, "capacity": {"bandwidth": {"value": "5G"}}}],
            ),
        ],
        1,
        ["asks for 8G of bandwidth, but the device has 5G (", "request r of claim ml/train asks for 5G of bandwidth"],
    ),
    "others hold the bandwidth of a shared NIC": (
        a_claim(a_request("r", "nic", capacity={"requests": {"bandwidth": "8G"}})),
        [NICS, a_slice("n1", NIC, [SHARED]), A_SHARE],
        1,
        [
            "gets them if  claim ml/other of pod infer-0 is released",
            "asks for 2G of bandwidth",
            "but the device has 2G left of 10G; claim ml/other of pod infer-0 has 8G (",
        ],
    ),
    "a request for no bandwidth gets all of it": (
        a_claim(a_request("r", "nic")),
        [NICS, a_slice("n1", NIC, [SHARED]), A_SHARE],
        1,
        ["the request names no amount of bandwidth, which means 10G, but the device has 2G left of 10G"],
    ),
    "DRANET: a boolean is compared with a string": (
        a_claim(a_request("r", "dranet", expression=f"device.attributes['{DRANET}'].rdma == 'true'")),
        [
            a_class("dranet", f"device.driver == '{DRANET}'"),
            a_slice("n1", DRANET, [{"name": "eth1", "attributes": {"rdma": {"bool": True}}}]),
        ],
        1,
        [
            "but rdma is true; it is not a string: write true without quotes",
            "gets them if  request r of claim ml/train uses true instead of 'true'\n  how  ",
        ],
    ),
    "DRANET: the domain and the type differ": (
        a_claim(a_request("r", "dranet", expression=f"device.attributes['{NIC}'].rdma == 'true'")),
        [
            a_class("dranet", f"device.driver == '{DRANET}'"),
            a_slice("n1", DRANET, [{"name": "eth1", "attributes": {"rdma": {"bool": True}}}]),
        ],
        1,
        [
            f"uses device.attributes['{DRANET}'].rdma == true instead of device.attributes['{NIC}'].rdma",
        ],
    ),
    "DRANET: two requests compare a boolean with a string": (
        a_claim(*(a_request(one, "nic", expression=f"device.attributes['{NIC}'].rdma == 'true'") for one in "ab")),
        [NICS, a_slice("n1", NIC, [{"name": f"eth{n}", "attributes": {"rdma": {"bool": True}}} for n in range(2)])],
        1,
        ["gets them if  claim ml/train uses true instead of 'true'\n"],
    ),
    "a capacity is compared like a number": (
        a_claim(a_request("r", "gpu", expression=f"device.capacity['{GPU}'].memory >= quantity('40Gi')")),
        [WHOLE, a_slice("n1", GPU, [{**GPUS[0], "capacity": {"memory": {"value": "80Gi"}}}])],
        1,
        [f"gets them if  request r of claim ml/train uses device.capacity['{GPU}'].memory.compareTo(quantity('40Gi"],
    ),
    "more memory is wanted than a GPU has": (
        a_claim(a_request("r", "gpu", expression=f"device.capacity['{GPU}'].memory.compareTo(quantity('80Gi')) >= 0")),
        [WHOLE, a_slice("n1", GPU, [{**GPUS[0], "capacity": {"memory": {"value": "81559Mi"}}}])],
        1,
        ["gets them if  request r of claim ml/train uses '81559Mi' instead of '80Gi'"],
    ),
    "a device uses a counter that its pool does not have": (
        a_claim(a_request("r", "mig")),
        [MIG, a_slice("n1", GPU, [{**PARTS[1], "consumesCounters": [{**HALF, "counterSet": "gpu-9"}]}])],
        1,
        ["consumes gpu-9/memory, which is unknown", "has to publish pool gpu.nvidia.com/n1 without this contradiction"],
    ),
    "more devices are wanted than there are": (
        a_claim(a_request("r", "gpu", 8)),
        [WHOLE, a_slice("n1", GPU, GPUS)],
        1,
        [
            "gets them if  request r of claim ml/train is for 2 devices\n  how           the spec of a claim cannot",
            "be edited: delete the claim, and create it again with the change\n  request r",
        ],
    ),
    "a GPU is tainted after an XID": (
        a_claim(a_request("r", "gpu")),
        [WHOLE, a_slice("n1", GPU, [{**GPUS[0], "taints": [XID]}])],
        1,
        [
            "gpu.nvidia.com/n1/gpu-0 has the taint nvidia.com/xid=79:NoSchedule from driver gpu.nvidia.com\n  do  ",
            "check the driver's log to see why the device is tainted, and have the device repaired, or use a different",
            "gets them if  claim ml/train tolerates the taint",
            'tolerations: [{key: nvidia.com/xid, operator: Equal, value: "79", effect: NoSchedule}] in its requests',
        ],
    ),
    "a GPU is tainted by an administrator": (
        a_claim(a_request("r", "gpu")),
        [
            WHOLE,
            a_slice("n1", GPU, GPUS),
            {
                "kind": "DeviceTaintRule",
                "metadata": {"name": "repair"},
                "spec": {"deviceSelector": {"driver": GPU}, "taint": {"key": "example.com/off", "effect": "NoExecute"}},
            },
        ],
        1,
        [
            "gpu-0 and 1 more have the taint example.com/off:NoExecute from DeviceTaintRule repair\n",
            "do            delete that rule once its cause is fixed\n",
            "tolerations: [{key: example.com/off, operator: Exists, effect: NoExecute}]",
        ],
    ),
    "a GPU monitor wants all GPUs, and one is tainted": (
        a_claim(a_request("r", "gpu", allocationMode="All", adminAccess=True)),
        [WHOLE, a_slice("n1", GPU, [GPUS[0], {**GPUS[1], "taints": [XID]}])],
        1,
        [
            "adminAccess does not ignore taints; a pod that only watches devices may tolerate this taint",
            "have the device repaired\n  gets them if  claim ml/train tolerates",
        ],
    ),
    "all devices are wanted, and one is in use": (
        a_claim(a_request("r", "gpu", allocationMode="All")),
        [
            WHOLE,
            a_slice("n1", GPU, [a_device(f"gpu-{number}", type="gpu") for number in range(4)]),
            a_claim(a_request("r", "gpu"), held=[(GPU, "n1", "gpu-1")]),
        ],
        1,
        [
            "infer-0 is released",
            "gets them if  request r of claim ml/train is for 3 devices instead of all: allocationMode: Exact",
        ],
    ),
    "the driver's class is not installed": (
        a_claim(a_request("r", "gpu.nvidia.com")),
        [a_class("mig.nvidia.com", "true"), a_slice("n1", GPU, GPUS)],
        1,
        ["because  there is no DeviceClass gpu.nvidia.com, only mig.nvidia.com\n  do       check the name"],
    ),
    "the devices of a simulated node lack what the class reads": (
        a_claim(a_request("r", "gpu")),
        [WHOLE, a_slice("n1", GPU, GPUS), a_slice("n2", GPU, [a_device("gpu-0", uuid="GPU-1")])],
        4,
        [
            "claim ml/train: gets no devices from kube-scheduler, although n1 has them",
            "reason     an error on n2 stops the pod on every node",
            "because    device gpu.nvidia.com/n2/gpu-0 has no type in domain gpu.nvidia.com; gpu.nvidia.com/n1/gpu-0,",
            "do         have gpu.nvidia.com also publish it for gpu.nvidia.com/n2/gpu-0",
            f"DeviceClass gpu: write device.attributes['{GPU}'].?type.orValue(\"\") instead of",
            "do         until that is fixed, keep the pod away from n2",
        ],
    ),
    "EKS: the constraint is about an attribute in a different domain": (
        a_claim(a_request("gpu", "gpu"), a_request("nic", "nic"), constraints=[{"matchAttribute": "dra.net/pcieRoot"}]),
        [WHOLE, NICS, a_slice("n1", GPU, GPUS), a_slice("n1", NIC, [a_device("eth0", _root="pci1")])],
        1,
        [f"gets them if  claim ml/train has matchAttribute {ROOT} instead of dra.net/pcieRoot\n"],
    ),
    "Intel: memory is looked for among the attributes": (
        a_claim(a_request("r", "gpu", expression=f"device.attributes['{GPU}'].memory >= quantity('40Gi')")),
        [WHOLE, a_slice("n1", GPU, [{**GPUS[0], "capacity": {"memory": {"value": "80Gi"}}}])],
        1,
        [f"uses device.capacity['{GPU}'].memory.compareTo(quantity('40Gi')) >= 0 instead of device.attributes"],
    ),
    "HAMi: part of a device is wanted, but the device is not shared": (
        a_claim(a_request("r", "nic", capacity={"requests": {"bandwidth": "1G"}})),
        [NICS, a_slice("n1", NIC, [{**SHARED, "allowMultipleAllocations": False}]), A_SHARE_OF_ALL],
        1,
        [
            "because       request r asks for a part of nic.example.com/n1/eth0, which is published without allow",
            "do            restart the pod of driver nic.example.com, so that it publishes its devices again",
            "before 1.36, an API server drops the field unless the feature gate DRAConsumableCapacity is on",
        ],
    ),
    "HAMi: the holder has kept its capacity, so the API server knows the field": (
        a_claim(a_request("r", "nic", capacity={"requests": {"bandwidth": "1G"}})),
        [NICS, a_slice("n1", NIC, [{**SHARED, "allowMultipleAllocations": False}]), A_KEPT_CAPACITY],
        1,
        ["(claim ml/other of pod infer-0 still has its capacity, so the API server knew the field when the claim"],
    ),
    "neither of two alternatives is free": (
        a_claim({"name": "r", "firstAvailable": [a_way("whole", "gpu"), a_way("two", "mig", count=2)]}),
        [
            WHOLE,
            MIG,
            a_slice("n1", GPU, [GPUS[0], a_device("mig-0", type="mig"), a_device("mig-1", type="mig")]),
            a_claim(a_request("r", "gpu"), held=[(GPU, "n1", "gpu-0"), (GPU, "n1", "mig-0")]),
        ],
        1,
        [
            "claim ml/train, request r/whole: 0 of 1 devices fit; of 3 devices on the node, 2 not selected, 1 in use",
            "; or request r/two: 1 of 2 devices fit; of 3 devices on the node, 1 not selected, 1 in use",
            "request r/two    1 device: would fit, but there are too few of them (gpu.nvidia.com/n1/mig-1)",
        ],
    ),
    "no device has what the expression reads, and what a constraint lacks is not known": (
        a_claim(
            a_request("r", "gpu", 2, f"device.attributes['{GPU}'].rank == 1"),
            constraints=[{"distinctAttribute": "resource.kubernetes.io/numaNode"}],
        ),
        [WHOLE, a_slice("n1", GPU, GPUS)],
        1,
        [
            "no such key: rank\n  because  device gpu.nvidia.com/n1/gpu-0 has no rank in domain",
            "do       write a name that devices have, because no device has rank in domain gpu.nvidia.com",
        ],
    ),
    "a domain that is bound to a name is not explained": (
        a_claim(a_request("r", "gpu", 1, f"cel.bind(a, device.attributes['{GPU}'], a.rank == 1)")),
        [WHOLE, a_slice("n1", GPU, GPUS)],
        1,
        ["device gpu.nvidia.com/n1/gpu-0 has no rank, which the expression reads; it has"],
    ),
    "a string is compared with a number": (
        a_claim(a_request("r", "gpu", expression=f"device.attributes['{GPU}'].type > 1")),
        [WHOLE, a_slice("n1", GPU, GPUS)],
        1,
        ['type of device gpu.nvidia.com/n1/gpu-0 is "gpu", a string, and 1 is a number: compare it with a value of'],
    ),
    "the class is misspelled": (
        a_claim(a_request("r", "gpus")),
        [WHOLE, a_slice("n1", GPU, GPUS)],
        1,
        ["could not retrieve device class gpus: not found", "do      write deviceClassName: gpu"],
    ),
    "all devices are wanted while another node's pool is written": (
        a_claim(a_request("r", "gpu", allocationMode="All")),
        [WHOLE, a_slice("n1", GPU, GPUS), a_slice("n2", GPU, GPUS, pool={"resourceSliceCount": 2})],
        4,
        [
            "an error on n2 stops the pod on every node",
            "it has only 1 of 2 slices of generation 1",
            "do         gpu.nvidia.com has to publish all slices of pool gpu.nvidia.com/n2",
        ],
    ),
}


@pytest.fixture
def why(tmp_path: Path, capsys: Capsys) -> Callable[..., tuple[int, list[str]]]:
    """Return a function that runs `devicecore why` on objects and returns its status and the lines that it prints."""

    def run(wanted: Sequence[Json], objects: Sequence[Json], *options: str) -> tuple[int, list[str]]:
        nodes: list[Json] = [{"kind": "Node", "metadata": {"name": name}} for name in ("n1", "n2")]
        used = {one["spec"].get("nodeName") for one in objects if one["kind"] == "ResourceSlice"}
        nodes = [one for one in nodes if one["metadata"]["name"] == "n1" or one["metadata"]["name"] in used]
        (tmp_path / "wanted.yaml").write_text("".join(f"---\n{json.dumps(one)}\n" for one in wanted))
        (tmp_path / "objects.json").write_text(json.dumps({"kind": "List", "items": [*objects, *nodes]}))
        status = main(["why", str(tmp_path / "wanted.yaml"), "--slices", str(tmp_path / "objects.json"), *options])
        said, errors = capsys.readouterr()
        assert errors == ""
        return status, said.splitlines()

    return run


@pytest.mark.parametrize("situation", SITUATIONS)
def test_the_first_ten_lines_say_what_to_change(situation: str, why: Callable[..., tuple[int, list[str]]]) -> None:
    claim, objects, expected, texts = SITUATIONS[situation]
    status, lines = why([claim], objects, *(["--node-name", "n1"] if "GB200: no" in situation else []))
    shown = "\n".join(lines[:TEN])
    assert status == expected, shown
    assert [text for text in texts if text not in shown] == [], shown
    assert len(lines) <= 24  # the rows of a small terminal


@pytest.mark.parametrize("others", [0, 1])
def test_json_contains_each_claim_even_if_all_are_allocated(
    others: int, why: Callable[..., tuple[int, list[str]]]
) -> None:
    """One claim is printed as an object and several claims as a list, whatever they contain."""
    held = [a_claim(a_request("r", "gpu"), held=[(GPU, "n1", f"gpu-{number}")]) for number in range(2)]
    for number, one in enumerate(held):
        one["metadata"] = {"name": f"held-{number}", "namespace": "ml"}
    wanted = [*held, *[a_claim(a_request("r", "gpu"))] * others]
    _, lines = why(wanted, [WHOLE, a_slice("n1", GPU, GPUS), *held], "--json")
    found = json.loads("\n".join(lines))["claims"]
    assert [one["claims"] for one in found] == ["ml/held-0", "ml/held-1", *["ml/train"] * others]
    _, lines = why(held[:1], [], "--json")
    assert json.loads("\n".join(lines))["allocated"]["reservedFor"] == ["infer-0"]


def test_claims_any_one_of_which_must_go_are_one_line_and_other_changes_are_tried(
    why: Callable[..., tuple[int, list[str]]],
) -> None:
    """Releasing any one of 99 claims would help, and `why` also proposes a smaller count."""
    gpus = [a_device(f"gpu-{number}", type="gpu") for number in range(100)]
    others = [a_claim(a_request("r", "gpu"), held=[(GPU, "n1", f"gpu-{number}")]) for number in range(99)]
    for number, one in enumerate(others):
        one["metadata"] = {"name": f"other-{number}", "namespace": "ml"}
    _, lines = why([a_claim(a_request("r", "gpu", 2))], [WHOLE, a_slice("n1", GPU, gpus), *others])
    named = ", ".join(f"claim ml/other-{number} of pod infer-0" for number in range(3))
    assert (
        lines[2]
        == f"  gets them if  any one of these 99 is released, for example when its pod ends: {named} and 96 more"
    )
    assert lines[3] == "  gets them if  request r of claim ml/train is for 1 device"


def test_a_claim_of_many_requests_is_explained_on_one_screen(why: Callable[..., tuple[int, list[str]]]) -> None:
    """Rows about devices that no change would make usable are left out first. --all-devices prints more rows."""
    taints = [{"key": f"example.com/{number}", "effect": "NoSchedule"} for number in range(3)]
    gpus = [a_device(f"gpu-{number}", type="gpu", model="a") for number in range(2)]
    marked = [{**a_device(f"bad-{one['key'][-1]}", type="gpu", model="a"), "taints": [one]} for one in taints]
    wanted = [f"{number} == {number} && device.attributes['{GPU}'].model == 'a'" for number in range(4)]
    claim = [a_claim(*(a_request(f"r{number}", "gpu", 6, one) for number, one in enumerate(wanted)))]
    held = a_claim(a_request("r", "gpu"), held=[(GPU, "n1", "gpu-0")])
    objects = [WHOLE, a_slice("n1", GPU, [*gpus, *marked, a_device("other", type="gpu", model="b")]), held]
    _, lines = why(claim, objects)
    assert len(lines) == 24
    assert lines[-1].endswith("more rows: --all-devices shows why each device was rejected")
    assert len(why(claim, objects, "--all-devices")[1]) > 24


def test_a_new_node_of_the_same_type_without_slices_is_named(why: Callable[..., tuple[int, list[str]]]) -> None:
    labels = {"node.kubernetes.io/instance-type": "a3"}
    nodes = [{"kind": "Node", "metadata": {"name": name, "labels": labels}} for name in ("m1", "m2", "m3")]
    held = a_claim(a_request("r", "gpu"), held=[(GPU, "m1", "gpu-0")])
    _, lines = why([a_claim(a_request("r", "gpu"))], [WHOLE, a_slice("m1", GPU, GPUS[:1]), held, *nodes])
    assert lines[2] == (
        "  do            check whether the driver's pod is running on m2, and read its log: "
        "m2 and 1 more of the same instance type a3 have no ResourceSlice from gpu.nvidia.com"
    )


def a_pod_with(limits: dict[str, str]) -> Json:
    """Return a pod without claims."""
    container = {"name": "c", "image": "i", "resources": {"limits": limits}}
    return {"kind": "Pod", "metadata": {"name": "train", "namespace": "ml"}, "spec": {"containers": [container]}}


def ready_node(server: LocalApiServer, name: str, **labels: str) -> None:
    """Create a Node without the taint that an API server gives to a new Node."""
    server.create({"kind": "Node", "metadata": {"name": name, "labels": labels}})
    server.change("Node", name, lambda node: node["spec"].pop("taints"))


SERVING = {**WHOLE, "spec": {**WHOLE["spec"], "extendedResourceName": "nvidia.com/gpu"}}


def test_extended_resources_that_a_class_serves_are_tried(why: Callable[..., tuple[int, list[str]]]) -> None:
    wanted = a_pod_with({"nvidia.com/gpu": "2", "cpu": "1"})
    status, lines = why([wanted], [SERVING, a_slice("n1", GPU, GPUS)])
    assert (status, lines[0]) == (0, "pod ml/train on n1: gets its devices")
    held = a_claim(a_request("r", "gpu"), held=[(GPU, "n1", "gpu-1")])
    status, lines = why([wanted], [SERVING, a_slice("n1", GPU, GPUS), held])
    assert (status, " ".join(lines[2].split())) == (
        1,
        "gets them if claim ml/other of pod infer-0 is released, for example when its pod ends",
    )


def test_what_a_plugin_has_left_for_a_pod_is_not_known_without_pods(why: Callable[..., tuple[int, list[str]]]) -> None:
    """If a node has the resource from a device plugin, the plugin takes precedence over the DeviceClass."""
    metadata = {"name": "n1"}
    node = {"kind": "Node", "metadata": metadata, "status": {"allocatable": {"nvidia.com/gpu": "8", "cpu": "4"}}}
    status, lines = why([a_pod_with({"nvidia.com/gpu": "1"})], [SERVING, node, a_slice("n2", GPU, GPUS[:0])])
    says = "a device plugin serves nvidia.com/gpu there, but the pods that may hold its devices were not read"
    assert (status, lines[1]) == (3, f"  reason  {says}")
    full = {"kind": "Pod", "metadata": {"name": "a"}, "spec": {"nodeName": "n1", "containers": [_container("8")]}}
    status, lines = why([a_pod_with({"nvidia.com/gpu": "1"})], [SERVING, node, full])
    says = "Insufficient nvidia.com/gpu: the pod requests 1, but the node has 0 of 8 left"
    assert (status, lines[1]) == (1, f"  reason  {says}")


def _container(count: str) -> dict[str, object]:
    return {"name": "c", "resources": {"limits": {"nvidia.com/gpu": count}}}


def test_an_extended_resource_that_nothing_serves_is_insufficient(why: Callable[..., tuple[int, list[str]]]) -> None:
    node = {"kind": "Node", "metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": "4"}}}
    status, lines = why([a_pod_with({"nvidia.com/gpu": "1"})], [WHOLE, node])
    assert (status, lines[1]) == (1, "  reason  Insufficient nvidia.com/gpu: the pod requests 1, but the node has 0")


@pytest.mark.parametrize("is_served", [True, False])
def test_an_api_server_says_whether_a_class_serves_an_extended_resource(
    *, is_served: bool, tmp_path: Path, capsys: Capsys
) -> None:
    """Without a class that serves the resource, `why` explains the pod's state based on its events."""
    with LocalApiServer() as server:
        server.create({"kind": "Namespace", "metadata": {"name": "ml"}})
        for one in (
            SERVING if is_served else WHOLE,
            a_slice("n1", GPU, GPUS),
            a_pod_with({"nvidia.com/gpu": "1"}),
        ):
            server.create(one)
        ready_node(server, "n1")
        main(["why", "ml/train", "--kubeconfig", str(server.kubeconfig(tmp_path / "config"))])
    assert ("pod ml/train on n1: gets its devices" in capsys.readouterr().out) is is_served


def test_a_pod_whose_claims_are_allocated_says_where_they_can_be_used(
    why: Callable[..., tuple[int, list[str]]],
) -> None:
    held = a_claim(a_request("r", "gpu"), held=[(GPU, "n1", "gpu-0")])
    selector = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    held["status"]["allocation"]["nodeSelector"] = {"nodeSelectorTerms": [selector]}
    spec = {**POD_SPEC, "resourceClaims": [{"name": "gpus", "resourceClaimName": "other"}]}
    status, lines = why([{**POD, "spec": spec}], [WHOLE, held])
    assert (status, lines[0]) == (0, "pod ml/train: every claim is already allocated")
    assert lines[1:4] == [
        "claim ml/other is allocated",
        "  request r     gpu.nvidia.com/n1/gpu-0",
        "  usable on     n1",
    ]


POD_SPEC = {
    "containers": [{"name": "c", "image": "i"}],
    "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "tmpl"}],
}
TEMPLATE = {
    "apiVersion": "resource.k8s.io/v1beta1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "tmpl", "namespace": "ml"},
    "spec": {"spec": {"devices": {"requests": [{"name": "r", "deviceClassName": "gpu"}]}}},
}


@pytest.mark.parametrize(
    ("title", "holder"),
    [
        ("pod ml/train", {"kind": "Pod", "spec": POD_SPEC}),
        ("a pod of Deployment ml/train", {"kind": "Deployment", "spec": {"template": {"spec": POD_SPEC}}}),
        (
            "a pod of CronJob ml/train",
            {"kind": "CronJob", "spec": {"jobTemplate": {"spec": {"template": {"spec": POD_SPEC}}}}},
        ),
        ("claim of ResourceClaimTemplate ml/tmpl", {"kind": "ConfigMap"}),
    ],
)
def test_templates_and_what_names_them_are_explained(
    title: str, holder: Json, why: Callable[..., tuple[int, list[str]]]
) -> None:
    named = {**holder, "metadata": {"name": "train", "namespace": "ml"}}
    status, lines = why([TEMPLATE, named], [WHOLE, a_slice("n1", GPU, GPUS)])
    assert (status, lines[0]) == (0, f"{title} on n1: gets its devices")


def test_a_claim_that_was_made_from_a_template_is_changed_there(why: Callable[..., tuple[int, list[str]]]) -> None:
    claim = a_claim(a_request("r", "gpu", 3))
    claim["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": "gpus"}
    how = "  how           the spec of a template cannot be edited: delete the template and the waiting pods"
    _, lines = why([claim], [WHOLE, a_slice("n1", GPU, GPUS)])
    assert lines[0] == "claim ml/train (from a ResourceClaimTemplate) on n1: gets no devices"
    assert lines[3].startswith(how)
    status = {"resourceClaimStatuses": [{"name": "gpus", "resourceClaimName": "train"}]}
    _, lines = why([{**POD, "status": status}], [WHOLE, a_slice("n1", GPU, GPUS), claim])
    assert "claim ml/train of ResourceClaimTemplate ml/tmpl, request r: 2 of 3 devices fit" in lines[1]
    assert lines[3].startswith(how)


def test_a_claim_that_is_being_deleted_gets_nothing(why: Callable[..., tuple[int, list[str]]]) -> None:
    claim = a_claim(a_request("r", "gpu"))
    claim["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    said = "  reason  ResourceClaim ml/train is being deleted"
    status, lines = why([claim], [WHOLE, a_slice("n1", GPU, GPUS)])
    assert (status, lines) == (1, ["claim ml/train on n1: gets no devices", said])
    spec = {**POD_SPEC, "resourceClaims": [{"name": "gpus", "resourceClaimName": "train"}]}
    status, lines = why([{**POD, "spec": spec}], [WHOLE, a_slice("n1", GPU, GPUS), claim])
    assert (status, lines) == (1, ["pod ml/train on n1: gets no devices", said])
    claim["status"] = a_claim(a_request("r", "gpu"), held=[(GPU, "n1", "gpu-0")])["status"]
    status, lines = why([{**POD, "spec": spec}], [WHOLE, a_slice("n1", GPU, GPUS), claim])
    assert (status, lines) == (1, ["pod ml/train on n1: gets no devices", said])


def test_a_pod_gets_devices_only_where_its_other_claim_has_them(why: Callable[..., tuple[int, list[str]]]) -> None:
    held = a_claim(a_request("r", "gpu"), held=[(GPU, "n1", "gpu-0")])
    selector = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    held["status"]["allocation"]["nodeSelector"] = {"nodeSelectorTerms": [selector]}
    claims = [{"name": one, "resourceClaimName": one} for one in ("train", "other")]
    pod = {**POD, "spec": {**POD_SPEC, "resourceClaims": claims}}
    slices = [a_slice("n1", GPU, GPUS[:1]), a_slice("n2", GPU, GPUS)]
    status, lines = why([pod], [WHOLE, *slices, held, a_claim(a_request("r", "gpu"))])
    assert (status, lines[0]) == (1, "pod ml/train on n1, the closest match of 2 nodes: gets no devices")
    says = "ResourceClaim ml/other is allocated on n1 for pod infer-0, and its devices cannot be used on this node"
    assert lines[-1] == f"  n2  {says}"
    slices[0] = a_slice("n1", GPU, GPUS)
    status, lines = why([pod], [WHOLE, *slices, held, a_claim(a_request("r", "gpu"))])
    assert (status, lines[0]) == (0, "pod ml/train on n1: gets its devices")


def test_an_error_on_every_node_does_not_suggest_that_one_has_devices(
    why: Callable[..., tuple[int, list[str]]],
) -> None:
    claim = a_claim(a_request("r", "gpux", 1, f"device.capacity['{GPU}'].memory >= quantity('1Gi')"))
    gpu = {**GPUS[0], "capacity": {"memory": {"value": "80Gi"}}}
    status, lines = why([claim], [WHOLE, *(a_slice(node, GPU, [gpu]) for node in ("n1", "n2"))])
    assert (status, lines[0]) == (1, "claim ml/train on n1, the closest match of 2 nodes: gets no devices")
    assert lines[2:4] == ["  do      write deviceClassName: gpu", "The other nodes"]


def test_a_change_is_proposed_only_if_schedulers_would_find_the_devices(
    why: Callable[..., tuple[int, list[str]]],
) -> None:
    """An overcommitted counter keeps a scheduler from using any device of the pool."""
    _, objects, _, _ = SITUATIONS["counters are over-committed after an upgrade"]
    parts = json.loads(json.dumps(objects))
    parts[1]["spec"]["devices"][-1]["taints"] = [XID]
    status, lines = why([a_claim(a_request("r", "mig"))], parts)
    shown = "\n".join(lines)
    assert (status, "gets them if" in shown) == (1, False)
    assert (
        "do         counter gpu-0/memory has 10Gi, and 40Gi are in use by claim ml/other of pod infer-0: release"
        in shown
    )


def test_a_counter_that_is_just_used_up_is_not_over_committed(why: Callable[..., tuple[int, list[str]]]) -> None:
    claim, objects, expected, _ = SITUATIONS["counters are over-committed after an upgrade"]
    _, slice_, counters, holder = parts = json.loads(json.dumps(objects))
    used = {**a_device("gpu-2-mig", type="mig"), "consumesCounters": [{**HALF, "counterSet": "gpu-2"}]}
    slice_["spec"]["devices"].append(used)
    counters["spec"]["sharedCounters"].append({**COUNTERS[0], "name": "gpu-2"})
    taken = {"request": "r", "driver": GPU, "pool": "n1", "device": "gpu-2-mig"}
    holder["status"]["allocation"]["devices"]["results"].append(taken)
    status, lines = why([claim], parts)
    assert (status, "counter gpu-2" in "\n".join(lines)) == (expected, False)


def test_a_change_does_not_clear_another_nodes_error(why: Callable[..., tuple[int, list[str]]]) -> None:
    slices = [a_slice("n1", GPU, GPUS), a_slice("n2", GPU, [a_device("gpu-0", uuid="GPU-1")])]
    status, lines = why([a_claim(a_request("r", "gpu", 9))], [WHOLE, *slices])
    assert (status, lines[0]) == (1, "claim ml/train on n1, the closest match of 2 nodes: gets no devices")
    assert lines[1].startswith("  reason      an error on n2 stops the pod on every node: class gpu: selector #0")
    assert "  also needs  request r of claim ml/train is for 2 devices" in lines


@pytest.mark.slow
def test_edited_expressions_take_little_memory(
    why: Callable[..., tuple[int, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier version kept all 15,000 variants of a 10 KiB expression before it tried the best of them."""
    monkeypatch.setattr("devicecore_tools.doctor.pod.claim_trial.MAX_ADVICE_SECONDS", 600)  # tracing takes a long time
    devices = [a_device(f"gpu-{number}", type="gpu", model=f"A{number}") for number in range(100)]
    wanted = " || ".join(f"device.attributes['{GPU}'].model == 'B{number}'" for number in range(150))
    objects = [WHOLE, a_slice("n1", GPU, devices)]
    tracemalloc.start()
    _, lines = why([a_claim(a_request("r", "gpu", 1, wanted))], objects)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert lines[2].startswith("  gets them if  request r of claim ml/train uses 'A")
    assert peak < 100_000_000


@pytest.mark.parametrize("command", ["why", pytest.param("fits", marks=pytest.mark.slow)])
def test_output_that_cannot_be_written_is_a_sentence(command: str, tmp_path: Path) -> None:
    (tmp_path / "all.json").write_text(json.dumps({"kind": "List", "items": [WHOLE, a_slice("n1", GPU, GPUS), POD]}))
    (tmp_path / "claim.json").write_text(json.dumps(a_claim(a_request("r", "gpu"))))
    (tmp_path / "pod.json").write_text(json.dumps({"apiVersion": "v1", **a_pod_with({"cpu": "1"})}))
    (tmp_path / "node.json").write_text(json.dumps({"name": "n1", "devices": []}))
    asked = ["claim.json", "--slices", "all.json"] if command == "why" else ["pod.json", "--node", "node.json"]
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        done = subprocess.run(
            [sys.executable, "-m", "devicecore_tools", command, *asked],
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            text=True,
            check=False,
        )
    assert done.stderr == f"devicecore {command}: the output cannot be written: No space left on device\n"


def test_a_claim_without_a_name_is_refused(tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "bare.json").write_text('{"kind": "ResourceClaim"}')
    (tmp_path / "all.json").write_text(json.dumps({"kind": "List", "items": [WHOLE, a_slice("n1", GPU, GPUS)]}))
    assert main(["why", str(tmp_path / "bare.json"), "--slices", str(tmp_path / "all.json")]) == 2
    assert "metadata.name: it is missing" in capsys.readouterr().err


def test_v1beta1_objects_are_read_like_v1_objects(why: Callable[..., tuple[int, list[str]]]) -> None:
    """In v1beta1, attributes are under `basic`, and a request itself contains what v1 has under `exactly`."""
    old = a_slice("n1", GPU, [{"name": one["name"], "basic": {"attributes": one["attributes"]}} for one in GPUS])
    claim = a_claim(a_request("r", "gpu"))
    claim["spec"]["devices"]["requests"] = [{"name": "r", "deviceClassName": "gpu", "count": 2}]
    claim["apiVersion"] = old["apiVersion"] = "resource.k8s.io/v1beta1"
    assert why([claim], [WHOLE, old])[0] == 0


def test_nodes_with_the_same_reason_share_one_line(why: Callable[..., tuple[int, list[str]]]) -> None:
    _, lines = why([a_claim(a_request("r", "gpu", 3))], [WHOLE, *(a_slice(f"n{one}", GPU, GPUS) for one in (1, 2))])
    assert lines[-2:] == [
        "The other nodes",
        "  n2  claim ml/train, request r: 2 of 3 devices fit; there are only 2 on the node",
    ]


def test_nodes_that_have_the_devices_are_counted_and_grouped_by_type(
    why: Callable[..., tuple[int, list[str]]],
) -> None:
    slices = [a_slice(f"m{one}", GPU, GPUS[: one % 3]) for one in range(6)]
    labels = [{"node.kubernetes.io/instance-type": f"p{one % 3}"} for one in range(6)]
    nodes = [{"kind": "Node", "metadata": {"name": f"m{one}", "labels": labels[one]}} for one in range(6)]
    status, lines = why([a_claim(a_request("r", "gpu"))], [WHOLE, *slices, *nodes])
    assert (status, lines[0]) == (0, "claim ml/train on m1, one of 4 such nodes among 7: gets its devices")
    none = "claim ml/train, request r: 0 of 1 devices fit; there are none on the node"
    assert lines[4:7] == [
        "  2 nodes  gets its devices (instance type p2: m2, m5)",
        "  m4       gets its devices",
        f"  2 nodes  {none} (instance type p0: m0, m3)",
    ]


def test_only_the_named_release_is_consulted(why: Callable[..., tuple[int, list[str]]]) -> None:
    claim, objects, _, _ = SITUATIONS["counters are over-committed after an upgrade"]
    assert "Kubernetes 1.36.3 does not" in why([claim], objects, "--scheduler", "v1.36.5")[1][1]
    assert "Kubernetes 1.37 does not" in why([claim], objects, "--scheduler", "1.37")[1][1]


def test_two_faults_that_are_needed_together_have_a_sentence_each() -> None:
    given = DeviceAllocation((), TargetNode("n1"), {}, Features(), ())
    causes = {"1.36.3": ((KubernetesFault.POOL_NAMES, KubernetesFault.DISTINCT),)}
    (_, text), *_ = pairs_of(ClaimAnswer(given.node, given, causes=causes))
    assert "confuses the counters of pools with the same name; it compares distinct attributes" in text
    assert "(k/k#140435 + k/k#140438, see docs/claims.md)" in text


def test_indistinguishable_faults_are_reported_as_several() -> None:
    given = DeviceAllocation((), TargetNode("n1"), {}, Features(), (), causes=((),))
    (_, text), *_ = pairs_of(ClaimAnswer(given.node, given, causes={"1.37": given.causes}))
    assert text.endswith("does not find them: several faults together (several faults together, see docs/claims.md)")
    assert given.faults == ("several faults together",)


POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "train", "namespace": "ml", "uid": "u"},
    "spec": POD_SPEC,
}


def test_fits_ends_with_4_if_a_scheduler_does_not_find_the_devices(tmp_path: Path, capsys: Capsys) -> None:
    _, objects, _, _ = SITUATIONS["counters are over-committed after an upgrade"]
    template = {
        **TEMPLATE,
        "spec": {"spec": a_claim(a_request("r", "mig"))["spec"]},
        "apiVersion": "resource.k8s.io/v1",
    }
    files = {
        "pod.json": POD,
        "node.json": {"name": "n1", "devices": []},
        "all.json": {"kind": "List", "items": [template, *objects]},
    }
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    pod, node, everything = (str(tmp_path / name) for name in files)
    assert main(["fits", pod, "--node", node, "--slices", everything]) == 4
    assert "but" in capsys.readouterr().out


@pytest.mark.parametrize("has_template", [True, False])
def test_a_pod_is_explained_by_an_api_server_alone(*, has_template: bool, tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "pod.json").write_text(json.dumps(POD))
    with LocalApiServer() as server:
        server.create({"kind": "Namespace", "metadata": {"name": "ml"}})
        template = {**TEMPLATE, "spec": {"spec": a_claim(a_request("r", "gpu"))["spec"]}}
        ready_node(server, "n1")
        for one in (WHOLE, a_slice("n1", GPU, GPUS)):
            server.create(one)
        if has_template:
            server.create({**template, "apiVersion": "resource.k8s.io/v1"})
        config = str(server.kubeconfig(tmp_path / "config"))
        status = main(["why", str(tmp_path / "pod.json"), "--kubeconfig", config])
    said, errors = capsys.readouterr()
    if has_template:
        assert (status, errors) == (0, "")
        assert said.startswith("pod ml/train on n1: gets its devices")
    else:
        assert (status, errors) == (1, "")
        places = f"not in {tmp_path / 'pod.json'}, and not on the API server of {config}"
        assert f"ResourceClaimTemplate ml/tmpl, which is {places}: the scheduler waits for it" in said


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
@pytest.mark.parametrize(("name", "title"), [("train", "pod ml/train"), ("ml/wanted", "claim ml/wanted")])
def test_a_name_is_explained_on_servers_of_every_version(
    name: str, title: str, version: str, tmp_path: Path, capsys: Capsys
) -> None:
    """Given a name, `why` says which nodes have the devices, and why the other nodes do not."""
    spec = a_claim(a_request("r", "gpu", 2))["spec"]
    v1 = "resource.k8s.io/v1"
    template = {**TEMPLATE, "apiVersion": v1, "spec": {"spec": spec}}
    claim = {"apiVersion": v1, "kind": "ResourceClaim", "metadata": {"name": "wanted", "namespace": "ml"}, "spec": spec}
    with LocalApiServer(resource_versions=(version,)) as server:
        for name_space in ("ml", "other"):
            server.create({"kind": "Namespace", "metadata": {"name": name_space}})
        for number in (1, 2):
            labels = {"node.kubernetes.io/instance-type": f"type-{number}"}
            ready_node(server, f"n{number}", **labels)
            server.create(a_slice(f"n{number}", GPU, GPUS[:number]))
        for one in (WHOLE, template, claim, POD):
            server.create(one)
        config = str(server.kubeconfig(tmp_path / "config"))
        status = main(["why", name, "--kubeconfig", config])
        assert look_up_at_server("nothing", config, budget=Budget()) is None
        assert look_up_at_server("other/train", config, budget=Budget()) is None
    lines = capsys.readouterr().out.splitlines()
    assert (status, lines[0]) == (0, f"{title} on n2: gets its devices")
    assert lines[-1].endswith("request r: 1 of 2 devices fit; there is only 1 on the node")


def test_two_requests_are_changed_at_once_if_neither_change_helps_alone(
    why: Callable[..., tuple[int, list[str]]],
) -> None:
    devices = [a_device(f"gpu-{model}", type="gpu", model=model) for model in ("A100", "A30")]
    wrong = [f'device.attributes["{GPU}"].model == "{model}"' for model in ("A101", "A31")]
    claim = a_claim(a_request("big", "gpu", 1, wrong[0]), a_request("small", "gpu", 1, wrong[1]))
    status, lines = why([claim], [WHOLE, a_slice("n1", GPU, devices)])
    (advice,) = [line for line in lines if "gets them if" in line]
    assert status == 1
    assert "request big of claim ml/train uses" in advice
    assert ", and request small of claim ml/train uses" in advice
