"""Read ResourceClaims."""

from typing import Protocol

from devicecore.domain.dra.model import ClaimKey, ResourceClaim


class ClaimSource(Protocol):
    """The ResourceClaims that pods may name. Asked once per claim each time a pod's claims are prepared."""

    def get(self, key: ClaimKey) -> ResourceClaim:
        """The claim as it is now, not as it was. Every call ends within a finite time.

        Raises:
            ClaimSourceError: there is no such claim, or it cannot be read. For a claim that does not exist, the cause
                is `resourceclaims.resource.k8s.io "<name>" not found`.
        """
