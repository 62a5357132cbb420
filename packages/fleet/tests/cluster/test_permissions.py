"""docs/cluster-node.md lists the permissions of a node's identity, which are all that a node needs."""

from functools import partial
from pathlib import Path

from attrs import evolve
from devicecore_fleet.cluster.registration import RegisteredNode
from devicecore_fleet.cluster.requests import KubeApiRequests
from devicecore_fleet.cluster.words.nodes import NodeDescription
from devicecore_fleet.cluster.writer import ApiWriter
from devicecore_tools.testing.api_server import LocalApiServer
from devicecore_tools.testing.api_server.node_rules import NODE_VERBS
from tests.cluster.permissions import role, table, unlisted

from devicecore import NodeStatus, ResourceName
from devicecore.adapters.kube_api import Access

GPU = ResourceName("a.io/gpu")


def test_the_table_and_the_role_say_the_same() -> None:
    assert len(table()) > 20
    assert table().keys() == role()


def test_the_identity_of_a_node_may_do_what_the_table_says() -> None:
    may = {(resource, verb): verb in NODE_VERBS.get(resource, "").split() for resource, verb in table()}
    assert may == {permission: not own.startswith("no") for permission, own in table().items()}


def test_a_node_registers_with_its_own_identity_and_the_listed_permissions(tmp_path: Path) -> None:
    """The Node is created, adopted again after a restart and changed, and its Lease is renewed."""
    taint = {"key": "k", "effect": "NoSchedule"}
    description = NodeDescription("n1", {"cpu": "1"}, taints=(taint,))
    renewed: list[str] = []
    with LocalApiServer(users={"token": "system:node:n1"}) as server:
        kubeconfig = server.kubeconfig(tmp_path / "config", {"token": "token"})

        def shows(count: int) -> bool:
            nodes, leases = server.objects("Node"), server.objects("Lease")
            return bool(
                leases
                and leases[0]["spec"]["renewTime"] not in renewed
                and nodes[0]["status"]["allocatable"].get(GPU) == str(count)
                and f"a.io/{count}" in nodes[0]["metadata"]["labels"]
            )

        for count in (1, 2):
            with ApiWriter(KubeApiRequests(Access(kubeconfig))) as writer:
                node = RegisteredNode(evolve(description, labels={f"a.io/{count}": ""}), writer)
                node.publish(NodeStatus({GPU: count}, {GPU: count}))
                node.tick()
                server.wait_for(partial(shows, count))
            lease = server.get("Lease", "n1", "kube-node-lease")
            assert lease["metadata"]["ownerReferences"][0]["uid"] == node.uid
            renewed.append(lease["spec"]["renewTime"])
        taints = server.get("Node", "n1")["spec"]["taints"]
        assert [one["key"] for one in taints] == ["k"]
        assert unlisted(server.requests) == set()
