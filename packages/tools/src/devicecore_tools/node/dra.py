"""Dynamic resource allocation for `devicecore kubelet`: `make` connects the DRA manager to its adapters.

Law: this module is loaded only when the DRA manager is created. A claim in a manifest takes precedence over a claim
    with the same name on the API server.
"""

import logging
from contextlib import ExitStack
from typing import TYPE_CHECKING

from attrs import field, frozen

from devicecore.adapters.file import FileStore
from devicecore.adapters.grpc_unix.dra import GrpcDriverTransport
from devicecore.domain.dra.errors import ClaimSourceError
from devicecore.domain.dra.model import ClaimKey, ClaimRef, ResourceClaim
from devicecore.domain.dra.state_file import FILE_NAME
from devicecore.domain.text import foreign_text
from devicecore.dra_manager import DraManager
from devicecore.ports.claims import ClaimSource
from devicecore.ports.dra_observer import DraObserver
from devicecore_tools.node.claims import DraParts
from devicecore_tools.node.feed import PodFeed
from devicecore_tools.node.settings import NodeSettings

if TYPE_CHECKING:
    from devicecore.adapters.prometheus import PrometheusMetrics
    from devicecore.ports.store import CheckpointStore

HEALTH_NAME = "dra_health_state"
"""The file in the kubelet's root directory with the health that drivers have reported."""

_log = logging.getLogger(__name__)


@frozen
class NodeClaimSource(ClaimSource):
    """The ResourceClaims in manifests and on the API server, if there is one."""

    pods: PodFeed | None
    server: ClaimSource | None
    _warned: set[ClaimRef | ClaimKey] = field(factory=set, init=False)

    def get(self, key: ClaimKey) -> ResourceClaim:
        """Return the claim with this key. Raises ClaimSourceError if the claim does not exist or cannot be read."""
        claim = self.pods.claims.get(key) if self.pods else None
        if claim is not None:
            if claim.allocation is None:
                self._warn_once(claim.ref, key, "in a manifest, where no scheduler allocates it: write its")
            return claim
        if self.server is None:
            self._warn_once(key, key, "in no manifest: write a ResourceClaim with this name and its")
            raise ClaimSourceError(f'resourceclaims.resource.k8s.io "{key.name}" not found')
        return self.server.get(key)

    def _warn_once(self, what: ClaimRef | ClaimKey, key: ClaimKey, problem: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            name, namespace = foreign_text(key.name), foreign_text(key.namespace)
            _log.warning("claim %s/%s is %s status.allocation", namespace, name, problem)


def make(
    options: NodeSettings, pods: PodFeed | None, metrics: "PrometheusMetrics | None", observer: DraObserver
) -> DraParts:
    """Create a DRA manager with a node's adapters, without starting it.

    If the options name an API server, the manager reads claims there, and deletes slices unless a kubelet does so.
    Raises SetUpError if there are no credentials for the server.
    """
    with ExitStack() as closing:
        claims, slices = None, None
        if options.server is not None:
            from devicecore.adapters.kube_api.dra import KubeApiClaims, KubeApiSlices

            claims = closing.enter_context(KubeApiClaims(options.server.access))
            if options.deletes_slices:
                slices = closing.enter_context(KubeApiSlices(options.name, options.server.access))
        store: CheckpointStore = FileStore(options.root / FILE_NAME)
        if metrics is not None:
            store = metrics.measured(store, FILE_NAME)
        transport = GrpcDriverTransport(observe=metrics.driver_call if metrics else None)
        manager = DraManager(
            transport,
            NodeClaimSource(pods, claims),
            store,
            pods=pods,
            slices=slices,
            health_store=FileStore(options.root / HEALTH_NAME),
            metrics=metrics,
            observers=(observer,),
        )
        if metrics is not None:
            metrics.watch(claims=lambda: manager.claims)
        return DraParts(manager, transport.handler, closing.pop_all(), deletes_slices=slices is not None)
