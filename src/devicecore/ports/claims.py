"""Reads ResourceClaims.

Law: the returned claim is current, never cached.
"""

from typing import Protocol

from devicecore.domain.dra.model import ClaimKey, ResourceClaim


class ClaimSource(Protocol):
    """A source of the ResourceClaims that pods may name.

    The manager reads each claim once when it prepares the claims of a pod.
    """

    def get(self, key: ClaimKey) -> ResourceClaim:
        """Return the current claim, not a cached one. Every call ends within a finite time.

        Raises:
            ClaimSourceError: the claim does not exist, or it cannot be read. For a claim that does not exist, the cause
                is `resourceclaims.resource.k8s.io "<name>" not found`.
        """
