"""Finds the names without a Node or a Lease when a fleet starts, with two lists instead of two requests for each node.

Law: a name counts as free only once, because the lists become outdated. If an object has appeared since, the API server
refuses to create it again.
"""

import threading
from http import HTTPStatus

from attrs import define, field

from devicecore.adapters.kube_api.access import RequestError
from devicecore.adapters.kube_api.requests import LEASES, NODES
from devicecore_fleet.cluster.requests import KubeApiRequests
from devicecore_fleet.cluster.words.leases import LEASE_NAMESPACE


@define(eq=False)
class FreeNames:
    """Knows which of the given node names were free at the start. Thread-safe."""

    _names: set[str]
    _lock: threading.Lock = field(factory=threading.Lock)  # held while the lists are read, which happens only once
    _is_read: bool = False

    def take(self, name: str, requests: KubeApiRequests) -> bool:
        """Return whether a name was free at the start. If the name was asked about before, return False.

        Raises RequestError if the server fails or does not answer.
        """
        with self._lock:
            if self._names and not self._is_read:
                self._names -= self._used(requests)
                self._is_read = True
            is_free = name in self._names
            self._names.discard(name)
        return is_free

    def _used(self, requests: KubeApiRequests) -> set[str]:
        try:
            found = requests.list(NODES, metadata_only=True)
            found += requests.list(LEASES, namespace=LEASE_NAMESPACE, metadata_only=True)
        except RequestError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            return self._names  # the nodes then send their own requests, which need fewer permissions
        return {str(one["metadata"]["name"]) for one in found}
