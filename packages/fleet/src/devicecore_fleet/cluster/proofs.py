"""Proofs that pods were bound to a registered Node, not to someone else's Node with the same name.

Law: a pod is proven only by a read of its Node that began after the pod was seen and shows the registered UID. One read
is enough for all pods of the Node that were seen before the read began, and one request can read many Nodes.
"""

import threading
from collections.abc import Callable, Mapping
from itertools import islice

from attrs import define, field

from devicecore.adapters.kube_api.requests import NODES
from devicecore_fleet.cluster.registration import RegisteredNode
from devicecore_fleet.cluster.requests import KubeApiRequests
from devicecore_fleet.cluster.words.nodes import HOST_NAME

_FEW = 3  # from this number of Nodes on, one request costs less than separate requests
_MANY = 100  # the maximum number of Nodes in one request


@define(eq=False)
class PodProofs:
    """Knows which pods of a node are proven.

    A pod belongs to a batch: the pods that were seen between two reads of the Node. `node` returns the Node, or None if
    someone else created the Node; then there is nothing to prove.
    """

    shared: "NodeReads"
    node: Callable[[], RegisteredNode | None]
    batch: int = 0
    proven: int = -1

    def seen(self) -> int:
        """Return the batch of a pod that has just been seen."""
        if (node := self.node()) is not None:
            self.shared.await_read(node.name, self)
        return self.batch

    def holds(self, batch: int, requests: KubeApiRequests) -> bool:
        """Return whether the pods of a batch are proven, after a read if necessary.

        Raises RequestError if the read fails.
        """
        return self.node() is None or self.shared.prove(self, batch, requests)


@define(eq=False)
class NodeReads:
    """Reads the Nodes of several nodes in one request. Thread-safe."""

    _changed: threading.Condition = field(factory=threading.Condition)
    _awaiting: dict[str, PodProofs] = field(factory=dict)  # the nodes with pods that were seen since the last read
    _reading: set[PodProofs] = field(factory=set)

    def await_read(self, name: str, proofs: PodProofs) -> None:
        """Record that the node `name` has a new pod, so that another node's request may also read that Node."""
        with self._changed:
            self._awaiting[name] = proofs

    def prove(self, proofs: PodProofs, batch: int, requests: KubeApiRequests) -> bool:
        """Return whether the pods of a batch are proven. Raises RequestError if a read fails."""
        with self._changed:
            self._changed.wait_for(lambda: batch <= proofs.proven or proofs not in self._reading)
            if batch <= proofs.proven:
                return True
            together = self._together(proofs)
            batches = {one: one.batch for one in together.values()}
            for one in together.values():
                one.batch += 1
            self._reading.update(batches)
        found, waiting = set[PodProofs](), together
        try:
            if len(together) >= _FEW:
                found = _found(together, requests)
            if proofs not in found and (node := proofs.node()) is not None and node.read(requests):
                found.add(proofs)
            waiting = {}
        finally:
            with self._changed:
                for one in found:
                    one.proven = max(one.proven, batches[one])
                self._awaiting = {**waiting, **self._awaiting}
                self._reading.difference_update(batches)
                self._changed.notify_all()
        return proofs in found

    def _together(self, proofs: PodProofs) -> dict[str, PodProofs]:
        """Return the nodes whose Nodes are read next, by name."""
        mine = {} if (node := proofs.node()) is None else {node.name: proofs}
        free = (name for name, one in self._awaiting.items() if name not in mine and one not in self._reading)
        names = list(islice(free, _MANY - 1))
        if len(names) + 1 >= _FEW:
            mine |= {name: self._awaiting[name] for name in names}
        for name, one in mine.items():
            if self._awaiting.get(name) is one:
                del self._awaiting[name]
        return mine


def _found(nodes: Mapping[str, PodProofs], requests: KubeApiRequests) -> set[PodProofs]:
    """Return the nodes whose registered Nodes still exist."""
    found = set[PodProofs]()
    for shown in requests.list(NODES, labels=f"{HOST_NAME} in ({','.join(nodes)})", metadata_only=True):
        one = nodes.get(str(shown["metadata"]["name"]))
        if one is not None and (node := one.node()) is not None and node.uid == shown["metadata"]["uid"]:
            found.add(one)
    return found
