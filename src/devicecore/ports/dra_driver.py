"""The driver's own side of dynamic resource allocation: what the author of a driver writes.

Law: each claim that is passed has one result, and the same call for the same claims may be repeated.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from devicecore.domain.dra.answers import PrepareResult, UnprepareResult
from devicecore.domain.dra.model import ClaimRef, ClaimUid, DriverName


class DraDriver(Protocol):
    """A driver. Methods may be called from several threads at once, and again for the same claims.

    An exception that a method raises becomes the caller's error, with its text. A `DriverCallError` keeps its code.
    """

    name: DriverName

    def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, PrepareResult]:
        """Prepare the devices of these claims. Return one result for each claim, with its devices."""

    def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, UnprepareResult]:
        """Release these claims: one result for each claim. A claim that is not prepared is released already."""
