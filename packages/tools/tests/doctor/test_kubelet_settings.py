"""A kubelet's topology policy, from its process or its configuration."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from devicecore_tools.doctor.look.topology_settings import TopologySettings
from devicecore_tools.doctor.reading import kubelet_settings
from devicecore_tools.doctor.reading.kubelet_settings import configuration_of, read_topology
from devicecore_tools.doctor.reading.machine import numa_distances
from devicecore_tools.doctor.reading.node import NodeSources

from devicecore.domain.topology import Policy, PolicyOptions, Scope

DEFAULT = TopologySettings()


def configuration(policy: str, scope: str = "container") -> str:
    kind = {"kind": "KubeletConfiguration"}
    return json.dumps({**kind, "topologyManagerPolicy": policy, "topologyManagerScope": scope})


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A simulated /proc/PID directory that makes this process look like a kubelet that serves its socket."""
    (root := tmp_path / "root").mkdir()
    (root / "pod-resources").mkdir()
    place = tmp_path / "proc" / str(os.getpid())
    for name in ("root/etc/kubelet.d", "cwd"):
        (place / name).mkdir(parents=True)
    (place / "comm").write_text("kubelet\n")
    monkeypatch.setattr(kubelet_settings, "_PROCESSES", tmp_path / "proc")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "pod-resources" / "kubelet.sock"))
        server.listen()
        yield place


def started_with(process: Path, *words: str) -> TopologySettings:
    (process / "cmdline").write_bytes(b"\0".join(one.encode() for one in ("/usr/bin/kubelet", *words, "")))
    return read_topology(str(process.parents[1] / "root"), DEFAULT)


def test_the_configuration_of_the_running_kubelet_is_read_where_it_has_it(process: Path) -> None:
    (process / "root/etc/kubelet.json").write_text(configuration("restricted", "pod"))
    found = started_with(process, "--v=2", "--config=/etc/kubelet.json")
    assert (found.policy, found.scope, found.is_given) == (Policy.RESTRICTED, Scope.POD, True)
    (process / "cwd/kubelet.json").write_text(configuration("best-effort"))
    assert started_with(process, "--config", "kubelet.json").policy is Policy.BEST_EFFORT


def test_the_directorys_files_override_the_file_and_flags_override_both(process: Path) -> None:
    (process / "root/etc/kubelet.json").write_text(configuration("restricted", "pod"))
    for name, policy in (("10.conf", "none"), ("20.conf", "best-effort"), ("30.yaml", "restricted")):
        (process / "root/etc/kubelet.d" / name).write_text(configuration(policy))
    files = ("--config=/etc/kubelet.json", "--config-dir=/etc/kubelet.d")
    assert started_with(process, *files).policy is Policy.BEST_EFFORT
    flag = "--topology-manager-policy=single-numa-node"
    assert started_with(process, *files, flag).policy is Policy.SINGLE_NUMA_NODE


def test_the_options_of_the_policy_are_read_from_a_file_or_a_flag(process: Path) -> None:
    document = {**json.loads(configuration("restricted")), "topologyManagerPolicyOptions": {}}
    document["topologyManagerPolicyOptions"] = {"prefer-closest-numa-nodes": "true", "max-allowable-numa-nodes": "16"}
    (process / "root/etc/kubelet.json").write_text(json.dumps(document))
    assert started_with(process, "--config=/etc/kubelet.json").options == PolicyOptions.of(
        {"prefer-closest-numa-nodes": "1", "max-allowable-numa-nodes": "16"}
    )
    flag = "--topology-manager-policy-options=prefer-closest-numa-nodes=false,max-allowable-numa-nodes=9"
    assert started_with(process, "--config=/etc/kubelet.json", flag).options == PolicyOptions(
        max_allowable_numa_nodes=9
    )
    assert configuration_of(str(process.parents[1] / "root"))["topologyManagerPolicyOptions"] == {
        "prefer-closest-numa-nodes": "false",
        "max-allowable-numa-nodes": "9",
    }


def test_distances_are_those_between_the_numa_nodes_that_are_online(tmp_path: Path) -> None:
    rows = {0: "10 21 31", 1: "21 10 41", 4: "31 41 10"}
    for node, row in rows.items():
        (tmp_path / "node" / f"node{node}").mkdir(parents=True)
        (tmp_path / "node" / f"node{node}" / "distance").write_text(f"{row}\n")
    (tmp_path / "node" / "online").write_text("0-1,4\n")
    assert numa_distances((0, 4), tmp_path) == ((10, 31), (31, 10))
    assert numa_distances((0, 2), tmp_path) == ()
    assert numa_distances((0,), tmp_path / "missing") == ()


def test_a_kubelet_without_configuration_has_the_default_for_certain(process: Path) -> None:
    found = started_with(process)
    assert (found.policy, found.is_given) == (Policy.NONE, True)


@pytest.mark.parametrize("text", ["", "{", '{"kind": "Other"}', configuration("odd"), configuration("none", "odd")])
def test_a_configuration_that_cannot_be_read_leaves_the_policy_unknown(process: Path, text: str) -> None:
    (process / "root/etc/kubelet.json").write_text(text)
    assert started_with(process, "--config=/etc/kubelet.json") == DEFAULT
    assert started_with(process, "--config=/etc/missing.json") == DEFAULT


def test_a_process_with_a_different_name_is_not_believed(process: Path) -> None:
    (process / "comm").write_text("k3s-agent\n")
    assert started_with(process, "--topology-manager-policy=restricted") == DEFAULT


def test_without_a_kubelet_the_file_in_its_directory_is_read(tmp_path: Path) -> None:
    assert read_topology(str(tmp_path), DEFAULT) == DEFAULT
    (tmp_path / "config.yaml").write_text("kind: KubeletConfiguration\ntopologyManagerPolicy: restricted\n")
    assert read_topology(str(tmp_path), DEFAULT).policy is Policy.RESTRICTED
    (tmp_path / "config.yaml").write_text("kind: KubeletConfiguration\n")
    assert read_topology(str(tmp_path), DEFAULT) == DEFAULT  # a flag may set a different policy


def test_a_record_keeps_the_policy(process: Path, tmp_path: Path) -> None:
    found = started_with(process, "--topology-manager-policy=restricted", "--topology-manager-scope=pod")
    sources = NodeSources(root=str(tmp_path / "root"), pod_resources=str(tmp_path / "none.sock"))
    (tmp_path / "root" / "device-plugins").mkdir()
    sources.save(str(tmp_path / "record"), sources.look())
    kept = NodeSources(root=str(tmp_path / "record")).topology()
    assert (kept.policy, kept.scope, kept.is_given) == (found.policy, found.scope, True)
    assert configuration_of(str(tmp_path / "record"))["cpuManagerPolicy"] == "none"


def test_a_state_file_of_another_policy_than_the_configured_one_is_named(process: Path, tmp_path: Path) -> None:
    """Someone may have changed the policy but kept the file (kubelet: `restoreState`)."""
    data = '{"policyName":"none","defaultCpuSet":""}'
    file = {"policyName": "none", "defaultCpuSet": "", "checksum": 1353318690, "data": data, "dataChecksum": 3028111495}
    (tmp_path / "root" / "cpu_manager_state").write_text(json.dumps(file))
    for words, problem in (
        ((), ""),
        (("--cpu-manager-policy=static",), 'configured policy "static" differs from state checkpoint policy "none"'),
    ):
        started_with(process, *words)
        (seen,) = (
            NodeSources(root=str(tmp_path / "root"), pod_resources=str(tmp_path / "none.sock")).look().state_files.value
            or ()
        )
        assert seen.problem == problem
