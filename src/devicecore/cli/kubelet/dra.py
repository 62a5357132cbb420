"""What `devicecore kubelet` needs of dynamic resource allocation: `make` connects the DRA manager with its adapters.

Law: this module is loaded when the DRA manager is made, and not before. A claim of a manifest comes before a claim of
the same name on the API server.
"""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

from devicecore.adapters.file import FileStore
from devicecore.adapters.grpc_unix.dra import GrpcDriverTransport
from devicecore.adapters.manifests import ManifestPods
from devicecore.cli.kubelet.claims import DraParts
from devicecore.domain.dra.errors import ClaimSourceError
from devicecore.domain.dra.model import ClaimKey, ResourceClaim
from devicecore.dra_manager import DraManager
from devicecore.ports.claims import ClaimSource
from devicecore.ports.dra_observer import DraObserver
from devicecore.ports.slices import ResourceSlices

if TYPE_CHECKING:
    from devicecore.adapters.prometheus import PrometheusMetrics

HEALTH_NAME = "dra_health_state"
"""The kubelet's file in its root directory with the health that drivers have reported."""


@frozen
class NodeClaimSource(ClaimSource):
    """The ResourceClaims of manifests, and then those of an API server if there is one."""

    manifests: ManifestPods | None
    server: ClaimSource | None

    def get(self, key: ClaimKey) -> ResourceClaim:
        """The claim.

        Raises:
            ClaimSourceError: there is no such claim, or it cannot be read.
        """
        claim = self.manifests.claims.get(key) if self.manifests else None
        if claim is not None:
            return claim
        if self.server is None:
            cause = f'resourceclaims.resource.k8s.io "{key.name}" not found'
            raise ClaimSourceError(cause)
        return self.server.get(key)


@frozen
class DraSettings:
    """What the DRA manager is made of.

    Attributes:
        state: the file of claims, in the kubelet's root directory.
        manifests: pods and ResourceClaims; None if there are no manifests.
        claims: reads ResourceClaims of an API server; None if there is no server.
        slices: deletes the node's ResourceSlices of an API server; None if that is left to another kubelet.
        metrics: counts claims and operations; None for no metrics.
    """

    state: Path
    manifests: ManifestPods | None
    claims: ClaimSource | None
    slices: ResourceSlices | None
    metrics: "PrometheusMetrics | None" = None


def make(settings: DraSettings, observer: DraObserver, closing: ExitStack) -> DraParts:
    """Return a DRA manager with the adapters of a node, not started."""
    transport = GrpcDriverTransport(observe=settings.metrics.driver_call) if settings.metrics else GrpcDriverTransport()
    manager = DraManager(
        transport,
        NodeClaimSource(settings.manifests, settings.claims),
        FileStore(settings.state),
        pods=settings.manifests,
        slices=settings.slices,
        health_store=FileStore(settings.state.with_name(HEALTH_NAME)),
        metrics=settings.metrics,
        observers=(observer,),
    )
    if settings.metrics is not None:
        settings.metrics.count_claims(lambda: manager.claims)
    return DraParts(manager, transport.handler, closing, deletes_slices=settings.slices is not None)
